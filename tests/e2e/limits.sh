#!/bin/sh
# A limit of the process (ulimit) ends a command with a sentence that names it, never with a bare signal.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run

# limited STATUS "LIMITS" ARG...: the program under these limits.
limited() {
    code=$1
    limits=$2
    shift 2
    run "$code" sh -c "ulimit -c 0; $limits; exec \"\$@\"" limited "$LINESHAFT" "$@"
}

# stack
limited 5 "ulimit -s 64" train run.yaml --set out=o
says "the stack of this process may have 64 KiB only"
says "ulimit -s"
[ ! -e o ] || fail "a refused run left $(find o)"
limited 5 "ulimit -s 512" version
limited 0 "ulimit -Ss 64" train run.yaml --set train.steps=2 --set out=soft

# size of files
limited 3 "ulimit -f 20" train run.yaml --set out=small
says "File too large"
says "bytes in a file"
says "ulimit -f"
"$LINESHAFT" train run.yaml --set out=small >out 2>err || fail "it does not go on after a limit: $(cat err)"
limited 5 "ulimit -f 20" train run.yaml -n 2 --set out=small2
says "ulimit -f"

limited 3 "ulimit -f 20" export small hf
says "cannot write \"hf"
says "ulimit -f"
limited 3 "ulimit -f 20" export small small.gguf
says "ulimit -f"
[ ! -e hf ] && [ ! -e small.gguf ] || fail "a refused export left something"

# CPU time: the soft limit warns, and a run saves; a hard one would kill at once. The program starts in less than a second.
limited 130 "ulimit -St 2" train run.yaml --set train.steps=10000000 --set checkpoint.every=1000000 --set out=time
says "CPU time"
says "saved"
[ -n "$(ls time/checkpoints/step-*.json)" ] || fail "nothing was saved: $(cat err)"
limited 130 "ulimit -t 3" train run.yaml --set train.steps=10000000 --set checkpoint.every=1000000 --set out=hard
says "CPU time"
limited 3 "ulimit -t 2; exec >/dev/null" data stories --bytes 100G
says "has used the CPU time that it may use"
says "ulimit -t"

# descriptors, address space
limited 3 "ulimit -n 8" train run.yaml --set train.steps=2 --set out=files
says "ulimit -n"
limited 5 "ulimit -v 200000" train run.yaml -n 2 --set train.steps=2 --set out=space
says "ulimit -v"

# processes: root has no such limit
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && command -v prlimit >/dev/null; then
    mkdir -m 777 nobody
    cp run.yaml nobody
    (cd nobody && HOME=$PWD run 1 setpriv --reuid=65534 --regid=65534 --clear-groups prlimit --nproc=2 \
        "$LINESHAFT" train run.yaml --set train.steps=2 --set out=processes && says "ulimit -u") || exit 1
fi
