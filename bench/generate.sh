#!/bin/sh
# generate.sh [stories|gpt2|llama ...] -- tokens per second of reading a prompt and of adding tokens, fp32, greedily:
# stories260k (where ../shared/data is), a random GPT-2 of 124 M and a random llama of 102 M parameters, beside
# transformers with a key-value cache (its fused attention, its plain one, torch.compile with a fixed cache), on 1 and
# 2 threads. In turn, medians; all must say the same. LLAMA_CPP=path/to/llama-bench adds llama.cpp's own figure.
#   ROUNDS=5  THREADS="1 2"  ADDED=64  WAYS="sdpa eager compile"  JSON=FILE  BUSY=1 (do not wait for a quiet machine)
set -eu
cd "$(dirname "$0")/.."
for name in "$@"; do
    case $name in
    stories | gpt2 | llama) ;;
    *)
        echo "usage: $0 [stories|gpt2|llama ...]" >&2
        exit 2
        ;;
    esac
done
make --no-print-directory lineshaft >/dev/null
python3 -B bench/generate.py "$@"
