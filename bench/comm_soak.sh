#!/bin/sh
# comm_soak.sh [CYCLES [KILLS]] -- whole jobs opened and closed (1000), and ranks killed with -9 in the middle of collectives (100), on this machine and,
# where namespaces are allowed, between two hosts of a lab. Nothing may be left: no process (and so no socket that listens and no namespace without a name,
# which both need one), no file in /dev/shm, no named namespace, no link. Prints
# the worst time from a kill to the error on every other rank, which comes from the black boxes (a rank that its agent stops before it has noticed counts as
# stopped; the boxes are exact to a tick of 4 ms), and the worst time to the end of the whole job. LINESHAFT: the program.
set -u
LINESHAFT=${LINESHAFT:-$(cd "$(dirname "$0")/.." && pwd)/lineshaft}
LS_SOAK=soak.$$
export LINESHAFT LS_SOAK
dir=$(mktemp -d) || exit
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit

fail() {
    echo "comm_soak.sh: $*" >&2
    exit 1
}
# ours: processes of this script's jobs.
ours() { grep -slzx "LS_SOAK=$LS_SOAK" /proc/[0-9]*/environ | while read -r file; do
    grep -sqz '^lineshaft\|/lineshaft' "${file%environ}cmdline" && echo "${file%/environ}"
done; }
shm() { find /dev/shm -maxdepth 1 -name '*lineshaft*' | sort; }
nets() { find /var/run/netns -name 'lab*' 2>/dev/null; ls /sys/class/net; }
# nothing_left: after a moment for the kernel to take things back.
nothing_left() {
    for _ in $(seq 50); do
        left=$(ours)
        [ -z "$left" ] && [ "$(shm)" = "$shm" ] && [ "$(nets)" = "$nets" ] && return
        sleep 0.1
    done
    fail "left behind after $1: processes: $left; /dev/shm: $(shm); namespaces and links: $(nets)"
}
# rank N: waits until rank N of the job runs and sets found.
rank() {
    for _ in $(seq 1000); do
        for file in $(grep -slzx "LINESHAFT_RANK=$1" /proc/[0-9]*/environ); do
            grep -sqzx "LS_SOAK=$LS_SOAK" "$file" || continue
            found=${file#/proc/}
            found=${found%/environ}
            return
        done
        sleep 0.01
    done
    fail "rank $1 was not found: $(cat out err)"
}
cat >when.py <<'PY'
import datetime, glob, sys
kill, victim, worst, seen, others = int(sys.argv[1]) / 1e9, sys.argv[2], 0, 0, 0
for name in glob.glob("lineshaft-blackbox/rank-*.txt"):
    failed = [w for w in (line.split() for line in open(name) if line[0] != "#") if w[6] == "failed"]
    if name.endswith("rank-%s.txt" % victim):
        continue
    others += 1
    if not failed:
        continue
    entered = datetime.datetime.strptime(failed[-1][7], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)
    worst, seen = max(worst, entered.timestamp() + float(failed[-1][8]) / 1e3 - kill), seen + 1
print(others, seen, round(worst * 1000))
PY

cycles=${1:-1000} kills=${2:-100}
shm=$(shm) nets=$(nets) lab=yes
"$LINESHAFT" lab --nodes 1 -- true >out 2>&1 || lab=no

for i in $(seq "$cycles"); do
    "$LINESHAFT" bench comm -n $((1 + i % 4)) --sizes 1K --tenths 1 >out 2>err || fail "cycle $i: $(cat err)"
done
nothing_left "$cycles cycles"
echo "$cycles jobs opened and closed: nothing left"

# kill_one KIND I COMMAND...: a rank in the middle of collectives; its job ends with 137.
worst_here=0 worst_hosts=0 end_here=0 end_hosts=0 others=0 told=0
kill_one() {
    kind=$1 ranks=$2 i=$3
    shift 3
    rm -rf lineshaft-blackbox
    "$@" >out 2>err &
    pid=$!
    rank $((i % ranks))
    for _ in $(seq 1000); do
        grep -q 'all_reduce' out && break
        sleep 0.01
    done
    sleep "0.$((i * 37 % 90 + 10))"
    now=$(date +%s%N)
    kill -9 "$found"
    wait $pid
    code=$?
    end=$((($(date +%s%N) - now) / 1000000))
    [ $code = 137 ] || fail "kill $i, $kind: exit $code: $(cat err)"
    # shellcheck disable=SC2046
    set -- $(python3 when.py "$now" $((i % ranks)))
    [ "$1" -gt 0 ] || fail "kill $i, $kind: no other rank has a black box: $(cat err)"
    others=$((others + $1)) told=$((told + $2))
    if [ "$kind" = here ]; then
        [ "$3" -le $worst_here ] || worst_here=$3
        [ $end -le $end_here ] || end_here=$end
    else
        [ "$3" -le $worst_hosts ] || worst_hosts=$3
        [ $end -le $end_hosts ] || end_hosts=$end
    fi
}
for i in $(seq "$kills"); do
    if [ $((i % 2)) = 0 ] && [ $lab = yes ]; then
        kill_one hosts 2 $((i / 2)) "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" bench comm --sizes 1K,16M --tenths 600
    else
        kill_one here 3 "$i" "$LINESHAFT" bench comm -n 3 --sizes 1K,16M --tenths 600
    fi
    [ $((i % 10)) = 0 ] && nothing_left "$i kills"
done
nothing_left "$kills kills"
echo "$kills ranks killed with -9, of $others others $told had their error and $((others - told)) were stopped before: nothing left"
echo "one machine, worst time from the kill: to the error $worst_here ms, to the end of the job $end_here ms"
if [ $lab = yes ]; then
    echo "two hosts, worst time from the kill: to the error $worst_hosts ms, to the end of the job $end_hosts ms"
else
    echo "network namespaces are not allowed here: only on one machine"
fi
