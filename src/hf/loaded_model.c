/* loaded_model.c -- a model with its weights in memory. */
#include "hf/loaded_model.h"

#include <math.h>
#include "base/mem.h"
#include "config/model_families.h"
#include "hf/hf_folder_impl.h"

ls_status ls_loaded_model_vocab(const ls_hf_folder *f, int64_t *vocab_out)
{
    const ls_family_names *names = &ls_families_row(f->run.model.family)->names;
    char name[LS_PARAM_NAME];

    snprintf(name, sizeof name, "%s%s.weight", names->prefix, names->embedding);
    *vocab_out = f->run.model.vocab;
    if (f->hf || *vocab_out != LS_RUN_AUTO)
        return LS_OK;
    for (int i = 0; i < ls_ckpt_count(f->ckpt); i++) {
        ls_ckpt_tensor t = ls_ckpt_nth(f->ckpt, i);
        if (strcmp(t.name, name) == 0 && strcmp(t.kind, "param") == 0 && t.ndim == 2) {
            *vocab_out = t.shape[0];
            return LS_OK;
        }
    }
    return ls_fail(LS_EDATA, "\"%s\": the tensor \"%s\" is missing", f->path, name);
}

ls_status ls_loaded_model_open(ls_loaded_model *r, const ls_hf_folder *folder)
{
    void *memory = NULL;
    ls_status st;

    *r = (ls_loaded_model){.run = *ls_hf_folder_run(folder)};
    LS_TRY(st, ls_loaded_model_vocab(folder, &r->run.model.vocab), out);
    LS_TRY(st, ls_model_init(&r->model, &r->run, r->run.model.vocab), out);
    LS_TRY(st, ls_hf_folder_check(folder, &r->model), out);
    LS_TRY(st, ls_kernel_pick("auto", &r->kernels), out);
    LS_TRY(st, ls_device_open(&r->device, "cpu", 0), out);
    LS_TRY(st, ls_stream_create(&r->stream, r->device), out);
    LS_TRY(st,
           ls_device_alloc(r->device, r->model.flat * (int64_t)sizeof *r->w, "weights", &memory),
           out);
    r->w = memory;
    LS_TRY(st, ls_hf_folder_load(folder, &r->model, r->w), out);
out:
    if (st != LS_OK)
        ls_loaded_model_close(r);
    return st;
}

void ls_loaded_model_close(ls_loaded_model *r)
{
    if (r->device)
        ls_device_free(r->device, r->w);
    ls_stream_free(r->stream);
    ls_device_close(r->device);
    ls_model_release(&r->model);
    *r = (ls_loaded_model){.w = NULL};
}

/* W += scale B A, where W is [N, K], or [K, N] for gpt2. Sums are made in double, a piece of a row at
 * a time so that rows of A are read in order, and rounded once. */
void ls_loaded_model_add(ls_loaded_model *r, int64_t first_w, const ls_low_rank *p)
{
    enum { PIECE = 256 };
    bool rows = r->model.shape.layout == LS_LAYOUT_NK;
    int64_t step_n = rows ? p->K : 1, step_k = rows ? 1 : p->N;
    double sums[PIECE];

    for (int64_t n = 0; n < p->N; n++) {
        for (int64_t first = 0; first < p->K; first += PIECE) {
            int64_t count = ls_min_i64(PIECE, p->K - first);
            memset(sums, 0, sizeof sums);
            for (int64_t i = 0; i < p->rank; i++) {
                const float *row = p->a + i * p->K + first;
                double factor = (double)p->b[n * p->rank + i];
                for (int64_t k = 0; k < count; k++)
                    sums[k] += factor * (double)row[k];
            }
            float *to = r->w + first_w + n * step_n + first * step_k;
            for (int64_t k = 0; k < count; k++, to += step_k)
                *to = (float)((double)*to + p->scale * sums[k]);
        }
    }
}

/* The square of the length of output n; from one input to the next, and the first, in elements. */
static double square_of(const ls_loaded_model *r, int64_t first, int64_t N, int64_t K, int64_t n)
{
    bool rows = r->model.shape.layout == LS_LAYOUT_NK;
    const float *w = r->w + first + n * (rows ? K : 1);
    int64_t step = rows ? 1 : N;
    double sum = 0;

    for (int64_t k = 0; k < K; k++)
        sum += (double)w[k * step] * (double)w[k * step];
    return sum;
}

void ls_loaded_model_lengths(const ls_loaded_model *r, int64_t first, int64_t N, int64_t K,
                             float *lengths_out)
{
    for (int64_t n = 0; n < N; n++)
        lengths_out[n] = (float)sqrt(square_of(r, first, N, K, n));
}

void ls_loaded_model_set_lengths(ls_loaded_model *r, int64_t first, int64_t N, int64_t K,
                                 const float *lengths)
{
    bool rows = r->model.shape.layout == LS_LAYOUT_NK;
    int64_t step = rows ? 1 : N;

    for (int64_t n = 0; n < N; n++) {
        double sum = square_of(r, first, N, K, n);
        double factor = sum > 0 ? (double)lengths[n] / sqrt(sum) : 0;
        float *w = r->w + first + n * (rows ? K : 1);
        for (int64_t k = 0; k < K; k++)
            w[k * step] = (float)(factor * (double)w[k * step]);
    }
}

static ls_status merge_pair(ls_loaded_model *r, const ls_adapter *pair, ls_place weight)
{
    const ls_model_shape *s = &r->model.shape;
    float *b = r->w + pair->b.w, *d = pair->d.w >= 0 ? r->w + pair->d.w : NULL;
    float *lengths = d ? ls_mem_array((size_t)pair->N, sizeof *lengths) : NULL;

    if (d && !lengths)
        return LS_ENOMEM;
    if (d)
        ls_loaded_model_lengths(r, weight.w, pair->N, pair->K, lengths);
    ls_loaded_model_add(r, weight.w,
                        &(ls_low_rank){.a = r->w + pair->a.w,
                                       .b = b,
                                       .N = pair->N,
                                       .K = pair->K,
                                       .rank = s->lora_rank,
                                       .scale = (double)s->lora_scale});
    memset(b, 0, (size_t)(pair->N * s->lora_rank) * sizeof *b);
    for (int64_t n = 0; d && n < pair->N; n++) {
        lengths[n] += d[n];
        d[n] = 0;
    }
    if (d)
        ls_loaded_model_set_lengths(r, weight.w, pair->N, pair->K, lengths);
    ls_mem_free(lengths);
    return LS_OK;
}

ls_place ls_loaded_model_beside(const ls_block_params *p, int i)
{
    const ls_place weights[LS_ADAPTERS] = {
        [LS_ADAPTER_Q] = p->qkv_w[0], [LS_ADAPTER_K] = p->qkv_w[1],   [LS_ADAPTER_V] = p->qkv_w[2],
        [LS_ADAPTER_O] = p->proj_w,   [LS_ADAPTER_GATE] = p->fc_w[0], [LS_ADAPTER_UP] = p->fc_w[1],
        [LS_ADAPTER_DOWN] = p->out_w};

    return weights[i];
}

ls_status ls_loaded_model_merge(ls_loaded_model *r)
{
    ls_status st = LS_OK;

    for (int64_t l = 0; l < r->model.shape.L; l++) {
        const ls_block_params *p = &r->model.blocks[l];
        for (int i = 0; i < LS_ADAPTERS && st == LS_OK; i++)
            if (p->adapters[i].a.w >= 0)
                st = merge_pair(r, &p->adapters[i], ls_loaded_model_beside(p, i));
    }
    return st;
}

ls_status ls_loaded_model_rows(const ls_loaded_model *r, ls_ckpt_tensor **rows_out, int *n_out)
{
    ls_ckpt_tensor *rows = ls_mem_array((size_t)r->model.n_params, sizeof *rows);
    int n = 0;

    if (!rows)
        return LS_ENOMEM;
    for (int i = 0; i < r->model.n_params; i++) {
        const ls_param *p = &r->model.params[i];
        if (!p->lora)
            rows[n++] = (ls_ckpt_tensor){.name = p->name,
                                         .kind = "param",
                                         .group = p->group,
                                         .type = LS_F32,
                                         .ndim = p->ndim,
                                         .shape = {p->shape[0], p->ndim > 1 ? p->shape[1] : 0},
                                         .bytes = r->w + p->first};
    }
    *rows_out = rows;
    *n_out = n;
    return LS_OK;
}
