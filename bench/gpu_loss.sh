#!/bin/sh
# gpu_loss.sh [PRECISION...] -- does training in fewer bits follow the fp32 curve? GPT-2 124M from the same start, on the same
# batches of tinyshakespeare, in fp32 and in each precision (bf16 without a word), on the machine with the card.
#
#   TEXT=../shared/data/text/tinyshakespeare.txt   the text
#   TOKENIZER=../shared/data/tokenizers/gpt2       its tokenizer
#   STEPS=200  SEQUENCES=8                         steps, and sequences of 1024 tokens in each
#   BOUND=0.02                                     exit 1 where the mean of the last 50 differs by more
#   LINESHAFT=./lineshaft  JSON=FILE               the program; every single loss
set -eu
cd "$(dirname "$0")/.."
[ -n "${LINESHAFT:-}" ] || make --no-print-directory lineshaft cuda >/dev/null
exec python3 -B bench/gpu_loss.py "$@"
