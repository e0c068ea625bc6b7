#!/bin/sh
# weights_hash.sh -- the bits of training are those of every version before: some rows of bench/weights_hash.sh, which has them all.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER
LINESHAFT=$LINESHAFT python3 "$LINESHAFT_ROOT/bench/weights_hash.py" --work "$PWD/work" --table "$LINESHAFT_ROOT/tests/golden/weights_hash.tsv" --exact \
    gpt2 qwen3 fp16-dropped bf16-stochastic zero1-muon zero3-stochastic pp2-interleaved-zero1 pp2-bubble-zero3 tp2-zero1 cp2-zero3 \
    ep2-pp2-zero3 pp2-cp2-tp2 lora-olmoe local-delay ps-rows hosts-int8-goes-on goes-on-zero goes-on-ep kill-zero1-fewer kill-pp-zero3 \
    kill-ep-zero1 kill-lamb zero3-lion tp2-olmo2 cp2-phi3 kill-sgd >out 2>err || fail "$(grep -v 'same$' out err)"
