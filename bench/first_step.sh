#!/bin/sh
# first_step.sh [RUNS] -- process start to first finished step of the demonstration, and peak memory
# against the ledger. Medians of RUNS (default 9) processes of 12 steps each.
set -eu
cd "$(dirname "$0")/.."
runs=${1:-9}
make --no-print-directory all >/dev/null
sh bench/quiet.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
i=0
while [ $i -lt "$runs" ]; do
    ./lineshaft train --json --fresh --set out="$dir/run" --set train.steps=12 --set train.warmup=2 --set eval.every=0 \
        >"$dir/$i.json"
    i=$((i + 1))
done
python3 - "$dir" "$runs" <<'PY'
import json, statistics, sys
ends = [json.loads(open(f"{sys.argv[1]}/{i}.json").read().splitlines()[-1]) for i in range(int(sys.argv[2]))]
first = [e["start_to_first_step_s"] for e in ends]
gap = [100.0 * (e["peak_bytes"] - e["ledger_bytes"]) / e["ledger_bytes"] for e in ends]
print(f"start to first step: median {statistics.median(first):.3f} s, worst {max(first):.3f} s (must be < 0.5)")
print(f"peak memory against the ledger: median {statistics.median(gap):+.2f} %, worst {max(gap, key=abs):+.2f} % (must be within 2)")
sys.exit(statistics.median(first) >= 0.5 or abs(statistics.median(gap)) > 2)
PY
