/* adamw.c -- AdamW (Loshchilov and Hutter, 2017): Adam with decoupled weight decay (not part of the
 * gradient).
 *
 *   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
 *   w = w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w)
 *
 * Each element needs its own numbers alone, so the row of kernels is all there is: parts of ranks,
 * chunks of moments that lie on a disk and copies at a peer are spans like any other. */
#include "optim/optim_impl.h"

static void elements(const ls_kernels *kernels, ls_stream *stream, const ls_optimizer_update *spans)
{
    kernels->adamw(stream, spans);
}

const ls_optim_row ls_optim_adamw = {.elements = elements};
