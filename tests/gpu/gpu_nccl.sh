#!/bin/sh
# Ranks on NVIDIA GPUs whose gradients, weights (mesh.zero) and tensors go from card to card by NCCL (exchange.device: nccl): the
# bits of one process, what the host's exchange has in fast mode, the losses of one process where ranks divide a model, a rank that
# is killed, and what is refused. Ranks share cards where there are fewer of them.
#
#   tests/gpu/gpu_nccl.sh [FOLDER]     in FOLDER, which is made (default: a new temporary one, removed)
#
# Needs what tests/gpu/gpu_ranks.sh needs, and NCCL 2.18 or later. DEVICE=cpu EXCHANGE=host tries the script itself without a
# GPU. NCCL_ONLY=replicas, pipelines, parts, killed or tools runs one of these parts. The exit status is the number of checks that failed, at most 100.
set -u
# shellcheck source=tests/gpu/checks.sh
. "$(dirname "$0")/checks.sh"
EXCHANGE=${EXCHANGE:-nccl}
steps=8

# part NAME: whether this part runs.
part() {
    case ${NCCL_ONLY:-$1} in "$1") return 0 ;; esac
    return 1
}

# settings NAME SETTING...: as options of a run in folder NAME.
settings() {
    name=$1
    shift
    for s in "$@" "out=$name" "device.kind=$DEVICE"; do
        printf ' --set %s' "$s"
    done
}

# train NAME RANKS SETTING...: a run in folder NAME, its events in NAME.json; says what went wrong.
train() {
    name=$1
    ranks=$2
    shift 2
    sets=$(settings "$name" "$@")
    [ "$ranks" = 1 ] || sets="$sets -n $ranks"
    # shellcheck disable=SC2086
    timeout 120 "$LINESHAFT" train run.yaml --json $sets >"$name.json" 2>"$name.err" && return 0
    echo "        status $?"
    sed 's/^/        /' "$name.err" | tail -n 12
    return 1
}

# field EVENT KEY FILE: that key of the last such event.
field() {
    sed -n "s/^{\"event\":\"$1\",.*\"$2\":\"*\([^\",}]*\).*/\1/p" "$3" | tail -n 1
}

# facts NAME: step, loss and norm, validation, hash; of a step that was made again the last one.
facts() {
    sed -n 's/^{"event":"step","step":\([0-9]*\),"loss":\([^,}]*\),.*"grad_norm":\([^,}]*\),.*/\1 loss \2 norm \3/p' "$1.json" |
        awk '{ at[$1] = $0; if ($1 + 0 > most) most = $1 + 0 } END { for (i = 1; i <= most; i++) print at[i] }'
    echo "hash $(field summary weights_hash "$1.json")"
}

# same NAME REFERENCE: equal losses, norms and weights; says what differs first.
same() {
    facts "$1" >a.txt
    facts "$2" >b.txt
    [ "$(wc -l <a.txt)" -gt 2 ] && cmp a.txt b.txt >/dev/null && return 0
    echo "        first difference, $1 and $2 (step loss norm):"
    diff a.txt b.txt | sed -n 's/^[<>]/        &/p' | awk '/</ && !l++; />/ && !r++'
    return 1
}

speed() {
    for t in "$@"; do
        echo "        $t: $(field summary tokens_per_s "$t.json") tok/s, peak $(field summary peak_bytes "$t.json")," \
            "ledger $(field summary ledger_bytes "$t.json")"
    done
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

replicas() {
    for p in fp32 bf16; do
        train $p-1 1 precision=$p
        result "$p: one process" $?
        for n in 2 3 4; do
            for zero in 0 1 2 3; do
                [ $n != 3 ] || [ $zero -gt 1 ] || continue
                t=$p-$n-zero$zero
                train "$t" $n precision=$p mesh.zero=$zero "exchange.device=$EXCHANGE"
                result "$p: $n ranks, zero $zero, by $EXCHANGE" $?
                same $t $p-1
                result "$p: $n ranks, zero $zero, by $EXCHANGE, have the bits of one process" $?
                speed $t
            done
        done
    done
    if [ "$EXCHANGE" = nccl ]; then
        for t in bf16-2-zero0 bf16-2-zero3; do
            [ "$(field start collectives $t.json)" = nccl ] &&
                grep -ho '"collectives_why":"[^"]*"' $t.json | tail -n 1 | sed 's/^/        /'
            result "$t: the first lines say that NCCL exchanges, and which" $?
        done
    fi
    train uneven-1 1 precision=bf16 batch.sequences=14
    train idle-1 1 batch.sequences=6
    for zero in 0 2 3; do
        train uneven-$zero 3 precision=bf16 "exchange.device=$EXCHANGE" batch.sequences=14 mesh.zero=$zero
        same uneven-$zero uneven-1
        result "zero $zero: 7 leaves on 3 ranks have the bits of one process" $?
        train idle-$zero 4 "exchange.device=$EXCHANGE" batch.sequences=6 mesh.zero=$zero
        same idle-$zero idle-1
        result "zero $zero: a rank without leaves takes part" $?
    done
    train llama 1 model.family=llama precision=bf16
    for zero in 1 2 3; do
        train llama-$zero 2 "exchange.device=$EXCHANGE" model.family=llama precision=bf16 mesh.zero=$zero
        same llama-$zero llama
        result "llama: 2 ranks, zero $zero, have the bits of one process" $?
    done
    # Several calls a step, layers that are computed again, small buckets, an embedding of its own, shard groups.
    set -- batch.group=1 train.recompute=full model.tied=false mesh.bucket=262144 model.layers=7 batch.sequences=20
    train calls-1 1 precision=bf16 "$@"
    i=0
    for t in "3 mesh.zero=2" "3 mesh.zero=3" "4 mesh.zero=3 mesh.shard=2" "4 mesh.zero=1 mesh.shard=2"; do
        i=$((i + 1))
        # shellcheck disable=SC2086
        train calls-$i-parts ${t%% *} precision=bf16 "exchange.device=$EXCHANGE" "$@" ${t#* }
        same calls-$i-parts calls-1
        result "several calls, $t: the bits of one process" $?
    done

    # Fast mode: NCCL's own sums.
    train fast-host 2 train.reduce=fast precision=bf16
    train fast 2 train.reduce=fast precision=bf16 "exchange.device=$EXCHANGE"
    result "fast: 2 ranks" $?
    for zero in 1 2 3; do
        train fast-${zero}z 4 train.reduce=fast precision=bf16 "exchange.device=$EXCHANGE" mesh.zero=$zero
        result "fast: 4 ranks, zero $zero" $?
    done
    train fast-shard 4 train.reduce=fast precision=bf16 "exchange.device=$EXCHANGE" mesh.zero=3 mesh.shard=2 batch.group=1
    result "fast: 4 ranks, zero 3 in groups of 2" $?
    for t in fast fast-1z fast-2z fast-3z fast-shard; do
        awk -v a="$(field summary loss $t.json)" -v b="$(field summary loss fast-host.json)" 'BEGIN {
            d = (a - b) / b; if (d < 0) d = -d; printf "        loss %s, through the host %s\n", a, b; exit !(a > 0 && d < 0.02) }'
        result "$t ends near the host's exchange" $?
    done
    speed fast-host fast fast-1z fast-2z fast-3z
}
! part replicas || replicas

# Messages of a pipeline, which has the bits of the same stages through the host.
pipelines() {
    for t in "2 1f1b" "4 gpipe" "2 zero-bubble" "2 interleaved"; do
        n=${t%% *}
        schedule=${t#* }
        chunks=$([ "$schedule" = interleaved ] && echo 2 || echo 1)
        set -- precision=bf16 mesh.pp="$n" mesh.schedule="$schedule" mesh.chunks="$chunks" batch.group=1
        train "pp-host-$schedule" "$n" "$@" exchange.device=host
        train "pp-$schedule" "$n" "$@" "exchange.device=$EXCHANGE"
        result "$n stages, $schedule, by $EXCHANGE" $?
        same "pp-$schedule" "pp-host-$schedule"
        result "$n stages, $schedule: the bits of the same stages through the host" $?
        speed "pp-host-$schedule" "pp-$schedule"
    done
}
! part pipelines || pipelines

# Ranks that divide a model or its sequences, on one axis and on several: losses near those of one process.
# Mixtures in bf16 have a lower learning rate: with that of the others two runs of one process, in ordered and in fast mode,
# differ by 3 % after 8 steps.
parts_meshes='tp2 2 mesh.tp=2 mesh.sp=false
tp2-sp 2 mesh.tp=2
tp4 4 mesh.tp=4
tp4-shared-heads 4 mesh.tp=4 model.kv_heads=2 model.family=llama
tp2-recompute 2 mesh.tp=2 train.recompute=full
cp2-ring 2 mesh.cp=2
cp2-gather 2 mesh.cp=2 mesh.keys=gather
cp4-ring 4 mesh.cp=4
dp2-tp2 4 mesh.tp=2
dp2-tp2-fast 4 mesh.tp=2 train.reduce=fast
dp2-tp2-zero1 4 mesh.tp=2 mesh.zero=1
cp2-tp2 4 mesh.cp=2 mesh.tp=2
ep2 2 mesh.ep=2 model.family=mixtral model.experts=4 train.lr=0.0003
ep4 4 mesh.ep=4 model.family=mixtral model.experts=4 train.lr=0.0003
dp2-ep2-zero1 4 mesh.ep=2 mesh.zero=1 model.family=mixtral model.experts=4 train.lr=0.0003
ep2-tp2 4 mesh.ep=2 mesh.tp=2 model.family=mixtral model.experts=4 train.lr=0.0003
ep2-cp2 4 mesh.ep=2 mesh.cp=2 model.family=mixtral model.experts=4 train.lr=0.0003'

parts() {
    for p in fp32 bf16; do
        tolerance=1e-4
        [ $p = fp32 ] || tolerance=1e-2
        echo "$parts_meshes" >parts.txt
        while read -r mesh n wanted; do
            t=$p-$mesh
            one=alone-$p
            own=""
            for s in $wanted; do
                case $s in mesh.* | train.recompute=* | train.reduce=*) continue ;; esac
                own="$own $s"
                one=$one-${s#*=}
            done
            # shellcheck disable=SC2086
            [ -s "$one.json" ] || train "$one" 1 "precision=$p" $own </dev/null
            # shellcheck disable=SC2086
            train "$t" "$n" "precision=$p" "exchange.device=$EXCHANGE" $wanted </dev/null && near "$t" "$one" $tolerance
            result "$p: $mesh, by $EXCHANGE, within $tolerance of one process" $?
            speed "$t"
        done <parts.txt
    done
    [ "$EXCHANGE" = nccl ] || return 0
    for t in fp32-tp2:tp fp32-dp2-tp2:"dp, tp" fp32-cp2-tp2:"tp, cp" fp32-ep2:ep; do
        [ "$(field start collectives "${t%%:*}.json")" = nccl ] &&
            grep -q "\"collectives_axes\":\"${t#*:}\"" "${t%%:*}.json"
        result "the first lines of ${t%%:*} say that NCCL exchanges ${t#*:}" $?
    done
}
! part parts || parts

# A rank is killed in the middle: it is started again, or the others go on without it, with the same bits.
# kill_one NAME RANKS SETTING...: rank 1, when step 3 was reported.
kill_one() {
    name=$1
    ranks=$2
    shift 2
    # shellcheck disable=SC2046
    timeout 150 "$LINESHAFT" train run.yaml --json -n "$ranks" $(settings "$name" "$@") >"$name.json" 2>"$name.err" &
    job=$!
    i=0
    while [ $i -lt 600 ] && ! grep -qs '^{"event":"step","step":3,' "$name.json"; do
        sleep 0.1
        i=$((i + 1))
    done
    pid=$(sed -n 's/^{"event":"rank","rank":1,.*"pid":\([0-9]*\).*/\1/p' "$name.json" | head -n 1)
    [ -n "$pid" ] && kill -9 "$pid"
    wait $job
    status=$?
    [ $status = 0 ] || sed 's/^/        /' "$name.err" | tail -n 12
    return $status
}
killed() {
    big="train.steps=60 model.width=512 eval.every=0 checkpoint.every=0"
    [ "$DEVICE" = cuda ] || big="train.steps=60 model.width=64 model.context=32 eval.every=0 checkpoint.every=0"
    # shellcheck disable=SC2086
    train long 1 $big
    for t in "0 1" "0 0" "1 1" "2 1" "3 1" "3 0"; do
        # shellcheck disable=SC2086
        set -- $t
        t=killed-zero$1-restarts$2
        # shellcheck disable=SC2086
        kill_one $t 3 $big "exchange.device=$EXCHANGE" mesh.zero="$1" heal.restarts="$2"
        result "zero $1: rank 1 of 3 is killed, $2 restarts, the run ends well" $?
        same "$t" long
        result "zero $1: and with the bits of one process" $?
        grep -h '"event":"incident"' "$t.json" | tail -n 3 | sed 's/^/        /'
    done

    # shellcheck disable=SC2086
    train long-pp 3 $big mesh.pp=3 exchange.device=host
    # shellcheck disable=SC2086
    kill_one killed-pp 3 $big mesh.pp=3 "exchange.device=$EXCHANGE" heal.restarts=1
    result "3 stages: rank 1 is killed, 1 restart, the run ends well" $?
    same killed-pp long-pp
    result "3 stages: and with the bits of an undisturbed run" $?

    # Parts of a model, from the newest checkpoint or from memory: the losses of one process.
    steps=24
    few="train.steps=24 eval.every=0 checkpoint.every=4"
    [ "$DEVICE" = cuda ] || few="$few model.width=64 model.context=32"
    # shellcheck disable=SC2086
    train few 1 $few && train few-mixture 1 $few model.family=mixtral model.experts=4 train.lr=0.0003
    result "the runs to compare with" $?
    while read -r t n one wanted; do
        # shellcheck disable=SC2086
        kill_one "killed-$t" "$n" $few "exchange.device=$EXCHANGE" $wanted </dev/null
        result "$t: rank 1 of $n is killed, and the run ends well" $?
        near "killed-$t" "$one" 1e-3
        result "$t: and near one process" $?
        grep -h '"event":"incident"' "killed-$t.json" | tail -n 3 | sed 's/^/        /'
    done <<ROWS
tp2 2 few mesh.tp=2
dp2-tp2 4 few mesh.tp=2
cp2 2 few mesh.cp=2
ep2 2 few-mixture mesh.ep=2 model.family=mixtral model.experts=4 train.lr=0.0003
ROWS
}
! part killed || killed

tools() {
    if [ "$EXCHANGE" = nccl ]; then
        ! LINESHAFT_NCCL=/nowhere/libnccl.so.2 train none 2 exchange.device=nccl >none.out &&
            grep -q 'exchange.device cannot be nccl: rank 0 on .* cannot open "/nowhere' none.err
        result "a missing NCCL is refused with a sentence" $?
        ! train pipelines 4 exchange.device=nccl mesh.pp=2 >pipelines.out &&
            grep -q 'exchange.device cannot be nccl: several pipelines' pipelines.err
        result "several pipelines are refused with a sentence" $?
        LINESHAFT_NCCL=/nowhere/libnccl.so.2 train auto 2 exchange.device=auto
        result "auto goes through the host without it" $?
        for n in 2 4; do
            timeout 200 "$LINESHAFT" bench comm -n $n --device cuda --sizes 1K,64K,1M,16M,64M,256M --tenths 2 \
                --op all_reduce,reduce_scatter,all_gather,broadcast,all_to_all >bench.out 2>bench.err
            result "bench comm --device cuda, $n ranks" $?
            sed 's/^/        /' bench.out bench.err
        done
    fi
}
! part tools || tools
finish
