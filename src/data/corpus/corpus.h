/* corpus.h -- what a run trains on: its sources as tokens, each cut into training and validation.
 *
 * Each entry of data.text or data.shards is one source; an entry that is a pattern joins all its
 * files, in the order of their names. Text is encoded once into a shard in cache_dir and that shard
 * is used again as long as files, tokenizer and settings stay the same. The last data.validation of
 * a source's tokens are for validation, the rest for training; no window lies in both. Chat data
 * (data.template, or marked shards) is cut into whole windows and has targets only where its marks
 * say so. Read-only after opening, so threads may share it. */
#pragma once
#include "config/run.h"
#include "data/corpus/sample_order.h"
#include "data/corpus/token_shard.h"
#include "data/corpus/source.h"

LS_C_BEGIN

typedef struct ls_corpus ls_corpus;

#define LS_CORPUS_CACHE "data" /* folder of cached shards in a run's folder */

/* Build or open what run->data names; the folder cache_dir is made when text has to be encoded.
 * LS_EIO: a file is missing. LS_EDATA: no text, text shorter than the context, a damaged shard, a
 * shard of another tokenizer. LS_EUSAGE: settings that contradict each other. */
ls_status ls_corpus_open(ls_corpus **out, const ls_run *run, const ls_tokenizer *tok,
                         const char *cache_dir);
void ls_corpus_close(ls_corpus *corpus); /* NULL is allowed */

int ls_corpus_sources(const ls_corpus *corpus);
const char *ls_corpus_source_name(const ls_corpus *corpus, int source); /* as the run file has it */
int64_t ls_corpus_train_tokens(const ls_corpus *corpus, int source);
int64_t ls_corpus_validation_tokens(const ls_corpus *corpus, int source);
/* Whether documents must not see each other: data.isolate, or any source is chat data. */
bool ls_corpus_isolates(const ls_corpus *corpus);
/* Of all tokens and document starts, as the shards' headers give them: another hash, other data. */
ls_hash ls_corpus_hash(const ls_corpus *corpus);
/* Bytes of the mapped shards: what reading all of them makes resident. */
int64_t ls_corpus_mapped_bytes(const ls_corpus *corpus);
/* And those that are resident already; 0 where the system does not show it. */
int64_t ls_corpus_present_bytes(const ls_corpus *corpus);
/* Shards that this open had to build: for tests of what the cache saves. */
int ls_corpus_built(const ls_corpus *corpus);

/* The order of this corpus's training windows for a seed and a window length. */
ls_status ls_corpus_order(const ls_corpus *corpus, uint64_t seed, int64_t T,
                          ls_sample_order *order_out);

/* n tokens of a source from token number first on. LS_EDATA: the shard is damaged there. */
ls_status ls_corpus_read(const ls_corpus *corpus, int source, int64_t first, int64_t n,
                         int32_t *ids_out);

/* For each of n positions from token first on: the first position (0 is first itself) of its
 * document. What attention needs so that documents do not see each other. */
void ls_corpus_starts(const ls_corpus *corpus, int source, int64_t first, int64_t n,
                      int32_t *start_out);

/* The window of T tokens from token first on, and the target after each: -1 where a token is not
 * marked as a target and, when start_out is given (as ls_corpus_starts() fills it), where the next
 * token belongs to another document. */
ls_status ls_corpus_window(const ls_corpus *corpus, int source, int64_t first, int64_t T,
                           int32_t *tokens_out, int32_t *targets_out, int32_t *start_out);
/* How many targets of that window are not -1, without reading its tokens. isolated: as with
 * start_out. */
int64_t ls_corpus_window_targets(const ls_corpus *corpus, int source, int64_t first, int64_t T,
                                 bool isolated);
/* Targets that are not -1, of n. */
int64_t ls_corpus_counted(const int32_t *targets, int64_t n);

/* Validation windows of T tokens, over all sources: fixed, side by side, in order. To use only some
 * of them, take the numbers that ls_sample_order_spread() gives. 0 when data.validation is 0. */
int64_t ls_corpus_validation_windows(const ls_corpus *corpus, int64_t T);
/* start_out may be NULL; see ls_corpus_window(). */
ls_status ls_corpus_validation(const ls_corpus *corpus, int64_t index, int64_t T,
                               int32_t *tokens_out, int32_t *targets_out, int32_t *start_out);

/* --- preferences (train.objective: dpo, orpo, kto) ------------------------------------------------
 * Each window is a pair of answers (data/chat/preference_data.c); they are numbered source by source,
 * training and validation together. */
bool ls_corpus_has_pairs(const ls_corpus *corpus);
int64_t ls_corpus_pairs(const ls_corpus *corpus);
/* The number of the pair in the window that begins with token number first of a source; that of a
 * validation window. */
int64_t ls_corpus_pair_number(const ls_corpus *corpus, int source, int64_t first);
int64_t ls_corpus_validation_pair(const ls_corpus *corpus, int64_t index);
/* The window of a pair, as of ls_corpus_window(). */
ls_status ls_corpus_pair(const ls_corpus *corpus, int64_t number, int32_t *tokens_out,
                         int32_t *targets_out, int32_t *start_out);
/* kto: whether its first answer is desirable. */
bool ls_corpus_pair_is_desirable(const ls_corpus *corpus, int64_t number);

/* --- building one shard out of files -----------------------------------------------------------
 */

typedef struct ls_corpus_build_args {
    const char *out;          /* path of the shard */
    const char *const *files; /* sources, see data/corpus/source.h; not patterns */
    int n_files;
    const char *name;  /* what the shard says it was made of */
    const char *field; /* NULL: "text" */
    ls_utf8_policy utf8;
    bool skip_bad; /* warn of a line that cannot be used, and go on */
    const ls_tokenizer *tok;
    ls_hash key; /* see ls_token_shard.key */
    /* Called now and then with the bytes of text read so far; NULL: no progress is reported. */
    void (*progress)(void *context, const char *file, int64_t bytes);
    void *context;
} ls_corpus_build_args;

/* LS_EDATA when the files hold no text; nothing is written then, nor on any other failure. */
ls_status ls_corpus_build(const ls_corpus_build_args *args);

LS_C_END
