"""A worker for torchrun: a small DDP model over gloo, on the CPU, that notes every step it has finished.

elastic.py FOLDER: lines "step seconds" go to FOLDER/RESTARTS.RANK, behind a first line with the process's id.
"""
import os
import sys
import time

import torch
import torch.distributed as dist


def main(folder):
    dist.init_process_group("gloo")
    restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{folder}/{restarts}.{rank}", "w", buffering=1, encoding="ascii") as notes:
        notes.write(f"{os.getpid()}\n")
        for step in range(100000):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            notes.write(f"{step} {time.monotonic()}\n")
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
