/* hf_folder.c -- a model in a folder: what it is, and its parameters one by one.
 *
 * Two kinds of folder answer the same questions. A Hugging Face folder is read from its safetensors
 * files (hf_weights.c); one of ours from the store, whose manifest holds the run that made the model.
 * A folder with model files of Hugging Face counts as theirs, whatever else lies in it.
 *
 * Checking compares two lists, the model's parameters and the folder's tensors, in both directions:
 * a tensor that is left over is as much a sign of a wrong model as one that is missing. */
#include "hf/hf_folder.h"

#include <limits.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/explain.h"
#include "config/hub_name.h"
#include "config/model_families.h"
#include "config/runfile.h"
#include "hf/hf_convert.h"
#include "hf/hf_folder_impl.h"
#include "hf/hf_fused.h"

/* --- the run that describes the model --------------------------------------------------------- */

/* A run like any other, whose model section is then the folder's. */
static ls_status run_of_config(ls_hf_folder *f)
{
    static const char text[] = "model: {layers: 1, width: 2, heads: 1, context: 1}\n";
    const ls_runfile_source source = {.text = text,
                                      .len = sizeof text - 1,
                                      .text_name = f->path,
                                      .no_environment = true,
                                      .no_files = true,
                                      .model_only = true};
    ls_run *run = &f->run;
    ls_status st = ls_runfile_load(run, &source);

    if (st != LS_OK)
        return st;
    f->has_run = true;
    char *where = ls_arena_printf(&run->arena, "%s/config.json", f->path);
    run->model = f->config.model;
    run->model.import = run->data.tokenizer = ls_arena_strdup(&run->arena, f->path);
    if (!where || !run->model.import)
        return LS_ENOMEM;
    for (int i = 0; i < ls_option_count; i++)
        if (ls_option_in(&ls_options[i], "model"))
            run->origins[i] = (ls_run_origin){.source = LS_RUN_IMPORT, .where = where};
    return LS_OK;
}

static ls_status run_of_manifest(ls_hf_folder *f)
{
    const char *config = ls_ckpt_about(f->ckpt)->config;
    ls_status st = ls_runfile_load(&f->run, &(ls_runfile_source){.text = config,
                                                                 .len = strlen(config),
                                                                 .text_name = ls_ckpt_path(f->ckpt),
                                                                 .no_environment = true,
                                                                 .no_files = true,
                                                                 .model_only = true});

    f->has_run = st == LS_OK;
    return st;
}

/* --- opening ---------------------------------------------------------------------------------- */

static bool holds(const char *folder, const char *name)
{
    char path[PATH_MAX];

    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           ls_file_exists(path);
}

/* Whether to look for files of Hugging Face: they are there, or nothing of ours is. */
static bool is_hf(const char *path)
{
    return holds(path, "model.safetensors") || holds(path, "model.safetensors.index.json") ||
           (holds(path, "config.json") && !holds(path, "checkpoints"));
}

static ls_status open_hf(ls_hf_folder *f)
{
    ls_status st;

    f->hf = true;
    ls_str_append(&f->home, f->path);
    LS_TRY(st, ls_str_status(&f->home), out);
    LS_TRY(st, ls_hf_config_open(&f->config, f->path), out);
    LS_TRY(st, ls_hf_folder_open_files(f), out);
    LS_TRY(st, run_of_config(f), out);
out:
    return st;
}

/* A store called "checkpoints" belongs to the folder it lies in. */
static void home_of_store(const char *dir, ls_str *home_out)
{
    const char *slash = strrchr(dir, '/'), *base = slash ? slash + 1 : dir;

    if (strcmp(base, "checkpoints") != 0)
        ls_str_append(home_out, dir);
    else if (!slash)
        ls_str_append_char(home_out, '.');
    else
        ls_str_append_bytes(home_out, dir, slash == dir ? 1 : (size_t)(slash - dir));
}

/* Token ids and dtype that an import kept; a run that was trained from nothing has none. */
static ls_status config_of_ours(ls_hf_folder *f)
{
    ls_hf_config kept;

    f->config =
        (ls_hf_config){.model = f->run.model, .bos = -1, .bos_unsaid = true, .eos_unsaid = true};
    if (!holds(f->home.p, "config.json") && !holds(f->home.p, LS_HF_CONFIG_COPIES "/config.json"))
        return LS_OK;
    ls_status st = ls_hf_config_open(&kept, ls_hf_folder_origin(f));
    if (st == LS_OK) {
        kept.positions = kept.model.context;
        kept.model = f->run.model;
        f->config = kept;
        if (ls_hf_folder_origin(f) != f->home.p)
            f->config.dtype[0] = '\0'; /* the weights were trained since, in full precision */
    }
    return st;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);

    return n > m && strcmp(path + n - m, end) == 0;
}

static void explain_no_model(const char *path)
{
    if (ends_in(path, ".yaml") || ends_in(path, ".yml"))
        ls_err_hint("A run file is no model: give the folder of its run, runs/NAME unless out: "
                    "names another.");
    else if (ends_in(path, ".safetensors"))
        ls_err_hint("Give the folder that it lies in, with its config.json.");
    else if (ends_in(path, ".gguf"))
        ls_err_hint("GGUF files are written here but not read: give the Hugging Face folder of "
                    "that model.");
    else if (holds(path, "adapter_config.json"))
        ls_err_hint("It is an adapter: `lineshaft merge %s OUT` makes a model of it and its base.",
                    path);
    else if (holds(path, "events.jsonl"))
        ls_err_hint(
            "It is a run that has saved no checkpoint yet: the first comes with checkpoint.every, "
            "checkpoint.minutes, Ctrl-C or the end.");
    else if (!ls_hub_name_hint(path, LS_HUB_MODEL))
        ls_err_hint(
            "Give a Hugging Face folder (config.json and model.safetensors), a run folder, its "
            "checkpoints folder, \"best\" in one of them, or one manifest (step-*.json).");
}

/* Where there is neither kind, say what would be one. */
static ls_status locate(const ls_hf_folder *f, ls_str *dir_out, int64_t *step_out)
{
    ls_status st = ls_ckpt_locate(f->path, dir_out, step_out);

    if (st != LS_EUSAGE)
        return st;
    st = ls_file_exists(f->path) ? ls_fail(LS_EUSAGE, "there is no model in \"%s\"", f->path)
                                 : ls_fail(LS_EUSAGE, "there is no \"%s\"", f->path);
    explain_no_model(f->path);
    return st;
}

static ls_status open_ours(ls_hf_folder *f, int64_t step, const char *key)
{
    ls_str dir;
    int64_t named;
    ls_status st;

    ls_str_init(&dir);
    LS_TRY(st, locate(f, &dir, &named), out);
    f->step = step >= 0 ? step : named;
    home_of_store(dir.p, &f->home);
    ls_str_printf(&f->copies, "%s/" LS_HF_CONFIG_COPIES, f->home.p);
    LS_TRY(st, ls_str_status(&f->home), out);
    LS_TRY(st, ls_str_status(&f->copies), out);
    LS_TRY(st, ls_ckpt_open(&f->store, dir.p, false), out);
    if (key)
        LS_TRY(st, ls_ckpt_use_key(f->store, key, false), out);
    LS_TRY(st, ls_ckpt_find(f->store, f->step, &f->ckpt, NULL), out);
    if (f->step == LS_CKPT_BEST)
        f->step = ls_ckpt_about(f->ckpt)->step;
    if (!f->ckpt) {
        st = ls_fail(LS_EUSAGE, "there is no checkpoint in \"%s\"", f->path);
        ls_err_hint("Train one first: lineshaft train RUN.");
        goto out;
    }
    if (ls_ckpt_about(f->ckpt)->trust == LS_CKPT_UNCHECKED)
        ls_log(LS_LOG_WARN, "\"%s\" is signed; without its key the signature was not checked",
               ls_ckpt_path(f->ckpt));
    LS_TRY(st, run_of_manifest(f), out);
    LS_TRY(st, config_of_ours(f), out);
    snprintf(f->dtype, sizeof f->dtype, "F32");
out:
    ls_str_release(&dir);
    return st;
}

ls_status ls_hf_folder_open(ls_hf_folder **folder_out, const char *path, int64_t step)
{
    return ls_hf_folder_open_signed(folder_out, path, step, NULL);
}

static ls_status not_signed(const ls_hf_folder *f)
{
    ls_status st =
        ls_fail(LS_EUSAGE, "\"%s\" is a Hugging Face folder, which has no signature", f->path);

    ls_err_hint("Name the checkpoint (step-*.json) if there are some too, or leave the key out.");
    return st;
}

ls_status ls_hf_folder_open_signed(ls_hf_folder **folder_out, const char *path, int64_t step,
                                   const char *key)
{
    ls_hf_folder *f = ls_mem_alloc(sizeof *f);
    ls_status st = LS_OK;

    if (!f)
        return LS_ENOMEM;
    f->step = -1;
    ls_str_init(&f->home);
    ls_str_init(&f->copies);
    f->path = ls_mem_strdup(path);
    if (!f->path) {
        st = LS_ENOMEM;
        goto out;
    }
    size_t n = strlen(f->path);
    while (n > 1 && f->path[n - 1] == '/')
        f->path[--n] = '\0';
    if (is_hf(f->path))
        st = key ? not_signed(f) : open_hf(f);
    else
        st = open_ours(f, step, key);
out:
    if (st != LS_OK)
        ls_hf_folder_close(f);
    else
        *folder_out = f;
    return st;
}

void ls_hf_folder_close(ls_hf_folder *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_files; i++)
        ls_safetensors_close(&f->files[i]);
    ls_mem_free(f->files);
    ls_mem_free(f->tensors);
    ls_mem_free(f->parts);
    ls_mem_free(f->quants);
    ls_ckpt_free(f->ckpt);
    ls_ckpt_close(f->store);
    if (f->has_run)
        ls_runfile_release(&f->run);
    ls_str_release(&f->home);
    ls_str_release(&f->copies);
    ls_mem_free(f->path);
    ls_mem_free(f);
}

bool ls_hf_folder_is_hf(const ls_hf_folder *f)
{
    return f->hf;
}

const char *ls_hf_folder_path(const ls_hf_folder *f)
{
    return f->path;
}

const ls_run *ls_hf_folder_run(const ls_hf_folder *f)
{
    return &f->run;
}

const ls_hf_config *ls_hf_folder_config(const ls_hf_folder *f)
{
    return &f->config;
}

const char *ls_hf_folder_dtype(const ls_hf_folder *f)
{
    return f->dtype;
}

int ls_hf_folder_files(const ls_hf_folder *f)
{
    return f->n_files;
}

const char *ls_hf_folder_home(const ls_hf_folder *f)
{
    return f->home.p;
}

bool ls_hf_folder_is_trained(const ls_hf_folder *f)
{
    return !f->hf && !holds(f->home.p, "config.json");
}

const char *ls_hf_folder_origin(const ls_hf_folder *f)
{
    if (f->hf || holds(f->home.p, "config.json"))
        return f->home.p;
    return holds(f->home.p, LS_HF_CONFIG_COPIES "/config.json") ? f->copies.p : f->run.model.import;
}

int64_t ls_hf_folder_positions(const ls_hf_folder *f)
{
    const ls_run_model *m = &f->run.model;

    return m->positions ? m->positions : ls_max_i64(m->context, f->config.positions);
}

ls_status ls_hf_folder_tokenizer(const ls_hf_folder *f, ls_tokenizer **tok_out)
{
    if (holds(f->home.p, "tokenizer.json"))
        return ls_tokenizer_open(tok_out, f->home.p);
    if (!f->hf && holds(f->home.p, LS_HF_CONFIG_COPIES "/tokenizer.json"))
        return ls_tokenizer_open(tok_out, f->copies.p);
    if (!f->hf)
        return ls_tokenizer_open(tok_out, f->run.data.tokenizer);
    ls_status st = ls_fail(LS_EUSAGE, "there is no tokenizer.json in \"%s\"", f->path);
    ls_err_hint("Copy the model's tokenizer.json there; AutoTokenizer.save_pretrained() in "
                "transformers writes one.");
    return st;
}

/* --- checking --------------------------------------------------------------------------------- */

/* The first offence in words, and how many there are. */
typedef struct offences {
    char first[384];
    int count;
} offences;

static void LS_PRINTF(2, 3) offend(offences *o, const char *fmt, ...)
{
    va_list ap;

    if (o->count++)
        return;
    va_start(ap, fmt);
    vsnprintf(o->first, sizeof o->first, fmt, ap);
    va_end(ap);
}

static void shape_text(const int64_t *shape, int ndim, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");

    for (int i = 0; i < ndim && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "]");
}

/* Learned positions beyond the context are left out: the first rows are the same model. */
static bool may_be_longer(const ls_param *p)
{
    return strcmp(p->name, "transformer.wpe.weight") == 0;
}

static void check_shape(offences *o, const ls_param *p, const int64_t *shape, int ndim)
{
    char want[64], got[192];
    bool same = ndim == p->ndim;

    for (int i = 0; i < p->ndim && same; i++)
        same = shape[i] == p->shape[i] || (i == 0 && may_be_longer(p) && shape[0] > p->shape[0]);
    if (same)
        return;
    shape_text(p->shape, p->ndim, want, sizeof want);
    shape_text(shape, ndim, got, sizeof got);
    offend(o, "the tensor \"%s\" has shape %s, but the model needs %s", p->name, got, want);
}

/* Index of the parameter among the checkpoint's tensors; -1: none. The list is sorted by name. */
static int find_row(const ls_ckpt *ckpt, const char *name)
{
    int low = 0, high = ls_ckpt_count(ckpt);

    while (low < high) {
        int mid = low + (high - low) / 2;
        ls_ckpt_tensor t = ls_ckpt_nth(ckpt, mid);
        int order = strcmp(t.name, name);
        if (order == 0)
            order = strcmp(t.kind, "param");
        if (order == 0)
            return mid;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

static void check_param(const ls_hf_folder *f, const ls_param *p, offences *o)
{
    char name[LS_PARAM_NAME];
    int part;

    if (!ls_hf_folder_has(f, p)) {
        ls_hf_fused_name(f->run.model.family, p->name, name, &part);
        if (!p->lora && (part == 0 || !f->hf))
            offend(o, "the tensor \"%s\" is missing", f->hf ? name : p->name);
        return;
    }
    if (!f->hf) {
        ls_ckpt_tensor t = ls_ckpt_nth(f->ckpt, find_row(f->ckpt, p->name));
        check_shape(o, p, t.shape, t.ndim);
        if (t.type != LS_F32)
            offend(o, "the tensor \"%s\" is not stored as F32", p->name);
        return;
    }
    const ls_hf_folder_tensor *t = ls_hf_folder_find(f, p->name);
    const ls_safetensors_entry *e = t->entry;
    check_shape(o, p, e->shape, e->ndim);
    if (!t->quant && !ls_hf_convert_reads(e->dtype))
        offend(o, "the tensor \"%s\" has the type %s, which is not a weight's", p->name,
               e->dtype->name);
}

/* The text after "layers.N." or "h.N.", with the prefix of the family or without; NULL: not of a
 * layer. */
static const char *inside_layer(const ls_family_names *n, const char *name)
{
    size_t prefix = strlen(n->prefix), blocks = strlen(n->blocks);

    if (strncmp(name, n->prefix, prefix) == 0)
        name += prefix;
    if (strncmp(name, n->blocks, blocks) != 0 || name[blocks] != '.')
        return NULL;
    name += blocks + 1;
    size_t digits = strspn(name, "0123456789");
    return digits && name[digits] == '.' ? name + digits + 1 : NULL;
}

/* What older versions of transformers stored although it follows from the configuration. */
static bool is_redundant(const ls_model *model, const char *name)
{
    const ls_family_names *n = &ls_families_row(model->shape.family)->names;
    const char *inner = inside_layer(n, name);
    size_t attention = strlen(n->attention);

    if (strcmp(name, "lm_head.weight") == 0)
        return model->shape.tied;
    if (!inner)
        return model->shape.rope && strcmp(name, "model.rotary_emb.inv_freq") == 0;
    if (strncmp(inner, n->attention, attention) != 0 || inner[attention] != '.')
        return false;
    inner += attention + 1;
    return model->shape.rope ? strcmp(inner, "rotary_emb.inv_freq") == 0
                             : !strcmp(inner, "bias") || !strcmp(inner, "masked_bias");
}

/* A head that is stored although it is tied must be the embedding, or the model is another one. */
static ls_status check_tied(const ls_hf_folder *f, const ls_model *model, offences *o)
{
    enum { PIECE = 65536 };
    const ls_hf_folder_tensor *head = ls_hf_folder_find(f, "lm_head.weight");
    const ls_param *wte = &model->params[0];
    const ls_hf_folder_tensor *embed = ls_hf_folder_find(f, wte->name);

    if (!model->shape.tied || !head || !embed || o->count)
        return LS_OK;
    check_shape(o, wte, head->entry->shape, head->entry->ndim);
    if (!ls_hf_convert_reads(head->entry->dtype))
        offend(o, "the tensor \"lm_head.weight\" has the type %s", head->entry->dtype->name);
    float *a = ls_mem_array(2 * PIECE, sizeof *a);
    if (!a)
        return LS_ENOMEM;
    for (int64_t k = 0; k < wte->count && o->count == 0; k += PIECE) {
        int64_t n = ls_min_i64(PIECE, wte->count - k);
        ls_hf_folder_widen(f, head, k, n, a);
        ls_hf_folder_widen(f, embed, k, n, a + PIECE);
        if (memcmp(a, a + PIECE, (size_t)n * sizeof *a) != 0)
            offend(o,
                   "\"lm_head.weight\" differs from \"%s\", but config.json says that they are "
                   "the same (tie_word_embeddings)",
                   embed->entry->name);
    }
    ls_mem_free(a);
    return LS_OK;
}

static void check_extra(const ls_hf_folder *f, const ls_model *model, offences *o)
{
    char name[LS_PARAM_NAME];

    for (int i = 0; i < f->n_tensors; i++) {
        ls_hf_folder_model_name(f, i, name);
        if (!ls_model_find(model, name) && !is_redundant(model, name))
            offend(o, "the model has no place for the tensor \"%.120s\"",
                   f->tensors[i].entry->name);
    }
    for (int i = 0; !f->hf && i < ls_ckpt_count(f->ckpt); i++) {
        ls_ckpt_tensor t = ls_ckpt_nth(f->ckpt, i);
        if (strcmp(t.kind, "param") == 0 && !ls_model_find(model, t.name))
            offend(o, "the model has no place for the tensor \"%.120s\"", t.name);
    }
}

ls_status ls_hf_folder_check(const ls_hf_folder *f, const ls_model *model)
{
    offences o = {.count = 0};
    ls_status st = LS_OK;

    for (int i = 0; i < model->n_params; i++)
        check_param(f, &model->params[i], &o);
    check_extra(f, model, &o);
    if (f->hf)
        LS_TRY(st, check_tied(f, model, &o), out);
    if (o.count == 1)
        st = ls_fail(LS_EDATA, "\"%s\": %s", f->path, o.first);
    else if (o.count)
        st = ls_fail(LS_EDATA, "\"%s\": %s; %d more like this", f->path, o.first, o.count - 1);
    if (o.count)
        ls_err_hint("The configuration and the weights are not of the same model, or files are "
                    "missing.");
out:
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

bool ls_hf_folder_has(const ls_hf_folder *f, const ls_param *p)
{
    return f->hf ? ls_hf_folder_find(f, p->name) != NULL : find_row(f->ckpt, p->name) >= 0;
}

/* A run of elements of a matrix as boxes: the end of a row, whole rows, the beginning of a row. */
static ls_status read_boxes(const ls_hf_folder *f, const ls_param *p, int64_t first, int64_t count,
                            float *out)
{
    int64_t C = p->shape[1];
    ls_status st = LS_OK;

    if (p->ndim == 1)
        return ls_ckpt_read_box(f->ckpt, p->name, "param", &first, &count, out);
    while (count > 0 && st == LS_OK) {
        int64_t col = first % C, rows = col == 0 && count >= C ? count / C : 1;
        int64_t cols = col == 0 && count >= C ? C : ls_min_i64(C - col, count);
        st = ls_ckpt_read_box(f->ckpt, p->name, "param", (int64_t[]){first / C, col},
                              (int64_t[]){rows, cols}, out);
        first += rows * cols;
        count -= rows * cols;
        out += rows * cols;
    }
    return st;
}

ls_status ls_hf_folder_read(const ls_hf_folder *f, const ls_param *p, int64_t first, int64_t count,
                            float *values_out)
{
    LS_BUG_IF(first < 0 || count < 0 || first > p->count - count, "a piece outside \"%s\"",
              p->name);
    if (!ls_hf_folder_has(f, p))
        return ls_fail(LS_EDATA, "\"%s\": the tensor \"%s\" is missing", f->path, p->name);
    if (!f->hf)
        return read_boxes(f, p, first, count, values_out);
    const ls_hf_folder_tensor *t = ls_hf_folder_find(f, p->name);
    offences o = {.count = 0};
    check_param(f, p, &o);
    if (o.count)
        return ls_fail(LS_EDATA, "\"%s\": %s", f->path, o.first);
    ls_hf_folder_widen(f, t, first, count, values_out);
    return LS_OK;
}

/* A store is read object by object; the newest checkpoint may be passed over when it turns out to
 * be damaged. */
static ls_status load_ours(const ls_hf_folder *f, const ls_model *model, float *w)
{
    ls_ckpt_tensor *rows = ls_mem_array((size_t)model->n_params, sizeof *rows);
    int n = 0;
    bool found;
    ls_status st = LS_OK;

    if (!rows)
        return LS_ENOMEM;
    for (int i = 0; i < model->n_params && st == LS_OK; i++) {
        const ls_param *p = &model->params[i];
        int row = find_row(f->ckpt, p->name);
        if (row < 0)
            continue;
        ls_ckpt_tensor t = ls_ckpt_nth(f->ckpt, row);
        if (may_be_longer(p) && t.shape[0] > p->shape[0]) {
            st = ls_hf_folder_read(f, p, 0, p->count, w + p->first);
            continue;
        }
        rows[n++] = (ls_ckpt_tensor){.name = p->name,
                                     .kind = "param",
                                     .type = LS_F32,
                                     .ndim = p->ndim,
                                     .shape = {p->shape[0], p->ndim > 1 ? p->shape[1] : 0},
                                     .bytes = w + p->first};
    }
    if (st == LS_OK)
        st = f->step >= 0 ? ls_ckpt_load(f->ckpt, rows, n)
                          : ls_ckpt_load_newest(f->store, rows, n, NULL, &found);
    ls_mem_free(rows);
    return st;
}

ls_status ls_hf_folder_load(const ls_hf_folder *f, const ls_model *model, float *w)
{
    ls_status st = LS_OK;
    int64_t end = 0;

    for (int i = 0; i < model->n_params && st == LS_OK; i++) {
        const ls_param *p = &model->params[i];
        memset(w + end, 0, (size_t)(p->first - end) * sizeof *w);
        end = p->first + p->count;
        if (!ls_hf_folder_has(f, p))
            memset(w + p->first, 0, (size_t)p->count * sizeof *w);
        else if (f->hf)
            st = ls_hf_folder_read(f, p, 0, p->count, w + p->first);
    }
    memset(w + end, 0, (size_t)(model->flat - end) * sizeof *w);
    if (!f->hf && st == LS_OK)
        st = load_ours(f, model, w);
    return st;
}
