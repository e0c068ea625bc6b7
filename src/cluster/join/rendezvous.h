/* rendezvous.h -- the agents of several nodes find each other and end together.
 *
 * The first node's agent is the coordinator as well: it listens at an address, and the agents of
 * the other nodes join there. When all have come, everybody gets the same list of members. The
 * connections stay for as long as the job runs: the first failure on any node ends the job on all
 * of them, with its sentence and one exit code; an agent or a node that goes away is such a
 * failure. The coordinator leaves last.
 *
 *     host                      join                       join
 *      |  <------- hello, both prove the secret (net/handshake.h) -----> |
 *      |                            |  <------ ASK: what to run? --- |
 *      |                            |  ------- WORK: a command ----> |
 *      |  <- JOIN: version, ranks - |  <------ JOIN ---------------- |
 *      |  -- LIST: members, a piece at a time -------------------->  |
 *      |  -- VIEW: your place in it |  ------- VIEW ---------------> |
 *      |                            |  (rank 3 fails)                |
 *      |  <- FAILED: record ------- |                                |
 *      |  -- STOP: record --------------------------------------->   |
 *      |  <- DONE: code ----------- |  <------ DONE ---------------- |
 *      |  -- END: code -----------> |  ------- END ----------------> |
 *
 * Only a node that comes without ranks asks. One thread. Nothing is encrypted; everything is
 * authenticated.
 *
 * With hooks (ls_rendezvous_attach) the agents of a job that heals (recover_cluster.h) talk over
 * the same connections: a node that comes later is let in, one that goes away is reported instead
 * of ending the job, and every node gives a sign of life (HEARTBEAT) several times a second.
 *
 *      |  <- JOIN --------------- |     a newcomer of a job that runs
 *      |  -- HOLD --------------> |     wait, perhaps for long
 *      |  -- VIEW --------------> |     called: start the ranks
 *      |  <-- MESSAGE, ---------> |     member_message.h, a sign of life
 *      |      HEARTBEAT           |
 *      |  -- PROBE: do you reach  |     a node is silent (witness.h)
 *      |     node 7? -----------> |
 *      |  <- PROBED: yes -------- |
 *      |  -- LEAVE -------------> |     sent away, and why
 *      |  <- BACK --------------- |     a member, when this node has become the host
 */
#pragma once
#include "cluster/member/roster.h"
#include "cluster/member/job_spec.h"

LS_C_BEGIN

typedef struct ls_rendezvous ls_rendezvous;

typedef struct ls_rendezvous_args {
    bool hosts;            /* this is the first node: listen, and wait for the others */
    const char *address;   /* where to listen, or whom to join: "10.0.0.1:7000" */
    int nodes;             /* of the job; 0 on a node that joins: the host decides */
    const uint8_t *secret; /* 32 bytes, borrowed until it is closed */
    int ranks;             /* that this node brings; 0: ask what there is to do, then bring some */
    const uint16_t *ports; /* where they listen, or NULL; borrowed while meeting */
    uint64_t generation;   /* of the host; a node that joins may ask for one, 0: any */
    const char *job; /* must be equal on all nodes, such as a hash of the run file; NULL: "" */
    const char
        *host; /* this node's name for messages, borrowed until closed; NULL: the machine's */
    const char *version; /* of this program and its content; NULL: they are looked up */
    int64_t grace_ns;    /* how long nodes may take to end after a failure */
    const ls_str *work;  /* the host's answer to ASK (job_spec.h), borrowed; NULL: refused */
} ls_rendezvous_args;

/* For a job that heals. All but `heard`, `looks` and `orphaned` are of the host only; node: the
 * number of a peer; on a node that joined 0, the host. */
typedef struct ls_rendezvous_hooks {
    int64_t heartbeat_ns, suspect_ns,
        dead_ns; /* heartbeats; silence that is suspicious; that is death */
    /* A newcomer; false: it is refused, and why. */
    bool (*joins)(void *context, int node, const ls_members_node *about, char *why, size_t cap);
    void (*heard)(void *context, int node, const uint8_t *bytes, size_t len);
    void (*lost)(void *context, int node, const char *why, int64_t silent_ns);
    void (*looks)(void *context);          /* now and then, and after all of these */
    bool (*idle)(void *context, int node); /* the job is over, and this node has no part in it */
    /* A node that joined: the host is lost, and why. Then this node may take over, follow another
     * one, or give up. NULL: the job ends here. */
    void (*orphaned)(void *context, const char *why, int64_t silent_ns);
    /* The host, after it has taken over: a node that another one coordinated; false: it is not
     * known. returned: and now messages can be sent to it. */
    bool (*returns)(void *context, int node, uint64_t id, ls_members_node *about_out);
    void (*returned)(void *context, int node);
    bool successors; /* on a node that joined: another node could be the host */
    void *context;
} ls_rendezvous_hooks;

/* The host listens from now on; a node that joins has connected. */
ls_status ls_rendezvous_open(ls_rendezvous **rendezvous_out, const ls_rendezvous_args *args,
                             int64_t deadline_ns);
void ls_rendezvous_close(ls_rendezvous *rendezvous); /* NULL is allowed */

/* Before the nodes meet: the job heals. hooks is borrowed until it is closed. */
ls_status ls_rendezvous_attach(ls_rendezvous *rendezvous, const ls_rendezvous_hooks *hooks);

/* Bytes for the other side's heard(): to a node, or from a node to the host. A node that is gone
 * by now does not get them. The host: let a newcomer begin; send a node away. */
void ls_rendezvous_tell(ls_rendezvous *rendezvous, int node, const void *bytes, size_t len);
void ls_rendezvous_call(ls_rendezvous *rendezvous, int node);
void ls_rendezvous_expel(ls_rendezvous *rendezvous, int node, const char *why);

/* Where the host is lost (rendezvous_failover.c). Before that, a node that joined: listen for
 * nodes that would join here, at the host's port if it is free. port_out: also of the host. */
ls_status ls_rendezvous_reserve(ls_rendezvous *rendezvous, uint16_t *port_out);
/* This node is the host now, of about this many nodes; newcomers get numbers from next_node on. */
ls_status ls_rendezvous_take_over(ls_rendezvous *rendezvous, int nodes, int next_node);
/* Another node is: come back to it, as this node. LS_EIO, LS_EDEADLINE: it cannot be reached. */
ls_status ls_rendezvous_follow(ls_rendezvous *rendezvous, const char *address, int node,
                               uint64_t id, int64_t deadline_ns);
/* There is no host that this node can follow; or, on the host, another one leads: the job ends
 * here, and no node hears of it. The thread's record says why. */
void ls_rendezvous_give_up(ls_rendezvous *rendezvous);
bool ls_rendezvous_is_linked(const ls_rendezvous *rendezvous); /* to the host */

/* A node that joined: whether the connection ended while the job ran, without a reason. The
 * coordinator may be gone, or may have taken this node for lost. */
bool ls_rendezvous_was_dropped(const ls_rendezvous *rendezvous);

/* A node that joined, when meeting has failed: whether the job has ended well without this node. */
bool ls_rendezvous_did_without(const ls_rendezvous *rendezvous);

/* The host's address, for nodes that join. */
const char *ls_rendezvous_address(const ls_rendezvous *rendezvous);

/* A node that joined without ranks: what to run, and then the ranks that this node brings. ports as
 * in the arguments. LS_EUSAGE: refused, and why. */
ls_status ls_rendezvous_ask(ls_rendezvous *rendezvous, ls_job_spec *work, int64_t deadline_ns);
ls_status ls_rendezvous_bring(ls_rendezvous *rendezvous, int ranks, const uint16_t *ports);

/* Until all nodes are there. LS_EDEADLINE says which came. LS_EUSAGE: refused, and why. */
ls_status ls_rendezvous_meet(ls_rendezvous *rendezvous, int64_t deadline_ns);

/* After that: the members (borrowed), and which node this is. NULL: no memory for them. */
const ls_members *ls_rendezvous_members(ls_rendezvous *rendezvous);
int ls_rendezvous_node(const ls_rendezvous *rendezvous);

/* A node that joined: the names of all. */
ls_status ls_rendezvous_learn(const ls_rendezvous *rendezvous, ls_roster *roster);

/* Version and content of this program, as nodes report it to each other. */
enum { LS_RENDEZVOUS_VERSION = 96 };
void ls_rendezvous_own_version(char version_out[LS_RENDEZVOUS_VERSION]);

/* While the job runs: when this descriptor is readable, attend. Returns LS_OK, or once the reason
 * for which the job ends: LS_EPEER for a failure elsewhere, LS_EINTR when a user asked for it. */
int ls_rendezvous_fd(const ls_rendezvous *rendezvous);
ls_status ls_rendezvous_attend(ls_rendezvous *rendezvous);

/* A rank of this node failed, or the job was asked to end here: all others will know. Only the
 * first call says anything. */
void ls_rendezvous_fail(ls_rendezvous *rendezvous, int code, const ls_err_record *why);

/* The ranks of this node have ended with this code. Wait until all nodes have; the code of the
 * whole job. */
ls_status ls_rendezvous_end(ls_rendezvous *rendezvous, int code, int *code_out);

LS_C_END
