/* device_comm.h -- collectives of device memory, queued on a stream like any other work.
 *
 * A device communicator stands beside a host communicator (comm/comm.h) of the same ranks, in the
 * same order. All ranks queue the same calls in the same order. A call is in the stream's order: it
 * begins when the work before it is done, and the work behind it reads its result. A table of
 * providers says how bytes move:
 *
 *   nccl    NVIDIA's library, opened at run time: the cards talk to each other, the host waits for
 *           nothing
 *   host    the host communicator; on a GPU through page-locked memory, and the call waits
 *
 * Nothing hangs. While calls are queued a thread looks at them: when the host communicator has
 * broken (a rank died), when the provider reports an error, or when calls did not end in time, it
 * ends them on the device and breaks the host communicator with the reason, so that all ranks hear
 * it. What they were to write is then undefined: a caller asks the host communicator, or
 * ls_device_comm_check(), before it uses results. Streams and device work on.
 *
 * What a call asks for is an ls_coll (comm/coll.h), of all kinds but barrier. A sum of 16-bit types
 * may round at every addition. all_to_all in place is refused. */
#pragma once
#include "comm/comm.h"
#include "device/device.h"

LS_C_BEGIN

typedef struct ls_device_comm ls_device_comm;

/* What all ranks agreed on. */
typedef struct ls_device_comm_choice {
    const char *provider; /* "nccl" or "host" */
    bool shared_cards;    /* some ranks use the same card */
    char why[240];        /* "every rank has a card of its own, NCCL 2.28.9" */
} ls_device_comm_choice;

/* All ranks, with the same wish: "nccl", "host", or "auto": nccl where each rank has a card of its
 * own and the library, else host. Looks for the library; where ranks share a card it learns that
 * they count as machines of their own. LS_EUSAGE: nccl was asked for, and a rank cannot: which, why. */
ls_status ls_device_comm_choose(ls_comm *comm, ls_device *device, const char *wish,
                                int64_t deadline_ns, ls_device_comm_choice *choice_out);

typedef struct ls_device_comm_args {
    ls_comm *comm;        /* borrowed until close */
    ls_device *device;    /* likewise */
    const char *provider; /* of the choice */
    const char *axis;     /* borrowed; "dp", in messages */
    int64_t limit_ns;     /* how long a queued call may take; 0: ten minutes */
} ls_device_comm_args;

/* All ranks. Called, as everything below, by the thread that has opened the device or entered it. */
ls_status ls_device_comm_open(ls_device_comm **dc_out, const ls_device_comm_args *args,
                              int64_t deadline_ns);

/* Waits a few seconds at most for calls that are queued. NULL is allowed. */
void ls_device_comm_close(ls_device_comm *dc);

int ls_device_comm_rank(const ls_device_comm *dc);
int ls_device_comm_ranks(const ls_device_comm *dc);
const char *ls_device_comm_provider(const ls_device_comm *dc);

/* Queue a call; its buffers are device memory. Not while a stream is being recorded. */
ls_status ls_device_comm_queue(ls_device_comm *dc, ls_stream *stream, const ls_coll *coll);

/* Calls between begin and end go as one, so that a rank may send and receive in any order; all on
 * one stream, and through the host at most LS_DEVICE_COMM_GROUP. end: also after a call in between
 * that failed. */
enum { LS_DEVICE_COMM_GROUP = 160 };
ls_status ls_device_comm_begin(ls_device_comm *dc);
ls_status ls_device_comm_end(ls_device_comm *dc);

/* LS_OK, or what broke it; without waiting. */
ls_status ls_device_comm_check(ls_device_comm *dc);

/* The training step that messages name. */
void ls_device_comm_set_step(ls_device_comm *dc, int64_t step);

LS_C_END
