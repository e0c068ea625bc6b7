# shellcheck shell=sh
# lib.sh -- what the end-to-end tests share; sourced, not run.
#
# Each test runs in an empty scratch folder. LINESHAFT is the program; fail ends the test.
set -u
LINESHAFT=${LINESHAFT:-$LINESHAFT_ROOT/build/test/lineshaft}
export NO_COLOR=1

fail() {
    echo "    $*" >&2
    exit 1
}

# run STATUS COMMAND...: the command must exit with STATUS; its output is left in out and err.
run() {
    expected_status=$1
    shift
    "$@" >out 2>err
    status=$?
    if [ "$status" != "$expected_status" ]; then
        echo "    exit $status, expected $expected_status: $*" >&2
        tail -n 20 out err >&2
        exit 1
    fi
}

# says TEXT: the last run's output or error contains it.
says() {
    grep -qF -- "$1" out err || {
        echo "    expected \"$1\", got:" >&2
        tail -n 20 out err >&2
        exit 1
    }
}

# eventually COMMAND...: try it until it succeeds; false when it did not for half a minute.
eventually() {
    tries=300
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# field EVENT KEY [FILE]: that key of the last such event in a file of JSON lines. (-S: it begins sooner.)
field() {
    grep "^{\"event\":\"$1\"" "${3:-out}" | tail -n 1 | python3 -IS -c 'import json, sys
print(json.loads(sys.stdin.readline())[sys.argv[1]])' "$2"
}

# losses [FILE]: "step loss" of every step event.
losses() {
    sed -n 's/^{"event":"step","step":\([0-9]*\),"loss":\([^,}]*\).*/\1 \2/p' "${1:-out}"
}

# curve [FILE]: the losses of a run and, as if it were that of one step more, its validation loss.
curve() {
    losses "${1:-out}"
    echo "$(($(losses "${1:-out}" | tail -n 1 | cut -d ' ' -f 1) + 1)) $(field summary val_loss "${1:-out}")"
}

# alike NAME ROWS WANT GOT [PART]: two files of "step loss" have ROWS rows, of the same steps, whose losses differ by 1e-4 of them
# at most, or by this part.
alike() {
    paste -d ' ' "$3" "$4" | awk -v rows="$2" -v part="${5:-1e-4}" '{ d = $2 - $4; if (d < 0) d = -d; bad += NF != 4 || $1 != $3 || !(d <= part * $2) }
        END { exit bad || NR != rows }' || fail "$1 strays: $(paste -d ' ' "$3" "$4")"
}

# refused TEXT ARG...: "train" with these arguments, and run_file where that is set, says why not, once, and makes nothing.
refused() {
    text=$1
    shift
    run 2 "$LINESHAFT" train ${run_file:+"$run_file"} "$@" --set out=no
    [ "$(grep -c "$text" err)" = 1 ] || fail "expected \"$text\": $(cat err)"
    [ ! -e no ] || fail "a refused run left a folder"
}

# same_bits ARG...: two runs of "train" with these arguments have the same weights.
same_bits() {
    for out in once again; do
        run 0 "$LINESHAFT" train "$@" --json --set out=$out
        field summary weights_hash >$out.hash
    done
    cmp -s once.hash again.hash || fail "two ordered runs on one mesh differ: $*"
}

# ends_at_nan ARG...: a step that is not finite ends all ranks of such a run, with one sentence; skips_nan: or is skipped by all.
ends_at_nan() {
    run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train "$@" --set out=nan
    [ "$(grep -c 'holds NaN' err)" = 1 ] || fail "not one sentence: $(cat err)"
}
skips_nan() {
    run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train "$@" --json --set train.nonfinite=skip --set out=skip
    [ "$(grep -c 'is skipped' err)" = 1 ] || fail "a skipped step is not said once: $(cat err)"
}

# ledger_holds NAME PERCENT [MORE]: the first rank of the last run used what its ledger says, within so much of it, and MORE bytes.
ledger_holds() {
    case $LINESHAFT in
    *asan* | *tsan*) return ;; # what a sanitizer keeps is nobody's ledger
    esac
    echo "$(field summary peak_bytes) $(field summary ledger_bytes)" | awk -v part="$2" -v more="${3:-0}" '
        { exit !($1 >= (1 - part / 100) * $2 && $1 <= (1 + part / 100) * $2 + more) }' ||
        fail "$1 used $(field summary peak_bytes) bytes, the ledger says $(field summary ledger_bytes)"
}

# await_step FOLDER STEP PID: until events.jsonl tells of it, while the job runs.
await_step() {
    i=0
    until grep -q "\"event\":\"step\",\"step\":$2," "$1/events.jsonl" 2>/dev/null; do
        i=$((i + 1))
        { [ $i -lt 3000 ] && kill -0 "$3" 2>/dev/null; } || fail "step $2 of $1 never came: $(cat err)"
        sleep 0.02
    done
}

# kill_rank FOLDER RANK: at once, as a machine that is gone would.
kill_rank() {
    kill -9 "$(python3 -c 'import json, sys
print([e["pid"] for e in map(json.loads, open(sys.argv[1] + "/events.jsonl")) if e["event"] == "rank"][int(sys.argv[2])])' "$1" "$2")"
}

# need_hosts: what follows needs hosts of a lab; where there can be none, the test ends well before it.
need_hosts() {
    for tool in ip tc; do
        [ -x /usr/sbin/$tool ] || [ -x /sbin/$tool ] || { echo "no $tool here (iproute2): hosts not tried"; exit 0; }
    done
    "$LINESHAFT" lab --nodes 1 -- true >out 2>err || {
        grep -q 'cannot make a network namespace' err || fail "$(cat err)"
        echo "network namespaces are not allowed here: hosts not tried"
        exit 0
    }
}

# A run that takes about a second: small model, our own stories.
small_run() {
    cat >"${1:-run.yaml}" <<'YAML'
name: small
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 2, group: 1}
train: {steps: 40, lr: 3e-3, schedule: cosine, warmup: 5, clip: 1.0, seed: 3}
checkpoint: {every: 10, keep: 2}
eval: {every: 20, sequences: 8, sample: "Once", sample_tokens: 16}
YAML
}

# --- ranks that are killed (tests/train_and_kill.py); want and hash are those of the undisturbed run -------------------------------
# go STATUS OUT RANKS PLAN ARG...: it must exit so.
go() {
    status=$1
    shift
    LINESHAFT=$LINESHAFT python3 "$LINESHAFT_ROOT/tests/train_and_kill.py" "$@"
    got=$?
    [ $got = "$status" ] || fail "$*: exit $got instead of $status: $(cat "$1.err")"
}
# as_alone OUT: every step was reported once, with the loss it must have, and the weights are those they must be.
# shellcheck disable=SC2154 # hash is the script's
as_alone() {
    losses "$1/events.jsonl" >got
    cmp -s want got || fail "$1: other losses: $(diff want got | head -n 4) $(cat "$1.err")"
    [ "$(field summary weights_hash "$1.jsonl")" = "$hash" ] || fail "$1: other weights: $(cat "$1.err")"
}
# same OUT: and so it was printed. A process that is killed just when it has printed a step leaves that to be printed again.
same() {
    as_alone "$1"
    losses "$1.jsonl" | uniq >got
    cmp -s want got || fail "$1: other losses printed: $(diff want got | head -n 4) $(cat "$1.err")"
}
# in_lab OUT HOSTS PLAN...: ./host.sh on HOSTS hosts of a lab, to which the plan happens (tests/e2e/recover_hosts.py). Its status; what
# it printed is in OUT.jsonl, what the driver said in OUT.drive, the lab in OUT.lab.
in_lab() {
    lab_out=$1 lab_hosts=$2
    shift 2
    mkfifo "$lab_out.fifo"
    "$LINESHAFT" lab --nodes "$lab_hosts" -- ./host.sh >"$lab_out.lab" 2>&1 &
    lab_pid=$!
    python3 "$LINESHAFT_ROOT/tests/e2e/recover_hosts.py" "$lab_out" "$@" 2>"$lab_out.drive"
    lab_status=$?
    touch "$lab_out.over"
    [ $lab_status = 0 ] || kill $lab_pid
    wait $lab_pid
    return $lab_status
}
# incident OUT KEY: of its last incident.
incident() { field incident "$2" "$1.jsonl"; }
