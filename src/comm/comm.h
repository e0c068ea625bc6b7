/* comm.h -- the one door to other ranks.
 *
 * A communicator is a list of members in a fixed order; a rank is a place in it. It is opened by
 * all of them with the same list and generation, and used by all in the same order. Calls on one
 * communicator come from one thread at a time; ls_comm_abort() comes from anywhere. Where nothing
 * but messages are started, tested and waited for, several threads may do so, if all sends to a
 * rank come from one of them, and all receives from a rank from one.
 *
 * Nothing waits without a deadline. The first failure breaks a communicator for good: this and
 * every later call returns it at once, and so do those of the other ranks, which learn of it as
 * fast as it can travel. What broke it is said once, by name: LS_EPEER when another rank did (its
 * name and reason), LS_EDEADLINE when somebody did not come (who, and where it is), LS_EUSAGE when
 * ranks asked for different things (both named). Sub-communicators break with the one they were
 * made from, and it with them. */
#pragma once
#include "base/err.h"
#include "comm/coll.h"

LS_C_BEGIN

typedef struct ls_comm ls_comm;

enum { LS_COMM_ADDRESS_BYTES = 64, LS_COMM_RANKS = 4096, LS_COMM_SECRET_BYTES = 32 };

typedef struct ls_comm_member {
    int node;                            /* members with the same number share memory */
    char host[64];                       /* for messages */
    char address[LS_COMM_ADDRESS_BYTES]; /* "10.0.0.1:40001" or "[::1]:40001": where it listens; ""
                                            on one node */
} ls_comm_member;

typedef struct ls_comm_args {
    int rank, ranks;
    uint64_t generation;
    const ls_comm_member *members; /* borrowed while opening */
    int segment_fd;        /* the node's shared memory (node/segment.h); -1: alone on its node */
    int listen_fd;         /* a listening socket at this member's address; -1 on one node */
    const uint8_t *secret; /* LS_COMM_SECRET_BYTES of the job; NULL on one node only */
    const char *transport; /* between nodes: "auto", "tcp", "ucx" */
    const char *zerocopy;  /* over TCP: "auto" (or NULL), "on", "off" (transport/tcp.h) */
} ls_comm_args;

/* All members open at the same time; who does not come until the deadline is named. */
ls_status ls_comm_open(ls_comm **comm_out, const ls_comm_args *args, int64_t deadline_ns);

/* A communicator of some of comm's ranks, in the order of the list; called by all ranks of comm,
 * each naming the list it belongs to (lists of one call do not overlap), or with none: NULL comes
 * back. One thread at a time makes parts of what came from one ls_comm_open(). LS_EBUSY: some 8000
 * have been made already. */
ls_status ls_comm_sub(ls_comm *comm, const int *ranks, int count, int64_t deadline_ns,
                      ls_comm **sub_out);

/* Bytes of this process that each communicator takes for itself. */
int64_t ls_comm_bytes(void);

/* Waits for no rank; the last one gives the network up to a second to take over what was sent. What
 * is in flight is dropped, which is a failure for the others. NULL is allowed. */
void ls_comm_close(ls_comm *comm);

int ls_comm_rank(const ls_comm *comm);
int ls_comm_ranks(const ls_comm *comm);

/* The number of a rank's node, as the members said it. */
int ls_comm_node(const ls_comm *comm, int rank);

/* The name of a rank's machine, valid as long as the communicator. */
const char *ls_comm_host(const ls_comm *comm, int rank);

/* Memory that others of this node read and write directly: nothing is copied when a collective's
 * buffers lie in it. Zeroed, aligned to 4096. LS_ENOMEM says what there is. */
ls_status ls_comm_alloc(ls_comm *comm, int64_t bytes, const char *what, void **memory_out);
void ls_comm_free(ls_comm *comm, void *memory); /* NULL is allowed */

/* Start a collective; it moves while somebody waits for any, and in the background. Buffers belong
 * to it until ls_comm_wait() said it is done. At most LS_COMM_REQUESTS at a time: LS_EBUSY. */
enum { LS_COMM_REQUESTS = 256 };
typedef uint64_t ls_comm_request;
ls_status ls_comm_start(ls_comm *comm, const ls_coll *coll, ls_comm_request *request_out);
ls_status ls_comm_wait(ls_comm *comm, ls_comm_request request, int64_t deadline_ns);

/* Whether it is done, without waiting; the failure if it failed. */
ls_status ls_comm_test(ls_comm *comm, ls_comm_request request, bool *done_out);

/* As ls_comm_test(), of n of them: which one is done, -1: none. */
ls_status ls_comm_test_any(ls_comm *comm, const ls_comm_request *requests, int n, int *done_out);

/* Start and wait; one at a time for a communicator (LS_EBUSY), whatever else is in flight. */
ls_status ls_comm_run(ls_comm *comm, const ls_coll *coll, int64_t deadline_ns);

/* What broke it, or LS_OK; without waiting. For who works long between two collectives. */
ls_status ls_comm_check(ls_comm *comm);

/* Break it, with the reason that all ranks will report. From any thread. */
void ls_comm_abort(ls_comm *comm, const char *reason);

/* How a collective would be done: "alone", "direct", "levels", or the name of an algorithm
 * (algo/algo.h). */
const char *ls_comm_way(ls_comm *comm, const ls_coll *coll);

/* Take this algorithm, or "levels", from now on for what it does, on all ranks alike, also in
 * communicators of all ranks that are made from this one; NULL: what is cheapest. LS_EUSAGE: there
 * is none of this name. */
ls_status ls_comm_force(ls_comm *comm, const char *algo);

/* Bytes sent to and received from other nodes so far, headers included. */
void ls_comm_traffic(ls_comm *comm, int64_t *sent_out, int64_t *received_out);

/* Bytes of other ranks' memory that count as resident in this process, because it has read them
 * where they lie, less own ones that others have and this process never touched; 0 where it cannot
 * be known. */
int64_t ls_comm_foreign_bytes(const ls_comm *comm);

/* What moves the data between nodes, and why, in words: "tcp, as asked for", "ucx: every rank has
 * an RDMA device", "none: ...". It begins with the transport's name. */
const char *ls_comm_transport(const ls_comm *comm);

/* What the hang report shows of this rank: the step it is in. */
void ls_comm_set_step(ls_comm *comm, int64_t step);

LS_C_END
