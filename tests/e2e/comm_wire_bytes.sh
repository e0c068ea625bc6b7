#!/bin/sh
# comm_wire_bytes.sh -- 2 hosts with 2 ranks each: an all_reduce by levels sends between the hosts what it must,
# 2 (N - 1) / N of the buffer in each direction, as we count it and as the kernel does.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

for tool in ip tc; do
    [ -x /usr/sbin/$tool ] || [ -x /sbin/$tool ] || { echo "no $tool here (iproute2)"; exit 77; }
done
"$LINESHAFT" lab --nodes 1 -- true >out 2>err || {
    echo "network namespaces are not allowed here"
    exit 77
}
XDG_CACHE_HOME=$PWD/cache
export XDG_CACHE_HOME LINESHAFT

# The hosts keep the kernel's numbers of their one interface, before and after.
cat >host.sh <<'SH'
count() { awk '$1 == "eth0:" { print $10 }' /proc/net/dev; }
count >"before.$LINESHAFT_LAB_NODE"
"$LINESHAFT" bench comm -n 2 --sizes "$1" --tenths 1 --json $2
status=$?
count >"after.$LINESHAFT_LAB_NODE"
exit $status
SH
cat >look.py <<'PY'
import json, sys
way = sys.argv[1]
row = next(json.loads(l.split("] ", 1)[1]) for l in open("out") if '"op":"all_reduce"' in l)
assert (row["ranks"], row["algo"]) == (4, way), row
bound = 2 * (2 - 1) / 2 * row["bytes"]
print("of the bound:", row["wire_bytes"] / bound)
if way == "levels":  # headers of frames, confirmations, the barrier before each call
    assert bound <= row["wire_bytes"] < 1.01 * bound, row
else:
    assert row["wire_bytes"] > 1.3 * bound, row
calls = row["calls"] + 3  # and those that warm up
for node in 0, 1:
    sent = int(open("after.%d" % node).read()) - int(open("before.%d" % node).read())
    print("node", node, "by the kernel:", sent / calls / bound)
    assert calls * bound <= sent, (sent, calls)
    if way == "levels":  # headers, sent again, and the messages that measure the links
        assert sent < 1.08 * calls * bound + 16e6, (sent, calls)
PY
run 0 "$LINESHAFT" lab --nodes 2 -- sh host.sh 8M
python3 look.py levels || fail "levels send too much, or too little: $(cat out)"
# Another way sends more: so the numbers above could have been others.
run 0 "$LINESHAFT" lab --nodes 2 -- sh host.sh 8M "--algo pairwise"
python3 look.py pairwise || fail "a flat exchange is not seen: $(cat out)"
# Pieces that no rank divides evenly, and one that is forced.
run 0 "$LINESHAFT" lab --nodes 2 -- sh host.sh 5000012 "--algo levels"
python3 look.py levels || fail "levels of an uneven length: $(cat out)"
