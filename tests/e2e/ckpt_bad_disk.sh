#!/bin/sh
# ckpt_bad_disk.sh -- checkpoints on a file system that lies, fails and forgets (tests/fake/badfs.c): whatever call fails, no manifest names
# what is not on disk, the checkpoint before stays, and the next save works; late names and stale handles are waited for.
# ALL=1 (bench/ckpt_faults.sh): every call with every error.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
badfs=$LINESHAFT_ROOT/build/test/libfake_badfs.so
[ -e "$badfs" ] || fail "there is no $badfs"
BADFS_LOG=$PWD/log
export BADFS_LOG LINESHAFT_DISK=threads # what io_uring does goes past libc

# bad VARIABLE=VALUE ... COMMAND: on the bad file system; its exit status.
bad() {
    env LD_PRELOAD="$badfs" "$@" >out 2>err
}
# in_order WHAT: nothing got a name before it was on disk.
in_order() {
    ! grep UNSYNCED log >broken 2>/dev/null || fail "$1: $(cat broken)"
}

cat >run.yaml <<'YAML'
name: badfs
model: {family: gpt2, layers: 1, width: 32, heads: 2, context: 16}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 2, group: 1}
train: {steps: 4, lr: 3e-3, schedule: constant, warmup: 2, seed: 3}
checkpoint: {every: 2, keep: 4}
eval: {every: 0}
YAML
run 0 "$LINESHAFT" train run.yaml --json --set out=a
want=$(field summary weights_hash)

# --- one call fails. A copy writes as a save does: objects, folders, manifest. Step 2 is there, step 4 comes.
run 0 "$LINESHAFT" ckpt copy a start/checkpoints --step 2
tried=0
# try PLAN: copy with this failure, then again without it.
try() {
    rm -rf x log
    cp -r start x
    bad BADFS_FAIL="$1" "$LINESHAFT" ckpt copy a x/checkpoints --step 4
    code=$?
    in_order "$1"
    [ $code = 0 ] || [ $code = 3 ] || fail "$1: exit $code: $(cat err)"
    [ $code = 0 ] || [ ! -e x/checkpoints/step-0000000004.json ] || [ "${1%%:*}" = fsync ] || [ "${1%%:*}" = open ] || fail "$1: failed, and committed"
    "$LINESHAFT" ckpt verify x >out 2>&1 || fail "$1: $(cat out)"
    [ $code = 3 ] || [ -e x/checkpoints/step-0000000004.json ] || fail "$1: no error, and nothing committed"
    [ -z "$(find x -name '.tmp-*')" ] || fail "$1: something is left: $(find x -name '.tmp-*')"
    if [ $code = 3 ]; then
        run 0 "$LINESHAFT" ckpt copy a x/checkpoints
        run 0 "$LINESHAFT" ckpt verify x
    fi
    tried=$((tried + 1))
}
for call in pwrite fdatasync fsync ftruncate fallocate linkat renameat2 write open; do
    rm -rf x log
    cp -r start x
    bad BADFS_FAIL=$call:0:EIO "$LINESHAFT" ckpt copy a x/checkpoints || fail "$call: $(cat err)"
    in_order "$call"
    calls=$(sed -n "s/^CALLS $call //p" log)
    [ "${calls:-0}" -gt 0 ] || fail "$call is never called"
    n=1
    while [ $n -le "$calls" ]; do
        case $((n % 4)) in
        0) some=EIO ;;
        1) some=EDQUOT ;;
        2) some=ESTALE ;;
        *) some=SHORT ;;
        esac
        [ $some != SHORT ] || [ "${call#*write}" != "$call" ] || some=EIO
        [ -z "${ALL:-}" ] || some="EIO EDQUOT ESTALE ENOSPC"
        for error in $some; do try $call:$n:$error; done
        # in a short test: the first ones, the last, and some between
        [ -n "${ALL:-}" ] || [ $n -lt 3 ] || [ $n -ge $((calls - 1)) ] || n=$((n + calls / 3))
        n=$((n + 1))
    done
    case $call in
    fdatasync | renameat2 | pwrite) # every time
        try $call:1+:EIO
        [ $code = 3 ] || fail "$call never works, and that is no error"
        ;;
    esac
done
echo "$tried failing calls"

# --- the same in a run: told, training goes on, the next save works; at the end it is an error.
bad BADFS_FAIL=fdatasync:2:EIO "$LINESHAFT" train run.yaml --json --set out=once || fail "one failed sync: $(cat err)"
in_order once
[ "$(grep -c '"event":"checkpoint"' out) $(field summary weights_hash)" = "2 $want" ] || fail "one failed sync is not healed: $(cat err)"
bad BADFS_FAIL=pwrite:3:ENOSPC "$LINESHAFT" train run.yaml --json --set out=full || fail "no space, once: $(cat err)"
in_order full
grep -q 'checkpoint of step 2 was not saved: .*No space left' err || fail "not said: $(cat err)"
[ "$(field checkpoint step) $(field summary weights_hash)" = "4 $want" ] || fail "no space, once: other weights, or no save"
rm -rf log
bad BADFS_FAIL=fdatasync:1+:EIO "$LINESHAFT" train run.yaml --json --set out=never
code=$?
in_order never
[ $code = 3 ] && [ -z "$(ls never/checkpoints/step-* 2>/dev/null)" ] || fail "sync never works: exit $code, $(ls never/checkpoints)"

# --- names of other hosts are seen late: the commit waits for the objects of rank 1, rank 1 waits to load.
late=3
[ -z "${ALL:-}" ] || late=30
rm -f log
bad BADFS_LATE=$((late / 2)).5 BADFS_RANK=0 "$LINESHAFT" train run.yaml --json -n 2 --set mesh.zero=1 --set train.steps=2 --set out=late || fail "late: $(cat err)"
in_order late
[ "$(field checkpoint step)" = 2 ] || fail "late: not saved"
awk -v s="$(field checkpoint seconds)" 'BEGIN {exit !(s > 1)}' || fail "late: it was not waited for"
bad BADFS_LATE=$late BADFS_RANK=1 "$LINESHAFT" train run.yaml --json -n 2 --set mesh.zero=1 --set out=late || fail "late, load: $(cat err)"
[ "$(field start first_step) $(field summary weights_hash)" = "2 $want" ] || fail "late: other weights"

# --- handles go stale, in saving and in loading.
rm -f log
bad BADFS_STALE=40 "$LINESHAFT" train run.yaml --json -n 2 --set train.steps=2 --set out=stale || fail "stale: $(cat err)"
in_order stale
bad BADFS_STALE=25 "$LINESHAFT" train run.yaml --json -n 2 --set out=stale || fail "stale, load: $(cat err)"
[ "$(field start first_step) $(field summary weights_hash)" = "2 $want" ] || fail "stale: other weights"
bad BADFS_STALE=9 "$LINESHAFT" ckpt verify stale || fail "stale, verify: $(cat out err)"
grep -qi 'stale' err && fail "a stale handle was told as damage: $(cat err)"
exit 0
