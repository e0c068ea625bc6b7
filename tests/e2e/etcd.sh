#!/bin/sh
# etcd.sh -- heal.quorum: etcd: a run that one job writes at a time, first ranks that die, servers that stop, a job that is overtaken.
. "$LINESHAFT_ROOT/tests/lib.sh"
if ! { command -v etcd && command -v etcdctl; } >/dev/null; then
    echo "etcd is not here (Debian packages etcd-server, etcd-client)"
    exit 77
fi
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
hash=$(field summary weights_hash)

# A server on ports that are free.
ports=$(python3 -c 'import socket
s = [socket.socket() for _ in "ab"]
for x in s:
    x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])')
url=http://127.0.0.1:${ports% *}
peer=http://127.0.0.1:${ports#* }
etcd --name e --data-dir e.etcd --listen-client-urls "$url" --advertise-client-urls "$url" --listen-peer-urls "$peer" \
    --initial-advertise-peer-urls "$peer" --initial-cluster "e=$peer" --logger zap --log-level error >etcd.log 2>&1 &
etcd=$!
job=
trap 'kill -CONT $etcd; kill -9 $etcd $job 2>/dev/null' EXIT
export ETCDCTL_API=3
ctl() { etcdctl --endpoints "$url" "$@"; }
eventually ctl endpoint health >health 2>&1 || fail "etcd did not start: $(cat etcd.log health)"
cat >>run.yaml <<YAML
heal: {quorum: etcd, etcd: ["$url"]}
YAML

# Alone, and as ranks whose first one dies: the same weights, every commit with a token, and nothing is held afterwards.
run 0 "$LINESHAFT" train run.yaml --json --set out=one
[ "$(field summary weights_hash)" = "$hash" ] || fail "other weights"
ctl get --prefix lineshaft/small --print-value-only >keys
grep -q '^40 1 ' keys || fail "no token of step 40: $(cat keys)"
ctl get --prefix lineshaft/small --keys-only | grep leader && fail "the run is still held"
"$LINESHAFT" train run.yaml -n 3 --json --set out=ranks >out 2>err &
job=$!
await_step ranks 12 $job
kill_rank ranks 0
wait $job || fail "exit $?: $(cat err)"
[ "$(field summary weights_hash)" = "$hash" ] || fail "other weights of ranks: $(cat err)"
run 0 "$LINESHAFT" ckpt verify ranks

# A second job of the same run is refused, by name, while the first one goes on.
slow="--set train.steps=100000 --set checkpoint.every=0"
# shellcheck disable=SC2086
"$LINESHAFT" train run.yaml -n 2 --json --set out=long $slow >out.long 2>err.long &
job=$!
await_step long 3 $job
run 6 "$LINESHAFT" train run.yaml -n 2 --set out=long
says "is being written by another job (on "
says "pid $job"
# Without etcd for a while: steps go on.
kill -STOP $etcd
sleep 1
at=$(grep -c '"event":"step"' long/events.jsonl)
more() { [ "$(grep -c '"event":"step"' long/events.jsonl)" -gt $((at + 5)) ]; }
eventually more || fail "training waits for etcd"
kill -CONT $etcd
kill -TERM $job
wait $job
# Nor does a checkpoint that waits for it make training wait, or the next one: that is left out, and said. Alone and in parts.
for n in 1 2; do
    "$LINESHAFT" train run.yaml -n $n --json --set out=due$n --set train.steps=100000 --set checkpoint.every=5 --set heal.mode=off >out.due 2>err.due &
    job=$!
    await_step due$n 6 $job
    kill -STOP $etcd
    from=$(grep -c '"event":"step"' due$n/events.jsonl)
    left_out() { grep -q '"kind":"checkpoint".*\(still waits for etcd\|still running\)' due$n/events.jsonl; }
    eventually left_out || fail "a checkpoint was not left out: $(cat err.due)"
    far() { [ "$(grep -c '"event":"step"' due$n/events.jsonl)" -gt $((from + 40)) ]; }
    eventually far || fail "training waits for etcd: $(cat err.due)"
    kill -CONT $etcd
    kill -TERM $job
    wait $job
done
# shellcheck disable=SC2086
"$LINESHAFT" train run.yaml -n 2 --json --set out=long $slow >out.long 2>err.long &
job=$!
before=$(grep -c '"event":"step"' long/events.jsonl)
begun() { [ "$(grep -c '"event":"step"' long/events.jsonl)" -gt "$before" ]; }
eventually begun || fail "not gone on: $(cat err.long)"
# Another job has become the owner: this one commits nothing any more, and stops.
for key in $(ctl get --prefix lineshaft/small --keys-only | grep owner); do ctl put "$key" "thief on h9, pid 1" >/dev/null; done
for key in $(ctl get --prefix lineshaft/small --keys-only | grep leader); do ctl del "$key" >/dev/null; done
for lease in $(ctl lease list | grep -v found); do ctl lease revoke "$lease" >/dev/null; done
wait $job && fail "a job that was overtaken ended well"
job=
grep -q 'another job (on h9, pid 1) has taken over run "small-' err.long || fail "not said: $(cat err.long)"

# Bad input, and nobody there.
run 2 "$LINESHAFT" train run.yaml --set heal.etcd=[]
says "heal.quorum is etcd but heal.etcd is []"
run 2 "$LINESHAFT" train run.yaml --set 'heal.etcd=[127.0.0.1:2379]'
says 'heal.etcd has "127.0.0.1:2379", which is no URL'
run 2 "$LINESHAFT" train --set 'heal.etcd=[http://127.0.0.1:2379]'
says "no etcd server is used"
