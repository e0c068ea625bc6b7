"""PyTorch's causal attention at the shapes of cudnn_attention.c: the peer of that probe.

Same layout (views into one packed tensor), same data, same counting of work, CUDA events,
medians of 50 after 10 warm-ups. Run: python3 bench/gpu/attention_peer.py
"""

import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(64, 12, 12, 1024, 64), (16, 32, 8, 2048, 64), (16, 25, 25, 1024, 64)]


def median_ms(call):
    for _ in range(10):
        call()
    pairs = []
    for _ in range(50):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(b.elapsed_time(e) for b, e in pairs)


def measure(shape, backend):
    B, H, Hkv, T, D = shape
    qkv = torch.randn(B, T, (H + 2 * Hkv) * D, device="cuda", dtype=torch.bfloat16)
    parts = qkv.split([H * D, Hkv * D, Hkv * D], dim=2)
    q, k, v = (
        p.view(B, T, -1, D).transpose(1, 2).detach().requires_grad_(True) for p in parts
    )
    dout = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != Hkv)

    with sdpa_kernel(backend):
        fwd = median_ms(forward)
        out = forward()
        bwd = median_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    work = 2 * B * H * T * T * D
    print(
        f"{shape} {backend.name}: forward {fwd:.3f} ms {work / fwd * 1e-9:.0f} TFLOP/s, "
        f"backward {bwd:.3f} ms {2.5 * work / bwd * 1e-9:.0f} TFLOP/s",
        flush=True,
    )


def main():
    print(
        torch.__version__, "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_name(0)
    )
    for shape in SHAPES:
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            try:
                measure(shape, backend)
            except RuntimeError as e:
                print(shape, backend.name, "cannot run:", str(e).splitlines()[0])


main()
