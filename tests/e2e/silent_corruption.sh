#!/bin/sh
# silent_corruption.sh -- a bit of a rank changes, and nobody said so: it is found, the rank is named and replaced, and the run ends with the
# weights that it must have.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
sed -i 's/steps: 40/steps: 26/' run.yaml
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)
# flipped FAULT OUT RANKS ARG...: this happens to it; in the end the weights are those of a run that nothing befell.
flipped() {
    fault=$1
    out=$2
    ranks=$3
    shift 3
    LINESHAFT_FAULT=train.flip.$fault@1 go 0 "$out" "$ranks" none --set heal.restarts=0 "$@"
    [ "$(field summary weights_hash "$out.jsonl")" = "$hash" ] || fail "$out: other weights: $(grep incident "$out.jsonl")"
}
# named OUT RANK RANKS: its last incident, and how many ranks are left.
named() {
    [ "$(incident "$1" kind) $(incident "$1" ranks)" = "corrupt $3" ] || fail "$1: $(grep incident "$1.jsonl")"
    incident "$1" text | grep -q "rank $2 is corrupt" || fail "$1: $(incident "$1" text)"
}
# back OUT STEP: from that step to the last one that all had agreed on and saved (on a slow machine the save of step 10 is not ended).
back() {
    case "$(incident "$1" source) $(incident "$1" step) $(incident "$1" redone)" in
    "checkpoint 10 $(($2 - 10))" | "start 0 $2") ;;
    *) fail "$1: $(grep incident "$1.jsonl")" ;;
    esac
}
# on OUT: with what the others have.
on() { [ "$(incident "$1" source) $(incident "$1" redone)" = "memory 0" ] || fail "$1: $(grep incident "$1.jsonl")"; }

# A weight, a moment: the others are the majority. What it has spoiled is done again, from the checkpoint before.
flipped weight.2.13 weight 3 --set heal.compare=5
named weight 2 2
back weight 15
flipped moment.3.16 moment 4 --set heal.compare=4
named moment 3 3
back moment 16
# Nothing is saved that they do not agree on, whatever heal.compare is.
flipped weight.2.18 saved 3 --set heal.compare=1000
named saved 2 2
back saved 20
# Two ranks, or a part and its copy: both go back; when the same step comes again, it is known who was wrong.
flipped weight.1.15 two 2 --set heal.compare=5
named two 1 1
on two
grep -q 'no majority' two.err || fail "two: $(cat two.err)"
flipped copy.2.15 copy 3 --set heal.compare=5 --set mesh.zero=1
named copy 2 2
on copy

# A gradient: all have the same wrong sum, and only making a leaf again shows it, before the update.
"$LINESHAFT" train run.yaml --json -vv -n 3 --set out=dry --set heal.replay=1 >out 2>err || fail "dry: $(cat err)"
[ "$(field summary weights_hash)" = "$hash" ] || fail "dry: other weights"
step=$(sed -n 's/.*step \([0-9]*\): leaf [0-9]* of rank 2 is made again by rank 0.*/\1/p' err | sed -n '/^1[2-9]$/p' | head -n 1)
[ -n "$step" ] || fail "dry: no leaf of rank 2 was made again: $(grep 'made again' err | head)"
flipped "gradient.2.$step" gradient 3 --set heal.replay=1
named gradient 2 2
on gradient
same gradient
# Not finite, but finite elsewhere: hardware. Not finite elsewhere either is in recover_data.sh.
LINESHAFT_FAULT=train.nonfinite.once@14 go 0 nan 3 none
same nan
grep -q 'step 14 is not finite, but is when other ranks make the same leaves' nan.err || fail "nan: $(cat nan.err)"
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done
