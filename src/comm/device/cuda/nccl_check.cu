/* nccl_check.cu -- the types of nccl_library.h against NVIDIA's own header, where the toolkit has
 * it. Nothing is compiled of it. */
#if __has_include(<nccl.h>)
#include <nccl.h>
#include "comm/device/cuda/nccl_library.h"

#define EQUAL(ours, theirs)                                                                      \
    static_assert((int)(ours) == (int)(theirs), "a number of NCCL is not as nccl_library.h has " \
                                                "it")

EQUAL(LS_NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES);
EQUAL(LS_NCCL_OK, ncclSuccess);
EQUAL(LS_NCCL_IN_PROGRESS, ncclInProgress);
EQUAL(LS_NCCL_I8, ncclInt8);
EQUAL(LS_NCCL_U8, ncclUint8);
EQUAL(LS_NCCL_I32, ncclInt32);
EQUAL(LS_NCCL_I64, ncclInt64);
EQUAL(LS_NCCL_F16, ncclFloat16);
EQUAL(LS_NCCL_F32, ncclFloat32);
EQUAL(LS_NCCL_F64, ncclFloat64);
EQUAL(LS_NCCL_BF16, ncclBfloat16);
EQUAL(LS_NCCL_SUM, ncclSum);
EQUAL(LS_NCCL_MAX, ncclMax);
EQUAL(LS_NCCL_MIN, ncclMin);
EQUAL(LS_NCCL_AVERAGE, ncclAvg);
EQUAL(LS_NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
EQUAL(LS_NCCL_CONFIG_VERSION, NCCL_VERSION(2, 18, 1));
static_assert(sizeof(ls_nccl_id) == sizeof(ncclUniqueId), "an id of NCCL has another size");

#define SAME(ours, theirs)                                                                        \
    static_assert(offsetof(ls_nccl_config, ours) == offsetof(ncclConfig_t, theirs) &&             \
                      sizeof(((ls_nccl_config *)0)->ours) == sizeof(((ncclConfig_t *)0)->theirs), \
                  "NCCL's settings are not as nccl_library.h has them")

SAME(size, size);
SAME(magic, magic);
SAME(version, version);
SAME(blocking, blocking);
SAME(cluster, cgaClusterSize);
SAME(least_blocks, minCTAs);
SAME(most_blocks, maxCTAs);
SAME(net, netName);
SAME(share, splitShare);

/* Functions: the same parameters, with pointers and enums of the same size. */
#include <type_traits>
#define TAKES(function, ...)                                                          \
    static_assert(std::is_same<decltype(&function), ncclResult_t (*)(__VA_ARGS__)>(), \
                  "a function of NCCL is not as nccl_library.h has it")

TAKES(ncclCommInitRankConfig, ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
TAKES(ncclAllReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
      cudaStream_t);
TAKES(ncclReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
      cudaStream_t);
TAKES(ncclReduceScatter, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
      cudaStream_t);
TAKES(ncclAllGather, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
TAKES(ncclBroadcast, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclSend, const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclRecv, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclCommGetAsyncError, ncclComm_t, ncclResult_t *);
#endif
