#!/bin/sh
# old_runs.sh -- runs that lineshaft 0.1.0 began: they are shown, verified, asked, exported, and gone on with on another mesh, to the
# weights that 0.1.0 itself gets there.
#
# old_runs.tar.gz, with the run files, was made by 0.1.0 in an empty folder, in which a text of 120 lines was:
#   lineshaft train dp.yaml -n 3                              replicas that divide AdamW's moments
#   lineshaft train pipe.yaml                                 a pipeline of tp groups, zero-bubble
#   lineshaft lab --nodes 2 -- lineshaft train owed.yaml      int8 between hosts: gradients that are owed
#   lineshaft train base.yaml && lineshaft export runs/base hf && lineshaft train lora.yaml && rm -r hf runs/base base.yaml
#   tar -czf old_runs.tar.gz -- *.yaml text.txt runs
# (base.yaml is lora.yaml with a qwen2 of 2 layers, width 16, 2 heads and an mlp of 32 instead of its import, and without LoRA.) Nothing
# in it is an absolute path.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
tar -xzf "$LINESHAFT_ROOT/tests/e2e/old_runs.tar.gz"

# One run: its name, the cksum of what it tells, the hash of what it exports, a tensor.
there() {
    run 0 "$LINESHAFT" ckpt verify "runs/$1"
    run 0 "$LINESHAFT" ckpt show "runs/$1"
    says "$4"
    run 0 "$LINESHAFT" generate "runs/$1" --prompt "On day" --tokens 12 --seed 3
    [ "$(cksum <out | cut -d ' ' -f 1)" = "$2" ] || fail "$1 tells something else: $(cat out)"
    run 0 "$LINESHAFT" export "runs/$1" "hf-$1"
    says 'fingerprint  verified'
    run 0 "$LINESHAFT" import "hf-$1" "ours-$1"
    says "$3"
}
there dp 2893175558 159d0b4169fe4588fa5b20afe34b9eba transformer.h.1.attn.c_attn.weight
there pipe 2040380314 79bfbfbc98acd1a95d6d3fd183e47b5f model.layers.1.mlp.down_proj.weight
there owed 2589142048 aa1060fc23660fc113e262894acba59b transformer.wte.weight
there lora 3267675801 ab380425856a61f98042f6966371a628 model.layers.0.self_attn.q_proj.weight

# on RUN HASH ARG...: it goes on after step 6, to the weights that 0.1.0 gets.
on() {
    name=$1 want=$2
    shift 2
    run 0 "$LINESHAFT" train "$name.yaml" --json --set train.steps=12 "$@"
    [ "$(field start first_step)" = 6 ] || fail "$name does not go on at step 6"
    [ "$(field summary weights_hash)" = "$want" ] || fail "$name: other weights: $(field summary weights_hash)"
}
cp -r runs/owed hosts
on dp edad9c1ef518042331d075b6a9021911 -n 2 --set mesh.zero=3
on pipe a90d2b97fef50ca8626caa55a242ab18 -n 4 --set mesh.pp=2 --set mesh.tp=1 --set mesh.zero=1 --set mesh.schedule=1f1b
on lora 8aed06a2e49ce7f8d8c4e4ddd9d47283 -n 2 --set mesh.tp=2
on owed 8e923cca17ca1b37d3904a287fbebd8a -n 1 # what two hosts owed, in one step

# Two hosts pay what they owed, each to its own.
need_hosts
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train owed.yaml --json --set mesh.zero=1 --set train.steps=12 --set out=hosts
[ "$(field summary weights_hash hosts/events.jsonl)" = e0c33373bcc4b754754a920e0ccb5f3f ] || fail "owed on hosts: other weights: $(field summary weights_hash hosts/events.jsonl)"
