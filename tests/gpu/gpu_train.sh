#!/bin/sh
# Training on an NVIDIA GPU: the losses of the CPU, equal bits of two runs, exact resume.
#
#   tests/gpu/gpu_train.sh [FOLDER]     in FOLDER, which is made (default: a new temporary one, removed)
#
# Needs the program (LINESHAFT, default build/release/lineshaft) with its plugin beside it ("make
# cuda"), sh, awk, sed; the text is made here. DEVICE=cpu tries the script itself without a GPU; MODELS="" leaves all
# but the mixtures out.
# Each check prints a line; the exit status is the number of checks that failed, at most 100.
set -u
# shellcheck source=tests/gpu/checks.sh
. "$(dirname "$0")/checks.sh"

# A text with something to learn: sentences out of few words, always the same ones.
make_text() {
    awk 'BEGIN {
        split("the a one some every", d, " "); split("wheel shaft belt mill river miller horse", n, " ")
        split("turns drives stops follows carries", v, " "); split("slowly again today twice", e, " ")
        x = 12345
        for (i = 0; i < 6000; i++) {
            line = ""
            for (k = 0; k < 6; k++) {
                x = (x * 1103515245 + 12345) % 2147483648; r = int(x / 65536)
                if (k == 0 || k == 3) w = d[r % 5 + 1]
                else if (k == 1 || k == 4) w = n[r % 7 + 1]
                else if (k == 2) w = v[r % 5 + 1]
                else w = e[r % 4 + 1]
                line = line (k ? " " : "") w
            }
            print line "."
        }
    }' >text.txt
}

# The run file of a model: gpt, llama or a mixture of experts.
make_run() {
    case $1 in
    gpt) model="layers: 4, width: 256, heads: 4, context: 128" ;;
    llama) model="family: llama, layers: 2, width: 96, heads: 4, kv_heads: 2, context: 64" ;;
    mixtral) model="family: mixtral, layers: 2, width: 96, heads: 4, kv_heads: 2, context: 64, experts: 8, mlp: 128" ;;
    qwen3_moe) model="family: qwen3_moe, layers: 2, width: 96, heads: 4, kv_heads: 2, context: 64, experts: 24,
        experts_used: 4, experts_norm: false, mlp: 64" ;;
    olmoe) model="family: olmoe, layers: 2, width: 96, heads: 4, context: 64, experts: 6, mlp: 80" ;;
    esac
    cat >"$1.yaml" <<YAML
model: {$model}
data: {text: [text.txt], validation: 5%}
batch: {sequences: 16, leaf: 4}
train: {steps: 30, warmup: 5, lr: 0.001}
eval: {every: 10, sequences: 16, sample: "the wheel", sample_tokens: 16}
checkpoint: {every: 10, keep: 3}
YAML
}

# train NAME MODEL SETTING...: a run in folder NAME, its events in NAME.json; says what went wrong.
train() {
    name=$1
    file=$2.yaml
    shift 2
    set -- "$@" "out=$name"
    sets=""
    for s in "$@"; do
        sets="$sets --set $s"
    done
    # shellcheck disable=SC2086
    "$LINESHAFT" train "$file" --json $sets >"$name.json" 2>"$name.err" && return 0
    sed 's/^/        /' "$name.err"
    return 1
}

# losses FILE: "step loss" of steps, "step val loss" of validations.
losses() {
    sed -n 's/^{"event":"step","step":\([0-9]*\),.*"loss":\([^,}]*\),.*/\1 \2/p
            s/^{"event":"eval","step":\([0-9]*\),.*"val_loss":\([^,}]*\).*/\1 val \2/p' "$1"
}

# field EVENT KEY FILE: that key of the last such event.
field() {
    sed -n "s/^{\"event\":\"$1\",.*\"$2\":\"*\([^\",}]*\).*/\1/p" "$3" | tail -n 1
}

# near A B BOUND: all losses of two files lie within BOUND, relative; says the largest difference.
near() {
    losses "$1" >a.txt
    losses "$2" >b.txt
    [ -s a.txt ] && [ "$(wc -l <a.txt)" = "$(wc -l <b.txt)" ] || return 1
    paste -d' ' a.txt b.txt | awk -v bound="$3" '{
        a = $(NF / 2) + 0; b = $NF + 0; d = a - b; if (d < 0) d = -d
        if (!(a > 0 && b > 0)) bad = 1
        if (d / b > most) { most = d / b; at = $1 }
    } END {
        printf "        largest difference %.2e at step %s, bound %s\n", most, at, bound
        exit bad || most > bound || NR < 30
    }'
}

# same A B: equal losses, samples and weights.
same() {
    losses "$1.json" >a.txt
    losses "$2.json" >b.txt
    sed -n '/"event":"sample"/{s/.*"text"/"text"/;s/,"time":.*//p}' "$1.json" >>a.txt
    sed -n '/"event":"sample"/{s/.*"text"/"text"/;s/,"time":.*//p}' "$2.json" >>b.txt
    cmp a.txt b.txt >/dev/null &&
        [ -n "$(field summary weights_hash "$1.json")" ] &&
        [ "$(field summary weights_hash "$1.json")" = "$(field summary weights_hash "$2.json")" ]
}

# Wait until the events of folder $1 tell of step $2, while process $3 lives.
await_step() {
    until grep -q "\"event\":\"step\",\"step\":$2," "$1/events.jsonl" 2>/dev/null; do
        kill -0 "$3" 2>/dev/null || return 1
        sleep 0.005
    done
}

# Killed in the middle and run again: the weights of a run that was left alone.
check_resume() { # MODEL PRECISION
    set -- "$1" "$2" "$1-$2-long" "$1-$2-killed"
    long="train.steps=1000 checkpoint.every=100 eval.every=500 batch.sequences=4 device.kind=$DEVICE"
    # shellcheck disable=SC2086
    train "$3" "$1" $long "precision=$2"
    result "$1 $2: a long run" $?
    sets=""
    for s in $long; do
        sets="$sets --set $s"
    done
    # shellcheck disable=SC2086
    "$LINESHAFT" train "$1.yaml" --json $sets --set "precision=$2" --set "out=$4" \
        >"$4.first" 2>"$4.err" &
    pid=$!
    await_step "$4" 230 $pid
    kill -KILL $pid 2>/dev/null
    result "$1 $2: killed before its end" $?
    wait $pid 2>/dev/null
    # shellcheck disable=SC2086
    train "$4" "$1" $long "precision=$2"
    result "$1 $2: resumed" $?
    first=$(field start first_step "$4.json")
    [ "${first:-0}" -ge 100 ]
    result "$1 $2: resumed from a checkpoint (step ${first:-none})" $?
    losses "$3.json" | awk -v s="${first:-0}" '$1 > s' >a.txt
    losses "$4.json" >b.txt
    [ -s a.txt ] && cmp a.txt b.txt >/dev/null &&
        [ "$(field summary weights_hash "$3.json")" = "$(field summary weights_hash "$4.json")" ]
    result "$1 $2: the resumed run has the losses and weights of the long one" $?
}

# A mixture: near the CPU as far as roundings do not send tokens to other experts, equal bits of two runs, with
# recomputation, and in calls of other sizes (samples are made on the device, too).
check_experts() { # MODEL
    m=$1
    make_run $m
    train $m-cpu $m device.kind=cpu precision=fp32
    result "$m: 30 steps on the CPU in fp32" $?
    for p in fp32 bf16; do
        for n in 1 2; do
            train $m-$p-$n $m device.kind="$DEVICE" precision=$p
            result "$m: 30 steps on $DEVICE in $p, run $n" $?
        done
        bound=5e-3
        [ $p = bf16 ] && bound=3e-2
        near $m-$p-1.json $m-cpu.json $bound
        result "$m: losses of $DEVICE in $p are those of the CPU in fp32" $?
        same $m-$p-1 $m-$p-2
        result "$m: two runs on $DEVICE in $p have equal bits" $?
        train $m-$p-full $m device.kind="$DEVICE" precision=$p train.recompute=full
        same $m-$p-1 $m-$p-full
        result "$m: $p, recompute full has the bits of none" $?
        train $m-$p-group $m device.kind="$DEVICE" precision=$p batch.group=1
        same $m-$p-1 $m-$p-group
        result "$m: $p, calls of one leaf have the bits of larger ones" $?
        echo "        $(field start device $m-$p-1.json); memory: ledger" \
            "$(field summary ledger_bytes $m-$p-1.json) bytes, peak" \
            "$(field summary peak_bytes $m-$p-1.json); $(field summary tokens_per_s $m-$p-1.json) tok/s"
    done
    "$LINESHAFT" generate $m-bf16-1 --prompt "the wheel" --tokens 24 --temperature 0 >said.$m 2>&1 &&
        [ "$(wc -c <said.$m)" -gt 20 ]
    result "$m: what $DEVICE has trained talks on the CPU" $?
}

make_text
for m in mixtral qwen3_moe olmoe; do
    check_experts $m
done
for m in ${MODELS-gpt llama}; do
    make_run $m
    train $m-cpu $m device.kind=cpu precision=fp32
    result "$m: 30 steps on the CPU in fp32" $?
    wanted="fp32 bf16"
    [ "$DEVICE" = cuda ] && wanted="fp32 bf16 fp16"
    for p in $wanted; do
        for n in 1 2; do
            train $m-$p-$n $m device.kind="$DEVICE" precision=$p
            result "$m: 30 steps on $DEVICE in $p, run $n" $?
        done
        bound=1e-3
        [ $p = bf16 ] && bound=2e-2
        [ $p = fp16 ] && bound=5e-3
        near $m-$p-1.json $m-cpu.json $bound
        result "$m: losses of $DEVICE in $p are those of the CPU in fp32" $?
        same $m-$p-1 $m-$p-2
        result "$m: two runs on $DEVICE in $p have equal bits" $?
        echo "        $(field start device $m-$p-1.json); memory: ledger" \
            "$(field summary ledger_bytes $m-$p-1.json) bytes, peak" \
            "$(field summary peak_bytes $m-$p-1.json); $(field summary tokens_per_s $m-$p-1.json) tok/s"
        check_resume $m $p
    done
    if [ "$DEVICE" = cuda ]; then
        echo "        fp16: loss scale $(field step loss_scale $m-fp16-1.json)," \
            "$(field step overflows $m-fp16-1.json) overflows"
        train $m-tf32 $m device.kind=cuda precision=tf32
        result "$m: 30 steps on cuda in tf32" $?
        near $m-tf32.json $m-cpu.json 5e-3
        result "$m: losses of cuda in tf32 are those of the CPU in fp32" $?
    fi
    for r in selective full; do
        train $m-bf16-$r $m device.kind="$DEVICE" precision=bf16 train.recompute=$r
        result "$m: 30 steps on $DEVICE in bf16, recompute $r" $?
        same $m-bf16-1 $m-bf16-$r
        result "$m: recompute $r has the bits of none" $?
        echo "        memory: ledger $(field summary ledger_bytes $m-bf16-$r.json) bytes, peak" \
            "$(field summary peak_bytes $m-bf16-$r.json); without $(field summary peak_bytes $m-bf16-1.json)"
    done
    # A checkpoint belongs to no device: the CPU goes on where the GPU stopped.
    train $m-fp32-2 $m device.kind=cpu precision=fp32 train.steps=33
    [ "$(field start first_step $m-fp32-2.json)" = 30 ] &&
        [ "$(field summary steps $m-fp32-2.json)" = 33 ]
    result "$m: the CPU goes on from the checkpoint of $DEVICE" $?
    # The other precision is another run.
    "$LINESHAFT" train $m.yaml --set out=$m-bf16-1 --set device.kind="$DEVICE" \
        --set train.steps=31 --set precision=fp32 >refused.out 2>refused.err
    [ $? = 2 ] && grep -q precision refused.err
    result "$m: a checkpoint of bf16 is refused in fp32" $?
done
finish
