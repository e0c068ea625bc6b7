/* test_corpus.c -- a run's data: built, cached, cut, refused; and the loader that serves it. */
#include "data/corpus/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "data/corpus/loader.h"
#include "base/mem.h"
#include "base/time.h"
#include "harness.h"

typedef struct setup {
    ls_run run;
    ls_tokenizer *tok;
    const char *items[8];
    double weights[8];
} setup;

static void set_up(setup *s, int64_t context)
{
    memset(s, 0, sizeof *s);
    s->run.model.context = context;
    s->run.data.tokenizer = "bytes";
    s->run.data.field = "text";
    s->run.data.shuffle = true;
    s->run.data.text.items = s->items;
    s->run.data.shards.items = s->items;
    s->run.data.weights.items = s->weights;
    LS_CHECK_OK(ls_tokenizer_open(&s->tok, "bytes"));
}

static void add_text(setup *s, const char *entry)
{
    s->items[s->run.data.text.count++] = entry;
}

static void add_shards(setup *s, const char *entry)
{
    s->items[s->run.data.shards.count++] = entry;
}

static ls_status open_it(setup *s, ls_corpus **out)
{
    return ls_corpus_open(out, &s->run, s->tok, "cache/of/run");
}

static void put_text(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

/* n bytes of the alphabet, so that a token tells its place modulo 26. */
static void put_alphabet(const char *path, int n)
{
    ls_str s;

    ls_str_init(&s);
    for (int i = 0; i < n; i++)
        ls_str_append_char(&s, (char)('a' + i % 26));
    put_text(path, s.p);
    ls_str_release(&s);
}

static void open_ok(setup *s, ls_corpus **corpus, int built)
{
    LS_CHECK_OK(open_it(s, corpus));
    LS_CHECK_EQ(ls_corpus_built(*corpus), built);
}

LS_TEST(text_is_encoded_once)
{
    setup s;
    ls_corpus *c;
    struct timespec past[2] = {{1000, 0}, {1000, 0}};

    set_up(&s, 8);
    put_text("a.txt", "0123456789 0123456789 0123456789");
    put_text("b.txt", "abcdefghij abcdefghij");
    add_text(&s, "*.txt");
    s.run.data.validation = 0.5;
    open_ok(&s, &c, 1);
    LS_CHECK_EQ(ls_corpus_sources(c), 1);
    LS_CHECK_STR(ls_corpus_source_name(c, 0), "*.txt");
    LS_CHECK_EQ(ls_corpus_train_tokens(c, 0) + ls_corpus_validation_tokens(c, 0), 32 + 1 + 21);
    ls_corpus_close(c);
    open_ok(&s, &c, 0); /* nothing changed */
    ls_corpus_close(c);
    utimensat(AT_FDCWD, "a.txt", past, 0); /* a file changed */
    open_ok(&s, &c, 1);
    ls_corpus_close(c);
    s.run.data.field = "body"; /* a setting changed */
    open_ok(&s, &c, 1);
    ls_corpus_close(c);
    LS_CHECK_OK(ls_file_write_atomic("cache/of/run/text-0.lst", "damaged", 7));
    open_ok(&s, &c, 1); /* the cache was damaged */
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(windows_split_into_training_and_validation)
{
    setup s;
    ls_corpus *c;
    int32_t tokens[8], targets[8];

    set_up(&s, 8);
    put_alphabet("a.txt", 100);
    add_text(&s, "a.txt");
    s.run.data.validation = 0.3;
    open_ok(&s, &c, 1);
    LS_CHECK_EQ(ls_corpus_train_tokens(c, 0), 70);
    LS_CHECK_EQ(ls_corpus_validation_tokens(c, 0), 30);
    LS_CHECK_EQ(ls_corpus_validation_windows(c, 8), 3); /* (30 - 1) / 8 */
    for (int i = 0; i < 3; i++) {
        LS_CHECK_OK(ls_corpus_validation(c, i, 8, tokens, targets, NULL));
        for (int t = 0; t < 8; t++) {
            LS_CHECK_EQ(tokens[t], 'a' + (70 + i * 8 + t) % 26);
            LS_CHECK_EQ(targets[t], 'a' + (71 + i * 8 + t) % 26);
        }
    }
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

static void build_shard(setup *s, const char *out, const char *file)
{
    LS_CHECK_OK(ls_corpus_build(&(ls_corpus_build_args){
        .out = out, .files = &file, .n_files = 1, .name = file, .tok = s->tok}));
}

LS_TEST(shards_of_a_pattern_are_one_source)
{
    setup s;
    ls_corpus *c;
    int32_t ids[120], start[40];

    set_up(&s, 8);
    put_alphabet("a.txt", 50);
    put_alphabet("b.txt", 70);
    build_shard(&s, "x-0.lst", "a.txt");
    build_shard(&s, "x-1.lst", "b.txt");
    add_shards(&s, "x-*.lst");
    open_ok(&s, &c, 0);
    LS_CHECK_EQ(ls_corpus_train_tokens(c, 0), 120);
    LS_CHECK_EQ(ls_corpus_validation_windows(c, 8), 0);
    LS_CHECK_OK(ls_corpus_read(c, 0, 0, 120, ids));
    for (int i = 0; i < 120; i++)
        LS_CHECK_EQ(ids[i], 'a' + (i < 50 ? i : i - 50) % 26);
    ls_corpus_starts(c, 0, 40, 40, start); /* the second shard begins at token 50 */
    for (int t = 0; t < 40; t++)
        LS_CHECK_EQ(start[t], t < 10 ? 0 : 10);
    LS_CHECK(!ls_file_exists("cache"));
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(document_starts_are_found)
{
    setup s;
    ls_corpus *c;
    int32_t start[14];
    /* aaa 0 bb 0 c 0 dddd 0 ee: starts at 0, 4, 7, 9, 14 */
    static const int want[14] = {0, 0, 2, 2, 2, 5, 5, 7, 7, 7, 7, 7, 12, 12};

    set_up(&s, 2);
    put_text("a.jsonl", "{\"text\":\"aaa\"}\n{\"text\":\"bb\"}\n{\"text\":\"c\"}\n"
                        "{\"text\":\"dddd\"}\n{\"text\":\"ee\"}\n");
    add_text(&s, "a.jsonl");
    open_ok(&s, &c, 1);
    LS_CHECK_EQ(ls_corpus_train_tokens(c, 0), 16);
    ls_corpus_starts(c, 0, 2, 14, start);
    for (int t = 0; t < 14; t++)
        LS_CHECK_EQ(start[t], want[t]);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(bad_data_gets_a_sentence)
{
    setup s;
    ls_corpus *c = NULL;

    set_up(&s, 64);
    LS_CHECK_FAILS(open_it(&s, &c), LS_EUSAGE, "there is no data");
    add_text(&s, "none*.txt");
    LS_CHECK_FAILS(open_it(&s, &c), LS_EIO, "no file matches \"none*.txt\"");
    put_text("a.txt", "");
    s.items[0] = "a.txt";
    LS_CHECK_FAILS(open_it(&s, &c), LS_EDATA, "\"a.txt\" holds no text");
    LS_CHECK(!ls_file_exists("cache/of/run/text-0.lst"));
    put_text("a.txt", "far too short");
    LS_CHECK_FAILS(open_it(&s, &c), LS_EDATA, "has 13 tokens, a context of 64 needs at least 65");
    LS_CHECK(strstr(ls_err_last()->hint, "model.context to 12 or less"));
    put_alphabet("a.txt", 100);
    s.run.data.validation = 0.5;
    LS_CHECK_FAILS(open_it(&s, &c), LS_EDATA, "of which 50 are left for training");
    s.run.data.validation = 0.1;
    LS_CHECK_FAILS(open_it(&s, &c), LS_EDATA, "the validation part has 10 tokens");
    s.run.data.validation = 0;
    s.run.data.weights.count = 2;
    LS_CHECK_FAILS(open_it(&s, &c), LS_EUSAGE, "data.weights has 2 entries for 1 sources");
    s.run.data.weights.count = 1;
    s.weights[0] = -1;
    LS_CHECK_FAILS(open_it(&s, &c), LS_EUSAGE, "must be above 0");
    s.run.data.weights.count = 0;
    s.run.data.shards.count = 1;
    LS_CHECK_FAILS(open_it(&s, &c), LS_EUSAGE, "both data.text and data.shards");
    s.run.data.text.count = 0;
    LS_CHECK_FAILS(open_it(&s, &c), LS_EDATA, "is not a token shard");
    LS_CHECK(!c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(every_failing_allocation_of_a_corpus_is_reported)
{
    setup s;
    ls_corpus *c = NULL;
    uint64_t n = 1;

    set_up(&s, 8);
    put_alphabet("a.txt", 100);
    add_text(&s, "a.txt");
    for (;; n++) {
        unlink("cache/of/run/text-0.lst");
        ls_mem_fail_nth(n);
        ls_status st = open_it(&s, &c);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n > 10);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

/* --- loader ------------------------------------------------------------------------------------
 */

static void check_batch(const ls_corpus *c, const ls_loader_args *a, const ls_batch *batch)
{
    static ls_sample_order order;
    int32_t window[65], start[65];
    int64_t counted = 0;

    LS_CHECK(a->T <= 64);
    LS_CHECK_OK(ls_corpus_order(c, a->seed, a->T, &order));
    LS_CHECK_EQ(batch->B, a->sequences);
    LS_CHECK_EQ(batch->T, a->T);
    LS_CHECK_EQ(batch->start != NULL, a->isolate);
    for (int64_t b = 0; b < batch->B; b++) {
        ls_sample s = ls_sample_order_at(&order, batch->step * a->sequences + b);
        LS_CHECK_OK(ls_corpus_read(c, s.source, s.first, a->T + 1, window));
        ls_corpus_starts(c, s.source, s.first, a->T + 1, start);
        int64_t before = counted;
        for (int64_t t = 0; t < a->T; t++) {
            LS_CHECK_EQ(batch->tokens[b * a->T + t], window[t]);
            /* Isolated: what follows a separator is not to be guessed. */
            bool border = a->isolate && start[t + 1] == t + 1;
            LS_CHECK_EQ(batch->targets[b * a->T + t], border ? -1 : window[t + 1]);
            if (a->isolate)
                LS_CHECK_EQ(batch->start[b * a->T + t], start[t]);
            counted += !border;
        }
        LS_CHECK_EQ(ls_corpus_window_targets(c, s.source, s.first, a->T, a->isolate),
                    counted - before);
    }
    LS_CHECK_EQ(batch->counted, counted);
}

LS_TEST(loader_gives_what_the_order_says)
{
    setup s;
    ls_corpus *c;
    ls_loader *loader;
    const ls_batch *batch;

    set_up(&s, 16);
    put_alphabet("a.txt", 1000);
    add_text(&s, "a.txt");
    add_text(&s, "builtin:stories:8K");
    s.weights[0] = 1;
    s.weights[1] = 3;
    s.run.data.weights.count = 2;
    open_ok(&s, &c, 2);
    for (int depth = 0; depth < 5; depth++) {
        ls_loader_args args = {.corpus = c,
                               .seed = 5,
                               .T = 16,
                               .sequences = 3,
                               .first_step = depth * 11,
                               .isolate = depth % 2,
                               .depth = depth};
        LS_CHECK_OK(ls_loader_open(&loader, &args));
        for (int64_t step = args.first_step; step < args.first_step + 60; step++) {
            LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch));
            LS_CHECK_EQ(batch->step, step);
            check_batch(c, &args, batch);
        }
        ls_loader_close(loader);
    }
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

/* --- slices ------------------------------------------------------------------------------------
 */

typedef struct cut { /* how a run's batches are shared by ranks */
    const ls_corpus *c;
    int ranks, rank;
    bool grows; /* step s has 3 + s sequences, otherwise 5 */
} cut;

static int64_t sequences_of(const cut *x, int64_t step)
{
    return x->grows ? 3 + step : 5;
}

static int64_t position_of(const cut *x, int64_t step)
{
    return x->grows ? 3 * step + step * (step - 1) / 2 : 5 * step;
}

/* Slices that move from step to step. */
static ls_loader_slice slice_of(void *context, int64_t step)
{
    const cut *x = context;
    int64_t n = sequences_of(x, step), first = n * x->rank / x->ranks;
    int64_t end = n * (x->rank + 1) / x->ranks;

    if (x->ranks == 2) /* rank 0 has 0, 1, 2 or 3 of them */
        first = x->rank ? ls_min_i64(n, step % 4) : 0, end = x->rank ? n : ls_min_i64(n, step % 4);
    return (ls_loader_slice){
        .position = position_of(x, step), .sequences = n, .first = first, .own = end - first};
}

/* Every token of the text is another id, so a window is known by its tokens. */
enum { EXACT_T = 8, EXACT_TOKENS = 256 };

/* Steps first .. end-1 on so many ranks: count what is read, by the window's first token. */
static void read_steps(cut x, int ranks, int64_t first, int64_t end, int *seen)
{
    for (int rank = 0; rank < ranks; rank++) {
        const ls_batch *batch;
        ls_loader *loader;
        x.ranks = ranks;
        x.rank = rank;
        LS_CHECK_OK(ls_loader_open(&loader, &(ls_loader_args){.corpus = x.c,
                                                              .seed = 5,
                                                              .T = EXACT_T,
                                                              .sequences = 16,
                                                              .first_step = first,
                                                              .slice = slice_of,
                                                              .context = &x}));
        for (int64_t step = first; step < end; step++) {
            LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch));
            LS_CHECK_EQ(batch->step, step);
            LS_CHECK_EQ(batch->B, slice_of(&x, step).own);
            LS_CHECK_EQ(batch->counted, sequences_of(&x, step) * EXACT_T);
            for (int64_t b = 0; b < batch->B; b++) {
                for (int t = 1; t < EXACT_T; t++)
                    LS_CHECK_EQ(batch->tokens[b * EXACT_T + t], batch->tokens[b * EXACT_T] + t);
                seen[batch->tokens[b * EXACT_T]]++;
            }
        }
        ls_loader_close(loader);
    }
}

/* An epoch is walked by 3 ranks, then 2, then 5; every window is read by one rank, once. */
LS_TEST(loader_slices_use_each_sample_once_through_changes_of_width)
{
    char bytes[EXACT_TOKENS];
    setup s;
    ls_corpus *c;
    static ls_sample_order order;

    set_up(&s, EXACT_T);
    for (int i = 0; i < EXACT_TOKENS; i++)
        bytes[i] = (char)i;
    s.run.data.utf8 = LS_UTF8_BYTES;
    LS_CHECK_OK(ls_file_write_atomic("all.txt", bytes, sizeof bytes));
    add_text(&s, "all.txt");
    open_ok(&s, &c, 1);
    LS_CHECK_OK(ls_corpus_order(c, 5, EXACT_T, &order));
    for (int grows = 0; grows < 2; grows++) {
        cut x = {.c = c, .grows = grows};
        int64_t steps = 0, extra;
        int seen[EXACT_TOKENS] = {0}, used = 0;
        while (position_of(&x, steps) < order.windows)
            steps++;
        extra = position_of(&x, steps) - order.windows; /* of the next epoch */
        read_steps(x, 3, 0, 2, seen);
        read_steps(x, 2, 2, 4, seen);
        read_steps(x, 5, 4, steps, seen);
        LS_CHECK(steps > 4);
        for (int64_t p = order.windows; p < order.windows + extra; p++)
            seen[ls_sample_order_at(&order, p).first]--;
        for (int64_t p = 0; p < order.windows; p++)
            LS_CHECK_EQ(seen[ls_sample_order_at(&order, p).first], 1);
        for (int i = 0; i < EXACT_TOKENS; i++)
            used += seen[i];
        LS_CHECK_EQ(used, order.windows);
    }
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(loader_seeks_to_any_step)
{
    setup s;
    ls_corpus *c;
    ls_loader *loader;
    const ls_batch *batch;

    set_up(&s, 16);
    add_text(&s, "builtin:stories:8K");
    open_ok(&s, &c, 1);
    ls_loader_args args = {
        .corpus = c, .seed = 5, .T = 16, .sequences = 4, .first_step = INT64_C(1) << 50};
    LS_CHECK_OK(ls_loader_open(&loader, &args));
    LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch));
    LS_CHECK_EQ(batch->step, INT64_C(1) << 50);
    check_batch(c, &args, batch);
    ls_loader_close(loader);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(loader_allocates_only_at_open)
{
    setup s;
    ls_corpus *c;
    ls_loader *loader;
    const ls_batch *batch;

    set_up(&s, 16);
    add_text(&s, "builtin:stories:8K");
    open_ok(&s, &c, 1);
    ls_loader_args args = {.corpus = c, .T = 16, .sequences = 4, .isolate = true, .depth = 3};
    LS_CHECK_EQ(ls_loader_bytes(&args), 3 * 3 * 256 + 64);
    LS_CHECK_OK(ls_loader_open(&loader, &args));
    LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch));
    uint64_t calls = ls_mem_calls();
    for (int i = 0; i < 50; i++)
        LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch));
    LS_CHECK_EQ(ls_mem_calls(), calls);
    ls_loader_close(loader);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

/* A shard that is damaged behind our back (same length, ids outside the vocabulary): the thread's
 * record reaches the caller, after the batches that were good. */
LS_TEST(loader_passes_on_the_failure_of_its_thread)
{
    setup s;
    ls_corpus *c;
    ls_loader *loader;
    const ls_batch *batch;
    ls_status st = LS_OK;
    int steps = 0;

    set_up(&s, 16);
    put_alphabet("a.txt", 4000);
    build_shard(&s, "a.lst", "a.txt");
    /* A vocabulary of 256 in 2 bytes leaves room for wrong ids. */
    ls_token_shard_writer *w;
    int32_t id = 7;
    LS_CHECK_OK(ls_token_shard_create(
        &w, &(ls_token_shard_args){.path = "a.lst", .tok = s.tok, .source = "", .width = 2}));
    for (int i = 0; i < 4000; i++)
        LS_CHECK_OK(ls_token_shard_append(w, &id, 1));
    LS_CHECK_OK(ls_token_shard_finish(w));
    add_shards(&s, "a.lst");
    s.run.data.shuffle = false;
    open_ok(&s, &c, 0);
    int fd = open("a.lst", O_WRONLY);
    LS_CHECK(fd >= 0 && pwrite(fd, "\xff\xff", 2, LS_TOKEN_SHARD_HEADER + 2 * 1000) == 2);
    close(fd);
    LS_CHECK_OK(ls_loader_open(&loader, &(ls_loader_args){.corpus = c, .T = 16, .sequences = 2}));
    while (st == LS_OK && steps++ < 100)
        st = ls_loader_next(loader, ls_test_soon(), &batch);
    LS_CHECK_EQ(steps, 1000 / 32 + 1);
    LS_CHECK_FAILS(st, LS_EDATA, "token 1000 is 65535");
    LS_CHECK_FAILS(ls_loader_next(loader, ls_test_soon(), &batch), LS_EDATA, "token 1000 is 65535");
    ls_loader_close(loader);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(loader_keeps_its_deadline)
{
    setup s;
    ls_corpus *c;
    ls_loader *loader;
    const ls_batch *batch;

    set_up(&s, 1024);
    add_text(&s, "builtin:stories:64K");
    open_ok(&s, &c, 1);
    ls_loader_args args = {.corpus = c, .T = 1024, .sequences = 5000};
    ls_status st = LS_OK;
    for (int i = 0; i < 20 && st == LS_OK; i++) { /* it may be done before we are let ask */
        LS_CHECK_OK(ls_loader_open(&loader, &args));
        st = ls_loader_next(loader, ls_time_now_ns() + LS_NS_PER_MS, &batch);
        if (st == LS_OK)
            ls_loader_close(loader);
    }
    LS_CHECK_FAILS(st, LS_EDEADLINE, "step 0");
    LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch)); /* asking again is allowed */
    LS_CHECK_EQ(batch->step, 0);
    ls_loader_close(loader);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(every_failing_allocation_of_a_loader_is_reported)
{
    setup s;
    ls_corpus *c;
    ls_loader *loader = NULL;
    uint64_t n = 1;

    set_up(&s, 16);
    add_text(&s, "builtin:stories:8K");
    open_ok(&s, &c, 1);
    for (;; n++) {
        ls_mem_fail_nth(n);
        ls_status st =
            ls_loader_open(&loader, &(ls_loader_args){.corpus = c, .T = 16, .sequences = 2});
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK_EQ(n, 4);
    ls_loader_close(loader);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}
