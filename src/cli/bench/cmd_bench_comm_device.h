/* cmd_bench_comm_device.h -- `lineshaft bench comm --device cuda`: collectives of device memory. */
#pragma once
#include <stdio.h>
#include "comm/comm.h"

LS_C_BEGIN

typedef struct ls_bench_device_args {
    ls_comm *comm; /* borrowed */
    const char *device, *provider;
    const int64_t *bytes;
    int sizes;
    const ls_coll_kind *ops;
    int n_ops;
    ls_dtype type;
    double seconds; /* for each row */
    bool json;
    FILE *to; /* where rank 0 writes; NULL elsewhere */
} ls_bench_device_args;

/* By all ranks. LS_EUSAGE: there is no such device or provider here. */
ls_status ls_bench_comm_device(const ls_bench_device_args *args);

LS_C_END
