/* native.cuh -- what is behind a device and a stream of kind "cuda"; seen by kernel/cuda too.
 *
 * The plugin links nothing of the program, so shim.cu defines the functions of base/err.h,
 * base/mem.h and of device.h that plugin code uses, on top of ls_plugin_host. Plugin code is
 * therefore written like all other code: ls_fail(), LS_TRY, LS_BUG_IF.
 *
 * One row runs at a time on a stream, so each stream has one workspace for library calls and one
 * arena that grows outside of recordings; neither survives a row. */
#pragma once
#include <cuda_runtime.h>
#include "base/mem.h"
#include "device/plugin.h"

enum {
    LS_CUDA_WORKSPACE = 64 << 20, /* bytes; cuBLASLt's fastest algorithms need up to 32 MiB */
    LS_CUDA_FAULTS = 32,          /* cells of faults, one for each kernel row */
    LS_CUDA_RECENT = 4,           /* rows that a message names */
    LS_CUDA_KEPT = 32,            /* arenas that recordings use; each is twice the one before */
};

/* What device code found wrong, one cell for each kernel row; all ones: nothing. A cell holds
 * place << 32 | value, and the smallest wins, so that the report does not depend on timing. */
typedef unsigned long long ls_cuda_fault;
#define LS_CUDA_NO_FAULT (~0ull)

typedef struct ls_cuda_device {
    int ordinal, cards;
    int multiprocessors;
    int shared_bytes; /* most that a block can have */
    bool fp8;         /* has tensor cores for it */
    char name[80];
    bool sync_each;      /* LINESHAFT_CUDA_SYNC: wait after every row, to find the one that fails */
    int64_t fixed_bytes; /* allocated for streams and arenas */
    int64_t window_page; /* of windows; 0: not asked for yet, or there are none */
    void *products;      /* kernel/cuda's, made on first use: plans of matrix products */
    void *attention;     /* likewise: plans of attention */
    void (*drop_products)(void *products);
    void (*drop_attention)(void *attention);
} ls_cuda_device;

typedef struct ls_cuda_stream {
    ls_cuda_device *device;
    cudaStream_t stream;
    cudaEvent_t reached; /* for waits */
    void *workspace;
    void *arena;
    int64_t arena_bytes;
    void *kept[LS_CUDA_KEPT]; /* earlier arenas, which recordings may use */
    int64_t kept_bytes;
    int n_kept;
    ls_cuda_fault *faults;      /* [LS_CUDA_FAULTS], device */
    ls_cuda_fault *faults_seen; /* the same in page-locked host memory, as of the last sync */
    /* How kernel/cuda words a fault; set when its first row runs. */
    ls_status (*fault_text)(int row, uint32_t place, int32_t value);
    const char *recent[LS_CUDA_RECENT]; /* names of the last rows queued, a ring */
    int64_t queued;                     /* rows so far */
    bool recording;                     /* now, */
    bool recorded;                      /* ever */
} ls_cuda_stream;

/* ls_fail() with the text of a CUDA error; what: "allocate", "queue norm_fwd". */
ls_status ls_cuda_failed(cudaError_t error, const char *what);

/* LS_OK, or the failure of a runtime call. */
static inline ls_status ls_cuda_ok(cudaError_t error, const char *what)
{
    return error == cudaSuccess ? LS_OK : ls_cuda_failed(error, what);
}

/* The arena with room for this many bytes, aligned to 256, or NULL with a failure raised. Growing
 * waits for the stream and cannot be done while recording. */
void *ls_cuda_arena(ls_cuda_stream *s, int64_t bytes);

/* A row begins: false when the stream has failed. And ends: a failure to queue is raised. */
bool ls_cuda_row_begin(ls_cuda_stream *s, ls_stream *stream, const char *name);
void ls_cuda_row_end(ls_cuda_stream *s, ls_stream *stream);

/* Windows (window_cuda.cu), as ls_device_ops has them. */
int64_t ls_cuda_window_page(const ls_device *device);
void *ls_cuda_window_open(ls_device *device, int64_t bytes);
bool ls_cuda_window_back(ls_device *device, void *at, int64_t bytes);
bool ls_cuda_window_turn(ls_device *device, void *at, int64_t bytes, int64_t period);
void ls_cuda_window_drop(ls_device *device, void *at, int64_t bytes);
void ls_cuda_window_close(ls_device *device, void *base, int64_t bytes);

/* The plugin's device entries, for the table in kernel/cuda/table.cu. */
extern const ls_plugin ls_cuda_device_entries;
