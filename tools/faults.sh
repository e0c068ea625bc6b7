#!/bin/sh
# faults.sh [QUICK] -- every fault of docs/design/faults.md that has a test, long: an hour or two. With an argument: a minute or so of the same.
#
# Prints a line for each part, and the output of those that fail. Exit status 1 when one did. ONLY=WORDS: the parts whose name has them.
set -u
cd "$(dirname "$0")/.." || exit
program=build/release/lineshaft tests=build/test/lineshaft-test
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed='' tried=0
if [ $# -gt 0 ]; then randoms=2 kills=5 many=4 hosts=1 seeds=2000 stop=12 wire=frozen; else randoms=200 kills=200 many=50 hosts=5 seeds=100000 stop=60 wire=; fi

part() { # part NAME COMMAND...
    name=$1 began=$(date +%s)
    shift
    case $name in *"${ONLY:-}"*) tried=$((tried + 1)) ;; *) return ;; esac
    if "$@" >"$log" 2>&1; then
        echo "$name: passed, $(($(date +%s) - began)) s: $(tail -n 1 "$log")"
    else
        echo "$name: FAILED, $(($(date +%s) - began)) s"
        sed 's/^/    /' "$log"
        failed="$failed $name"
    fi
}
LINESHAFT=$PWD/$program
export LINESHAFT # not for tests: points that only their build has are armed there

part "drill, three ranks" $program drill --count $randoms
part "drill, one rank" $program drill -n 1 --count $randoms
part "drill, zero 1" $program drill --set mesh.zero=1 --only kill,save,disk --count 3
part "drill, zero 3" $program drill --set mesh.zero=3 --only kill,save,disk --count 3
part "drill, fast sums" $program drill --set train.reduce=fast --only kill,stall --count 3
part "random kills, one in a run" sh bench/heal_kills.sh $kills 1
# One in three seconds or so: three of them without a step in between end a run, as they should.
part "random kills, many in a run" sh bench/heal_kills.sh 1 $many --set heal.restarts=1000000 --set train.steps=$((many * 500)) --set checkpoint.every=1000 --set eval.every=5000
part "random kills, each followed by another" env SECOND=0.3 sh bench/heal_kills.sh $((kills / 4 + 1)) 1 --set heal.restarts=3
part "stopped and going on" sh bench/heal_stops.sh $stop
# shellcheck disable=SC2086
part "packets between hosts" sh bench/wire_faults.sh $wire
part "strangers" sh bench/strangers.sh $((kills * 5000))
part "a scheduler that requeues" sh bench/slurm_requeue.sh
part "hosts that come and go" sh bench/heal_hosts.sh $hosts
part "checkpoints on bad disks" env -u LINESHAFT sh bench/ckpt_faults.sh $randoms
part "succession" env -u LINESHAFT LINESHAFT_SIM_SEEDS=$seeds $tests tests/cluster/test_quorum.c
part "tests of rules and processes" env -u LINESHAFT $tests tests/cluster/ tests/net/ tests/comm/
part "tests of checkpoints" env -u LINESHAFT $tests tests/checkpoint/
part "scripts" env -u LINESHAFT $tests recover_data.sh heal_hosts.sh recover_tensor_pipeline.sh failover.sh clocks.sh jobs_side_by_side.sh recover_zero.sh silent_corruption.sh etcd.sh ckpt_bad_disk.sh pipeline.sh tensor.sh drill.sh preempt.sh resume.sh ckpt_damage.sh ckpt_sharded.sh ckpt.sh launch.sh launchers.sh agent.sh balance.sh \
    --scripts tests/e2e/*.sh
part "rules of membership" sh tools/model.sh
[ $tried -gt 0 ] || { echo "no part has \"$ONLY\" in its name"; exit 2; }
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
echo "all faults that have a test were survived"
