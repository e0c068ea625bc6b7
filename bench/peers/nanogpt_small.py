"""nanogpt_small.py TEXT SEED LR STEPS eager|compile -- the model and settings of bench/nanogpt_small.yaml in PyTorch.

Windows are drawn at random as nanoGPT draws them; validation loss is the mean over the whole last tenth, every 100
steps and at the end. Prints one JSON object: [step, seconds of training so far, loss] of each evaluation. Evaluating
and compiling do not count.
"""
import json, math, os, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

text, seed, LR, STEPS, way = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
L, C, H, T, B, V = 4, 128, 4, 64, 12, 256
WARM = min(100, STEPS // 2)
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
torch.manual_seed(seed)
data = torch.tensor(list(open(text, "rb").read()))
cut = int(len(data) * 0.9)
train, val = data[:cut], data[cut:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.out = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, C // H).transpose(1, 2) for z in self.qkv(self.n1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, C))
        return x + self.out(F.gelu(self.fc(self.n2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(C)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * L) if last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for b in self.blocks:
            h = b(h)
        return F.cross_entropy((self.norm(h) @ self.wte.weight.t()).view(-1, V), y.reshape(-1))


@torch.no_grad()
def validate(model):
    n = (len(val) - 1) // T
    x, y = val[:n * T].view(n, T), val[1:n * T + 1].view(n, T)
    return sum(float(model(x[i:i + 64], y[i:i + 64])) * len(x[i:i + 64]) for i in range(0, n, 64)) / n


def draw():
    at = torch.randint(len(train) - T - 1, (B, 1)) + torch.arange(T + 1)
    window = train[at]
    return window[:, :-1], window[:, 1:]


def main():
    model = GPT()
    fast = model if way == "eager" else torch.compile(model)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99), fused=True)  # fused: its fastest
    state = torch.get_rng_state()
    fast(*draw()).backward()  # compiles; the weights stay as they are
    opt.zero_grad(set_to_none=True)
    torch.set_rng_state(state)
    seconds, points = 0.0, []
    for step in range(STEPS):
        begin = time.perf_counter()
        lr = LR * (step + 1) / WARM if step < WARM else \
            LR / 10 + 0.45 * LR * (1 + math.cos(math.pi * (step - WARM) / max(STEPS - WARM - 1, 1)))
        for g in opt.param_groups:
            g["lr"] = lr
        fast(*draw()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - begin
        if (step + 1) % 100 == 0 or step + 1 == STEPS:
            points.append([step + 1, seconds, validate(model)])
    json.dump({"points": points, "torch": torch.__version__}, sys.stdout)


main()
