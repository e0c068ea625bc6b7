#!/bin/sh
# pipeline_hosts.sh -- a pipeline over lab hosts: the time of a step beside what its schedule predicts, with links by comm/cost.h; needs root and a quiet machine.
# The speed of a rank is measured first, alone, with one thread. Asked for: within 15 %.
#   HOSTS=4  LINK=1gbit  GBITS=0.94  STEPS=10  MICROS=16  LAYERS=8  WIDTH=384  CONTEXT=256  LEAF=1  SCHEDULES="1f1b gpipe interleaved zero-bubble"  BUSY=1 (do not wait for a quiet machine)
# Where hosts share cores (4 of them on 2), the table is also run with the cores divided among those that compute: that is what can be measured there.
set -eu
cd "$(dirname "$0")/.."
[ $# = 0 ] || {
    echo "usage: $0" >&2
    exit 2
}
make --no-print-directory build/release/lineshaft >/dev/null
[ -n "${BUSY:-}" ] || sh bench/quiet.sh
exec python3 -B bench/pipeline_hosts.py "$PWD/build/release/lineshaft"
