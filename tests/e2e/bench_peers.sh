#!/bin/sh
# bench_peers.sh -- bench comm --peer: a peer that is there is compiled, run in turn with us and shown with ratios; one that is missing is named. Peers are pretended.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
mkdir bin
home=$PWD
cat >bin/mpicc.openmpi <<SH2
#!/bin/sh
while [ \$# -gt 2 ]; do [ "\$1" = -o ] && to=\$2; shift; done
grep -q MPI_Allreduce "\$2" && echo "#!/bin/sh" >"\$to"
SH2
cat >bin/mpirun.openmpi <<SH2
#!/bin/sh
printf '%s\n' "\$*" >>"$home/calls"
[ -e "$home/broken" ] && exit 3
echo '{"op": "all_reduce", "ranks": 2, "bytes": 1024, "us": 1000000.0, "best_us": 1.0}'
SH2
chmod +x bin/*
for tool in sh grep touch; do ln -s "$(command -v $tool)" bin/$tool; done
peer() { PATH=$home/bin "$LINESHAFT" bench comm -n 2 --tenths 1 --peer "$@"; }

folders() { find /tmp -maxdepth 1 -name 'lineshaft-peer-*' -newer bin/sh 2>/dev/null; }
run 0 peer --sizes 1K,64K --json
says 'lineshaft: mpich is not installed (mpirun.mpich and mpicc.mpich)'
says 'lineshaft: gloo is not installed (python3 with torch)'
python3 - <<'PY' || fail "not the rows: $(cat out)"
import json
rows = [json.loads(line) for line in open("out")]
assert [r["bytes"] for r in rows] == [1024, 65536], rows
for r in rows:
    assert r["op"] == "all_reduce" and r["ranks"] == 2 and r["us"] > 0
    assert abs(r["openmpi_ratio"] * r["us"] / 1e6 - 1) < 0.01 and "mpich_us" not in r and "gloo_us" not in r
PY
[ "$(grep -c '^-n 2 ' calls)" = 6 ] || fail "not three rounds of two rows: $(cat calls)"
[ "$(grep -c 'openmpi all_reduce 1024 0.1$' calls)" = 3 ] || fail "not what was asked for: $(cat calls)"
run 0 peer --sizes 1K
grep -Eq '^all_reduce +1024 +[0-9.]+ +1000000.00 +[0-9.]+ +- +- +- +-$' out || fail "not the table: $(cat out)"
: >broken
run 0 peer --sizes 1K
grep -Eq '^all_reduce +1024 +[0-9.]+ +failed +- ' out || fail "a peer that fails: $(cat out)"
for flag in '--listen 127.0.0.1:0' --explain '--algo ring' '--type f64'; do
    # shellcheck disable=SC2086
    run 2 peer $flag
    says "--peer does not go with ${flag%% *}"
done
run 2 peer --op barrier
says '--peer does not measure barrier'
[ -z "$(folders)" ] || fail "left in /tmp: $(folders)"
