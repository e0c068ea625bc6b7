#!/bin/sh
# gpu.sh [gpt2] [llama] [xl] [mixture] -- training on one NVIDIA GPU, in bf16: ours beside PyTorch (compiled, cuDNN attention) or
# llm.c, in turn, one table. Run it on the machine with the card. Without a word: gpt2, which takes under 3 minutes.
#   gpt2   GPT-2 124M, 64 x 1024: ours (fast, ordered), PyTorch
#   llama  Llama 1.24B, 16 x 2048: ours, ours in fp8, PyTorch
#   mixture  Mixtral 0.53B (8 experts, 2 for each token), 32 x 1024: ours, transformers' in PyTorch (compiled)
#   xl     GPT-2 1.56B, 16 x 1024: ours, llm.c where LLMC names its train_gpt2cu, else PyTorch
#
#   PEERS=../shared/peers/gpu   folder with the peer's train_torch.py
#   PYTHON=python3              the Python that has PyTorch
#   LLMC=                       llm.c's train_gpt2cu, built with cuDNN
#   ROUNDS=2  STEPS=            rounds, and timed steps of each process (60, 20, 20, 20)
#   LIMIT=170                   seconds of one work after which no further round begins; a process has LIMIT seconds too
#   SIDES=                      only these, as in SIDES="ours, fast;PyTorch"
#   LINESHAFT=./lineshaft       the program; where it is not given, it and the plugin are built first
#   OTHER=                      another build of the program, measured as side "other, fast"
#   JSON=FILE                   write every single value
set -eu
cd "$(dirname "$0")/.."
[ -n "${LINESHAFT:-}" ] || make --no-print-directory lineshaft cuda >/dev/null
exec python3 -B bench/gpu.py "$@"
