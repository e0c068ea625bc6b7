/* staging.h -- host memory through which tensors of a device go to other ranks.
 *
 * Where a device has a memory of its own, no other rank reaches it: what is to be exchanged is
 * copied to host memory that the ranks of a node share and that is locked for copies, exchanged
 * there, and copied back. Copies are queued on the device's stream, in the order of its work; what
 * waits for another rank is the host, never the device, so that ranks may share a card.
 *
 *   stream   ... product | copy out | products that go on | copy back | what reads it ...
 *   host                 | waits for that copy; exchange  |
 *
 * A place holds what one exchange needs. One thread. */
#pragma once
#include "base/err.h"
#include "comm/comm.h"
#include "device/device.h"

LS_C_BEGIN

/* Memory that the ranks of a node reach where it lies, and that a device copies from and to. */
typedef struct ls_staging_memory {
    void *at;    /* owned; NULL: none */
    bool locked; /* for copies; else they are slower, and right too */
} ls_staging_memory;

/* bytes are rounded up to whole pages. warns: with one warning where it cannot be locked. */
ls_status ls_staging_alloc(ls_staging_memory *memory, ls_comm *comm, ls_device *device,
                           int64_t bytes, const char *what, bool warns);
void ls_staging_free(ls_staging_memory *memory, ls_comm *comm, ls_device *device);

typedef struct ls_staging ls_staging;

/* `places` of `bytes` each, in memory that the ranks of comm reach where it lies. Both
 * are borrowed until it is closed. */
ls_status ls_staging_open(ls_staging **staging_out, ls_comm *comm, ls_stream *stream, int places,
                          int64_t bytes, const char *what);
void ls_staging_close(ls_staging *staging); /* NULL is allowed */

/* What opening takes, of the host, for the ledger. */
int64_t ls_staging_bytes(int places, int64_t bytes);

ls_stream *ls_staging_stream(const ls_staging *staging);
void *ls_staging_at(const ls_staging *staging, int place);

/* Queue: device memory to byte `at` of a place, a mark behind it; and wait until the stream has
 * come to the mark. From then on the place is the host's, */
void ls_staging_take(ls_staging *staging, int place, int64_t at, const void *from, int64_t bytes);
void ls_staging_mark(ls_staging *staging, int place);
ls_status ls_staging_wait(ls_staging *staging, int place, int64_t deadline_ns);
/* until this is queued: from there to the device. */
void ls_staging_give(ls_staging *staging, int place, int64_t at, void *to, int64_t bytes);

/* A collective of device memory, whatever its size, piece by piece: a sum over all ranks, a
 * broadcast, a message. in and out are device memory (or the same place of both). Waits for the
 * other ranks; what comes is on the device when the stream comes here. */
ls_status ls_staging_run(ls_staging *staging, ls_comm *comm, const ls_coll *coll,
                         int64_t deadline_ns);

LS_C_END
