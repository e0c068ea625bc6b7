#!/bin/sh
# adapter_base.sh -- an exported adapter names a base model that transformers and peft load: where the import came from.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
rest='data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 2}
train: {steps: 2, lr: 1e-2, warmup: 0, weight_decay: 0}
eval: {every: 0}'
printf 'name: base\nmodel: {family: gpt2, layers: 2, width: 32, heads: 2, context: 16}\n%s\n' "$rest" >base.yaml
printf 'name: lora\nmodel: {import: hf}\nlora: {rank: 4}\n%s\n' "$rest" >lora.yaml
run 0 "$LINESHAFT" train base.yaml
run 0 "$LINESHAFT" export runs/base hf

# Adapters name the folder, or the hub's name, that the model came from, whatever lies between.
base_of() { # base_of IMPORT: what the adapter of a run on it names
    rm -rf runs/lora adapter
    run 0 "$LINESHAFT" train lora.yaml --set "model.import=$1"
    run 0 "$LINESHAFT" export runs/lora adapter --adapter
    says "base         "
    python3 -c 'import json; print(json.load(open("adapter/adapter_config.json"))["base_model_name_or_path"])'
}
named() { # named WANT IMPORT
    got=$(base_of "$2")
    [ "$got" = "$1" ] || fail "the adapter of a run on $2 names $got, expected $1"
    grep -q '^note' out && fail "a base that loads gets a note: $(cat out)"
}
run 0 "$LINESHAFT" import hf ours
run 0 "$LINESHAFT" quantize hf small --bits 4 --group 16
run 0 "$LINESHAFT" import small ours-small
named "$PWD/hf" hf
named "$PWD/hf" ours
named "$PWD/hf" small
named "$PWD/hf" ours-small
mkdir -p hub/models--org--tiny/snapshots
cp -r hf hub/models--org--tiny/snapshots/c1899de
run 0 "$LINESHAFT" import hub/models--org--tiny/snapshots/c1899de ours-hub
named org/tiny hub/models--org--tiny/snapshots/c1899de
named org/tiny ours-hub

# A run has no name that others know, and what quantize makes of it only we can read.
run 0 "$LINESHAFT" quantize runs/base small-run --group 16
[ "$(base_of small-run)" = "$PWD/small-run" ] || fail "the base is not the folder: $(cat out)"
says "note         transformers finds no model there: export the base model and name it with --base"
run 0 "$LINESHAFT" train lora.yaml --set model.import=ours-hub --fresh

# The run keeps the name when the import is gone; another one can be given; a base that is gone is said.
rm -r ours-hub adapter
run 0 "$LINESHAFT" export runs/lora adapter --adapter
says 'base         org/tiny'
run 0 "$LINESHAFT" export runs/lora adapter-named --adapter --base me/mine
says 'base         me/mine'
base_of hf >/dev/null
mv hf moved
run 0 "$LINESHAFT" export runs/lora adapter-moved --adapter
says "note         transformers finds no model there"
exit 0
