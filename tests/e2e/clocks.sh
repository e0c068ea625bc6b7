#!/bin/sh
# clocks.sh -- clocks that jump, and machines whose clocks differ: nothing is decided by the time of day, and nobody compares its
# clock with that of another machine.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
jumps=$LINESHAFT_ROOT/build/test/libfake_clock.so
[ -e "$jumps" ] || fail "there is no $jumps"
small_run
sed -i 's/steps: 40/steps: 28/' run.yaml
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)

# The clock on the wall jumps by an hour, to and fro: a run that saves and loses a rank is the same run.
LD_PRELOAD=$jumps python3 -c 'import time
times = []
for _ in range(30):
    times.append(time.time())
    time.sleep(0.05)
assert max(times) - min(times) > 3000, times' || fail "the clock does not jump"
LD_PRELOAD=$jumps go 0 jumps 3 12:KILL:1 --set checkpoint.every=5
same jumps
[ "$(grep -c '"event":"incident"' jumps.jsonl) $(incident jumps source)" = "1 memory" ] || fail "$(grep incident jumps.jsonl)"
run 0 "$LINESHAFT" ckpt verify jumps

# Two machines, of which one has been up for a week longer. Both are this one, by loopback; the second has a clock of its own.
if ! unshare --time --fork --monotonic 604800 --boottime 604800 true 2>/dev/null; then
    echo "time namespaces are not allowed here: clocks that differ are not tried"
    exit 0
fi
(umask 077; head -c 32 /dev/urandom >job.secret)
"$LINESHAFT" train run.yaml --json -n 1 --nodes 2 --listen 127.0.0.1:0 --secret job.secret --wait 60 --set out=week >out 2>err &
first=$!
for _ in $(seq 1000); do
    address=$(sed -n 's/^lineshaft: waiting for nodes that join //p' err)
    [ -n "$address" ] && break
    sleep 0.02
done
unshare --time --kill-child --monotonic 604800 --boottime 604800 "$LINESHAFT" agent --join "$address" --secret job.secret -n 1 >out1 2>err1 ||
    fail "the second machine: $(cat err1 err)"
wait $first || fail "the first machine: $(cat err)"
losses >got
cmp -s want got || fail "other losses: $(diff want got | head -n 4)"
[ "$(field summary weights_hash)" = "$hash" ] || fail "other weights"
! grep -q '"event":"incident"' out || fail "$(grep incident out)"
