"""train_gpt.py MODEL TEXT -- steps of a GPT-2 in PyTorch on the CPU, fp32: the peer of bench/cpu_train.sh.

    --threads N  --steps N  --warm N   timed steps, and steps before them (compiling happens there)
    --compile none|default|max-autotune
    --adamw fused|foreach|loop
    --attention sdpa|plain
    --ddp        one of WORLD_SIZE ranks (RANK, MASTER_ADDR ... in the environment) that share the batch, over Gloo
Prints one JSON object: milliseconds of each timed step, by the clock and of all processors, and what ran. The text's
bytes are the tokens, as on our side, drawn at random; the whole step counts: batch, forward, backward, clipping, AdamW.
"""
import argparse
import json
import math
import os
import sys
import time

SHAPES = {"10m": dict(layers=6, width=384, heads=6, vocab=256, batch=12),
          "124m": dict(layers=12, width=768, heads=12, vocab=50304, batch=4)}
CONTEXT = 256


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=SHAPES)
    p.add_argument("text")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--warm", type=int, default=3)
    p.add_argument("--compile", default="none", choices=("none", "default", "max-autotune"))
    p.add_argument("--adamw", default="fused", choices=("fused", "foreach", "loop"))
    p.add_argument("--attention", default="sdpa", choices=("sdpa", "plain"))
    p.add_argument("--ddp", action="store_true")
    return p.parse_args()


args = arguments()
os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1) if args.attention == "plain" else None

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.qkv(x).view(batch, time_, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        if self.future is None:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.mT) / math.sqrt(self.size)
            o = scores.masked_fill(self.future[:time_, :time_], -torch.inf).softmax(-1) @ v
        return self.proj(o.transpose(1, 2).reshape(batch, time_, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attention, self.ln_2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, vocab, **_):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        h = self.blocks(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        logits = F.linear(self.ln_f(h), self.wte.weight)  # the head is the embedding
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(model):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    how = {"fused": dict(fused=True), "foreach": dict(foreach=True), "loop": dict(foreach=False)}[args.adamw]
    return torch.optim.AdamW([dict(params=decayed, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
                             lr=3e-4, betas=(0.9, 0.95), **how)


def main():
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    shape = SHAPES[args.model]
    data = torch.tensor(list(open(args.text, "rb").read()))
    model = Gpt2(**shape)
    step_of = model if args.compile == "none" else torch.compile(model, mode=args.compile)
    batch = shape["batch"]
    if args.ddp:
        torch.distributed.init_process_group("gloo")
        batch //= torch.distributed.get_world_size()
        step_of = nn.parallel.DistributedDataParallel(step_of, gradient_as_bucket_view=True)
    adamw, times, cpu = optimizer(model), [], []
    for step in range(args.warm + args.steps):
        begin, spent = time.perf_counter(), time.process_time()
        at = torch.randint(len(data) - CONTEXT - 1, (batch, 1)) + torch.arange(CONTEXT + 1)
        window = data[at]
        loss = step_of(window[:, :-1], window[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if step >= args.warm:
            times.append(1e3 * (time.perf_counter() - begin))
            cpu.append(1e3 * (time.process_time() - spent))
    if args.ddp and torch.distributed.get_rank() > 0:
        return
    json.dump({"ms": times, "cpu_ms": cpu, "tokens": shape["batch"] * CONTEXT, "loss": loss.item(),
               "torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters()),
               "threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}, sys.stdout)


main()
