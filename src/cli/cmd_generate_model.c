/* cmd_generate_model.c -- a model made ready to talk.
 *
 * Memory is counted before it is taken: the weights, the keys and values of the context, and the
 * activations of one call. A call reads at most CHUNK tokens, so the activations stay small however
 * long the prompt. */
#include "cli/cmd_generate.h"

#include "base/mem.h"
#include "config/runfile.h"
#include "plan/ledger.h"

enum { CHUNK = 256 };

void ls_generate_release(ls_generate_model *m)
{
    ls_decode_close(m->decode);
    ls_pass_close(m->pass);
    if (m->device)
        ls_device_free(m->device, m->weights);
    ls_stream_free(m->stream);
    ls_device_close(m->device);
    ls_model_release(&m->model);
    ls_tokenizer_free(m->tokenizer);
    if (m->has_run)
        ls_runfile_release(&m->run);
    ls_ckpt_free(m->ckpt);
    ls_ckpt_close(m->store);
}

static ls_status find_checkpoint(ls_generate_model *m, const char *path)
{
    ls_str dir, passed; /* damaged ones: told by the load */
    ls_status st;

    ls_str_init(&dir);
    ls_str_init(&passed);
    LS_TRY(st, ls_ckpt_locate(path, &dir, &m->step), out);
    LS_TRY(st, ls_ckpt_open(&m->store, dir.p, false), out);
    LS_TRY(st, ls_ckpt_find(m->store, m->step, &m->ckpt, &passed), out);
    if (!m->ckpt) {
        st = ls_fail(LS_EUSAGE, "there is no checkpoint in \"%s\"", path);
        ls_err_hint("Train one first: lineshaft train RUN.");
        goto out;
    }
    const char *config = ls_ckpt_about(m->ckpt)->config;
    LS_TRY(st,
           ls_runfile_load(&m->run, &(ls_runfile_source){.text = config,
                                                         .len = strlen(config),
                                                         .text_name = ls_ckpt_path(m->ckpt),
                                                         .no_environment = true,
                                                         .no_files = true}),
           out);
    m->has_run = true;
out:
    ls_str_release(&dir);
    ls_str_release(&passed);
    return st;
}

/* The end tokens that the tokenizer names; a document of plain bytes ends with its separator. */
static void find_eos(ls_generate_model *m)
{
    int32_t eos = ls_tokenizer_eos(m->tokenizer);

    m->eos[m->n_eos++] = eos >= 0 ? eos : ls_tokenizer_separator(m->tokenizer);
}

ls_status ls_generate_find(ls_generate_model *m, const char *path)
{
    ls_status st;

    *m = (ls_generate_model){.store = NULL};
    LS_TRY(st, find_checkpoint(m, path), out);
    LS_TRY(st, ls_tokenizer_open(&m->tokenizer, m->run.data.tokenizer), out);
    LS_TRY(st, ls_model_init(&m->model, &m->run, ls_tokenizer_vocab(m->tokenizer)), out);
    find_eos(m);
out:
    return st;
}

static ls_status load_weights(ls_generate_model *m)
{
    int n = m->model.n_params;
    ls_ckpt_tensor *rows = ls_mem_array((size_t)n, sizeof *rows);
    ls_status st = LS_OK;

    if (!rows)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++) {
        const ls_param *p = &m->model.params[i];
        rows[i] = (ls_ckpt_tensor){.name = p->name,
                                   .kind = "param",
                                   .type = LS_F32,
                                   .ndim = p->ndim,
                                   .shape = {p->shape[0], p->ndim > 1 ? p->shape[1] : 0},
                                   .bytes = (float *)m->weights + p->first};
    }
    if (m->step >= 0) {
        st = ls_ckpt_load(m->ckpt, rows, n);
    } else {
        bool found;
        st = ls_ckpt_load_newest(m->store, rows, n, NULL, &found);
    }
    ls_mem_free(rows);
    return st;
}

/* Bytes of a pass with a cache of so many positions, without the cache itself in other_out. */
static int64_t pass_bytes(ls_pass_args args, int threads, int64_t *other_out)
{
    int64_t all = ls_pass_bytes(&args, threads);

    args.cache = 0;
    *other_out = ls_pass_bytes(&args, threads);
    return all;
}

/* Everything large fits, or the sentence that says which context would. */
static ls_status check_memory(const ls_generate_model *m, const ls_pass_args *args, bool tell)
{
    ls_device_info info = ls_device_describe(m->device);
    int64_t weights = ls_round_up(m->model.flat * (int64_t)sizeof(float), 4096), other;
    int64_t all = pass_bytes(*args, info.threads, &other), cache = all - other;
    ls_ledger ledger = {.count = 0};
    ls_status st = LS_OK;
    ls_str text;

    ls_ledger_add(&ledger, "weights", "parameters, fp32", weights);
    ls_ledger_add(&ledger, "cache", "keys and values: context, layers, key/value heads", cache);
    ls_ledger_add(&ledger, "activations", "one call: tokens read at once, width, vocabulary",
                  other + ls_decode_bytes(&m->model));
    int64_t total = ls_ledger_total(&ledger);
    ls_str_init(&text);
    if (tell) {
        ls_ledger_print(&ledger, &text);
        fputs(text.p, stderr);
    }
    if (total > info.free_bytes) {
        int64_t left = info.free_bytes - (total - cache);
        int64_t fits = left > 0 ? (int64_t)((double)left / (double)cache * (double)args->cache) : 0;
        st = ls_fail(LS_ENOMEM, "this model needs %.1f MiB of memory, but %.1f MiB are free",
                     (double)total / (double)LS_MIB, (double)info.free_bytes / (double)LS_MIB);
        if (fits > 0)
            ls_err_hint("The cache of %lld positions takes %.1f MiB of it: --context %lld fits.",
                        (long long)args->cache, (double)cache / (double)LS_MIB, (long long)fits);
        else
            ls_err_hint("Its weights alone take %.1f MiB.", (double)weights / (double)LS_MIB);
    }
    ls_str_release(&text);
    return st;
}

ls_status ls_generate_load(ls_generate_model *m, int64_t cache, bool tell_memory)
{
    ls_pass_args args = {
        .model = &m->model, .B = 1, .T = ls_min_i64(cache, CHUNK), .leaves = 1, .cache = cache};
    ls_status st;

    LS_TRY(st, ls_kernel_pick("auto", &m->kernels), out);
    LS_TRY(st, ls_device_open(&m->device, "auto", 0), out);
    LS_TRY(st, ls_stream_create(&m->stream, m->device), out);
    args.kernels = m->kernels;
    args.stream = m->stream;
    LS_TRY(st, check_memory(m, &args, tell_memory), out);
    LS_TRY(
        st,
        ls_device_alloc(m->device, m->model.flat * (int64_t)sizeof(float), "weights", &m->weights),
        out);
    LS_TRY(st, load_weights(m), out);
    LS_TRY(st, ls_pass_open(&m->pass, &args), out);
    LS_TRY(st, ls_decode_open(&m->decode, &m->model, m->pass, m->stream), out);
out:
    return st;
}
