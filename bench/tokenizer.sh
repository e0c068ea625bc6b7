#!/bin/sh
# tokenizer.sh [TEXT FOLDER...] -- encoding speed on one thread, the tokenizers package beside us in
# the same run. TEXT and the FOLDERs with a tokenizer.json are those of ../shared/data unless given.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/../shared/data
if [ $# = 0 ]; then
    [ -d "$data" ] || { echo "usage: $0 TEXT FOLDER..." >&2; exit 2; }
    set -- "$data/text/sotu.txt" "$data/tokenizers/gpt2" "$data/tokenizers/qwen2.5"
fi
peer=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers/bin/python
[ -x "$peer" ] || { echo "tokenizer.sh: no peer environment (bench/peers/setup.sh makes one)" >&2; exit 1; }
make --no-print-directory -C "$root" build/release/bench-tokenizer >/dev/null
tool=$root/build/release/bench-tokenizer
exec "$peer" "$root/bench/tokenizer.py" "$tool" "$@"
