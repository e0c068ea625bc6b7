#!/bin/sh
# Several ranks on one NVIDIA GPU: the bits of one process, for 2 and 4 ranks, ZeRO 0 and 1; and
# steps that are replayed as graphs.
#
#   tests/gpu/gpu_ranks.sh [FOLDER]     in FOLDER, which is made (default: a new temporary one, removed)
#
# Needs the program (LINESHAFT, default build/release/lineshaft) with its plugin beside it ("make
# cuda"), sh, awk, sed. DEVICE=cpu tries the script itself without a GPU. Each check prints a line;
# one that fails also says what differs first, or what the program said. The exit status is the
# number of checks that failed, at most 100.
set -u
# shellcheck source=tests/gpu/checks.sh
. "$(dirname "$0")/checks.sh"
graphs=on
[ "$DEVICE" = cuda ] || graphs=off

# train NAME RANKS SETTING...: a run in folder NAME, its events in NAME.json; says what went wrong.
train() {
    name=$1
    ranks=$2
    shift 2
    set -- "$@" "out=$name" "device.kind=$DEVICE"
    sets=""
    for s in "$@"; do
        sets="$sets --set $s"
    done
    [ "$ranks" = 1 ] || sets="$sets -n $ranks"
    # shellcheck disable=SC2086
    "$LINESHAFT" train run.yaml --json $sets >"$name.json" 2>"$name.err" && return 0
    sed 's/^/        /' "$name.err"
    return 1
}

# field EVENT KEY FILE: that key of the last such event.
field() {
    sed -n "s/^{\"event\":\"$1\",.*\"$2\":\"*\([^\",}]*\).*/\1/p" "$3" | tail -n 1
}

# facts NAME FIRST: step, loss and norm from step FIRST on, validation, hash.
facts() {
    sed -n 's/^{"event":"step","step":\([0-9]*\),"loss":\([^,}]*\),.*"grad_norm":\([^,}]*\),.*/\1 loss \2 norm \3/p
            s/^{"event":"eval","step":\([0-9]*\),.*"val_loss":\([^,}]*\).*/\1 val \2/p' "$1.json" |
        awk -v first="$2" '$1 >= first'
    echo "hash $(field summary weights_hash "$1.json")"
}

# same NAME REFERENCE [FIRST]: equal losses, norms, validation and weights; says what differs first.
same() {
    facts "$1" "${3:-1}" >a.txt
    facts "$2" "${3:-1}" >b.txt
    [ "$(wc -l <a.txt)" -gt 2 ] && cmp a.txt b.txt >/dev/null && return 0
    echo "        first difference, $1 and $2 (step loss norm):"
    diff a.txt b.txt | sed -n 's/^[<>]/        &/p' | awk '/</ && !l++; />/ && !r++'
    return 1
}

write_text 4000
cat >run.yaml <<YAML
model: {layers: 4, width: 256, heads: 4, context: 128}
data: {text: [text.txt], validation: 5%}
batch: {sequences: 16, leaf: 2}
train: {steps: 8, warmup: 2, lr: 0.001, schedule: constant}
eval: {every: 4, sequences: 8}
checkpoint: {every: 4, keep: 3}
mesh: {bucket: 1048576}
YAML

for p in fp32 bf16; do
    train $p-1 1 precision=$p
    result "$p: one process" $?
    for n in 2 4; do
        for zero in 0 1; do
            [ $p-$zero = bf16-0 ] && continue
            t=$p-$n-zero$zero
            train $t $n precision=$p mesh.zero=$zero
            result "$p: $n ranks on $DEVICE, zero $zero" $?
            same $t $p-1
            same=$?
            result "$p: $n ranks, zero $zero, have the bits of one process" $same
            if [ $same != 0 ]; then # is it the ranks, or how leaves are grouped into calls?
                train $p-1-small 1 precision=$p batch.group=1 && same $t $p-1-small &&
                    echo "        but those of one process with batch.group: 1: grouping changes bits"
            fi
            echo "        cards: $(sed -n 's/.*"event":"rank".*"card":\([0-9]*\).*/\1/p' $t.json | tr '\n' ' ')of" \
                "$(field start cards $t.json); device memory: ledger $(field summary ledger_bytes $t.json)," \
                "peak $(field summary peak_bytes $t.json); $(field summary tokens_per_s $t.json) tok/s"
        done
    done
done
# Recorded and replayed: the same bits, and no warning that recording failed.
for t in "fp32 1 0" "bf16 1 0" "bf16 2 1"; do
    # shellcheck disable=SC2086
    set -- $t
    t=graphs-$1-$2
    train $t "$2" precision="$1" mesh.zero="$3" device.graphs=$graphs
    result "$1: $2 ranks, replayed as graphs" $?
    same $t "$1-1"
    result "$1: $2 ranks, replayed, have the bits of one process" $?
    ! grep "not replayed" $t.err
    result "$1: $2 ranks: every step could be recorded" $?
done
train graphs-auto 1 precision=bf16 device.graphs=auto train.steps=24
result "bf16: graphs are tried, and used if they are faster" $?
train graphs-none 1 precision=bf16 train.steps=24
same graphs-auto graphs-none
result "bf16: with the same bits" $?
for o in lamb muon; do
    train $o-1 1 train.optimizer=$o train.steps=3
    result "$o: one process" $?
    train $o-2 2 train.optimizer=$o train.steps=3 mesh.zero=1
    result "$o: 2 ranks, zero 1" $?
    same $o-2 $o-1
    result "$o: 2 ranks have the bits of one process" $?
done
experts="model.family=mixtral model.mlp=192 model.experts=6 precision=bf16"
# shellcheck disable=SC2086
train experts-1 1 $experts
result "experts: one process" $?
for t in "2 0 off" "4 1 off" "1 0 $graphs"; do
    # shellcheck disable=SC2086
    set -- $t
    # shellcheck disable=SC2086
    train experts-$1-$3 "$1" $experts mesh.zero="$2" device.graphs="$3"
    result "experts: $1 ranks, zero $2, graphs $3" $?
    same experts-$1-$3 experts-1
    result "experts: $1 ranks, zero $2, graphs $3, have the bits of one process" $?
    ! grep "not replayed" experts-$1-$3.err
    result "experts: $1 ranks: what was asked for could be recorded" $?
done
train parts 2 precision=bf16 mesh.zero=1 train.steps=4
result "bf16: 2 ranks stop after 4 steps" $?
train parts 4 precision=bf16
result "bf16: 4 ranks go on" $?
[ "$(field start first_step parts.json)" = 4 ] && same parts bf16-1 5
result "bf16: and end with the bits of one process" $?
train fast 2 train.reduce=fast precision=bf16
result "bf16: 2 ranks in fast mode" $?
awk -v a="$(field summary loss fast.json)" -v b="$(field summary loss bf16-1.json)" 'BEGIN {
    d = (a - b) / b; if (d < 0) d = -d; printf "        loss %s, ordered %s\n", a, b; exit !(a > 0 && d < 0.02) }'
result "bf16: fast mode ends near ordered mode" $?
if [ "$DEVICE" = cuda ]; then
    "$LINESHAFT" train run.yaml -n 4 --set device.kind=cuda --set mesh.zero=3 --set mesh.pp=2 --set out=no >no.out 2>no.err
    [ $? = 2 ] && grep -q 'mesh.zero cannot be 3 with mesh.pp and device.kind: cuda' no.err
    result "zero 3 in a pipeline is refused" $?
fi
finish
