/* sdc_hash.c -- the gradient of one call, hashed while backward makes it and before it goes into a
 * sum (ls_step_hash_leaf).
 *
 * From the last element to the first, in the pieces in which backward completes them; a rank that
 * makes the call again (sdc/sdc_replay.c) completes the same pieces, and must get the same hash:
 *
 *     complete from 900: h = hash(h, elements 900..1199)
 *     complete from 400: h = hash(h, elements 400..899)
 *     complete from 0:   h = hash(h, elements 0..399) */
#include "train/step/step_impl.h"

void ls_step_add_piece(ls_hash *hash, const float *x, int64_t n)
{
    const ls_hash both[2] = {*hash, ls_hash_bytes(x, (size_t)n * sizeof *x)};

    *hash = ls_hash_bytes(both, sizeof both);
}

void ls_step_hash_leaf(ls_step *step, int64_t leaf)
{
    step->hasher.wanted = true;
    step->hasher.leaf = leaf;
}

bool ls_step_hash_call(ls_step *s, const ls_step_leaves *part, int buffer, int64_t elements)
{
    if (!s->hasher.wanted || part->first != s->hasher.leaf)
        return false;
    s->hasher.wanted = false;
    s->hasher.on = true;
    s->hasher.buffer = buffer;
    s->hasher.end = elements;
    s->hasher.hash = (ls_hash){.hi = 0};
    return true;
}

void ls_step_hash_from(ls_step *s, int64_t from)
{
    const float *grad = s->grads[s->hasher.buffer];

    if (!s->hasher.on)
        return;
    ls_step_add_piece(&s->hasher.hash, grad + from, s->hasher.end - from);
    s->hasher.end = from;
    s->hasher.on = from > 0;
}
