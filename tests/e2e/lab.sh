#!/bin/sh
# lab.sh -- hosts that are made: addresses, speed, exit codes, and that nothing is left of them.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

run 2 "$LINESHAFT" lab --nodes 0 -- true
says '--nodes must be a whole number from 1 to 200'
run 2 "$LINESHAFT" lab --link fast -- true
says '"fast" is no speed of a link'
run 2 "$LINESHAFT" lab --link 1gbit --burst much -- true
says '"much" is no number of bytes'
for tool in ip tc; do
    [ -x /usr/sbin/$tool ] || [ -x /sbin/$tool ] || { echo "no $tool here (iproute2)"; exit 77; }
done
"$LINESHAFT" lab --nodes 1 -- true >out 2>err || {
    grep -q 'cannot make a network namespace' err || fail "$(cat err)"
    says 'hint: Run it as root'
    echo "network namespaces are not allowed here"
    exit 77
}

links() { ls /sys/class/net | tr '\n' ' '; }
nets() { awk '$1 == "net_namespace" { print $2 }' /proc/slabinfo 2>/dev/null; }
before=$(links)
named() { find /var/run/netns -name 'lab*' 2>/dev/null | wc -l; }
names=$(named)

# Who and where a host is; loopback works; the others answer.
cat >talk.py <<'PY'
import os, socket, sys, time
me, n = int(os.environ["LINESHAFT_LAB_NODE"]), int(os.environ["LINESHAFT_LAB_NODES"])
all = os.environ["LINESHAFT_LAB_ADDRESSES"].split()
assert len(all) == n and all[me] == os.environ["LINESHAFT_LAB_ADDRESS"]
assert socket.gethostname() == "lab%d" % me
assert sorted(os.listdir("/sys/class/net")) == ["eth0", "lo"]
server = socket.create_server((all[me], 7777))
for other in all:
    for _ in range(3000):
        try:
            s = socket.create_connection((other, 7777), timeout=30)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    s.sendall(b"%d" % me)
    s.close()
heard = set()
for _ in range(n):
    c, who = server.accept()
    heard.add(who[0])
assert heard == set(all), heard
print("heard all")
PY
run 0 "$LINESHAFT" lab --nodes 3 --link 1gbit -- python3 talk.py
[ "$(grep -cx '\[lab[012]\] heard all' out)" = 3 ] || fail "hosts do not hear each other: $(cat out err)"

# The link's speed: 4 MB at 100 Mbit/s take 0.32 s, less the burst; much faster without a limit.
# Never less; more only when the machine is busy elsewhere.
cat >send.py <<'PY'
import os, socket, sys, time
me, all = int(os.environ["LINESHAFT_LAB_NODE"]), os.environ["LINESHAFT_LAB_ADDRESSES"].split()
size = 4000000
if me == 0:
    c, _ = socket.create_server((all[0], 7777)).accept()
    got = 0
    began = time.monotonic()
    c.sendall(b"go")
    while got < size:
        got += len(c.recv(1 << 20))
    print("seconds %.3f" % (time.monotonic() - began))
else:
    for _ in range(3000):
        try:
            s = socket.create_connection((all[0], 7777), timeout=30)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    s.recv(2)
    s.sendall(bytes(size))
PY
speed() { # LINK LEAST MOST
    for _ in 1 2 3 4 5; do
        run 0 "$LINESHAFT" lab --nodes 2 --link "$1" -- python3 send.py
        took=$(sed -n 's/.*seconds //p' out)
        [ "$(echo "$took $2" | awk '{ print ($1 >= $2) }')" = 1 ] || fail "$1: too fast, $took s"
        [ "$(echo "$took $3" | awk '{ print ($1 <= $2) }')" = 1 ] && return
    done
    fail "$1: $took s"
}
speed 100mbit 0.25 0.60
speed 20mbit 1.4 1.9
speed none 0 0.25

# A host that fails does not end the others, unless that is asked for.
run 5 "$LINESHAFT" lab --nodes 3 -- sh -c \
    '[ $LINESHAFT_LAB_NODE = 1 ] && exit 5; sleep 0.3; echo here'
[ "$(grep -c 'here' out)" = 2 ] || fail "the other hosts did not go on"
says 'lineshaft: error: lab1 ended with exit code 5'
run 5 "$LINESHAFT" lab --fail-fast --nodes 3 -- sh -c \
    '[ $LINESHAFT_LAB_NODE = 1 ] && exit 5; sleep 30; echo here'
[ "$(grep -c 'here' out)" = 0 ] || fail "the other hosts went on"

# Without a command: entered by nsenter, removed by a signal.
"$LINESHAFT" lab --nodes 2 >out 2>err &
pid=$!
eventually grep -q Ctrl-C out
enter=$(sed -n 's/^  \(nsenter .*\) bash  # lab1, .*/\1/p' out)
[ -n "$enter" ] || fail "does not say how to enter: $(cat out err)"
$enter ip -4 -o addr show eth0 >in 2>&1
grep -q 10.77.0.2/16 in || fail "lab1 is not what was entered: $(cat in)"
kill -TERM $pid
wait $pid || fail "ending a lab is no failure"

# kill -9, while it is made and while it runs: no device, no process, no namespace stays.
many=$(nets)
for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
    "$LINESHAFT" lab --nodes 4 --link 1gbit -- sh -c 'sleep 6'$$' & sleep 6'$$ >out 2>&1 &
    pid=$!
    sleep 0.0$((i % 10))
    [ $((i % 4)) = 0 ] && sleep 0.2
    kill -9 $pid
    wait $pid 2>/dev/null
done
nothing_left() {
    left=$(grep -slzx "[6]$$" /proc/[0-9]*/cmdline)
    now=$(nets)
    # 20 labs had 5 namespaces each; others may make some at the same time.
    [ -z "$left" ] && [ "${now:-0}" -lt $((${many:-0} + 30)) ]
}
eventually nothing_left
[ -z "$left" ] || fail "processes are left: $left"
[ "${now:-0}" -lt $((${many:-0} + 30)) ] || fail "namespaces are left: $now, $many before"
[ "$(links)" = "$before" ] || fail "links are left: $(links), before $before"
[ "$(named)" = "$names" ] || fail "named namespaces are left"

# A job over three hosts: ranks numbered through, one end, one exit code.
cat >node.sh <<'SH2'
#!/bin/sh
first=${LINESHAFT_LAB_ADDRESSES%% *}:7001
if [ "$LINESHAFT_LAB_NODE" = 0 ]; then
    exec "$LINESHAFT" -q launch -n 2 --nodes 3 --listen "$first" --secret job.secret --wait 60 -- "$@"
fi
exec "$LINESHAFT" launch -n $((LINESHAFT_LAB_NODE + 1)) --join "$first" --secret "${SECRET:-job.secret}" --wait 60 -- "$@"
SH2
chmod +x node.sh
export LINESHAFT
(umask 077; head -c 32 /dev/urandom >job.secret; head -c 32 /dev/urandom >other.secret)
run 0 "$LINESHAFT" lab --nodes 3 --link 1gbit -- ./node.sh sh -c \
    'echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $LINESHAFT_NODES at $MASTER_ADDR:$(hostname)"'
for r in 0 1 2 3 4 5 6; do
    [ "$(grep -c "\[$r\] rank $r of 7, . of [23], 3 at 10.77.0.1:lab" out)" = 1 ] || fail "rank $r: $(cat out err)"
done
# The first failure ends all hosts, with its sentence and its code.
began=$(date +%s)
run 6 "$LINESHAFT" lab --nodes 3 -- ./node.sh sh -c \
    'if [ "$(hostname) $LOCAL_RANK" = "lab2 1" ]; then sleep 0.2; exit 6; fi; sleep 60'
[ $(($(date +%s) - began)) -lt 40 ] || fail "a failure took too long to spread"
for host in lab0 lab1 lab2; do
    grep -q "^\[$host\] lineshaft: error: rank [0-9] on lab2 ended with exit code 6" err ||
        fail "$host does not say why it ended: $(cat err)"
done
# An agent that is killed is noticed by the other hosts, and ends them.
run 137 "$LINESHAFT" lab --nodes 3 -- ./node.sh sh -c \
    'if [ "$(hostname) $LOCAL_RANK" = "lab1 0" ]; then sleep 0.3; set -- $(cat /proc/$PPID/stat); kill -9 $4; fi; sleep 60'
grep -q '^\[lab0\] lineshaft: error: node [12] (lab1, 10.77.0.2:[0-9]*) went away' err || fail "$(cat err)"
# Who does not know the secret does not get in.
SECRET=other.secret run 4 "$LINESHAFT" lab --nodes 2 --fail-fast -- ./node.sh true
says 'secret'
