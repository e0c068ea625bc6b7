/* session_data.c -- what a session trains on: tokenizer, corpus, loader.
 *
 * The first rank encodes the text, which may take hours; the others wait and then map the same
 * shards:
 *
 *     rank 0     text -> tokens -> shards in the run folder | barrier | hashes to all
 *     rank 1     .................. waits .................. | barrier | map shards; the same hashes?
 *
 * All ranks then compare hashes of run file and tokens, because a machine with another copy of the
 * data would train another model without a sign. */
#include "train/session/session_impl.h"

#include <limits.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/check.h"
#include "config/explain.h"
#include "config/hf_config.h"
#include "data/chat/chat.h"
#include "hf/hf_copy.h"
#include "parallel/blocking.h"
#include "train/session/model_groups.h"

enum { PREPARE_S = 24 * 3600 }; /* how long ranks wait for the first one to encode text */

/* The tokenizer, or the copy that an earlier start kept when the original is gone. */
ls_status ls_session_open_tokenizer(ls_session *s)
{
    char kept[PATH_MAX];
    const char *name = ls_hf_copy_tokenizer_of(s->run, kept);

    if (name == kept)
        ls_log(LS_LOG_INFO, "\"%s\" is gone: the tokenizer in \"%s\" is used",
               s->run->data.tokenizer, kept);
    return ls_tokenizer_open(&s->data.tokenizer, name);
}

/* How many samples an epoch has. */
static ls_status count_windows(ls_session *s)
{
    ls_sample_order *order = ls_mem_alloc(sizeof *order);
    ls_status st = order ? ls_corpus_order(s->data.corpus, (uint64_t)s->run->train.seed,
                                           s->run->model.context, order)
                         : LS_ENOMEM;

    if (st == LS_OK)
        s->data.windows = order->windows;
    ls_mem_free(order);
    return st;
}

/* Shards of conversations do not say which template wrote them, and so not what ends an answer. */
static void warn_of_template(const ls_session *s)
{
    const ls_run *run = s->run;
    bool has_chat = ls_corpus_isolates(s->data.corpus) && !run->data.isolate;

    if (s->mesh.rank == 0 && has_chat && run->data.shards.count > 0 &&
        run->train.objective == LS_OBJECTIVE_LM && !ls_chat_is_meant(run->data.chat_template))
        ls_log(LS_LOG_WARN,
               "data.shards holds conversations, but data.template does not name their template: "
               "generate and export will not know what ends an answer");
}

static ls_status open_data(ls_session *s)
{
    char cache[PATH_MAX];

    snprintf(cache, sizeof cache, "%s/%s", s->run->out, LS_CORPUS_CACHE);
    ls_status st = ls_corpus_open(&s->data.corpus, s->run, s->data.tokenizer, cache);
    if (st == LS_OK)
        ls_hash_hex(ls_corpus_hash(s->data.corpus), s->data.hash);
    if (st == LS_OK)
        warn_of_template(s);
    return st == LS_OK ? count_windows(s) : st;
}

/* How many steps train.epochs is, and what follows from them. */
static ls_status settle_epochs(ls_session *s)
{
    if (!(s->run->train.epochs > 0))
        return LS_OK;
    if (s->run != &s->fitted)
        s->fitted = *s->run;
    s->run = &s->fitted;
    s->fitted.train.warmup =
        s->args.run->train.warmup; /* as written: of an earlier view it is settled */
    s->fitted.train.decay = s->args.run->train.decay;
    ls_status st = ls_check_epochs(&s->fitted, s->data.windows);
    s->progress.total_steps = s->fitted.train.steps;
    return st;
}

ls_loader_args ls_session_loader_args(ls_session *s)
{
    ls_calls calls;

    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    return (ls_loader_args){.corpus = s->data.corpus,
                            .seed = (uint64_t)s->run->train.seed,
                            .T = s->run->model.context,
                            .sequences = ls_max_i64(1, calls.own * calls.leaf),
                            .first_step = s->step_number,
                            .isolate = s->run->data.isolate,
                            .depth = LS_BATCH_SLICE_AHEAD,
                            .slice = ls_batch_slice_of_step,
                            .context = s};
}

/* What all ranks must have in common: the first rank says. */
typedef struct same_part {
    char run[LS_HASH_HEX], data[LS_HASH_HEX];
} same_part;

static ls_status check_same_part(ls_session *s)
{
    same_part first = {.run = ""}, own;
    ls_hash hash;
    ls_status st;

    LS_TRY(st, ls_explain_hash(s->run, &hash), out);
    ls_hash_hex(hash, first.run);
    memcpy(first.data, s->data.hash, sizeof first.data);
    own = first;
    LS_TRY(st, ls_blocking_broadcast(s->args.comm, 0, &first, sizeof first, ls_session_deadline()),
           out);
    if (strcmp(first.run, own.run) != 0)
        st = ls_fail(LS_EUSAGE, "rank %d has other settings than rank 0", s->mesh.rank);
    else if (strcmp(first.data, own.data) != 0)
        st = ls_fail(LS_EDATA, "rank %d reads other text than rank 0", s->mesh.rank);
    if (st != LS_OK)
        ls_err_hint("Every machine must see the same run file, data and environment.");
out:
    return st;
}

/* The first rank prepares the data, then the others find it prepared; then an epoch is known. */
ls_status ls_session_open_data(ls_session *s)
{
    ls_status st = LS_OK;

    if (ls_session_is_first(s) && !s->data.corpus)
        LS_TRY(st, open_data(s), out);
    if (s->mesh.ranks == 1)
        goto out;
    LS_TRY(st, ls_blocking_barrier(s->args.comm, ls_time_now_ns() + PREPARE_S * LS_NS_PER_S), out);
    if (!s->data.corpus)
        LS_TRY(st, open_data(s), out);
    LS_TRY(st, check_same_part(s), out);
out:
    return st == LS_OK ? settle_epochs(s) : st;
}

/* What the run needs of other folders, so that it can be used when they are gone. A start from
 * nothing renews what an earlier one may have left. */
ls_status ls_session_keep_copies(const ls_session *s)
{
    const char *tokenizer = s->run->data.tokenizer, *import = s->run->model.import;
    bool gone = strcmp(tokenizer, "bytes") != 0 && !ls_file_exists(tokenizer);

    if (gone) /* then what is kept is all there is */
        return LS_OK;
    return ls_hf_copy_keep(s->run->out, tokenizer, ls_file_is_dir(import) ? import : "",
                           s->step_number == 0);
}
