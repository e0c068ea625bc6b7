/* cupti_impl.h -- the beginnings of CUPTI's records, as they have been since CUDA 9; cuda/
 * compares them with CUPTI's own header where the plugin is built. */
#pragma once
#include "base/base.h"

enum {
    LS_CUPTI_KIND_COPY = 1,
    LS_CUPTI_KIND_SET = 2,
    LS_CUPTI_KIND_DRIVER = 4,
    LS_CUPTI_KIND_RUNTIME = 5,
    LS_CUPTI_KIND_KERNEL = 10, /* CONCURRENT_KERNEL: kernels are not put behind each other */
    LS_CUPTI_KIND_EXTERNAL = 39,
    LS_CUPTI_EXTERNAL_OURS = 3, /* CUSTOM0 */
    LS_CUPTI_FLUSH_FORCED = 1,
};

typedef struct ls_cupti_kernel_record {
    uint32_t kind;
    uint8_t cache, shared;
    uint16_t registers;
    uint32_t partition[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], shared_bytes[2];
    uint32_t local[2];
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
} ls_cupti_kernel_record;

/* Of copies; of fills too, where `how` is the value. */
typedef struct ls_cupti_copy_record {
    uint32_t kind;
    uint8_t how, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
} ls_cupti_copy_record;

typedef struct ls_cupti_external_record {
    uint32_t kind, external_kind;
    uint64_t id;
    uint32_t correlation;
} ls_cupti_external_record;
