/* hf_fused.c -- cutting and joining what a folder holds as one tensor.
 *
 * Inside, the parts are parameters like those of any family: they are divided among ranks, adapted,
 * frozen and saved without knowing that a folder has another name for them. */
#include "hf/hf_fused.h"

#include "base/mem.h"
#include "config/model_families.h"
#include "hf/hf_folder_impl.h"

/* A fused tensor of a family: its module, name and parts, of which the first is adapted by
 * blocks[l].adapters[adapter]. */
typedef struct fusion {
    const char *module, *name;
    const char *const *parts;
    int n, adapter;
} fusion;

enum { FUSIONS = 2 };

static int fusions_of(ls_family family, fusion to[FUSIONS])
{
    const ls_family_names *names = &ls_families_row(family)->names;
    int n = 0;

    if (names->fused_qkv)
        to[n++] = (fusion){names->attention, names->fused_qkv, names->qkv, 3, LS_ADAPTER_Q};
    if (names->fused_fc)
        to[n++] = (fusion){names->mlp, names->fused_fc, names->fc, 2, LS_ADAPTER_GATE};
    return n;
}

/* Where "module.leaf" stands in a name, as whole words; NULL: nowhere. *end_out: behind it. */
static const char *find_module(const char *name, const char *module, const char *leaf,
                               const char **end_out)
{
    size_t m = strlen(module), n = strlen(leaf);

    for (const char *p = name; (p = strstr(p, module)); p++) {
        const char *end = p + m + 1 + n;
        if ((p == name || p[-1] == '.') && p[m] == '.' && strncmp(p + m + 1, leaf, n) == 0 &&
            (*end == '.' || *end == '\0')) {
            *end_out = end;
            return p;
        }
    }
    return NULL;
}

int ls_hf_fused_name(ls_family family, const char *name, char name_out[LS_PARAM_NAME],
                     int *which_out)
{
    fusion all[FUSIONS];
    int n = fusions_of(family, all);

    for (int i = 0; i < n; i++)
        for (int k = 0; k < all[i].n; k++) {
            const char *end, *at = find_module(name, all[i].module, all[i].parts[k], &end);
            if (!at)
                continue;
            snprintf(name_out, LS_PARAM_NAME, "%.*s%s.%s%s", (int)(at - name), name, all[i].module,
                     all[i].name, end);
            *which_out = k;
            return all[i].n;
        }
    snprintf(name_out, LS_PARAM_NAME, "%s", name);
    *which_out = 0;
    return 1;
}

/* --- reading ---------------------------------------------------------------------------------- */

struct ls_hf_folder_part {
    ls_safetensors_entry entry;
    char name[LS_PARAM_NAME];
};

/* The fusion that a tensor of the folder is; NULL: none. */
static const fusion *fusion_of(const fusion *all, int n, const char *name, const char **at_out)
{
    const char *end;

    for (int i = 0; i < n; i++) {
        *at_out = find_module(name, all[i].module, all[i].name, &end);
        if (*at_out && strcmp(end, ".weight") == 0)
            return &all[i];
    }
    return NULL;
}

/* Rows of each part, as config.json says; returns their sum. */
static int64_t rows_of(const ls_run_model *m, const fusion *of, int64_t rows[3])
{
    int64_t sum = 0;

    for (int k = 0; k < of->n; k++) {
        rows[k] = of->adapter == LS_ADAPTER_GATE ? m->mlp
                                                 : (k == 0 ? m->heads : m->kv_heads) * m->head_size;
        sum += rows[k];
    }
    return sum;
}

static ls_status cut(const ls_hf_folder *f, const ls_hf_folder_tensor *t, const fusion *of,
                     const char *at, struct ls_hf_folder_part *parts)
{
    const ls_safetensors_entry *e = t->entry;
    int64_t rows[3], sum = rows_of(&f->config.model, of, rows), C = f->config.model.width;
    int64_t row_bytes = C * e->dtype->bits / 8, begin = e->begin;

    if (e->ndim != 2 || e->shape[0] != sum || e->shape[1] != C)
        return ls_fail(LS_EDATA,
                       "\"%s\": the tensor \"%.120s\" does not have the shape [%lld, %lld] "
                       "that the model needs",
                       f->path, e->name, (long long)sum, (long long)C);
    for (int k = 0; k < of->n; k++) {
        struct ls_hf_folder_part *p = &parts[k];
        snprintf(p->name, sizeof p->name, "%.*s%s.%s.weight", (int)(at - e->name), e->name,
                 of->module, of->parts[k]);
        p->entry = *e;
        p->entry.name = p->name;
        p->entry.shape[0] = rows[k];
        p->entry.begin = begin;
        p->entry.end = begin += rows[k] * row_bytes;
    }
    return LS_OK;
}

ls_status ls_hf_fused_split(ls_hf_folder *f)
{
    fusion all[FUSIONS];
    int n = fusions_of(f->config.model.family, all), more = 0, kept = 0, made = 0;
    ls_hf_folder_tensor *tensors;
    const char *at;
    ls_status st = LS_OK;

    for (int i = 0; i < f->n_tensors; i++) {
        const fusion *of = fusion_of(all, n, f->tensors[i].entry->name, &at);
        more += of ? of->n : 0;
    }
    if (more == 0)
        return LS_OK;
    f->parts = ls_mem_array((size_t)more, sizeof *f->parts);
    tensors = ls_mem_array((size_t)(f->n_tensors + more), sizeof *tensors);
    if (!f->parts || !tensors)
        st = LS_ENOMEM;
    for (int i = 0; i < f->n_tensors && st == LS_OK; i++) {
        const ls_hf_folder_tensor *t = &f->tensors[i];
        const fusion *of = fusion_of(all, n, t->entry->name, &at);
        if (!of) {
            tensors[kept++] = *t;
            continue;
        }
        st = cut(f, t, of, at, f->parts + made);
        for (int k = 0; k < of->n && st == LS_OK; k++)
            tensors[kept++] =
                (ls_hf_folder_tensor){.entry = &f->parts[made++].entry, .file = t->file};
    }
    if (st == LS_OK) {
        ls_mem_free(f->tensors);
        f->tensors = tensors;
        f->n_tensors = kept;
    } else {
        ls_mem_free(tensors);
    }
    return st;
}

/* --- adapters --------------------------------------------------------------------------------- */

/* DoRA: the lengths of all outputs, even of parts without an adapter. */
static ls_status join_lengths(const ls_loaded_model *r, int64_t l, const fusion *of,
                              ls_hf_fused_adapter *to)
{
    const ls_block_params *p = &r->model.blocks[l];
    int64_t at = 0;

    to->m = ls_mem_array((size_t)to->N, sizeof *to->m);
    if (!to->m)
        return LS_ENOMEM;
    for (int k = 0; k < of->n; k++) {
        int i = of->adapter + k;
        int64_t n = of->adapter == LS_ADAPTER_GATE ? r->model.shape.F
                    : k == 0                       ? r->model.shape.H * r->model.shape.D
                                                   : r->model.shape.Hkv * r->model.shape.D;
        ls_loaded_model_lengths(r, ls_loaded_model_beside(p, i).w, n, to->K, to->m + at);
        for (int64_t c = 0; c < n && p->adapters[i].d.w >= 0; c++)
            to->m[at + c] += r->w[p->adapters[i].d.w + c];
        at += n;
    }
    return LS_OK;
}

/* A below A, and B beside B in a diagonal of blocks. */
static ls_status join(const ls_loaded_model *loaded, int64_t l, const fusion *of,
                      ls_hf_fused_adapter *to)
{
    const ls_model *model = &loaded->model;
    const float *w = loaded->w;
    const ls_adapter *parts = &model->blocks[l].adapters[of->adapter];
    const ls_family_names *names = &ls_families_row(model->shape.family)->names;
    int64_t r = model->shape.lora_rank, C = model->shape.C, at = 0;

    snprintf(to->module, sizeof to->module, "%s%s.%lld.%s.%s", names->prefix, names->blocks,
             (long long)l, of->module, of->name);
    to->K = C;
    to->N = of->adapter == LS_ADAPTER_GATE
                ? 2 * model->shape.F
                : (model->shape.H + 2 * model->shape.Hkv) * model->shape.D;
    for (int k = 0; k < of->n; k++)
        to->rank += parts[k].a.w >= 0 ? r : 0;
    to->a = ls_mem_array((size_t)(to->rank * C), sizeof *to->a);
    to->b = ls_mem_array((size_t)(to->N * to->rank), sizeof *to->b);
    if (!to->a || !to->b)
        return LS_ENOMEM;
    memset(to->b, 0, (size_t)(to->N * to->rank) * sizeof *to->b);
    for (int k = 0; k < of->n; k++) {
        const ls_adapter *p = &parts[k];
        if (p->a.w < 0)
            continue;
        memcpy(to->a + at * C, w + p->a.w, (size_t)(r * C) * sizeof *w);
        for (int64_t i = 0; i < p->N; i++)
            memcpy(to->b + (p->first + i) * to->rank + at, w + p->b.w + i * r,
                   (size_t)r * sizeof *w);
        at += r;
    }
    return model->shape.dora ? join_lengths(loaded, l, of, to) : LS_OK;
}

static bool is_adapted(const ls_model *model, int64_t l, const fusion *of)
{
    for (int k = 0; k < of->n; k++)
        if (model->blocks[l].adapters[of->adapter + k].a.w >= 0)
            return true;
    return false;
}

ls_status ls_hf_fused_adapters(const ls_loaded_model *loaded, ls_hf_fused_adapter **adapters_out,
                               int *n_out)
{
    const ls_model *model = &loaded->model;
    fusion all[FUSIONS];
    int kinds = fusions_of(model->shape.family, all), n = 0;
    ls_hf_fused_adapter *adapters =
        ls_mem_array((size_t)(kinds * model->shape.L), sizeof *adapters);
    ls_status st = adapters ? LS_OK : LS_ENOMEM;

    for (int64_t l = 0; l < model->shape.L && st == LS_OK; l++)
        for (int i = 0; i < kinds && st == LS_OK; i++)
            if (is_adapted(model, l, &all[i])) {
                adapters[n] = (ls_hf_fused_adapter){.rank = 0};
                st = join(loaded, l, &all[i], &adapters[n++]);
            }
    if (st != LS_OK) {
        ls_hf_fused_adapters_free(adapters, n);
        return st;
    }
    *adapters_out = adapters;
    *n_out = n;
    return LS_OK;
}

void ls_hf_fused_adapters_free(ls_hf_fused_adapter *adapters, int n)
{
    for (int i = 0; i < n; i++) {
        ls_mem_free(adapters[i].a);
        ls_mem_free(adapters[i].b);
        ls_mem_free(adapters[i].m);
    }
    ls_mem_free(adapters);
}
