/* blame.c -- where NaN or Inf first appeared in a step that was not finite (ls_step_blame). */
#include "train/step_impl.h"

#include <math.h>
#include "base/mem.h"
#include "base/time.h"

/* A number under examination. */
static float look_at(const void *block, ls_dtype type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == LS_F32)
        return ((const float *)block)[i];
    bits = (uint32_t)((const uint16_t *)block)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The first element of x (device memory) that is not finite, or -1. */
static ls_status find_bad(ls_step *s, const void *x, ls_dtype type, int64_t n, int64_t *index_out,
                          float *value_out)
{
    int64_t size = ls_dtype_bytes(type);
    void *block = s->look;
    ls_status st = LS_OK;

    *index_out = -1;
    for (int64_t first = 0; first < n && *index_out < 0; first += LS_NORM_BLOCK) {
        int64_t count = ls_min_i64(LS_NORM_BLOCK, n - first);
        ls_stream_copy_out(s->args.stream, block, (const char *)x + first * size, count * size);
        LS_TRY(st, ls_stream_sync(s->args.stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S),
               out);
        for (int64_t k = 0; k < count && *index_out < 0; k++)
            if (!isfinite(look_at(block, type, k))) {
                *index_out = first + k;
                *value_out = look_at(block, type, k);
            }
    }
out:
    return st;
}

/* Look at one tensor; LS_ENUMERIC, saying so, when it holds a number that is not one. */
static ls_status accuse(ls_step *s, const char *what, const ls_pass_tensor *t, int64_t number)
{
    int64_t index;
    float value;
    ls_status st = find_bad(s, t->x, t->type, t->n, &index, &value);

    if (st == LS_OK && index >= 0)
        st =
            ls_fail(LS_ENUMERIC, "the %s of \"%s\" holds %s at element %lld in step %lld", what,
                    t->name, isnan(value) ? "NaN" : "Inf", (long long)index, (long long)number + 1);
    return st;
}

/* Run each call's forward again and look at what it computes, in order. */
static ls_status accuse_forward(ls_step *s, int64_t number)
{
    ls_step_state host_state = ls_step_numbers(s, number, 0);
    ls_status st = LS_OK;

    ls_step_part p = {.count = 0};
    while (st == LS_OK && ls_step_next(s, &p)) {
        ls_pass_call call = ls_step_call(s, &p, 0);
        ls_pass_tensor t;
        ls_step_forward(s, &p, &call, &host_state);
        for (int k = 0; st == LS_OK && ls_pass_computed(s->pass, &call, k, &t); k++)
            st = accuse(s, "output", &t, number);
    }
    return st;
}

/* The same for a parameter: its weight or its gradient, which begins at x. */
static ls_status accuse_param(ls_step *s, const char *what, const ls_param *p, const float *x,
                              int64_t number)
{
    ls_pass_tensor t = {.x = x, .type = LS_F32, .n = p->count};

    snprintf(t.name, sizeof t.name, "%s", p->name);
    return accuse(s, what, &t, number);
}

/* Each rank has looked at its own leaves and at its own part of the sum; saw: how early in the
 * order below it found something. The earliest speaks for all, so that all say the same. */
static ls_status agree_on_blame(ls_step *s, int saw)
{
    int ranks = ls_dp_about(s->args.dp)->mesh.ranks, who = 0;
    double *all = ls_mem_array((size_t)ranks, sizeof *all);
    ls_err_record record = *ls_err_last();
    ls_status st = LS_OK;

    if (!all)
        return LS_ENOMEM;
    all[ls_dp_about(s->args.dp)->mesh.rank] = saw;
    LS_TRY(st, ls_dp_numbers(s->args.dp, LS_F64, all, ranks), out);
    for (int r = 1; r < ranks; r++)
        who = all[r] < all[who] ? r : who;
    LS_TRY(st, ls_dp_tell(s->args.dp, who, record.text, sizeof record.text), out);
    st = ls_err_adopt(&record);
out:
    ls_mem_free(all);
    return st;
}

/* Where it began: a weight, else the first output of the forward pass, else the first gradient of
 * the backward pass, which walks the parameters from last to first. */
ls_status ls_step_blame(ls_step *step, int64_t number)
{
    const ls_model *model = step->args.model;
    const float *w = step->state_memory[0], *grad = step->grads[0];
    ls_status st = LS_OK;
    int saw = 0;

    step->look = ls_mem_array(LS_NORM_BLOCK, sizeof *step->look);
    if (!step->look)
        return LS_ENOMEM;
    for (int i = 0; i < model->n_params && st == LS_OK; i++)
        st = accuse_param(step, "weight", &model->params[i], w + model->params[i].first, number);
    saw += st == LS_OK;
    if (st == LS_OK)
        st = accuse_forward(step, number);
    saw += st == LS_OK;
    for (int i = model->n_params - 1; i >= 0 && st == LS_OK; i--)
        if (model->params[i].trained >= 0)
            st = accuse_param(step, "gradient", &model->params[i], grad + model->params[i].trained,
                              number);
    saw += st == LS_OK;
    if (st == LS_OK)
        st = ls_fail(LS_ENUMERIC, "the gradient of step %lld is too large for its norm",
                     (long long)number + 1);
    if (st == LS_ENUMERIC)
        ls_err_hint("Lower train.lr or lengthen train.warmup; train.nonfinite: skip drops such "
                    "steps.");
    ls_mem_free(step->look);
    step->look = NULL;
    return st == LS_ENUMERIC && step->args.dp ? agree_on_blame(step, saw) : st;
}
