/* tune.h -- link numbers of a communicator, and the way that each collective takes by them.
 *
 * All ranks hold the same numbers: pairs of ranks measure them and all agree (the slowest pair
 * counts), or rank 0 reads them from a file and sends them to all. A choice is a pure function of
 * those numbers and the collective; no rank ever uses its own clock for it. Where the model finds
 * two ways nearly equal, both can be timed (ls_tune_settle): the slowest rank of each call counts,
 * so all ranks learn the same, and remember it.
 *
 * Numbers and settled choices are kept on disk for the next job of the same topology (tune_file.h).
 * LINESHAFT_TUNE=off on rank 0: nothing is measured, read or written, and the model works with its
 * assumptions. Calls marked "all ranks" are collective, and nothing else may be in flight on the
 * communicator: LS_EUSAGE. */
#pragma once
#include "comm/comm.h"
#include "comm/cost.h"
#include "device/cpu/cpus.h"

LS_C_BEGIN

enum { LS_TUNE_PICKS = 64, LS_TUNE_PATH = 512, LS_TUNE_NAME = 24, LS_TUNE_TOPOLOGY = 2048 };
enum { LS_TUNE_PAIRS = 128, LS_TUNE_REASON = 112 };

typedef enum ls_tune_source {
    LS_TUNE_ASSUMED, /* not measured */
    LS_TUNE_MEASURED,
    LS_TUNE_REMEMBERED, /* read from the file */
} ls_tune_source;

/* Two ways that the model found nearly equal, and which one was faster. */
typedef struct ls_tune_pick {
    int kind, ranks, size; /* ls_coll_kind; bytes of an element */
    int64_t bytes;         /* count * size of the collective; an eighth more or less is the same */
    char way[LS_TUNE_NAME], other[LS_TUNE_NAME];
    double way_ns, other_ns;
    bool remembered; /* read from the file */
} ls_tune_pick;

/* From one node to another, as the members number them. */
typedef struct ls_tune_pair {
    int from, to;
    ls_cost_link link;
} ls_tune_pair;

typedef struct ls_tune {
    bool off; /* as LINESHAFT_TUNE on rank 0 says */
    ls_tune_source source;
    bool has_between, has_inside, has_memory; /* measured, now or earlier; else assumed */
    ls_cost_link between, inside;             /* nodes; ranks of a node, over the shm transport */
    ls_cost_memory memory;                    /* of a node, without a transport */
    double combine_ns_per_byte;
    int pairs; /* of nodes that were measured: each with all others up to 8 nodes, then each with
                  those at distances of powers of two, as long as there is room, or none */
    ls_tune_pair pair[LS_TUNE_PAIRS];
    int64_t took_ns; /* of measuring, at the slowest rank */
    int picks;
    ls_tune_pick pick[LS_TUNE_PICKS];
    char path[LS_TUNE_PATH]; /* where it is kept; "": nowhere */
} ls_tune;

/* What is assumed until links are measured: 1 Gbit/s between nodes, kernel TCP. */
void ls_tune_init(ls_tune *tune);

/* Numbers for this communicator, remembered or measured now; all ranks. Remembered numbers are
 * first compared with one message: a link that has become 2.5 times faster or slower is measured
 * anew. ls_comm_open() calls it when there are several nodes. */
ls_status ls_tune_open(ls_comm *comm, int64_t deadline_ns);

/* Measure now and agree. At 1 Gbit/s this takes about 20 ms for each direction of the circle of
 * nodes, at most three one after the other, and 5 ms for other pairs. All ranks. */
ls_status ls_tune_measure(ls_comm *comm, int64_t deadline_ns);

/* What was measured from one node (ls_comm_node()) to another, or NULL. */
const ls_cost_link *ls_tune_between(const ls_comm *comm, int from, int to);

/* Where each rank may run on its machine; places_out has room for all ranks. All ranks. */
ls_status ls_tune_places(ls_comm *comm, int64_t deadline_ns, ls_cpus_place *places_out);

/* The largest value that any rank passes, for each number; zeros: this rank knows nothing. The
 * first link is between nodes, the second inside a node. All ranks. */
ls_status ls_tune_agree(ls_comm *comm, const ls_cost_link links[2], int64_t deadline_ns);

/* How long one call takes here; buffers are scratch. */
typedef ls_status (*ls_tune_timer)(void *context, ls_comm *comm, const ls_coll *coll,
                                   int64_t deadline_ns, int64_t *ns_out);

/* If the two cheapest ways of this collective are within a fifth of each other and were not timed
 * yet: time both, agree, and keep the faster one. The collective's buffers are not touched. timer
 * NULL: the clock. All ranks. */
ls_status ls_tune_settle(ls_comm *comm, const ls_coll *coll, ls_tune_timer timer, void *context,
                         int64_t deadline_ns);

/* The same for every collective that was started at least twice on this communicator (a trainer
 * calls it after its second step), as long as the model expects all trials to take less than
 * budget_ns. sums false: not for reductions, because their last bits depend on the way. All ranks.
 * From then on nothing is noted any more, and a second call does nothing. */
ls_status ls_tune_settle_used(ls_comm *comm, bool sums, int64_t budget_ns, int64_t deadline_ns);

const ls_tune *ls_tune_of(const ls_comm *comm);

typedef enum ls_tune_why {
    LS_TUNE_BY_MODEL,
    LS_TUNE_BY_MEASURE, /* settled by this job */
    LS_TUNE_BY_MEMORY,  /* settled by an earlier one */
    LS_TUNE_BY_FORCE,   /* ls_comm_force() */
    LS_TUNE_BY_RULE     /* direct is taken where it can be, levels for large buffers */
} ls_tune_why;
const char *ls_tune_why_name(ls_tune_why why); /* "model", "measured", "remembered", ... */

/* The schedule that a collective takes: choice_out->best. `across`: between ranks at the same
 * position of all nodes, as part of levels; they share a node's wire. */
ls_tune_why ls_tune_choose(const ls_comm *comm, const ls_coll *coll, bool across,
                           ls_cost_choice *choice_out);

/* All ways of a collective. */
typedef struct ls_tune_row {
    const char *way, *by; /* "ring" by "schedule", "direct" by "memory", "levels" by "levels" */
    const char *refuses;  /* why it cannot be taken, or NULL; then: */
    double predicted_ns;  /* -1: it refuses */
    int64_t sent;         /* bytes of rank 0 (levels: of its node, to others); -1: it refuses */
    char reason[LS_TUNE_REASON]; /* why it is taken, or is not */
} ls_tune_row;

typedef struct ls_tune_table {
    ls_tune_row rows[LS_COST_CANDIDATES + 2];
    int count, chosen; /* -1: none can do it */
    ls_tune_why why;
} ls_tune_table;

void ls_tune_explain(const ls_comm *comm, const ls_coll *coll, ls_tune_table *table_out);

LS_C_END
