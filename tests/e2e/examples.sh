#!/bin/sh
# Every run file under examples/ loads and trains a few steps, from the project's root.
. "$LINESHAFT_ROOT/tests/lib.sh"
here=$(pwd)
cd "$LINESHAFT_ROOT" || exit 1
for f in examples/*.yaml; do
    "$LINESHAFT" train "$f" --quiet --set out="$here/$(basename "$f" .yaml)" --set train.steps=3 \
        --set train.warmup=1 --set eval.sequences=2 >"$here/out" 2>"$here/err" || {
        tail "$here/out" "$here/err" >&2
        fail "$f does not train"
    }
done
