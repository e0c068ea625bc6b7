/* pp_schedule.h -- what each rank of a pipeline computes, in which order: the tables of all ranks.
 *
 * A model is cut into stages; stage s belongs to rank s % ranks, and is chunk s / ranks there. A
 * step takes `micros` micro-batches through all stages and back. A table says for each rank, in
 * order, what it computes and what it sends and receives. It is built for all ranks together, so
 * that every send has its place in the receiver's order too, and can be proved before anything runs
 * (ls_pp_schedule_prove). Pure: nothing here knows of models, processes or time of day.
 *
 * Example, 1F1B with 2 ranks and 3 micro-batches (F forward, B backward, > send, < receive):
 *   rank 0: F0 >F0 F1 >F1 <B0 B0 F2 >F2 <B1 B1 <B2 B2
 *   rank 1: <F0 F0 <F1 B0 >B0 F1 B1 <F2 >B1 F2 B2 >B2 */
#pragma once
#include "base/str.h"
#include "comm/cost.h"

LS_C_BEGIN

typedef enum ls_pp_schedule_kind {
    LS_PP_SCHEDULE_GPIPE,
    LS_PP_SCHEDULE_1F1B,
    LS_PP_SCHEDULE_INTERLEAVED,
    LS_PP_SCHEDULE_ZERO_BUBBLE,
    LS_PP_SCHEDULE_KINDS
} ls_pp_schedule_kind;

/* "gpipe", "1f1b", "interleaved", "zero-bubble". */
extern const char *const ls_pp_schedule_names[LS_PP_SCHEDULE_KINDS];

typedef enum ls_pp_schedule_what {
    LS_PP_SCHEDULE_FORWARD,
    LS_PP_SCHEDULE_BACKWARD,        /* gradients of inputs and of weights */
    LS_PP_SCHEDULE_BACKWARD_INPUT,  /* of inputs only: the stage before can go on */
    LS_PP_SCHEDULE_BACKWARD_WEIGHT, /* of weights only: no other rank waits for it */
    LS_PP_SCHEDULE_SEND,
    LS_PP_SCHEDULE_RECV
} ls_pp_schedule_what;

typedef struct ls_pp_schedule_op {
    ls_pp_schedule_what what;
    int micro, chunk; /* of a send and a receive: of this rank, whose result or input it is */
    int peer;         /* sends and receives: the other rank */
    bool back;        /* sends and receives: a gradient */
} ls_pp_schedule_op;

/* Most (micro-batch, stage) pairs of a table. */
enum { LS_PP_SCHEDULE_MOST = 1 << 18 };

typedef struct ls_pp_schedule {
    ls_pp_schedule_kind kind;
    int ranks, micros, chunks; /* chunks of each rank; 1 unless interleaved */
    ls_pp_schedule_op *ops;    /* owned; rank after rank */
    int *first;                /* owned; [ranks + 1], of each rank's operations */
} ls_pp_schedule;

/* LS_EUSAGE: a combination that makes no table, with the reason. */
ls_status ls_pp_schedule_init(ls_pp_schedule *pipeline, ls_pp_schedule_kind kind, int ranks,
                              int micros, int chunks);
void ls_pp_schedule_release(ls_pp_schedule *pipeline);

static inline int ls_pp_schedule_stages(const ls_pp_schedule *p)
{
    return p->ranks * p->chunks;
}

/* Proves from the table alone, whoever made it: every rank does everything once, nothing before
 * what it needs, every send meets its receive, and no rank waits for ever even where a send blocks
 * until the receiver has come to it. peaks_out (NULL, or [ranks]): the most micro-batches of a
 * chunk that a rank holds activations of at a time, from forward until all its gradients are made.
 * LS_EDATA: not so; the message says where. */
ls_status ls_pp_schedule_prove(const ls_pp_schedule *pipeline, int *peaks_out);

/* --- time -------------------------------------------------------------------------------------
 */

/* What the stages take, in any unit of time, each an array of all stages. */
typedef struct ls_pp_schedule_costs {
    const double *forward;
    const double *backward; /* inputs and weights */
    const double *weight;   /* the part of it for weights; only zero-bubble asks */
    ls_cost_link link;      /* in the same unit of time */
    int64_t bytes;          /* of a micro-batch between two stages */
} ls_pp_schedule_costs;

typedef struct ls_pp_schedule_times {
    double *start, *end; /* owned; of each operation of the table */
    double *busy;        /* owned; [ranks], what a rank computes in all */
    double step;         /* until the last rank is done */
    double bubble;       /* share of all ranks' time in which they compute nothing */
} ls_pp_schedule_times;

/* Simulate a proven table: ranks compute in table order, messages go beside that, by the
 * model of comm/cost.h, each port in table order. */
ls_status ls_pp_schedule_simulate(const ls_pp_schedule *pipeline, const ls_pp_schedule_costs *costs,
                                  ls_pp_schedule_times *times_out);
void ls_pp_schedule_times_release(ls_pp_schedule_times *times);

/* --- formulas ---------------------------------------------------------------------------------
 * For equal stages and links that cost nothing: forward, backward and weight are those of a rank
 * (all its chunks together). tests/layout/test_pp_schedule.c holds tables against them. */

typedef struct ls_pp_schedule_ask {
    ls_pp_schedule_kind kind;
    int ranks, micros, chunks;
    double forward, backward, weight;
} ls_pp_schedule_ask;

/* Time of a step in which a rank computes nothing. True where ls_pp_schedule_is_known(). */
double ls_pp_schedule_idle(const ls_pp_schedule_ask *ask);
bool ls_pp_schedule_is_known(const ls_pp_schedule_ask *ask);

LS_C_END
