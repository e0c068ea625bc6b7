#!/bin/sh
# Stopped by Ctrl-C, by kill -9, or never: the same losses and the same weights.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=straight
losses out >want
want_hash=$(field summary weights_hash)

# at.py SIGNAL STEP FILE COMMAND...: its output goes to FILE, and the signal to it at that step. The
# pipe between is small, so that a run is at most a few steps ahead, however busy the machine is.
cat >at.py <<'PY'
import fcntl, json, signal, subprocess, sys
number, step, path = getattr(signal, "SIG" + sys.argv[1]), int(sys.argv[2]), sys.argv[3]
p = subprocess.Popen(sys.argv[4:], stdout=subprocess.PIPE, bufsize=0)
fcntl.fcntl(p.stdout, 1031, 4096)  # F_SETPIPE_SZ
with open(path, "wb") as out:
    while line := p.stdout.readline():
        out.write(line)
        if line.endswith(b"\n") and json.loads(line).get("step") == step:
            p.send_signal(number)
code = p.wait()
sys.exit(code if code >= 0 else 128 - code)
PY

# Ctrl-C: finishes the step, saves, exits 130; the next run goes on.
python3 at.py INT 7 first "$LINESHAFT" train run.yaml --json --set out=ctrlc 2>err
[ $? = 130 ] || fail "Ctrl-C did not exit with 130"
grep -q "Run the same command again" err || fail "no hint how to go on"
run 0 "$LINESHAFT" train run.yaml --json --set out=ctrlc
losses first >got
losses out >>got
cmp want got || fail "losses differ after Ctrl-C"
[ "$(field summary weights_hash)" = "$want_hash" ] || fail "weights differ after Ctrl-C"

# kill -9 in the middle: at most the steps since the last checkpoint are done again, the same way.
python3 at.py KILL 23 first "$LINESHAFT" train run.yaml --json --set out=killed 2>err
[ $? = 137 ] || fail "kill -9 did not kill"
done=$(losses killed/events.jsonl | tail -n 1 | cut -d ' ' -f 1)
run 0 "$LINESHAFT" train run.yaml --json --set out=killed
start=$(field start first_step)
# Saving is not waited for, but the one before it is.
[ "$start" -ge $((done / 10 * 10 - 10)) ] && [ "$start" -le "$done" ] ||
    fail "resumed at step $start after $done"
losses out >got
awk -v s="$start" '$1 > s' want >tail-want
cmp tail-want got || fail "losses differ after kill -9"
[ "$(field summary weights_hash)" = "$want_hash" ] || fail "weights differ after kill -9"

# A reader that goes away stops the run, saved.
"$LINESHAFT" train run.yaml --json --set out=pipe --set train.steps=100000 2>err | head -n 5 >/dev/null
grep -q "is saved in" err || fail "a run whose reader went away did not say that it was saved"
run 0 "$LINESHAFT" ckpt verify pipe

# Output that cannot be written is told, without a reason that is another's.
if [ -c /dev/full ]; then
    "$LINESHAFT" train run.yaml --json --set out=full --set train.steps=3 2>err >/dev/full
    [ $? = 3 ] || fail "a full disk under the output is no error"
    grep -q "cannot write" err || fail "nothing is said of the output: $(cat err)"
    grep -q "ioctl" err && fail "a reason that is none: $(cat err)"
fi

# Another batch is another run: refused, with the difference, and nothing is lost.
run 2 "$LINESHAFT" train run.yaml --set out=straight --set batch.sequences=8
says "batch.sequences"
says "--fresh"
run 0 "$LINESHAFT" train run.yaml --json --set out=straight --fresh
[ "$(field start first_step)" = 0 ] || fail "--fresh resumed"
ls -d straight/checkpoints.before-* >/dev/null || fail "--fresh lost the earlier checkpoints"
# More steps may be asked for.
run 0 "$LINESHAFT" train run.yaml --json --set out=ctrlc --set train.steps=45
[ "$(field summary steps)" = 45 ] || fail "could not go on to 45 steps"
