#!/bin/sh
# preference.sh -- train.objective dpo, orpo, kto: chosen answers gain on rejected ones; the same bits on 1, 2 and 4 ranks, with ZeRO
# and after a kill; other meshes agree; lines and settings that cannot work are refused with their place.
# (tests/conformance/preference.py compares every number with trl.)
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

python3 - <<'PY'
import json, random
rng = random.Random(3)
nouns = "cat dog boy girl tree bird".split()
pairs, answers = open("pairs.jsonl", "w"), open("answers.jsonl", "w")
for i in range(64):
    ask = "Tell me of a %s. " % rng.choice(nouns)
    good, bad = "It is happy %d." % rng.randint(0, 9), "No, go away %d" % rng.randint(0, 9)
    print(json.dumps({"prompt": ask, "chosen": good, "rejected": bad}), file=pairs)
    print(json.dumps({"prompt": ask, "completion": good if i % 2 else bad, "label": bool(i % 2)}), file=answers)
PY
cat >base.yaml <<'YAML'
name: base
model: {family: llama, layers: 2, width: 64, heads: 4, kv_heads: 4, context: 128, mlp: 128}
data: {text: [builtin:stories], tokenizer: bytes}
batch: {sequences: 4}
train: {steps: 2, lr: 1e-3}
eval: {every: 0, sample: ''}
YAML
run 0 "$LINESHAFT" train base.yaml --json --set out=base
run 0 "$LINESHAFT" export base hf
cat >pref.yaml <<'YAML'
name: pref
model: {import: hf, context: 128}
data: {text: pairs.jsonl, tokenizer: bytes, validation: 12.5%}
batch: {sequences: 8, leaf: 2, group: 1}
train: {objective: dpo, steps: 24, lr: 1e-3, schedule: constant, warmup: 0, seed: 5}
checkpoint: {every: 4, keep: 9}
eval: {every: 8, sample: ''}
YAML

# learns NAME: the margin begins at 0 where there is a reference, and ends above its beginning, in training and in validation.
learns() {
    python3 - "$1" <<'PY' || fail "$1 does not learn its preferences"
import json, sys
events = [json.loads(line) for line in open(sys.argv[1] + "/events.jsonl")]
margins = {kind: [e["rewards/margins"] for e in events if e["event"] == kind] for kind in ("step", "eval")}
assert "orpo" in sys.argv[1] or margins["step"][0] == 0, margins
assert margins["step"][-1] > margins["step"][0] + 0.005 and margins["eval"][-1] > margins["eval"][0], margins
if "kto" not in sys.argv[1]:
    right = [e["rewards/accuracies"] for e in events if e["event"] == "eval"]
    assert right[-1] == 1.0, right
PY
}
# same NAME OTHER: equal weights, losses and rewards.
same() {
    for file in "$1" "$2"; do
        python3 -c 'import json, sys
for e in map(json.loads, open(sys.argv[1] + "/events.jsonl")):
    if e["event"] in ("step", "eval", "summary"):
        print(*(e.get(k) for k in ("step", "loss", "val_loss", "rewards/chosen", "rewards/rejected", "logps/chosen", "kl", "weights_hash")))' "$file" |
            sort -u >"$file.numbers"
    done
    cmp -s "$1.numbers" "$2.numbers" || fail "$1 and $2 differ: $(diff "$1.numbers" "$2.numbers" | head -5)"
}

# kill_at STEP COMMAND...: kill -9 when it has reported that step; the small pipe holds it back there.
cat >kill_at.py <<'PY'
import fcntl, json, subprocess, sys
p = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, bufsize=0)
fcntl.fcntl(p.stdout, 1031, 4096)  # F_SETPIPE_SZ
while line := p.stdout.readline():
    if line.endswith(b"\n") and json.loads(line).get("step") == int(sys.argv[1]):
        p.kill()
sys.exit(p.wait() != -9)
PY

for objective in dpo orpo kto; do
    text=pairs.jsonl
    [ $objective != kto ] || text=answers.jsonl
    set -- --json --set train.objective=$objective --set data.text=$text
    run 0 "$LINESHAFT" train pref.yaml "$@" --set out=$objective.1
    learns $objective.1
    run 0 "$LINESHAFT" train pref.yaml "$@" --set out=$objective.2 -n 2
    same $objective.1 $objective.2
    run 0 "$LINESHAFT" train pref.yaml "$@" --set out=$objective.4 -n 4 --set mesh.zero=2 --set batch.group=2
    same $objective.1 $objective.4
    run 0 python3 kill_at.py 10 "$LINESHAFT" train pref.yaml "$@" --set out=$objective.again
    run 0 "$LINESHAFT" train pref.yaml "$@" --set out=$objective.again -n 2
    [ "$(field start first_step $objective.again/events.jsonl)" -ge 4 ] || fail "the killed run began anew"
    same $objective.1 $objective.again
done

# Other meshes, within rounding; with LoRA the reference is the base, and a run goes on with the same bits.
losses dpo.1/events.jsonl >want
for mesh in mesh.tp=2 mesh.pp=2 mesh.zero=3; do
    run 0 "$LINESHAFT" train pref.yaml --json -n 2 --set $mesh --set out=dpo.$mesh
    learns dpo.$mesh
    losses dpo.$mesh/events.jsonl >got
    alike $mesh 24 want got
done
set -- --json --set lora.rank=4 --set train.lr=1e-2
run 0 "$LINESHAFT" train pref.yaml "$@" --set out=lora
learns lora
run 0 python3 kill_at.py 10 "$LINESHAFT" train pref.yaml "$@" --set out=lora.again
run 0 "$LINESHAFT" train pref.yaml "$@" --set out=lora.again
same lora lora.again

# The reference is part of a run: without it there is no going on.
run 0 "$LINESHAFT" train pref.yaml --json --set out=part --set train.steps=4
printf x | dd of=part/data/reference.bin bs=1 seek=200 conv=notrunc 2>/dev/null
run 4 "$LINESHAFT" train pref.yaml --json --set out=part
says "reference.bin\" is damaged, or was made of other data"
says "start over with --fresh"

# Lines that are no pairs.
bad_line() { # bad_line LINE TEXT [ARG...]
    head -n 2 pairs.jsonl >bad.jsonl
    echo "$1" >>bad.jsonl
    text=$2
    shift 2
    run 4 "$LINESHAFT" train pref.yaml --set data.text=bad.jsonl --set out=no "$@"
    says "bad.jsonl:3"
    says "$text"
}
bad_line '{"prompt": "a", "chosen": "b"}' 'the line has no "rejected"'
bad_line '{"prompt": "a", "chosen": "b", "rejected": ["c"]}' "prompt and answers are not of one kind"
bad_line '{"prompt": "a", "chosen": 1, "rejected": "c"}' "prompt and answers are not of one kind"
bad_line '{"prompt": [{"role": "user", "content": "a"}], "chosen": [], "rejected": []}' "an answer has no message"
bad_line '{"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}]}' \
    "no chat template for them"
bad_line '{"prompt": "ask", "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}]}' \
    "prompt and answers are not of one kind" --set data.template=chatml
bad_line '{"prompt": "a"' "3"
# As in UltraFeedback: the prompt as text is what the messages of both answers begin with.
turn='{"role": "user", "content": "ask"}'
for line in '{"prompt": "ask", "chosen": ['"$turn"', {"role": "assistant", "content": "yes"}], "rejected": ['"$turn"', {"role": "assistant", "content": "no"}], "score": NaN}' \
    '{"prompt": ['"$turn"'], "chosen": [{"role": "assistant", "content": "yes"}], "rejected": [{"role": "assistant", "content": "no"}]}'; do
    echo "$line" >feedback.jsonl
    rm -rf feedback
    run 0 "$LINESHAFT" train pref.yaml --json --set data.text=feedback.jsonl --set data.template=chatml --set data.validation=0 --set batch.sequences=1 --set batch.leaf=1 --set model.context=256 --set train.steps=2 --set out=feedback
    field summary weights_hash >>feedback.hashes
done
[ "$(sort -u feedback.hashes | wc -l)" = 1 ] || fail "a prompt that is repeated trains otherwise: $(cat feedback.hashes)"
run 2 "$LINESHAFT" train pref.yaml --set data.text=pref.yaml --set out=no
says "does not hold JSON lines"
says "train.objective: dpo learns from JSON lines"
run 0 "$LINESHAFT" train pref.yaml --set data.text=bad.jsonl --set out=skips --set data.skip_bad=true --set data.validation=0 --set train.steps=1
says "1 line of \"bad.jsonl\" was skipped"
head -n 1 answers.jsonl >bad.jsonl
echo '{"prompt": "a", "completion": "b", "label": "yes"}' >>bad.jsonl
run 4 "$LINESHAFT" train pref.yaml --set train.objective=kto --set data.text=bad.jsonl --set out=no
says "bad.jsonl:2: \"label\" is neither true nor false"
run 4 "$LINESHAFT" train pref.yaml --set model.context=16 --set out=no
says "holds no pair whose answers begin in the first 8 tokens"

# Settings that cannot work, refused before anything is made.
run_file=pref.yaml
refused "mesh.cp is 2 but train.objective is dpo" --set mesh.cp=2
refused "sync is local but train.objective is dpo" --set sync=local
refused "train.objective is kto but mesh.pp is 2" --set train.objective=kto --set mesh.pp=2
refused "train.objective is kto but mesh.zero is 3" --set train.objective=kto --set mesh.zero=3
refused "preference.desirable_weight is 2 but train.objective is dpo" --set preference.desirable_weight=2
refused "there must be a model to compare with" --set model.import= --set model.layers=1 --set model.width=16 --set model.heads=1
