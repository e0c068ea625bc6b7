/* view.h -- the members of a job, generation after generation: the rules, without processes,
 * sockets or clocks.
 *
 * A *worker* is a place on a node; the process in it may be a new one. Those of a node stand
 * together, in the order in which the nodes came. A *view* is a generation with the workers that
 * are in it, numbered as ranks. A view is made when every living worker waits for one; it ends
 * when one of its workers dies, or reports that it has lost the others.
 *
 *   state   of a worker                               leaves it
 *   NEW     its process begins, no view waits for it  reports -> WAITS; ends -> OUT
 *   AWAY    its process begins                        reports -> WAITS; ends -> AWAY or OUT
 *   WAITS   has reported, and waits for a view        next -> IN; ends -> AWAY or OUT
 *   IN      has been given the view                   reports -> WAITS; ends -> AWAY or OUT;
 *                                                     leaves -> DONE
 *   DONE    has ended well
 *   OUT     is dead and will not be started again
 *
 * recovery_policy.h decides what follows when a worker ends, and which workers are in
 * the next view.
 *
 * A *joiner* has come to a job that runs, and has not been ready to train in a view yet: whatever
 * goes wrong with it does not disturb the others.
 *
 * Where several ranks hold one model (rules.unit, the product of pp, tp, cp and ep), a view has a
 * multiple of that many ranks. Of each part of the model it takes a rank that holds it, as long
 * as one is left; where each rank holds a whole model and shares only sequences, it takes the
 * ranks that have come farthest. A worker that is not needed stays in WAITS, as a spare with its
 * state, until ranks are lost or the work is done. Example, unit 2, two models of the parts A and
 * B:
 *
 *     rank    0   1   2   3
 *     holds   A   A   B   B      rank 2 is lost for good: ranks 0 and 3 go on, and the worker that
 *                                was rank 1 waits */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_VIEW_WORKERS = 131072, LS_VIEW_STEPLESS = 3 };

typedef enum ls_view_state {
    LS_VIEW_AWAY,
    LS_VIEW_WAITS,
    LS_VIEW_IN,
    LS_VIEW_DONE,
    LS_VIEW_OUT,
    LS_VIEW_NEW,
    LS_VIEW_STATES
} ls_view_state;

/* What a worker says of itself when it asks for a view. */
typedef struct ls_view_report {
    int64_t have;    /* steps that are in its weights and moments; -1: it has no whole state */
    int64_t reached; /* steps that it saw done; -1: none */
    int64_t met;  /* the step after which it last did the work between steps: saving, validation */
    int32_t port; /* where it listens for ranks of other nodes; 0: nowhere */
    uint32_t serial;   /* the agent's number for this report, so that no older one is answered */
    int32_t part;      /* its part of a model that several ranks hold, from 1; 0: none */
    int32_t unreached; /* the rank of the last view that it could not reach, from 1; 0: none */
    int32_t unit;      /* as in the rules, if it is known to be so; 0: it is not */
} ls_view_report;

typedef struct ls_view_rules {
    int restarts; /* how often a worker that dies is started again */
    int least;    /* ranks to go on with */
    int most;     /* ranks and spares that the job may have; 0: LS_VIEW_WORKERS */
    int unit;     /* ranks of one replica of the model; 0 and 1: each rank has one.
                   * Where the ranks choose that, their reports say it later */
} ls_view_rules;

typedef struct ls_view_member {
    ls_view_state state;
    int restarts; /* so far */
    int rank;     /* in the view; -1: not in it */
    bool joiner;
    bool chosen; /* for the next view, while it is made */
    ls_view_report report;
} ls_view_member;

typedef struct ls_view {
    ls_view_rules rules;
    int workers;
    ls_view_member *member;    /* owned */
    int room;                  /* members that it can hold */
    int count[LS_VIEW_STATES]; /* of those in each state */
    int waiting_joiners;
    uint64_t generation;         /* of the last view; 0: none yet */
    bool begun;                  /* the first rank of a view was ready to train */
    bool first_lost;             /* the first rank that was ready last is dead */
    int restarted, lost;         /* since the last view */
    int64_t reached;             /* as the last view knew it */
    int stepless;                /* views in a row that brought no step */
    char error[640], again[640]; /* the last error that ended a worker; the same twice: in again */
} ls_view;

/* How a process ended. */
typedef struct ls_view_end {
    int signal;                 /* that killed it, or 0 */
    int code;                   /* otherwise: its exit code */
    const ls_err_record *error; /* the record that it sent; NULL: none */
    bool asked;                 /* the user has asked the job to stop: no worker is started again */
    bool gone;                  /* with its node: it cannot be started again */
} ls_view_end;

/* What follows for a worker that ended: recovery_policy.h decides it. */
typedef enum ls_view_verdict {
    LS_VIEW_STOP,    /* the job must end */
    LS_VIEW_RESTART, /* start it again */
    LS_VIEW_DROP,    /* go on without it */
    LS_VIEW_LATER    /* the coordinator has been asked */
} ls_view_verdict;

/* A view as it is announced. */
typedef struct ls_view_plan {
    uint64_t generation;
    int ranks;
    int64_t reached;     /* the most steps that a rank saw done; -1: none */
    int64_t base;        /* steps that are in a state; -1: no rank has a whole one */
    int source;          /* a rank that has them; -1: none */
    bool spread;         /* some rank lacks them */
    int64_t met;         /* the step after which all did the work between steps */
    bool first_new;      /* the process that was the first rank when all were last ready is dead */
    int restarted, lost; /* workers since the view before: started again, given up */
    int joined;          /* joiners in it */
} ls_view_plan;

/* What is left of a view when its coordinator is lost. */
typedef struct ls_view_past {
    uint64_t generation; /* 0: there was none */
    bool begun;          /* it, or one before, has trained */
    int64_t reached;     /* steps that were known to be done when it was made; -1: none */
} ls_view_past;

/* LS_ENOMEM: then there is nothing to release. */
ls_status ls_view_init(ls_view *view, int workers, ls_view_rules rules);
void ls_view_release(ls_view *view);

/* Make room for this many workers in all. */
ls_status ls_view_reserve(ls_view *view, int workers);

/* More workers, for whom there is room, behind all others: the first of them. They are joiners,
 * unless the job waits for them. And those of a node that is gone, without a trace. */
int ls_view_add(ls_view *view, int workers, bool needed);
void ls_view_remove(ls_view *view, int first, int workers);

/* The last view is one that another coordinator made, of which this is known. */
void ls_view_resume(ls_view *view, const ls_view_past *past);
/* In it a worker that is away had this rank (-1: none), or was given up by then. */
void ls_view_set_resumed(ls_view *view, int worker, int rank, bool out);

void ls_view_reports(ls_view *view, int worker, const ls_view_report *report);
void ls_view_set_ready(ls_view *view, int worker); /* it is ready to train */
/* It has ended well: then all have done their work, though some may not have ended yet. */
void ls_view_set_left(ls_view *view, int worker);

/* Whether every living worker waits for a view, and at least one does. */
bool ls_view_complete(const ls_view *view);

/* Workers that are in a view, wait for one or will. */
int ls_view_alive(const ls_view *view);
/* The fewest ranks that a view may have. */
int ls_view_least(const ls_view *view);
/* Whether fewer are alive than that. */
bool ls_view_is_short(const ls_view *view);
/* Whether joiners wait for a view, and no other joiner is on its way. */
bool ls_view_has_guests(const ls_view *view);

LS_C_END
