/* peak.h -- what this machine can do, measured: the ceilings beside which kernels are shown. */
#pragma once
#include "device/device.h"

LS_C_BEGIN

/* Floating-point operations per second (an fma counts two) of all threads of the device together,
 * with the instructions of the kernels of that name ("auto", "avx512", ...; "reference" counts as
 * "auto"): the best of three bursts of about 20 ms. 0 when this CPU cannot run them. */
double ls_peak_flops(ls_device *device, const char *isa);

/* Bytes per second between all threads and main memory: two reads and one write per element, over
 * 192 MiB that are allocated from the device for the time of the call; the best of three passes. 0
 * when there is not so much memory. */
double ls_peak_bandwidth(ls_device *device);

LS_C_END
