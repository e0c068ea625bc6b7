/* mp_device.h -- the moves of a model-parallel group by collectives of device memory (comm/device):
 * queued on streams, nothing passes through the host, and the host waits for nothing.
 *
 *   stream   product a | product b             | waits for the side | what reads both
 *   side               | move of a | move of b
 *
 * A move that is made at once is work of the stream itself. One that is started goes to a side
 * stream: it begins when the stream has come to the start, and the stream goes on behind it when the
 * move is waited for. What the group's ranks have alike is summed on the card: long stretches where
 * they lie, short ones packed into one buffer.
 *
 * parallel/mp_group.h hands over to this file; nothing else calls it. When a rank is lost, moves end,
 * what they wrote is undefined, and the next move fails its stream (comm/device/device_comm.h). */
#pragma once
#include "comm/device/device_comm.h"
#include "model/collectives.h"

LS_C_BEGIN

typedef struct ls_mp_device ls_mp_device;

typedef struct ls_mp_device_args {
    ls_comm *comm;        /* borrowed, as all of these: the group */
    ls_comm *shared;      /* of it, the ranks that share a key/value head; NULL: none do */
    ls_stream *stream;    /* of sums (ls_mp_device_sum); moves name their own */
    const char *provider; /* of ls_device_comm_choose() */
    const char *axis;     /* "tp", in messages */
} ls_mp_device_args;

/* All ranks of the group. */
ls_status ls_mp_device_open(ls_mp_device **x_out, const ls_mp_device_args *args,
                            int64_t deadline_ns);
void ls_mp_device_close(ls_mp_device *x); /* NULL is allowed */

/* Bytes of the device that opening takes. */
int64_t ls_mp_device_bytes(void);

/* As the functions of struct ls_collectives with these names. A deal is of device memory. */
void ls_mp_device_run(ls_mp_device *x, ls_stream *stream, const ls_collectives_ask *ask);
int ls_mp_device_start(ls_mp_device *x, ls_stream *stream, const ls_collectives_ask *ask);
void ls_mp_device_wait(ls_mp_device *x, ls_stream *stream, int number);
void ls_mp_device_deal(ls_mp_device *x, ls_stream *stream, const ls_collectives_deal *deal);

/* As ls_mp_group_sum(), of device memory; queued. */
ls_status ls_mp_device_sum(ls_mp_device *x, float *at, const ls_collectives_span *spans, int n);

/* The training step that messages name. */
void ls_mp_device_set_step(ls_mp_device *x, int64_t step);

LS_C_END
