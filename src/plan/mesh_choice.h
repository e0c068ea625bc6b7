/* mesh_choice.h -- mesh: auto: which mesh a run takes on its ranks, and why.
 *
 * Every mesh that the axes allow (a table in mesh_choice.c) is held against what decides elsewhere too:
 * the checks of the run file, those of the mesh, the cut of the model, the ledger. For those that
 * are left the time of a step is predicted from the schedule (layout/pp_schedule.h), the links
 * (comm/cost.h) and the speed of a rank; the quickest is taken. An axis that the user has set keeps
 * its value.
 *
 * Pure: the same facts give the same choice, on every rank and on every day. */
#pragma once
#include "base/json.h"
#include "comm/cost.h"
#include "plan/memory.h"

LS_C_BEGIN

enum { LS_MESH_CHOICE_AXES = 6, LS_MESH_CHOICE_MESH = 96, LS_MESH_CHOICE_WHY = 200 };

/* What it depends on beside the run; equal on all ranks. */
typedef struct ls_mesh_choice_facts {
    int ranks;
    int per_node;  /* ranks of a node, side by side */
    int64_t vocab; /* of the tokenizer */
    const ls_kernels *kernels;
    int threads;                                    /* of a rank */
    bool discrete;                                  /* the device has a memory of its own, */
    int64_t page;                                   /* and windows of such pages; plan/memory.h */
    bool heals;                                     /* ranks that die are replaced */
    int64_t free_bytes, fixed_bytes, program_bytes; /* of a rank; as in plan/memory.h */
    double gflops;                                  /* of a rank, 1e9 operations a second */
    ls_cost_link inside, between;                   /* of ranks of a node; of nodes */
    double combine_ns_per_byte;
} ls_mesh_choice_facts;

typedef struct ls_mesh_choice_row {
    int64_t value[LS_MESH_CHOICE_AXES]; /* of each axis */
    char mesh[LS_MESH_CHOICE_MESH];     /* "dp=2 pp=2 zero-bubble" */
    char why[LS_MESH_CHOICE_WHY];       /* what refuses it; "": nothing */
    ls_recompute recompute;             /* what must be recomputed for it to fit */
    int64_t bytes;                      /* of the rank that needs most */
    double step_ns;                     /* of which the busiest rank */
    double work_ns;                     /*   computes, */
    double idle_ns;                     /*   waits for its turn in a pipeline, */
    double exchange_ns;                 /*   waits for sums and parts of others */
} ls_mesh_choice_row;

typedef struct ls_mesh_choice {
    ls_mesh_choice_facts facts;
    ls_mesh_choice_row
        *rows;      /* owned; those that can be taken by time, the best first, then the others */
    int count, can; /* all; those that can be taken */
} ls_mesh_choice;

/* LS_EUSAGE, LS_ENOMEM: no mesh can be taken, with the nearest and what refuses it; choice_out is
 * made all the same, and must be released. */
ls_status ls_mesh_choice_make(const ls_run *run, const ls_mesh_choice_facts *facts,
                              ls_mesh_choice *choice_out);
void ls_mesh_choice_release(ls_mesh_choice *choice);

/* A choice that others have made: one row with these values and its name, and no figures. */
ls_status ls_mesh_choice_adopt(const int64_t value[LS_MESH_CHOICE_AXES], int ranks,
                               ls_mesh_choice *choice_out);

/* Make run one of that mesh: of row i. */
void ls_mesh_choice_apply(const ls_mesh_choice *choice, int i, ls_run *run);

/* The name of its mesh on `ranks` ranks, into the row: "dp=2 zero=1 pp=2 1f1b". What is not there
 * is left out, but for dp. */
void ls_mesh_choice_name(ls_mesh_choice_row *row, int ranks);

/* Meshes whose times differ by less than this share count as equal: the prediction is no better. */
#define LS_MESH_CHOICE_NEARLY 0.02

/* A table for people: the best rows, why the first is taken, and what refuses the others: each
 * reason once, with the mesh that it was said of and how many there are like it. */
void ls_mesh_choice_tell(const ls_mesh_choice *choice, int most, ls_str *out);
void ls_mesh_choice_json(const ls_mesh_choice *choice, ls_json *json);

/* What a rank of `threads` threads computes in a second, assumed by its kernels: nothing was measured. */
double ls_mesh_choice_gflops(const ls_kernels *kernels, int threads);

LS_C_END
