/* gpu.h -- the same row on a GPU and by the CPU reference, on the same numbers.
 *
 * A tensor exists twice: as floats in host memory, for the reference, and in the type under test in
 * device memory. Inputs are random and rounded to that type on both sides. Device tensors lie in
 * one block with guard bytes between them, which are checked at the end, and begin `shift` elements
 * past a multiple of 256 bytes, so that rows are also tried without 16-byte accesses. Outputs start
 * as NaN on both sides. */
#pragma once
#include "harness.h"
#include "device/device.h"
#include "kernel/kernel.h"

enum { LS_GPU_TENSORS = 64 };

typedef struct ls_gpu_tensor {
    const char *name;
    ls_dtype type;
    int64_t n;
    float *host;   /* owned by the fixture */
    void *device;  /* inside the fixture's block */
    int32_t *ints; /* instead of host, for whole numbers */
} ls_gpu_tensor;

typedef struct ls_gpu {
    ls_device *device, *cpu;
    ls_stream *stream, *cpu_stream;
    const ls_kernels *k, *reference;
    ls_dtype type; /* under test */
    int64_t shift;
    char *block; /* device */
    int64_t used, scratch_used;
    ls_gpu_tensor all[LS_GPU_TENSORS];
    int count;
    uint32_t seed;
} ls_gpu;

/* Skips the test where there is no GPU or no plugin; with LINESHAFT_GPU_TEST set it fails there. */
void ls_gpu_open(ls_gpu *g);
void ls_gpu_close(ls_gpu *g);
/* One case: forgets the tensors of the last one. End checks the guards. */
void ls_gpu_begin(ls_gpu *g, ls_dtype type, int64_t shift);
void ls_gpu_end(ls_gpu *g);

/* Normal values times scale; scale 0: an output. */
ls_gpu_tensor ls_gpu_values(ls_gpu *g, const char *name, int64_t n, float scale); /* of g->type */
ls_gpu_tensor ls_gpu_floats(ls_gpu *g, const char *name, int64_t n, float scale); /* fp32 */
ls_gpu_tensor ls_gpu_ints(ls_gpu *g, const char *name, int64_t n, int32_t below);
ls_gpu_tensor ls_gpu_bytes(ls_gpu *g, const char *name, const void *bytes, int64_t n);
/* Host values changed by the test: send them again. */
void ls_gpu_send(ls_gpu *g, const ls_gpu_tensor *t);
/* Scratch for a row on both sides; the host's is freed at the end. */
void *ls_gpu_scratch(ls_gpu *g, ls_row row, const void *args);
void *ls_gpu_host_scratch(ls_gpu *g, ls_row row, const void *args);

/* What the device holds, as floats; the caller frees it. */
float *ls_gpu_fetch(ls_gpu *g, const ls_gpu_tensor *t);
/* The device's values are near the host's: |a - b| <= tolerance (1 + |b|). */
void ls_gpu_near(ls_gpu *g, const ls_gpu_tensor *t, double tolerance);
/* The tolerance of a row in the type under test: the registry's in fp32, a few roundings in 16
 * bits.
 */
double ls_gpu_tolerance(const ls_gpu *g, ls_row row);
void ls_gpu_sync(ls_gpu *g);

/* All cases of a row: all types, aligned and not. */
typedef void (*ls_gpu_case)(ls_gpu *g, const void *shape);
void ls_gpu_cases(ls_gpu_case run, const void *shapes, size_t count, size_t size);
