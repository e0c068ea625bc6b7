#!/bin/sh
# comm.sh -- collectives between ranks, fp32: ours beside OpenMPI, MPICH and gloo, one process group after the
# other in an order that turns from round to round, each when the machine is quiet.
#   comm.sh [-n 2,4] [--ops all_reduce] [--sizes 1K,64K,1M,16M,256M]     ranks on this machine
#   comm.sh --hosts 2,4 --link 1gbit [--sizes 1K,64K,1M,16M,64M]         one rank on each of several "hosts"
#           (network namespaces with shaped links; needs root), with TCP's goodput measured in the same run
#   --rounds 3      rounds of which the median counts (ROUNDS)
#   --seconds 0.5   time for each operation and size of a process
#   --peers a,b     only these; --peers-only: without ours
# OTHER=PROGRAM: another build of ours as one more side, "other" (with --peers none: against it alone).
# JSON=FILE writes every single value, BUSY=1 does not wait for a quiet machine (to try the script, never for a figure).
set -eu
cd "$(dirname "$0")/.."
for word in "$@"; do
    case $word in
    -h | --help)
        sed -n '2,12p' bench/comm.sh | sed 's/^# \{0,1\}//'
        exit 0
        ;;
    esac
done
mpi=$(sh bench/peers/comm_setup.sh)
case " $* " in
*" --peers-only "*) ;;
*) make --no-print-directory lineshaft >/dev/null ;;
esac
exec python3 -B bench/comm.py "$mpi" "$@"
