#!/bin/sh
# wire_faults.sh [PART...] -- what happens to packets between hosts of a lab: rows 8 to 10 and 12 to 15 of the table of faults. Every run
# must end with the weights of the undisturbed one, by one line of generations. Needs root.
#
#   loss     1, 5 and 20 % of all packets are lost: no host is lost at 1 and 5 %; prints how fast it was
#   storm    a connection between ranks is reset every second: it goes on, and nobody is lost
#   oneway   what one host sends to another one vanishes, between two that do not coordinate, and to and from the one that does
#   apart    one of four hosts is cut off from three; two of four from two
#   frozen   all processes of a host are stopped: it is lost; they go on, and it comes back as a newcomer
# shellcheck source=bench/fault_lib.sh
. "$(dirname "$0")/job.sh"
export LINESHAFT_STATE="$work/state"
hosts_of failover.sh
tiny_run wire 120 25
SET="--set heal.grow_wait=0 --set heal.grow_steps=2"
export SET
"$LINESHAFT" train run.yaml --json --set out=alone >alone.jsonl 2>alone.err
bad=0

# go OUT HOSTS PLAN...: a run in a lab, to which the plan happens.
go() {
    OUT=$1 FIRST=$2
    export OUT FIRST
    shift 2
    failed=
    play "$OUT" "$FIRST" "$@" || failed="the plan was not played"
    [ -n "$failed" ] || python3 "$root/bench/heal_look.py" "$OUT" || failed="not the undisturbed run"
    if [ -n "$failed" ]; then
        bad=1
        echo "$OUT FAILED: $failed: $(cat "$OUT.drive")"
        tail -n 12 "$OUT".err* "$OUT.lab" || true
        grep incident "$OUT.jsonl" || true
        return
    fi
    echo "$OUT ok: $(tr '\n' ';' <"$OUT.drive") $(grep -c '"kind":"lost"' "$OUT.jsonl" || true) losses"
}
# unhurt: nobody was lost in the run before.
unhurt() {
    ! grep -q '"kind":"lost"' "$OUT.jsonl" || { bad=1; echo "$OUT FAILED: somebody was lost: $(grep '"kind":"lost"' "$OUT.jsonl")"; }
}
rate() { python3 -c 'import json, sys
print("    %.0f tokens/s" % [json.loads(l) for l in open(sys.argv[1]) if "summary" in l][-1]["tokens_per_s"])' "$OUT.jsonl" || true; }

[ $# -gt 0 ] || set -- loss storm oneway apart frozen
for part; do
    case $part in
    loss)
        for percent in 0 1 5 20; do
            go loss$percent 3 5:loss:$percent
            rate
            [ $percent = 20 ] || unhurt
        done
        ;;
    storm)
        SET="$SET --set train.steps=2000"
        mv alone.jsonl short.jsonl
        "$LINESHAFT" train run.yaml --json --set out=alone2000 --set train.steps=2000 >alone.jsonl 2>alone.err
        go storm 3 5:storm:1
        unhurt
        mv short.jsonl alone.jsonl
        SET="--set heal.grow_wait=0 --set heal.grow_steps=2"
        ;;
    oneway)
        go oneway-2to1 4 8:drop:2-1
        go oneway-1to0 3 8:drop:1-0
        go oneway-0to1 3 8:drop:0-1
        ;;
    apart)
        go apart-one 4 8:drop:3-0 8:drop:3-1 8:drop:3-2 8:drop:0-3 8:drop:1-3 8:drop:2-3 =3:none:0
        go apart-two 4 8:drop:2-0 8:drop:2-1 8:drop:3-0 8:drop:3-1 8:drop:0-2 8:drop:0-3 8:drop:1-2 8:drop:1-3 =2:none:0
        ;;
    frozen)
        go frozen 3 8:stop:2 =2:cont:2 =3:none:0
        go frozen-first 3 8:stop:0 =2:cont:0
        ;;
    *)
        echo "no such part: $part (loss, storm, oneway, apart, frozen)" >&2
        exit 2
        ;;
    esac
done
[ $bad = 0 ] && echo "all that happened to packets was survived"
exit $bad
