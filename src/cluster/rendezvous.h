/* rendezvous.h -- the agents of several nodes find each other and end together.
 *
 * The first node's agent is the coordinator as well: it listens at an address, and the agents of
 * the other nodes join there. When all have come, everybody gets the same list of members. The
 * connections stay for as long as the job runs: the first failure on any node ends the job on all
 * of them, with its sentence and one exit code; an agent or a node that goes away is such a
 * failure. The coordinator leaves last.
 *
 *     host                      join                       join
 *      |  <------- hello, both prove the secret (net/hello.h) -----> |
 *      |                            |  <------ ASK: what to run? --- |
 *      |                            |  ------- WORK: a command ----> |
 *      |  <- JOIN: version, ranks - |  <------ JOIN ---------------- |
 *      |  -- VIEW: members -------> |  ------- VIEW ---------------> |
 *      |                            |  (rank 3 fails)                |
 *      |  <- FAILED: record ------- |                                |
 *      |  -- STOP: record --------------------------------------->   |
 *      |  <- DONE: code ----------- |  <------ DONE ---------------- |
 *      |  -- END: code -----------> |  ------- END ----------------> |
 *
 * Only who comes without ranks asks. One thread. Nothing is encrypted; everything is authenticated.
 */
#pragma once
#include "cluster/members.h"
#include "cluster/work.h"

LS_C_BEGIN

typedef struct ls_rendezvous ls_rendezvous;

typedef struct ls_rendezvous_args {
    bool hosts;            /* this is the first node: listen, and wait for the others */
    const char *address;   /* where to listen, or whom to join: "10.0.0.1:7000" */
    int nodes;             /* of the job; the host decides, who joins need not know (0) */
    const uint8_t *secret; /* 32 bytes, borrowed until it is closed */
    int ranks;             /* that this node brings; 0: ask what there is to do, then bring some */
    const uint16_t *ports; /* where they listen, or NULL; borrowed while meeting */
    uint64_t generation;   /* of the host; who joins may ask for one, 0: any */
    const char *job;  /* must be equal on all nodes, such as a hash of the run file; NULL: "" */
    int64_t grace_ns; /* how long nodes may take to end after a failure */
    const ls_str
        *work; /* the host's answer to who asks (work.h), borrowed; NULL: they are refused */
} ls_rendezvous_args;

/* The host listens from now on; who joins has connected. */
ls_status ls_rendezvous_open(ls_rendezvous **rendezvous_out, const ls_rendezvous_args *args,
                             int64_t deadline_ns);
void ls_rendezvous_close(ls_rendezvous *rendezvous); /* NULL is allowed */

/* The coordinator's address, for those who join. */
const char *ls_rendezvous_address(const ls_rendezvous *rendezvous);

/* Who joined without ranks: what there is to do, and then the ranks that this node brings. ports as
 * in the arguments. LS_EUSAGE: refused, and why. */
ls_status ls_rendezvous_ask(ls_rendezvous *rendezvous, ls_work *work, int64_t deadline_ns);
ls_status ls_rendezvous_bring(ls_rendezvous *rendezvous, int ranks, const uint16_t *ports);

/* Until all nodes are there. LS_EDEADLINE says who came. LS_EUSAGE: refused, and why. */
ls_status ls_rendezvous_meet(ls_rendezvous *rendezvous, int64_t deadline_ns);

/* After that: the members (borrowed), and which node this is. */
const ls_members *ls_rendezvous_members(const ls_rendezvous *rendezvous);
int ls_rendezvous_node(const ls_rendezvous *rendezvous);

/* While the job runs: when this descriptor is readable, attend. Returns LS_OK, or once the reason
 * for which the job ends: LS_EPEER for a failure elsewhere, LS_EINTR when somebody was asked to. */
int ls_rendezvous_fd(const ls_rendezvous *rendezvous);
ls_status ls_rendezvous_attend(ls_rendezvous *rendezvous);

/* A rank of this node failed, or the job was asked to end here: all others will know. Only the
 * first call says anything. */
void ls_rendezvous_fail(ls_rendezvous *rendezvous, int code, const ls_err_record *why);

/* The ranks of this node have ended with this code. Wait until all nodes have; the code of the
 * whole job. */
ls_status ls_rendezvous_end(ls_rendezvous *rendezvous, int code, int *code_out);

LS_C_END
