#!/bin/sh
# ckpt_commands.sh -- list, diff, copy and prune as a user sees them, frozen layers, and a mirror that heals.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: ckpt
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 16}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 2}
train: {steps: 4, lr: 3e-3, schedule: constant, warmup: 2, seed: 3, freeze: ["transformer.wte.weight", "transformer.h.0.*"]}
checkpoint: {every: 2, keep: 4, mirror: mirror}
eval: {every: 0}
YAML

run 0 "$LINESHAFT" train run.yaml --json --set out=a
want=$(field summary weights_hash)
# The second save writes only what changed, and says so.
written=$(grep '"event":"checkpoint","step":4' out | sed 's/.*"bytes_written":\([0-9]*\).*/\1/')
reused=$(grep '"event":"checkpoint","step":4' out | sed 's/.*"bytes_reused":\([0-9]*\).*/\1/')
[ "$reused" -gt 50000 ] && [ "$written" -gt 0 ] || fail "written $written, reused $reused"
run 0 "$LINESHAFT" ckpt list a --json
grep -q "\"new_bytes\":$written,\"reused_bytes\":$reused" out || fail "list says otherwise: $(cat out)"
run 0 "$LINESHAFT" ckpt list a
grep -q 'written      reused' out || fail "no columns: $(cat out)"

run 1 "$LINESHAFT" ckpt diff a/checkpoints/step-0000000002.json a
[ ! -s err ] || fail "a difference is no error: $(cat err)"
head -n 1 out | grep -q '^kind  *elements that differ  *largest by  tensor$' || fail "no header: $(cat out)"
grep -q '^param  *[0-9]* of 512  *[0-9.e-]*  transformer.wpe.weight$' out || fail "diff: $(cat out)"
run 1 "$LINESHAFT" ckpt diff a/checkpoints/step-0000000002.json a --json
grep -q '"different":0' out && fail "diff --json: $(cat out)"
run 0 "$LINESHAFT" ckpt diff a a
grep -q 'transformer.wte.weight' out && fail "a frozen tensor differs: $(cat out)"
grep -q 'tensors differ, .* are shared$' out || fail "diff: $(cat out)"
run 0 "$LINESHAFT" ckpt diff a mirror --json
grep -q '"changes":\[\],"same":' out || fail "the mirror differs: $(cat out)"
run 2 "$LINESHAFT" ckpt diff a nowhere
run 0 "$LINESHAFT" ckpt show a --step 2
says transformer.wpe.weight
run 2 "$LINESHAFT" ckpt show a --step 3
run 2 "$LINESHAFT" ckpt diff a

# The mirror heals what is lost, on one rank and on two; without it a run goes back.
rm a/checkpoints/objects/0*/* a/checkpoints/objects/1*/* a/checkpoints/objects/2*/* a/checkpoints/objects/[89]*/* 2>/dev/null
cp -r a b
run 0 "$LINESHAFT" train run.yaml --json --set out=a --set train.steps=6
grep -q 'healed from "mirror"' err || fail "not healed: $(cat err)"
[ "$(field start first_step)" = 4 ] || fail "gone back"
more=$(field summary weights_hash)
run 0 "$LINESHAFT" train run.yaml --json --set out=b --set train.steps=6 -n 2
grep -q 'healed from "mirror"' err || fail "not healed by two: $(cat err)"
[ "$(field start first_step) $(field summary weights_hash)" = "4 $more" ] || fail "two ranks: other weights"
run 0 "$LINESHAFT" ckpt verify a
run 0 "$LINESHAFT" ckpt verify mirror

# Copied, with nothing twice; damaged there, and healed by copying again.
run 0 "$LINESHAFT" ckpt copy a c --step 4
grep -q '^step 4: [0-9]* objects copied (.*), 0 were there (0 B)$' out || fail "copy: $(cat out)"
run 0 "$LINESHAFT" ckpt copy a c
grep -q '^step 6: .* [1-9][0-9]* were there' out || fail "copy: $(cat out)"
for file in c/objects/*/*; do break; done
printf 'x' | dd of="$file" bs=1 seek=99 conv=notrunc 2>/dev/null
run 4 "$LINESHAFT" ckpt verify c
run 0 "$LINESHAFT" ckpt copy a c --step 4
run 0 "$LINESHAFT" ckpt copy a c --json
run 0 "$LINESHAFT" ckpt verify c
run 2 "$LINESHAFT" ckpt copy a run.yaml
run 2 "$LINESHAFT" ckpt copy a d --step 5

run 0 "$LINESHAFT" ckpt prune c --keep 1 --dry-run
cp out dry
run 0 "$LINESHAFT" ckpt prune c --keep 1 -n # its short form of old
cmp -s out dry || fail "-n of prune: $(cat out)"
says 'note: write --dry-run: -n is how many in other commands'
run 0 "$LINESHAFT" ckpt prune c --keep 1 --dry-run
grep -q 'c/step-0000000004.json$' out && grep -q 'would be freed$' out || fail "prune: $(cat out)"
[ -e c/step-0000000004.json ] || fail "a dry run removed something"
run 0 "$LINESHAFT" ckpt prune c --keep 1
[ ! -e c/step-0000000004.json ] || fail "not removed"
run 0 "$LINESHAFT" ckpt verify c
run 2 "$LINESHAFT" ckpt prune c
run 2 "$LINESHAFT" ckpt prune c --keep 0
run 2 "$LINESHAFT" ckpt prune c/step-0000000006.json --keep 1

# What is kept: two at least, each multiple of keep_every, and what is pinned, in the mirror too.
run 0 "$LINESHAFT" train run.yaml --json --set out=k --set checkpoint.every=1 --set checkpoint.keep=1 --set checkpoint.mirror=km --set train.steps=3
[ "$(ls k/checkpoints/step-*.json | wc -l)" = 2 ] || fail "not two: $(ls k/checkpoints)"
run 0 "$LINESHAFT" ckpt pin k --step 2
run 2 "$LINESHAFT" ckpt pin k --step 1
run 2 "$LINESHAFT" ckpt pin k
run 0 "$LINESHAFT" train run.yaml --json --set out=k --set checkpoint.every=1 --set checkpoint.keep=1 --set checkpoint.mirror=km --set checkpoint.keep_every=4 --set train.steps=7
for dir in k/checkpoints km; do
    [ "$(ls $dir/*.json | tr -dc '2467\n' | tr -d '\n')" = 2467 ] || fail "kept otherwise: $(ls $dir)"
done
run 0 "$LINESHAFT" ckpt list k
grep -q '^ *2 .* ok, pinned$' out || fail "the pin is not shown: $(cat out)"
run 0 "$LINESHAFT" ckpt verify k
grep -q '^step 7  ok, .*; follows step 6$' out || fail "the chain is not told: $(cat out)"
run 0 "$LINESHAFT" ckpt pin k --step 2 --remove
run 0 "$LINESHAFT" ckpt prune k --keep 2 --keep-every 4
[ ! -e k/checkpoints/step-0000000002.json ] && [ -e k/checkpoints/step-0000000004.json ] || fail "pruned otherwise: $(ls k/checkpoints)"

# A mirror that cannot be written: said, and training goes on.
run 0 "$LINESHAFT" train run.yaml --json --set out=e --set checkpoint.mirror=run.yaml/x
grep -q 'step 4 has no copy in "run.yaml/x"' err || fail "not said: $(cat err)"
[ "$(field summary weights_hash)" = "$want" ] || fail "a mirror changed the weights"
exit 0
