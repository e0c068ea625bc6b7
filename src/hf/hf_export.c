/* hf_export.c -- a model becomes a Hugging Face folder.
 *
 * Parameters keep their names and memory order, so writing is rounding and copying; neighbours that
 * the family stores as one tensor are written as one (hf_fused.h). With LoRA the
 * small matrices are added to the weights first, or written alone as a PEFT adapter. Tensors go
 * into files in the model's order until a file is full. Then the folder is opened like anybody
 * else's, its logits are compared with those of the model in memory, and only then it gets its
 * name. */
#include "hf/hf_export.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/json_edit.h"
#include "base/mem.h"
#include "base/new_folder.h"
#include "base/time.h"
#include "checkpoint/safetensors.h"
#include "config/model_families.h"
#include "hf/base_run.h"
#include "hf/hf_convert.h"
#include "data/chat/chat.h"
#include "data/tokenizer/bpe_train.h"
#include "hf/gguf_model.h"
#include "hf/hf_base.h"
#include "hf/hf_copy.h"
#include "hf/hf_fused.h"
#include "hf/hf_quant.h"
#include "hf/peft.h"
#include "hf/special_ids.h"
#include "model/decode.h"

#define GGUF_FILE "model.gguf" /* while it is made */

typedef struct job {
    const ls_hf_export_args *args;
    ls_hf_folder *folder;
    ls_loaded_model r;
    ls_new_folder stage;
    ls_fingerprint print; /* of the model before anything was rounded */
    ls_hf_config config;
    ls_tokenizer *tok; /* NULL: the model has none that can be used */
    ls_special_ids ids;
    ls_hf_export_report report;
} job;

/* --- tensors ---------------------------------------------------------------------------------- */

/* What goes into the files, in the model's order. */
static bool wanted(const job *j, const ls_param *p)
{
    return p->lora == j->args->adapter;
}

/* A tensor to be written. */
typedef struct piece {
    char name[LS_PARAM_NAME + 48];
    const float *x;
    int ndim;
    int64_t shape[2];
} piece;

static int64_t elements(const piece *p)
{
    return p->shape[0] * (p->ndim > 1 ? p->shape[1] : 1);
}

static ls_status check_fits(const piece *p, const float *x, const uint16_t *narrow, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if ((narrow[i] & 0x7fff) == 0x7c00 && isfinite(x[i])) {
            ls_status st = ls_fail(LS_EDATA, "a weight of \"%s\" is %g, too large for f16", p->name,
                                   (double)x[i]);
            ls_err_hint("Export with --dtype bf16 or f32.");
            return st;
        }
    return LS_OK;
}

static ls_status put_piece(const job *j, ls_safetensors_writer *w, const piece *p)
{
    enum { PIECE = 65536 };
    const float *x = p->x;
    int64_t count = elements(p);
    ls_dtype type = j->report.type;
    ls_status st = LS_OK;

    if (type == LS_F32)
        return ls_safetensors_put(w, x, count * (int64_t)sizeof *x);
    uint16_t *narrow = ls_mem_array(PIECE, sizeof *narrow);
    if (!narrow)
        return LS_ENOMEM;
    for (int64_t k = 0; k < count && st == LS_OK; k += PIECE) {
        int64_t n = ls_min_i64(PIECE, count - k);
        ls_hf_convert_narrow(type, x + k, n, narrow);
        if (type == LS_F16)
            LS_TRY(st, check_fits(p, x + k, narrow, n), out);
        st = ls_safetensors_put(w, narrow, n * 2);
    }
out:
    ls_mem_free(narrow);
    return st;
}

/* One file. */
static ls_status write_file(job *j, const char *name, const piece *pieces, int n)
{
    char path[PATH_MAX + 64];
    ls_safetensors_writer w = {.fd = -1};
    ls_safetensors_item *items = ls_mem_array((size_t)n + 1, sizeof *items);
    ls_status st = LS_ENOMEM;

    if (!items)
        goto out;
    snprintf(path, sizeof path, "%s/%s", j->stage.path, name);
    for (int i = 0; i < n; i++)
        items[i] = (ls_safetensors_item){.name = pieces[i].name,
                                         .type = j->report.type,
                                         .ndim = pieces[i].ndim,
                                         .shape = {pieces[i].shape[0], pieces[i].shape[1]},
                                         .bytes = &pieces[i]};
    LS_TRY(st, ls_safetensors_create(&w, path, items, n), out);
    for (int i = 0; i < n; i++)
        LS_TRY(st, put_piece(j, &w, items[i].bytes), out);
    j->report.bytes += w.end;
    j->report.files++;
    st = ls_safetensors_finish(&w);
out:
    ls_safetensors_abandon(&w);
    ls_mem_free(items);
    return st;
}

/* The tensor that begins with parameter i; returns how many parameters it holds. */
static int piece_of(const job *j, int i, piece *to)
{
    const ls_param *p = &j->r.model.params[i];
    char name[LS_PARAM_NAME];
    int part, n = ls_hf_fused_name(j->r.model.shape.family, p->name, name, &part);

    *to = (piece){.x = j->r.w + p->first, .ndim = p->ndim, .shape = {p->shape[0], p->shape[1]}};
    snprintf(to->name, sizeof to->name, "%s", name);
    for (int k = 1; k < n; k++)
        to->shape[0] += p[k].shape[0];
    LS_BUG_IF(part != 0 || p[n - 1].first + p[n - 1].count != p->first + elements(to),
              "the parts of \"%s\" do not lie side by side", name);
    return n;
}

/* All tensors of the base model, in its order. *pieces_out is owned by the caller. */
static ls_status base_pieces(const job *j, piece **pieces_out, int *n_out)
{
    const ls_model *m = &j->r.model;
    piece *pieces = ls_mem_array((size_t)m->n_params, sizeof *pieces);
    int n = 0;

    if (!pieces)
        return LS_ENOMEM;
    for (int i = 0; i < m->n_params;) {
        if (m->params[i].lora)
            i++;
        else
            i += piece_of(j, i, &pieces[n++]);
    }
    *pieces_out = pieces;
    *n_out = n;
    return LS_OK;
}

/* The tensor after the last one that fits into the file that begins with first. */
static int file_end(const job *j, const piece *pieces, int n, int first)
{
    int64_t bytes = 0, width = ls_dtype_bytes(j->report.type);
    int i = first;

    for (; i < n; i++) {
        int64_t more = elements(&pieces[i]) * width;
        if (bytes && j->args->shard && bytes + more > j->args->shard)
            break;
        bytes += more;
    }
    return i;
}

static void shard_name(int k, int files, char *out, size_t cap)
{
    snprintf(out, cap, "model-%05d-of-%05d.safetensors", k + 1, files);
}

static ls_status write_index(job *j, const piece *pieces, int n, int files)
{
    int64_t bytes = 0;
    char path[PATH_MAX + 64], name[64];
    ls_json json;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    for (int i = 0; i < n; i++)
        bytes += elements(&pieces[i]) * ls_dtype_bytes(j->report.type);
    ls_json_begin_lines(&json, &text, 2);
    ls_json_open(&json, '{');
    ls_json_put_open(&json, "metadata", '{');
    ls_json_put_int(&json, "total_parameters", j->report.parameters);
    ls_json_put_int(&json, "total_size", bytes);
    ls_json_close(&json);
    ls_json_put_open(&json, "weight_map", '{');
    for (int k = 0, first = 0; k < files; k++) {
        int end = file_end(j, pieces, n, first);
        shard_name(k, files, name, sizeof name);
        for (int i = first; i < end; i++)
            ls_json_put_str(&json, pieces[i].name, name);
        first = end;
    }
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(&text, '\n');
    LS_TRY(st, ls_str_status(&text), out);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", j->stage.path);
    LS_TRY(st, ls_file_write_atomic(path, text.p, text.len), out);
out:
    ls_str_release(&text);
    return st;
}

static ls_status write_weights(job *j)
{
    int files = 0, first = 0, n;
    piece *pieces;
    char name[64];
    ls_status st = base_pieces(j, &pieces, &n);

    if (st != LS_OK)
        return st;
    for (; first < n; files++)
        first = file_end(j, pieces, n, first);
    if (files <= 1) {
        st = write_file(j, "model.safetensors", pieces, n);
        goto out;
    }
    first = 0;
    for (int k = 0; k < files; k++) {
        int end = file_end(j, pieces, n, first);
        shard_name(k, files, name, sizeof name);
        LS_TRY(st, write_file(j, name, pieces + first, end - first), out);
        first = end;
    }
    st = write_index(j, pieces, n, files);
out:
    ls_mem_free(pieces);
    return st;
}

/* --- the small files -------------------------------------------------------------------------- */

static ls_status write_text(const job *j, const char *name, const ls_str *text)
{
    char path[PATH_MAX + 64];
    ls_status st = ls_str_status(text);

    if (st != LS_OK)
        return st;
    snprintf(path, sizeof path, "%s/%s", j->stage.path, name);
    return ls_file_write_atomic(path, text->p, text->len);
}

static const char *torch_name(ls_dtype type)
{
    return type == LS_BF16 ? "bfloat16" : type == LS_F16 ? "float16" : "float32";
}

/* The folder of an adapter that is merged and has a tokenizer: what it learned ends as that says. Else NULL. */
static const char *adapter_tokenizer(const job *j)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", j->args->merge ? j->args->merge : "");

    return j->args->merge && n < (int)sizeof path && ls_file_exists(path) ? j->args->merge : NULL;
}

/* Whether the model ends texts otherwise than its config.json says: it was trained here, or an adapter was. */
static bool was_taught(const job *j)
{
    return ls_hf_folder_is_trained(j->folder) || adapter_tokenizer(j) != NULL;
}

/* What a model that was trained here begins and ends with, the same in every file that says it. One
 * that was not keeps what its config.json said. */
static void name_ids(job *j)
{
    const ls_special_ids *ids = &j->ids;
    ls_hf_config *c = &j->config;

    if (!was_taught(j))
        return;
    c->bos = ids->bos;
    c->n_eos = 0;
    for (int i = 0; i < ids->n_eos && c->n_eos < LS_HF_CONFIG_EOS; i++)
        c->eos[c->n_eos++] = ids->eos[i];
    c->bos_unsaid = c->eos_unsaid = false; /* else readers would take their own */
    for (int i = 0; i < c->n_kept; i++)
        if (strcmp(c->kept[i].key, "pad_token_id") == 0)
            return;
    if (c->n_kept < LS_HF_CONFIG_KEPT)
        c->kept[c->n_kept++] = (ls_hf_config_kept){.key = "pad_token_id",
                                                   .kind = ids->pad >= 0 ? LS_HF_CONFIG_KEPT_INT
                                                                         : LS_HF_CONFIG_KEPT_NULL,
                                                   .value = (double)ids->pad};
}

static ls_status note_base(const job *j, ls_str *config)
{
    ls_status st;
    ls_str base;

    ls_str_init(&base);
    LS_TRY(st, ls_hf_base_of(j->folder, &base), out);
    if (base.len > 0 && !ls_hf_folder_is_trained(j->folder))
        st = ls_hf_base_set(config, base.p);
out:
    ls_str_release(&base);
    return st;
}

static ls_status write_config(job *j)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    j->config = *ls_hf_folder_config(j->folder);
    name_ids(j);
    j->config.model = j->r.run.model;
    snprintf(j->config.dtype, sizeof j->config.dtype, "%s", torch_name(j->report.type));
    ls_hf_config_write(&j->config, &text);
    if (j->args->bits) /* still the same model: adapters trained beside it name its origin */
        LS_TRY(st, note_base(j, &text), out);
    LS_TRY(st, write_text(j, "config.json", &text), out);
out:
    ls_str_release(&text);
    return st;
}

static void print_ends(const ls_hf_config *c, ls_str *out)
{
    for (int i = 0; i < c->n_eos; i++)
        ls_str_printf(out, "%s%lld", i ? ", " : "[", (long long)c->eos[i]);
    ls_str_append(out, c->n_eos ? "]" : "null");
}

/* The file that came with the model; its ids become those of a model that was trained here. */
static ls_status renew_generation(const job *j, const char *origin, bool *done_out)
{
    char path[PATH_MAX + 64];
    ls_str text, value;
    ls_status st;

    ls_str_init(&text);
    ls_str_init(&value);
    LS_TRY(st, ls_hf_copy_file(origin, j->stage.path, "generation_config.json", done_out), out);
    if (!*done_out || !was_taught(j))
        goto out;
    snprintf(path, sizeof path, "%s/generation_config.json", j->stage.path);
    LS_TRY(st, ls_file_read(path, LS_MIB, &text), out);
    print_ends(&j->config, &value);
    LS_TRY(st, ls_str_status(&value), out);
    LS_TRY(st, ls_json_edit_set(&text, "eos_token_id", value.p), out);
    if (j->config.bos >= 0) {
        ls_str_clear(&value);
        ls_str_printf(&value, "%lld", (long long)j->config.bos);
        LS_TRY(st, ls_str_status(&value), out);
        LS_TRY(st, ls_json_edit_set(&text, "bos_token_id", value.p), out);
    }
    st = ls_file_write_atomic(path, text.p, text.len);
out:
    ls_str_release(&text);
    ls_str_release(&value);
    return st;
}

/* The one that came with the model, or the token ids and how `generate` chooses by default. */
static ls_status write_generation(job *j)
{
    const char *origin = ls_hf_folder_origin(j->folder);
    bool done = false;
    ls_json json;
    ls_str text;
    ls_status st = LS_OK;

    ls_str_init(&text);
    if (*origin)
        LS_TRY(st, renew_generation(j, origin, &done), out);
    if (done)
        goto out;
    ls_json_begin_lines(&json, &text, 2);
    ls_json_open(&json, '{');
    if (j->config.bos >= 0)
        ls_json_put_int(&json, "bos_token_id", j->config.bos);
    if (j->config.n_eos) {
        ls_json_put_open(&json, "eos_token_id", '[');
        for (int i = 0; i < j->config.n_eos; i++)
            ls_json_int(&json, j->config.eos[i]);
        ls_json_close(&json);
    }
    if (j->ids.pad >= 0)
        ls_json_put_int(&json, "pad_token_id", j->ids.pad);
    ls_json_put_bool(&json, "do_sample", true);
    ls_json_put_num(&json, "temperature", LS_SAMPLING_TEMPERATURE);
    ls_json_put_num(&json, "top_p", LS_SAMPLING_TOP_P);
    ls_json_close(&json);
    ls_str_append_char(&text, '\n');
    st = write_text(j, "generation_config.json", &text);
out:
    ls_str_release(&text);
    return st;
}

/* The template that a run's conversations were written with: without it the model cannot be asked as
 * it was taught. */
static ls_status write_template(job *j)
{
    const char *name = ls_hf_folder_run(j->folder)->data.chat_template;
    ls_chat *chat = NULL;
    ls_status st = LS_OK;
    ls_str text;

    if (!ls_chat_is_meant(name) || strcmp(name, "auto") == 0 || !j->tok)
        return LS_OK;
    ls_str_init(&text);
    LS_TRY(st, ls_chat_open(&chat, name, j->tok), out);
    ls_chat_warn_of_spelling(chat); /* other programs must stop at the text */
    ls_str_append(&text, ls_chat_template(chat));
    st = write_text(j, "chat_template.jinja", &text);
out:
    ls_str_release(&text);
    ls_chat_close(chat);
    return st;
}

/* One of the tokenizer's files, where it is there, under whose key the token's text stands. */
static ls_status set_token(const job *j, const char *file, const char *key, const ls_str *token)
{
    char path[PATH_MAX + 64];
    ls_json json;
    ls_str text, value;
    ls_status st = LS_OK;

    snprintf(path, sizeof path, "%s/%s", j->stage.path, file);
    if (!ls_file_exists(path))
        return LS_OK;
    ls_str_init(&text);
    ls_str_init(&value);
    ls_json_begin(&json, &value);
    ls_json_text(&json, token->p, token->len);
    LS_TRY(st, ls_str_status(&value), out);
    LS_TRY(st, ls_file_read(path, 64 * LS_MIB, &text), out);
    LS_TRY(st, ls_json_edit_set(&text, key, value.p), out);
    st = ls_file_write_atomic(path, text.p, text.len);
out:
    ls_str_release(&text);
    ls_str_release(&value);
    return st;
}

static bool is_end(const job *j, int32_t id)
{
    for (int i = 0; i < j->ids.n_eos; i++)
        if (j->ids.eos[i] == id)
            return true;
    return false;
}

/* Where only a tokenizer.json is there, readers guess the rest by the family: write it instead. */
static ls_status write_missing(const job *j)
{
    static const char bare[] = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
    const struct {
        const char *key;
        int64_t id;
    } rows[] = {{"bos_token", j->ids.bos},
                {"eos_token", j->ids.n_eos ? j->ids.eos[0] : -1},
                {"pad_token", j->ids.pad}};
    char path[PATH_MAX + 64];
    ls_str token;
    ls_status st = LS_OK;

    snprintf(path, sizeof path, "%s/tokenizer_config.json", j->stage.path);
    if (!ls_hf_folder_is_trained(j->folder) || ls_file_exists(path))
        return LS_OK;
    ls_str_init(&token);
    LS_TRY(st, ls_file_write_atomic(path, bare, sizeof bare - 1), out);
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        int32_t id = (int32_t)rows[i].id;
        if (id < 0 || !ls_tokenizer_is_special(j->tok, id))
            continue;
        ls_str_clear(&token);
        LS_TRY(st, ls_tokenizer_decode(j->tok, &id, 1, &token), out);
        LS_TRY(st, set_token(j, "tokenizer_config.json", rows[i].key, &token), out);
    }
out:
    ls_str_release(&token);
    return st;
}

/* The token that other programs stop at is the tokenizer's eos_token. It becomes what ends a turn, unless
 * the template writes eos_token in some place; and what the model ends with where it is something else
 * or nothing. The tokenizer "bytes" has no special tokens and keeps none. */
static ls_status name_end(const job *j)
{
    const char *template = ls_tokenizer_chat_template(j->tok);
    int32_t now = ls_tokenizer_eos(j->tok), want = j->ids.n_eos ? (int32_t)j->ids.eos[0] : -1;
    bool turn =
        j->ids.turn >= 0 && j->ids.turn != now && !(template && strstr(template, "eos_token"));
    ls_str token;
    ls_status st = LS_OK;

    if (!ls_hf_folder_is_trained(j->folder) || want < 0 || now == want ||
        (!turn && is_end(j, now)) || !ls_tokenizer_is_special(j->tok, want))
        return LS_OK;
    ls_str_init(&token);
    LS_TRY(st, ls_tokenizer_decode(j->tok, &want, 1, &token), out);
    LS_TRY(st, set_token(j, "tokenizer_config.json", "eos_token", &token), out);
    LS_TRY(st, set_token(j, "special_tokens_map.json", "eos_token", &token), out);
out:
    ls_str_release(&token);
    return st;
}

static ls_status write_tokenizer(job *j)
{
    const char *name = ls_hf_folder_run(j->folder)->data.tokenizer, *own = adapter_tokenizer(j);
    char copies[PATH_MAX];
    int files = 0;
    ls_status st;

    LS_TRY(st,
           ls_hf_copy_tokenizer(own ? own : ls_hf_folder_home(j->folder), j->stage.path, &files),
           out);
    if (files == 0 && !ls_hf_folder_is_hf(j->folder)) {
        snprintf(copies, sizeof copies, "%s/" LS_HF_CONFIG_COPIES, ls_hf_folder_home(j->folder));
        LS_TRY(st, ls_hf_copy_tokenizer(copies, j->stage.path, &files), out);
    }
    if (files == 0 && strcmp(name, "bytes") == 0) {
        LS_TRY(st, ls_bpe_train_write_bytes(j->stage.path), out);
        files = 1;
    } else if (files == 0 && ls_file_is_dir(name)) {
        LS_TRY(st, ls_hf_copy_tokenizer(name, j->stage.path, &files), out);
    }
    j->report.tokenizer = files > 0;
    if (!own)
        LS_TRY(st, write_template(j), out);
    if (files == 0 || !j->tok || own)
        goto out;
    LS_TRY(st, write_missing(j), out);
    st = name_end(j);
out:
    return st;
}

/* --- an adapter ------------------------------------------------------------------------------- */

/* "self_attn.q_proj" of "model.layers.3.self_attn.q_proj.lora_A.weight"; false for others. */
static bool module_of(const ls_param *p, char *out, size_t cap)
{
    const char *end = strstr(p->name, ".lora_A.weight");
    const char *start = strpbrk(p->name, "0123456789");

    if (!p->lora || !end || !start)
        return false;
    start += strspn(start, "0123456789") + 1;
    snprintf(out, cap, "%.*s", (int)(end - start), start);
    return true;
}

/* The module of a small matrix as a folder calls it. Returns how many parts that has. */
static int module_in_folder(const job *j, const ls_param *p, char module_out[LS_PARAM_NAME])
{
    char module[64];
    int part;

    if (!module_of(p, module, sizeof module))
        return 0;
    return ls_hf_fused_name(j->r.model.shape.family, module, module_out, &part);
}

/* How many parts of parameter i's module are adapted, in its block; 0: it is none, or was counted
 * with one before it. */
static int count_module(const job *j, int i, char module_out[LS_PARAM_NAME])
{
    const ls_param *all = j->r.model.params;
    char other[LS_PARAM_NAME];
    int n = 1;

    if (module_in_folder(j, &all[i], module_out) == 0)
        return 0;
    for (int k = 0; k < j->r.model.n_params; k++) {
        if (k == i || module_in_folder(j, &all[k], other) == 0 || strcmp(other, module_out) != 0)
            continue;
        if (k < i)
            return 0;
        n += all[k].unit == all[i].unit;
    }
    return n;
}

static void put_targets(const job *j, ls_json *json)
{
    char module[LS_PARAM_NAME];

    ls_json_put_open(json, "target_modules", '[');
    for (int i = 0; i < j->r.model.n_params; i++)
        if (count_module(j, i, module))
            ls_json_str(json, module);
    ls_json_close(json);
}

/* Adapters that were joined have a rank and an alpha of their own. */
static void put_pattern(const job *j, ls_json *json, const char *key, double each)
{
    char module[LS_PARAM_NAME];
    bool any = false;

    for (int i = 0; i < j->r.model.n_params; i++) {
        int n = count_module(j, i, module);
        if (n < 2)
            continue;
        if (!any) {
            ls_json_put_open(json, key, '{');
        }
        any = true;
        ls_json_put_num(json, module, n * each);
    }
    if (any)
        ls_json_close(json);
}

static ls_status write_adapter_config(job *j)
{
    const ls_run *run = ls_hf_folder_run(j->folder);
    ls_json json;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    ls_json_begin_lines(&json, &text, 2);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "peft_type", "LORA");
    ls_json_put_str(&json, "task_type", "CAUSAL_LM");
    ls_json_put_str(&json, "base_model_name_or_path", j->report.base);
    ls_json_put_int(&json, "r", run->lora.rank);
    ls_json_put_num(&json, "lora_alpha", run->lora.alpha);
    ls_json_put_num(&json, "lora_dropout", 0);
    put_targets(j, &json);
    put_pattern(j, &json, "rank_pattern", (double)run->lora.rank);
    put_pattern(j, &json, "alpha_pattern", run->lora.alpha);
    ls_json_put_bool(&json, "fan_in_fan_out", ls_families_row(run->model.family)->in_out);
    ls_json_put_str(&json, "bias", "none");
    ls_json_put_bool(&json, "inference_mode", true);
    ls_json_put_bool(&json, "init_lora_weights", true);
    ls_json_put_bool(&json, "use_rslora", false);
    ls_json_put_bool(&json, "use_dora", run->lora.dora);
    ls_json_close(&json);
    ls_str_append_char(&text, '\n');
    st = write_text(j, "adapter_config.json", &text);
    ls_str_release(&text);
    return st;
}

static piece matrix_of(const char *module, const char *which, const float *x, int64_t rows,
                       int64_t cols)
{
    piece p = {.x = x, .ndim = 2, .shape = {rows, cols}};

    snprintf(p.name, sizeof p.name, "base_model.model.%s%s", module, which);
    return p;
}

/* DoRA: the lengths of an adapted weight's outputs, which the model has as differences to the base. */
static ls_status lengths_of(const ls_loaded_model *r, const ls_param *p, float **lengths_out,
                            piece *piece_out)
{
    const ls_block_params *block = &r->model.blocks[p->unit - 1];
    size_t module = strlen(p->name) - strlen(LS_MODEL_DORA);
    float *lengths = ls_mem_array((size_t)p->count, sizeof *lengths);
    int i = 0;

    if (!lengths)
        return LS_ENOMEM;
    while (block->adapters[i].d.w != p->first)
        i++;
    ls_loaded_model_lengths(r, ls_loaded_model_beside(block, i).w, p->count, block->adapters[i].K,
                            lengths);
    for (int64_t n = 0; n < p->count; n++)
        lengths[n] += r->w[p->first + n];
    *lengths_out = lengths;
    *piece_out = (piece){.x = lengths, .ndim = 1, .shape = {p->count}};
    snprintf(piece_out->name, sizeof piece_out->name, "base_model.model.%.*s.lora_magnitude_vector",
             (int)module, p->name);
    return LS_OK;
}

/* The small matrices: those of modules that a folder has too, then those that were joined. */
static ls_status write_adapter_weights(job *j)
{
    const ls_model *m = &j->r.model;
    ls_hf_fused_adapter *fused = NULL;
    char module[LS_PARAM_NAME];
    int n = 0, n_fused = 0, n_lengths = 0, part;
    piece *pieces = ls_mem_array((size_t)m->n_params, sizeof *pieces);
    float **lengths = ls_mem_array((size_t)m->n_params, sizeof *lengths);
    ls_status st = LS_ENOMEM;

    if (!pieces || !lengths)
        goto out;
    LS_TRY(st, ls_hf_fused_adapters(&j->r, &fused, &n_fused), out);
    for (int i = 0; i < m->n_params; i++) {
        const ls_param *p = &m->params[i];
        if (!p->lora || ls_hf_fused_name(m->shape.family, p->name, module, &part) > 1)
            continue;
        if (p->ndim == 2) {
            pieces[n++] = matrix_of(p->name, "", j->r.w + p->first, p->shape[0], p->shape[1]);
        } else {
            LS_TRY(st, lengths_of(&j->r, p, &lengths[n_lengths], &pieces[n]), out);
            n_lengths++, n++;
        }
    }
    for (int i = 0; i < n_fused; i++) {
        const ls_hf_fused_adapter *f = &fused[i];
        pieces[n++] = matrix_of(f->module, ".lora_A.weight", f->a, f->rank, f->K);
        pieces[n++] = matrix_of(f->module, ".lora_B.weight", f->b, f->N, f->rank);
        if (f->m) {
            pieces[n] = matrix_of(f->module, ".lora_magnitude_vector", f->m, f->N, 0);
            pieces[n++].ndim = 1;
        }
    }
    st = write_file(j, "adapter_model.safetensors", pieces, n);
out:
    ls_hf_fused_adapters_free(fused, n_fused);
    for (int i = 0; i < n_lengths; i++)
        ls_mem_free(lengths[i]);
    ls_mem_free(lengths);
    ls_mem_free(pieces);
    return st;
}

/* What the adapter calls its base model. */
static ls_status find_base(job *j)
{
    ls_status st = LS_OK;
    ls_str base;

    ls_str_init(&base);
    if (j->args->base)
        ls_str_append(&base, j->args->base);
    else
        LS_TRY(st, ls_hf_base_of(j->folder, &base), out);
    LS_TRY(st, ls_str_status(&base), out);
    snprintf(j->report.base, sizeof j->report.base, "%s", base.p);
    if (!ls_hf_base_loads(j->report.base))
        snprintf(
            j->report.notes, sizeof j->report.notes,
            "transformers finds no model there: export the base model and name it with --base");
out:
    ls_str_release(&base);
    return st;
}

/* --- the whole -------------------------------------------------------------------------------- */

static double tolerance(ls_dtype type)
{
    return type == LS_BF16  ? LS_FINGERPRINT_BF16
           : type == LS_F16 ? LS_FINGERPRINT_F16
                            : LS_FINGERPRINT_F32;
}

/* Open what was written as anybody would, and compare with what was meant. The model in memory is
 * given up first: two of them may not fit. */
static ls_status verify(job *j)
{
    ls_hf_folder *f = NULL;
    ls_fingerprint print;
    ls_status st;

    ls_loaded_model_close(&j->r);
    LS_TRY(st, ls_hf_folder_open(&f, j->stage.path, -1), out);
    LS_TRY(st, ls_loaded_model_open(&j->r, f), out);
    LS_TRY(st,
           ls_fingerprint_verify(&j->r, &j->print,
                                 j->args->bits ? HUGE_VAL : tolerance(j->report.type), j->args->to,
                                 &j->report.worst),
           out);
    LS_TRY(st, ls_fingerprint_make(&j->r, &print), out);
    LS_TRY(st, ls_fingerprint_write(&print, j->stage.path), out);
out:
    ls_loaded_model_close(&j->r);
    ls_hf_folder_close(f);
    return st;
}

/* The model as one file for llama.cpp, made beside its tokenizer's files. The weights in memory are
 * then those of the file; what rounding to few bits costs is reported, not judged. */
static ls_status write_gguf(job *j)
{
    char path[PATH_MAX + 64];
    const char *name = strrchr(j->stage.final, '/');
    ls_str notes;
    ls_status st;

    snprintf(path, sizeof path, "%s/tokenizer.json", j->stage.path);
    if (!ls_file_exists(path)) {
        st = ls_fail(LS_EUSAGE, "no tokenizer.json lies beside \"%s\", and a GGUF file needs one",
                     j->args->from);
        ls_err_hint("Copy the model's tokenizer.json there; AutoTokenizer.save_pretrained() in "
                    "transformers writes one.");
        return st;
    }
    ls_str_init(&notes);
    snprintf(path, sizeof path, "%s/" GGUF_FILE, j->stage.path);
    ls_gguf_model_args args = {.model = &j->r,
                               .config = &j->config,
                               .tokenizer = j->stage.path,
                               .name = name ? name + 1 : j->stage.final,
                               .path = path,
                               .type = j->args->gguf_type};
    LS_TRY(st, ls_gguf_model_write(&args, &notes, &j->report.bytes), out);
    j->report.files = 1;
    snprintf(j->report.notes, sizeof j->report.notes, "%s", notes.p);
    st = ls_fingerprint_verify(&j->r, &j->print, HUGE_VAL, j->args->to, &j->report.worst);
out:
    ls_str_release(&notes);
    return st;
}

static ls_status write_quantized(job *j)
{
    ls_hf_quant_report r;
    ls_status st = ls_hf_quant_write(&(ls_hf_quant_args){.model = &j->r,
                                                         .folder = j->stage.path,
                                                         .bits = j->args->bits,
                                                         .group = j->args->group,
                                                         .type = j->report.type},
                                     &r);

    if (st != LS_OK)
        return st;
    j->report.files = 1;
    j->report.bytes = r.bytes;
    j->report.matrices = r.matrices;
    char all[40] = "";
    if (r.fits)
        snprintf(all, sizeof all, "; --group %lld divides all", (long long)r.fits);
    if (r.left)
        snprintf(j->report.notes, sizeof j->report.notes,
                 "%d of %d matrices are not quantized: their rows cannot be divided into groups of "
                 "%lld%s",
                 r.left, r.left + r.matrices, (long long)j->args->group, all);
    return LS_OK;
}

static void pick_type(job *j)
{
    const char *came = ls_hf_folder_config(j->folder)->dtype;

    j->report.type = j->args->type;
    if (j->args->same_type)
        j->report.type = strcmp(came, "bfloat16") == 0  ? LS_BF16
                         : strcmp(came, "float16") == 0 ? LS_F16
                                                        : LS_F32;
}

static ls_status check_adapter(const job *j)
{
    const char *base = j->r.run.model.import;

    if (!j->args->adapter)
        return LS_OK;
    if (j->r.model.shape.lora_rank == 0) {
        ls_fail(LS_EUSAGE, "\"%s\" was trained without LoRA: it has no adapter", j->args->from);
        ls_err_hint("Leave --adapter out to export the model itself.");
        return LS_EUSAGE;
    }
    if (j->args->base || !ls_base_run_is_trained(base))
        return LS_OK; /* a base that is gone, or a name of the hub: peft finds it, or says so */
    ls_fail(LS_EUSAGE, "the adapter of \"%s\" belongs to the run \"%s\", which peft cannot load",
            j->args->from, base);
    ls_err_hint("Export that run, too, and name its folder: `lineshaft export %s FOLDER`, then "
                "--base FOLDER.",
                base);
    return LS_EUSAGE;
}

/* A model without a tokenizer goes out as well. */
static ls_status open_tokenizer(job *j)
{
    const char *own = adapter_tokenizer(j);
    ls_status st =
        own ? ls_tokenizer_open(&j->tok, own) : ls_hf_folder_tokenizer(j->folder, &j->tok);

    if (!own && (st == LS_EUSAGE || st == LS_EDATA))
        ls_err_clear();
    else if (st != LS_OK)
        return st;
    return ls_special_ids_find(j->folder, j->tok, own != NULL, &j->ids);
}

/* The tokenizer goes along: the adapter learned its template, and to end where that ends a turn. */
static ls_status write_adapter(job *j)
{
    ls_status st;

    LS_TRY(st, find_base(j), out);
    LS_TRY(st, open_tokenizer(j), out);
    LS_TRY(st, write_adapter_config(j), out);
    LS_TRY(st, write_adapter_weights(j), out);
    st = write_tokenizer(j);
out:
    return st;
}

static ls_status write_model(job *j)
{
    int modules;
    ls_status st;

    if (j->args->merge) {
        LS_TRY(st, ls_peft_merge(j->args->merge, &j->r, &modules), out);
        j->report.merged = true;
    }
    LS_TRY(st, ls_hf_config_writable(&j->r.run.model), out);
    if (j->args->gguf)
        LS_TRY(st, ls_gguf_model_check(&j->r.model), out);
    LS_TRY(st, ls_fingerprint_make(&j->r, &j->print), out);
    if (j->r.model.shape.lora_rank > 0) {
        LS_TRY(st, ls_loaded_model_merge(&j->r), out);
        j->report.merged = true;
    }
    LS_TRY(st, open_tokenizer(j), out);
    LS_TRY(st, write_config(j), out);
    LS_TRY(st, write_generation(j), out);
    LS_TRY(st, write_tokenizer(j), out);
    if (j->args->gguf)
        return write_gguf(j);
    LS_TRY(st, j->args->bits ? write_quantized(j) : write_weights(j), out);
    LS_TRY(st, verify(j), out);
out:
    return st;
}

ls_status ls_hf_export(const ls_hf_export_args *args, ls_hf_export_report *report_out)
{
    int64_t start_ns = ls_time_now_ns();
    job j = {.args = args};
    ls_status st;

    ls_err_doing("exporting \"%s\"", args->from);
    LS_TRY(st, ls_hf_folder_open_signed(&j.folder, args->from, args->step, args->key), out);
    pick_type(&j);
    LS_TRY(st, ls_new_folder_begin(&j.stage, args->to), out);
    LS_TRY(st, ls_loaded_model_open(&j.r, j.folder), out);
    LS_TRY(st, check_adapter(&j), out);
    for (int i = 0; i < j.r.model.n_params; i++)
        j.report.parameters += wanted(&j, &j.r.model.params[i]) ? j.r.model.params[i].count : 0;
    LS_TRY(st, args->adapter ? write_adapter(&j) : write_model(&j), out);
    LS_TRY(st,
           args->gguf ? ls_new_folder_commit_file(&j.stage, GGUF_FILE)
                      : ls_new_folder_commit(&j.stage),
           out);
    j.report.seconds = (double)(ls_time_now_ns() - start_ns) / 1e9;
    *report_out = j.report;
out:
    ls_new_folder_drop(&j.stage);
    ls_loaded_model_close(&j.r);
    ls_tokenizer_free(j.tok);
    ls_hf_folder_close(j.folder);
    ls_err_done();
    return st;
}
