/* regent.h -- who coordinates a job, where etcd decides that (heal.quorum: etcd) instead of the
 * votes of its nodes: so of two machines the other one can go on when the first is lost.
 *
 *   lineshaft/RUN/leader   "ID", the launcher of the job (tenure.h); or "ID#NODE", who has
 * succeeded it: under a lease of 5 s lineshaft/RUN/owner    "ID": the job that may write the run,
 * whoever of it coordinates lineshaft/RUN/view     "GENERATION ID NODE NODE ...": the last view, by
 * its coordinator
 *
 * A view is made by a transaction that compares leader and the view before, so one that slept makes
 * none. When the lease has run out, whoever of the last view is first to write its name there, as
 * the same owner, is the next one. Clocks decide when to try, etcd what is allowed.
 *
 * etcd is asked by a thread of its own; all calls here return at once. One thread calls. */
#pragma once
#include "cluster/quorum.h"

LS_C_BEGIN

enum { LS_REGENT_TEXT = 512 };

typedef struct ls_regent ls_regent;

typedef struct ls_regent_args {
    char etcd[LS_REGENT_TEXT];   /* URLs, separated by blanks */
    char tenure[LS_REGENT_TEXT]; /* "ID/RUN" (LS_TENURE_VARIABLE) */
    uint64_t self;               /* this node's number (synod.h) */
    bool first;                  /* on the launcher's machine, which has the lease */
} ls_regent_args;

ls_status ls_regent_open(ls_regent **regent_out, const ls_regent_args *args);
void ls_regent_close(ls_regent *regent); /* gives the lead back; NULL is allowed */

int ls_regent_fd(const ls_regent *regent); /* readable: something has changed */

/* The coordinator: the generation, above `above`, of a view of these nodes that is written there;
 * 0: not yet, ask again. */
uint64_t ls_regent_agree(ls_regent *regent, const uint64_t *member, int n, uint64_t above);

/* The coordinator is lost, or is there: look for the next one, or be it; stop looking. */
void ls_regent_seek(ls_regent *regent, bool seeks);

/* Who coordinates, by its number; 0: not known; of the launcher too, while nobody has succeeded it.
 * turn_out: how often that has changed. */
uint64_t ls_regent_leader(ls_regent *regent, uint64_t *turn_out);

/* The last view, as far as this node has read or written it. */
const ls_quorum_view *ls_regent_view(ls_regent *regent);

LS_C_END
