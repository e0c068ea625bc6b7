#!/bin/sh
# --profile: a table that adds up, a trace that viewers can draw, and a run that stays the same.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=plain
hash=$(field summary weights_hash)
[ ! -e plain/profile ] || fail "a profile that nobody asked for"

run 0 "$LINESHAFT" train run.yaml --profile 20
says "profile of steps 3 to 22: "
says "in no kernel"
says "slowest: "
says "open runs/small/profile/trace.json"
grep -qF "$hash" out || fail "a profile changed the weights"
while IFS= read -r line; do
    grep -qxF -- "$line" out || fail "table.txt has a line that was not printed: $line"
done <runs/small/profile/table.txt
cat >check.py <<'PY'
import json, sys
folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
trace = json.load(open(folder + "/trace.json"))
table = json.load(open(folder + "/table.json"))
names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert names[0] == "host" and "worker 0" in names.values(), names
assert [e["name"] for e in events if e["cat"] == "step"] == [f"step {i}" for i in range(first, last + 1)]
# On a track every event lies inside the one that is open, or behind it.
for tid in names:
    stack = []
    for e in events:
        if e["tid"] != tid:
            continue
        begin, end = round(e["ts"] * 1e3), round(e["ts"] * 1e3) + round(e["dur"] * 1e3)
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1], e
        stack.append(end)
kernels = [e for e in events if e["cat"] == "kernel"]
assert all(e["args"]["phase"] and ("gflops" in e["args"]) != ("gb_per_s" in e["args"]) for e in kernels)
linear = next(e for e in kernels if e["name"] == "linear_fwd")
assert {"M", "N", "K"} <= set(linear["args"]), linear
assert {e["args"]["phase"] for e in kernels if e["name"] == "adamw"} == {"update"}
# The table: rows and the rest are the step; its times and calls are the trace's.
steps = last - first + 1
assert (table["first_step"], table["last_step"], table["steps"]) == (first, last, steps)
total = sum(r["ms"] for r in table["rows"]) + table["no_kernel_ms"]
assert abs(total - table["step_ms"]) < 1e-9 * total, (total, table)
assert abs(sum(r["share"] for r in table["rows"]) + table["no_kernel_share"] - 1) < 1e-9
wall = sum(e["dur"] for e in events if e["cat"] == "step")
aside = sum(e["dur"] for e in events if e["name"] in ("evaluation", "checkpoint") and e["cat"] == "phase")
assert abs((wall - aside) / 1e3 / steps - table["step_ms"]) < 1e-5
for r in table["rows"]:
    mine = [e for e in kernels if e["name"] == r["row"] and e["args"]["phase"] != "evaluation"]
    assert len(mine) == round(r["calls"] * steps), r
    assert abs(sum(e["dur"] for e in mine) / 1e3 / steps - r["ms"]) < 1e-5, r
assert table["dropped"] == 0
PY
python3 check.py runs/small/profile 3 22 || fail "trace and table do not fit"

# With --set, --json and quiet; after an interruption, from where the run goes on.
run 0 "$LINESHAFT" train run.yaml --set out=short --set train.steps=10 --set checkpoint.every=0 --profile 10 --json
[ "$(field profile steps)" = 10 ] || fail "not as many steps as asked for"
[ "$(field profile path)" = short/profile ] || fail "elsewhere"
python3 check.py short/profile 1 10 || fail "trace and table do not fit"
run 0 "$LINESHAFT" train run.yaml --set out=short --set train.steps=13 --profile 3 --quiet
says "profile of steps 11 to 13: "
python3 check.py short/profile 11 13 || fail "a resumed run's trace and table do not fit"
run 0 "$LINESHAFT" train run.yaml --set out=short --set train.steps=13 --profile 3
says "there is no profile: the run ended before a step could be noted"

# Bad values make nothing.
for bad in 0 -3 abc 1.5 '' 5x 1001 99999999999999999999; do
    run 2 "$LINESHAFT" train run.yaml --set out=bad "--profile=$bad"
    says "--profile is \"$bad\", not a number of steps from 1 to 1000"
done
run 2 "$LINESHAFT" train run.yaml --set out=bad --profile -3
says '--profile is "-3"'
run 2 "$LINESHAFT" train run.yaml --set out=bad --profile 41
says "--profile is 41, but the run has only 40 steps"
run 2 "$LINESHAFT" train run.yaml --profile
says "--profile needs a value"
[ ! -e bad ] || fail "a refused run made files"
