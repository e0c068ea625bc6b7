/* peak.h -- what this machine can do, measured: the ceilings beside which kernels are shown.
 *
 * There is one ceiling of operations and many of bytes: a row whose data stay in a cache moves them
 * faster than main memory ever could, and reading is faster than writing. So bytes are measured
 * over as much memory as the row works on, with its kind of traffic. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

/* Floating-point operations per second (an fma counts two) of all threads of the device together,
 * with the instructions of the kernels of that name ("auto", "avx512", ...; "reference" counts as
 * "auto"): the best of 20 bursts of 2 ms. 0 when this CPU cannot run them. */
double ls_peak_flops(ls_device *device, const char *isa);

typedef enum ls_peak_traffic {
    LS_PEAK_ADD,    /* a += b: two reads and one write */
    LS_PEAK_READ,   /* sums */
    LS_PEAK_WRITE,  /* fills; counted as written once, though a CPU reads a line before it writes */
    LS_PEAK_UPDATE, /* in place: one read and one write */
    LS_PEAK_COPY, /* to another place; the line that is read before it is written is not counted */
    LS_PEAK_TRAFFICS
} ls_peak_traffic;

/* Bytes per second of all threads together, each going over its own part of `bytes` of memory again
 * and again without waiting for the others; the best of 20 bursts of 2 ms. The memory is
 * allocated from the device for the time of the call, at least 8 KiB a thread and at most 192 MiB
 * in all, which no cache of a core holds. isa as above. 0 when it cannot be measured. */
double ls_peak_bytes(ls_device *device, const char *isa, ls_peak_traffic traffic, int64_t bytes);

/* The same between all threads and main memory, adding, with the best instructions there are. */
double ls_peak_bandwidth(ls_device *device);

/* The peak of a GPU, measured through rows of its table on numbers that differ. */
typedef struct ls_peak_gpu {
    double bf16_flops; /* of a large product in bf16: the best 10 ms, */
    double bf16_held;  /* and the second half of 0.4 s, when the card has come to its power limit */
    double f32_flops;  /* of one in fp32: the best 10 ms of 0.1 s */
    double bytes;      /* of a copy on the card, read and written, likewise */
} ls_peak_gpu;

/* Measured once for a card and a driver, in less than a second and with 1 GiB of the device's
 * memory; then remembered (base/disk_cache.h). All 0 when it cannot be measured: no memory is left,
 * or the device failed. The device has nothing else to do. */
ls_peak_gpu ls_peak_gpu_of(ls_device *device, const ls_kernels *kernels);

/* Where `bytes` that are shared evenly between this many threads stay: "L1", "L2", "L3" or
 * "memory"; "cache" when this machine does not report its sizes. */
const char *ls_peak_level(int64_t bytes, int threads);

LS_C_END
