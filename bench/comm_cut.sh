#!/bin/sh
# comm_cut.sh [TIMES] -- how long after a silently cut link each rank has its error.
#
# Two hosts of a lab with a rank each, in the middle of collectives; the link of the second goes down. When the first failed comes from its black box, and
# so does when the second did. LINESHAFT: the program.
set -u
LINESHAFT=${LINESHAFT:-$(cd "$(dirname "$0")/.." && pwd)/lineshaft}
export LINESHAFT
dir=$(mktemp -d) || exit
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit

cat >host.sh <<'SH2'
#!/bin/sh
"$LINESHAFT" bench comm --sizes "1K,$SIZE" --tenths 600 >"out$LINESHAFT_LAB_NODE" 2>"err$LINESHAFT_LAB_NODE" &
bench=$!
if [ "$LINESHAFT_LAB_NODE" = 1 ]; then
    while kill -0 $bench 2>/dev/null && ! grep -q '^all_reduce' out0; do sleep 0.02; done
    sleep "0.$CUT"
    date +%s%N >cut
    ip link set eth0 down
fi
wait $bench
SH2
chmod +x host.sh
cat >when.py <<'PY'
import datetime, sys
cut = int(open("cut").read()) / 1e9
times = []
for rank in 0, 1:
    lines = [line.split() for line in open("lineshaft-blackbox/rank-%d.txt" % rank) if line[0] != "#"]
    failed = [w for w in lines if w[6] == "failed"][-1]
    entered = datetime.datetime.strptime(failed[7], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)
    times.append(entered.timestamp() + float(failed[8]) / 1e3 - cut)
print("rank 0 %.3f s  rank 1 %.3f s" % tuple(times))
PY
for size in 1K 4M; do
    for i in $(seq "${1:-5}"); do
        rm -rf lineshaft-blackbox cut
        SIZE=$size CUT=$((10 + i * 37 % 90)) "$LINESHAFT" lab --nodes 2 -- ./host.sh >lab 2>&1
        echo "$size: $(python3 when.py)" || cat lab err0 err1
    done
done
