"""same_steps.py TEXT CHECKPOINTS EVENTS -- see bench/same_steps.sh."""
import json, math, struct, sys
import numpy as np, torch, torch.nn.functional as F

L, C, H, T, B, V = 4, 128, 4, 64, 12, 256
text, store, events = sys.argv[1:]
torch.set_default_dtype(torch.float64)


def read_object(name):
    raw = open(f"{store}/objects/{name[:2]}/{name}.safetensors", "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def read_tensors(manifest):
    objects, tensors = {}, {}
    for row in manifest["tensors"]:
        parts = []
        for box in row["boxes"]:
            header, data = objects.setdefault(box["object"], None) or read_object(box["object"])
            objects[box["object"]] = (header, data)
            entry = header[box["key"]]
            first, last = entry["data_offsets"]
            parts.append(np.frombuffer(data[first:last], "<f4").reshape(entry["shape"]))
        tensors[row["kind"], row["name"]] = torch.tensor(np.concatenate(parts)).double()
    return tensors


def loss_of(p, x, y):
    def norm(h, name):
        return F.layer_norm(h, (C,), p[name + ".weight"], p[name + ".bias"])

    def linear(h, name):
        return h @ p[name + ".weight"] + p[name + ".bias"]

    h = p["transformer.wte.weight"][x] + p["transformer.wpe.weight"][:T]
    for l in range(L):
        at = f"transformer.h.{l}."
        q, k, v = (z.view(B, T, H, C // H).transpose(1, 2)
                   for z in linear(norm(h, at + "ln_1"), at + "attn.c_attn").split(C, 2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        h = h + linear(o, at + "attn.c_proj")
        z = linear(norm(h, at + "ln_2"), at + "mlp.c_fc")
        h = h + linear(F.gelu(z, approximate="tanh"), at + "mlp.c_proj")
    logits = norm(h, "transformer.ln_f") @ p["transformer.wte.weight"].t()
    return F.cross_entropy(logits.view(-1, V), y.reshape(-1))


saved = read_tensors(json.load(open(store + "/step-0000000001.json")))
p = {name: t.requires_grad_(True) for (kind, name), t in saved.items() if kind == "param"}
m = {name: saved["adam.m", name] for name in p}
v = {name: saved["adam.v", name] for name in p}
data = torch.tensor(list(open(text, "rb").read()))
ours = {r["step"]: r["loss"] for r in map(json.loads, open(events)) if r["event"] == "step"}
worst = 0.0
for step in range(1, 60):
    first = [(step * B + i) * T for i in range(B)]
    x, y = (torch.stack([data[f + d:f + d + T] for f in first]) for d in (0, 1))
    for t in p.values():
        t.grad = None
    loss = loss_of(p, x, y)
    loss.backward()
    clip = min(1.0, 1.0 / math.sqrt(sum(float((t.grad ** 2).sum()) for t in p.values())))
    with torch.no_grad():
        for name, w in p.items():
            g = w.grad * clip
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g * g
            up = m[name] / (1 - 0.9 ** (step + 1)) / ((v[name] / (1 - 0.99 ** (step + 1))).sqrt() + 1e-8)
            w -= 1e-3 * (up + (0.1 * w if w.dim() > 1 else 0))
    worst = max(worst, abs(ours[step + 1] - loss.item()))
print("largest difference of loss over 59 steps: %.2g (last loss %.6f, PyTorch %.6f)" %
      (worst, ours[60], loss.item()))
sys.exit(worst > 1e-4)
