#!/bin/sh
# agent.sh -- a job of two machines, the second one joined by an agent: both are this one, by loopback.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
(umask 077; head -c 32 /dev/urandom >job.secret; head -c 32 /dev/urandom >other.secret)

# first COMMAND...: in the background, as the first of two machines; sets pid and address.
first() {
    : >err0 # what an earlier one said is no answer
    "$LINESHAFT" "$@" >out0 2>err0 &
    pid=$!
    for _ in $(seq 1000); do
        address=$(sed -n 's/^lineshaft: waiting for nodes that join //p' err0)
        [ -n "$address" ] || grep -q error err0 && break
        sleep 0.02
    done
    [ -n "$address" ] || fail "the first machine does not listen: $(cat err0)"
}
meet="--nodes 2 --listen 127.0.0.1:0 --secret job.secret --wait 60"
# ends CODE: the first machine ends with it.
ends() {
    wait $pid
    status=$?
    [ $status = "$1" ] || fail "the first machine ended with $status, not $1: $(cat err0)"
}

# Program, words and number of ranks come from the first machine; the folder is the agent's.
mkdir here
# shellcheck disable=SC2086
first launch -n 2 $meet -- sh -c 'echo "$RANK of $WORLD_SIZE in $(basename "$PWD") $1|$2|$3"' x 'a
b' '' ' c'
run 0 env -C here "$LINESHAFT" agent --join "$address" --secret ../job.secret
ends 0
printf '[2] 2 of 4 in here a\n[2] b|| c\n' >want
grep '^\[2\]' out | cmp -s - want || fail "rank 2 said: $(cat out)"
grep -q '^\[3\] 3 of 4 in here a$' out || fail "as many ranks as there: $(cat out)"
grep -q '^\[1\] 1 of 4 in ' out0 || fail "the first machine's rank: $(cat out0)"

# Another number of ranks, and logs.
# shellcheck disable=SC2086
first launch -n 2 $meet -- sh -c 'echo "$RANK of $WORLD_SIZE"'
run 0 "$LINESHAFT" agent --join "$address" --secret job.secret -n 1 --log-dir logs
ends 0
says '[2] 2 of 3'
grep -qx '2 of 3' logs/rank-2.log || fail "no log of rank 2"

# A failure on either side is the exit code of both, with its sentence.
for rank in 0 1; do
    # shellcheck disable=SC2086
    first launch $meet -- sh -c '[ $RANK = '$rank' ] && exit 7; sleep 60'
    run 7 "$LINESHAFT" agent --join "$address" --secret job.secret
    ends 7
    for file in err err0; do
        grep -q "^lineshaft: error: rank $rank on .* ended with exit code 7" $file || fail "$(cat $file)"
    done
done

# Ranks that meet: sockets and memory are made by the agent as the command itself would.
# shellcheck disable=SC2086
first bench comm -n 2 $meet --sizes 64K --tenths 1 --json
run 0 "$LINESHAFT" agent --join "$address" --secret job.secret
ends 0
grep -q '"op":"all_reduce","ranks":4,"bytes":65536' out0 || fail "no result: $(cat out0 err0)"
[ ! -s out ] || fail "the agent printed: $(cat out)"

# What cannot be.
run 2 "$LINESHAFT" agent
says 'agent needs --join ADDRESS:PORT'
run 2 "$LINESHAFT" agent --join 127.0.0.1:1
says 'several nodes need --secret FILE'
run 2 "$LINESHAFT" agent --join 127.0.0.1:1 --secret job.secret -n 0
says '--ranks must be at least 1'
run 8 "$LINESHAFT" agent --join 127.0.0.1:1 --secret job.secret --wait 1
says 'cannot connect'
printf '#!/bin/sh\n' >only-here
chmod +x only-here
# shellcheck disable=SC2086
first launch $meet -- ./only-here
run 4 "$LINESHAFT" agent --join "$address" --secret other.secret
says 'secret'
run 2 env -C here "$LINESHAFT" agent --join "$address" --secret ../job.secret
says 'only-here'
run 0 "$LINESHAFT" agent --join "$address" --secret job.secret # its place is still free
ends 0

# The secret is in its file only: not among the words, in the environment or in what is printed by any process of the job.
# shellcheck disable=SC2086
first launch -vv $meet -- sh -c 'touch up$RANK; until [ -e over ]; do sleep 0.05; done'
"$LINESHAFT" agent -vv --join "$address" --secret job.secret >out 2>err &
agent=$!
both() { [ -e up0 ] && [ -e up1 ]; }
eventually both || fail "the ranks do not run: $(cat err err0)"
python3 - job.secret out err out0 err0 <<'PY' || fail "the secret can be read"
import base64, glob, sys
secret = open(sys.argv[1], "rb").read()
forms = [secret[:12], secret.hex()[:24].encode(), secret.hex().upper()[:24].encode(), base64.b64encode(secret)[:16]]
seen = 0
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ") + sys.argv[2:]:
    try:
        text = open(path, "rb").read()
    except OSError:
        continue
    seen += b"job.secret" in text
    if any(form in text for form in forms):
        sys.exit(path)
assert seen >= 2, "its name is not even among the words: nothing was looked at"
PY
touch over
wait $agent || fail "the agent: $(cat err)"
ends 0
