/* find_nonfinite.c -- where NaN or Inf first appeared in a step that was not finite.
 *
 * The search follows the order in which a step makes numbers, and the first find ends it:
 *
 *     weights, first to last -> outputs of forward, as they are made -> gradients, last to first
 *
 * Forward runs again for that. Each rank searches its own calls and its own parts of the arrays,
 * and notes how far it came, as one number that grows from 0 to 3. Ranks then compare these: all of
 * them report the find of the rank that stopped earliest, so all give the same message. A model of 10
 * parameters, a NaN in the middle of parameter 3 of the gradient (walked from the last to the first):
 *
 *     rank 0   weights fine: 1; forward fine: 2; gradients: 6 of 10 before it, and half of it: 2.65
 *     rank 1   holds no part with the NaN: 3
 *     all      rank 0 stopped earliest: its message */
#include "train/step/pipeline_impl.h"

#include <math.h>
#include "base/mem.h"
#include "base/time.h"
#include "parallel/blocking.h"

/* A number under examination. */
static float look_at(const void *block, ls_dtype type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == LS_F32)
        return ((const float *)block)[i];
    if (type == LS_F16) { /* only whether it is a number matters */
        uint16_t half = ((const uint16_t *)block)[i];
        return (half & 0x7c00) != 0x7c00 ? 0 : half & 0x3ff ? NAN : INFINITY;
    }
    bits = (uint32_t)((const uint16_t *)block)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The first element of x (device memory) that is not finite, or -1. */
static ls_status find_bad(ls_step *s, const void *x, ls_dtype type, int64_t n, int64_t *index_out,
                          float *value_out)
{
    int64_t size = ls_dtype_bytes(type);
    void *block = s->search.block;
    ls_status st = LS_OK;

    *index_out = -1;
    for (int64_t first = 0; first < n && *index_out < 0; first += LS_NORM_BLOCK) {
        int64_t count = ls_min_i64(LS_NORM_BLOCK, n - first);
        ls_stream_copy_out(s->args.stream, block, (const char *)x + first * size, count * size);
        LS_TRY(st, ls_stream_sync(s->args.stream, ls_step_deadline()), out);
        for (int64_t k = 0; k < count && *index_out < 0; k++)
            if (!isfinite(look_at(block, type, k))) {
                *index_out = first + k;
                *value_out = look_at(block, type, k);
            }
    }
out:
    return st;
}

static ls_status found(const char *what, const char *name, int64_t index, float value,
                       int64_t number)
{
    return ls_fail(LS_ENUMERIC, "the %s of \"%s\" holds %s at element %lld in step %lld", what,
                   name, isnan(value) ? "NaN" : "Inf", (long long)index, (long long)number + 1);
}

/* LS_ENUMERIC, with its name, when a tensor holds a number that is not finite. */
static ls_status search_tensor(ls_step *s, const char *what, const ls_pass_tensor *t,
                               int64_t number)
{
    int64_t index;
    float value;
    ls_status st = find_bad(s, t->x, t->type, t->n, &index, &value);

    return st == LS_OK && index >= 0 ? found(what, t->name, index, value, number) : st;
}

/* ls_pass_call.made: search what forward has computed since the last time. */
static void search_made(void *context, int ready)
{
    ls_step *s = context;
    ls_pass_tensor t;

    for (; s->search.looked < ready && s->search.status == LS_OK; s->search.looked++)
        if (ls_pass_computed(s->pass, s->search.call, s->search.looked, &t))
            s->search.status = search_tensor(s, "output", &t, s->search.number);
}

/* Whether all ranks go through all calls, whatever they find: with ZeRO 3 they need each other's
 * weights, in a pipeline each other's outputs, with mesh.tp and mesh.ep sums, with mesh.cp keys. */
static bool goes_on(const ls_step *s)
{
    return ls_step_divides_weights(s) || s->pipeline || ls_step_has_mp_group(s) || s->args.cp_group;
}

/* Forward of each call again, and a search of what it computes, in order. */
static ls_status search_forward(ls_step *s, int64_t number)
{
    ls_step_state host_state = ls_step_scalars(s, number, 0);
    int64_t rounds = s->mode->rounds ? s->mode->rounds(s) : s->args.calls.calls;
    ls_step_leaves p = {.count = 0};

    s->search.number = number;
    s->search.status = LS_OK;
    for (int64_t i = 0; i < rounds && (s->search.status == LS_OK || goes_on(s)); i++) {
        if (i >= s->now.calls || !ls_step_next(s, &p)) {
            ls_step_idle(s);
            continue;
        }
        ls_pass_call call = ls_step_call(s, &p, 0);
        call.made = search_made;
        s->search.call = &call;
        s->search.looked = 0;
        ls_step_set_scalars(s, &p, &host_state);
        ls_step_send_scalars(s, p.number);
        ls_status st = ls_step_forward_only(s, &call);
        if (st != LS_OK)
            return st;
    }
    return s->search.status;
}

/* The parts of a parameter that this rank has: of the weights, or of the sums of gradients.
 * share_out: how much of the parameter lies before what was found. */
static ls_status search_param(ls_step *s, bool gradients, const ls_param *p, int64_t number,
                              double *share_out)
{
    int64_t start = gradients ? p->trained : p->first, index = -1;
    const ls_step_list *list = gradients ? &s->parts.sums : &s->parts.weights;
    float value = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < list->n && index < 0; i++) {
        ls_mesh_part part = list->at[i];
        ls_optim_piece own;
        if (!ls_optim_find_piece(&part, 1, start, start + p->count, &own))
            continue;
        part.first = own.first;
        LS_TRY(st,
               find_bad(s,
                        gradients ? ls_step_own_gradient(s, part)
                                  : (const float *)s->state_memory[0] + own.packed,
                        LS_F32, own.count, &index, &value),
               out);
        if (index >= 0)
            index += own.first - start;
    }
    if (index >= 0) {
        *share_out = (double)index / (double)p->count;
        st = found(gradients ? "gradient" : "weight", p->name, index, value, number);
    }
out:
    return st;
}

/* The message of the rank that stopped earliest, on all ranks of comm. saw: how far this one came, then
 * how far that one did. */
static ls_status agree_on_find(ls_comm *comm, double *saw)
{
    int ranks = ls_comm_ranks(comm), first = 0;
    int64_t deadline = ls_pipeline_deadline();
    double *all = ls_mem_array((size_t)ranks, sizeof *all);
    ls_err_record record = *ls_err_last();
    ls_status st = LS_OK;

    if (!all)
        return LS_ENOMEM;
    all[ls_comm_rank(comm)] = *saw;
    LS_TRY(st, ls_blocking_reduce(comm, LS_COLL_SUM, LS_F64, all, ranks, deadline), out);
    for (int r = 1; r < ranks; r++)
        first = all[r] < all[first] ? r : first;
    *saw = all[first];
    LS_TRY(st, ls_blocking_broadcast(comm, first, record.text, sizeof record.text, deadline), out);
    st = ls_err_adopt(&record);
out:
    ls_mem_free(all);
    return st;
}

/* The weights or the gradients, parameter by parameter. saw grows by how far the search came, by 1
 * when nothing was found. */
static ls_status search_params(ls_step *s, bool gradients, int64_t number, double *saw)
{
    const ls_model *model = s->args.model;
    ls_status st = LS_OK;

    for (int k = 0; k < model->n_params && st == LS_OK; k++) {
        const ls_param *p = &model->params[gradients ? model->n_params - 1 - k : k];
        double share = 0;
        if (gradients && p->trained < 0)
            continue;
        st = search_param(s, gradients, p, number, &share);
        if (st != LS_OK)
            *saw += ((double)k + share) / (double)model->n_params;
    }
    *saw += st == LS_OK;
    return st;
}

ls_status ls_step_find_nonfinite(ls_step *step, int64_t number)
{
    double saw = 0;
    ls_status st = ls_step_settle(step);

    if (st != LS_OK)
        return st;
    step->search.block = ls_mem_array(LS_NORM_BLOCK, sizeof *step->search.block);
    if (!step->search.block)
        return LS_ENOMEM;
    st = search_params(step, false, number, &saw);
    if (st == LS_OK || goes_on(step)) {
        ls_err_record before = *ls_err_last();
        ls_status then = search_forward(step, number);
        if (st == LS_OK) {
            st = then;
            saw += st == LS_OK;
        } else {
            ls_err_adopt(&before);
        }
    }
    if (st == LS_OK)
        st = search_params(step, true, number, &saw);
    if (st == LS_OK)
        st = ls_fail(LS_ENUMERIC, "the gradient of step %lld is too large for its norm",
                     (long long)number + 1);
    if (st == LS_ENUMERIC)
        ls_err_hint("Training diverged: lower train.lr or lengthen train.warmup; train.nonfinite: "
                    "skip drops such "
                    "steps.");
    ls_mem_free(step->search.block);
    step->search.block = NULL;
    if (st == LS_ENUMERIC && ls_step_has_mp_group(step))
        st = agree_on_find(ls_step_group(step), &saw);
    return st == LS_ENUMERIC && step->args.dp
               ? agree_on_find(ls_dp_args_of(step->args.dp)->comm, &saw)
               : st;
}
