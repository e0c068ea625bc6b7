/* device_comm_impl.h -- what a provider of device collectives is; private to this room. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "base/time.h"
#include "comm/device/device_comm.h"

typedef struct ls_device_provider {
    const char *name;
    bool watched; /* calls end later: the thread looks at them */

    /* Why this process cannot use it, or NULL. version_out: of its library, 0: it has none. */
    const char *(*unusable)(ls_device *device, int *version_out, char text_out[160]);

    /* Bytes that the first rank makes and all get before they open; 0: none. */
    int64_t id_bytes;
    ls_status (*make_id)(void *id_out);

    ls_status (*open)(ls_device_comm *dc, const void *id, int64_t deadline_ns);
    void (*close)(ls_device_comm *dc); /* of a half-opened one too; waits a few seconds at most */
    ls_status (*begin)(ls_device_comm *dc);
    ls_status (*queue)(ls_device_comm *dc, ls_stream *stream, const ls_coll *coll);
    ls_status (*end)(ls_device_comm *dc);

    /* For the thread; of watched ones only. An error that came later; and an end to all calls. */
    ls_status (*poll)(ls_device_comm *dc);
    void (*abort)(ls_device_comm *dc);
} ls_device_provider;

extern const ls_device_provider ls_device_comm_host, ls_device_comm_nccl;

struct ls_device_comm {
    ls_device_comm_args args;
    const ls_device_provider *provider;
    int rank, ranks;
    void *native; /* of the provider */
    int grouped;  /* calls since begin; -1: none has begun */

    /* The last call, for messages; lock. */
    pthread_mutex_t lock;
    ls_coll_kind last_kind;
    int64_t last_bytes, step;

    /* The thread. Calls are counted up; of `marked` of them the event says when they are done. */
    atomic_int_fast64_t queued;
    _Atomic(ls_stream *) stream; /* of the last call */
    ls_event *mark;              /* owned; the thread's */
    pthread_t thread;
    bool has_thread;
    atomic_bool closing;
    atomic_bool broken; /* set once, when `why` is complete */
    ls_err_record why;
};

/* For providers that wait: LS_OK, or why there is no use in waiting on. */
ls_status ls_device_comm_still(ls_device_comm *dc, int64_t deadline_ns, const char *what);

/* "all_reduce 17 of 4194304 bytes (dp, step 12)": the last call. */
const char *ls_device_comm_last(ls_device_comm *dc, char text_out[160]);
