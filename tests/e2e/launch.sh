#!/bin/sh
# launch.sh -- somebody's program as ranks: output, exit codes, first cause, kill -9, nothing left.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
LS_E2E=launch.$$
export LS_E2E

# alive: processes that come from this test and are not this shell or the ones that look for them.
alive() {
    for file in $(grep -slzxF "LS_E2E=$LS_E2E" /proc/[0-9]*/environ); do
        dir=${file%/environ}
        comm=$(cat "$dir/comm" 2>/dev/null)
        case $comm in '' | launch.sh | sh | grep | cat) # gone, or part of this search
            [ "$(cut -d ' ' -f 4 "$dir/stat" 2>/dev/null)" = $$ ] && continue
            [ "${dir#/proc/}" = $$ ] || [ -z "$comm" ] || [ "$comm" = grep ] && continue ;;
        esac
        echo "${dir#/proc/} $comm"
    done
}
no_left() {
    left=$(alive)
    [ -z "$left" ]
}
none_alive() { eventually no_left || fail "left behind: $left"; }

# Places and labels.
run 0 "$LINESHAFT" launch -n 3 -- sh -c 'echo "$RANK of $WORLD_SIZE"; echo e >&2'
for r in 0 1 2; do
    grep -qx "\[$r\] $r of 3" out || fail "rank $r did not say where it is"
    grep -qx "\[$r\] e" err || fail "rank $r did not reach standard error"
done
# Flags behind the command are the command's, with and without "--".
run 0 "$LINESHAFT" launch -n 1 echo -n --help -- x
says '[0] --help -- x'
run 0 "$LINESHAFT" launch --ranks=1 -- sh -c 'echo "$#"' a -- b c
says '[0] 3'

# Exit codes are those of the first failure.
run 7 "$LINESHAFT" launch -n 4 sh -c 'if [ $RANK = 2 ]; then echo oops >&2; exit 7; fi; sleep 60'
says 'lineshaft: error: rank 2 ended with exit code 7'
says '    oops'
says 'and 3 others that were stopped'
run 139 "$LINESHAFT" launch -n 2 sh -c 'ulimit -c 0; [ $RANK = 1 ] && kill -SEGV $$; sleep 60'
says 'rank 1 was killed by signal 11'
none_alive

# Our own commands hand over their sentence, and the launcher shows it once.
run 2 "$LINESHAFT" launch -n 3 -- "$LINESHAFT" config check no-such-run.yaml
[ "$(grep -c no-such-run.yaml err)" = 1 ] || fail "the cause is not shown once"
grep -q '^lineshaft: error: rank [0-2]: ' err || fail "the cause has no rank"
# A command on the way to the real work speaks for itself.
run 0 "$LINESHAFT" launch -n 1 -- sh -c "'$LINESHAFT' config check no-such-run.yaml; true"
says '[0] lineshaft: error: '

# What cannot be started.
run 2 "$LINESHAFT" launch -n 0 -- true
says 'at least 1 process'
run 2 "$LINESHAFT" launch -n 10000 -- true
says 'cannot start 10000 processes here: at most'
run 2 "$LINESHAFT" launch -n x -- true
says '--ranks must be a whole number'
run 2 "$LINESHAFT" launch -n 2 -- no-such-command
says 'the command "no-such-command" is not found in PATH'
run 2 "$LINESHAFT" launch -n 2
says 'needs -- COMMAND'
run 2 "$LINESHAFT" launch -n 2 --grace 0 -- true
says '--grace must be'

# Logs hold the bytes as they were written, next to those of an earlier run.
run 0 "$LINESHAFT" launch -n 2 --log-dir logs -- sh -c 'printf "a\n\nb$RANK"; echo e >&2; sleep 0.1'
run 0 "$LINESHAFT" launch -n 2 --log-dir logs -- echo again
printf 'a\n\nb1e\nagain\n' >want1
printf 'e\na\n\nb1again\n' >want2
cmp -s logs/rank-1.log want1 || cmp -s logs/rank-1.log want2 || fail "logs/rank-1.log is not as written"

# A reader that goes away ends everything, quietly.
{ "$LINESHAFT" launch -n 2 -- yes; echo $? >code; } 2>err | head -n 3 >out
[ "$(cat code)" = 141 ] || fail "exit $(cat code) after the reader went away"
[ ! -s err ] || fail "said something to a reader that went away"
none_alive

# kill -9 of the launcher, at different moments: ranks and what they started die with it.
for ms in 0.00 0.01 0.03 0.1 0.3; do
    "$LINESHAFT" launch -n 3 -- sh -c 'sleep 60 & setsid sleep 60 & (sleep 60 &) ; sleep 60' &
    pid=$!
    sleep $ms
    kill -9 $pid
    wait $pid 2>/dev/null
    none_alive
done

# SIGTERM is passed on; ranks may take their time to save.
"$LINESHAFT" launch -n 2 -- sh -c 'trap "sleep 0.3; echo saved >saved\$RANK; exit 0" TERM; >up$RANK
    while :; do sleep 0.05; done' >out 2>err &
pid=$!
while [ ! -e up0 ] || [ ! -e up1 ]; do sleep 0.02; done
kill -TERM $pid
wait $pid
[ $? = 130 ] || fail "SIGTERM did not give 130"
[ -s saved0 ] && [ -s saved1 ] || fail "a rank could not save"
says 'lineshaft: stopped: stopped on request (SIGTERM)'
none_alive

# A launch inside of a launch: the inner places count.
run 0 "$LINESHAFT" launch -n 2 -- "$LINESHAFT" launch -n 2 -- sh -c 'echo "$RANK/$WORLD_SIZE"'
[ "$(grep -cx '\[[01]\] \[1\] 1/2' out)" = 2 ] || fail "inner ranks do not know their places"
none_alive

# Started again: as a whole, with the count in its environment; not when it fails in the same way twice, nor more often than allowed.
cat >again.sh <<'SH'
echo "attempt $LINESHAFT_RESTARTS of $TORCHELASTIC_MAX_RESTARTS, rank $RANK of $WORLD_SIZE at $MASTER_ADDR" >>"told$RANK"
[ "$TORCHELASTIC_RESTART_COUNT" = "$LINESHAFT_RESTARTS" ] || exit 99
[ $RANK = 1 ] || [ "$LINESHAFT_RESTARTS" -ge "$2" ] || exec sleep 30
case $1 in
third) [ "$LINESHAFT_RESTARTS" -ge 2 ] || { echo "broken for the $LINESHAFT_RESTARTS. time" >&2; exit 7; } ;;
same) echo "always the same" >&2; exit 7 ;;
new) echo "broken at $LINESHAFT_RESTARTS" >&2; exit 7 ;;
killed) [ "$LINESHAFT_RESTARTS" -ge 3 ] || kill -9 $$ ;;
esac
exit 0
SH
run 0 "$LINESHAFT" launch -n 2 --restarts 3 -- sh again.sh third 2
says 'rank 1 ended with exit code 7'
says 'started again (2 of 3)'
[ "$(cat told1)" = "$(for i in 0 1 2; do echo "attempt $i of 3, rank 1 of 2 at 127.0.0.1"; done)" ] || fail "$(cat told1)"
run 10 "$LINESHAFT" launch -n 2 --restarts 9 -- sh again.sh same 99
says 'the same error came twice in a row: not started again'
run 7 "$LINESHAFT" launch -n 2 --restarts 2 -- sh again.sh new 99
says 'it was started again 2 times'
run 0 "$LINESHAFT" launch -n 2 --restarts 3 -- sh again.sh killed 3
run 7 "$LINESHAFT" launch -n 2 -- sh again.sh new 99
run 2 "$LINESHAFT" launch --restarts x -- true
run 2 "$LINESHAFT" launch --restarts 2 --listen 127.0.0.1:0 --secret s -- true
says '--restarts is for one machine'
none_alive
