/* grad_clip.c -- the norm of the gradient and the factor that clips it, from sums of squares; and
 * LAMB's ratios of norms. Every version of the rows calls these, the reference included. */
#include "kernel/cpu/rows_shared.h"

#include <math.h>

/* A binary counter: level[k] holds the sum of 2^k blocks when bit k of the count is set. What is
 * left at the end joins from the right, as in a tree whose missing right siblings are skipped:
 * 5 blocks give ((0+1) + (2+3)) + 4. */
static double tree_sum(const float *x, int64_t n)
{
    double level[64], sum = 0;
    bool any = false;

    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i];
        int k = 0;
        for (; i >> k & 1; k++)
            v = level[k] + v;
        level[k] = v;
    }
    for (int k = 0; k < 63; k++)
        if (n >> k & 1) {
            sum = any ? level[k] + sum : level[k];
            any = true;
        }
    return sum;
}

void ls_norm2_finish(const ls_norm2 *a)
{
    int64_t blocks = (a->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm_result r = {.factor = 1, .bad_block = -1};

    for (int64_t i = 0; i < blocks && r.bad_block < 0; i++)
        if (!isfinite(a->partials[i]))
            r.bad_block = i;
    /* The loss scale (optim/loss_scaler.h) is taken out here. */
    float unscale = a->scaled ? 1.0f / a->state->loss_scale : 1.0f;
    r.norm = (float)sqrt(tree_sum(a->partials, blocks)) * unscale;
    if (r.bad_block >= 0)
        r.factor = 0;
    else if (a->state->clip > 0 && r.norm > a->state->clip)
        r.factor = unscale * (a->state->clip / r.norm);
    else
        r.factor = unscale;
    *a->result = r;
}

void ls_lamb_ratios(const ls_lamb *a)
{
    for (int64_t i = 0; i < a->n_tensors; i++) {
        const ls_lamb_tensor *t = &a->tensors[i];
        double w = sqrt(tree_sum(a->squares + t->first, t->count));
        double u = sqrt(tree_sum(a->squares + a->n_squares + t->first, t->count));
        a->ratios[i] = t->adapts && w > 0 && u > 0 ? (float)(w / u) : 1.0f;
    }
}
