/* peft.c -- merging an adapter of PEFT.
 *
 * Each pair adds scale B A to its weight, where the scale is alpha / rank, or alpha / sqrt(rank) with
 * rslora; rank is that of the pair, alpha may have a pattern. DoRA then gives each output's row of
 * the sum the length that it learned:
 *
 *   W' = m (W + scale B A) / |W + scale B A|     m and the lengths: one a row
 *
 * A module that the model holds as several parameters (Phi-3's qkv_proj) is one matrix in memory, so
 * it is merged as one. */
#include "hf/peft.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "config/hub_name.h"
#include "hf/hf_convert.h"
#include "hf/hf_fused.h"

#include <jansson.h>

#define PREFIX "base_model.model."

typedef struct job {
    const char *folder;
    ls_loaded_model *model;
    json_t *config;
    ls_safetensors file;
    int modules;
} job;

/* --- adapter_config.json ---------------------------------------------------------------------- */

static ls_status LS_PRINTF(2, 3) refuse(const char *folder, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return ls_fail(LS_EUSAGE, "the adapter \"%s\" cannot be merged: %s", folder, what);
}

static ls_status read_config(const char *folder, json_t **config_out)
{
    char path[PATH_MAX];
    json_error_t error;

    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    if (!ls_file_exists(path)) {
        ls_status st = ls_fail(LS_EUSAGE,
                               "there is no adapter in \"%s\": it has no "
                               "adapter_config.json",
                               folder);
        if (!ls_hub_name_hint(folder, LS_HUB_MODEL))
            ls_err_hint("lineshaft export RUN FOLDER --adapter writes one, and so does "
                        "PeftModel.save_pretrained() in peft.");
        return st;
    }
    *config_out = json_load_file(path, 0, &error);
    if (!*config_out)
        return ls_fail(LS_EDATA, "\"%s\" is not JSON: %s (line %d)", path, error.text, error.line);
    if (json_is_object(*config_out))
        return LS_OK;
    json_decref(*config_out);
    *config_out = NULL;
    return ls_fail(LS_EDATA, "\"%s\" is not a JSON object", path);
}

ls_status ls_peft_base(const char *folder, ls_str *base)
{
    json_t *config;
    ls_status st = read_config(folder, &config);

    if (st != LS_OK)
        return st;
    const char *name = json_string_value(json_object_get(config, "base_model_name_or_path"));
    ls_str_append(base, name ? name : "");
    json_decref(config);
    return ls_str_status(base);
}

/* Initial values that are taken out of the base model, so that an adapter belongs to what is left. */
static bool changes_base(const char *init)
{
    static const char *const kinds[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

    for (size_t i = 0; i < LS_COUNT(kinds); i++)
        if (strncasecmp(init, kinds[i], strlen(kinds[i])) == 0)
            return true;
    return false;
}

static ls_status check_config(const job *j)
{
    const char *type = json_string_value(json_object_get(j->config, "peft_type"));
    const char *bias = json_string_value(json_object_get(j->config, "bias"));
    const char *init = json_string_value(json_object_get(j->config, "init_lora_weights"));

    if (!type || strcmp(type, "LORA") != 0)
        return refuse(j->folder, "it is of the kind \"%s\", not LORA", type ? type : "");
    if (bias && strcmp(bias, "none") != 0)
        return refuse(j->folder, "it trained biases too (\"bias\": \"%s\")", bias);
    if (init && changes_base(init))
        return refuse(j->folder, "its initial values (%s) were taken out of the base model", init);
    if (!json_is_number(json_object_get(j->config, "lora_alpha")))
        return ls_fail(LS_EDATA, "adapter_config.json of \"%s\" has no lora_alpha", j->folder);
    return LS_OK;
}

/* Whether a pattern, a module's name or the end of one, is meant for a module. */
static bool fits(const char *pattern, const char *module)
{
    size_t n = strlen(pattern), m = strlen(module);

    return n <= m && strcmp(module + m - n, pattern) == 0 && (n == m || module[m - n - 1] == '.');
}

static ls_status scale_of(const job *j, const char *module, int64_t rank, double *scale_out)
{
    double alpha = json_number_value(json_object_get(j->config, "lora_alpha"));
    const char *pattern;
    json_t *value;

    json_object_foreach(json_object_get(j->config, "alpha_pattern"), pattern, value)
    {
        if (strpbrk(pattern, "^$*+?()[]{}|\\"))
            return refuse(j->folder, "alpha_pattern has the expression \"%s\"", pattern);
        if (fits(pattern, module)) {
            alpha = json_number_value(value);
            break;
        }
    }
    bool rs = json_is_true(json_object_get(j->config, "use_rslora"));
    *scale_out = alpha / (rs ? sqrt((double)rank) : (double)rank);
    return LS_OK;
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* A tensor's numbers as fp32; owned by the caller. */
static ls_status read_tensor(const job *j, const ls_safetensors_entry *e, float **values_out)
{
    int64_t n = 0;

    if (!ls_safetensors_elements(e->shape, e->ndim, &n) || !ls_hf_convert_reads(e->dtype))
        return ls_fail(LS_EDATA, "the type %s of \"%s\" cannot be read", e->dtype->name, e->name);
    float *values = ls_mem_array((size_t)n, sizeof *values);
    if (!values)
        return LS_ENOMEM;
    ls_hf_convert_widen(e->dtype, (const char *)j->file.bytes + e->begin, n, values);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i])) {
            ls_mem_free(values);
            return ls_fail(LS_EDATA, "\"%s\" has a number that is not finite", e->name);
        }
    *values_out = values;
    return LS_OK;
}

/* "MODULE" and what follows of "base_model.model.MODULE.lora_A.weight"; NULL: not of this kind. A name
 * in between ("lora_A.default.weight") is left out. */
static const char *kind_of(const char *name, char module_out[LS_PARAM_NAME])
{
    static const char *const kinds[] = {"lora_A", "lora_B", "lora_magnitude_vector"};

    for (size_t i = 0; i < LS_COUNT(kinds); i++) {
        const char *at = strstr(name, kinds[i]);
        size_t n = strlen(PREFIX);
        if (!at || strncmp(name, PREFIX, n) != 0 || at <= name + n || at[-1] != '.')
            continue;
        snprintf(module_out, LS_PARAM_NAME, "%.*s", (int)(at - 1 - name - (ptrdiff_t)n), name + n);
        return kinds[i];
    }
    return NULL;
}

/* The tensor of a module, NULL: none. */
static const ls_safetensors_entry *find(const job *j, const char *module, const char *kind)
{
    static const char *const ends[] = {".weight", ".default.weight", "", ".default"};
    char name[LS_PARAM_NAME + 64];
    const ls_safetensors_entry *e = NULL;

    for (size_t i = 0; i < LS_COUNT(ends) && !e; i++) {
        snprintf(name, sizeof name, PREFIX "%s.%s%s", module, kind, ends[i]);
        e = ls_safetensors_find(&j->file, name);
    }
    return e;
}

static ls_status no_place(const job *j, const char *name)
{
    ls_status st = ls_fail(LS_EDATA,
                           "the adapter \"%s\" has the tensor \"%s\", and the base model has "
                           "no place for it",
                           j->folder, name);
    ls_err_hint("Merge it into the model that it was trained beside: --base FOLDER.");
    return st;
}

/* The weight of a module: its first element, outputs and inputs. False: the model has none. */
static bool find_weight(const job *j, const char *module, ls_low_rank *p, int64_t *first_out)
{
    const ls_model *m = &j->model->model;
    char want[LS_PARAM_NAME + 8], name[LS_PARAM_NAME];
    bool rows = m->shape.layout == LS_LAYOUT_NK;
    int part;

    snprintf(want, sizeof want, "%s.weight", module);
    for (int i = 0; i < m->n_params; i++) {
        const ls_param *q = &m->params[i];
        int parts = ls_hf_fused_name(m->shape.family, q->name, name, &part);
        if (part != 0 || q->lora || q->ndim != 2 || strcmp(name, want) != 0)
            continue;
        p->N = q->shape[rows ? 0 : 1];
        p->K = q->shape[rows ? 1 : 0];
        for (int k = 1; k < parts; k++)
            p->N += q[k].shape[0];
        *first_out = q->first;
        return q->unit > 0 && q->unit <= m->shape.L; /* matrices of blocks have this layout */
    }
    return false;
}

/* DoRA: rows of the weight at first get the lengths m. */
static ls_status set_lengths(const job *j, const char *module, int64_t first, const ls_low_rank *p)
{
    const ls_safetensors_entry *e = find(j, module, "lora_magnitude_vector");
    float *m;

    if (!e && !json_is_true(json_object_get(j->config, "use_dora")))
        return LS_OK;
    if (!e || e->ndim != 1 || e->shape[0] != p->N)
        return ls_fail(LS_EDATA,
                       "\"%s\" of the adapter \"%s\" has no lora_magnitude_vector of %lld", module,
                       j->folder, (long long)p->N);
    ls_status st = read_tensor(j, e, &m);
    if (st != LS_OK)
        return st;
    ls_loaded_model_set_lengths(j->model, first, p->N, p->K, m);
    ls_mem_free(m);
    return LS_OK;
}

/* The pair of a module, beginning with its A. */
static ls_status merge_module(job *j, const char *module, const ls_safetensors_entry *ea)
{
    const ls_safetensors_entry *eb = find(j, module, "lora_B");
    float *a = NULL, *b = NULL;
    ls_low_rank p = {.rank = ea->shape[0]};
    int64_t first = 0;
    ls_status st;

    if (!find_weight(j, module, &p, &first))
        return no_place(j, ea->name);
    if (!eb || ea->ndim != 2 || eb->ndim != 2 || p.rank < 1 || eb->shape[1] != p.rank ||
        ea->shape[1] != p.K || eb->shape[0] != p.N)
        return ls_fail(
            LS_EDATA,
            "the adapter \"%s\" does not fit \"%s\", which has %lld inputs and %lld outputs",
            j->folder, module, (long long)p.K, (long long)p.N);
    LS_TRY(st, scale_of(j, module, p.rank, &p.scale), out);
    LS_TRY(st, read_tensor(j, ea, &a), out);
    LS_TRY(st, read_tensor(j, eb, &b), out);
    p.a = a;
    p.b = b;
    ls_loaded_model_add(j->model, first, &p);
    j->modules++;
    st = set_lengths(j, module, first, &p);
out:
    ls_mem_free(a);
    ls_mem_free(b);
    return st;
}

/* A parameter that was trained as a whole. */
static ls_status replace(job *j, const ls_safetensors_entry *e)
{
    size_t n = strlen(PREFIX);
    const ls_param *p = NULL;
    float *values;

    if (strncmp(e->name, PREFIX, n) == 0)
        p = ls_model_find(&j->model->model, e->name + n);
    if (!p || p->lora)
        return no_place(j, e->name);
    if (e->ndim != p->ndim || e->shape[0] != p->shape[0] ||
        (p->ndim > 1 && e->shape[1] != p->shape[1]))
        return ls_fail(LS_EDATA,
                       "\"%s\" of the adapter \"%s\" has another shape than the base model's",
                       p->name, j->folder);
    ls_status st = read_tensor(j, e, &values);
    if (st != LS_OK)
        return st;
    memcpy(j->model->w + p->first, values, (size_t)p->count * sizeof *values);
    ls_mem_free(values);
    j->modules++;
    return LS_OK;
}

static ls_status merge_all(job *j)
{
    char module[LS_PARAM_NAME];
    ls_status st = LS_OK;

    for (int i = 0; i < j->file.count && st == LS_OK; i++) {
        const ls_safetensors_entry *e = &j->file.entries[i];
        const char *kind = kind_of(e->name, module);
        if (!kind)
            st = replace(j, e);
        else if (strcmp(kind, "lora_A") == 0)
            st = merge_module(j, module, e);
        else if (!find(j, module, "lora_A"))
            st = ls_fail(LS_EDATA, "\"%s\" of the adapter \"%s\" has no lora_A beside it", e->name,
                         j->folder);
    }
    if (st == LS_OK && j->modules == 0)
        st = ls_fail(LS_EDATA, "the adapter \"%s\" is empty", j->folder);
    return st;
}

ls_status ls_peft_merge(const char *folder, ls_loaded_model *model, int *modules_out)
{
    char path[PATH_MAX];
    job j = {.folder = folder, .model = model};
    ls_status st;

    ls_err_doing("merging the adapter \"%s\"", folder);
    LS_TRY(st, read_config(folder, &j.config), out);
    LS_TRY(st, check_config(&j), out);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    if (!ls_file_exists(path)) {
        st = ls_fail(LS_EUSAGE, "the adapter \"%s\" has no adapter_model.safetensors", folder);
        ls_err_hint(
            "Files that end in .bin are programs as much as data and are not read; save the "
            "adapter with a newer peft.");
        goto out;
    }
    LS_TRY(st, ls_safetensors_open(&j.file, path), out);
    LS_TRY(st, merge_all(&j), out);
    *modules_out = j.modules;
out:
    ls_safetensors_close(&j.file);
    json_decref(j.config);
    ls_err_done();
    return st;
}
