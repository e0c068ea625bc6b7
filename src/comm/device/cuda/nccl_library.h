/* nccl_library.h -- NVIDIA's library of collectives, opened at run time: the functions we call, with
 * the types they have had since version 2.18. nccl_check.cu checks them against NVIDIA's header.
 *
 * The library is looked for where LINESHAFT_NCCL says, then where the loader looks, beside the CUDA
 * libraries that are open already (the toolkit's folder, or that of PyTorch's packages), and in the
 * usual folders of both. It is opened once and never closed. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

enum { LS_NCCL_LEAST = 21800, LS_NCCL_ID_BYTES = 128 };

/* What functions return, and what a communicator is doing. */
enum { LS_NCCL_OK = 0, LS_NCCL_IN_PROGRESS = 7 };

typedef enum ls_nccl_type {
    LS_NCCL_I8 = 0,
    LS_NCCL_U8 = 1,
    LS_NCCL_I32 = 2,
    LS_NCCL_I64 = 4,
    LS_NCCL_F16 = 6,
    LS_NCCL_F32 = 7,
    LS_NCCL_F64 = 8,
    LS_NCCL_BF16 = 9
} ls_nccl_type;

typedef enum ls_nccl_op {
    LS_NCCL_SUM = 0,
    LS_NCCL_MAX = 2,
    LS_NCCL_MIN = 3,
    LS_NCCL_AVERAGE = 4
} ls_nccl_op;

typedef struct ls_nccl_id {
    char bytes[LS_NCCL_ID_BYTES];
} ls_nccl_id;

/* As of version 2.18, which later ones take too: `size` and `version` say how much of it is there. */
typedef struct ls_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, least_blocks, most_blocks;
    const char *net;
    int share;
} ls_nccl_config;

enum { LS_NCCL_CONFIG_VERSION = 21801, LS_NCCL_UNSET = INT32_MIN };
#define LS_NCCL_CONFIG_MAGIC 0xcafebeefu

typedef struct ls_nccl {
    void *library;
    int version; /* 22809 */
    int (*get_version)(int *version_out);
    int (*get_id)(ls_nccl_id *id_out);
    int (*init)(void **comm_out, int ranks, ls_nccl_id id, int rank, ls_nccl_config *config);
    int (*finalize)(void *comm);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *result_out);
    const char *(*error_text)(int result);
    const char *(*last_error)(void *comm);
    int (*group_begin)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *in, void *out, size_t count, ls_nccl_type type, ls_nccl_op op,
                      void *comm, void *stream);
    int (*reduce)(const void *in, void *out, size_t count, ls_nccl_type type, ls_nccl_op op,
                  int root, void *comm, void *stream);
    int (*reduce_scatter)(const void *in, void *out, size_t out_count, ls_nccl_type type,
                          ls_nccl_op op, void *comm, void *stream);
    int (*all_gather)(const void *in, void *out, size_t in_count, ls_nccl_type type, void *comm,
                      void *stream);
    int (*broadcast)(const void *in, void *out, size_t count, ls_nccl_type type, int root,
                     void *comm, void *stream);
    int (*send)(const void *in, size_t count, ls_nccl_type type, int peer, void *comm,
                void *stream);
    int (*recv)(void *out, size_t count, ls_nccl_type type, int peer, void *comm, void *stream);
} ls_nccl;

/* The library, or NULL and why not. */
const ls_nccl *ls_nccl_find(char why_out[160]);

LS_C_END
