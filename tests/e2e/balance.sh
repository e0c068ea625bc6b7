#!/bin/sh
# balance.sh -- slices that follow the speed of ranks, weights, a batch ramp: the run stays the same run,
# each sample is used once, a slow rank is found, gets less and is reported.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: shared
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories:10K], tokenizer: bytes, validation: 5%}
batch: {sequences: 12, leaf: 1, group: 2}
train: {steps: 24, lr: 3e-3, schedule: cosine, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3}
checkpoint: {every: 0, keep: 2}
eval: {every: 12, sequences: 5}
device: {threads: 1}
YAML

# keep NAME: the last run is what others must equal: every loss, validation, weights.
keep() {
    losses out >"$1"
    echo "$(field summary val_loss) $(field summary weights_hash)" >>"$1"
}
same() {
    keep got
    cmp -s "$1" got || fail "$2: $(diff "$1" got | head -n 6)"
}

run 0 "$LINESHAFT" train run.yaml --json --set out=one
keep want

# Weights: uneven slices, the same bits; a rank without work is said.
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set 'mesh.weights=[1, 3, 2]' --set out=weights
same want "weights 1 3 2"
[ "$(field summary rank_sequences)" = "[2, 6, 4]" ] || fail "weights 1 3 2 give $(field summary rank_sequences)"
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set 'mesh.weights=[30, 1]' --set mesh.zero=1 --set out=idle
same want "weights 30 1"
says '1 of 2 ranks have no work: they share 12 leaves (batch.sequences / batch.leaf); change mesh.weights, or take fewer ranks'
run 2 "$LINESHAFT" train run.yaml -n 3 --set 'mesh.weights=[1, 1]' --set out=no
[ "$(grep -c 'mesh.weights has 2 numbers, but the run has 3 ranks' err)" = 1 ] || fail "$(cat err)"
[ ! -e no ] || fail "a refused run left a folder"

# tries COMMAND: times waver on a loaded machine, so one of three attempts must show what it asks for.
tries() {
    for _ in 1 2 3; do
        "$@" && return
    done
    fail "$1: $(grep -hE 'balance|straggler|summary' ./*/events.jsonl | tail -n 9; cat out err)"
}
# A rank of half the speed, in ordered mode: the bits stay while slices move; it ends with less than the others, the
# step is shorter than with equal slices, and it is named.
ordered_follows() {
    rm -rf slow
    run 0 env LINESHAFT_FAULT=train.slow.1@1+ "$LINESHAFT" train run.yaml --json -n 2 --set mesh.balance=auto --set out=slow
    same want "a slow rank"
    python3 - slow/events.jsonl <<'PY' || return
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
moves = [e for e in events if e["event"] == "balance"]
slow = [e for e in events if e["event"] == "incident" and e["kind"] == "straggler"]
end = events[-1]
if not moves or not slow:
    sys.exit(1)
assert moves[0]["from_step"] == moves[0]["step"] + 2
own, ms = end["rank_sequences"], end["rank_ms_per_leaf"]
assert sum(own) == 12 and min(own) >= 1
times = max(n * t for n, t in zip(own, ms)), max(6 * t for t in ms)
sys.exit(not (own[1] < 6 and times[0] < 0.95 * times[1] and slow[0]["text"].startswith("rank 1 (")))
PY
    grep -q 'warning: rank 1 (.*) needs .* x the median per leaf; it now takes . of 12 sequences' err
}
tries ordered_follows
# In fast mode sequences move, and the loss stays near; people get a table.
run 0 "$LINESHAFT" train run.yaml --json --set train.reduce=fast --set out=fast1
losses out >alone
fast_follows() {
    rm -rf fast2
    run 0 env LINESHAFT_FAULT=train.slow.0@1+ "$LINESHAFT" train run.yaml -n 2 --set mesh.balance=auto \
        --set train.reduce=fast --set batch.leaf=4 --set mesh.zero=1 --set out=fast2
    losses fast2/events.jsonl >got
    alike "fast mode" 24 alone got
    grep -q '^ranks   2, with . to . of 12 sequences' out &&
        grep -q '^        rank 0 (.*) needs .* x the median per leaf and has . of them' out
}
tries fast_follows

# Ramp: the same run on any mesh, resumed in the middle, on other meshes; tokens are those that were read.
ramp='--set batch.ramp=15 --set batch.ramp_from=3'
# shellcheck disable=SC2086 # words are what is wanted
run 0 "$LINESHAFT" train run.yaml --json $ramp --set out=ramp1
keep want
python3 - out <<'PY' || fail "the ramp is another: $(grep -c . out)"
import json, sys
steps = [e for e in map(json.loads, open(sys.argv[1])) if e["event"] == "step"]
tokens = 0
for i, e in enumerate(steps):
    n = 12 if i >= 15 else 3 + 9 * i // 15
    tokens += 32 * n
    assert (e["sequences"], e["tokens"]) == (n, tokens), (i, e)
PY
# shellcheck disable=SC2086
run 0 env LINESHAFT_FAULT=train.slow.2@1+ "$LINESHAFT" train run.yaml --json -n 3 $ramp --set mesh.balance=auto --set mesh.zero=1 --set out=ramp3
same want "a ramp on 3 ranks"
: >parts
for part in 5,3 11,2 18,1 24,5; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json -n "${part#*,}" $ramp --set "train.steps=${part%,*}" --set train.warmup=5 \
        --set train.schedule=constant --set out=moved
    losses out >>parts
done
echo "$(field summary val_loss) $(field summary weights_hash)" >>parts
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json $ramp --set train.warmup=5 --set train.schedule=constant --set out=straight
keep want
cmp -s want parts || fail "a ramp moved from mesh to mesh: $(diff want parts | head -n 6)"
# shellcheck disable=SC2086
run 0 "$LINESHAFT" data check run.yaml $ramp --set out=ramp1
grep -q 'exactly once' out || fail "$(cat out)"
# In fast mode two ranks stay near one.
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json $ramp --set train.reduce=fast --set out=rampfast1
losses out >alone
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json -n 2 $ramp --set train.reduce=fast --set 'mesh.weights=[2, 1]' --set out=rampfast2
losses out >got
alike "a ramp in fast mode" 24 alone got
# train.tokens: steps are counted with the ramp (15 steps have 102 sequences).
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json $ramp --set train.steps=0 --set "train.tokens=$((102 * 32 + 1))" --set out=tokens
[ "$(field summary steps) $(field summary stopped_by)" = "16 tokens" ] || fail "$(tail -n 1 out)"

# Exactly once: an epoch is begun by 3 ranks, gone on with by 2 and ended by 5, as each rank itself tells
# what it reads (-vv); `data check` proves that the samples of an epoch are all its windows.
windows=$("$LINESHAFT" data check run.yaml --set out=one --json | python3 -c 'import json, sys
p = json.load(sys.stdin)
assert p["passed"]
print(p["sources"][0]["windows"])')
steps=$(((windows + 11) / 12))
: >said
for part in $((steps / 3)),3 $((steps * 2 / 3)),2 $steps,5; do
    run 0 "$LINESHAFT" train run.yaml -vv -n "${part#*,}" --set "train.steps=${part%,*}" --set train.schedule=constant \
        --set train.warmup=0 --set mesh.balance=auto --set out=once
    grep -o 'step [0-9]* reads samples [0-9]* to [0-9]*' err >>said
done
python3 - "$windows" "$steps" said <<'PY' || fail "samples are not used once: $(head -n 3 said)"
import sys
windows, steps = int(sys.argv[1]), int(sys.argv[2])
used, ranks = {}, {}
for line in open(sys.argv[3]):
    w = line.split()
    step, first, last = int(w[1]), int(w[4]), int(w[6])
    ranks[step] = ranks.get(step, 0) + 1
    for sample in range(first, last + 1):
        used.setdefault(sample, []).append(step)
assert sorted(used) == list(range(12 * steps)), "samples are missing"
assert all(len(by) == 1 and by[0] == s // 12 + 1 for s, by in used.items()), "samples are used twice"
assert windows <= 12 * steps and {ranks[1], ranks[steps]} == {3, 5} and 2 in ranks.values(), ranks
PY
