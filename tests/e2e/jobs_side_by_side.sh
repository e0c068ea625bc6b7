#!/bin/sh
# jobs_side_by_side.sh -- several jobs on one machine: none disturbs another, a folder has one writer, what a killed job has left is in
# nobody's way, a port that is taken is named, and nothing is killed that is not the job's own.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)
sleep 600 & # somebody else's
foreign=$!
job=first.$$ # no other test has such a folder
trap 'kill $foreign 2>/dev/null' EXIT

# long OUT: a run of two ranks in the background that does not end by itself; sets pid.
long() {
    "$LINESHAFT" train run.yaml -n 2 --json --set "out=$1" --set train.steps=100000 --set checkpoint.every=20 >"out.$1" 2>"err.$1" &
    pid=$!
    grows "$1" || fail "$1 does not train: $(cat "err.$1")"
}
# grows OUT: it trains on, some steps more than now.
steps_of() {
    n=$(grep -c '"event":"step"' "$1/events.jsonl" 2>/dev/null)
    echo "${n:-0}"
}
more() { [ "$(steps_of "$who")" -gt $((at + 5)) ]; }
grows() {
    who=$1 at=$(steps_of "$1")
    eventually more
}

# While one job trains: another in a folder of its own is as if it were alone, also when it loses a rank; one in the same folder is refused by
# name; somebody's program runs beside them.
long $job
first=$pid
go 0 second 3 12:KILL:1
same second
for n in 1 2; do
    run 6 "$LINESHAFT" train run.yaml -n $n --set out=$job
    says "another run is using \"$job\""
    says 'give this run a folder of its own with out: or'
done
run 0 "$LINESHAFT" launch -n 3 -- sh -c 'echo "$RANK of $WORLD_SIZE"'
says '[2] 2 of 3'

# The first job is killed with all that it has, as by a machine that has no memory left. Its neighbour is not.
long third
third=$pid
kill -9 $first
wait $first 2>/dev/null
no_ranks() { [ -z "$(grep -slzx "[o]ut=$job" /proc/[0-9]*/cmdline)" ]; } # the words of a rank are those of its job
eventually no_ranks || fail "ranks of a killed job are left"
grows third || fail "its neighbour stopped too: $(cat err.third)"
! grep -q '"event":"incident"' third/events.jsonl || fail "its neighbour was hurt: $(grep incident third/events.jsonl)"
# What it left is in nobody's way: the same folder goes on from its newest checkpoint.
long $job
kill -TERM $pid
wait $pid
[ $? = 130 ] || fail "gone on with, then stopped: $(cat err.$job)"
run 0 "$LINESHAFT" ckpt verify $job
kill -TERM $third
wait $third
[ $? = 130 ] || fail "the neighbour, asked to stop: $(cat err.third)"

# The port where nodes should join is taken.
(umask 077; head -c 32 /dev/urandom >job.secret)
cat >taken.py <<'PY'
import socket, sys, time
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
open("port.new", "w").write(str(s.getsockname()[1]))
__import__("os").rename("port.new", "port")
time.sleep(600)
PY
python3 taken.py &
taken=$!
trap 'kill $foreign $taken 2>/dev/null' EXIT
eventually test -e port || fail "no port"
run 3 "$LINESHAFT" train run.yaml --nodes 2 --listen "127.0.0.1:$(cat port)" --secret job.secret --set out=port-taken
says "cannot listen at 127.0.0.1:$(cat port): Address already in use"
[ ! -e port-taken ] || fail "a folder was made"
kill -0 $foreign || fail "somebody else's process was killed"
kill -0 $taken || fail "who had the port was killed"
