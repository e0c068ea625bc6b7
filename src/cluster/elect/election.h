/* election.h -- the rules of quorum.h with sockets, a clock and a disk: the agents of a job that
 * can lose its coordinator.
 *
 * Every node of the job has an *endpoint*: a number, and the ports at which it is reached. Nodes
 * talk over connections of their own. While the coordinator lives, only it calls; a node that
 * wants to succeed it calls the others. Messages may be lost: they are repeated.
 *
 *     the coordinator   found() begins the line of views; agree() before each further one
 *     all               attend() when the descriptor is readable; leader() names the coordinator
 *
 * A promise is on this machine's disk before anything that depends on it is sent: in
 * LINESHAFT_STATE or /var/tmp/lineshaft-UID, for as long as the agent runs. An agent that is
 * started again is a new node with a new number, so a promise that is lost is that of a number
 * that nobody has. One thread. */
#pragma once
#include "cluster/member/members.h"
#include "cluster/elect/quorum.h"

LS_C_BEGIN

typedef struct ls_election_endpoint {
    uint64_t id;       /* its number among the votes; 0: not known yet */
    int node, workers; /* its number in the job (coordinator.h), and what it brings */
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    uint16_t port;      /* where its election listens */
    uint16_t join_port; /* where others would join it (rendezvous.h) */
    bool away;          /* the coordinator's: it has not come to it yet */
} ls_election_endpoint;

typedef struct ls_election_args {
    const char *ip;        /* of this node */
    const uint8_t *secret; /* 32 bytes, borrowed until it is closed */
    int64_t beat_ns, suspect_ns, dead_ns;
} ls_election_args;

typedef struct ls_election ls_election;

/* LS_EIO: no place for promises, and what to do. */
ls_status ls_election_open(ls_election **election_out, const ls_election_args *args);
void ls_election_close(ls_election *election); /* takes the promise away; NULL is allowed */

uint64_t ls_election_id(const ls_election *election);
uint16_t ls_election_port(const ls_election *election);

/* The endpoints of all nodes; replaces what was known. */
ls_status ls_election_learn(ls_election *election, const ls_election_endpoint *endpoints, int n);
const ls_election_endpoint *ls_election_find(const ls_election *election,
                                             uint64_t id); /* NULL: not known */
const ls_election_endpoint *ls_election_endpoints(const ls_election *election, int *n_out);

/* As bytes and back. LS_EDATA: damaged. */
void ls_election_encode(const ls_election_endpoint *endpoints, int n, ls_str *out);
ls_status ls_election_decode(const void *bytes, size_t len, ls_election_endpoint **endpoints_out,
                             int *n_out);

/* The first coordinator of a job: the nodes that it begins with, itself first. */
void ls_election_found(ls_election *election, const uint64_t *member, int n, int64_t now_ns);
bool ls_election_founded(const ls_election *election);

/* The coordinator: the generation, above `above`, of a view of these nodes (itself first) that
 * enough of them have accepted. 0: not yet; ask again. */
uint64_t ls_election_agree(ls_election *election, const uint64_t *member, int n, uint64_t above,
                           int64_t now_ns);

/* Readable: attend. lives: this node has other signs that its coordinator lives. */
int ls_election_fd(const ls_election *election);
void ls_election_attend(ls_election *election, bool lives, int64_t now_ns);

/* The connection to the coordinator has ended: successors need not wait. */
void ls_election_suspect(ls_election *election, int64_t now_ns);

/* The node that coordinates, and in which term; 0: none that is known. */
uint64_t ls_election_leader(const ls_election *election, uint64_t *term_out);

/* The newest view that this node has accepted. */
const ls_quorum_view *ls_election_view(const ls_election *election);

/* Whether this node can have a part in the next view: it is in the present one, others have not
 * reported a newer one, and without their coordinator its nodes can still be enough. */
bool ls_election_may_elect(const ls_election *election);

LS_C_END
