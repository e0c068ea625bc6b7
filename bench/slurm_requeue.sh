#!/bin/sh
# slurm_requeue.sh -- a real Slurm takes the machine away: a job that is requeued in the middle goes on and ends with the weights of the
# undisturbed run; one that is requeued when it was finished ends well at once. Row 31 of the table of faults. Needs root and Slurm.
set -u
LINESHAFT_ROOT=$(cd "$(dirname "$0")/.." && pwd)
LINESHAFT=${LINESHAFT:-$LINESHAFT_ROOT/build/release/lineshaft}
export LINESHAFT_ROOT LINESHAFT
work=$(mktemp -d)
cd "$work" || exit
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
# shellcheck source=tests/slurm.sh
. "$LINESHAFT_ROOT/tests/slurm.sh"
slurm_is_here || { rm -rf "$work"; echo "left out: no Slurm here, or not root"; exit 0; }
# shellcheck disable=SC2086
trap 'kill $daemons 2>/dev/null; wait; rm -rf "$work"' EXIT
slurm_up || fail "Slurm does not start: $(tail -n 3 "$slurm"/*.log "$slurm"/*.out)"
small_run
sed -i 's/steps: 40/steps: 3000/' run.yaml
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
hash=$(field summary weights_hash)
cat >fault_lib.sh <<SH2
#!/bin/sh
exec $LINESHAFT train run.yaml -n 2 --json --set out=job --set checkpoint.grace=20 --set checkpoint.every=500
SH2
# state WORD...: of the job; after a requeue it may begin when its credential has run out.
state() {
    scontrol update JobId="$id" StartTime=now 2>/dev/null || true
    word=$(scontrol show job "$id" 2>/dev/null | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p')
    for want in "$@"; do [ "$word" != "$want" ] || return 0; done
    return 1
}
starts() { [ "$(grep -c '"event":"start"' job/events.jsonl 2>/dev/null)" = "$1" ] && [ "$(tail -n 1 job/events.jsonl | grep -c '"event":"step"')" = 1 ]; }
until_so() { for _ in 1 2 3 4 5 6; do eventually "$@" && return 0; done; return 1; }
id=$(sbatch --parsable --requeue --open-mode=append -n 1 -c 2 -o job.out -e job.err --chdir "$PWD" fault_lib.sh)
until_so starts 1 || fail "the job does not begin: $(cat job.err; scontrol show job "$id")"
scontrol requeue "$id"
until_so starts 2 || fail "it does not go on: $(cat job.err; scontrol show job "$id")"
until_so state COMPLETED || fail "it does not end well: $(cat job.err; scontrol show job "$id")"
[ "$(field summary weights_hash job/events.jsonl)" = "$hash" ] || fail "other weights: $(cat job.err)"
[ "$(field start first_step job/events.jsonl)" -gt 0 ] || fail "it began anew"
grep -q 'is saved in' job.err || fail "it was not asked to stop in time: $(cat job.err)"
grep -c . job.out >before
scontrol requeue "$id"
more_lines() { [ "$(grep -c . job.out)" -gt "$(cat before)" ]; }
until_so more_lines || fail "the finished job was not started again: $(scontrol show job "$id")"
until_so state COMPLETED || fail "the finished job: $(cat job.err; scontrol show job "$id")"
[ "$(field summary stopped_by job.out)" = "done" ] || fail "the finished job: $(tail -n 3 job.out)"
[ "$(grep -c '"event":"start"' job/events.jsonl)" = 2 ] || fail "the finished job trained again"
echo "requeued after step $(field start first_step job/events.jsonl), gone on with the same weights; requeued when it was finished: done at once"
