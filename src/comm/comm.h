/* comm.h -- messages and collectives between ranks. All other rooms reach other ranks through here.
 *
 * A communicator is a list of members in a fixed order; a rank is a position in that list. All
 * members open it with the same list and generation, and all make the same calls in the same order.
 * Calls on one communicator come from one thread at a time; ls_comm_check() and ls_comm_abort() may
 * come from any thread. Where only messages (send, recv) are started, tested and waited for, several threads may
 * do so, if one thread makes all sends to a rank and one thread all receives from it.
 *
 * Every wait has a deadline. The first failure breaks a communicator for good: this call and every
 * later one return it at once, on all ranks, as fast as the news can travel. The message names the
 * cause once: LS_EPEER when another rank failed (its name and reason), LS_EDEADLINE when a rank did
 * not come (which one, and where it is), LS_EUSAGE when ranks asked for different things (both are
 * named). A communicator and those made from it break together. */
#pragma once
#include "base/err.h"
#include "comm/coll.h"

LS_C_BEGIN

typedef struct ls_comm ls_comm;

/* Most ranks of a communicator. Less than membership allows (LS_MEMBERS_RANKS, for any program that
 * `launch` starts), because here each rank keeps a record and a link for every other, and lists of
 * all ranks lie on the stack (parallel/mp_group.c: 32 KiB; for 131,072 ranks it would be 1 MiB). */
enum { LS_COMM_RANKS = 4096 };
enum { LS_COMM_ADDRESS_BYTES = 64, LS_COMM_SECRET_BYTES = 32 };

typedef struct ls_comm_member {
    int node;                            /* members with the same number share memory */
    char host[64];                       /* for messages */
    char address[LS_COMM_ADDRESS_BYTES]; /* "10.0.0.1:40001", "[::1]:40001"; "" on one node */
} ls_comm_member;

typedef struct ls_comm_args {
    int rank, ranks;
    uint64_t generation;
    const ls_comm_member *members; /* borrowed while opening */
    int segment_fd;                /* node/shm_segment.h; -1: this rank is alone on its node */
    int listen_fd;                 /* a listening socket at this member's address; -1 on one node */
    const uint8_t *secret;         /* LS_COMM_SECRET_BYTES of the job; NULL on one node only */
    const char *transport;         /* between nodes: "auto", "tcp", "ucx" */
    const char *zerocopy;          /* over TCP: "auto" (or NULL), "on", "off" (transport/tcp.h) */
} ls_comm_args;

/* All members open at the same time. LS_EDEADLINE names the members that did not come. */
ls_status ls_comm_open(ls_comm **comm_out, const ls_comm_args *args, int64_t deadline_ns);

/* A communicator of some of comm's ranks, in the order of the list. All ranks of comm call it, each
 * with the list it belongs to (the lists of one call do not overlap); a rank that belongs to none
 * passes count 0 and gets NULL. One thread at a time makes communicators out of what came from one
 * ls_comm_open(). LS_EBUSY: about 8000 have been made already. */
ls_status ls_comm_sub(ls_comm *comm, const int *ranks, int count, int64_t deadline_ns,
                      ls_comm **sub_out);

/* Bytes of this process that each communicator uses. */
int64_t ls_comm_bytes(void);

/* Waits for no rank. The last close gives the network up to a second to take what was sent.
 * Requests in flight are dropped, which the other ranks see as a failure. NULL is allowed. */
void ls_comm_close(ls_comm *comm);

int ls_comm_rank(const ls_comm *comm);
int ls_comm_ranks(const ls_comm *comm);

/* The node number of a rank, as its member record has it. */
int ls_comm_node(const ls_comm *comm, int rank);

/* The name of a rank's machine, valid as long as the communicator. */
const char *ls_comm_host(const ls_comm *comm, int rank);

/* Memory that the other ranks of this node read and write directly: a collective whose buffers lie
 * in it copies nothing. Zeroed, aligned to 4096. LS_ENOMEM says how much there is. */
ls_status ls_comm_alloc(ls_comm *comm, int64_t bytes, const char *what, void **memory_out);
void ls_comm_free(ls_comm *comm, void *memory); /* NULL is allowed */

/* Start a collective. It progresses while any thread waits on this fabric, and in the background.
 * It owns its buffers until ls_comm_wait() reports that it is done. LS_EBUSY: LS_COMM_REQUESTS are
 * in flight. */
enum { LS_COMM_REQUESTS = 256 };
typedef uint64_t ls_comm_request;
ls_status ls_comm_start(ls_comm *comm, const ls_coll *coll, ls_comm_request *request_out);
ls_status ls_comm_wait(ls_comm *comm, ls_comm_request request, int64_t deadline_ns);

/* Whether it is done, without waiting; its failure if it failed. */
ls_status ls_comm_test(ls_comm *comm, ls_comm_request request, bool *done_out);

/* As ls_comm_test() for n requests: the index of one that is done; -1: none is. */
ls_status ls_comm_test_any(ls_comm *comm, const ls_comm_request *requests, int n, int *done_out);

/* Start and wait, whatever else is in flight. One at a time for a communicator (LS_EBUSY). */
ls_status ls_comm_run(ls_comm *comm, const ls_coll *coll, int64_t deadline_ns);

/* LS_OK, or what broke it; without waiting. For callers that compute for long between
 * collectives. */
ls_status ls_comm_check(ls_comm *comm);

/* Break it with a reason that all ranks will report. From any thread. */
void ls_comm_abort(ls_comm *comm, const char *reason);

/* How a collective would be done: "alone", "direct", "levels", or the name of an algorithm
 * (algo/algo.h). */
const char *ls_comm_way(ls_comm *comm, const ls_coll *coll);

/* From now on use this algorithm, or "levels", for the kinds it can do; the same on all ranks. Also
 * applies to communicators of all ranks that are made from this one. NULL: the cheapest again.
 * LS_EUSAGE: there is no algorithm of this name. */
ls_status ls_comm_force(ls_comm *comm, const char *algo);

/* Bytes sent to and received from other nodes so far, headers included. */
void ls_comm_traffic(ls_comm *comm, int64_t *sent_out, int64_t *received_out);

/* Bytes of other ranks' memory that count as resident in this process because it has read them in
 * place, less its own bytes that other ranks hold and this process never touched. 0 where the
 * system does not report it. */
int64_t ls_comm_foreign_bytes(const ls_comm *comm);

/* The transport between nodes and why it was chosen: "tcp, as asked for", "ucx: every rank has an
 * RDMA device", "none: ...". The text begins with the transport's name. */
const char *ls_comm_transport(const ls_comm *comm);

/* The training step that a hang report shows for this rank. */
void ls_comm_set_step(ls_comm *comm, int64_t step);

LS_C_END
