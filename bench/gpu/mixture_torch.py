"""mixture_torch.py -- training throughput of transformers' Mixtral in PyTorch, for bench/gpu.sh mixture.

The shape of mixture.yaml. bf16 parameters, gradients and activations; fp32 master weights and moments, fused AdamW, clip 1;
cuDNN attention. --experts chooses transformers' implementation of the experts (grouped_mm, batched_mm or eager; default: its
own choice), --compile 1 compiles each layer. Prints one line "RESULT {...}".
"""
import argparse
import json
import os
import statistics
import time

BORN = time.time()
import torch  # noqa: E402
import transformers  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=20)
ap.add_argument("--warm", type=int, default=4)
ap.add_argument("--batch", type=int, default=32)
ap.add_argument("--seq", type=int, default=1024)
ap.add_argument("--experts", default="")
ap.add_argument("--compile", type=int, default=0)
a = ap.parse_args()

torch.manual_seed(0)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(True)
config = transformers.MixtralConfig(
    vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12,
    max_position_embeddings=1024, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
    output_router_logits=True, router_aux_loss_coef=0.02, use_cache=False, attn_implementation="sdpa",
    **({"experts_implementation": a.experts} if a.experts else {}))
with torch.device("cuda"):
    model = transformers.MixtralForCausalLM(config).bfloat16()
model.train()
if a.compile:
    for layer in model.model.layers:
        layer.compile(dynamic=False)
params = list(model.parameters())
master = [p.detach().float().clone() for p in params]
for m in master:
    m.grad = torch.zeros_like(m)
opt = torch.optim.AdamW(master, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
data = [torch.randint(0, 31999, (a.batch, a.seq), device="cuda") for _ in range(4)]


def step(i):
    d = data[i % 4]
    loss = model(input_ids=d, labels=d).loss
    loss.backward()
    torch._foreach_copy_([m.grad for m in master], [p.grad for p in params])
    torch.nn.utils.clip_grad_norm_(master, 1.0)
    opt.step()
    with torch.no_grad():
        torch._foreach_copy_(params, master)
    for p in params:
        p.grad = None
    return loss.detach()


step(0).item()
first = time.time() - BORN
for i in range(a.warm):
    step(i + 1)
torch.cuda.synchronize()
events = [torch.cuda.Event(enable_timing=True) for _ in range(a.steps + 1)]
begin = time.time()
events[0].record()
for i in range(a.steps):
    loss = step(i)
    events[i + 1].record()
torch.cuda.synchronize()
times = [x.elapsed_time(y) for x, y in zip(events, events[1:])]
ms = statistics.median(times)
print("RESULT " + json.dumps({
    "ms": ms, "wall_ms": 1e3 * (time.time() - begin) / a.steps, "tok_s": a.batch * a.seq / ms * 1e3, "age_first_step_s": first,
    "loss_last": loss.item(), "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "params": sum(p.numel() for p in params),
    "experts": getattr(config, "_experts_implementation", a.experts), "transformers": transformers.__version__,
    "pid": os.getpid()}), flush=True)
