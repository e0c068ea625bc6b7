#!/bin/sh
# preempt.sh -- a scheduler asks a run to stop, with more or less time: saved, or the checkpoint before is whole, and the exit code
# says which. A run that is finished is so at once when it is started again.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
cat >ask.py <<'PY'
"""ask.py OUT WHEN SIGNALS [ARG ...]: train, and send SIGNALS ("TERM", "TERM+TERM", "TERM,1.0,TERM") when WHEN is told: "step:N",
"checkpoint", or "at:POINT": a plan strikes there. Exits as the run does; events go to OUT.jsonl, errors to OUT.err."""
import fcntl, json, os, signal, subprocess, sys, threading, time
out, when, signals, *args = sys.argv[1:]
p = subprocess.Popen([os.environ["LINESHAFT"], "train", "run.yaml", "--json", "--set", "out=" + out, *args],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
fcntl.fcntl(p.stdout, 1031, 4096)  # F_SETPIPE_SZ
asked = threading.Event()
def ask():
    if asked.is_set():
        return
    asked.set()
    for word in signals.replace("+", ",").split(","):
        if word[0].isdigit():
            time.sleep(float(word))
        elif p.poll() is None:
            p.send_signal(getattr(signal, "SIG" + word))
def errors():
    with open(out + ".err", "ab") as log:
        for line in p.stderr:
            log.write(line)
            if when.startswith("at:") and b"at %s: " % when[3:].encode() in line:
                threading.Thread(target=ask).start()
threading.Thread(target=errors).start()
with open(out + ".jsonl", "ab") as log:
    for line in p.stdout:
        log.write(line)
        row = json.loads(line)
        if row["event"] == when or when.startswith("step:") and row["event"] == "step" and row["step"] >= int(when[5:]):
            threading.Thread(target=ask).start()
code = p.wait()
sys.exit(code if code >= 0 else 128 - code)
PY
export LINESHAFT
# go STATUS OUT WHEN SIGNALS ARG...: it must exit so, and what is saved is whole.
go() {
    status=$1
    shift
    python3 ask.py "$@"
    got=$?
    [ $got = "$status" ] || fail "$*: exit $got instead of $status: $(cat "$1.err")"
    [ -z "$(ls "$1"/checkpoints/step-*.json 2>/dev/null)" ] || run 0 "$LINESHAFT" ckpt verify "$1"
}
# goes_on OUT STEP RANKS: started again it goes on from that step, and ends as if nothing had been.
goes_on() {
    run 0 "$LINESHAFT" train run.yaml --json --set "out=$1" -n "$3"
    [ "$2" = any ] || [ "$(field start first_step)" = "$2" ] || fail "$1: goes on from $(field start first_step), not $2"
    [ "$(field summary weights_hash)" = "$hash" ] || fail "$1: other weights"
}
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
hash=$(field summary weights_hash)

# Enough time, in a step: saved. By SIGTERM and SIGUSR1, alone and by ranks. Twice at once is once: a signal to a process group does so.
go 130 term step:7 TERM+TERM --set checkpoint.grace=30
grep -q 'is saved in' term.err || fail "$(cat term.err)"
goes_on term any 1
go 130 usr1 step:7 USR1 -n 2 --set checkpoint.grace=30
grep -q 'is saved in' usr1.err || fail "$(cat usr1.err)"
goes_on usr1 any 2

# A save takes longer than what is given, as an earlier one has shown: not tried, and the one before is whole. Steps are slowed down, so that
# the run is not over before it is asked.
for ranks in 1 2; do
    LINESHAFT_DRILL="rank=0,at=save.write,do=stall,ms=2500; at=load,do=stall,ms=30,times=1000" \
        go 11 "short$ranks" checkpoint TERM -n $ranks --set checkpoint.grace=2
    grep -q 'is not saved: that takes about .* the checkpoint of step [12]0 is whole' "short$ranks.err" || fail "$(cat "short$ranks.err")"
    goes_on "short$ranks" any 1
done

# Nobody knew how long it takes, and the time is over in the middle of it.
LINESHAFT_DRILL="at=save.write,visit=3,do=stall" go 11 over step:7 TERM --set checkpoint.every=0 --set checkpoint.grace=1
grep -q 'the grace time is over' over.err || fail "$(cat over.err)"
goes_on over 0 1
LINESHAFT_DRILL="rank=1,at=save.write,do=stall" go 11 over2 step:7 USR1 -n 2 --set checkpoint.every=0 --set checkpoint.grace=1
goes_on over2 0 2
# Slurm says when its time is over.
SLURM_JOB_ID=7 SLURM_JOB_END_TIME=$(($(date +%s) + 3)) LINESHAFT_DRILL="at=save.write,do=stall" go 11 slurm step:7 TERM --set checkpoint.every=0
goes_on slurm 0 1

# The second signal, in the middle of a save: at once, and the checkpoint before is whole.
for ranks in 1 2; do
    go 130 "twice$ranks" step:5 TERM -n $ranks
    saved=$(field summary steps "twice$ranks.jsonl")
    LINESHAFT_DRILL="rank=0,at=save.write,do=stall" go 11 "twice$ranks" step:$((saved + 2)) TERM,1.5,TERM -n $ranks --set checkpoint.every=0
    goes_on "twice$ranks" "$saved" $ranks
done

# Finished: exit code 0 at once, and nothing is opened. More steps go on; --fresh begins anew.
for ranks in 1 2; do
    run 0 "$LINESHAFT" train run.yaml --json --set out=alone -n $ranks
    [ "$(wc -l <out)" = 1 ] || fail "a finished run did something: $(cat out)"
    [ "$(field summary stopped_by) $(field summary weights_hash)" = "done $hash" ] || fail "$(cat out)"
done
run 0 "$LINESHAFT" train run.yaml --set out=alone
says 'is finished: nothing to do'
run 0 "$LINESHAFT" train run.yaml --json --set out=alone --set train.steps=42
[ "$(field start first_step) $(field summary steps)" = "40 42" ] || fail "more steps: $(cat out)"
run 0 "$LINESHAFT" train run.yaml --json --set out=alone --fresh
[ "$(field start first_step) $(field summary weights_hash)" = "0 $hash" ] || fail "--fresh: $(cat out)"

# A plan that cannot be meant is refused, with what there is.
LINESHAFT_DRILL="at=nowhere,do=kill" run 2 "$LINESHAFT" train run.yaml --set out=bad
says 'there are: load, forward, backward'
[ ! -e bad ] || fail "a folder was made"
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done
