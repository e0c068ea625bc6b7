/* gguf_model.c -- settings and tensors of a model under the names that llama.cpp knows.
 *
 * A family's row says how llama.cpp computes it. Tensors are lists of rows; three things can happen
 * to rows on the way:
 *
 *   turned    GPT-2's matrices are [inputs, outputs]: columns become rows
 *   stacked   the matrices of all experts follow each other in one tensor
 *   paired    the "llama" architecture turns neighbours (0, 1), (2, 3) ... of a head, while weights
 *             here turn (0, D/2), (1, D/2 + 1) ...; so rows of queries and keys change places:
 *
 *                 here, D = 6     0  1  2  3  4  5
 *                 in the file     0  3  1  4  2  5
 *
 * Writing takes rows of the flat weights in this order, and rereading puts them back by the same
 * function. */
#include "hf/gguf_model.h"

#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "config/model_families.h"
#include "hf/gguf_vocab.h"

/* How llama.cpp computes a family. */
typedef struct arch {
    const char *name;
    bool paired;                        /* queries and keys, see above */
    bool fused;                         /* q, k, v are one tensor, gate and up another */
    bool fill;                          /* heads fill the width */
    bool whole_keys;                    /* as many heads of keys as of queries */
    bool head;                          /* it wants a head, even where that is the embedding */
    bool normalized;                    /* weights of a token's experts are divided by their sum */
    bool bias_qkv, bias_proj, bias_mlp; /* are read where they are */
    bool llama3;                        /* reads factors of rotary frequencies */
} arch;

static const arch archs[LS_FAMILIES] = {
    [LS_FAMILY_GPT2] = {.name = "gpt2", .bias_qkv = true, .bias_proj = true, .bias_mlp = true},
    [LS_FAMILY_LLAMA] = {.name = "llama",
                         .paired = true,
                         .llama3 = true,
                         .bias_qkv = true,
                         .bias_proj = true,
                         .bias_mlp = true},
    [LS_FAMILY_MISTRAL] = {.name = "llama", .paired = true, .llama3 = true},
    [LS_FAMILY_QWEN2] = {.name = "qwen2", .fill = true, .bias_qkv = true},
    [LS_FAMILY_QWEN3] = {.name = "qwen3"},
    [LS_FAMILY_MIXTRAL] = {.name = "llama", .paired = true, .llama3 = true, .normalized = true},
    [LS_FAMILY_QWEN3_MOE] = {.name = "qwen3moe", .normalized = true},
    [LS_FAMILY_OLMOE] = {.name = "olmoe", .fill = true, .whole_keys = true, .head = true},
    [LS_FAMILY_OLMO2] = {.name = "olmo2", .fill = true, .head = true},
    [LS_FAMILY_PHI3] = {.name = "phi3", .fused = true, .fill = true},
};

/* A tensor and where its rows come from. */
typedef struct source {
    ls_gguf_tensor tensor;
    int64_t first;                   /* element of the flat weights; -1: in own */
    const float *own;                /* numbers that are no weights */
    const ls_expert_params *experts; /* NULL: first holds all of it */
    int which;                       /* of an expert: gate, up, down */
    int64_t rows, cols;              /* of one part */
    int64_t head;                    /* rows of a head that are paired; 0: none */
    bool turned;
} source;

typedef struct job {
    const ls_gguf_model_args *args;
    const ls_model *model;
    const arch *arch;
    ls_gguf_settings settings;
    source *sources; /* owned */
    int n;
    float *factors; /* of rotary frequencies, owned; NULL: none */
} job;

/* --- what cannot be said ---------------------------------------------------------------------- */

static const char *why_not(const ls_model *model)
{
    const ls_model_shape *s = &model->shape;
    const arch *a = &archs[s->family];

    if (!a->name)
        return "it does not know this family";
    if (a->fill && s->H * s->D != s->C)
        return "it knows this family only with heads that fill the width";
    if (a->whole_keys && s->Hkv != s->H)
        return "it knows this family only with as many key heads as query heads";
    if (s->E && s->normalized != a->normalized)
        return a->normalized ? "it always divides the weights of a token's experts by their sum"
                             : "it never divides the weights of a token's experts by their sum";
    if ((s->bias_qkv && !a->bias_qkv) || (s->bias_proj && !a->bias_proj) ||
        (s->bias_mlp && !a->bias_mlp))
        return "it has no place for these biases";
    if (model->run.rope_scaling == LS_ROPE_LLAMA3 && s->rope && !a->llama3)
        return "it has no place for Llama 3's scaling of rotary positions in this family";
    return NULL;
}

ls_status ls_gguf_model_check(const ls_model *model)
{
    const char *why = why_not(model);

    if (!why)
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "llama.cpp cannot compute this %s model: %s",
                           ls_families_row(model->shape.family)->name, why);
    ls_err_hint("Export a Hugging Face folder instead: leave \".gguf\" out of the name.");
    return st;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static source *LS_PRINTF(2, 3) add(job *j, const char *fmt, ...)
{
    source *s = &j->sources[j->n++];
    va_list ap;

    *s = (source){.first = -1};
    va_start(ap, fmt);
    vsnprintf(s->tensor.name, sizeof s->tensor.name, fmt, ap);
    va_end(ap);
    return s;
}

static void add_matrix(job *j, const char *name, ls_place at, int64_t rows, int64_t cols)
{
    source *s = add(j, "%s.weight", name);

    s->first = at.w;
    s->rows = rows;
    s->cols = cols;
    s->turned = j->model->shape.layout == LS_LAYOUT_KN && strncmp(name, "blk.", 4) == 0;
    s->tensor.ndim = 2;
}

/* A norm or a bias; nothing where the model has none. */
static void add_vector(job *j, const char *name, const char *what, ls_place at, int64_t n)
{
    if (at.w < 0)
        return;
    source *s = add(j, "%s.%s", name, what);
    s->first = at.w;
    s->rows = 1;
    s->cols = n;
    s->tensor.ndim = 1;
}

static void add_norm(job *j, const char *name, ls_place weight, ls_place bias, int64_t n)
{
    add_vector(j, name, "weight", weight, n);
    add_vector(j, name, "bias", bias, n);
}

/* The last tensor is one of queries or keys. */
static void pair(job *j, int before)
{
    for (int i = before; i < j->n && j->arch->paired; i++) {
        source *s = &j->sources[i];
        s->head = j->model->shape.D;
        if (s->tensor.ndim == 1) { /* a bias has its rows side by side */
            s->rows = s->cols;
            s->cols = 1;
        }
    }
}

static void add_attention(job *j, int64_t l)
{
    static const char *const names[] = {"q", "k", "v"};
    const ls_model_shape *s = &j->model->shape;
    const ls_block_params *p = &j->model->blocks[l];
    const int64_t heads[] = {s->H, s->Hkv, s->Hkv};
    char name[48];

    if (p->qkv_w[1].w < 0 || j->arch->fused) {
        int64_t rows = (s->H + 2 * s->Hkv) * s->D;
        snprintf(name, sizeof name, "blk.%lld.attn_qkv", (long long)l);
        add_matrix(j, name, p->qkv_w[0], rows, s->C);
        add_vector(j, name, "bias", p->qkv_b[0], rows);
    }
    for (int i = 0; i < 3 && p->qkv_w[1].w >= 0 && !j->arch->fused; i++) {
        int before = j->n;
        snprintf(name, sizeof name, "blk.%lld.attn_%s", (long long)l, names[i]);
        add_matrix(j, name, p->qkv_w[i], heads[i] * s->D, s->C);
        add_vector(j, name, "bias", p->qkv_b[i], heads[i] * s->D);
        if (i < 2)
            pair(j, before);
    }
    snprintf(name, sizeof name, "blk.%lld.attn_q_norm", (long long)l);
    add_vector(j, name, "weight", p->q_norm, s->qk_wide ? s->H * s->D : s->D);
    snprintf(name, sizeof name, "blk.%lld.attn_k_norm", (long long)l);
    add_vector(j, name, "weight", p->k_norm, s->qk_wide ? s->Hkv * s->D : s->D);
    snprintf(name, sizeof name, "blk.%lld.attn_output", (long long)l);
    add_matrix(j, name, p->proj_w, s->C, s->H * s->D);
    add_vector(j, name, "bias", p->proj_b, s->C);
}

static void add_experts(job *j, int64_t l)
{
    static const char *const names[] = {"gate", "up", "down"};
    const ls_model_shape *s = &j->model->shape;
    const ls_block_params *p = &j->model->blocks[l];
    char name[48];

    snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp", (long long)l);
    add_matrix(j, name, p->router, s->E, s->C);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "blk.%lld.ffn_%s_exps", (long long)l, names[i]);
        add_matrix(j, name, (ls_place){-1, -1}, i < 2 ? s->F : s->C, i < 2 ? s->C : s->F);
        j->sources[j->n - 1].experts = p->experts;
        j->sources[j->n - 1].which = i;
        j->sources[j->n - 1].tensor.ndim = 3;
    }
}

static void add_mlp(job *j, int64_t l)
{
    const ls_model_shape *s = &j->model->shape;
    const ls_block_params *p = &j->model->blocks[l];
    bool both = s->gated && !j->arch->fused;
    char name[48];

    if (both) {
        snprintf(name, sizeof name, "blk.%lld.ffn_gate", (long long)l);
        add_matrix(j, name, p->fc_w[0], s->F, s->C);
        add_vector(j, name, "bias", p->fc_b[0], s->F);
    }
    snprintf(name, sizeof name, "blk.%lld.ffn_up", (long long)l);
    add_matrix(j, name, p->fc_w[both], s->gated && !both ? 2 * s->F : s->F, s->C);
    add_vector(j, name, "bias", p->fc_b[both], s->F);
    snprintf(name, sizeof name, "blk.%lld.ffn_down", (long long)l);
    add_matrix(j, name, p->out_w, s->C, s->F);
    add_vector(j, name, "bias", p->out_b, s->C);
}

static void add_block(job *j, int64_t l)
{
    const ls_model_shape *s = &j->model->shape;
    const ls_block_params *p = &j->model->blocks[l];
    char name[48];

    snprintf(name, sizeof name, "blk.%lld.%s", (long long)l,
             s->post_norm ? "post_attention_norm" : "attn_norm");
    add_norm(j, name, p->ln1_w, p->ln1_b, s->C);
    add_attention(j, l);
    snprintf(name, sizeof name, "blk.%lld.%s", (long long)l,
             s->post_norm ? "post_ffw_norm" : "ffn_norm");
    add_norm(j, name, p->ln2_w, p->ln2_b, s->C);
    if (s->E)
        add_experts(j, l);
    else
        add_mlp(j, l);
}

/* Llama 3's scaling: by what each frequency is divided. Frequencies whose waves are longer than the
 * old context by `low` are divided by the factor, those with short waves stay, and the others pass
 * smoothly from one to the other. */
static void make_factors(const ls_run_model *m, int64_t D, float *to)
{
    const double two_pi = 6.283185307179586476925;

    for (int64_t i = 0; i < D / 2; i++) {
        double waves =
            (double)m->rope_original * pow(m->rope_theta, -2.0 * (double)i / (double)D) / two_pi;
        double smooth = (waves - m->rope_low) / (m->rope_high - m->rope_low);
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        to[i] = (float)(1 / ((1 - smooth) / m->rope_factor + smooth));
    }
}

static ls_status add_factors(job *j)
{
    int64_t D = j->model->shape.D;

    if (!j->model->shape.rope || j->model->run.rope_scaling != LS_ROPE_LLAMA3)
        return LS_OK;
    j->factors = ls_mem_array((size_t)D / 2, sizeof *j->factors);
    if (!j->factors)
        return LS_ENOMEM;
    make_factors(&j->model->run, D, j->factors);
    source *s = add(j, "rope_freqs.weight");
    s->own = j->factors;
    s->rows = 1;
    s->cols = D / 2;
    s->tensor.ndim = 1;
    return LS_OK;
}

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* The type of a tensor. A block of small integers has 32 numbers of a row. */
static ls_gguf_type type_of(const job *j, const source *s)
{
    ls_gguf_type type = j->args->type;
    const char *name = s->tensor.name;

    if (s->tensor.ndim == 1 || strstr(name, "ffn_gate_inp") || starts(name, "position_embd"))
        return LS_GGUF_TYPE_F32;
    if (s->cols % ls_gguf_type_block(type) != 0)
        return LS_GGUF_TYPE_F16;
    if (type == LS_GGUF_TYPE_Q4_0 && (starts(name, "token_embd") || starts(name, "output.")))
        return LS_GGUF_TYPE_Q8_0;
    return type;
}

static int64_t parts_of(const job *j, const source *s)
{
    return s->experts ? j->model->shape.E : 1;
}

static ls_status add_all(job *j)
{
    const ls_model *m = j->model;
    const ls_model_shape *s = &m->shape;
    enum { OF_A_BLOCK = 20, OUTSIDE = 8 };
    ls_status st;

    j->sources = ls_mem_array((size_t)s->L * OF_A_BLOCK + OUTSIDE, sizeof *j->sources);
    if (!j->sources)
        return LS_ENOMEM;
    add_matrix(j, "token_embd", m->wte, s->V, s->C);
    if (s->positions)
        add_matrix(j, "position_embd", m->wpe, s->positions, s->C);
    for (int64_t l = 0; l < s->L; l++)
        add_block(j, l);
    add_norm(j, "output_norm", m->lnf_w, m->lnf_b, s->C);
    if (!s->tied || j->arch->head)
        add_matrix(j, "output", m->head, s->V, s->C);
    LS_TRY(st, add_factors(j), out);
    for (int i = 0; i < j->n; i++) {
        source *of = &j->sources[i];
        of->tensor.type = type_of(j, of);
        of->tensor.sizes[0] = of->tensor.ndim == 1 ? of->rows * of->cols : of->cols;
        of->tensor.sizes[1] = of->rows;
        of->tensor.sizes[2] = parts_of(j, of);
    }
out:
    return st;
}

/* --- settings --------------------------------------------------------------------------------- */

static const char *keyed(const job *j, const char *key, char buffer[80])
{
    snprintf(buffer, 80, "%s.%s", j->arch->name, key);
    return buffer;
}

static void put_size(job *j, const char *key, int64_t value)
{
    char buffer[80];

    ls_gguf_put_u32(&j->settings, keyed(j, key, buffer), (uint32_t)value);
}

static void put_real(job *j, const char *key, double value)
{
    char buffer[80];

    ls_gguf_put_f32(&j->settings, keyed(j, key, buffer), (float)value);
}

static void put_rope(job *j)
{
    const ls_run_model *m = &j->model->run;
    char buffer[80];

    if (!j->model->shape.rope)
        return;
    put_size(j, "rope.dimension_count", j->model->shape.D);
    put_real(j, "rope.freq_base", m->rope_theta);
    if (m->rope_scaling == LS_ROPE_LINEAR) {
        ls_gguf_put_text(&j->settings, keyed(j, "rope.scaling.type", buffer), "linear");
        put_real(j, "rope.scaling.factor", m->rope_factor);
    }
}

/* llama.cpp lets every token of these families see all before it: with a window, it computes the
 * same only as long as a text fits into that. */
static int64_t context_of(const job *j, ls_str *notes)
{
    const ls_model_shape *s = &j->model->shape;
    int64_t context = s->positions ? s->positions : ls_max_i64(s->T, j->args->config->positions);

    if (s->window == 0 || s->window >= context || s->window_from >= s->L)
        return context;
    ls_str_printf(
        notes,
        "llama.cpp has no window of %lld tokens here: the file gives that as its context, "
        "instead of %lld\n",
        (long long)s->window, (long long)context);
    return s->window;
}

/* What readers call the mixture of types in a file. */
static uint32_t file_type(ls_gguf_type type)
{
    return type == LS_GGUF_TYPE_F32    ? 0
           : type == LS_GGUF_TYPE_F16  ? 1
           : type == LS_GGUF_TYPE_Q4_0 ? 2
           : type == LS_GGUF_TYPE_Q8_0 ? 7
                                       : 32;
}

static void put_settings(job *j, ls_str *notes)
{
    const ls_model_shape *s = &j->model->shape;

    ls_gguf_put_text(&j->settings, "general.architecture", j->arch->name);
    ls_gguf_put_text(&j->settings, "general.type", "model");
    ls_gguf_put_u32(&j->settings, "general.file_type", file_type(j->args->type));
    ls_gguf_put_u32(&j->settings, "general.quantization_version", 2);
    put_size(j, "vocab_size", s->V);
    put_size(j, "context_length", context_of(j, notes));
    put_size(j, "embedding_length", s->C);
    put_size(j, "block_count", s->L);
    put_size(j, "feed_forward_length", s->F);
    put_size(j, "attention.head_count", s->H);
    put_size(j, "attention.head_count_kv", s->Hkv);
    put_size(j, "attention.key_length", s->D);
    put_size(j, "attention.value_length", s->D);
    put_real(j,
             s->norm == LS_NORM_LAYER ? "attention.layer_norm_epsilon"
                                      : "attention.layer_norm_rms_epsilon",
             (double)s->eps);
    put_rope(j);
    if (s->E) {
        put_size(j, "expert_count", s->E);
        put_size(j, "expert_used_count", s->K);
        put_size(j, "expert_feed_forward_length", s->F);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

static int64_t place_of(const source *s, int64_t part)
{
    if (!s->experts)
        return s->first;
    const ls_expert_params *e = &s->experts[part];
    return s->which == 2 ? e->out_w.w : e->fc_w[s->which].w;
}

/* Row number row of a tensor to x, or (back) from there. */
static void move_row(float *w, const source *s, int64_t row, float *x, bool back)
{
    int64_t r = row % s->rows, step = s->turned ? s->rows : 1;

    if (s->head) {
        int64_t in = r % s->head;
        r += -in + in / 2 + in % 2 * (s->head / 2);
    }
    float *at = w + place_of(s, row / s->rows) + (s->turned ? r : r * s->cols);
    for (int64_t k = 0; k < s->cols; k++, at += step)
        if (back)
            *at = x[k];
        else
            x[k] = *at;
}

static ls_status unfit(const job *j, const source *s)
{
    ls_status st = ls_fail(LS_EDATA, "a weight of \"%s\" is too large for %s", s->tensor.name,
                           ls_gguf_type_name(s->tensor.type));
    ls_err_hint(j->args->type == LS_GGUF_TYPE_F16 ? "Export with --dtype bf16 or f32."
                                                  : "Export with --dtype f32.");
    return st;
}

static ls_status write_tensor(const job *j, ls_gguf_writer *w, const source *s)
{
    const ls_loaded_model *r = j->args->model;
    int64_t bytes = ls_gguf_block_bytes(s->tensor.type, s->cols);
    float *x = ls_mem_array((size_t)s->cols, sizeof *x);
    void *packed = ls_mem_alloc((size_t)bytes);
    bool finite;
    ls_status st = LS_ENOMEM;

    if (!x || !packed)
        goto out;
    LS_TRY(st, ls_gguf_begin(w, &s->tensor), out);
    for (int64_t i = 0; i < s->rows * parts_of(j, s); i++) {
        if (s->own)
            memcpy(x, s->own, (size_t)s->cols * sizeof *x);
        else
            move_row(r->w, s, i, x, false);
        ls_gguf_block_pack(s->tensor.type, x, s->cols, packed, &finite);
        if (!finite) {
            st = unfit(j, s);
            goto out;
        }
        LS_TRY(st, ls_gguf_put(w, packed, bytes), out);
    }
out:
    ls_mem_free(x);
    ls_mem_free(packed);
    return st;
}

static ls_status read_tensor(const job *j, const ls_file_map *map, const source *s)
{
    int64_t bytes = ls_gguf_block_bytes(s->tensor.type, s->cols);
    const unsigned char *from = map->bytes + s->tensor.begin;
    float *x = ls_mem_array((size_t)s->cols, sizeof *x);

    if (!x)
        return LS_ENOMEM;
    for (int64_t i = 0; i < s->rows * parts_of(j, s) && !s->own; i++, from += bytes) {
        ls_gguf_block_unpack(s->tensor.type, from, s->cols, x);
        move_row(j->args->model->w, s, i, x, true);
    }
    ls_mem_free(x);
    return LS_OK;
}

static ls_status read_back(const job *j)
{
    ls_file_map map;
    ls_status st = ls_file_map_open(&map, j->args->path);

    if (st != LS_OK)
        return st;
    for (int i = 0; i < j->n && st == LS_OK; i++)
        st = read_tensor(j, &map, &j->sources[i]);
    ls_file_map_close(&map);
    return st;
}

/* --- the whole -------------------------------------------------------------------------------- */

static ls_status open_job(job *j, const ls_gguf_model_args *args)
{
    *j = (job){.args = args,
               .model = &args->model->model,
               .arch = &archs[args->model->model.shape.family]};
    ls_gguf_settings_init(&j->settings);
    ls_status st = ls_gguf_model_check(j->model);
    return st == LS_OK ? add_all(j) : st;
}

static void close_job(job *j)
{
    ls_gguf_settings_release(&j->settings);
    ls_mem_free(j->sources);
    ls_mem_free(j->factors);
}

/* The tensors as the writer wants them; owned by the caller. */
static ls_gguf_tensor *tensors_of(const job *j)
{
    ls_gguf_tensor *tensors = ls_mem_array((size_t)j->n, sizeof *tensors);

    for (int i = 0; i < j->n && tensors; i++)
        tensors[i] = j->sources[i].tensor;
    return tensors;
}

ls_status ls_gguf_model_write(const ls_gguf_model_args *args, ls_str *notes, int64_t *bytes_out)
{
    job j;
    ls_gguf_writer w = {.fd = -1};
    ls_gguf_tensor *tensors = NULL;
    ls_status st;

    LS_TRY(st, open_job(&j, args), out);
    put_settings(&j, notes);
    LS_TRY(st,
           ls_gguf_vocab_put(&j.settings, args->tokenizer, j.model->shape.V, args->config,
                             args->name, notes),
           out);
    tensors = tensors_of(&j);
    if (!tensors) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, ls_gguf_create(&w, args->path, &j.settings, tensors, j.n), out);
    for (int i = 0; i < j.n; i++) {
        j.sources[i].tensor = tensors[i];
        LS_TRY(st, write_tensor(&j, &w, &j.sources[i]), out);
    }
    LS_TRY(st, ls_gguf_finish(&w), out);
    LS_TRY(st, read_back(&j), out);
    *bytes_out = w.end;
out:
    ls_gguf_abandon(&w);
    ls_mem_free(tensors);
    close_job(&j);
    return st;
}
