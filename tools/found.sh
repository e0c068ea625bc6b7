#!/bin/sh
# found.sh CC "PACKAGES" -- print what the build found and what that enables.
cc=$1
echo "lineshaft build: $($cc --version 2>/dev/null | head -n 1 || echo "no compiler \"$cc\"")"
bad=
for p in $2; do
    pkg-config --exists "$p" 2>/dev/null || bad="$bad $p"
done
if [ -n "$bad" ]; then
    echo "  missing libraries:$bad  (run: make deps)" >&2
    exit 1
fi
if command -v nvcc >/dev/null 2>&1; then
    echo "  cuda: nvcc found; this version trains on the CPU, CUDA kernels come with a later one"
else
    echo "  cuda: no nvcc: CPU only"
fi
