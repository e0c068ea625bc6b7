/* cmd_generate_model.c -- a model made ready to talk.
 *
 * Memory is counted before it is taken: the weights, the keys and values of the context, and the
 * activations of one call. A call reads at most CHUNK tokens, so the activations stay small however
 * long the prompt. */
#include "cli/generate/cmd_generate.h"

#include "base/mem.h"
#include "base/time.h"
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
    ls_hf_folder_close(m->folder);
}

ls_status ls_generate_find(ls_generate_model *m, const char *path, const char *key, bool chat)
{
    ls_status st;

    *m = (ls_generate_model){.folder = NULL};
    LS_TRY(st, ls_hf_folder_open_signed(&m->folder, path, -1, key), out);
    LS_TRY(st, ls_hf_folder_tokenizer(m->folder, &m->tokenizer), out);
    LS_TRY(st,
           ls_model_init(&m->model, ls_hf_folder_run(m->folder), ls_tokenizer_vocab(m->tokenizer)),
           out);
    LS_TRY(st, ls_hf_folder_check(m->folder, &m->model), out);
    LS_TRY(st, ls_special_ids_find(m->folder, m->tokenizer, chat, &m->ids), out);
out:
    return st;
}

/* A device with memory of its own gets a copy. */
static ls_status load_weights(ls_generate_model *m)
{
    int64_t bytes = m->model.flat * (int64_t)sizeof(float);
    float *host = NULL;
    ls_status st;

    LS_TRY(st, ls_device_alloc(m->device, bytes, "weights", &m->weights), out);
    if (ls_device_describe(m->device).host_memory) {
        st = ls_hf_folder_load(m->folder, &m->model, m->weights);
        goto out;
    }
    host = ls_mem_array((size_t)m->model.flat, sizeof *host);
    if (!host) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, ls_hf_folder_load(m->folder, &m->model, host), out);
    ls_stream_copy_in(m->stream, m->weights, host, bytes);
    st = ls_stream_sync(m->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
out:
    ls_mem_free(host);
    return st;
}

/* Bytes of a pass with a cache of this many positions, without the cache itself in other_out. */
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
                     ls_size_up(total, LS_MIB), ls_size_down(info.free_bytes, LS_MIB));
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
    LS_TRY(st, load_weights(m), out);
    LS_TRY(st, ls_pass_open(&m->pass, &args), out);
    LS_TRY(st, ls_decode_open(&m->decode, &m->model, m->pass, m->stream), out);
out:
    return st;
}
