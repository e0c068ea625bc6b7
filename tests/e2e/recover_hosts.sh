#!/bin/sh
# recover_hosts.sh -- machines that die, are cut off and come: a run over several hosts of a lab goes on, and ends with the losses
# and weights of the undisturbed run. bench/heal_hosts.sh has more of it, and measures.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
need_hosts
small_run
# Signs of life are looked at generously: this machine may have no time for seconds.
SET="--set train.steps=120 --set heal.dead=30 --set heal.grow_wait=0 --set heal.grow_steps=2"
export LINESHAFT
(umask 077; head -c 32 /dev/urandom >job.secret)

# A host of the lab: the first one trains on $FIRST hosts, the next ones join at once, the others when a file tells them.
cat >host.sh <<'SH'
#!/bin/sh
me=$LINESHAFT_LAB_NODE first=${LINESHAFT_LAB_ADDRESSES%% *}:7001 secret=$PWD/job.secret
if [ "$me" = 0 ]; then
    # shellcheck disable=SC2086
    exec "$LINESHAFT" train run.yaml --json -n "$RANKS" --nodes "$FIRST" --listen "$first" --secret "$secret" --wait 120 \
        --set out="$OUT" $SET >"$OUT.fifo" 2>"$OUT.err"
fi
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
[ "$me" != "${ELSEWHERE:-}" ] || cd elsewhere || exit 9
exec "$LINESHAFT" agent --join "$first" --secret "$secret" --wait 120 -n "$RANKS"
SH
chmod +x host.sh

# go OUT HOSTS FIRST RANKS PLAN...: a run in a lab, to which the plan happens; it must end well, with the weights it must have.
go() {
    OUT=$1 FIRST=$3 RANKS=$4
    export OUT FIRST RANKS SET
    hosts=$2
    shift 4
    in_lab "$OUT" "$hosts" "$@" || fail "$OUT: $(cat "$OUT.drive" "$OUT.err" "$OUT.lab")"
    as_alone "$OUT"
    ! grep -q 'ERROR\|Sanitizer' "$OUT.err" "$OUT.lab" || fail "$OUT: $(cat "$OUT.err" "$OUT.lab")"
}
# is KEY VALUE...: of the last change of this run's members.
is() {
    grep '"generation":' "$OUT.jsonl" >changes
    while [ $# -gt 0 ]; do
        [ "$(field incident "$1" changes)" = "$2" ] || fail "$OUT: $1 is not $2: $(cat changes "$OUT.err")"
        shift 2
    done
}

# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json --set out=alone $SET
losses >want
hash=$(field summary weights_hash)

# A worker of the second host is killed: started again there, from the memory of the others. Once more: that host is not used
# again, and a third one, which was one too many, takes its place.
plain=$SET
SET="$SET --set heal.max_nodes=2"
go worker 3 2 2 8:come:2 12:kill:3 40:kill:2 60:none:0 =4:none:0
is ranks 4 source memory redone 0
sed -n 1p changes >first
grep -q '"text":"rank 3 on lab1 was killed by signal 9.*"ranks":4,"restarted":1,"lost":0,' first || fail "$(cat first)"
grep -q '(lab1) is sent away: .*killed by signal 9.*; in quarantine: lab1' worker.err || fail "$(cat worker.err)"
grep '"event":"rank"' worker/events.jsonl | tail -n 4 | grep -c '"host":"lab2"' | grep -qx 2 || fail "lab2 did not take its place"

# Two hosts, four, three (one is destroyed), one, and four again; one that is not like the others is refused by name.
mkdir elsewhere
sed 's/seed: 3/seed: 4/' run.yaml >elsewhere/run.yaml
ELSEWHERE=7 SET="$plain --set mesh.zero=1" # whose parts are cut anew each time
export ELSEWHERE
go size 8 2 1 8:come:2 8:come:3 =4:host:3 =3:come:7 =3:gone:7 =3:host:1 =2:host:2 =1:come:4 =1:come:5 =1:come:6 =4:none:0
is kind joined ranks 4 source memory redone 0
for host in 1 2 3; do
    grep -q "(lab$host) was lost" size.err || fail "lab$host is not missed: $(cat size.err)"
done
grep -q 'lab7 differs from the first node in: train (' size.lab || fail "$(cat size.lab size.err)"
! grep -q '"source":"checkpoint"\|"redone":[1-9]' size.jsonl || fail "something was done again: $(grep '"generation":' size.jsonl)"

# The link of a host is cut: it is lost after a while; when it is back, it comes as a newcomer.
SET="--set train.steps=120 --set heal.dead=4 --set heal.grow_wait=0 --set heal.grow_steps=2"
go cut 2 2 1 8:down:1 =1:up:1 =2:none:0
is kind joined ranks 2

# A pipeline over four hosts, a rank on each. One is destroyed: of the two pipelines one goes on, and the rank that is left of the
# other waits; with a newcomer it makes a pipeline again. Once more without a newcomer: the rank that waits ends well with the others.
SET="$plain --set mesh.pp=2"
go stages 5 4 1 8:host:3 =2:come:4 =4:none:0
is kind joined ranks 4 source memory redone 0
go waits 4 4 1 8:host:3 =2:none:0
is kind lost ranks 2 source memory from replica
