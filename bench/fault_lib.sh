# shellcheck shell=sh
# fault_lib.sh -- what the benches of faults share; sourced by them, not run. They go on in an empty folder that is removed at the end, with a
# secret for a job in it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
LINESHAFT=${LINESHAFT:-$root/build/release/lineshaft}
export LINESHAFT
[ -x "$LINESHAFT" ] || {
    echo "build first: make" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
(umask 077; head -c 32 /dev/urandom >job.secret)

# tiny_run NAME STEPS EVERY: run.yaml, a tiny model in ordered mode that is saved, and evaluated, every EVERY steps; 0: neither.
tiny_run() {
    cat >run.yaml <<YAML
name: $1
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 8, leaf: 2, group: 1}
train: {steps: $2, lr: 3e-3, schedule: cosine, warmup: 5, clip: 1.0, seed: 3, reduce: ordered}
checkpoint: {every: $3, keep: 2}
eval: {every: $(($3 ? 30 : 0)), sequences: 8}
YAML
}

# hosts_of TEST: what runs on a host of a lab, and the driver, are those of that test.
hosts_of() {
    sed -n '/^cat >host.sh/,/^SH$/p' "$root/tests/e2e/$1" | sed '1d;$d' >host.sh
    chmod +x host.sh
    cp "$root/tests/e2e/recover_hosts.py" drive.py
}

# play OUT HOSTS PLAN...: a run on HOSTS hosts of a lab, to which the plan happens; false when it was not played. What the driver says
# is in OUT.drive.
play() {
    played=$1 hosts=$2
    shift 2
    mkfifo "$played.fifo"
    timeout -k 5 300 "$LINESHAFT" lab --nodes "$hosts" -- ./host.sh >"$played.lab" 2>&1 &
    lab=$!
    driven=true
    timeout 280 python3 drive.py "$played" "$@" 2>"$played.drive" || driven=false
    touch "$played.over"
    $driven || kill $lab 2>/dev/null || true
    wait $lab || true
    $driven
}
