#!/bin/sh
# quiet.sh -- wait until the processors are (nearly) idle, at most two minutes; then say how idle.
set -eu
cores=$(nproc)
busy() { awk '/^cpu /{print $2+$3+$4+$7+$8+$9}' /proc/stat; }
i=0
while [ $i -lt 60 ]; do
    a=$(busy)
    sleep 1
    b=$(busy)
    share=$(((b - a) / cores))
    [ "$share" -le 5 ] && { echo "quiet: others use $share % of $cores cores"; exit 0; }
    i=$((i + 1))
    sleep 1
done
echo "quiet.sh: the machine is busy ($share % of $cores cores): a figure taken now is worthless" >&2
exit 1
