#!/bin/sh
# data_parallel.sh -- data-parallel ranks: equal bits for any number of them, resumed by any other number,
# stopped, killed, refused, with nothing to do, and on several hosts.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
LS_E2E=parallel.$$
export LS_E2E LINESHAFT
unset LINESHAFT_CARRIER

# 7 leaves: no number of ranks below divides them. 8 norm blocks: several buckets for few ranks, one for 8.
cat >run.yaml <<'YAML'
name: shared
model: {family: gpt2, layers: 2, width: 64, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 14, leaf: 2, group: 1}
train: {steps: 20, lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3}
checkpoint: {every: 0, keep: 2}
eval: {every: 10, sequences: 5, sample: "Once", sample_tokens: 4}
YAML

none_alive() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        left=
        # shellcheck disable=SC2013 # words are what is wanted
        for file in $(grep -slzxF "LS_E2E=$LS_E2E" /proc/[0-9]*/environ); do
            case $(cat "${file%/environ}/comm" 2>/dev/null) in
            lineshaft | exe | ls-supervisor) left="$left ${file%/environ}" ;;
            esac
        done
        [ -z "$left" ] && return
        sleep 0.1
    done
    fail "left behind:$left"
}
# same NAME: the last run is the one that `want` tells of: every loss, validation, weights.
same() {
    losses out >got
    echo "$(field summary val_loss) $(field summary weights_hash)" >>got
    cmp -s want got || fail "$1: $(diff want got | head -n 6)"
}

# One process is the measure.
run 0 "$LINESHAFT" train run.yaml --json --set out=one
losses out >want
echo "$(field summary val_loss) $(field summary weights_hash)" >>want
cp want one/want
[ "$(wc -l <want)" = 21 ] || fail "not 20 steps: $(cat want)"
[ "$(field start ranks) $(field start zero)" = "1 0" ] || fail "one process is not one rank"

# Ordered: equal bits for any number of ranks, ZeRO stage and leaves per call.
# A bucket is as small as it can be, so that there are several. With zero 3 weights are gathered for blocks that recompute.
for mesh in 1,1,1 2,0,1 2,3,1 3,1,4 3,2,1 4,0,4 5,3,4 8,2,1; do
    n=${mesh%%,*} group=${mesh##*,} zero=${mesh#*,} zero=${zero%,*}
    run 0 "$LINESHAFT" train run.yaml --json -n "$n" --set "mesh.zero=$zero" --set "batch.group=$group" --set mesh.bucket=64KiB \
        --set "train.recompute=$([ "$zero" = 3 ] && echo full || echo none)" --set "out=o$mesh"
    same "$n ranks, zero $zero, group $group"
    [ "$n" = 1 ] || [ "$(field start ranks) $(field start zero)" = "$n $zero" ] || fail "start does not tell the mesh"
    [ "$(grep -c '"event":"rank"' out)" = "$n" ] || fail "not one rank event for each of $n ranks"
    if [ "$n" = 8 ]; then # and ranks without work are said, once
        grep -q '^\[0\] .*warning: 1 of 8 ranks have no work: they share 7 leaves .*lower batch.leaf, or take fewer ranks' err ||
            fail "ranks without work are not said: $(cat err)"
        [ "$(grep -c warning: err)" = 1 ] || fail "more than one warning: $(cat err)"
    else
        [ ! -s err ] || fail "$n ranks say: $(cat err)"
    fi
done
# Groups that divide, with copies of each other: two of two, three of two.
for mesh in 4,1,1 4,2,1 4,3,4 6,3,1; do
    n=${mesh%%,*} group=${mesh##*,} zero=${mesh#*,} zero=${zero%,*}
    run 0 "$LINESHAFT" train run.yaml --json -n "$n" --set "mesh.zero=$zero" --set mesh.shard=2 --set "batch.group=$group" \
        --set mesh.bucket=64KiB --set "out=s$mesh"
    same "$n ranks in groups of 2, zero $zero, group $group"
    [ "$(field start shard)" = 2 ] || fail "start does not tell the shard groups"
done
# Sequences of which few tokens count, each another number: ranks weigh by tokens, not by sequences.
chat="--set data.text=$LINESHAFT_ROOT/examples/chat.jsonl --set data.template=chatml --set data.validation=20% --set model.context=192
    --set batch.sequences=6 --set batch.leaf=1 --set train.steps=5"
# shellcheck disable=SC2086
for mesh in 1,0 3,1 4,3; do
    run 0 "$LINESHAFT" train run.yaml --json -n "${mesh%,*}" $chat --set "mesh.zero=${mesh#*,}" --set "out=chat$mesh"
    losses out >got
    field summary weights_hash >>got
    [ "$mesh" = 1,0 ] && mv got chat.want && continue
    cmp -s chat.want got || fail "conversations on $mesh (ranks, zero): $(diff chat.want got | head -n 4)"
done
# mesh.dp starts as many ranks as it says.
run 0 "$LINESHAFT" train run.yaml --json --set mesh.dp=2 --set out=dp
same "mesh.dp 2"
[ "$(field step split | grep -c exchange)" = 1 ] || fail "no time of exchange: $(field step split)"

# Fast: within 1e-4 of one process.
run 0 "$LINESHAFT" train run.yaml --json --set train.reduce=fast --set out=fast
losses out >alone
for mesh in 2,3,world 3,1,world 3,2,world 4,0,world 4,1,2 4,2,2 4,3,2; do
    n=${mesh%%,*} shard=${mesh##*,} zero=${mesh#*,} zero=${zero%,*}
    run 0 "$LINESHAFT" train run.yaml --json -n "$n" --set "mesh.zero=$zero" --set "mesh.shard=$shard" \
        --set train.reduce=fast --set mesh.bucket=64KiB --set "out=fast$mesh"
    losses out >got
    alike "fast mode with $mesh" 20 alone got
done
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set train.reduce=fast --set batch.sequences=2 --set batch.leaf=1 \
    --set train.steps=6 --set out=fastidle
says '1 of 3 ranks have no work: they share 2 sequences (batch.sequences); take fewer ranks'
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set batch.sequences=2 --set batch.leaf=2 --set train.steps=2 --set eval.every=0 --set out=oneleaf
says '1 of 2 ranks have no work: they share 1 leaf (batch.sequences / batch.leaf); lower batch.leaf, or take fewer ranks'

# Compression is for several nodes.
run 0 "$LINESHAFT" train run.yaml -n 2 --set train.reduce=fast --set exchange.compress=int8 --set train.steps=5 --set eval.every=0 --set out=squeezed
grep -q 'exchange.compress: int8 has no use: all ranks are on one node' out || fail "not said that compression has no use: $(cat out)"

# A checkpoint of any mesh is gone on with by any other. Steps up to N on M ranks:
: >parts
for part in 5,3,1 8,4,3,2 9,2,3 12,1,0 14,4,1,2 16,5,2 20,4,3; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$part" | tr , ' ')
    run 0 "$LINESHAFT" train run.yaml --json -n "$2" --set "train.steps=$1" --set "mesh.zero=$3" --set "mesh.shard=${4:-world}" \
        --set checkpoint.every=4 --set mesh.bucket=64KiB --set out=moved
    losses out >>parts
done
echo "$(field summary val_loss) $(field summary weights_hash)" >>parts
cmp -s want parts || fail "moved from mesh to mesh: $(diff want parts | head -n 6)"
run 0 "$LINESHAFT" ckpt verify moved

# Another run's checkpoint: refused by the first rank, said once, with its exit code.
run 2 "$LINESHAFT" train run.yaml -n 3 --set out=moved --set batch.sequences=16
[ "$(grep -c 'batch.sequences' err)" = 1 ] || fail "the refusal is not said once: $(cat err)"
says '--fresh'
[ ! -s out ] || fail "a refused run prints: $(cat out)"
# What no mesh can be.
run 2 "$LINESHAFT" train run.yaml -n 2 --set mesh.dp=3 --set out=no
[ "$(grep -c 'mesh.dp is 3, but the run has 2 ranks' err)" = 1 ] || fail "$(cat err)"
run 2 "$LINESHAFT" train run.yaml -n 2 --set mesh.zero=2 --set 'train.freeze=wte*' --set out=no
[ "$(grep -c 'mesh.zero cannot be 2: train.freeze leaves' err)" = 1 ] || fail "$(cat err)"
run 2 "$LINESHAFT" train run.yaml -n 4 --set mesh.zero=2 --set mesh.shard=3 --set out=no
[ "$(grep -c 'mesh.shard cannot be 3: 4 ranks cannot be grouped by 3' err)" = 1 ] || fail "$(cat err)"
says 'With 4 ranks mesh.shard: 2 works'
[ ! -e no ] || fail "a refused run left a folder"
none_alive

# A step that is not finite: all ranks know it, one sentence, as alone; or it is skipped, as alone.
for n in 1 3; do
    run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml -n $n --set mesh.zero=3 --set mesh.bucket=64KiB --set out=nan$n
    sed -n 's/.*error: rank [0-2]: the gradient/the gradient/p' err >nan$n.err
    run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml --json -n $n --set mesh.zero=1 \
        --set train.nonfinite=skip --set train.steps=6 --set out=skip$n
    [ "$(grep -c 'is skipped' err)" = 1 ] || fail "a skipped step is not said once: $(cat err)"
    field summary weights_hash >skip$n.hash
done
grep -q 'holds NaN' nan1.err && cmp -s nan1.err nan3.err || fail "other words: $(cat nan1.err nan3.err)"
cmp -s skip1.hash skip3.hash || fail "other weights after a skipped step"

# SIGTERM: the step is finished and saved, and another number of ranks goes on.
"$LINESHAFT" train run.yaml --json -n 3 --set mesh.zero=2 --set train.steps=100000 --set out=term >first 2>err &
pid=$!
await_step term 3 $pid
kill -TERM $pid
wait $pid
code=$?
[ $code = 130 ] || fail "SIGTERM gave $code: $(cat err)"
last=$(losses first | tail -n 1 | cut -d ' ' -f 1)
grep -qx "lineshaft: stopped: step $last is saved in \"term\"" err || fail "not said where: $(cat err)"
grep -q 'hint: Run the same command again to go on from there.' err || fail "no hint how to go on: $(cat err)"
[ "$(grep -c . err)" = 2 ] || fail "more than that is said: $(cat err)"
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set "train.steps=$((last + 3))" --set out=term
[ "$(field start first_step)" = "$last" ] || fail "does not go on at step $last"
losses first >went
losses out >>went
echo "$(field summary val_loss) $(field summary weights_hash)" >>went
run 0 "$LINESHAFT" train run.yaml --json --set "train.steps=$((last + 3))" --set out=straight
mv went want
same "one process beside a run that was stopped and went on"
none_alive

# kill -9 of a rank that is not to be replaced (recover_data.sh: that is): its name, its exit code, and nobody stays.
"$LINESHAFT" train run.yaml --json -n 3 --set heal.mode=off --set train.steps=100000 --set out=kill >out 2>err &
pid=$!
await_step kill 3 $pid
kill_rank kill 1
wait $pid
code=$?
[ $code = 137 ] || fail "a killed rank gave $code: $(cat err)"
grep -q '^lineshaft: error: rank 1 was killed by signal 9' err || fail "not said who: $(cat err)"
none_alive

# Several hosts: two with two ranks each make what one process makes.
need_hosts
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json -n 2 --set mesh.zero=3 --set mesh.bucket=64KiB --set out=hosts
cp one/want want
cp hosts/events.jsonl out
same "two hosts"
[ "$(field start ranks) $(field start zero)" = "4 3" ] || fail "not 4 ranks on two hosts"
[ "$(grep -c '"host":"lab1"' out)" = 2 ] || fail "the second host has not two ranks"
# Divided inside of each host, copies across.
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json -n 2 --set mesh.zero=3 --set mesh.shard=node --set mesh.bucket=64KiB \
    --set out=hsdp
cp hsdp/events.jsonl out
same "two hosts that divide inside"
[ "$(field start ranks) $(field start shard)" = "4 2" ] || fail "not two groups of two"
# Compressed between hosts: the run reports it, and a run that was stopped goes on to the same weights.
for part in 8,straight 5,parts 8,parts; do
    run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json -n 2 --set train.reduce=fast --set exchange.compress=int8 \
        --set "train.steps=${part%,*}" --set "out=squeezed-${part#*,}"
done
cp squeezed-straight/events.jsonl out
[ "$(field start nodes) $(field start compress)" = "2 int8" ] || fail "int8 between two hosts is not said: $(head -n 6 out)"
field summary weights_hash >want
tail -n 1 squeezed-parts/events.jsonl >out
field summary weights_hash >got
cmp -s want got || fail "a squeezed run that was stopped has other weights: $(cat want got)"
# A host with other settings is refused by name, on all.
cat >other.sh <<'SH2'
#!/bin/sh
[ "$LINESHAFT_LAB_NODE" = 1 ] && export LINESHAFT_TRAIN_LR=1e-4
exec "$LINESHAFT" train run.yaml --set out=differ
SH2
chmod +x other.sh
run 2 "$LINESHAFT" lab --nodes 2 -- ./other.sh
for host in lab0 lab1; do
    grep -q "^\[$host\] lineshaft: error: lab1 differs from the first node in: train (" err ||
        fail "$host does not say who differs: $(cat err)"
done
none_alive
