/* mp_group.h -- a model-parallel group: ranks that hold one model between them, or its sequences.
 *
 * Inside of each call tensors cross between ranks. With mesh.tp a rank computes with its slice of
 * every matrix: parts of sums are added, and with mesh.sp rows that the others have are gathered. With
 * mesh.ep ranks have some of the experts each and exchange rows of tokens. With mesh.cp they exchange
 * keys and values. This fills the table that the model calls (model/collectives.h) with a communicator
 * of the group, and adds up once in a step the gradients of what several ranks have whole (norms; keys
 * and values that ranks share).
 *
 * Sums have the same bits on all ranks, so what several ranks have stays equal. */
#pragma once
#include "base/err.h"
#include "comm/comm.h"
#include "model/collectives.h"

LS_C_BEGIN

typedef struct ls_mp_group ls_mp_group;

/* All ranks of comm, which is borrowed, form the group. copies: ranks side by side that
 * share a key/value head (ls_model_split), 1 where none do. */
ls_status ls_mp_group_open(ls_mp_group **group_out, ls_comm *comm, int copies);
void ls_mp_group_close(ls_mp_group *group); /* NULL is allowed */

ls_comm *ls_mp_group_comm(const ls_mp_group *group); /* that it was opened with */

/* For ls_pass_args.collectives; lives as long as the group. */
const ls_collectives *ls_mp_group_collectives(const ls_mp_group *group);

/* From now on tensors lie in the memory of the stream's device, which no other rank reaches: moves
 * of at most `bytes` (ls_collectives_place) pass through the host's, and memory that is asked for
 * is the device's. Before anything is asked for; undone when all of it was freed. */
ls_status ls_mp_group_stage(ls_mp_group *group, ls_stream *stream, int64_t bytes);
void ls_mp_group_unstage(ls_mp_group *group); /* NULL is allowed, and one that is not staged */

/* What that takes of the host, for the ledger. */
int64_t ls_mp_group_stage_bytes(int64_t bytes);

/* The same, but moves are collectives of device memory (parallel/mp_device.h): nothing passes
 * through the host, and the host does not wait. Undone as above. */
typedef struct ls_mp_group_device {
    ls_stream *stream;    /* borrowed: what moves is in its order */
    const char *provider; /* of ls_device_comm_choose() */
    const char *axis;     /* "tp", in messages */
    bool
        halves; /* products that end in a sum are made in halves: one moves while the next is made */
} ls_mp_group_device;
ls_status ls_mp_group_by_device(ls_mp_group *group, const ls_mp_group_device *how);

/* What that takes of the device. */
int64_t ls_mp_group_device_bytes(void);

/* The training step that messages about such collectives name. NULL is allowed, and a group of another
 * kind. */
void ls_mp_group_set_step(ls_mp_group *group, int64_t step);

/* Make what each rank has of these elements their sum over the ranks that have them. All ranks name
 * spans of the same lengths. Host memory, or where tensors lie on a device that of the device. divided:
 * ranks that each have some of the elements, and zeros in place of the others' (ZeRO): all of them get
 * all, first; NULL: each has all. By collectives of device memory it is queued, unless there are
 * such ranks; if a rank is lost the elements are then undefined. */
ls_status ls_mp_group_sum(ls_mp_group *group, float *x, const ls_collectives_span *spans, int n,
                          ls_comm *divided);

/* The same through the host, whatever moves go by. When a rank is lost, no element has a wrong sum: each
 * is a whole sum, or as it was. */
ls_status ls_mp_group_sum_by_host(ls_mp_group *group, float *x, const ls_collectives_span *spans,
                                  int n, ls_comm *divided);

/* The same of elements that do not lie at their places: each rank copies those that it has, n from
 * the first on to packed, zeros for what is not here, or back from there. */
typedef struct ls_mp_group_storage {
    void (*copy)(void *context, int64_t first, int64_t n, float *packed, bool back);
    void *context;
} ls_mp_group_storage;
ls_status ls_mp_group_sum_kept(ls_mp_group *group, const ls_mp_group_storage *storage,
                               const ls_collectives_span *spans, int n, ls_comm *divided);

/* What opening takes, for the ledger. */
int64_t ls_mp_group_bytes(void);

/* Bytes that the model has allocated through the table so far, freed ones included. */
int64_t ls_mp_group_allocated(const ls_mp_group *group);

/* Time that this rank has spent in moves so far: all of it where they are made at once, else what
 * was waited for. */
int64_t ls_mp_group_waited_ns(const ls_mp_group *group);

/* Bytes that this rank has sent so far: payload only; sums and gathers by rings (ls_collectives_sent),
 * what is dealt out as it is. */
int64_t ls_mp_group_sent(const ls_mp_group *group);

LS_C_END
