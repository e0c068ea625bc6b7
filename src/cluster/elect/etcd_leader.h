/* etcd_leader.h -- which node coordinates a job, where etcd decides that (heal.quorum: etcd)
 * instead of the votes of its nodes: so of two machines the other one can go on when the first is
 * lost.
 *
 *   lineshaft/RUN/leader   "ID", the launcher of the job (run_lease.h); or "ID#NODE", the node that
 *                          has succeeded it: under a lease of 5 s
 *   lineshaft/RUN/owner    "ID": the job that may write the run, whichever node coordinates it
 *   lineshaft/RUN/view     "GENERATION ID NODE NODE ...": the last view, by its coordinator
 *
 * A transaction that compares leader and the view before makes a view, so a coordinator that
 * slept makes none. When the lease has run out, the first node of the last view that writes its
 * name there, for the same owner, is the next coordinator. Clocks decide when to try, etcd what
 * is allowed.
 *
 * A thread of its own asks etcd; all calls here return at once. One thread calls. */
#pragma once
#include "cluster/elect/quorum.h"

LS_C_BEGIN

enum { LS_ETCD_LEADER_TEXT = 512 };

typedef struct ls_etcd_leader ls_etcd_leader;

typedef struct ls_etcd_leader_args {
    char etcd[LS_ETCD_LEADER_TEXT];      /* URLs, separated by blanks */
    char run_lease[LS_ETCD_LEADER_TEXT]; /* "ID/RUN" (LS_RUN_LEASE_VARIABLE) */
    uint64_t self;                       /* this node's number (election.h) */
    bool first;                          /* on the launcher's machine, which has the lease */
} ls_etcd_leader_args;

ls_status ls_etcd_leader_open(ls_etcd_leader **etcd_leader_out, const ls_etcd_leader_args *args);
void ls_etcd_leader_close(ls_etcd_leader *etcd_leader); /* gives the lead back; NULL is allowed */

int ls_etcd_leader_fd(const ls_etcd_leader *etcd_leader); /* readable: something has changed */

/* The coordinator: the generation, above `above`, of a view of these nodes that is written there;
 * 0: not yet, ask again. */
uint64_t ls_etcd_leader_agree(ls_etcd_leader *etcd_leader, const uint64_t *member, int n,
                              uint64_t above);

/* The coordinator is lost, or is there: look for the next one, or be it; stop looking. */
void ls_etcd_leader_seek(ls_etcd_leader *etcd_leader, bool seeks);

/* The node that coordinates, by its number; 0: not known; of the launcher too, while nobody has
 * succeeded it. turn_out: how often that has changed. */
uint64_t ls_etcd_leader_leader(ls_etcd_leader *etcd_leader, uint64_t *turn_out);

/* The last view, as far as this node has read or written it. */
const ls_quorum_view *ls_etcd_leader_view(ls_etcd_leader *etcd_leader);

LS_C_END
