#!/bin/sh
# failover.sh -- the coordinator of a run over several hosts of a lab is killed, or cut off: another one takes over, and the run ends
# with the losses and weights of the undisturbed run. Where too few are left, it ends and says so.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
need_hosts
small_run
export LINESHAFT LINESHAFT_STATE="$PWD/state"
(umask 077; head -c 32 /dev/urandom >job.secret)

# A host of the lab: the first one trains on $FIRST hosts, the next ones join at once, the others when a file tells them. All write
# results to one pipe: only the first rank has some.
cat >host.sh <<'SH'
#!/bin/sh
me=$LINESHAFT_LAB_NODE secret=$PWD/job.secret first=${LINESHAFT_LAB_ADDRESSES%% *}:7001
all=$(echo "$LINESHAFT_LAB_ADDRESSES" | sed 's/ /:7001,/g'):7001
if [ "$me" -ge "$FIRST" ]; then
    i=0
    until [ -e "$OUT.come$me" ]; do
        i=$((i + 1))
        [ $i -lt 20000 ] || exit 9
        [ ! -e "$OUT.over" ] || exit 0
        sleep 0.02
    done
fi
echo $$ >"$OUT.pid$me"
if [ "$me" = 0 ]; then
    # shellcheck disable=SC2086
    exec "$LINESHAFT" train run.yaml --json -n 1 --nodes "$FIRST" --listen "$first" --secret "$secret" --wait 120 \
        --set out="$OUT" $SET >"$OUT.fifo" 2>"$OUT.err0"
fi
if [ -n "${BY_HAND:-}" ]; then # does not look for the job when it has lost it
    # shellcheck disable=SC2086
    "$LINESHAFT" train run.yaml --json -n 1 --join "$first" --secret "$secret" --set out="$OUT" $SET >"$OUT.fifo" 2>"$OUT.err$me" &
else
    "$LINESHAFT" agent --join "$all" --secret "$secret" --wait 120 -n 1 >"$OUT.fifo" 2>"$OUT.err$me" &
fi
echo $! >"$OUT.pid$me"
wait $!
code=$?
echo $code >"$OUT.code$me"
exit $code
SH
chmod +x host.sh

# lab OUT HOSTS FIRST PLAN...: a run in a lab, to which the plan happens.
lab() {
    OUT=$1 FIRST=$3 hosts=$2
    export OUT FIRST SET
    shift 3
    in_lab "$OUT" "$hosts" "$@"
    driven=$?
    cat "$OUT".err* >"$OUT.err"
    ! grep -q 'ERROR\|Sanitizer' "$OUT.err" "$OUT.lab" || fail "$OUT: $(cat "$OUT.err" "$OUT.lab")"
    return $driven
}
# go: the same, and it must end well, with the weights it must have.
go() {
    lab "$@" || fail "$1: $(cat "$1.drive" "$1.err" "$1.lab")"
    as_alone "$OUT"
    ! grep -q '"source":"checkpoint"\|"redone":[1-9]' "$OUT.jsonl" || fail "$OUT: $(grep '"generation":' "$OUT.jsonl")"
    grep '"kind":"lost"' "$OUT.jsonl" >lost || fail "$OUT: nothing was lost: $(cat "$OUT.err")"
    echo "    $OUT: $(head -n 1 "$OUT.drive"), $(sed -n '1s/.*\("redone":.*\)}/\1/p' lost)"
}

SET="--set train.steps=120 --set heal.dead=30 --set heal.grow_wait=0 --set heal.grow_steps=2"
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json --set out=alone $SET
losses >want
hash=$(field summary weights_hash)

# The first of three machines dies: one of the others coordinates. A fourth joins that one; then it dies, too, or the other: of three
# machines two go on.
go killed 4 3 12:host:0 =2:come:3 =3:host:1 =2:none:0
sed -n 1p lost | grep -q '"text":"node 0 (lab0), the coordinator, was lost: .*; node [12] (lab[12]) took over' || fail "$(cat lost)"
grep -q 'lineshaft: warning: node 0 (lab0).* took over, at 10\..*:7001$' killed.err || fail "$(cat killed.err)"
[ -z "$(ls state)" ] || [ "$(find state -name '*.vote' | wc -l)" -le 2 ] || fail "promises are left: $(ls state)"

# It is cut off instead: silent for heal.dead seconds. Its side ends, because it does not know what the others do.
SET="--set train.steps=120 --set heal.dead=4 --set heal.grow_wait=0 --set heal.grow_steps=2"
go cut 3 3 12:down:0 =2:none:0
grep -q 'this node has lost more than half of the nodes' cut.err0 || fail "$(cat cut.err0)"

# Four machines with two pipelines: a pipeline is left, and a machine that waits; when the successor dies it takes its
# place, and what nobody has any more comes from disk.
SET="--set train.steps=120 --set heal.dead=30 --set mesh.pp=2 --set checkpoint.every=5"
lab pipelines 4 4 12:host:0 =2:none:0 40:host:successor =2:none:0 || fail "pipelines: $(cat pipelines.drive pipelines.err)"
[ "$(field summary weights_hash pipelines.jsonl)" = "$hash" ] || fail "pipelines: other weights: $(cat pipelines.err)"
losses pipelines/events.jsonl | sort -nu | cmp -s want - || fail "pipelines: other losses: $(cat pipelines.err)"
[ "$(grep -c '"kind":"lost".*the coordinator, was lost.*"ranks":2' pipelines.jsonl)" = 2 ] || fail "pipelines: $(grep incident pipelines.jsonl)"

# Of two machines the other one cannot know whether the first lives.
BY_HAND=1
export BY_HAND
lab two 2 2 12:host:0 || fail "two: $(cat two.drive two.err)"
grep -q 'the first node (.*) went away' two.err1 || fail "$(cat two.err1)"
[ "$(cat two.code1)" = 9 ] || fail "two: exit $(cat two.code1)"
! grep -q '"event":"summary"' two.jsonl || fail "two: it went on"

# And on purpose.
TMPDIR="$PWD"
export TMPDIR
run 0 "$LINESHAFT" drill --only kill.host --steps 8
grep -q '^kill.host       pass .* memory' out || fail "$(cat out)"
