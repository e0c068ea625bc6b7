/* hf_config.c -- reading config.json of a Hugging Face folder.
 *
 * The file is a loose collection of keys that grew over years: sizes of gpt2 have synonyms, rotary
 * settings have two spellings, and what is absent has a default that differs between families. Each
 * value goes through one of few getters, which know the synonyms, the limits and how to say what is
 * wrong. Names and defaults are those of transformers, because a folder without the key means
 * exactly that: a name that transformers passes over must not count here, or the same file would be
 * two models.
 *
 * Everything that would make another function of the same weights is refused by name. Keys that
 * only concern training by others (dropout of attention, caches, parallel plans) are passed over.
 * What a run takes of it is in hf_config_run.c, writing in hf_config_write.c. */
#include "config/hf_config.h"
#include "config/model_families.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include "base/file.h"
#include "base/json_line.h"
#include "config/hub_name.h"
#include "config/unbuilt_families.h"
#include "config/value.h"

enum { CONFIG_BYTES = 1 << 22 }; /* longest config.json; real ones have a few KiB */

typedef struct reader {
    const json_t *root;
    const char *name;
    ls_hf_config *to;
    ls_family family;
    const ls_family_row *row; /* of that family */
} reader;

/* --- getters ---------------------------------------------------------------------------------- */

/* The value of the first of the synonyms ("a|b|c") that is there and not null; *key_out (of cap
 * bytes) is the name it has. */
static const json_t *find(const json_t *object, const char *names, char *key_out, size_t cap)
{
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, "|");
        snprintf(key_out, cap, "%.*s", (int)n, p);
        const json_t *value = json_object_get(object, key_out);
        if (value && !json_is_null(value))
            return value;
        p += n + (p[n] == '|');
    }
    snprintf(key_out, cap, "%.*s", (int)strcspn(names, "|"), names);
    return NULL;
}

/* Whether one of the names stands in the object, were it as null. */
static bool has(const json_t *object, const char *key)
{
    return json_object_get(object, key) != NULL;
}

#define REQUIRED INT64_MIN

static ls_status get_int(const reader *r, const char *names, int64_t least, int64_t most,
                         int64_t preset, int64_t *out)
{
    char key[64];
    const json_t *value = find(r->root, names, key, sizeof key);

    if (!value && preset == REQUIRED)
        return ls_fail(LS_EDATA, "%s: \"%s\" is missing", r->name, key);
    if (!value) {
        *out = preset;
        return LS_OK;
    }
    if (!json_is_integer(value))
        return ls_fail(LS_EDATA, "%s: \"%s\" is not a whole number", r->name, key);
    *out = json_integer_value(value);
    if (*out < least || *out > most)
        return ls_fail(LS_EDATA, "%s: \"%s\" is %lld, but must be from %lld to %lld", r->name, key,
                       (long long)*out, (long long)least, (long long)most);
    return LS_OK;
}

/* A number above 0 (and at least least). */
static ls_status get_num(const reader *r, const json_t *object, const char *names, double least,
                         double most, double preset, double *out)
{
    char key[64];
    const json_t *value = find(object, names, key, sizeof key);

    if (!value && isnan(preset))
        return ls_fail(LS_EDATA, "%s: \"%s\" is missing", r->name, key);
    if (!value) {
        *out = preset;
        return LS_OK;
    }
    if (!json_is_number(value))
        return ls_fail(LS_EDATA, "%s: \"%s\" is not a number", r->name, key);
    *out = json_number_value(value);
    if (!(*out >= least && *out <= most))
        return ls_fail(LS_EDATA, "%s: \"%s\" is %.10g, but must be from %.10g to %.10g", r->name,
                       key, *out, least, most);
    return LS_OK;
}

static ls_status get_bool(const reader *r, const char *key, bool preset, bool *out)
{
    const json_t *value = json_object_get(r->root, key);

    *out = preset;
    if (!value || json_is_null(value))
        return LS_OK;
    if (!json_is_boolean(value))
        return ls_fail(LS_EDATA, "%s: \"%s\" is neither true nor false", r->name, key);
    *out = json_is_true(value);
    return LS_OK;
}

/* What a model has that ours cannot have. */
static ls_status refuse(const reader *r, const char *key, const char *what)
{
    ls_status st = ls_fail(LS_EUSAGE, "%s: \"%s\": %s", r->name, key, what);
    char names[128];

    ls_families_list(false, names, sizeof names);
    ls_err_hint("lineshaft builds %s models; docs/guide/models.md says which variants.", names);
    return st;
}

/* --- what kind of model ----------------------------------------------------------------------- */

/* A name from the file that is safe to show. */
static void clean(const char *text, char *out, size_t cap)
{
    ls_value_quote(text, out, cap);
}

/* How many experts the file speaks of; 0: of none. key_out names the key. */
static int64_t count_experts(const reader *r, char *key_out, size_t cap)
{
    const json_t *n = find(
        r->root, "num_local_experts|num_experts|n_routed_experts|moe_num_experts", key_out, cap);

    return n && json_is_integer(n) && json_integer_value(n) > 1 ? json_integer_value(n) : 0;
}

/* Experts in a family that has none here. */
static ls_status refuse_experts(const reader *r)
{
    char key[64], mixtures[96], text[192];
    int64_t n = count_experts(r, key, sizeof key);

    if (n == 0)
        return LS_OK;
    ls_families_list(true, mixtures, sizeof mixtures);
    snprintf(text, sizeof text,
             "a %s model with %lld experts is not built; mixtures of experts are %s", r->row->name,
             (long long)n, mixtures);
    return refuse(r, key, text);
}

/* A family that has no row: what it needs, as far as that is known. */
static ls_status refuse_family(const reader *r, const char *key, const char *name)
{
    const char *lacks = ls_unbuilt_families_lacks(name);
    bool images = json_is_object(json_object_get(r->root, "vision_config"));
    char quoted[64], experts[64], text[320];
    int64_t n = count_experts(r, experts, sizeof experts);

    clean(name, quoted, sizeof quoted);
    int at = snprintf(text, sizeof text, "the family %s is not built", quoted);
    size_t left = sizeof text - (size_t)at;
    if (lacks && images)
        snprintf(text + at, left, ": it reads images, and needs %s", lacks);
    else if (lacks)
        snprintf(text + at, left, ": it needs %s", lacks);
    else if (images)
        snprintf(text + at, left, ": it reads images");
    else if (n > 0)
        snprintf(text + at, left, " (a mixture of %lld experts)", (long long)n);
    return refuse(r, key, text);
}

static ls_status read_family(reader *r)
{
    char quoted[64], text[128];
    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    const char *class =
        json_string_value(json_array_get(json_object_get(r->root, "architectures"), 0));

    if (!type && !class)
        return ls_fail(LS_EDATA,
                       "%s: \"model_type\" is missing: this is not the configuration of a "
                       "model",
                       r->name);
    for (int i = 0; i < LS_FAMILIES; i++) {
        const ls_family_row *row = ls_families_row((ls_family)i);
        bool by_class = class && (!strcmp(class, row->causal) || !strcmp(class, row->base));
        if (type ? strcmp(type, row->name) != 0 : !by_class)
            continue;
        if (class && !by_class) {
            clean(class, quoted, sizeof quoted);
            snprintf(text, sizeof text, "%s is not a model that continues text", quoted);
            return refuse(r, "architectures", text);
        }
        r->family = (ls_family)i;
        r->row = row;
        return ls_families_is_mixture(r->family) ? LS_OK : refuse_experts(r);
    }
    return refuse_family(r, type ? "model_type" : "architectures", type ? type : class);
}

/* Whether a name is one of "a|b|c". */
static bool is_among(const char *name, const char *names)
{
    size_t n = strlen(name);

    for (const char *p = names;; p += strcspn(p, "|") + 1) {
        size_t length = strcspn(p, "|");
        if (n == length && memcmp(name, p, n) == 0)
            return true;
        if (p[length] == '\0')
            return false;
    }
}

/* What concerns all families. */
static ls_status refuse_variants(const reader *r)
{
    char key[64], quoted[64], text[128];
    const json_t *q = json_object_get(r->root, "quantization_config");
    const json_t *act = find(r->root, r->row->keys.act, key, sizeof key);
    bool causal;
    ls_status st = get_bool(r, "is_causal", true, &causal);

    if (st != LS_OK)
        return st;
    if (!causal)
        return refuse(r, "is_causal", "a model that looks at later tokens cannot continue text");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (q && !json_is_null(q) && (!method || strcmp(method, "lineshaft") != 0)) {
        clean(method ? method : "an unnamed method", quoted, sizeof quoted);
        snprintf(text, sizeof text, "weights that were quantized by %s: not built yet", quoted);
        return refuse(r, "quantization_config", text);
    }
    if (!act)
        return LS_OK;
    const char *name = json_string_value(act);
    if (!name)
        return ls_fail(LS_EDATA, "%s: \"%s\" is not a name", r->name, key);
    if (is_among(name, r->row->act))
        return LS_OK;
    clean(name, quoted, sizeof quoted);
    snprintf(text, sizeof text, "the activation %s is not built for this family, only \"%.*s\"",
             quoted, (int)strcspn(r->row->act, "|"), r->row->act);
    return refuse(r, key, text);
}

/* What the family's row refuses. */
static ls_status refuse_listed(const reader *r)
{
    ls_status st = LS_OK;

    for (const ls_family_refused *row = r->row->refused; row && row->key && st == LS_OK; row++) {
        bool ours = row->unless == LS_REFUSED_UNLESS_TRUE, value = ours;
        const json_t *given = json_object_get(r->root, row->key);
        if (row->unless == LS_REFUSED_UNLESS_NULL)
            value = ours != (given && !json_is_null(given));
        else
            st = get_bool(r, row->key, ours, &value);
        if (st == LS_OK && value != ours)
            st = refuse(r, row->key, row->what);
    }
    return st;
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* Limits are those of the option table: what a config.json says must be sayable in a run file. */
static ls_status read_sizes(const reader *r)
{
    ls_run_model *m = &r->to->model;
    const ls_family_keys *keys = &r->row->keys;
    bool gated = ls_families_is_gated(r->row); /* else the MLP has a default */
    ls_status st;

    LS_TRY(st, get_int(r, "vocab_size", 2, 16777216, REQUIRED, &m->vocab), out);
    LS_TRY(st, get_int(r, keys->width, 1, 65536, REQUIRED, &m->width), out);
    LS_TRY(st, get_int(r, keys->layers, 1, 1000, REQUIRED, &m->layers), out);
    LS_TRY(st, get_int(r, keys->heads, 1, 1024, REQUIRED, &m->heads), out);
    LS_TRY(st, get_int(r, keys->mlp, 1, 1048576, gated ? REQUIRED : 4 * m->width, &m->mlp), out);
    LS_TRY(st, get_int(r, keys->context, 1, 1048576, r->row->context, &m->context), out);
    if (strcmp(keys->mlp, "intermediate_size") != 0 && gated)
        LS_TRY(st, get_int(r, "intermediate_size", 0, INT32_MAX, 0, &r->to->dense_mlp), out);
    m->positions = ls_families_learns_positions(r->row) ? m->context : 0;
    if (m->mlp > 1048576)
        st = ls_fail(LS_EDATA, "%s: 4 times \"n_embd\" is too large", r->name);
out:
    return st;
}

static ls_status read_heads(const reader *r)
{
    const ls_family_row *row = r->row;
    ls_run_model *m = &r->to->model;
    bool fill = row->head_sizes == LS_HEADS_FILL, learned = ls_families_learns_positions(row);
    /* Absent is not null: null means as many as heads. */
    bool absent = !has(r->root, "num_key_value_heads");
    int64_t kv = absent && row->kv_heads ? row->kv_heads : m->heads;
    int64_t size =
        row->head_size && !has(r->root, "head_dim") ? row->head_size : m->width / m->heads;
    char text[96];
    ls_status st;

    LS_TRY(st, get_int(r, "head_dim", 1, 1024, size, &m->head_size), out);
    LS_TRY(st, get_int(r, "num_key_value_heads", 1, 1024, kv, &m->kv_heads), out);
    bool odd = m->width % m->heads != 0;
    bool said = has(r->root, "head_dim") && !json_is_null(json_object_get(r->root, "head_dim"));
    if (odd && (fill || !said))
        return ls_fail(LS_EDATA, "%s: %lld heads do not divide a width of %lld", r->name,
                       (long long)m->heads, (long long)m->width);
    if (m->heads % m->kv_heads)
        return ls_fail(LS_EDATA, "%s: %lld heads of keys and values do not divide %lld heads",
                       r->name, (long long)m->kv_heads, (long long)m->heads);
    snprintf(text, sizeof text, "%s has heads that fill its width", row->name);
    if (fill && m->head_size * m->heads != m->width)
        return refuse(r, "head_dim", text);
    snprintf(text, sizeof text, "%s has as many as heads", row->name);
    if (row->kv_is_heads && m->kv_heads != m->heads)
        return refuse(r, "num_key_value_heads", text);
    if (!learned && m->head_size % 2)
        return ls_fail(LS_EDATA, "%s: heads of %lld numbers cannot be turned in pairs", r->name,
                       (long long)m->head_size);
    if (m->head_size < 1 || m->head_size > 1024)
        return ls_fail(LS_EDATA, "%s: a head has %lld numbers, but must have from 1 to 1024",
                       r->name, (long long)m->head_size);
out:
    return st;
}

/* The family's own, and what keys add to it. */
static ls_bias bias_of(const ls_family_row *row, bool attention, bool mlp)
{
    attention &= row->attention_bias_key;
    mlp &= row->mlp_bias_key;
    return attention && mlp ? LS_BIAS_ALL
           : attention      ? LS_BIAS_ATTENTION
           : mlp            ? LS_BIAS_MLP
                            : row->bias;
}

static ls_status read_flags(const reader *r)
{
    ls_run_model *m = &r->to->model;
    const ls_family_row *row = r->row;
    bool tied, attention, mlp;
    ls_status st;

    LS_TRY(st, get_bool(r, "tie_word_embeddings", row->tied, &tied), out);
    LS_TRY(st, get_bool(r, "attention_bias", false, &attention), out);
    LS_TRY(st, get_bool(r, "mlp_bias", false, &mlp), out);
    m->tied = tied ? LS_TIED_YES : LS_TIED_NO;
    m->bias = bias_of(row, attention, mlp);
    LS_TRY(st, get_num(r, r->root, row->keys.eps, 1e-30, 1, row->eps, &m->norm_eps), out);
    LS_TRY(st, get_num(r, r->root, "initializer_range", 0, 1, 0.02, &m->init_std), out);
    if (m->init_std == 0)
        m->init_std = 0.02; /* only new matrices are made with it, and they must differ */
    m->dropout = 0;
    if (row->keys.dropout)
        st = get_num(r, r->root, row->keys.dropout, 0, 0.999999, row->dropout, &m->dropout);
out:
    return st;
}

/* --- experts ---------------------------------------------------------------------------------- */

static ls_status read_experts(const reader *r)
{
    ls_run_model *m = &r->to->model;
    const json_t *dense = json_object_get(r->root, "mlp_only_layers");
    const ls_family_experts *row = &r->row->experts;
    int64_t every;
    ls_status st = LS_OK;

    m->experts_used = 2; /* as if nothing were said */
    m->experts_norm = true;
    if (row->n == 0)
        return LS_OK;
    LS_TRY(st, get_int(r, "num_local_experts|num_experts", 1, 1024, row->n, &m->experts), out);
    LS_TRY(st, get_int(r, "num_experts_per_tok", 1, 64, row->used, &m->experts_used), out);
    if (m->experts_used > m->experts)
        return ls_fail(LS_EDATA, "%s: \"num_experts_per_tok\" is %lld, but there are %lld experts",
                       r->name, (long long)m->experts_used, (long long)m->experts);
    if (!row->norm_key)
        return LS_OK;
    LS_TRY(st, get_bool(r, "norm_topk_prob", false, &m->experts_norm), out);
    LS_TRY(st, get_int(r, "decoder_sparse_step", 1, 1000000, 1, &every), out);
    if (every != 1)
        return refuse(r, "decoder_sparse_step", "experts in some layers only are not built");
    if (dense && !json_is_null(dense) && (!json_is_array(dense) || json_array_size(dense) > 0))
        return refuse(r, "mlp_only_layers", "experts in some layers only are not built");
out:
    return st;
}

/* --- rotary positions ------------------------------------------------------------------------- */

static ls_status read_rope_type(const reader *r, const json_t *rope)
{
    ls_run_model *m = &r->to->model;
    char key[64], quoted[64], text[128];
    const json_t *type = find(rope, "rope_type|type", key, sizeof key);
    const char *name = type ? json_string_value(type) : "default";

    if (!name)
        return ls_fail(LS_EDATA, "%s: \"%s\" is not a name", r->name, key);
    if (strcmp(name, "default") == 0)
        m->rope_scaling = LS_ROPE_PLAIN;
    else if (strcmp(name, "linear") == 0)
        m->rope_scaling = LS_ROPE_LINEAR;
    else if (strcmp(name, "llama3") == 0)
        m->rope_scaling = LS_ROPE_LLAMA3;
    else {
        clean(name, quoted, sizeof quoted);
        snprintf(text, sizeof text, "rotary positions scaled by %s: not built yet", quoted);
        return refuse(r, key, text);
    }
    return LS_OK;
}

static ls_status read_rope_numbers(const reader *r, const json_t *rope)
{
    ls_run_model *m = &r->to->model;
    double original;
    ls_status st = LS_OK;

    if (m->rope_scaling == LS_ROPE_PLAIN)
        return LS_OK;
    LS_TRY(st, get_num(r, rope, "factor", 1, 1e6, (double)NAN, &m->rope_factor), out);
    if (m->rope_scaling != LS_ROPE_LLAMA3)
        return LS_OK;
    LS_TRY(st, get_num(r, rope, "low_freq_factor", 1e-6, 1e6, (double)NAN, &m->rope_low), out);
    LS_TRY(st, get_num(r, rope, "high_freq_factor", 1e-6, 1e6, (double)NAN, &m->rope_high), out);
    LS_TRY(st,
           get_num(r, has(r->root, "original_max_position_embeddings") ? r->root : rope,
                   "original_max_position_embeddings", 1, 1e9, (double)m->context, &original),
           out);
    m->rope_original = (int64_t)original;
    if (m->rope_low >= m->rope_high)
        st =
            ls_fail(LS_EDATA, "%s: \"low_freq_factor\" is not below \"high_freq_factor\"", r->name);
out:
    return st;
}

/* One theta for all pairs of all layers, from either spelling. */
static ls_status read_theta(const reader *r, const json_t *rope)
{
    double top, inner;
    ls_status st;

    LS_TRY(st, get_num(r, r->root, "rope_theta", 1.000001, 1e12, 0, &top), out);
    LS_TRY(st, get_num(r, rope, "rope_theta", 1.000001, 1e12, 0, &inner), out);
    if (top > 0 && inner > 0 && top != inner)
        return ls_fail(LS_EDATA, "%s: \"rope_theta\" is %.10g in one place and %.10g in another",
                       r->name, top, inner);
    r->to->model.rope_theta = inner > 0 ? inner : top > 0 ? top : r->row->theta;
out:
    return st;
}

/* The settings in one object, of either spelling. */
static ls_status read_rope_object(const reader *r, const char *key)
{
    const json_t *rope = json_object_get(r->root, key);
    const char *inner;
    json_t *value;
    double share;
    ls_status st;

    if (json_is_null(rope))
        rope = NULL;
    if (rope && !json_is_object(rope))
        return ls_fail(LS_EDATA, "%s: \"%s\" is not an object", r->name, key);
    json_object_foreach((json_t *)(uintptr_t)rope, inner, value)
    {
        if (json_is_object(value))
            return refuse(r, key, "rotary settings that differ between layers are not built");
    }
    LS_TRY(st, get_num(r, r->root, "partial_rotary_factor", 0, 1, 1, &share), out);
    if (share == 1)
        LS_TRY(st, get_num(r, rope, "partial_rotary_factor", 0, 1, 1, &share), out);
    if (share != 1)
        return refuse(r, "partial_rotary_factor", "turning only a part of each head is not built");
    LS_TRY(st, read_theta(r, rope), out);
    LS_TRY(st, read_rope_type(r, rope), out);
    LS_TRY(st, read_rope_numbers(r, rope), out);
out:
    return st;
}

static bool same_rope(const ls_run_model *a, const ls_run_model *b)
{
    bool scaled = a->rope_scaling != LS_ROPE_PLAIN, three = a->rope_scaling == LS_ROPE_LLAMA3;

    return a->rope_scaling == b->rope_scaling && a->rope_theta == b->rope_theta &&
           (!scaled || a->rope_factor == b->rope_factor) &&
           (!three || (a->rope_low == b->rope_low && a->rope_high == b->rope_high &&
                       a->rope_original == b->rope_original));
}

/* Versions of transformers differ in which spelling wins where both stand, so they must agree. */
static ls_status read_rope(const reader *r)
{
    const json_t *old = json_object_get(r->root, "rope_scaling");
    const json_t *parameters = json_object_get(r->root, "rope_parameters");
    ls_run_model first;
    ls_status st;

    if (ls_families_learns_positions(r->row))
        return LS_OK;
    if (!old || json_is_null(old) || (json_is_object(old) && json_object_size(old) == 0))
        return read_rope_object(r, "rope_parameters");
    LS_TRY(st, read_rope_object(r, "rope_scaling"), out);
    if (!parameters || json_is_null(parameters))
        goto out;
    first = r->to->model;
    LS_TRY(st, read_rope_object(r, "rope_parameters"), out);
    if (!same_rope(&first, &r->to->model))
        st = ls_fail(LS_EDATA, "%s: \"rope_scaling\" and \"rope_parameters\" contradict each other",
                     r->name);
out:
    return st;
}

/* --- sliding window --------------------------------------------------------------------------- */

/* layer_types must be some full layers followed by sliding ones. *from_out: the first of those. */
static ls_status read_layer_types(const reader *r, const json_t *types, int64_t *from_out)
{
    int64_t L = r->to->model.layers, from = L;

    if (!json_is_array(types) || (int64_t)json_array_size(types) != L)
        return ls_fail(LS_EDATA, "%s: \"layer_types\" is not a list of %lld layers", r->name,
                       (long long)L);
    for (int64_t i = 0; i < L; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool full = type && strcmp(type, "full_attention") == 0;
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        if (!full && !sliding)
            return refuse(r, "layer_types",
                          "layers other than full_attention and sliding_attention are not built");
        if (full && from < L)
            return refuse(r, "layer_types", "a full layer after one with a window is not built");
        if (sliding && from == L)
            from = i;
    }
    *from_out = from;
    return LS_OK;
}

static ls_status read_window(const reader *r)
{
    ls_run_model *m = &r->to->model;
    const ls_family_row *row = r->row;
    bool layers = row->window == LS_WINDOW_LAYERS, use = true;
    const json_t *types = json_object_get(r->root, "layer_types");
    int64_t from = 0, size = has(r->root, "sliding_window") ? 0 : row->window_size;
    ls_status st = LS_OK;

    if (row->window == LS_WINDOW_NONE)
        return LS_OK;
    if (row->window != LS_WINDOW_PLAIN)
        LS_TRY(st, get_bool(r, "use_sliding_window", false, &use), out);
    LS_TRY(st, get_int(r, "sliding_window", 1, 1048576, size, &m->window), out);
    if (!use)
        m->window = 0;
    if (layers && m->window)
        LS_TRY(st, get_int(r, "max_window_layers", 0, 1000000, 28, &from), out);
    if (types && !json_is_null(types)) {
        LS_TRY(st, read_layer_types(r, types, &from), out);
        if (m->window == 0 && from < m->layers)
            return refuse(r, "layer_types", "layers with a window, but no window is given");
        if (m->window && from > 0 && !layers)
            return refuse(r, "layer_types", "this family has the window in all layers or none");
    }
    if (m->window == 0 || from >= m->layers)
        m->window = from = 0;
    m->window_from = from;
out:
    return st;
}

/* --- token ids and dtype ---------------------------------------------------------------------- */

/* Ids outside the vocabulary never occur (configurations of small models often keep the ids of the
 * large one), so they count as none. */
static bool is_id(const reader *r, const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) < r->to->model.vocab;
}

static ls_status read_ids(const reader *r)
{
    const json_t *bos = json_object_get(r->root, "bos_token_id");
    const json_t *eos = json_object_get(r->root, "eos_token_id");
    bool list = json_is_array(eos);

    r->to->bos_unsaid = !bos;
    r->to->eos_unsaid = !eos;
    r->to->bos = is_id(r, bos) ? json_integer_value(bos) : -1;
    if (!list) {
        if (is_id(r, eos))
            r->to->eos[r->to->n_eos++] = json_integer_value(eos);
        return LS_OK;
    }
    if (json_array_size(eos) > LS_HF_CONFIG_EOS)
        return ls_fail(LS_EDATA, "%s: \"eos_token_id\" has more than %d ids", r->name,
                       LS_HF_CONFIG_EOS);
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (is_id(r, json_array_get(eos, i)))
            r->to->eos[r->to->n_eos++] = json_integer_value(json_array_get(eos, i));
    return LS_OK;
}

/* What others made of their model and we would only lose; nothing here changes what it computes. */
static void read_kept(const reader *r)
{
    static const struct {
        const char *key;
        bool number; /* written in its own place, as a fraction */
    } rows[] = {{"pad_token_id", false},
                {"unk_token_id", false},
                {"pretraining_tp", false},
                {"attention_dropout", true},
                {"router_aux_loss_coef", true},
                {"embd_pdrop", true},
                {"attn_pdrop", true},
                {"summary_use_proj", false},
                {"summary_proj_to_labels", false}};
    ls_hf_config *to = r->to;

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        const json_t *value = json_object_get(r->root, rows[i].key);
        ls_hf_config_kept kept = {.key = rows[i].key, .value = json_number_value(value)};
        if (rows[i].number && json_is_number(value) && kept.value >= 0 && kept.value <= 1)
            kept.kind = LS_HF_CONFIG_KEPT_NUM;
        else if (!rows[i].number && json_is_integer(value) && fabs(kept.value) < 1e9)
            kept.kind = LS_HF_CONFIG_KEPT_INT;
        else if (!rows[i].number && json_is_boolean(value))
            kept = (ls_hf_config_kept){kept.key, LS_HF_CONFIG_KEPT_BOOL, json_is_true(value)};
        else if (!rows[i].number && json_is_null(value))
            kept.kind = LS_HF_CONFIG_KEPT_NULL;
        else
            continue;
        to->kept[to->n_kept++] = kept;
    }
}

static void read_dtype(const reader *r)
{
    char key[64];
    const json_t *value = find(r->root, "dtype|torch_dtype", key, sizeof key);
    const char *name = value ? json_string_value(value) : NULL;

    if (!name)
        return;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (name[n] == '\0' && n < sizeof r->to->dtype)
        memcpy(r->to->dtype, name, n + 1);
}

/* --- the whole -------------------------------------------------------------------------------- */

static ls_status read_all(reader *r)
{
    ls_status st;

    LS_TRY(st, read_family(r), out);
    r->to->model.family = r->family;
    LS_TRY(st, refuse_variants(r), out);
    LS_TRY(st, refuse_listed(r), out);
    LS_TRY(st, read_sizes(r), out);
    LS_TRY(st, read_heads(r), out);
    LS_TRY(st, read_flags(r), out);
    LS_TRY(st, read_experts(r), out);
    LS_TRY(st, read_rope(r), out);
    LS_TRY(st, read_window(r), out);
    LS_TRY(st, read_ids(r), out);
    read_dtype(r);
    read_kept(r);
out:
    return st;
}

ls_status ls_hf_config_read(ls_hf_config *config_out, const char *text, size_t len,
                            const char *name)
{
    ls_status st = LS_OK;
    json_error_t error;
    json_t *root;
    ls_hf_config config = {.model = {.import = "",
                                     .rope_theta = 10000,
                                     .rope_factor = 1,
                                     .rope_low = 1,
                                     .rope_high = 4,
                                     .rope_original = 8192},
                           .bos = -1};

    if (len > CONFIG_BYTES)
        return ls_fail(LS_EDATA, "%s: longer than any configuration", name);
    root = ls_json_line_parse_file(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!root && !error.text[0]) /* as jansson has it when it found no memory */
        return ls_fail(LS_ENOMEM, "cannot read \"%s\"", name);
    if (!root) {
        ls_fail(LS_EDATA, "%s:%d:%d: not valid JSON: %.160s", name, error.line, error.column,
                error.text);
        ls_err_hint("If it was cut, fetch it again.");
        return LS_EDATA;
    }
    reader r = {.root = root, .name = name, .to = &config};
    if (!json_is_object(root))
        st = ls_fail(LS_EDATA, "%s: not a JSON object", name);
    else
        st = read_all(&r);
    json_decref(root);
    if (st == LS_OK)
        *config_out = config;
    return st;
}

ls_status ls_hf_config_open(ls_hf_config *config_out, const char *folder)
{
    char path[PATH_MAX];
    ls_str text;
    ls_status st = LS_OK;

    ls_str_init(&text);
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (!ls_file_is_dir(folder)) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is not a folder", folder);
        if (!ls_hub_name_hint(folder, LS_HUB_MODEL))
            ls_err_hint("A model is a folder with config.json and model.safetensors in it.");
        goto out;
    }
    if (!ls_file_exists(path)) {
        st = ls_fail(LS_EUSAGE, "there is no config.json in \"%s\"", folder);
        ls_err_hint(
            "Name a Hugging Face model folder, or one that lineshaft import or export made.");
        goto out;
    }
    LS_TRY(st, ls_file_read(path, CONFIG_BYTES, &text), out);
    LS_TRY(st, ls_hf_config_read(config_out, text.p, text.len, path), out);
out:
    ls_str_release(&text);
    return st;
}
