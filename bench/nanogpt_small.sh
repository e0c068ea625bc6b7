#!/bin/sh
# nanogpt_small.sh TEXT [SEED...] -- nanoGPT's small task on TEXT (tinyshakespeare): validation loss
# over the whole validation part and wall time, PyTorch with the same model and settings beside us
# where its environment exists. LR in the environment is the learning rate of both (2e-3).
set -eu
[ $# -ge 1 ] || { echo "usage: $0 TEXT [SEED...]" >&2; exit 2; }
text=$(realpath "$1")
shift
[ $# -ge 1 ] || set -- 1337 1 2
cd "$(dirname "$0")/.."
make --no-print-directory all >/dev/null
peer=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers/bin/python
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sed "s|TEXT|$text|" bench/nanogpt_small.yaml >"$dir/run.yaml"
sh bench/quiet.sh
for seed in "$@"; do
    LINESHAFT_TRAIN_LR=${LR:-2e-3} LINESHAFT_TRAIN_MIN_LR=auto ./lineshaft train "$dir/run.yaml" --json --set out="$dir/run-$seed" --set train.seed="$seed" \
        --set eval.sequences=1000000 --set eval.every=0 >"$dir/ours-$seed.json"
    tail -n 1 "$dir/ours-$seed.json" | python3 -c "import json, sys
e = json.load(sys.stdin)
print('lineshaft seed $seed: val loss %.4f, %.1f s, %.0f tokens/s' % (e['val_loss'], e['seconds'], e['tokens_per_s']))"
    if [ -x "$peer" ]; then
        "$peer" bench/peers/nanogpt_small.py "$text" "$seed" "${LR:-2e-3}"
    fi
done
[ -x "$peer" ] || echo "peer: not run, no PyTorch environment (bench/peers/setup.sh makes one)"
