/* sdc_hash.c -- the gradient of a call, hashed while it is made and before it goes into a sum
 * (ls_step_hash_leaf). From the last element to the first, in the pieces in which backward completes
 * them: whoever makes the call again (sdc_replay.c) completes the same pieces. */
#include "train/step/step_impl.h"

void ls_step_add_piece(ls_hash *hash, const float *x, int64_t n)
{
    const ls_hash both[2] = {*hash, ls_hash_bytes(x, (size_t)n * sizeof *x)};

    *hash = ls_hash_bytes(both, sizeof both);
}

void ls_step_hash_leaf(ls_step *step, int64_t leaf)
{
    step->watch.wanted = true;
    step->watch.leaf = leaf;
}

ls_hash ls_step_leaf_hash(const ls_step *step)
{
    return step->watch.hash;
}

bool ls_step_hash_call(ls_step *step, const ls_step_part *part, int buffer, int64_t elements)
{
    ls_step *s = step;

    if (!s->watch.wanted || part->first != s->watch.leaf)
        return false;
    s->watch.wanted = false;
    s->watch.on = true;
    s->watch.buffer = buffer;
    s->watch.end = elements;
    s->watch.hash = (ls_hash){.hi = 0};
    return true;
}

void ls_step_hash_from(void *context, int64_t from)
{
    ls_step *s = context;
    const float *grad = s->grads[s->watch.buffer];

    if (!s->watch.on)
        return;
    ls_step_add_piece(&s->watch.hash, grad + from, s->watch.end - from);
    s->watch.end = from;
    s->watch.on = from > 0;
}
