"""allreduce_gloo.py PEER OPS SIZES SECONDS -- collectives of torch.distributed with gloo, for bench/comm.sh.

One process per rank, told by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; with RANKS=N in their place it starts N
of them on this machine. Lines and timing are those of allreduce_mpi.c: a call begins behind a barrier and lasts until
the slowest rank has left it, results are checked first, `bytes` is the whole buffer of a rank.
"""
import json
import os
import socket
import subprocess
import sys
import time

LEAST_CALLS, MOST_CALLS = 5, 2000


def start_ranks(n):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
           "GLOO_SOCKET_IFNAME": "lo"}
    del env["RANKS"]
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**env, "RANK": str(r)}) for r in range(n)]
    try:
        return max(abs(p.wait()) for p in ranks)
    finally:
        for p in ranks:
            p.kill()


if "RANKS" in os.environ:
    sys.exit(start_ranks(int(os.environ["RANKS"])))

import torch  # noqa: E402  (after the ranks were started: they import it themselves)
import torch.distributed as dist  # noqa: E402


def value(rank, count):
    return (torch.arange(count) % 7 + 1).float() * (rank + 1)


class Buffers:
    """The whole buffer of a rank, twice, and its equal parts."""

    def __init__(self, count, rank, ranks):
        self.rank, self.ranks, self.each = rank, ranks, count // ranks
        self.given, self.out = value(rank, count), value(rank, count)
        self.given_parts = list(self.given[: self.each * ranks].split(self.each)) if self.each else []
        self.out_parts = list(self.out[: self.each * ranks].split(self.each)) if self.each else []
        self.total = value(0, count) * (ranks * (ranks + 1) // 2)


def all_reduce(b):
    dist.all_reduce(b.out)


def broadcast(b):
    dist.broadcast(b.out, 0)


def all_gather(b):
    dist.all_gather(b.out_parts, b.given_parts[0])


def all_to_all(b):
    n = b.each * b.ranks
    dist.all_to_all_single(b.out[:n], b.given[:n])


def barrier(_):
    dist.barrier()


def right(op, b):
    n = b.each * b.ranks
    if op == "all_reduce":
        return torch.equal(b.out, b.total)
    if op == "broadcast":
        return torch.equal(b.out, value(0, b.out.numel()))
    if op == "all_gather":
        return torch.equal(b.out[:n], torch.cat([value(r, b.each) for r in range(b.ranks)]))
    if op == "all_to_all":
        mine = slice(b.rank * b.each, (b.rank + 1) * b.each)
        return torch.equal(b.out[:n], torch.cat([value(r, n)[mine] for r in range(b.ranks)]))
    return True


OPERATIONS = {"all_reduce": all_reduce, "broadcast": broadcast, "all_gather": all_gather, "all_to_all": all_to_all,
              "barrier": barrier}  # gloo has no reduce_scatter of its own


def call(run, b):
    dist.barrier()
    begin = time.perf_counter()
    run(b)
    return time.perf_counter() - begin


def agree(number):
    """Rank 0's number, on all ranks."""
    t = torch.tensor([float(number)], dtype=torch.float64)
    dist.broadcast(t, 0)
    return t.item()


def calls_for(run, b, seconds):
    call(run, b)
    begin, warm, go = time.perf_counter(), 0, 1
    while go:
        call(run, b)
        warm += 1
        go = agree(time.perf_counter() - begin < seconds / 10 and warm < 100)
    each = (time.perf_counter() - begin) / warm
    return int(agree(max(LEAST_CALLS, min(MOST_CALLS, int(seconds / each)))))


def measure(peer, op, count, seconds):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    b, run = Buffers(count, rank, ranks), OPERATIONS[op]
    run(b)
    if not right(op, b):
        sys.exit(f"{peer}: rank {rank}: {op} of {4 * count} bytes is wrong")
    b.given.zero_()
    b.out.zero_()
    del b.total
    times = torch.tensor([call(run, b) for _ in range(calls_for(run, b, seconds))], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        us = sorted((times * 1e6).tolist())
        print(json.dumps({"op": op, "ranks": ranks, "bytes": 4 * count, "us": round(us[len(us) // 2], 3),
                          "best_us": round(us[0], 3), "calls": len(us), "peer": peer}), flush=True)


def main():
    peer, ops, sizes, seconds = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for op in ops.split(","):
        for size in ["0"] if op == "barrier" else sizes.split(","):
            if op in OPERATIONS:
                measure(peer, op, int(size) // 4, float(seconds))
    dist.destroy_process_group()


main()
