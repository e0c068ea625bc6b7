#!/bin/sh
# generate.sh [ROUNDS] [LAYERS WIDTH] -- tokens per second of reading a prompt and of adding tokens,
# beside transformers' generate on the same random llama (about 100 million parameters, fp32) on one
# and two threads. Greedy, so that both must say the same. Medians of ROUNDS (default 5), interleaved.
set -eu
cd "$(dirname "$0")/.."
python=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers/bin/python
[ -x "$python" ] || {
    echo "generate.sh: no transformers here: bench/peers/setup.sh installs it" >&2
    exit 77
}
make --no-print-directory all >/dev/null
[ -n "${BUSY:-}" ] || sh bench/quiet.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$python" bench/peers/generate.py "$dir" ./lineshaft "${1:-5}" "${2:-12}" "${3:-768}"
