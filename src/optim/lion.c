/* lion.c -- Lion (Chen et al., 2023): steps of one size, towards the sign of a mean of gradients.
 *
 *   w = w - lr (sign(beta1 m + (1 - beta1) g) + decay w),   m = beta2 m + (1 - beta2) g
 *
 * One moment, so half of what AdamW keeps. Every element moves by lr in every step, so rates are
 * three to ten times smaller than AdamW's, and the decay as much larger. Each element needs its own
 * numbers alone. */
#include "optim/optim_impl.h"

static void elements(const ls_kernels *kernels, ls_stream *stream, const ls_optimizer_update *spans)
{
    kernels->lion(stream, spans);
}

const ls_optim_row ls_optim_lion = {.elements = elements};
