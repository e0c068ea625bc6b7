#!/bin/sh
# flight_recorder.sh -- what a job that failed leaves: the last collectives of each rank, also of one that was killed.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
(umask 077; head -c 32 /dev/urandom >job.secret)

# rank_of PID N: waits until a process below PID is rank N and sets found.
rank_of() {
    for _ in $(seq 1000); do
        for file in $(grep -slzx "LINESHAFT_RANK=$2" /proc/[0-9]*/environ); do
            found=${file#/proc/}
            found=${found%/environ}
            parent=$(cut -d ' ' -f 4 "/proc/$found/stat" 2>/dev/null) # the supervisor
            [ "$(cut -d ' ' -f 4 "/proc/${parent:-none}/stat" 2>/dev/null)" = "$1" ] && return
        done
        sleep 0.02
    done
    fail "rank $2 was not found: $(cat err)"
}
# under_way: until the first row is there, so that collectives have been done.
under_way() {
    for _ in $(seq 1000); do
        grep -q '^all_reduce' out && break
        sleep 0.02
    done
    grep -q '^all_reduce' out || fail "no row came: $(cat out err)"
}
# has FILE TEXT: a line of it matches.
has() { grep -Eq -- "$2" "$1" || fail "$1 has no \"$2\": $(head -n 5 "$1"; tail -n 3 "$1")"; }

# One machine: rank 1 is killed by each signal, in the middle of collectives.
for signal in 9 11; do
    rm -rf boxes
    LINESHAFT_BLACKBOX=boxes "$LINESHAFT" bench comm -n 3 --sizes 1K,4M --tenths 600 >out 2>err &
    pid=$!
    rank_of $pid 1
    under_way
    kill -$signal "$found"
    wait $pid
    [ $? = $((128 + signal)) ] || fail "signal $signal: $(cat err)"
    says "lineshaft: error: rank 1 was killed by signal $signal"
    says 'its last collective: '
    says 'black boxes of 3 ranks: boxes/rank-N.txt'
    [ "$(ls boxes | tr '\n' ' ')" = 'rank-0.txt rank-1.txt rank-2.txt ' ] || fail "$(ls boxes)"
    has boxes/rank-1.txt "^# black box of rank 1 \(pid $found on .*\), written 20..-..-..T..:..:..\....Z\$"
    has boxes/rank-1.txt "^# rank 1 was killed by signal $signal"
    has boxes/rank-1.txt '^ +[0-9]+ +0 all_reduce +f32 +[0-9]+ +[0-9]+ done   20..-..-..T..:..:..\....Z +[0-9]+  node [0-9]+$'
    [ "$(grep -vc '^#' boxes/rank-1.txt)" -le 64 ] || fail "more than 64 lines"
    # The last number of the one that was killed is that of the others, or one less.
    for r in 0 1 2; do awk '!/^#/ { n = $1 } END { print n }' boxes/rank-$r.txt; done |
        awk 'NR == 2 { was = $1 } { if (NR == 1 || $1 > most) most = $1 } END { exit !(was >= most - 1) }' ||
        fail "the black boxes do not agree: $(tail -n 1 boxes/*)"
done

# Two machines (this one, twice), a rank on each: both agents write what they hold.
"$LINESHAFT" bench comm --nodes 2 --listen 127.0.0.1:0 --secret job.secret --sizes 1K,16M --tenths 600 >out 2>err &
pid=$!
address=
for _ in $(seq 1000); do
    address=$(sed -n 's/^lineshaft: waiting for nodes that join //p' err)
    [ -n "$address" ] && break
    sleep 0.02
done
mkdir other
env -C other "$LINESHAFT" agent --join "$address" --secret ../job.secret >out2 2>err2 &
agent=$!
rank_of $agent 1
under_way
kill -9 "$found"
wait $agent
[ $? = 137 ] || fail "the agent of the killed rank: $(cat err2)"
wait $pid
[ $? = 137 ] || fail "the other machine: $(cat err)"
has err2 'black box of 1 rank: lineshaft-blackbox/rank-N.txt'
has err 'black box of 1 rank: lineshaft-blackbox/rank-N.txt'
has other/lineshaft-blackbox/rank-1.txt 'all_reduce .* comm 1$'
has lineshaft-blackbox/rank-0.txt ' (failed|done) .* comm 1$'
[ ! -e lineshaft-blackbox/rank-1.txt ] || fail "a machine wrote the other's"

# Nothing where nothing happened, was asked for, or can be written.
rm -rf lineshaft-blackbox
run 2 "$LINESHAFT" bench comm -n 2 --op none
LINESHAFT_BLACKBOX=off "$LINESHAFT" bench comm -n 2 --sizes 1K,4M --tenths 600 >out 2>err &
pid=$!
rank_of $pid 1
under_way
kill -9 "$found"
wait $pid
if grep -q 'black box' err; then fail "black boxes are off: $(cat err)"; fi
[ ! -e lineshaft-blackbox ] || fail "a folder for nothing"
: >file
LINESHAFT_BLACKBOX=file/x "$LINESHAFT" bench comm -n 2 --sizes 1K,4M --tenths 600 >out 2>err &
pid=$!
rank_of $pid 1
under_way
kill -9 "$found"
wait $pid
[ $? = 137 ] || fail "a folder that cannot be made: $(cat err)"
says 'the black boxes are lost: '
