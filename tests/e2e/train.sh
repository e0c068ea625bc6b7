#!/bin/sh
# A run learns, its events keep their contract, its time and memory add up, and it talks.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json
cp out first
python3 - first <<'PY' || fail "events do not keep their contract"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
kinds = {row["event"] for row in rows}
assert kinds >= {"rank", "start", "step", "eval", "sample", "checkpoint", "summary"}, kinds
assert rows[-1]["event"] == "summary"
rank = next(r for r in rows if r["event"] == "rank")
assert {"rank", "pid", "host"} <= set(rank)
steps = [r for r in rows if r["event"] == "step"]
assert [r["step"] for r in steps] == list(range(1, 41))
for r in steps:
    assert {"loss", "tokens_per_s", "ms", "split"} <= set(r)
    assert abs(sum(r["split"].values()) - r["ms"]) < 1e-6 * max(1, r["ms"]), r
assert steps[-1]["loss"] < 0.75 * steps[0]["loss"], (steps[0]["loss"], steps[-1]["loss"])
end = rows[-1]
need = {"steps", "tokens", "seconds", "tokens_per_s", "loss", "val_loss", "mfu", "peak_bytes",
        "ledger_bytes", "start_to_first_step_s", "weights_hash"}
assert need <= set(end), need - set(end)
assert end["steps"] == 40 and end["tokens"] == 40 * 6 * 32
assert 0 < end["mfu"] < 1
# Of so small a run the program itself is a third; bench/first_step.sh holds the demonstration to 2 %.
assert abs(end["peak_bytes"] - end["ledger_bytes"]) < 0.1 * end["ledger_bytes"], end
PY
[ -f runs/small/events.jsonl ] || fail "no events.jsonl"

# Two runs of the same file are the same run.
run 0 "$LINESHAFT" train run.yaml --json --set out=other
losses first >a
losses out >b
cmp a b || fail "two runs of one file differ"
[ "$(field summary weights_hash first)" = "$(field summary weights_hash)" ] || fail "weights differ"

# A finished run ends at once, well.
run 0 "$LINESHAFT" train run.yaml --json
[ "$(field summary stopped_by)" = "done" ] || fail "a finished run trained again"

# People get lines, not JSON; and the model talks.
run 0 "$LINESHAFT" train run.yaml --set out=people
says "validation loss"
says "memory  peak"
run 0 "$LINESHAFT" generate people --prompt "Once upon" --tokens 20
says "Once upon"
cp out a
run 0 "$LINESHAFT" generate people --prompt "Once upon" --tokens 20
cmp out a || fail "the same seed told another story"
run 2 "$LINESHAFT" generate people --tokens 1.5
says "whole number"
run 0 "$LINESHAFT" ckpt verify people
run 0 "$LINESHAFT" ckpt list people

# The run file that is printed gives each rank work, in the commands of README.md.
run 0 "$LINESHAFT" train --print
mv out demo.yaml
readme=$(sed -n 's/.*train run\.yaml.* -n \([0-9]*\)\(.*--nodes \([0-9]*\)\)\{0,1\}.*/\1 \3/p' "$LINESHAFT_ROOT/README.md" | awk '{ print $1 * ($2 ? $2 : 1) }' | sort -nu)
[ -n "$readme" ] || fail "README.md starts no ranks"
for ranks in 4 $readme; do
    run 0 "$LINESHAFT" train demo.yaml -n $ranks --set train.steps=2 --set "out=demo-$ranks" --set eval.every=0
    grep -q 'have no work' err && fail "train demo.yaml -n $ranks: $(cat err)"
done
exit 0
