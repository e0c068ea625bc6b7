/* cmd_data.c -- lineshaft data: shards, and the proof of the data order. What concerns tokenizers
 * is in cmd_tokenizer.c and cmd_encode.c.
 *
 * Results go to standard output, whole or in large pieces; a line of progress goes to standard
 * error when it is a terminal and the work has lasted a second. */
#include "cli/cmd_data.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>
#include "data/corpus/corpus.h"
#include "data/corpus/order_proof.h"
#include "data/corpus/synthetic_text.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "cli/cmd_chat.h"
#include "cli/cmd_data_files.h"
#include "cli/cmd_tokenizer.h"
#include "cli/load_run.h"
#include "cli/term.h"
#include "config/ramp.h"
#include "config/runfile.h"

enum { FIRST_TEXT = 200 };

/* --- output ----------------------------------------------------------------------------------- */

ls_cmd_data_watch ls_cmd_data_watch_begin(void)
{
    return (ls_cmd_data_watch){.began_ns = ls_time_now_ns(), .tty = isatty(STDERR_FILENO) == 1};
}

bool ls_cmd_data_watch_due(ls_cmd_data_watch *w)
{
    int64_t now = ls_time_now_ns();

    if (!w->tty || now - w->began_ns < LS_NS_PER_S || now - w->shown_ns < 200 * LS_NS_PER_MS)
        return false;
    w->shown_ns = now;
    return w->shown = true;
}

void ls_cmd_data_watch_end(const ls_cmd_data_watch *w)
{
    if (w->shown)
        fputs("\r\033[K", stderr);
}

static void show_bytes(void *context, const char *file, int64_t bytes)
{
    ls_cmd_data_watch *w = context;

    if (!ls_cmd_data_watch_due(w))
        return;
    fputs("\r\033[Kencoding ", stderr);
    ls_term_text((const unsigned char *)file, strlen(file), stderr);
    fprintf(stderr, ": %lld MiB", (long long)(bytes / LS_MIB));
}

static void show_share(void *context, int64_t done, int64_t all)
{
    ls_cmd_data_watch *w = context;

    if (ls_cmd_data_watch_due(w))
        fprintf(stderr, "\r\033[Kchecking: %d %%", (int)((double)done / (double)all * 100));
}

void ls_cmd_data_put_count(ls_str *out, int64_t n)
{
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n);

    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0 && digits[i - 1] != '-')
            ls_str_append_char(out, ',');
        ls_str_append_char(out, digits[i]);
    }
}

/* --- build ------------------------------------------------------------------------------------ */

static ls_status say_built(const char *path, bool json, ls_str *out)
{
    ls_status st = LS_OK;
    ls_token_shard shard;
    ls_json j;

    LS_TRY(st, ls_token_shard_open(&shard, path), out);
    if (json) {
        ls_json_begin(&j, out);
        ls_json_open(&j, '{');
        ls_json_put_str(&j, "file", path);
        ls_json_put_int(&j, "tokens", shard.tokens);
        ls_json_put_int(&j, "documents", shard.documents);
        ls_json_put_int(&j, "bytes", (int64_t)shard.map.len);
        ls_json_close(&j);
    } else {
        ls_str_printf(out, "%s: ", path);
        ls_cmd_data_put_count(out, shard.tokens);
        ls_str_append(out, shard.tokens == 1 ? " token in " : " tokens in ");
        ls_cmd_data_put_count(out, shard.documents);
        ls_str_append(out, shard.documents == 1 ? " document" : " documents");
    }
    ls_str_append_char(out, '\n');
    ls_token_shard_close(&shard);
out:
    return st;
}

/* Names of all inputs for the shard's header. */
static ls_status join_names(const ls_args *args, ls_str *out)
{
    for (int i = 0; i < args->n_rest; i++)
        ls_str_printf(out, "%s%s", i ? " " : "", args->rest[i]);
    return ls_str_status(out);
}

static ls_status check_out_name(const char *path)
{
    size_t n = path ? strlen(path) : 0;
    ls_status st;

    if (n >= 5 && strcmp(path + n - 4, ".lst") == 0)
        return LS_OK;
    st = path ? ls_fail(LS_EUSAGE, "\"%s\" does not end in .lst", path)
              : ls_fail(LS_EUSAGE, "--out is missing");
    ls_err_hint("Name the shard to write, such as --out corpus.lst.");
    return st;
}

ls_status ls_cmd_data_need_file(const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return ls_fail(LS_EUSAGE, "there is no file \"%s\"", path);
    return LS_OK;
}

static ls_status run_build(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    const char *policy = ls_args_value(args, "utf8");
    ls_cmd_data_watch w = ls_cmd_data_watch_begin();
    ls_cmd_data_files files = {.count = 0};
    ls_str name;
    ls_corpus_build_args build = {.out = ls_args_value(args, "out"),
                                  .field = ls_args_value(args, "field"),
                                  .skip_bad = ls_args_has(args, "skip-bad"),
                                  .progress = show_bytes,
                                  .context = &w};

    ls_str_init(&name);
    LS_TRY(st, check_out_name(build.out), out);
    LS_TRY(st, ls_cmd_data_files_open(&files, args), out);
    if (ls_args_has(args, "template")) {
        st = ls_cmd_chat_build(args, &files, out);
        goto out;
    }
    build.files = files.items;
    build.n_files = files.count;
    if (policy && ls_utf8_parse_policy(policy, &build.utf8) != LS_OK) {
        st = ls_fail(LS_EUSAGE, "--utf8 must be strict, replace or bytes, not \"%s\"", policy);
        goto out;
    }
    LS_TRY(st, ls_tokenizer_open(&tok, ls_cmd_tokenizer_name(args)), out);
    LS_TRY(st, join_names(args, &name), out);
    build.tok = tok;
    build.name = name.p;
    st = ls_corpus_build(&build);
    ls_cmd_data_watch_end(&w);
    if (st == LS_OK)
        st = say_built(build.out, ls_args_has(args, "json"), out);
out:
    ls_cmd_data_files_release(&files);
    ls_tokenizer_free(tok);
    ls_str_release(&name);
    return st;
}

/* --- inspect ---------------------------------------------------------------------------------- */

/* The beginning of the first document, when its tokenizer is one that we have. */
static ls_status first_text(const ls_token_shard *shard, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    ls_tokenizer_stream stream;
    int32_t ids[FIRST_TEXT];
    int64_t end = shard->documents > 1 ? ls_token_shard_start(shard, 1) : shard->tokens;
    int64_t n = ls_max_i64(0, ls_min_i64(end, FIRST_TEXT));

    LS_TRY(st, ls_tokenizer_open(&tok, shard->tokenizer), out);
    LS_TRY(st, ls_token_shard_check_tokenizer(shard, tok), out);
    LS_TRY(st, ls_token_shard_read(shard, 0, n, ids), out);
    if (shard->documents > 1 && n && n == end && ids[n - 1] == shard->separator)
        n--;
    ls_tokenizer_stream_begin(&stream, tok);
    for (int64_t i = 0; i < n; i++)
        LS_TRY(st, ls_tokenizer_stream_feed(&stream, ids[i], out), out);
    if (n == end)
        st = ls_tokenizer_stream_end(&stream, out);
out:
    ls_tokenizer_free(tok);
    return st;
}

static void inspect_json(const ls_token_shard *shard, const ls_str *text, bool sound, ls_str *out)
{
    char tokenizer_hash[LS_HASH_HEX], source_hash[LS_HASH_HEX], tokens_hash[LS_HASH_HEX];
    ls_json j;

    ls_hash_hex(shard->tokenizer_hash, tokenizer_hash);
    ls_hash_hex(shard->source_hash, source_hash);
    ls_hash_hex(shard->tokens_hash, tokens_hash);
    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "file", shard->path);
    ls_json_put_int(&j, "version", shard->version);
    ls_json_put_int(&j, "bytes", (int64_t)shard->map.len);
    ls_json_put_int(&j, "tokens", shard->tokens);
    ls_json_put_int(&j, "documents", shard->documents);
    ls_json_put_int(&j, "width", shard->width);
    ls_json_put_int(&j, "vocab", shard->vocab);
    ls_json_put_int(&j, "separator", shard->separator);
    ls_json_put_int(&j, "targets", shard->marked);
    ls_json_put_int(&j, "window", shard->window);
    ls_json_put_str(&j, "tokenizer", shard->tokenizer);
    ls_json_put_str(&j, "tokenizer_hash", tokenizer_hash);
    ls_json_put_str(&j, "source", shard->source);
    ls_json_put_str(&j, "source_hash", source_hash);
    ls_json_put_str(&j, "tokens_hash", tokens_hash);
    ls_json_key(&j, "first_text");
    ls_json_text(&j, text->p, text->len);
    ls_json_put_bool(&j, "verified", sound);
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
}

static void inspect_text(const ls_token_shard *shard, const ls_str *text, bool sound, ls_str *out)
{
    char hex[LS_HASH_HEX];

    ls_str_printf(out, "%s: token shard, format %d\n", shard->path, shard->version);
    ls_str_append(out, "  tokens     ");
    ls_cmd_data_put_count(out, shard->tokens);
    ls_str_printf(out, " of %d byte%s\n  documents  ", shard->width, shard->width > 1 ? "s" : "");
    ls_cmd_data_put_count(out, shard->documents);
    if (shard->window)
        ls_str_printf(out, "\n  chat       windows of %lld tokens, loss on %lld of all",
                      (long long)shard->window, (long long)shard->marked);
    ls_hash_hex(shard->tokenizer_hash, hex);
    ls_str_printf(out, "\n  tokenizer  %s, %d ids (%s)\n", shard->tokenizer, (int)shard->vocab,
                  hex);
    ls_hash_hex(shard->source_hash, hex);
    ls_str_printf(out, "  made of    %s (text %s)\n", shard->source, hex);
    ls_str_printf(out, "  begins     ");
    for (size_t i = 0; i < text->len && text->p[i] != '\n'; i++)
        ls_str_append_char(out, (unsigned char)text->p[i] < 0x20 ? ' ' : text->p[i]);
    ls_str_printf(out, "\n  verify     %s\n",
                  sound ? "all checksums match, every id is in the vocabulary" : "FAILED");
}

static ls_status run_inspect(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK, sound;
    ls_err_record reason = {.code = LS_OK};
    ls_token_shard shard = {.width = 0};
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, ls_cmd_data_need_file(args->rest[0]), out);
    LS_TRY(st, ls_token_shard_open(&shard, args->rest[0]), out);
    sound = ls_token_shard_verify(&shard);
    if (sound != LS_OK)
        reason = *ls_err_last();
    else if (first_text(&shard, &text) != LS_OK)
        ls_str_clear(&text); /* made by a tokenizer that is not here: the rest still counts */
    if (ls_args_has(args, "json"))
        inspect_json(&shard, &text, sound == LS_OK, out);
    else
        inspect_text(&shard, &text, sound == LS_OK, out);
    if (!ls_args_has(args, "json"))
        ls_term_fold_stdout(args, out);
    LS_TRY(st, ls_term_print(out), out);
    if (sound != LS_OK)
        st = ls_err_adopt(&reason);
out:
    ls_token_shard_close(&shard);
    ls_str_release(&text);
    return st;
}

/* --- stories ---------------------------------------------------------------------------------- */

static ls_status run_stories(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    const char *size = ls_args_value(args, "bytes");
    int64_t bytes = 2 * LS_MIB, key, written = 0;

    if (size)
        LS_TRY(st, ls_source_parse_bytes(size, &bytes), out);
    LS_TRY(st, ls_args_number(args, "seed", 1, 0, INT64_MAX, &key), out);
    for (int64_t i = 0; written < bytes; i++) {
        size_t begun = out->len;
        if (i)
            ls_str_append_char(out, '\n');
        LS_TRY(st, ls_synthetic_text_story((uint64_t)key, i, out), out);
        written += (int64_t)(out->len - begun);
        LS_TRY(st, ls_term_print_some(out), out);
    }
out:
    return st;
}

/* --- check ------------------------------------------------------------------------------------ */

static void proof_json(const ls_corpus *corpus, const ls_order_proof *proof, ls_str *out)
{
    ls_json j;

    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_bool(&j, "passed", proof->passed);
    ls_json_put_str(&j, "fault", proof->passed ? NULL : proof->fault);
    ls_json_put_int(&j, "positions", proof->positions);
    ls_json_put_int(&j, "cut", proof->cut);
    ls_json_key(&j, "sources");
    ls_json_open(&j, '[');
    for (int i = 0; i < proof->n_sources; i++) {
        ls_json_open(&j, '{');
        ls_json_put_str(&j, "source", ls_corpus_source_name(corpus, i));
        ls_json_put_int(&j, "train_tokens", ls_corpus_train_tokens(corpus, i));
        ls_json_put_int(&j, "validation_tokens", ls_corpus_validation_tokens(corpus, i));
        ls_json_put_int(&j, "windows", proof->sources[i].windows);
        ls_json_put_int(&j, "whole_epochs", proof->sources[i].epochs);
        ls_json_put_int(&j, "samples", proof->sources[i].samples);
        ls_json_close(&j);
    }
    ls_json_close(&j);
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
}

static void proof_text(const ls_corpus *corpus, const ls_order_proof *proof, const ls_run *run,
                       ls_str *out)
{
    for (int i = 0; i < proof->n_sources; i++) {
        ls_str_printf(out, "%s: ", ls_corpus_source_name(corpus, i));
        ls_cmd_data_put_count(out, proof->sources[i].windows);
        ls_str_printf(out, " window%s an epoch, ", proof->sources[i].windows == 1 ? "" : "s");
        ls_cmd_data_put_count(out, proof->sources[i].samples);
        ls_str_printf(out, " samples, %lld whole epoch%s\n", (long long)proof->sources[i].epochs,
                      proof->sources[i].epochs == 1 ? "" : "s");
    }
    if (!proof->passed) {
        ls_str_printf(out, "The order is broken: %s.\n", proof->fault);
        return;
    }
    ls_str_append(out, "In the first ");
    ls_cmd_data_put_count(out, ls_ramp_steps(run, proof->positions));
    ls_str_append(out, " steps no sample is used twice in an epoch, every whole epoch\n"
                       "uses each of its samples exactly once, and a run that starts at sample ");
    ls_cmd_data_put_count(out, proof->cut);
    ls_str_append(out, "\nmeets the same samples as one that walks there.\n");
}

ls_status ls_cmd_data_check(const ls_run *run, int64_t steps, bool json, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    ls_corpus *corpus = NULL;
    ls_sample_order *order = ls_mem_alloc(sizeof *order);
    ls_order_proof *proof = ls_mem_alloc(sizeof *proof);
    ls_cmd_data_watch w = ls_cmd_data_watch_begin();
    char cache[PATH_MAX];

    if (!order || !proof) {
        st = LS_ENOMEM;
        goto out;
    }
    snprintf(cache, sizeof cache, "%s/" LS_CORPUS_CACHE, run->out);
    LS_TRY(st, ls_tokenizer_open(&tok, run->data.tokenizer), out);
    LS_TRY(st, ls_corpus_open(&corpus, run, tok, cache), out);
    LS_TRY(st, ls_corpus_order(corpus, (uint64_t)run->train.seed, run->model.context, order), out);
    int64_t positions = ls_order_proof_positions(order);
    if (steps && ls_ramp_overflows(run, steps)) {
        st = ls_fail(LS_EUSAGE, "%lld steps are too many to walk", (long long)steps);
        goto out;
    }
    if (steps)
        positions = ls_ramp_samples(run, steps);
    st = ls_order_proof_order(order, positions, show_share, &w, proof);
    ls_cmd_data_watch_end(&w);
    if (st != LS_OK)
        goto out;
    if (json)
        proof_json(corpus, proof, out);
    else
        proof_text(corpus, proof, run, out);
    LS_TRY(st, ls_term_print(out), out);
    if (!proof->passed)
        st = ls_fail(LS_EFAIL, "the data order is broken: %s", proof->fault);
out:
    ls_corpus_close(corpus);
    ls_tokenizer_free(tok);
    ls_mem_free(order);
    ls_mem_free(proof);
    return st;
}

static ls_status run_check(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_run run;
    int64_t steps;

    LS_TRY(st, ls_args_number(args, "steps", 0, 0, INT64_MAX, &steps), out);
    LS_TRY(st, ls_load_run_read(&run, args, args->rest[0]), out);
    st = ls_cmd_data_check(&run, steps, ls_args_has(args, "json"), out);
    ls_runfile_release(&run);
out:
    return st;
}

/* --- tables ----------------------------------------------------------------------------------- */

static const ls_flag build_flags[] = {
    LS_CMD_TOKENIZER_FLAG,
    {"out", 'o', "FILE.lst", false, "The shard to write; it appears whole or not at all."},
    {"field", 0, "NAME", false, "Field of a JSON line that holds the text; text unless given."},
    {"utf8", 0, "POLICY", false,
     "What to do with bytes that are not UTF-8: strict stops there, replace puts U+FFFD, bytes "
     "keeps "
     "them."},
    {"skip-bad", 0, NULL, false,
     "Pass over JSON lines that cannot be used, with a warning that names the line."},
    {"template", 0, "NAME", false,
     "The lines are conversations: write them out with this template (see `lineshaft data chat`)."},
    {"context", 0, "N", false, "With --template: the run's model.context, in tokens."},
    LS_CMD_DATA_JSON_FLAG,
    LS_CMD_DATA_END_FLAGS};
static const ls_command build = {
    .name = "build",
    .summary = "encode text files into one token shard",
    .arguments = "FILE ...",
    .about = "Reads .txt files (each is one document) and .jsonl files (each line is one), also "
             "compressed as .gz or .zst, or \"builtin:stories\", and writes their tokens with an "
             "index of documents. A pattern in quotes is opened as data.text opens it.",
    .examples =
        "lineshaft data build --out corpus.lst corpus/*.txt  # every file is a document\n"
        "lineshaft data build --out web.lst --field body web.jsonl.zst  # every line is one",
    .flags = build_flags,
    .run = run_build};

static const ls_flag inspect_flags[] = {LS_CMD_DATA_JSON_FLAG, LS_CMD_DATA_END_FLAGS};
static const ls_command inspect = {
    .name = "inspect",
    .summary = "show what a token shard holds and verify it",
    .arguments = "FILE.lst",
    .about =
        "Prints the header and the beginning of the text, then reads the whole shard: checksums, "
        "ids, document starts. Exits with an error when anything is wrong.",
    .examples = "lineshaft data inspect corpus.lst  # header, first words, verdict",
    .flags = inspect_flags,
    .run = run_inspect};

static const ls_flag check_flags[] = {
    {"steps", 0, "N", false,
     "Walk N steps; until every source has finished an epoch unless given."},
    LS_LOAD_RUN_SET_FLAG,
    LS_CMD_DATA_JSON_FLAG,
    LS_CMD_DATA_END_FLAGS};
static const ls_command check = {
    .name = "check",
    .summary = "prove that each sample is used exactly once per epoch",
    .arguments = "RUN",
    .about =
        "Walks the samples of a run with a bitmap per source and epoch, then once more from a "
        "random place in the middle, and says whether each sample of each epoch was met exactly "
        "once and whether both walks met the same samples. Text that is not yet tokens in the run "
        "folder is "
        "built there first, as `lineshaft train` would.",
    .examples = "lineshaft data check run.yaml  # one epoch of every source\n"
                "lineshaft data check run.yaml --steps 1000 --json  # the first 1000 steps",
    .flags = check_flags,
    .run = run_check};

static const ls_flag stories_flags[] = {
    {"bytes", 0, "SIZE", false, "How much text, such as 500K or 2M (1024s); 2M unless given."},
    {"seed", 0, "N", false, "Another number gives other stories; 1 unless given."},
    LS_CMD_DATA_END_FLAGS};
static const ls_command stories = {
    .name = "stories",
    .summary = "write simple stories to train on",
    .about =
        "Writes the text that \"builtin:stories\" stands for: whole stories, with an empty line "
        "between them, until there is as much as asked for.",
    .examples = "lineshaft data stories --bytes 2M > stories.txt  # text without a download",
    .flags = stories_flags,
    .run = run_stories};

static const ls_command *const subs[] = {&build,         &inspect,       &ls_cmd_tokenizer,
                                         &ls_cmd_encode, &ls_cmd_decode, &check,
                                         &stories,       &ls_cmd_chat,   NULL};

const ls_command ls_cmd_data = {
    .name = "data",
    .summary = "build, inspect and check training data",
    .about =
        "Trains tokenizers, turns text into token shards, shows what is in them, and proves the "
        "order in which a run uses its samples.",
    .examples = "lineshaft data build --out corpus.lst corpus/*.txt  # text to tokens\n"
                "lineshaft data inspect corpus.lst  # what is in it\n"
                "lineshaft data tokenizer --train --vocab 8192 -o tok corpus/*.txt  # a tokenizer\n"
                "lineshaft data chat chat.jsonl --tokenizer tok  # what the model will see\n"
                "lineshaft data check run.yaml  # each sample exactly once per epoch",
    .subs = subs};
