#!/bin/sh
# products.sh [10m|124m] -- single-precision matrix products at every shape of the 10M and the 124M model:
# our rows beside OpenBLAS, BLIS (both with kernels that fit this CPU, and both their builds), oneDNN and
# libxsmm from Debian, on 1 and 2 threads. One process per library and round, taken in turn, with the fma
# peak measured between products. ROUNDS=3, THREADS="1 2", JSON=FILE in the environment;
# BUSY=1 does not wait for a quiet machine, BEST=1 takes the fastest call instead of the median one.
set -eu
cd "$(dirname "$0")/.."
sh tools/deps.sh libopenblas-dev libopenblas0-pthread libopenblas0-openmp libblis-dev libblis4-pthread \
    libblis4-openmp libdnnl-dev libxsmm-dev || echo "products.sh: going on with the libraries that are here"
make --no-print-directory build/release/bench-products >/dev/null
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# Debian has libxsmm as archives only. It asks a BLAS for what it does not do itself: the OpenMP build of
# OpenBLAS, so that there is one team of threads.
blas=$(find /usr/lib -path '*openblas-openmp/libopenblas.so.0' 2>/dev/null | head -n 1)
if [ -e /usr/lib/libxsmmext.a ] && [ -n "$blas" ]; then
    gcc -shared -fopenmp -o "$dir/xsmm.so" -Wl,-u,libxsmm_xgemm_omp /usr/lib/libxsmmext.a /usr/lib/libxsmm.a \
        -Wl,-rpath,"$(dirname "$blas")" "$blas" -lm -ldl -lpthread 2>"$dir/log" || {
        tail -n 3 "$dir/log" >&2
        rm -f "$dir/xsmm.so"
    }
fi
python3 -B bench/products.py build/release/bench-products "$dir" "$@"
