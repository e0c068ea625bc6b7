/* tune.h -- numbers of the links a communicator uses, and which way a collective takes by them.
 *
 * All ranks hold the same numbers: they are measured by pairs of ranks and agreed on (the slowest
 * pair counts), or read by rank 0 and sent to all. A choice is a pure function of those and of the
 * collective; no rank ever looks at its own clock for it. Where the model finds two ways nearly
 * equal, both can be timed (ls_tune_settle): the slowest rank of each call counts, so all ranks
 * learn the same, and remember it.
 *
 * Numbers and settled choices are kept on disk for the next job of the same topology
 * (tune_file.h). LINESHAFT_TUNE=off, as rank 0 sees it: nothing is measured, read or written, and
 * the model works with what it assumes. Calls that say "all ranks" are collective; nothing else may
 * be in flight on the communicator: LS_EUSAGE. */
#pragma once
#include "comm/comm.h"
#include "comm/cost.h"
#include "device/cpu/cpus.h"

LS_C_BEGIN

enum { LS_TUNE_PICKS = 64, LS_TUNE_PATH = 512, LS_TUNE_NAME = 24, LS_TUNE_TOPOLOGY = 2048 };
enum { LS_TUNE_PAIRS = 128, LS_TUNE_REASON = 112 };

typedef enum ls_tune_source {
    LS_TUNE_ASSUMED, /* nobody measured */
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
    bool off; /* as LINESHAFT_TUNE says */
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

/* What is assumed until somebody measures: 1 Gbit/s between nodes, kernel TCP. */
void ls_tune_init(ls_tune *tune);

/* Numbers for this communicator, remembered or measured now; all ranks. Remembered ones are held
 * against one message first: a link that has become 2.5 times faster or slower is measured anew.
 * ls_comm_open() calls it when there are several nodes. */
ls_status ls_tune_open(ls_comm *comm, int64_t deadline_ns);

/* Measure now and agree; at 1 Gbit/s about 20 ms for each direction of the circle of nodes, three
 * at most one after the other, 5 ms for other pairs. All ranks. */
ls_status ls_tune_measure(ls_comm *comm, int64_t deadline_ns);

/* What was measured from one node (ls_comm_node()) to another, or NULL. */
const ls_cost_link *ls_tune_between(const ls_comm *comm, int from, int to);

/* Where each rank may run on its machine; places_out has room for all ranks. All ranks. */
ls_status ls_tune_places(ls_comm *comm, int64_t deadline_ns, ls_cpus_place *places_out);

/* The larger of what any rank says, for each number: the first is between nodes, the second inside
 * one; zeros: knows nothing. All ranks. */
ls_status ls_tune_agree(ls_comm *comm, const ls_cost_link links[2], int64_t deadline_ns);

/* How long one call takes here; buffers are scratch. */
typedef ls_status (*ls_tune_timer)(void *context, ls_comm *comm, const ls_coll *coll,
                                   int64_t deadline_ns, int64_t *ns_out);

/* If the two cheapest ways of this collective are within a fifth of each other and were not timed
 * yet: time both, agree, and keep the faster one. Its buffers are not touched. timer NULL: the
 * clock. All ranks. */
ls_status ls_tune_settle(ls_comm *comm, const ls_coll *coll, ls_tune_timer timer, void *context,
                         int64_t deadline_ns);

/* The same for everything that this communicator was asked for at least twice so far (a trainer
 * calls it behind its second step), as long as trials take less than budget_ns in all by the model.
 * sums false: not for what is summed, because last bits depend on the way. All ranks; from then on
 * nothing is noted any more, and a second call does nothing. */
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

/* Which schedule a collective takes: choice_out->best. `across`: between the ranks of the same
 * place of all nodes, as part of levels; they share a node's wire. */
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
