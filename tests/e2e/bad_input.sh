#!/bin/sh
# Bad input gets a sentence, the right exit code, and leaves nothing behind.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
nothing_made() { [ ! -e runs ] || fail "a refused run made files: $(find runs)"; }

run 2 "$LINESHAFT" train missing.yaml
nothing_made
sed 's/steps: 40/stepz: 40/' run.yaml >typo.yaml
run 2 "$LINESHAFT" train typo.yaml
says "typo.yaml:5:"
says "train.steps"
nothing_made
run 2 "$LINESHAFT" train run.yaml --set model.width=33
says "heads"
run 2 "$LINESHAFT" train run.yaml --set data.text=nowhere.txt
says "nowhere.txt"
sed 's/layers: 2/vocab: 10, layers: 2/' run.yaml >vocab.yaml
run 2 "$LINESHAFT" train vocab.yaml
says "vocab.yaml:2:"
nothing_made
run 2 "$LINESHAFT" train run.yaml --sett a=b
says "--set"
run 2 "$LINESHAFT" trian run.yaml
says "train"
nothing_made

: >empty.txt
run 4 "$LINESHAFT" train run.yaml --set data.text=empty.txt --set out=o1
says "empty.txt"
[ ! -e o1 ] || fail "a refused run left $(find o1)"
printf 'too short' >short.txt
run 4 "$LINESHAFT" train run.yaml --set data.text=short.txt --set out=o2
says "context"
[ ! -e o2/events.jsonl ] || fail "a refused run left $(find o2)"
printf 'good text and then \377\376 bad bytes, again and again\n' >utf8.txt
for _ in 1 2 3 4 5 6 7 8; do cat utf8.txt utf8.txt >more.txt && cp more.txt utf8.txt; done
run 4 "$LINESHAFT" train run.yaml --set data.text=utf8.txt --set out=o3
says "UTF-8"
run 3 "$LINESHAFT" train run.yaml --set out=/proc/nowhere
says "/proc/nowhere"
run 2 "$LINESHAFT" generate nowhere --prompt x
says "nowhere"

# The second run on one folder is refused.
"$LINESHAFT" train run.yaml --set train.steps=100000 --set out=busy >long 2>&1 &
pid=$!
until [ -s busy/events.jsonl ]; do sleep 0.02; done
"$LINESHAFT" train run.yaml --set out=busy >out 2>err
code=$?
kill -TERM $pid
wait $pid
[ $code = 6 ] || fail "a second run on one folder: exit $code, expected 6"
says "another run is using"
