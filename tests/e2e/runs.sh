#!/bin/sh
# What runs have reported, read by `lineshaft runs`: a run that ended, one that was killed and resumed, one of 0.1.0, one that trains.
. "$LINESHAFT_ROOT/tests/lib.sh"
cat >run.yaml <<'YAML'
name: base
model: {family: gpt2, layers: 1, width: 16, heads: 2, context: 16}
data: {text: [builtin:stories], validation: 5%}
batch: {sequences: 2, leaf: 2}
train: {steps: 6, lr: 1e-2, warmup: 0}
checkpoint: {every: 2, keep: 9}
eval: {every: 2, sequences: 2, sample: ""}
YAML
run 0 "$LINESHAFT" train run.yaml --json --set out=runs/a
hash=$(field summary weights_hash)
loss=$(field step loss)
run 0 "$LINESHAFT" train run.yaml --json --set out=runs/deep/b --set train.lr=1e-3 --set train.steps=3
run 0 "$LINESHAFT" train run.yaml --json --set out=runs/deep/b --set train.lr=1e-3 --set train.steps=6

# list: both, in order of their names or by a figure.
run 0 "$LINESHAFT" runs list
says "runs/a       finished"
says "6/6"
run 0 "$LINESHAFT" runs list runs/deep/b
says "finished"
run 0 "$LINESHAFT" runs list --sort val_loss --json
python3 - "$hash" "$loss" <<'PY' || fail "runs list --json: $(cat out)"
import json, sys
runs = json.load(open("out"))["runs"]
assert sorted(r["folder"] for r in runs) == ["runs/a", "runs/deep/b"], runs
assert [r["best_val_loss"] for r in runs] == sorted(r["best_val_loss"] for r in runs)
a, b = sorted(runs, key=lambda r: r["folder"])
assert a["weights_hash"] == sys.argv[1] and a["loss"] == float(sys.argv[2]) and a["steps"] == 6
assert a["attempts"] == 1 and b["attempts"] == 2, b
assert 0 <= a["updated"] - a["began"] < 600
PY
mkdir nothing
run 0 "$LINESHAFT" runs list nothing
says "no runs in nothing"
run 3 "$LINESHAFT" runs list missing
says 'cannot read the folder "missing"'

# show and diff.
run 0 "$LINESHAFT" runs show runs/a
says "train.lr                 0.01"
says "weights     $hash"
run 0 "$LINESHAFT" runs show runs/deep/b
says "finished, attempt 2"
run 0 "$LINESHAFT" runs diff runs/a runs/deep/b
says "settings that differ"
says "train.lr                 0.01                         0.001"
grep -q "model.width" out && fail "a setting that is the same: $(cat out)"
says "differ"
run 0 "$LINESHAFT" runs diff runs/a runs/a
says "settings are the same"
says "the same bits"
run 0 "$LINESHAFT" runs diff runs/a runs/deep/b --json
python3 -c 'import json; d = json.load(open("out")); assert [s["key"] for s in d["settings"]] == ["out", "train.lr"], d
assert d["settings"][1] == {"key": "train.lr", "a": "0.01", "b": "0.001"}, d' || fail "$(cat out)"
run 3 "$LINESHAFT" runs show nothing
says "is no run folder"

# export: every step once, also those of two attempts; the values are those of events.jsonl.
run 0 "$LINESHAFT" runs export runs/deep/b --series loss,val_loss
cp out table.csv
[ "$(head -n 1 table.csv)" = "step,loss,val_loss" ] || fail "header: $(head -n 1 table.csv)"
[ "$(wc -l <table.csv)" = 7 ] || fail "rows: $(cat table.csv)"
losses runs/deep/b/events.jsonl | tail -n 3 | while read -r step value; do
    grep -q "^$step,$value," table.csv || fail "step $step is not $value: $(cat table.csv)"
done || exit 1
run 0 "$LINESHAFT" runs export runs/deep/b --format json --points 2
[ "$(python3 -c 'import json; print(len([json.loads(x) for x in open("out") if "\"loss\"" in x]))')" = 2 ] || fail "points: $(cat out)"
run 2 "$LINESHAFT" runs export runs/a --series los
says 'the run has no series "los"'

# Killed without a word: lost, as soon as a minute has passed without one.
sed '$d' runs/a/events.jsonl >cut.jsonl
mkdir -p lost/a
cp cut.jsonl lost/a/events.jsonl
run 0 "$LINESHAFT" runs list lost
says "running"
touch -d "2 hours ago" lost/a/events.jsonl
run 0 "$LINESHAFT" runs list lost
says "lost"

# A run of 0.1.0 has no times and no settings.
tar -xzf "$LINESHAFT_ROOT/tests/e2e/old_runs.tar.gz"
run 0 "$LINESHAFT" runs list .
old=runs/owed/events.jsonl
[ -n "$old" ] || fail "no run of 0.1.0: $(find . -name events.jsonl)"
run 0 "$LINESHAFT" runs show "${old%/events.jsonl}"
run 0 "$LINESHAFT" runs diff "${old%/events.jsonl}" runs/a
says "settings were not kept"

# plot: dots or letters in a terminal, a picture that an XML parser reads.
run 0 "$LINESHAFT" plot runs/a
says "loss, val_loss over steps"
says "b  runs/a val_loss"
run 0 "$LINESHAFT" plot runs/a runs/deep/b --svg ab.svg --smooth 0.5
says "ab.svg: 2 curves"
python3 -c 'import xml.dom.minidom as x; t = x.parse("ab.svg").documentElement
assert t.tagName == "svg" and len([p for p in t.getElementsByTagName("path") if p.getAttribute("stroke")]) == 2' || fail "ab.svg"
run 0 "$LINESHAFT" plot runs/a --series tokens_per_s --x time --svg -
says "hours"
run 2 "$LINESHAFT" plot runs/a --series los
says 'has no values of the series "los"'
run 2 "$LINESHAFT" plot runs/a --smooth 1
says "--smooth takes a number"
run 2 "$LINESHAFT" plot "${old%/events.jsonl}" --x time
says "does not say when its steps were made"
run 3 "$LINESHAFT" plot nothing
