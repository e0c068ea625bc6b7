/* reference.c -- log-probabilities of the reference model: computed at step 0, kept in a file.
 *
 * At step 0 the weights are those of the reference, so a forward pass over all pairs gives them, and
 * no second model needs memory. Ranks share the pairs as in validation. A start at step 0 always
 * computes them: then they fit the weights, whatever lay in the folder. The file:
 *
 *     8 bytes   "LSREFER1"
 *     header    hash of the tokens (text, with its end), how many pairs
 *     floats    two of each pair: the first answer, the second
 *     hash      of all this */
#include "train/report/reference.h"

#include <limits.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/report/eval.h"
#include "train/session/model_groups.h"
#include "train/session/session_impl.h"

static const char MAGIC[8] = "LSREFER1";

typedef struct header {
    char magic[8];
    char data[LS_HASH_HEX];
    int64_t pairs;
} header;

static ls_status file_path(const ls_session *s, char path_out[PATH_MAX])
{
    if ((size_t)snprintf(path_out, PATH_MAX, "%s/" LS_CORPUS_CACHE "/reference.bin", s->run->out) >=
        PATH_MAX)
        return ls_fail(LS_EIO, "the path of folder \"%s\" is too long", s->run->out);
    return LS_OK;
}

/* What the file holds of these pairs, but for its hash. */
static ls_status make_content(const ls_session *s, int64_t n, ls_str *out)
{
    header h = {.pairs = n};

    memcpy(h.magic, MAGIC, sizeof MAGIC);
    memcpy(h.data, s->data.hash, sizeof h.data);
    ls_str_append_bytes(out, (const char *)&h, sizeof h);
    for (int64_t i = 0; i < n; i++)
        ls_str_append_bytes(out, (const char *)s->data.references[i].logp,
                            sizeof s->data.references[i].logp);
    return ls_str_status(out);
}

static ls_status write_file(const ls_session *s, int64_t n)
{
    char path[PATH_MAX];
    ls_status st;
    ls_str content;
    ls_hash hash;

    ls_str_init(&content);
    LS_TRY(st, file_path(s, path), out);
    LS_TRY(st, make_content(s, n, &content), out);
    hash = ls_hash_bytes(content.p, content.len);
    ls_str_append_bytes(&content, (const char *)&hash, sizeof hash);
    LS_TRY(st, ls_str_status(&content), out);
    st = ls_file_write_atomic(path, content.p, content.len);
out:
    ls_str_release(&content);
    return st;
}

/* Whether the bytes of a file are those of these pairs; then the references have its numbers. */
static bool take_content(const ls_session *s, int64_t n, const char *bytes, size_t len)
{
    size_t pair = sizeof s->data.references->logp, body = sizeof(header) + (size_t)n * pair;
    header h;
    ls_hash hash;

    if (len != body + sizeof hash)
        return false;
    memcpy(&h, bytes, sizeof h);
    memcpy(&hash, bytes + body, sizeof hash);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.pairs != n ||
        memcmp(h.data, s->data.hash, sizeof h.data) != 0 ||
        !ls_hash_equal(hash, ls_hash_bytes(bytes, body)))
        return false;
    for (int64_t i = 0; i < n; i++)
        memcpy(s->data.references[i].logp, bytes + sizeof h + (size_t)i * pair, pair);
    return true;
}

static ls_status read_file(const ls_session *s, int64_t n)
{
    char path[PATH_MAX];
    ls_file_map map = {.bytes = NULL};
    ls_status st;

    LS_TRY(st, file_path(s, path), out);
    st = ls_file_map_open(&map, path);
    if (st == LS_OK && !take_content(s, n, (const char *)map.bytes, map.len))
        st = ls_fail(LS_EDATA, "\"%s\" is damaged, or was made of other data", path);
    if (st != LS_OK)
        ls_err_hint("It holds what the model thought of the answers before training, and cannot be "
                    "made again: copy it from where the run began, or start over with --fresh.");
    if (map.bytes)
        ls_file_map_close(&map);
out:
    return st;
}

/* Under the weights as they are, which are those of the reference. */
static ls_status compute(ls_session *s, int64_t n)
{
    int64_t rows = ls_step_numbers(s->step);
    double *numbers = ls_mem_array((size_t)(rows * n + 1), sizeof *numbers);
    bool kto = s->run->train.objective == LS_OBJECTIVE_KTO;
    const double *first, *second, *kl;
    ls_eval eval;
    ls_status st = numbers ? LS_OK : LS_ENOMEM;

    ls_eval_init(&eval);
    LS_TRY(st, st, out);
    if (ls_session_is_first(s))
        ls_log(LS_LOG_INFO, "asking the reference model for %lld pairs of answers", (long long)n);
    LS_TRY(st, ls_eval_open(&eval, s), out);
    LS_TRY(st, ls_eval_numbers(&eval, s, &(ls_eval_windows){.n = n, .pairs = true}, numbers), out);
    first = numbers + LS_PREFERENCE_LOGP_CHOSEN * n;
    second = numbers + LS_PREFERENCE_LOGP_REJECTED * n;
    kl = numbers + LS_PREFERENCE_KL * n;
    for (int64_t i = 0; i < n; i++) /* kto: one of the first two is 0 (kernel/preference.h) */
        s->data.references[i] =
            (ls_preference_reference){.logp = {(float)(kto ? first[i] + second[i] : first[i]),
                                               (float)(kto ? kl[i] : second[i])}};
    if (ls_session_is_first(s))
        st = write_file(s, n);
out:
    ls_eval_release(&eval);
    ls_mem_free(numbers);
    return st;
}

static ls_status alloc(ls_session *s, int64_t n)
{
    ls_calls calls;

    ls_reference_close(s);
    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    s->data.references = ls_mem_array((size_t)n, sizeof *s->data.references);
    s->data.of_batch =
        ls_mem_array((size_t)ls_max_i64(1, calls.own * calls.leaf), sizeof *s->data.of_batch);
    return s->data.references && s->data.of_batch ? LS_OK : LS_ENOMEM;
}

ls_status ls_reference_open(ls_session *s)
{
    int64_t n;
    ls_status st = LS_OK;

    if (!ls_corpus_has_pairs(s->data.corpus))
        return LS_OK;
    n = ls_corpus_pairs(s->data.corpus);
    LS_TRY(st, alloc(s, n), out);
    if (s->run->train.objective == LS_OBJECTIVE_ORPO) /* it has no reference */
        goto out;
    ls_err_doing("comparing with the reference model");
    if (s->step_number == 0)
        st = compute(s, n);
    else if (ls_session_is_first(s))
        st = read_file(s, n);
    if (st == LS_OK && s->step_number > 0 && s->dp)
        st = ls_dp_broadcast(s->dp, 0, s->data.references, n * (int64_t)sizeof *s->data.references);
    ls_err_done();
    for (int64_t i = 0; i < n && st == LS_OK; i++)
        s->data.references[i].desirable = ls_corpus_pair_is_desirable(s->data.corpus, i);
out:
    return st;
}

void ls_reference_close(ls_session *s)
{
    ls_mem_free(s->data.references);
    ls_mem_free(s->data.of_batch);
    s->data.references = s->data.of_batch = NULL;
}

const ls_preference_reference *ls_reference_of_batch(ls_session *s, const ls_batch *batch)
{
    if (!batch->pairs)
        return NULL;
    for (int64_t b = 0; b < batch->B; b++)
        s->data.of_batch[b] = s->data.references[batch->pairs[b]];
    return s->data.of_batch;
}
