/* discrete_device.h -- the CPU as a device whose memory the host cannot touch, as a GPU's is.
 *
 * Device memory is readable and writable only while a row or a copy runs: whoever takes a device
 * pointer for a host pointer gets a segmentation fault. What a copy brings to the host arrives when
 * the host waits for its stream, or for an event behind it, not before, and what it takes from the
 * host must be the same until then. A copy to the host must have waited for the rows of all streams,
 * and a copy of a second stream for those of the first, as they would have to on a GPU. */
#pragma once
#include "device/device.h"
#include "kernel/kernel.h"

/* kernels_out: the rows of this name, for use on this device only. One device at a time. */
ls_device *ls_discrete_device_open(const char *isa, int threads, const ls_kernels **kernels_out);
void ls_discrete_device_close(ls_device *device);

/* How often the host has waited for the device, and has launched a recorded graph. A graph is a
 * list of rows and copies, with their arguments as they were. */
int64_t ls_discrete_device_waits(void);
int64_t ls_discrete_device_launches(void);

/* What the device says of itself from now on: its card, and whether it has fp8. */
void ls_discrete_device_is(int card, int cards, bool fp8);

/* From now on: tensors that ranks exchange inside of a pass are copied to the host while a side stream
 * adds gradients, so that a copy to the host waits for the rows of the first stream only. */
void ls_discrete_device_moves_beside_sums(bool on);
