"""products.py TOOL FOLDER [10m|124m] -- see bench/products.sh. FOLDER holds xsmm.so where it could be made.

Environment: ROUNDS (3), THREADS ("1 2"), JSON (a file to write), BUSY (do not wait for a quiet machine).
"""
import glob
import os
import sys

import rounds

WIDE = "avx512f" in rounds.processors()
# Both libraries misjudge CPUs that are newer than they are: say which kernels this one runs best.
CORE, ARCH = ("SkylakeX", "skx") if WIDE else ("Haswell", "haswell")


def libraries(folder):
    """name: (kind, path, environment). Of two builds of one library both are measured."""
    found = {"ours": ("ours", "-", {})}
    for build in ("pthread", "openmp"):
        for kind, name, env in (("openblas", "libopenblas.so.0", {"OPENBLAS_CORETYPE": CORE}),
                                ("blis", "libblis.so.4", {"BLIS_ARCH_TYPE": ARCH})):
            for path in glob.glob(f"/usr/lib/*/{kind}-{build}/{name}"):
                found[f"{kind}-{build}"] = ("cblas", path, env)
    for path in glob.glob("/usr/lib/*/libdnnl.so.[0-9]"):
        found["onednn"] = ("dnnl", path, {})
    if os.path.exists(f"{folder}/xsmm.so"):
        found["libxsmm"] = ("xsmm", f"{folder}/xsmm.so", {"OPENBLAS_CORETYPE": CORE})
    return found


def measure(tool, name, library, threads, model):
    kind, path, env = library
    env = {**env, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "BLIS_NUM_THREADS": threads}
    done = rounds.run(f"{name} {threads}", [tool, kind, path, threads, *model], env, check=False)
    if done.returncode:
        print(f"{name}, {threads} threads: {done.stderr.strip()[-300:] or 'ended with %d' % done.returncode}")
        return []
    return [line.split() for line in done.stdout.splitlines() if len(line.split()) == 8]


def table(threads, names, cells, order):
    print(f"\n{threads} thread{'s' if threads != '1' else ''}: GFLOP/s (share of the fma peak beside it), "
          "medians; * the fastest")
    print(f"{'product':17} {'m, n, k':>16} " + " ".join(f"{n:>17}" for n in names))
    won = {n: 0 for n in names}
    for key in order:
        rate = {n: rounds.median([r for r, _ in cells[n, key]]) for n in names if (n, key) in cells}
        share = {n: rounds.median([r / p for r, p in cells[n, key]]) for n in rate}
        best = max(rate, key=rate.get)
        won[best] += len(rate) > 1 or len(names) == 1
        row = [f"{rate[n]:8.1f} ({100 * share[n]:3.0f} %){'*' if n == best and len(rate) > 1 else ' '}" if n in rate else "-"
               for n in names]
        print(f"{' '.join(key[:3]):17} {','.join(key[3:]):>16} " + " ".join(f"{r:>17}" for r in row))
    print("fastest at: " + ", ".join(f"{n} {won[n]}" for n in names if won[n]))
    return won


def main():
    tool, folder, model = sys.argv[1], sys.argv[2], sys.argv[3:]
    count, result = int(os.environ.get("ROUNDS", "3")), []
    libs = libraries(folder)
    missing = {"openblas-pthread", "openblas-openmp", "blis-pthread", "blis-openmp", "onednn", "libxsmm"} - set(libs)
    print(f"core type {CORE} for OpenBLAS, {ARCH} for BLIS; {count} rounds"
          + (f"; not here: {', '.join(sorted(missing))}" if missing else ""))
    for threads in os.environ.get("THREADS", "1 2").split():
        cells, order = {}, {}
        for i in range(count):
            for name in rounds.in_turn(list(libs), i):
                for *key, rate, peak in measure(tool, name, libs[name], threads, model):
                    order[tuple(key)] = True
                    cells.setdefault((name, tuple(key)), []).append((float(rate), float(peak)))
        names = [n for n in libs if any(c[0] == n for c in cells)]
        table(threads, names, cells, list(order))
        peaks = [p for c in cells.values() for _, p in c]
        print(f"fma peak: {min(peaks):.1f} to {max(peaks):.1f} GFLOP/s, median {rounds.median(peaks):.1f}")
        result += [{"threads": int(threads), "library": n, "product": list(k), "gflops": [r for r, _ in c],
                    "peak_gflops": [p for _, p in c]} for (n, k), c in cells.items()]
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), result)


main()
