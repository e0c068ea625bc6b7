/* balance.h -- slices of the batch that follow the measured speed of ranks.
 *
 * Every rank receives the time that each rank computed in a step (with the losses), so
 * all come to the same weights by the same arithmetic and no rank has to ask. After a window of
 * steps the median time per leaf of each rank is taken; the weights change only when the step would
 * become shorter by more than a twentieth. */
#pragma once
#include "layout/mesh.h"

LS_C_BEGIN

enum {
    LS_BALANCE_WINDOW = 8, /* steps of a median */
    LS_BALANCE_SKIPPED = 2 /* not counted: the first ones, and those that still have an old split */
};

typedef struct ls_balance {
    double *weights;   /* owned: leaves in a second of each rank, up to a factor */
    double *times;     /* owned: [window][ranks], ns per leaf; 0: the rank had none */
    double *medians;   /* owned: ns per leaf of the last whole window; 0: not known */
    double *candidate; /* owned: weights under examination */
    int noted;         /* steps in the window */
    int skip;          /* steps that will not be counted */
} ls_balance;

/* weights: to begin with; NULL: equal. */
ls_status ls_balance_init(ls_balance *balance, int ranks, const double *weights);
void ls_balance_release(ls_balance *balance);

/* How long a step took each rank for its leaves. True: a window is whole, the medians are new. */
bool ls_balance_note(ls_balance *balance, int ranks, const ls_ordered_run *runs,
                     const double *work_ns);

/* New weights out of the medians, for batches of `leaves` leaves; mesh has the balance's weights.
 * False: they would gain too little, and stay. */
bool ls_balance_decide(ls_balance *balance, const ls_mesh *mesh, int64_t leaves);

/* How many times the median of all ranks a rank needs for a leaf; 1 when that is not known. Of two
 * ranks the median is the faster one. */
double ls_balance_ratio(const ls_balance *balance, int ranks, int rank);

LS_C_END
