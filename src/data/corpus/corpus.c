/* corpus.c -- sources as rows of shards.
 *
 * A source is the concatenation of its shards (one for text; as many as the pattern matches for
 * data.shards), so a token has one number in its source, and reading splits at shard borders. The
 * cached shard of text entry i is cache_dir/text-<i>.lst; it carries the key of what it was made of
 * (format, tokenizer, settings, and name, size and time of change of every file), and is built
 * again when the key differs. A fixed name per entry keeps old caches from piling up. */
#include "data/corpus/corpus.h"

#include <limits.h>
#include "data/chat/chat.h"
#include "data/chat/preference_data.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/resident.h"

/* Shards up to this size are verified when they are opened, which takes milliseconds. */
static const int64_t verify_up_to = 256 * LS_MIB;

typedef struct source_row {
    char *name;             /* owned */
    ls_token_shard *shards; /* owned */
    int64_t *first;         /* owned: number of each shard's first token */
    int n_shards;           /* opened */
    int64_t tokens, train;
    bool chat; /* its shards are marked and laid out for the run's windows */
} source_row;

struct ls_corpus {
    const ls_tokenizer *tok; /* borrowed until close */
    source_row *sources;     /* owned */
    int n_sources;
    double *weights; /* owned; NULL: by size */
    bool shuffle, isolate, pairs;
    int64_t T; /* windows of chat data */
    int built;
};

/* Names that a pattern stands for. */
typedef struct file_list {
    ls_str text;
    const char **items; /* owned array of pointers into text */
    int count;
} file_list;

static void list_release(file_list *list)
{
    ls_mem_free(list->items);
    ls_str_release(&list->text);
}

static ls_status list_files(file_list *list, const char *entry)
{
    ls_status st = LS_OK;

    *list = (file_list){.count = 0};
    ls_str_init(&list->text);
    if (strncmp(entry, "builtin:", 8) == 0) {
        ls_str_append_bytes(&list->text, entry, strlen(entry) + 1);
        list->count = 1;
        LS_TRY(st, ls_str_status(&list->text), out);
    } else {
        LS_TRY(st, ls_file_glob(entry, &list->text, &list->count), out);
    }
    list->items = ls_mem_array((size_t)list->count, sizeof *list->items);
    if (!list->items)
        return LS_ENOMEM;
    const char *p = list->text.p;
    for (int i = 0; i < list->count; i++, p += strlen(p) + 1)
        list->items[i] = p;
out:
    return st;
}

/* Chat data fits one length of windows, and does not mix with plain text in one source. */
static ls_status check_layout(source_row *row, const ls_corpus *corpus, const ls_token_shard *shard)
{
    bool chat = shard->version == LS_TOKEN_SHARD_MARKED;
    ls_status st = LS_OK;

    if (row->n_shards == 1)
        row->chat = chat;
    if (chat != row->chat) {
        st = ls_fail(LS_EDATA, "\"%s\" joins chat data and plain text", row->name);
        ls_err_hint("Give them as two entries of data.shards.");
    } else if (chat && shard->window != corpus->T) {
        st = ls_fail(LS_EDATA,
                     "\"%s\" is laid out for a context of %lld tokens, model.context is %lld",
                     shard->path, (long long)shard->window, (long long)corpus->T);
        ls_err_hint(
            "Build it again with \"lineshaft data build --template ... --context %lld\", or "
            "name the .jsonl file under data.text.",
            (long long)corpus->T);
    }
    return st;
}

static ls_status add_shard(source_row *row, const ls_corpus *corpus, const char *path)
{
    ls_status st = LS_OK;
    ls_token_shard *shard = &row->shards[row->n_shards];

    LS_TRY(st, ls_token_shard_open(shard, path), out);
    row->first[row->n_shards++] = row->tokens;
    row->tokens += shard->tokens;
    LS_TRY(st, check_layout(row, corpus, shard), out);
    LS_TRY(st, ls_token_shard_check_tokenizer(shard, corpus->tok), out);
    if (shard->tokens * shard->width <= verify_up_to)
        LS_TRY(st, ls_token_shard_verify(shard), out);
out:
    return st;
}

static ls_status make_row(source_row *row, const char *name, int n_shards)
{
    row->name = ls_mem_strdup(name);
    row->shards = ls_mem_array((size_t)n_shards, sizeof *row->shards);
    row->first = ls_mem_array((size_t)n_shards, sizeof *row->first);
    return row->name && row->shards && row->first ? LS_OK : LS_ENOMEM;
}

static ls_status open_shards(ls_corpus *corpus, source_row *row, const char *entry)
{
    ls_status st = LS_OK;
    file_list files;

    LS_TRY(st, list_files(&files, entry), out);
    LS_TRY(st, make_row(row, entry, files.count), out);
    for (int i = 0; i < files.count; i++)
        LS_TRY(st, add_shard(row, corpus, files.items[i]), out);
out:
    list_release(&files);
    return st;
}

/* The key of a cached shard: everything that decides its content. */
static ls_status cache_key(const ls_corpus *corpus, const ls_corpus_build_args *args,
                           const char *settings, ls_hash *key_out)
{
    ls_status st = LS_OK;
    char hex[LS_HASH_HEX];
    ls_str text;

    ls_str_init(&text);
    ls_hash_hex(ls_tokenizer_hash(corpus->tok), hex);
    ls_str_printf(&text, "shard %d tokenizer %s field %s utf8 %d\n", LS_TOKEN_SHARD_VERSION, hex,
                  args->field ? args->field : "text", (int)args->utf8);
    ls_str_append(&text, args->skip_bad ? "bad lines are skipped\n" : "");
    ls_str_append(&text, settings);
    for (int i = 0; i < args->n_files; i++)
        LS_TRY(st, ls_source_identify(args->files[i], &text), out);
    LS_TRY(st, ls_str_status(&text), out);
    *key_out = ls_hash_bytes(text.p, text.len);
out:
    ls_str_release(&text);
    return st;
}

/* Whether path is a whole shard with this key. Anything wrong with it means no: it is a cache. */
static bool is_cached(const char *path, ls_hash key)
{
    ls_token_shard shard;

    if (!ls_file_exists(path) || ls_token_shard_open(&shard, path) != LS_OK)
        return false;
    bool good = ls_hash_equal(shard.key, key) && (shard.tokens * shard.width > verify_up_to ||
                                                  ls_token_shard_verify(&shard) == LS_OK);
    ls_token_shard_close(&shard);
    return good;
}

/* The shard of a source of text, built when the cache has none. */
static ls_status make_text(ls_corpus *corpus, ls_corpus_build_args *args, const char *cache_dir)
{
    ls_status st = LS_OK;

    LS_TRY(st, cache_key(corpus, args, "", &args->key), out);
    if (is_cached(args->out, args->key))
        goto out;
    ls_err_clear(); /* a cache that cannot be used is no failure */
    LS_TRY(st, ls_file_make_dirs(cache_dir), out);
    ls_err_doing("encoding \"%s\"", args->name);
    st = ls_corpus_build(args);
    ls_err_done();
    if (st != LS_OK)
        goto out;
    corpus->built++;
    ls_log(LS_LOG_INFO, "encoded \"%s\" into \"%s\"", args->name, args->out);
out:
    return st;
}

/* The same for conversations. */
static ls_status make_chat(ls_corpus *corpus, const ls_corpus_build_args *args, const ls_run *run,
                           const char *cache_dir)
{
    ls_status st = LS_OK;
    ls_chat *chat = NULL;
    ls_str settings;
    char hex[LS_HASH_HEX];
    ls_chat_build_args build = {.out = args->out,
                                .files = args->files,
                                .n_files = args->n_files,
                                .name = args->name,
                                .utf8 = args->utf8,
                                .skip_bad = args->skip_bad,
                                .window = corpus->T};

    ls_str_init(&settings);
    LS_TRY(st, ls_chat_open(&chat, run->data.chat_template, corpus->tok), out);
    ls_hash_hex(ls_chat_hash(chat), hex);
    ls_str_printf(&settings, "chat template %s window %lld\n", hex, (long long)corpus->T);
    LS_TRY(st, ls_str_status(&settings), out);
    LS_TRY(st, cache_key(corpus, args, settings.p, &build.key), out);
    if (is_cached(args->out, build.key))
        goto out;
    ls_err_clear();
    LS_TRY(st, ls_file_make_dirs(cache_dir), out);
    ls_err_doing("encoding the conversations of \"%s\"", args->name);
    st = ls_chat_build(chat, &build, NULL);
    ls_err_done();
    if (st == LS_OK)
        corpus->built++;
out:
    ls_chat_close(chat);
    ls_str_release(&settings);
    return st;
}

/* The template for messages: that of the run, or else the tokenizer's own where it has one. */
static ls_status open_template(const ls_corpus *corpus, const ls_run *run, ls_chat **chat_out,
                               ls_str *settings)
{
    const char *name = run->data.chat_template;
    bool meant = ls_chat_is_meant(name);
    char hex[LS_HASH_HEX];
    ls_status st = LS_OK;

    if (!meant && !ls_tokenizer_chat_template(corpus->tok))
        return LS_OK;
    LS_TRY(st, ls_chat_open(chat_out, meant ? name : "auto", corpus->tok), out);
    ls_hash_hex(ls_chat_hash(*chat_out), hex);
    ls_str_printf(settings, "chat template %s\n", hex);
out:
    return st;
}

/* And for preferences. */
static ls_status make_preferences(ls_corpus *corpus, const ls_corpus_build_args *args,
                                  const ls_run *run, const char *cache_dir)
{
    enum { VERSION = 1 }; /* raise it when other windows are made of the same lines */
    ls_status st = LS_OK;
    ls_chat *chat = NULL;
    ls_str settings;
    ls_preference_data_args build = {.objective = run->train.objective,
                                     .tok = corpus->tok,
                                     .out = args->out,
                                     .files = args->files,
                                     .n_files = args->n_files,
                                     .name = args->name,
                                     .utf8 = args->utf8,
                                     .skip_bad = args->skip_bad,
                                     .window = corpus->T};

    ls_str_init(&settings);
    ls_str_printf(&settings, "preferences %d objective %d window %lld\n", VERSION,
                  (int)run->train.objective, (long long)corpus->T);
    LS_TRY(st, open_template(corpus, run, &chat, &settings), out);
    build.chat = chat;
    LS_TRY(st, ls_str_status(&settings), out);
    LS_TRY(st, cache_key(corpus, args, settings.p, &build.key), out);
    if (is_cached(args->out, build.key))
        goto out;
    ls_err_clear();
    LS_TRY(st, ls_file_make_dirs(cache_dir), out);
    ls_err_doing("encoding the preferences of \"%s\"", args->name);
    st = ls_preference_data_build(&build);
    ls_err_done();
    if (st == LS_OK)
        corpus->built++;
out:
    ls_chat_close(chat);
    ls_str_release(&settings);
    return st;
}

static ls_status open_text(ls_corpus *corpus, source_row *row, const ls_run *run, int number,
                           const char *cache_dir)
{
    ls_status st = LS_OK;
    const char *entry = run->data.text.items[number];
    char path[PATH_MAX];
    file_list files;

    LS_TRY(st, list_files(&files, entry), out);
    LS_TRY(st, make_row(row, entry, 1), out);
    if ((size_t)snprintf(path, sizeof path, "%s/text-%d.lst", cache_dir, number) >= sizeof path) {
        st = ls_fail(LS_EIO, "the path of folder \"%s\" is too long", cache_dir);
        goto out;
    }
    ls_corpus_build_args args = {.out = path,
                                 .files = files.items,
                                 .n_files = files.count,
                                 .name = entry,
                                 .field = run->data.field,
                                 .utf8 = run->data.utf8,
                                 .skip_bad = run->data.skip_bad,
                                 .tok = corpus->tok};
    if (run->train.objective != LS_OBJECTIVE_LM)
        st = make_preferences(corpus, &args, run, cache_dir);
    else if (ls_chat_is_meant(run->data.chat_template))
        st = make_chat(corpus, &args, run, cache_dir);
    else
        st = make_text(corpus, &args, cache_dir);
    if (st == LS_OK)
        st = add_shard(row, corpus, path);
out:
    list_release(&files);
    return st;
}

/* Training comes first, validation last; the training part must hold a window. */
static ls_status split_source(source_row *row, double validation, int64_t T)
{
    int64_t held_back = (int64_t)((double)row->tokens * validation);
    ls_status st;

    if (row->chat && held_back > 0) /* whole windows, one at least */
        held_back = ls_max_i64(T, held_back / T * T);
    row->train = row->tokens - held_back;
    if (row->train > T || (row->chat && row->train == T))
        return LS_OK;
    if (row->chat) {
        st = ls_fail(
            LS_EDATA, "\"%s\" has %lld windows of %lld tokens, of which %lld are left for training",
            row->name, (long long)(row->tokens / T), (long long)T, (long long)(row->train / T));
        ls_err_hint("Use more conversations, or set data.validation to 0.");
        return st;
    }
    if (row->tokens == 0)
        return ls_fail(LS_EDATA, "\"%s\" holds no text", row->name);
    if (held_back == 0)
        st = ls_fail(LS_EDATA, "\"%s\" has %lld tokens, a context of %lld needs at least %lld",
                     row->name, (long long)row->tokens, (long long)T, (long long)T + 1);
    else
        st = ls_fail(LS_EDATA,
                     "\"%s\" has %lld tokens, of which %lld are left for training; a context of "
                     "%lld needs at least %lld",
                     row->name, (long long)row->tokens, (long long)row->train, (long long)T,
                     (long long)T + 1);
    ls_err_hint("Use more text, or lower model.context to %lld or less%s.",
                (long long)ls_max_i64(1, row->train - 1),
                held_back ? ", or lower data.validation" : "");
    return st;
}

static ls_status check_validation(const ls_corpus *corpus, double validation, int64_t T)
{
    int64_t most = 0;

    if (validation <= 0 || ls_corpus_validation_windows(corpus, T) > 0)
        return LS_OK;
    for (int i = 0; i < corpus->n_sources; i++)
        most = ls_max_i64(most, ls_corpus_validation_tokens(corpus, i));
    ls_status st = ls_fail(LS_EDATA,
                           "the validation part has %lld tokens (%g of the text), a context of "
                           "%lld needs at least %lld",
                           (long long)most, validation, (long long)T, (long long)T + 1);
    ls_err_hint("Use more text, raise data.validation, lower model.context, or set data.validation "
                "to 0 to train without validation.");
    return st;
}

static ls_status check_settings(const ls_run *run)
{
    int n = run->data.text.count + run->data.shards.count;
    ls_status st = LS_OK;

    if (run->data.text.count && run->data.shards.count) {
        st = ls_fail(LS_EUSAGE, "both data.text and data.shards are given");
        ls_err_hint("Keep one of them; \"lineshaft data build\" turns text into a shard.");
    } else if (n == 0) {
        st = ls_fail(LS_EUSAGE, "there is no data: neither data.text nor data.shards is given");
        ls_err_hint("Set data.text to your text files, or to \"" LS_SOURCE_STORIES "\".");
    } else if (n > LS_SAMPLE_ORDER_SOURCES) {
        st = ls_fail(LS_EUSAGE, "%d sources are given, at most %d are possible", n,
                     LS_SAMPLE_ORDER_SOURCES);
        ls_err_hint("Join files of one kind by a pattern such as \"corpus/*.txt\".");
    } else if (run->data.weights.count && run->data.weights.count != n) {
        st = ls_fail(LS_EUSAGE, "data.weights has %d entries for %d sources",
                     run->data.weights.count, n);
        ls_err_hint("Give one weight per entry of data.%s, or none.",
                    run->data.text.count ? "text" : "shards");
    }
    return st;
}

static ls_status copy_weights(ls_corpus *corpus, const ls_run *run)
{
    size_t n = (size_t)run->data.weights.count;

    if (n == 0)
        return LS_OK;
    corpus->weights = ls_mem_array(n, sizeof *corpus->weights);
    if (!corpus->weights)
        return LS_ENOMEM;
    memcpy(corpus->weights, run->data.weights.items, n * sizeof *corpus->weights);
    return LS_OK;
}

/* A weight that cannot be kept is found now, not when training starts. */
static ls_status try_order(const ls_corpus *corpus, int64_t T)
{
    ls_sample_order *order = ls_mem_alloc(sizeof *order);

    if (!order)
        return LS_ENOMEM;
    ls_status st = ls_corpus_order(corpus, 0, T, order);
    ls_mem_free(order);
    return st;
}

ls_status ls_corpus_open(ls_corpus **out, const ls_run *run, const ls_tokenizer *tok,
                         const char *cache_dir)
{
    int64_t T = run->model.context;
    ls_status st = check_settings(run);
    if (st != LS_OK)
        return st;
    ls_corpus *corpus = ls_mem_alloc(sizeof *corpus);
    if (!corpus)
        return LS_ENOMEM;
    corpus->tok = tok;
    corpus->shuffle = run->data.shuffle;
    corpus->isolate = run->data.isolate;
    corpus->pairs = run->train.objective != LS_OBJECTIVE_LM;
    corpus->T = T;
    int n = run->data.text.count + run->data.shards.count;
    corpus->sources = ls_mem_array((size_t)n, sizeof *corpus->sources);
    if (!corpus->sources) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, copy_weights(corpus, run), out);
    for (int i = 0; i < n; i++) {
        source_row *row = &corpus->sources[corpus->n_sources++];
        LS_TRY(st,
               run->data.text.count ? open_text(corpus, row, run, i, cache_dir)
                                    : open_shards(corpus, row, run->data.shards.items[i]),
               out);
        LS_TRY(st, split_source(row, run->data.validation, T), out);
        corpus->isolate |= row->chat;
    }
    LS_TRY(st, check_validation(corpus, run->data.validation, T), out);
    LS_TRY(st, try_order(corpus, T), out);
    *out = corpus;
out:
    if (st != LS_OK)
        ls_corpus_close(corpus);
    return st;
}

void ls_corpus_close(ls_corpus *corpus)
{
    if (!corpus)
        return;
    for (int i = 0; i < corpus->n_sources; i++) {
        source_row *row = &corpus->sources[i];
        for (int s = 0; s < row->n_shards; s++)
            ls_token_shard_close(&row->shards[s]);
        ls_mem_free(row->shards);
        ls_mem_free(row->first);
        ls_mem_free(row->name);
    }
    ls_mem_free(corpus->sources);
    ls_mem_free(corpus->weights);
    ls_mem_free(corpus);
}

int ls_corpus_sources(const ls_corpus *corpus)
{
    return corpus->n_sources;
}

const char *ls_corpus_source_name(const ls_corpus *corpus, int source)
{
    return corpus->sources[source].name;
}

int64_t ls_corpus_train_tokens(const ls_corpus *corpus, int source)
{
    return corpus->sources[source].train;
}

int64_t ls_corpus_validation_tokens(const ls_corpus *corpus, int source)
{
    return corpus->sources[source].tokens - corpus->sources[source].train;
}

ls_hash ls_corpus_hash(const ls_corpus *corpus)
{
    ls_hash_stream stream;

    ls_hash_begin(&stream);
    for (int i = 0; i < corpus->n_sources; i++)
        for (int k = 0; k < corpus->sources[i].n_shards; k++) {
            const ls_token_shard *shard = &corpus->sources[i].shards[k];
            ls_hash_add(&stream, &shard->tokens_hash, sizeof shard->tokens_hash);
            ls_hash_add(&stream, &shard->starts_hash, sizeof shard->starts_hash);
            if (shard->mark_bytes)
                ls_hash_add(&stream, &shard->marks_hash, sizeof shard->marks_hash);
        }
    return ls_hash_end(&stream);
}

int64_t ls_corpus_mapped_bytes(const ls_corpus *corpus)
{
    int64_t sum = 0;

    for (int i = 0; i < corpus->n_sources; i++)
        for (int k = 0; k < corpus->sources[i].n_shards; k++)
            sum += (int64_t)corpus->sources[i].shards[k].map.len;
    return sum;
}

int64_t ls_corpus_present_bytes(const ls_corpus *corpus)
{
    int64_t sum = 0;

    for (int i = 0; i < corpus->n_sources; i++)
        for (int k = 0; k < corpus->sources[i].n_shards; k++) {
            const ls_file_map *map = &corpus->sources[i].shards[k].map;
            sum += ls_max_i64(0, ls_resident_bytes(map->bytes, (int64_t)map->len));
        }
    return sum;
}

bool ls_corpus_isolates(const ls_corpus *corpus)
{
    return corpus->isolate;
}

int ls_corpus_built(const ls_corpus *corpus)
{
    return corpus->built;
}

ls_status ls_corpus_order(const ls_corpus *corpus, uint64_t seed, int64_t T,
                          ls_sample_order *order_out)
{
    int64_t tokens[LS_SAMPLE_ORDER_SOURCES];
    bool aligned[LS_SAMPLE_ORDER_SOURCES];

    for (int i = 0; i < corpus->n_sources; i++) {
        tokens[i] = corpus->sources[i].train;
        aligned[i] = corpus->sources[i].chat;
        LS_BUG_IF(aligned[i] && T != corpus->T, "chat data in windows of %lld", (long long)T);
    }
    return ls_sample_order_init(order_out, &(ls_sample_order_args){.seed = seed,
                                                                   .T = T,
                                                                   .shuffle = corpus->shuffle,
                                                                   .n_sources = corpus->n_sources,
                                                                   .tokens = tokens,
                                                                   .aligned = aligned,
                                                                   .weights = corpus->weights});
}

/* The shard that holds a token of a source. */
static int shard_of(const source_row *row, int64_t token)
{
    int low = 0, high = row->n_shards - 1;

    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (row->first[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

ls_status ls_corpus_read(const ls_corpus *corpus, int source, int64_t first, int64_t n,
                         int32_t *ids_out)
{
    const source_row *row = &corpus->sources[source];

    LS_BUG_IF(first < 0 || n < 0 || n > row->tokens - first, "reading %lld + %lld of %lld tokens",
              (long long)first, (long long)n, (long long)row->tokens);
    while (n > 0) {
        int i = shard_of(row, first);
        int64_t at = first - row->first[i];
        int64_t part = ls_min_i64(n, row->shards[i].tokens - at);
        ls_status st = ls_token_shard_read(&row->shards[i], at, part, ids_out);
        if (st != LS_OK)
            return st;
        first += part;
        ids_out += part;
        n -= part;
    }
    return LS_OK;
}

void ls_corpus_starts(const ls_corpus *corpus, int source, int64_t first, int64_t n,
                      int32_t *start_out)
{
    const source_row *row = &corpus->sources[source];

    for (int64_t t = 0; t < n;) {
        int i = shard_of(row, first + t);
        const ls_token_shard *shard = &row->shards[i];
        int64_t at = first + t - row->first[i];
        int64_t document = ls_token_shard_document_at(shard, at);
        /* Where this document begins and ends, as positions in the window. */
        int64_t begin = t - (at - ls_min_i64(at, ls_token_shard_start(shard, document)));
        int64_t stop = document + 1 < shard->documents ? ls_token_shard_start(shard, document + 1)
                                                       : shard->tokens;
        int64_t end = ls_min_i64(n, t + ls_max_i64(1, stop - at));
        for (; t < end; t++)
            start_out[t] = (int32_t)ls_max_i64(0, begin);
    }
}

/* Whether a document begins at a token. */
static bool begins_at(const source_row *row, int64_t token)
{
    int i = shard_of(row, token);
    int64_t at = token - row->first[i];

    return at ==
           ls_token_shard_start(&row->shards[i], ls_token_shard_document_at(&row->shards[i], at));
}

/* No loss where a token is not marked as a target. */
static void drop_unmarked(const source_row *row, int64_t first, int64_t n, int32_t *targets)
{
    for (int64_t t = 0; t < n;) {
        int i = shard_of(row, first + t);
        int64_t at = first + t - row->first[i], end = ls_min_i64(n, t + row->shards[i].tokens - at);
        for (; t < end; t++, at++)
            if (!ls_token_shard_is_target(&row->shards[i], at))
                targets[t] = -1;
    }
}

ls_status ls_corpus_window(const ls_corpus *corpus, int source, int64_t first, int64_t T,
                           int32_t *tokens_out, int32_t *targets_out, int32_t *start_out)
{
    const source_row *row = &corpus->sources[source];
    /* Windows of chat data end with their last token: nothing needs to follow it. */
    int64_t targets = ls_min_i64(T, row->tokens - first - 1);
    ls_status st = LS_OK;

    LS_TRY(st, ls_corpus_read(corpus, source, first, T, tokens_out), out);
    LS_TRY(st, ls_corpus_read(corpus, source, first + 1, targets, targets_out), out);
    for (int64_t t = targets; t < T; t++)
        targets_out[t] = -1;
    if (row->chat)
        drop_unmarked(row, first + 1, targets, targets_out);
    if (!start_out)
        goto out;
    /* What follows each token, first: a document that begins there is not this one's. */
    ls_corpus_starts(corpus, source, first + 1, targets, start_out);
    for (int64_t t = 0; t < targets; t++)
        if (start_out[t] == t && begins_at(row, first + 1 + t))
            targets_out[t] = -1;
    ls_corpus_starts(corpus, source, first, T, start_out);
out:
    return st;
}

int64_t ls_corpus_window_targets(const ls_corpus *corpus, int source, int64_t first, int64_t T,
                                 bool isolated)
{
    const source_row *row = &corpus->sources[source];
    int64_t end = ls_min_i64(first + T + 1, row->tokens), counted = 0;

    for (int64_t token = first + 1; token < end;) {
        int i = shard_of(row, token);
        const ls_token_shard *shard = &row->shards[i];
        int64_t at = token - row->first[i], stop = ls_min_i64(shard->tokens, at + end - token);
        int64_t document = ls_token_shard_document_at(shard, at);
        token += stop - at;
        for (; at < stop; at++) {
            while (document + 1 < shard->documents &&
                   ls_token_shard_start(shard, document + 1) <= at)
                document++;
            counted += (!row->chat || ls_token_shard_is_target(shard, at)) &&
                       !(isolated && at == ls_token_shard_start(shard, document));
        }
    }
    return counted;
}

int64_t ls_corpus_counted(const int32_t *targets, int64_t n)
{
    int64_t counted = 0;

    for (int64_t i = 0; i < n; i++)
        counted += targets[i] >= 0;
    return counted;
}

static int64_t windows_of(const source_row *row, int64_t T)
{
    int64_t held_back = row->tokens - row->train;

    if (row->chat)
        return held_back / T;
    return held_back > T ? (held_back - 1) / T : 0;
}

int64_t ls_corpus_validation_windows(const ls_corpus *corpus, int64_t T)
{
    int64_t sum = 0;

    for (int i = 0; i < corpus->n_sources; i++)
        sum += windows_of(&corpus->sources[i], T);
    return sum;
}

/* Source and first token of validation window index. */
static int find_validation(const ls_corpus *corpus, int64_t index, int64_t T, int64_t *first_out)
{
    for (int i = 0; i < corpus->n_sources; i++) {
        int64_t n = windows_of(&corpus->sources[i], T);
        if (index < n) {
            *first_out = corpus->sources[i].train + index * T;
            return i;
        }
        index -= n;
    }
    LS_BUG_IF(true, "validation window %lld past the end", (long long)index);
    return 0;
}

ls_status ls_corpus_validation(const ls_corpus *corpus, int64_t index, int64_t T,
                               int32_t *tokens_out, int32_t *targets_out, int32_t *start_out)
{
    int64_t first = 0;
    int source = find_validation(corpus, index, T, &first);

    return ls_corpus_window(corpus, source, first, T, tokens_out, targets_out, start_out);
}

bool ls_corpus_has_pairs(const ls_corpus *corpus)
{
    return corpus->pairs;
}

int64_t ls_corpus_pairs(const ls_corpus *corpus)
{
    int64_t sum = 0;

    for (int i = 0; i < corpus->n_sources; i++)
        sum += corpus->sources[i].tokens / corpus->T;
    return sum;
}

int64_t ls_corpus_pair_number(const ls_corpus *corpus, int source, int64_t first)
{
    int64_t before = 0;

    for (int i = 0; i < source; i++)
        before += corpus->sources[i].tokens / corpus->T;
    return before + first / corpus->T;
}

int64_t ls_corpus_validation_pair(const ls_corpus *corpus, int64_t index)
{
    int64_t first = 0;
    int source = find_validation(corpus, index, corpus->T, &first);

    return ls_corpus_pair_number(corpus, source, first);
}

/* Source and first token of a pair. */
static int find_pair(const ls_corpus *corpus, int64_t number, int64_t *first_out)
{
    int i = 0;

    while (number >= corpus->sources[i].tokens / corpus->T)
        number -= corpus->sources[i++].tokens / corpus->T;
    *first_out = number * corpus->T;
    return i;
}

ls_status ls_corpus_pair(const ls_corpus *corpus, int64_t number, int32_t *tokens_out,
                         int32_t *targets_out, int32_t *start_out)
{
    int64_t first = 0;
    int source = find_pair(corpus, number, &first);

    return ls_corpus_window(corpus, source, first, corpus->T, tokens_out, targets_out, start_out);
}

bool ls_corpus_pair_is_desirable(const ls_corpus *corpus, int64_t number)
{
    int64_t first = 0;
    const source_row *row = &corpus->sources[find_pair(corpus, number, &first)];
    int i = shard_of(row, first);

    return ls_token_shard_is_target(&row->shards[i], first - row->first[i]);
}
