#!/bin/sh
# packed_chat.sh -- conversations packed into windows: the loss of a window is that of its conversations alone, where positions are
# learned (gpt2) and where they are rotary; on every mesh; and a run that an older version began goes on as it did.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
talk() { # talk QUESTION ANSWER
    echo "{\"messages\":[{\"role\":\"user\",\"content\":\"$1\"},{\"role\":\"assistant\",\"content\":\"$2\"}]}"
}
talk "hi there" "hello, you" >a.jsonl
talk "sum of 2 and 3?" "five, or so" >b.jsonl
cat a.jsonl b.jsonl >both.jsonl
base='data: {tokenizer: bytes, template: chatml, validation: 0, shuffle: false}
batch: {sequences: 1}
train: {steps: 1, lr: 1e-9, warmup: 0, weight_decay: 0, seed: 5}
checkpoint: {every: 0}
eval: {every: 0}'
printf 'name: gpt2\nmodel: {family: gpt2, layers: 2, width: 32, heads: 2, context: 192, init_std: 0.4}\n%s\n' "$base" >gpt2.yaml
printf 'name: llama\nmodel: {family: llama, layers: 2, width: 32, heads: 2, context: 192, init_std: 0.4}\n%s\n' "$base" >llama.yaml

loss_tokens() {
    run 0 "$LINESHAFT" data chat "$1" --tokenizer bytes --template chatml
    sed -n 's/.*loss on \([0-9]*\).*/\1/p' out
}
na=$(loss_tokens a.jsonl)
nb=$(loss_tokens b.jsonl)
first_loss() { # first_loss RUN FILE: of its one window
    run 0 "$LINESHAFT" train "$1.yaml" --json --set "data.text=[$2.jsonl]" --set "out=$1-$2"
    losses | cut -d ' ' -f 2
}
for family in gpt2 llama; do
    a=$(first_loss $family a)
    b=$(first_loss $family b)
    both=$(first_loss $family both)
    python3 -c "
want = ($a * $na + $b * $nb) / ($na + $nb)
assert abs($a - $b) > 1e-2 and abs($both - want) < 1e-5 * want, ($both, want)" ||
        fail "$family: a window with both has loss $both, alone they have $a over $na tokens and $b over $nb"
done

# Every mesh has the losses of one process: in ordered mode dp, pp and ZeRO the same bits.
i=0
while [ $i -lt 40 ]; do
    talk "number $i?" "it is $((i * i)), and $((i + 7)) comes after"
    i=$((i + 1))
done >many.jsonl
sed -e 's/sequences: 1/sequences: 4, leaf: 1/' -e 's/steps: 1, lr: 1e-9/steps: 4, lr: 3e-3/' -e 's/shuffle: false/text: [many.jsonl]/' \
    -e 's/eval: .*/eval: {every: 2, sequences: 2}/' -e 's/validation: 0/validation: 20%/' gpt2.yaml >many.yaml
run 0 "$LINESHAFT" train many.yaml --json --set out=one
curve >want
hash=$(field summary weights_hash)
for mesh in dp=2 pp=2 zero=1,dp=2 tp=2 cp=2 tp=2,cp=2; do
    # shellcheck disable=SC2046 # words are what is wanted
    run 0 "$LINESHAFT" train many.yaml --json $(echo "$mesh" | sed 's/^/--set mesh./;s/,/ --set mesh./g') --set "out=on-$mesh"
    curve >got
    alike "$mesh" 5 want got
    case $mesh in
    *tp* | *cp*) ;;
    *) [ "$(field summary weights_hash)" = "$hash" ] || fail "mesh.$mesh has other bits" ;;
    esac
done

# Stopped and gone on with: the same bits, and nothing is said.
run 0 "$LINESHAFT" train many.yaml --json --set train.steps=2 --set train.schedule=constant --set out=halves --set checkpoint.every=2
run 0 "$LINESHAFT" train many.yaml --json --set train.steps=4 --set train.schedule=constant --set out=halves --set checkpoint.every=2
halves=$(field summary weights_hash)
grep -q 'older version' err && fail "a run of this version is taken for an older one's"
run 0 "$LINESHAFT" train many.yaml --json --set train.steps=4 --set train.schedule=constant --set out=whole
[ "$(field summary weights_hash)" = "$halves" ] || fail "a stop changes bits"
# Begun before positions restarted (old_packed.tar.gz, of a build of before that, with `train packed.yaml`): the run goes on with the
# positions, and so the bits, of then, on any mesh and after another stop.
tar -xzf "$LINESHAFT_ROOT/tests/e2e/old_packed.tar.gz"
for ranks in 1 2; do
    rm -rf again
    cp -r runs/packed again
    run 0 "$LINESHAFT" train packed.yaml --json -n $ranks --set train.steps=3 --set out=again
    says 'an older version began this run'
    run 0 "$LINESHAFT" train packed.yaml --json -n 1 --set train.steps=4 --set out=again
    [ "$(field summary weights_hash)" = 5518e06558dda9f1488cbfdbccf5c4bc ] || fail "an old run goes on to other weights with $ranks ranks"
done
run 0 "$LINESHAFT" train packed.yaml --json --set train.steps=4 --set out=anew
[ "$(field summary weights_hash)" != 5518e06558dda9f1488cbfdbccf5c4bc ] || fail "positions restart nowhere: this test proves nothing"
exit 0
