/* sgd.c -- stochastic gradient descent with momentum (Sutskever et al., 2013), as torch.optim.SGD
 * has it with dampening 0.
 *
 *   g = gradient + weight_decay w        the decay is part of the gradient, after clipping
 *   m = momentum m + g
 *   w = w - lr m,   or with train.nesterov   w - lr (g + momentum m)
 *
 * A sum, not a mean: in the long run a step is 1 / (1 - momentum) times lr times the gradient. One
 * moment. Each element needs its own numbers alone. An update by a share s of a step (servers) takes
 * momentum to the power of s, and g times (1 - momentum^s) / (1 - momentum): of a gradient that
 * stays the same the sum is then the same after shares as after the whole. */
#include "optim/optim_impl.h"

static void elements(const ls_kernels *kernels, ls_stream *stream, const ls_optimizer_update *spans)
{
    kernels->sgd(stream, spans);
}

const ls_optim_row ls_optim_sgd = {.elements = elements};
