#!/bin/sh
# comm_setup.sh -- the MPI libraries that bench/comm.sh runs beside us: Debian's packages, and
# allreduce_mpi.c compiled with the compiler of each into a folder outside the tree, which is printed.
# What cannot be had is said and left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers/mpi
sh "$here/../../tools/deps.sh" openmpi-bin libopenmpi-dev mpich libmpich-dev ||
    echo "comm_setup.sh: going on with the libraries that are here" >&2
mkdir -p "$home"
for library in openmpi mpich; do
    program=$home/allreduce-$library
    if ! command -v "mpicc.$library" >/dev/null 2>&1; then
        echo "comm_setup.sh: no mpicc.$library: $library is left out" >&2
        rm -f "$program"
    elif [ ! -e "$program" ] || [ -n "$(find "$here/allreduce_mpi.c" -newer "$program")" ]; then
        "mpicc.$library" -std=gnu11 -O2 -Wall -Wextra -o "$program" "$here/allreduce_mpi.c" || rm -f "$program"
    fi
done
echo "$home"
