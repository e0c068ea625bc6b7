#!/bin/sh
# heal_hosts.sh -- hosts of a lab that are destroyed and added, again and again (cut off, stopped: wire_faults.sh); every run must end with the
# weights of the undisturbed one. Needs root.
#
#   bench/heal_hosts.sh [RUNS]
#
# RUNS times (10): one run of a tiny model in ordered mode that goes from 2 hosts to 4, 3, 1 and back to 4, one on 3 hosts of
# which one is destroyed at a random step, and two on 4 hosts: two are destroyed at once, or one, and a rank of another is killed. Prints
# what the incidents say. The runs of changing size are slowed down by their driver, so that hosts can come before they end: their recovery contains that; "host" is what a loss costs.
# shellcheck source=bench/fault_lib.sh
. "$(dirname "$0")/job.sh"
runs=${1:-10}
hosts_of heal_hosts.sh
tiny_run hosts 200 25
SET="--set heal.grow_wait=0 --set heal.grow_steps=2"
export SET
"$LINESHAFT" train run.yaml --json --set out=alone >alone.jsonl
go() {
    OUT=$1 FIRST=$3 RANKS=1
    export OUT FIRST RANKS
    many=$2
    shift 3
    play "$OUT" "$many" "$@" || {
        cat "$OUT.drive" "$OUT.err" "$OUT.lab"
        exit 1
    }
    cat "$OUT.drive" >&2
    python3 "$root/bench/heal_look.py" "$OUT"
}
i=0
while [ $i -lt "$runs" ]; do
    i=$((i + 1))
    go "size$i" 7 2 10:come:2 10:come:3 =4:host:3 =3:host:2 =2:host:1 =1:come:4 =1:come:5 =1:come:6 =4:none:0
    go "host$i" 3 3 "$((5 + i * 37 % 120)):host:$((1 + i % 2))"
    at=$((5 + i * 53 % 120))
    go "two$i" 4 4 "$at:host:$((1 + i % 3))" "$at:host:$((1 + (i + 1) % 3))"
    go "both$i" 4 4 "$at:host:$((1 + i % 3))" "$at:kill:$((1 + (i + 2) % 3))"
done
