#!/bin/sh
# leftovers.sh -- jobs are killed (kill -9 of the agent, of a rank, of everything) at moments spread over start, training and saving.
# The next start removes what they left: the coordinator's log and its lock, temporary files of the run folder. What lives stays.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
export LINESHAFT_STATE="$PWD/state" TMPDIR="$PWD/tmp"
mkdir tmp
small_run
(umask 077; head -c 32 /dev/urandom >job.secret)

# Two ranks and a coordinator.
JOB="train run.yaml -n 2 --nodes 1 --listen 127.0.0.1:0 --secret job.secret --set train.steps=100000000"

# descendants PID: it and all below it.
descendants() {
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        descendants "$child"
    done
}

gone() {
    for p in $all; do
        [ ! -e "/proc/$p" ] || [ "$(sed 's/.*) //; s/ .*//' "/proc/$p/stat" 2>/dev/null)" = Z ] || return 1
    done
}

shm() {
    find /dev/shm -name "*lineshaft*" | wc -l
}
shm_before=$(shm)

# A job that lives through all of it; what it has must stay.
# shellcheck disable=SC2086
"$LINESHAFT" $JOB --set out=living >living.out 2>&1 &
living=$!
trap 'kill -9 $living 2>/dev/null' EXIT
eventually test -s living/events.jsonl || fail "the living job does not start: $(cat living.out)"
find state -type f | sort >its_files
[ "$(wc -l <its_files)" -ge 3 ] || fail "the living job has $(cat its_files)"

killed=0
for wait in 0.02 0.1 0.2 0.3 0.45 0.6 0.8 1.0 1.3 1.7; do
    # shellcheck disable=SC2086
    "$LINESHAFT" $JOB --set out=killed --set checkpoint.every=1 >out 2>err &
    agent=$!
    sleep $wait
    all=$(descendants $agent)
    case $((killed % 3)) in
    0) kill -9 $agent ;;
    1) # shellcheck disable=SC2086
        kill -9 $all 2>/dev/null ;;
    2) kill -9 "$(echo "$all" | tail -n 1)" $agent 2>/dev/null ;;
    esac
    wait $agent 2>/dev/null
    eventually gone || fail "after kill -9 processes live: $(ps -o pid,ppid,stat,args -p "$(echo "$all" | paste -sd,)")"
    killed=$((killed + 1))
done
echo "left by $killed kills: $(find state killed | grep -E '\.wal|\.vote|\.seen|\.tmp' | grep -vxFf its_files | wc -l) files" >report
# as a kill in the middle of an atomic write leaves them
(sh -c 'echo $$' >dead)
touch "killed/.seen-1.tmp.$(cat dead)" "killed/checkpoints/generation.tmp.$(cat dead)"

# A job that ends with an error, and the next one.
# shellcheck disable=SC2086
run 7 env LINESHAFT_FAULT=train.nonfinite@5 "$LINESHAFT" $JOB --set out=wrong
# only_living WHEN: the state folder has nothing but the files of the living job.
only_living() {
    find state -type f | sort >after
    cmp -s its_files after || fail "$1: left: $(diff its_files after) ($(cat report))"
}
only_living "after an error"
# shellcheck disable=SC2086
run 0 "$LINESHAFT" $JOB --set out=killed --set checkpoint.every=1 --set train.seconds=1
only_living "after the next job"
[ -z "$(find killed wrong -name '.seen*' -o -name '*.tmp*')" ] || fail "left: $(find killed wrong -name '.seen*' -o -name '*.tmp*')"
[ "$(shm)" = "$shm_before" ] || fail "left in /dev/shm: $(ls /dev/shm)"
[ -z "$(ls tmp)" ] || fail "left in TMPDIR: $(ls tmp)"

kill -TERM $living
wait $living
[ -z "$(ls state)" ] || fail "left: $(ls state)"
