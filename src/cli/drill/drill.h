/* drill.h -- what `lineshaft drill` is made of: a catalogue of faults, runs that suffer them, and
 * what is checked afterwards.
 *
 * A *row* is one fault. It is played in a run folder of its own: the run is started as a user
 * would start it, with the fault's plan (base/fault.h) in its environment or struck from here by a
 * signal; when it ends by itself with a failure, it is started again without the plan, as a
 * scheduler would. Then its weights, losses, checkpoints and leftovers are compared with those of
 * the undisturbed run. */
#pragma once
#include <sys/types.h>
#include "base/rng.h"
#include "base/str.h"
#include "config/run.h"

enum {
    LS_DRILL_STEPS = 65536, /* most steps of a drill */
    LS_DRILL_SETS = 64,
    LS_DRILL_STARTS = 4 /* how often a run may be started in one row */
};

/* How a fault comes about. */
typedef enum ls_drill_kind {
    LS_DRILL_PLAN,      /* the plan strikes in a rank */
    LS_DRILL_RANDOM,    /* SIGKILL to a random rank at a random instant */
    LS_DRILL_AGENT,     /* SIGKILL to the agent of the ranks */
    LS_DRILL_TERM,      /* SIGTERM to it: asked to stop, then started again */
    LS_DRILL_PAUSE,     /* SIGSTOP to a random rank, SIGCONT a second later */
    LS_DRILL_OBJECT,    /* stopped; one bit of an object of the newest checkpoint is flipped */
    LS_DRILL_MANIFEST,  /* stopped; one bit of the newest manifest is flipped */
    LS_DRILL_UNPLUGGED, /* two hosts: the network of the second one goes down */
    LS_DRILL_BETWEEN,   /* two hosts: the plan strikes what a rank sends */
    LS_DRILL_HOST       /* three hosts: SIGKILL to the agent of the first one */
} ls_drill_kind;

typedef struct ls_drill_row {
    const char *name; /* "kill.backward": the part before the dot is its group */
    ls_drill_kind kind;
    const char *plan;    /* $S: a step, $R: a rank, $V: a random number of a visit */
    const char *sets[4]; /* settings of this row, NULL-terminated */
    const char
        *incident; /* kind of incident that must be reported once where ranks heal; NULL: none is */
    bool alone;    /* makes sense with one rank */
    bool repeats;  /* --count times */
    bool spoils;   /* a save of the step fails; the run itself is not touched */
    bool whole;    /* only where each rank has the whole model in memory of its own */
    const char *what;
} ls_drill_row;

extern const ls_drill_row ls_drill_rows[];
extern const int ls_drill_row_count;

/* What all rows share. */
typedef struct ls_drill {
    const char *run_path; /* of the run file */
    ls_run run;           /* as it is drilled; owned */
    bool heals;           /* ranks that die are replaced */
    bool exact;           /* ordered mode: bits must be equal */
    int ranks;
    int64_t steps, every; /* and between two saves */
    char dir[512];        /* each run has a folder in it */
    const char *sets[LS_DRILL_SETS];
    int n_sets;
    ls_rng_key key; /* of what happens by chance */
    double seconds; /* of the undisturbed run, from its first step to its end */
    double *losses; /* of its steps, owned; [0] is that of step 1 */
    double loss;    /* the last */
    char hash[40];  /* of its weights */
} ls_drill;

/* What a run reported, over all of its starts. */
typedef struct ls_drill_report {
    int starts, code;       /* how often it was started, and its last exit code */
    bool hung, left;        /* it had to be killed; a process of it was left */
    double *losses;         /* by step; NaN: not reported; owned */
    bool differs;           /* a step was reported twice, with different losses */
    char hash[40];          /* "": no summary */
    double loss, seconds;   /* of the summary; from the first step to the end */
    int lost, unsaved;      /* incidents: ranks that were lost, saves that failed */
    int corrupt;            /* of those that were lost: whose memory was found to be wrong */
    int64_t redone;         /* steps that were done again */
    char source[16];        /* where the state came from: memory, checkpoint, restart */
    double recovered_ms;    /* of the last recovery */
    int64_t incident_ns;    /* when it was reported, by our clock */
    int64_t struck_ns;      /* when the fault struck, 0: not known */
    int64_t last_step;      /* that was reported */
    int64_t ended_ns;       /* when the first start ended */
    int64_t rank_pids[256]; /* of the newest generation */
    int n_ranks;
} ls_drill_report;

/* Whether it needs hosts of a lab. */
bool ls_drill_on_hosts(const ls_drill_row *row);

/* Play a row in the folder `out`; row NULL: undisturbed. LS_OK even when the run did not survive:
 * report_out says what happened. number: which repetition it is. */
ls_status ls_drill_play(const ls_drill *drill, const ls_drill_row *row, int number, const char *out,
                        ls_drill_report *report_out);
void ls_drill_report_release(ls_drill_report *report);

/* What is wrong with what was reported and with what the run left in `out`; "" when all is well. */
void ls_drill_judge(const ls_drill *drill, const ls_drill_row *row, const ls_drill_report *report,
                    const char *out, ls_str *why_out);

/* Flip a bit of the newest checkpoint in `out`: of an object that only it has, or of its manifest.
 */
ls_status ls_drill_damage(const char *out, bool manifest);

/* Remove a folder and what is in it. */
void ls_drill_remove(const char *path);
