/* cmd_bench_peer.h -- `lineshaft bench comm --peer`: OpenMPI, MPICH and Gloo beside us. */
#pragma once
#include "base/err.h"

typedef struct ls_bench_peer_args {
    int ranks; /* on this machine */
    const char *const *ops;
    int n_ops;
    const int64_t *bytes; /* of a rank's buffer, f32 */
    int sizes;
    double seconds; /* for each process */
    bool json;
} ls_bench_peer_args;

/* Time each operation and size with us and with every peer that is installed, in turn, and print a
 * row with ratios. A line on standard error names what is not installed. */
ls_status ls_bench_peer_run(const ls_bench_peer_args *args);
