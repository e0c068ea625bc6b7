/* synod.h -- the agents of a job that can lose its coordinator: the rules of quorum.h with sockets,
 * a clock and a disk.
 *
 * Every node of the job has a *seat*: a number, and the ports at which it is reached. Coordinator
 * and nodes talk over connections of their own; while the coordinator lives only it calls, and who
 * wants to succeed it calls the others. Messages may be lost: they are repeated.
 *
 *     the coordinator   found() begins the line of views; agree() before each further one
 *     all               attend() when the descriptor is readable; leader() says who coordinates
 *
 * A promise is on this machine's disk before anything that depends on it is sent: in
 * LINESHAFT_STATE or /var/tmp/lineshaft-UID, for as long as the agent runs. An agent that is
 * started again is a new node with a new number, so a promise that is lost is that of a number that
 * nobody has. One thread. */
#pragma once
#include "cluster/members.h"
#include "cluster/quorum.h"

LS_C_BEGIN

typedef struct ls_synod_seat {
    uint64_t id;       /* its number among the votes; 0: not known yet */
    int node, workers; /* its number in the job (parish.h), and what it brings */
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    uint16_t port; /* where its synod listens */
    uint16_t door; /* where others would join it (rendezvous.h) */
    bool away;     /* the coordinator's: it has not come to it yet */
} ls_synod_seat;

typedef struct ls_synod_args {
    const char *ip;        /* of this node */
    const uint8_t *secret; /* 32 bytes, borrowed until it is closed */
    int64_t beat_ns, suspect_ns, dead_ns;
} ls_synod_args;

typedef struct ls_synod ls_synod;

/* LS_EIO: no place for promises, and what to do. */
ls_status ls_synod_open(ls_synod **synod_out, const ls_synod_args *args);
void ls_synod_close(ls_synod *synod); /* takes the promise away; NULL is allowed */

uint64_t ls_synod_id(const ls_synod *synod);
uint16_t ls_synod_port(const ls_synod *synod);

/* Who sits where; replaces what was known. */
ls_status ls_synod_learn(ls_synod *synod, const ls_synod_seat *seats, int n);
const ls_synod_seat *ls_synod_find(const ls_synod *synod, uint64_t id); /* NULL: not known */
const ls_synod_seat *ls_synod_seats(const ls_synod *synod, int *n_out);

/* As bytes and back. LS_EDATA: damaged. */
void ls_synod_encode(const ls_synod_seat *seats, int n, ls_str *out);
ls_status ls_synod_decode(const void *bytes, size_t len, ls_synod_seat **seats_out, int *n_out);

/* The first coordinator of a job: the nodes that it begins with, itself first. */
void ls_synod_found(ls_synod *synod, const uint64_t *member, int n, int64_t now_ns);
bool ls_synod_founded(const ls_synod *synod);

/* The coordinator: the generation, above `above`, of a view of these nodes (itself first) that
 * enough of them have accepted. 0: not yet; ask again. */
uint64_t ls_synod_agree(ls_synod *synod, const uint64_t *member, int n, uint64_t above,
                        int64_t now_ns);

/* Readable: attend. lives: this node has other signs that its coordinator lives. */
int ls_synod_fd(const ls_synod *synod);
void ls_synod_attend(ls_synod *synod, bool lives, int64_t now_ns);

/* The connection to the coordinator has ended: successors need not wait. */
void ls_synod_suspect(ls_synod *synod, int64_t now_ns);

/* Who coordinates, in which term; 0: nobody that is known. */
uint64_t ls_synod_leader(const ls_synod *synod, uint64_t *term_out);

/* The newest view that this node has accepted. */
const ls_quorum_view *ls_synod_view(const ls_synod *synod);

/* Whether this node can have a part in the next view: it is in the present one, others have not
 * told of a newer one, and without their coordinator its nodes can still be enough. */
bool ls_synod_has_hope(const ls_synod *synod);

LS_C_END
