#!/bin/sh
# comm.sh -- commands as several ranks, by way of `bench comm`: results, bad input, strangers, ranks
# that are killed, several hosts, and that nothing is left behind.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
LS_E2E=comm.$$
export LS_E2E LINESHAFT
unset LINESHAFT_CARRIER LINESHAFT_ZEROCOPY
shm() { find /dev/shm -name '*lineshaft*' -o -name '*ucx*'; }
shm >shm.before
# Others may have some there for a while.
no_shm() { ! shm | grep -vxFf shm.before >shm.left; }

# those_of PID: the processes below it.
those_of() {
    # shellcheck disable=SC2013 # words are what is wanted
    for p in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        echo "$p"
        those_of "$p"
    done
}
# rank_of PID RANK: the process of this rank of a job, when there is one.
rank_of() {
    for p in $(those_of "$1"); do
        grep -qzx "RANK=$2" /proc/"$p"/environ 2>/dev/null && echo "$p" && return
    done
}
# wait_rank PID RANK: the same, when it is there, 0.3 s later: in the middle of its work.
has_rank() {
    found=$(rank_of "$1" "$2")
    [ -n "$found" ]
}
wait_rank() {
    eventually has_rank "$1" "$2" || fail "rank $2 does not come: $(cat out err)"
    sleep 0.3
}
# Nobody who was started here is alive, but this shell and those who look.
no_left() {
    left=
    # shellcheck disable=SC2013
    for file in $(grep -slzxF "LS_E2E=$LS_E2E" /proc/[0-9]*/environ); do
        case $(cat "${file%/environ}/comm" 2>/dev/null) in
        lineshaft | exe | ls-supervisor | python3) left="$left ${file%/environ}" ;;
        esac
    done
    [ -z "$left" ]
}
none_alive() { eventually no_left || fail "left behind:$left"; }

# rows OPS SIZES RANKS: out holds one JSON object a line for each of them, in this order, and
# nothing else; numbers are numbers, and fit together. Read by check_rows, all at once.
cat >rows.py <<'PY'
import json, sys
def once(pairs):
    assert len(dict(pairs)) == len(pairs), "a key twice"
    return dict(pairs)
def no(word):
    raise ValueError(word + " is no JSON")
def check(path, ops, sizes, ranks):
    lines = open(path).read().split("\n")
    assert lines.pop() == "", "the last line has no end"
    rows = [json.loads(l, object_pairs_hook=once, parse_constant=no) for l in lines]
    want = [(o, int(b)) for o in ops for b in (["0"] if o == "barrier" else sizes)]
    assert [(r["op"], r["bytes"]) for r in rows] == want, rows
    for r in rows:
        assert r["ranks"] == ranks and type(r["calls"]) is int and r["calls"] >= 5, r
        assert 0 < r["best_us"] <= r["us"] < 1e8, r
        assert isinstance(r["algo"], str) and r["algo"], r
        gbs = r["bytes"] / r["us"] / 1e3
        assert abs(r["alg_gbs"] - gbs) <= 0.001 + 0.002 * gbs + gbs * 0.001 / r["us"], r
for line in open("rows.list"):
    path, ops, sizes, ranks = line.split()
    check(path, ops.split(","), sizes.split(","), int(ranks))
    print(path)
PY
count=0
rows() {
    count=$((count + 1))
    cp out rows.$count
    echo "rows.$count $*" >>rows.list
}
check_rows() {
    python3 rows.py >py.out 2>py
    [ "$(wc -l <py.out)" = $count ] ||
        fail "after $(tail -n 1 py.out): $(tail -n 1 py); in order: $(cat rows.list)"
}

# --- one machine ----------------------------------------------------------------------------------
ops=all_reduce,reduce_scatter,all_gather,broadcast,all_to_all,gather,barrier
moving=${ops%,barrier}
run 0 "$LINESHAFT" bench comm -n 1 --op $ops --sizes 0,4,1K,100003,1M --tenths 1 --json
rows $ops 0,4,1024,100003,1048576 1
# Large ones are few calls: on a busy machine each may wait for the scheduler.
for n in 2 3; do
    run 0 "$LINESHAFT" bench comm -n $n --op "$moving" --sizes 8000003 --tenths 1 --json
    rows "$moving" 8000003 $n
    [ ! -s err ] || fail "says something: $(cat err)"
    grep -q '"bound_us":[0-9]' out || fail "no bound: $(cat out)"
done
run 0 "$LINESHAFT" bench comm -n 2 --op broadcast,barrier --sizes 0,5 --tenths 1 --json
rows broadcast,barrier 0,5 2
run 0 "$LINESHAFT" bench comm -n 3 --algo ring --type bf16 --op all_gather --sizes 4m --tenths 1 -j
rows all_gather 4194304 3
grep -q '"algo":"ring"' out || fail "not by ring: $(cat out)"
run 0 "$LINESHAFT" bench comm -n 2 --sizes 1M --tenths 1
says 'all_reduce          1048576 '

# Two jobs at the same time have nothing to do with each other.
"$LINESHAFT" bench comm -n 2 --sizes 4M,8M --tenths 3 --json >out2 2>err2 &
pid=$!
run 0 "$LINESHAFT" bench comm -n 3 --sizes 4M,8M --tenths 3 --json
rows all_reduce 4194304,8388608 3
wait $pid || fail "the other job failed: $(cat err2)"
mv out2 out
rows all_reduce 4194304,8388608 2
none_alive

check_rows

# --- bad input ------------------------------------------------------------------------------------
bad() { # SENTENCE FLAG...
    sentence=$1
    shift
    run 2 "$LINESHAFT" bench comm "$@"
    says "$sentence"
    [ ! -s out ] || fail "$*: writes results: $(cat out)"
    [ "$(grep -c 'lineshaft: error' err)" = 1 ] || fail "$*: more than one error: $(cat err)"
}
bad '--ranks must be a whole number from 1 to 256, not "0"' -n 0
bad '--ranks must be a whole number from 1 to 256, not "10000"' -n 10000
bad '--ranks must be a whole number from 1 to 256, not "-1"' -n -1
bad '--ranks must be a whole number from 1 to 256, not "2x"' -n 2x
bad '"garbage" is not a size' --sizes garbage
bad '"" is not a size' --sizes 1K,,1M
bad '"-5" is not a size' --sizes -5
bad '"nan" is not a size' --sizes nan
bad 'there is no collective "nonsense"' --op nonsense
bad 'there is no collective "send"' --op all_reduce,send
bad 'there is no algorithm "nonsense"' --algo nonsense
bad '--type "nonsense" is none of' --type nonsense
bad 'rounds 16-bit sums more than once' -n 3 --algo halving --type bf16 --sizes 1K --json
bad '--nodes and --secret go with --listen or --join' --nodes 2
bad '"garbage" is not an address' --listen garbage --secret s
run 5 "$LINESHAFT" bench comm -n 2 --sizes 900G
says 'cannot allocate 921600.0 MiB'
export LINESHAFT_CARRIER=pigeon
bad 'LINESHAFT_CARRIER is "pigeon", which is none of auto, tcp, ucx' -n 2
unset LINESHAFT_CARRIER
export LINESHAFT_ZEROCOPY=maybe
bad 'LINESHAFT_ZEROCOPY is "maybe", which is none of auto, on, off' -n 2
unset LINESHAFT_ZEROCOPY

# Streams that are closed, and a reader that goes away.
closed() { "$LINESHAFT" bench comm -n 2 --sizes 4M --tenths 1 --json <&- 2>&-; }
run 0 closed
rows all_reduce 4194304 2
unwritten() { "$LINESHAFT" bench comm -n 2 --sizes 4M >&-; }
run 3 unwritten
says 'cannot write results to the standard output'
{ "$LINESHAFT" bench comm -n 2 --sizes 1M,2M,4M,8M --tenths 1; echo $? >code; } 2>err | head -n 1 >out
[ "$(cat code)" = 141 ] || fail "exit $(cat code) after the reader went away"
[ ! -s err ] || fail "said something after the reader went away: $(cat err)"

# What a rank inherits is no way in for others: nonsense there is a sentence.
run 4 env LINESHAFT_CAUSE_FD=9 LINESHAFT_FD_MEMBERS=9 "$LINESHAFT" bench comm 9</dev/null
says 'a list of members of 0 bytes'
none_alive

# --- a rank that is killed, and Ctrl-C ------------------------------------------------------------
"$LINESHAFT" bench comm -n 3 --sizes 4M --tenths 600 >out 2>err &
pid=$!
wait_rank $pid 1
kill -9 "$found"
wait $pid
[ $? = 137 ] || fail "a killed rank did not give 137: $(cat err)"
says 'lineshaft: error: rank 1 was killed by signal 9'
grep -qx '  and 2 others that \(were stopped\|failed\)' err || fail "$(cat err)" # they may have noticed it first
none_alive

# The whole group gets the signal, as from a terminal: the ranks leave the end to their agent.
cat >interrupt.py <<'PY'
import glob, os, signal, subprocess, sys, time
def environ(path):
    try:
        return open(path, "rb").read()
    except OSError: # gone, or not ours
        return b""
def last_rank(): # of this test: where all have started, the agent listens
    mark = b"LS_E2E=" + os.environ["LS_E2E"].encode() + b"\0"
    return any(mark in e and b"\0RANK=2\0" in e for e in map(environ, glob.glob("/proc/[0-9]*/environ")))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would its children
p = subprocess.Popen(sys.argv[1:], start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
while not last_rank():
    time.sleep(0.05)
time.sleep(0.4)
began = time.monotonic()
os.killpg(p.pid, signal.SIGINT)
out, err = p.communicate()
assert p.returncode == 130, (p.returncode, err)
assert err.decode() == "lineshaft: stopped: stopped on request (SIGINT)\n", err
assert out.count(b"\n") <= 2, out
assert time.monotonic() - began < 20
PY
python3 interrupt.py "$LINESHAFT" bench comm -n 3 --sizes 4M --tenths 600 2>py || fail "Ctrl-C: $(cat py)"
none_alive

# kill -9 of the agent takes the ranks with it.
"$LINESHAFT" bench comm -n 3 --sizes 4M --tenths 600 >out 2>err &
pid=$!
wait_rank $pid 0
kill -9 $pid
wait $pid 2>/dev/null
none_alive
eventually no_shm || fail "left in /dev/shm: $(cat shm.left)"

# --- several hosts --------------------------------------------------------------------------------
for tool in ip tc; do
    [ -x /usr/sbin/$tool ] || [ -x /sbin/$tool ] || { echo "no $tool here (iproute2)"; exit 77; }
done
"$LINESHAFT" lab --nodes 1 -- true >out 2>err || {
    grep -q 'cannot make a network namespace' err || fail "$(cat err)"
    echo "network namespaces are not allowed here"
    exit 77
}
links=$(ls /sys/class/net)
named=$(find /var/run/netns -name 'lab*' 2>/dev/null | wc -l)
# hosts N: the results of the first of N hosts, without its name in front.
hosts() {
    sed -i 's/^\[lab0\] //' out
    rows "$@"
}

run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" bench comm --op "$moving" --sizes 1000003 --tenths 1 --json
hosts "$moving" 1000003 2
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" -v bench comm -n 2 --sizes 1M --tenths 1 --json
hosts all_reduce 1048576 4
grep -q 'carrier between nodes: ' err || fail "does not say what moves the data: $(cat err)"

# The flags of real machines; the first one makes the secret.
cat >node.sh <<'SH2'
#!/bin/sh
first=${LINESHAFT_LAB_ADDRESSES%% *}:7001
[ "$LINESHAFT_LAB_NODE" = 0 ] && exec "$LINESHAFT" bench comm --nodes 2 --listen "$first" --secret job.secret --wait 60 "$@"
exec "$LINESHAFT" bench comm --join "$first" --secret "${SECRET:-job.secret}" --wait 60 "$@"
SH2
chmod +x node.sh
(umask 077; head -c 32 /dev/urandom >job.secret; head -c 32 /dev/urandom >other.secret)
run 0 "$LINESHAFT" lab --nodes 2 -- ./node.sh --sizes 1M --tenths 1 --json
hosts all_reduce 1048576 2
SECRET=other.secret run 4 "$LINESHAFT" lab --nodes 2 --fail-fast -- ./node.sh --sizes 1K --tenths 1
says 'secret'

# A stranger writes garbage to the port where the hosts meet, and to those of the ranks.
cat >stranger.py <<'PY'
import os, socket, sys, time
def poke(address):
    poked = 0
    for garbage in b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(70), bytes(4096), b"\xff" * 100000:
        s = None
        while not s:
            try:
                s = socket.create_connection(address, timeout=30)
            except ConnectionRefusedError:
                if poked: # the job is over
                    return poked
                time.sleep(0.01)
        try:
            s.sendall(garbage)
        except OSError: # it was thrown out
            pass
        s.close()
        poked += 1
    return poked
if len(sys.argv) > 2:
    poke((sys.argv[1], int(sys.argv[2])))
    sys.exit()
ports = set()
while not ports: # of the ranks: whoever listens on this host
    for line in open("/proc/net/tcp").read().split("\n")[1:]:
        words = line.split()
        if words and words[3] == "0A" and not words[1].startswith("0100007F"):
            ports.add(int(words[1].split(":")[1], 16))
print("poked", sum(poke((sys.argv[1], port)) for port in ports))
PY
cat >strange.sh <<'SH2'
#!/bin/sh
[ "$LINESHAFT_LAB_NODE" = 0 ] && exec "$LINESHAFT" bench comm --sizes 1M --tenths 20 --json
python3 stranger.py "${LINESHAFT_LAB_ADDRESSES%% *}" 7077
python3 stranger.py "$LINESHAFT_LAB_ADDRESS" &
"$LINESHAFT" bench comm --sizes 1M --tenths 20 --json || exit
wait $!
SH2
chmod +x strange.sh
run 0 "$LINESHAFT" lab --nodes 2 -- ./strange.sh
grep -q '^\[lab1\] poked [1-9]' out || fail "the ranks' ports were not found: $(cat out err)"
sed -i '/^\[lab1\] poked/d' out
hosts all_reduce 1048576 2

# kill_rank CARRIER: rank 1, on the other host: its end is told on both.
kill_rank() {
    LINESHAFT_CARRIER=$1 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" bench comm --sizes 4M --tenths 600 >out 2>err &
    pid=$!
    wait_rank $pid 1
    kill -9 "$found"
    began=$(date +%s)
    wait $pid
    [ $? = 137 ] || fail "a killed rank did not give 137: $(cat err)"
    [ $(($(date +%s) - began)) -le 20 ] || fail "the end of a rank was noticed late"
    for host in lab0 lab1; do
        grep -q "^\[$host\] lineshaft: error: rank 1 on lab1 was killed by signal 9" err ||
            fail "$host does not say why it ended: $(cat err)"
    done
    none_alive
}
kill_rank tcp

# --- UCX between hosts, over TCP: the hosts must not meet in memory -------------------------------
export LINESHAFT_CARRIER=ucx UCX_TLS=tcp
LINESHAFT_UCX_LIBRARY=/nonexistent/libucp.so run 2 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" bench comm --sizes 1K
grep -q 'cannot open the UCX library "/nonexistent/libucp.so"\|built without UCX' err || fail "$(cat err)"
LINESHAFT_CARRIER=auto LINESHAFT_UCX_LIBRARY=/nonexistent/libucp.so run 0 \
    "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" bench comm --sizes 1M --tenths 1
ucx=yes
"$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" -v bench comm --op "$moving" --sizes 1000003 --tenths 1 --json >out 2>err ||
    if grep -q 'UCX library\|built without UCX' err; then ucx=no; else fail "by UCX: $(cat err)"; fi
if [ $ucx = yes ]; then
    grep -q 'carrier between nodes: ucx, as asked for' err || fail "not by UCX: $(cat err)"
    hosts "$moving" 1000003 2
    kill_rank ucx
fi
check_rows

none_alive
[ "$(ls /sys/class/net)" = "$links" ] || fail "links are left: $(ls /sys/class/net)"
[ "$(find /var/run/netns -name 'lab*' 2>/dev/null | wc -l)" = "$named" ] || fail "named namespaces are left"
eventually no_shm || fail "left in /dev/shm: $(cat shm.left)"
[ $ucx = yes ] || { echo "all but UCX, which is not here"; exit 77; }
