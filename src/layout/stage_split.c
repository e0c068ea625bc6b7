/* stage_split.c -- cutting a model into stages of nearly equal cost.
 *
 * Two passes of dynamic programming over (runs, pieces). The first finds the least possible largest
 * sum M: least[k][i] = min over j of max(least[k - 1][j], sum(j .. i)). The second finds, among all
 * cuts with no sum above M, the one with the least sum of squares. One pass with both measures at
 * once would be wrong: the best prefix by the first measure need not be part of the best cut by the
 * second. Example: costs 1 1 1 1 5 in 3 runs: M is 5, and of 1|1 1 1|5, 1 1|1 1|5 and 1 1 1|1|5 the
 * second pass takes the middle one.
 *
 * What a unit costs: a product with n weights is 2 n operations for a token forward, as many for
 * the gradient of its input and of its weights; attention as kernel/row_cost.h counts it, 2 products
 * forward and 5 back. The embedding multiplies nothing: its bytes count, at PER_BYTE operations.
 * Norms, activations and the like are small beside this and left out. */
#include "layout/stage_split.h"

#include <math.h>
#include "base/mem.h"
#include "model/pass.h"

/* Operations of products that a machine does while it moves a byte; between 10 and 50 on CPUs and
 * GPUs of these years. The embedding is a hundredth of a block either way. */
enum { PER_BYTE = 16 };

/* --- cutting ----------------------------------------------------------------------------------
 */

typedef struct cutter {
    const double *before; /* [n + 1]: sum of the pieces before each */
    double *best;         /* [runs + 1][n + 1] */
    int *from;            /* the same: where the last run begins */
    int n, runs;
} cutter;

/* Fill best: by the largest sum, or, with a limit for sums, by the sum of squares. */
static void fill(cutter *c, double limit)
{
    int width = c->n + 1;

    for (int i = 0; i <= c->n; i++)
        c->best[i] = i == 0 ? 0 : HUGE_VAL;
    for (int k = 1; k <= c->runs; k++)
        for (int i = 0; i <= c->n; i++) {
            double *to = &c->best[(int64_t)k * width + i];
            *to = HUGE_VAL;
            for (int j = k - 1; j < i; j++) {
                double before = c->best[(int64_t)(k - 1) * width + j];
                double sum = c->before[i] - c->before[j];
                double now = limit < 0 ? (before > sum ? before : sum) : before + sum * sum;
                if ((limit >= 0 && sum > limit) || !(now < *to))
                    continue;
                *to = now;
                c->from[(int64_t)k * width + i] = j;
            }
        }
}

ls_status ls_stage_split_split(const double *costs, int n, int runs, int *first_out)
{
    size_t cells = ((size_t)runs + 1) * ((size_t)n + 1);
    double *before = ls_mem_array((size_t)n + 1, sizeof *before);
    cutter c = {.before = before, .n = n, .runs = runs};
    ls_status st = LS_ENOMEM;

    LS_BUG_IF(runs < 1 || runs > n, "%d pieces into %d runs", n, runs);
    c.best = ls_mem_array(cells, sizeof *c.best);
    c.from = ls_mem_array(cells, sizeof *c.from);
    if (!before || !c.best || !c.from)
        goto out;
    for (int i = 0; i < n; i++)
        before[i + 1] = before[i] + costs[i];
    fill(&c, -1);
    fill(&c, c.best[cells - 1]);
    first_out[runs] = n;
    for (int k = runs, i = n; k > 0; k--)
        first_out[k - 1] = i = c.from[(int64_t)k * (n + 1) + i];
    st = LS_OK;
out:
    ls_mem_free(before);
    ls_mem_free(c.best);
    ls_mem_free(c.from);
    return st;
}

/* --- a model ----------------------------------------------------------------------------------
 */

/* Elements of a parameter in the whole model: ranks that hold slices of it cut it alike. */
static int64_t elements_of(const ls_param *p)
{
    return p->box.shape[0] * p->box.shape[1];
}

/* What products with a parameter cost. Vectors, tables of the embedding and copies are none. */
static void add_product(const ls_model *model, ls_stage *to, const ls_param *p, double tokens)
{
    double once = 2.0 * (double)elements_of(p) * ls_model_active(model, p) * tokens;

    /* Which experts are frozen may differ between ranks that divide them, but not where to cut. */
    bool divided = p->expert && model->split.ep_ranks > 1;
    bool trained = divided ? model->shape.lora_rank == 0 : p->trained >= 0;

    to->forward += once;
    to->backward += once;
    if (trained)
        to->backward += once;
    if (ls_pass_is_late(model, p))
        to->weight += once;
}

static ls_stage unit_of(const ls_model *model, int64_t unit, double tokens, int64_t T)
{
    const ls_model_shape *s = &model->whole;
    bool block = unit >= 1 && unit <= s->L, head = unit == s->L + 1;
    ls_stage u = {.unit = unit, .units = 1, .blocks = block};

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        bool borrowed = head && s->tied && p->first == model->wte.w;
        if (p->unit != unit && !borrowed)
            continue;
        u.elements += elements_of(p);
        u.trained += p->trained >= 0 ? elements_of(p) : 0;
        if (p->ndim == 2 && unit > 0)
            add_product(model, &u, p, tokens);
    }
    if (block) { /* 2 products of H D for each of (T + 1) / 2 positions that a token sees */
        int64_t window = model->blocks[unit - 1].window;
        double seen = window > 0 && window < T ? (double)window : (double)(T + 1) / 2;
        double product = 2.0 * (double)(s->H * s->D) * seen * tokens;
        u.forward += 2 * product;
        u.backward += 5 * product;
    }
    if (unit == 0) { /* rows in and out, forward and backward */
        u.forward = 2.0 * 4 * (double)s->C * tokens * PER_BYTE;
        u.backward = model->wte.g >= 0 ? u.forward : 0;
    }
    return u;
}

static ls_status too_few(const ls_model *model, int n)
{
    long long layers = (long long)model->shape.L;
    ls_status st = ls_fail(LS_EUSAGE, "%d stages cannot share %lld layer%s", n, layers,
                           layers == 1 ? "" : "s");

    ls_err_hint("Take %lld stage%s or fewer, counting every chunk of a rank.", layers,
                layers == 1 ? "" : "s");
    return st;
}

ls_status ls_stage_split_plan(const ls_model *model, int n, int64_t B, int64_t T,
                              ls_stage *stages_out)
{
    int units = (int)model->shape.L + 2;
    ls_stage *all = NULL;
    double *costs = NULL;
    int *first = NULL;
    ls_status st = LS_ENOMEM;

    if (n > model->shape.L)
        return too_few(model, n);
    all = ls_mem_array((size_t)units, sizeof *all);
    costs = ls_mem_array((size_t)units, sizeof *costs);
    first = ls_mem_array((size_t)n + 1, sizeof *first);
    if (!all || !costs || !first)
        goto out;
    for (int u = 0; u < units; u++) {
        all[u] = unit_of(model, u, (double)(B * T), T);
        costs[u] = all[u].forward + all[u].backward;
    }
    LS_TRY(st, ls_stage_split_split(costs, units, n, first), out);
    for (int k = 0; k < n; k++) {
        ls_stage s = {.unit = first[k], .units = first[k + 1] - first[k]};
        for (int u = first[k]; u < first[k + 1]; u++) {
            s.forward += all[u].forward;
            s.backward += all[u].backward;
            s.weight += all[u].weight;
            s.elements += all[u].elements;
            s.trained += all[u].trained;
            s.blocks += all[u].blocks;
        }
        s.copies = model->shape.tied && k == n - 1 && k > 0;
        stages_out[k] = s;
    }
    if (n == 1 && model->shape.tied) { /* both ends lie here: one copy */
        stages_out[0].elements -= model->whole.V * model->whole.C;
        stages_out[0].trained -= model->wte.g >= 0 ? model->whole.V * model->whole.C : 0;
    }
out:
    ls_mem_free(all);
    ls_mem_free(costs);
    ls_mem_free(first);
    return st;
}
