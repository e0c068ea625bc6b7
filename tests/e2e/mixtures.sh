#!/bin/sh
# mixtures.sh -- mixtures of experts in whole runs: they learn, with equal bits however leaves are grouped and
# on any number of ranks; memory is as the ledger says; out as a Hugging Face folder and back; they talk.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: experts
model: {family: mixtral, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 32, experts: 5, mlp: 48, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 12, leaf: 2, group: 1}
train: {steps: 12, lr: 1e-2, schedule: constant, warmup: 2, balance_loss: 0.01, z_loss: 0.001, seed: 3}
checkpoint: {every: 0, keep: 2}
eval: {every: 0, sequences: 4, sample: ""}
YAML

run 0 "$LINESHAFT" train run.yaml --json --set out=plain
losses out >want
hash=$(field summary weights_hash)
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first - 0.3) }' want ||
    fail "nothing is learned: $(cat want)"
[ "$(field summary peak_bytes)" -le $(($(field summary ledger_bytes) + 1048576)) ] || fail "more memory than the ledger says"

for way in "batch.group=4 device.threads=1" "device.isa=generic device.threads=3" "device.pack=on batch.group=2"; do
    sets=
    for set in $way; do sets="$sets --set $set"; done
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json $sets --set out=way --fresh
    [ "$(field summary weights_hash)" = "$hash" ] || fail "other weights with $way"
done
for mesh in 2,0 3,1 2,3; do
    run 0 "$LINESHAFT" train run.yaml --json -n "${mesh%,*}" --set "mesh.zero=${mesh#*,}" --set "out=mesh$mesh"
    losses out >got
    cmp -s want got || fail "on $mesh: $(diff want got | head -n 4)"
    [ "$(field summary weights_hash)" = "$hash" ] || fail "other weights on $mesh"
done

# What the balance loss is does not depend on leaves, calls and ranks, in fast mode either.
sed 's/leaf: 2, group: 1/leaf: 3, group: 4/; s/seed: 3/seed: 3, reduce: fast/' run.yaml >fast.yaml
run 0 "$LINESHAFT" train fast.yaml --json --set out=fast
losses out >alone
for way in "-n 2" "-n 3 --set batch.group=1 --set batch.leaf=2" "--set batch.leaf=1 --set batch.group=1"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train fast.yaml --json $way --set out=fastway --fresh
    losses out >got
    alike "fast with $way" 12 alone got 2e-5
done

# Without the router's losses it is another run.
run 0 "$LINESHAFT" train run.yaml --json --set train.balance_loss=0 --set train.z_loss=0 --set out=free
[ "$(field summary weights_hash)" != "$hash" ] || fail "the router's losses change nothing"

# Half width, and weights without their sum: near the others.
for way in precision=bf16 train.reduce=fast; do
    run 0 "$LINESHAFT" train run.yaml --json --set $way --set out="$way"
    losses out >got
    alike "$way" 12 want got 2e-2
done

# Out, back in, gone on with, and talking.
for family in mixtral qwen3_moe olmoe; do
    run 0 "$LINESHAFT" train run.yaml --json --set model.family=$family --set out=$family --set train.steps=4
    run 0 "$LINESHAFT" export $family hf-$family
    run 0 "$LINESHAFT" import hf-$family in-$family
    says "model        $family, "
    run 0 "$LINESHAFT" generate in-$family --prompt "Once" --tokens 8
    cp out said
    run 0 "$LINESHAFT" generate hf-$family --prompt "Once" --tokens 8
    cmp -s out said || fail "$family says something else when imported"
    grep -q '"num_experts_per_tok": 2' hf-$family/config.json || fail "no experts in config.json"
done

# What cannot be meant.
run 2 "$LINESHAFT" config check run.yaml --set model.family=llama
says 'model.experts is 5 but model.family is llama'
run 2 "$LINESHAFT" config check run.yaml --set model.experts=0
says 'it needs experts'
run 2 "$LINESHAFT" config check run.yaml --set model.experts_used=6
says 'more experts than there are'
run 2 "$LINESHAFT" config check run.yaml --set model.experts_norm=false
says 'mixtral divides the weights'
run 2 "$LINESHAFT" config check run.yaml --set model.bias=all
says 'experts have no biases'
run 0 "$LINESHAFT" config check run.yaml --set device.kind=cuda --set precision=bf16
run 2 "$LINESHAFT" config check run.yaml --set device.kind=cuda --set precision=fp8 --set train.reduce=fast
says 'experts are made in bf16 or wider'
run 2 "$LINESHAFT" config check run.yaml --set device.kind=cuda --set mesh.ep=5 --set device.graphs=on
says 'the host does that'
