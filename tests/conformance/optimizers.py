"""optimizers.py -- steps of LAMB, Muon and Lion against the published rules in float64, and torch.optim.SGD and Muon."""
import os, sys
import numpy as np, torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import B, T

STEPS = 40
LR, ADAMW_LR, BETAS, EPS, DECAY, MOMENTUM, CLIP = 1e-2, 4e-3, (0.9, 0.95), 1e-8, 0.1, 0.95, 1.0
TRAIN = ["train.lr=%g" % LR, "train.beta1=%g" % BETAS[0], "train.beta2=%g" % BETAS[1], "train.eps=%g" % EPS,
         "train.weight_decay=%g" % DECAY, "train.clip=%g" % CLIP]
LION_LR = 1e-3
LION = ["train.optimizer=lion", "train.lr=%g" % LION_LR]
SGD_LR, SGD_MOMENTUM, SGD_DECAY = 0.05, 0.8, 1e-2
SGD = ["train.optimizer=sgd", "train.lr=%g" % SGD_LR, "train.momentum=%g" % SGD_MOMENTUM,
       "train.weight_decay=%g" % SGD_DECAY]
MUON = ["train.optimizer=muon", "train.momentum=%g" % MOMENTUM, "train.adamw_lr=%g" % ADAMW_LR]
A, B_, C = 3.4445, -4.7750, 2.0315


def is_matrix(name, p):
    """The matrices of blocks, which Muon takes; embeddings, head, norms and biases are AdamW's."""
    return p.dim() == 2 and (".h." in name or ".layers." in name)


class Adam:
    """The moments of one tensor in float64, and the direction that they ask for."""

    def __init__(self, p):
        self.m, self.v, self.t = torch.zeros_like(p), torch.zeros_like(p), 0

    def direction(self, g):
        self.t += 1
        self.m = BETAS[0] * self.m + (1 - BETAS[0]) * g
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * g * g
        m, v = self.m / (1 - BETAS[0] ** self.t), self.v / (1 - BETAS[1] ** self.t)
        return m / (v.sqrt() + EPS)


class Lamb:
    """You et al., 2019, algorithm 2: no limits on the ratio, vectors step as in Adam."""

    def __init__(self, model):
        self.rows = [(p, Adam(p)) for _, p in model.named_parameters()]

    def step(self):
        for p, adam in self.rows:
            u = adam.direction(p.grad) + (DECAY * p if p.dim() == 2 else 0)
            w, length = p.norm(), u.norm()
            ratio = w / length if p.dim() == 2 and w > 0 and length > 0 else 1.0
            p.sub_(LR * ratio * u)


def orthogonal(x):
    """Five Newton-Schulz iterations, in the type of x."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T).T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = A * x + (B_ * gram + C * gram @ gram) @ x
    return x


class Muon:
    """Keller Jordan's Muon with Nesterov momentum and the scale of Moonlight, AdamW for the rest."""

    def __init__(self, model):
        self.rows = [(n, p, Adam(p), torch.zeros_like(p)) for n, p in model.named_parameters()]

    def step(self):
        for name, p, adam, momentum in self.rows:
            if not is_matrix(name, p):
                decay = DECAY if p.dim() == 2 else 0
                p.sub_(ADAMW_LR * (adam.direction(p.grad) + decay * p))
                continue
            momentum.lerp_(p.grad, 1 - MOMENTUM)
            ahead = p.grad.lerp(momentum, MOMENTUM)
            parts = 3 if "c_attn" in name else 1  # q, k, v side by side
            steps = [0.2 * max(x.shape) ** 0.5 * orthogonal(x) for x in ahead.chunk(parts, dim=1)]
            p.sub_(LR * (torch.cat(steps, dim=1) + DECAY * p))


class Lion:
    """Chen et al., 2023, algorithm 2."""

    def __init__(self, model):
        self.rows = [(p, torch.zeros_like(p)) for p in model.parameters()]

    def step(self):
        for p, m in self.rows:
            mean = BETAS[0] * m + (1 - BETAS[0]) * p.grad
            p.sub_(LION_LR * (mean.sign() + (DECAY * p if p.dim() == 2 else 0)))
            m.mul_(BETAS[1]).add_((1 - BETAS[1]) * p.grad)


class TorchSGD:
    """torch.optim.SGD itself, without decay for vectors."""

    def __init__(self, model, nesterov):
        params = list(model.parameters())
        groups = [{"params": [p for p in params if p.dim() == 2], "weight_decay": SGD_DECAY},
                  {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}]
        self.sgd = torch.optim.SGD(groups, lr=SGD_LR, momentum=SGD_MOMENTUM, nesterov=nesterov)

    def step(self):
        self.sgd.step()


class TorchMuon:
    """torch.optim.Muon, whose iterations are in bfloat16 unless they are replaced, and torch's AdamW."""

    def __init__(self, model, iterations=None):
        named = list(model.named_parameters())
        groups = [{"params": [p for n, p in named if not is_matrix(n, p) and p.dim() == 2], "weight_decay": DECAY},
                  {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0}]
        self.muon = torch.optim.Muon([p for n, p in named if is_matrix(n, p)], lr=LR, weight_decay=DECAY,
                                     momentum=MOMENTUM, nesterov=True, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(groups, lr=ADAMW_LR, betas=BETAS, eps=EPS)
        self.iterations = iterations

    def step(self):
        from torch.optim import _muon
        kept = _muon._zeropower_via_newtonschulz
        if self.iterations:
            _muon._zeropower_via_newtonschulz = self.iterations
        self.muon.step()
        _muon._zeropower_via_newtonschulz = kept
        self.adamw.step()


def their_steps(model, optimizer, tokens, targets):
    losses = []
    for x, y in zip(tokens, targets):
        model.zero_grad()
        _, loss = oracle.loss_of(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        with torch.no_grad():
            optimizer.step()
        losses.append(loss.item())
    return losses


def check(family, number, what, make, settings, double=True, loss_limit=1e-4, weight_limit=5e-4):
    """Both sides on the same batches: losses of all steps, and how far the weights are apart in the end,
    relative to how far they went."""
    config, old = oracle.configuration(family, number)
    model = oracle.random_model(config, 500 + number)
    folder = oracle.save(model, "%s-%d-%s" % (family, number, what.replace(" ", "-")), old)
    tokens, _ = oracle.batches(config.vocab_size, number, 1, B * (T + 1) * 5)
    rows = tokens.reshape(5, B, T + 1)[np.arange(STEPS) % 5]
    x, y = np.ascontiguousarray(rows[:, :, :-1]), np.ascontiguousarray(rows[:, :, 1:])
    before = {n: p.detach().clone().double().numpy() for n, p in model.named_parameters()}
    ours = oracle.probe("train", folder, {"tokens": x, "targets": y}, "batch.sequences=%d" % B,
                        "model.context=%d" % T, *TRAIN, *settings)
    model = model.double() if double else model
    theirs = their_steps(model, make(model), x, y)
    what = "%s %d, %s" % (family, number, what)
    far = np.abs(ours["losses"] - np.array(theirs)).max()
    oracle.within("%s: losses of %d steps" % (what, STEPS), far, loss_limit)
    if not theirs[-1] < theirs[0] - 0.1:
        oracle.fail("%s: nothing was learned, so nothing was tested" % what)
    apart = went = 0.0
    for name, p in model.named_parameters():
        want, got = p.detach().double().numpy(), ours[name].copy()
        if name.endswith("attn.c_attn.bias"):  # of the key part: its true gradient is 0, its steps are noise
            third = len(want) // 3
            got[third:2 * third] = want[third:2 * third]
        apart += ((got - want) ** 2).sum()
        went += ((want - before[name]) ** 2).sum()
    oracle.within("%s: weights" % what, (apart / went) ** 0.5, weight_limit)
    print("%-44s losses %.1e, from %.3f to %.3f, weights %.1e" %
          (what, far, theirs[0], theirs[-1], (apart / went) ** 0.5))


def attempt(*args, **keys):
    try:
        check(*args, **keys)
    except oracle.Wrong:
        pass  # said and counted; the next check may tell more


if __name__ == "__main__":
    print("max abs difference of losses, relative distance of weights after %d steps" % STEPS)
    for family, number in (("gpt2", 0), ("gpt2", 3), ("llama", 0), ("llama", 3), ("qwen3", 0)):
        attempt(family, number, "lamb", Lamb, ["train.optimizer=lamb"])
        attempt(family, number, "muon", Muon, MUON)
        for nesterov in (True, False):
            attempt(family, number, "torch.optim.SGD, nesterov %s" % nesterov, lambda m: TorchSGD(m, nesterov),
                    SGD + ["train.nesterov=%s" % str(nesterov).lower()])
        # Where a mean passes 0 its sign is that of a rounding, and a step of full size goes the other way.
        attempt(family, number, "lion", Lion, LION, loss_limit=2e-3, weight_limit=2e-2)
    if hasattr(torch.optim, "Muon"):
        def exact(x, *_):
            return orthogonal(x)
        attempt("llama", 1, "torch.optim.Muon, fp32", lambda m: TorchMuon(m, exact), MUON, double=False)
        attempt("mistral", 0, "torch.optim.Muon, fp32", lambda m: TorchMuon(m, exact), MUON, double=False)
        # As it is, in bfloat16: the same course, not the same digits.
        attempt("llama", 1, "torch.optim.Muon, bf16", TorchMuon, MUON, double=False, loss_limit=0.1,
                weight_limit=0.1)
    else:
        print("this PyTorch has no torch.optim.Muon")
    oracle.end("optimizers")
