/* optim_impl.h -- the row of an optimizer, and what its file shares with optim.c. */
#pragma once
#include "optim/optim.h"
#include "base/err.h"

LS_C_BEGIN

/* One optimizer. What it does not need is NULL; AdamW needs `elements` alone. */
typedef struct ls_optim_row {
    /* A list of spans, element by element: everything, or what is no matrix. */
    void (*elements)(const ls_kernels *kernels, ls_stream *stream,
                     const ls_optimizer_update *spans);

    /* Work memory beside the moments. */
    ls_optim_work (*work)(const ls_run *run, const ls_model *model);

    /* Updates that read more than single elements. open: builds lists in o->args.work, allocates
     * o->own. update: one update. redo: only the moments of an update. */
    ls_status (*open)(ls_optim *o);
    void (*close)(ls_optim *o);
    ls_status (*update)(ls_optim *o);
    void (*redo)(ls_optim *o);
} ls_optim_row;

#define LS_OPTIM_DECLARE(id, name, doc, ...) extern const ls_optim_row ls_optim_##name;
LS_OPTIMIZERS(LS_OPTIM_DECLARE)
#undef LS_OPTIM_DECLARE

struct ls_optim {
    ls_optim_args args;
    const ls_optim_row *row;
    void *own; /* owned by the row's file */
};

/* The next bytes of a block that is cut into pieces. */
static inline void *ls_optim_cut(char **at, int64_t bytes)
{
    void *p = *at;

    *at += ls_round_up(bytes, 256);
    return p;
}

/* Host memory to the device, waiting for it. */
ls_status ls_optim_send(const ls_optim *o, void *to, const void *from, int64_t bytes);

LS_C_END
