/* cmd_tokenizer.c -- lineshaft data tokenizer: making and describing tokenizers.
 *
 * The tokenizer's functions say what it is. How its file says it (kind, pattern, normalizer) is
 * read from tokenizer.json here, for people only, after the tokenizer was opened and so is known to
 * be sound. */
#include "cli/cmd_tokenizer.h"

#include <jansson.h>
#include <limits.h>
#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/corpus/source.h"
#include "data/tokenizer/tokenizer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/time.h"
#include "cli/args.h"
#include "cli/cmd_data.h"
#include "cli/cmd_data_files.h"

const char *ls_cmd_tokenizer_name(const ls_args *args)
{
    const char *name = ls_args_value(args, "tokenizer");

    return name ? name : "bytes";
}

/* --- train ------------------------------------------------------------------------------------ */

enum { MIN_COUNT = 2, MOST_SPECIALS = 64, NAMED_FILES = 4 };
#define DEFAULT_SPECIAL "<|endoftext|>"

static void show_training(void *context, const char *doing, int64_t done, int64_t all)
{
    ls_cmd_data_watch *w = context;

    if (!ls_cmd_data_watch_due(w))
        return;
    if (all)
        fprintf(stderr, "\r\033[K%s: %lld of %lld tokens", doing, (long long)done, (long long)all);
    else
        fprintf(stderr, "\r\033[K%s: %lld MiB", doing, (long long)(done / LS_MIB));
}

static bool is_plain_name(const char *name)
{
    return name[0] != '-' &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789/._-:+,@%")] == '\0';
}

/* The command that comes after training, ready to be copied where the names allow it. */
static void put_next(const ls_args *args, const char *folder, ls_str *out)
{
    bool plain = args->n_rest <= NAMED_FILES;

    for (int i = 0; i < args->n_rest; i++)
        plain = plain && is_plain_name(args->rest[i]);
    ls_str_printf(out, "Next: lineshaft data build --tokenizer %s --out corpus.lst",
                  is_plain_name(folder) ? folder : "FOLDER");
    for (int i = 0; plain && i < args->n_rest; i++)
        ls_str_printf(out, " %s", args->rest[i]);
    ls_str_append(out, plain ? "\n" : " FILE ...\n");
}

static void trained_text(const ls_args *args, const ls_bpe_train_args *asked,
                         const ls_bpe_train_stats *s, double seconds, ls_str *out)
{
    const char *folder = ls_args_value(args, "out");

    ls_str_printf(out, "%s: ", folder);
    ls_cmd_data_put_count(out, s->vocab);
    ls_str_append(out, " tokens: 256 bytes, ");
    ls_cmd_data_put_count(out, s->vocab - 256 - asked->n_specials);
    ls_str_printf(out, " merged, %d special\n", asked->n_specials);
    ls_str_append(out, "  text     ");
    ls_cmd_data_put_count(out, s->bytes);
    ls_str_append(out, " bytes, ");
    ls_cmd_data_put_count(out, s->words);
    ls_str_append(out, " distinct words\n  encoded  ");
    ls_cmd_data_put_count(out, s->tokens);
    ls_str_printf(out, " tokens, %.2f bytes each\n  trained  in %.2f s\n",
                  s->tokens ? (double)s->bytes / (double)s->tokens : 0.0, seconds);
    if (s->vocab < asked->vocab)
        ls_str_printf(
            out, "Fewer tokens than the %d asked for: no other pair occurs %lld time%s.\n",
            (int)asked->vocab, (long long)asked->min_count, asked->min_count == 1 ? "" : "s");
    if (s->dropped_words) {
        ls_cmd_data_put_count(out, s->dropped_words);
        ls_str_append(out, " rare words were left out to bound memory.\n");
    }
    put_next(args, folder, out);
}

static void trained_json(const ls_args *args, const ls_bpe_train_stats *s, double seconds,
                         ls_str *out)
{
    ls_json j;

    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "folder", ls_args_value(args, "out"));
    ls_json_put_int(&j, "vocab", s->vocab);
    ls_json_put_int(&j, "merges", s->merges);
    ls_json_put_int(&j, "bytes", s->bytes);
    ls_json_put_int(&j, "tokens", s->tokens);
    ls_json_put_int(&j, "words", s->words);
    ls_json_put_int(&j, "dropped_words", s->dropped_words);
    ls_json_put_num(&j, "seconds", seconds);
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
}

static ls_status need_value(const ls_args *args, const char *flag, const char *hint)
{
    ls_status st;

    if (ls_args_has(args, flag))
        return LS_OK;
    st = ls_fail(LS_EUSAGE, "--%s is missing", flag);
    ls_err_hint("%s", hint);
    return st;
}

/* From flags to training arguments; specials: room for MOST_SPECIALS. */
static ls_status read_train_flags(const ls_args *args, const char **specials,
                                  ls_cmd_data_files *files, ls_bpe_train_args *out)
{
    ls_status st = LS_OK;
    const char *utf8 = ls_args_value(args, "utf8");
    int64_t vocab = 0;

    LS_TRY(st, need_value(args, "vocab", "Say how many tokens to make, such as --vocab 8192."),
           out);
    LS_TRY(st, need_value(args, "out", "Name the folder to write, such as --out tok."), out);
    LS_TRY(st, ls_args_number(args, "vocab", 0, 0, INT32_MAX, &vocab), out);
    out->vocab = (int32_t)vocab;
    LS_TRY(st, ls_args_number(args, "min-count", MIN_COUNT, 0, INT64_MAX, &out->min_count), out);
    out->pattern = ls_args_value(args, "pattern");
    out->field = ls_args_value(args, "field");
    out->utf8 = utf8 && strcmp(utf8, "replace") == 0 ? LS_UTF8_REPLACE : LS_UTF8_STRICT;
    for (const char *s;
         out->n_specials < MOST_SPECIALS && (s = ls_args_nth(args, "special", out->n_specials));)
        specials[out->n_specials++] = s;
    if (out->n_specials == 0)
        specials[out->n_specials++] = DEFAULT_SPECIAL;
    out->specials = specials;
    LS_TRY(st, ls_cmd_data_files_open(files, args), out);
    out->files = files->items;
    out->n_files = files->count;
    st = ls_bpe_train_check_folder(ls_args_value(args, "out"));
out:
    return st;
}

static ls_status run_train(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_bpe_train *train = NULL;
    const char *specials[MOST_SPECIALS];
    ls_cmd_data_watch w = ls_cmd_data_watch_begin();
    ls_bpe_train_args asked = {.progress = show_training, .context = &w};
    ls_cmd_data_files files = {.count = 0};
    int64_t began = ls_time_now_ns();

    LS_TRY(st, read_train_flags(args, specials, &files, &asked), out);
    st = ls_bpe_train_create(&train, &asked);
    ls_cmd_data_watch_end(&w);
    if (st != LS_OK)
        goto out;
    LS_TRY(st, ls_bpe_train_write(train, ls_args_value(args, "out")), out);
    double seconds = (double)(ls_time_now_ns() - began) / (double)LS_NS_PER_S;
    ls_bpe_train_stats stats = ls_bpe_train_count(train);
    if (ls_args_has(args, "json"))
        trained_json(args, &stats, seconds, out);
    else
        trained_text(args, &asked, &stats, seconds, out);
out:
    ls_cmd_data_files_release(&files);
    ls_bpe_train_free(train);
    return st;
}

/* --- describe --------------------------------------------------------------------------------- */

/* How tokenizer.json puts it; strings are borrowed from root. */
typedef struct layout {
    json_t *root; /* NULL for the tokenizer of bytes; owned */
    char path[PATH_MAX];
    const char *kind, *pattern; /* pattern: NULL when the file has none */
    ls_str normalizer;          /* types, "none" when there is none */
    int64_t merges;
} layout;

static bool is_type(const json_t *object, const char *type)
{
    const char *have = json_string_value(json_object_get(object, "type"));

    return have && strcmp(have, type) == 0;
}

/* The members of a Sequence, or the object itself as its only member. */
static size_t count_steps(const json_t *object, const char *list)
{
    return is_type(object, "Sequence") ? json_array_size(json_object_get(object, list))
                                       : json_is_object(object);
}

static const json_t *get_step(const json_t *object, const char *list, size_t i)
{
    return is_type(object, "Sequence") ? json_array_get(json_object_get(object, list), i) : object;
}

static void read_pattern(layout *l, const json_t *pre)
{
    for (size_t i = 0; i < count_steps(pre, "pretokenizers"); i++) {
        const json_t *step = get_step(pre, "pretokenizers", i), *regex;
        regex = json_object_get(step, "use_regex");
        if (is_type(step, "Split") && !l->pattern)
            l->pattern =
                json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
        if (is_type(step, "ByteLevel")) {
            l->kind = "byte-level BPE";
            if (!l->pattern && !json_is_false(regex))
                l->pattern = LS_PRETOKENIZER_GPT2;
        }
    }
}

/* "gpt2" for GPT-2's expression, and so on. */
static ls_status name_pattern(layout *l)
{
    static const char *const names[] = {LS_PRETOKENIZER_GPT2, LS_PRETOKENIZER_LLAMA3,
                                        LS_PRETOKENIZER_QWEN2};
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(names) && l->pattern; i++) {
        ls_pretokenizer *known;
        LS_TRY(st, ls_pretokenizer_open(&known, names[i]), out);
        if (strcmp(ls_pretokenizer_pattern(known), l->pattern) == 0)
            l->pattern = names[i];
        ls_pretokenizer_free(known);
    }
out:
    return st;
}

static ls_status read_layout(layout *l, const char *name)
{
    ls_status st = LS_OK;
    json_error_t why;

    l->kind = "bytes";
    ls_str_append(&l->normalizer, "");
    if (strcmp(name, "bytes") == 0)
        goto out;
    snprintf(l->path, sizeof l->path, "%s%s", name, ls_file_is_dir(name) ? "/tokenizer.json" : "");
    l->root = json_load_file(l->path, JSON_ALLOW_NUL, &why);
    if (!l->root) {
        st = ls_fail(LS_EDATA, "%s:%d: %s", l->path, why.line, why.text);
        goto out;
    }
    const json_t *model = json_object_get(l->root, "model");
    const json_t *normalizer = json_object_get(l->root, "normalizer");
    l->kind =
        json_is_true(json_object_get(model, "byte_fallback")) ? "BPE with byte fallback" : "BPE";
    l->merges = (int64_t)json_array_size(json_object_get(model, "merges"));
    read_pattern(l, json_object_get(l->root, "pre_tokenizer"));
    for (size_t i = 0; i < count_steps(normalizer, "normalizers"); i++) {
        const char *type =
            json_string_value(json_object_get(get_step(normalizer, "normalizers", i), "type"));
        ls_str_printf(&l->normalizer, "%s%s", i ? ", " : "", type ? type : "?");
    }
    LS_TRY(st, ls_str_status(&l->normalizer), out);
    st = name_pattern(l);
out:
    return st;
}

/* A token's text as people can read it on one line. */
static ls_status token_text(const ls_tokenizer *tok, int32_t id, ls_str *text)
{
    ls_status st = LS_OK;
    ls_tokenizer_stream stream;

    ls_str_clear(text);
    ls_tokenizer_stream_begin(&stream, tok);
    LS_TRY(st, ls_tokenizer_stream_feed(&stream, id, text), out);
    LS_TRY(st, ls_tokenizer_stream_end(&stream, text), out);
    for (size_t i = 0; i < text->len; i++)
        if ((unsigned char)text->p[i] < 0x20 || text->p[i] == 0x7f)
            text->p[i] = ' ';
out:
    return st;
}

enum { SHOWN_SPECIALS = 12 };

static ls_status put_special_tokens(const ls_tokenizer *tok, ls_str *text, ls_str *out)
{
    ls_status st = LS_OK;
    int shown = 0, all = 0;

    for (int32_t id = 0; id < ls_tokenizer_vocab(tok); id++) {
        if (!ls_tokenizer_is_special(tok, id) || ++all > SHOWN_SPECIALS)
            continue;
        LS_TRY(st, token_text(tok, id, text), out);
        ls_str_printf(out, "%s%s (%d)", shown++ ? "\n              " : "", text->p, (int)id);
    }
    if (all == 0)
        ls_str_append(out, "none");
    if (all > shown)
        ls_str_printf(out, "\n              and %d more", all - shown);
out:
    return st;
}

static ls_status put_token(const ls_tokenizer *tok, const char *label, int32_t id, ls_str *text,
                           ls_str *out)
{
    ls_status st = LS_OK;

    if (id < 0) {
        ls_str_printf(out, "  %-10s  none\n", label);
        return LS_OK;
    }
    LS_TRY(st, token_text(tok, id, text), out);
    ls_str_printf(out, "  %-10s  %s (%d)\n", label, text->p, (int)id);
out:
    return st;
}

static ls_status describe_text(const ls_tokenizer *tok, const layout *l, const char *name,
                               ls_str *out)
{
    ls_status st = LS_OK;
    char hex[LS_HASH_HEX];
    ls_str text;

    ls_str_init(&text);
    ls_hash_hex(ls_tokenizer_hash(tok), hex);
    ls_str_printf(out, "%s: %s%s\n  vocabulary  ", name, l->root ? "" : "tokenizer of ", l->kind);
    ls_cmd_data_put_count(out, ls_tokenizer_vocab(tok));
    ls_str_append(out, " tokens");
    if (l->root) {
        ls_str_append(out, ", ");
        ls_cmd_data_put_count(out, l->merges);
        ls_str_printf(out, " merges\n  pattern     %s\n  normalizer  %s",
                      l->pattern ? l->pattern : "none",
                      l->normalizer.len ? l->normalizer.p : "none");
    }
    ls_str_append(out, "\n  special     ");
    LS_TRY(st, put_special_tokens(tok, &text, out), out);
    ls_str_append_char(out, '\n');
    LS_TRY(st, put_token(tok, "begin", ls_tokenizer_bos(tok), &text, out), out);
    LS_TRY(st, put_token(tok, "end", ls_tokenizer_eos(tok), &text, out), out);
    ls_str_printf(out, "  chat        %s\n  hash        %s\n",
                  ls_tokenizer_chat_template(tok) ? "has a template" : "no template", hex);
out:
    ls_str_release(&text);
    return st;
}

static void put_json_id(ls_json *j, const char *key, int32_t id)
{
    if (id < 0)
        ls_json_put_str(j, key, NULL);
    else
        ls_json_put_int(j, key, id);
}

static ls_status describe_json(const ls_tokenizer *tok, const layout *l, const char *name,
                               ls_str *out)
{
    ls_status st = LS_OK;
    char hex[LS_HASH_HEX];
    ls_str text;
    ls_json j;

    ls_str_init(&text);
    ls_hash_hex(ls_tokenizer_hash(tok), hex);
    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "tokenizer", name);
    ls_json_put_str(&j, "kind", l->kind);
    ls_json_put_int(&j, "vocab", ls_tokenizer_vocab(tok));
    ls_json_put_int(&j, "merges", l->merges);
    ls_json_put_str(&j, "pattern", l->pattern);
    ls_json_put_str(&j, "normalizer", l->normalizer.len ? l->normalizer.p : NULL);
    put_json_id(&j, "bos", ls_tokenizer_bos(tok));
    put_json_id(&j, "eos", ls_tokenizer_eos(tok));
    ls_json_put_bool(&j, "chat_template", ls_tokenizer_chat_template(tok) != NULL);
    ls_json_put_str(&j, "hash", hex);
    ls_json_key(&j, "special");
    ls_json_open(&j, '{');
    for (int32_t id = 0; id < ls_tokenizer_vocab(tok); id++)
        if (ls_tokenizer_is_special(tok, id)) {
            LS_TRY(st, token_text(tok, id, &text), out);
            ls_json_put_int(&j, text.p, id);
        }
    ls_json_close(&j);
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
out:
    ls_str_release(&text);
    return st;
}

static ls_status describe(const ls_args *args, ls_str *out)
{
    static const char *const needs[] = {"vocab",     "out",   "pattern", "special",
                                        "min-count", "field", "utf8"};
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    layout l = {.root = NULL};
    const char *name = args->rest[0];

    ls_str_init(&l.normalizer);
    for (size_t i = 0; i < LS_COUNT(needs); i++)
        if (ls_args_has(args, needs[i])) {
            st = ls_fail(LS_EUSAGE, "--%s needs --train", needs[i]);
            ls_err_hint("Without --train the command describes a tokenizer.");
            goto out;
        }
    if (args->n_rest > 1) {
        st = ls_fail(LS_EUSAGE, "one tokenizer can be described at a time, not %d", args->n_rest);
        ls_err_hint("Add --train to train a tokenizer on these files.");
        goto out;
    }
    LS_TRY(st, ls_tokenizer_open(&tok, name), out);
    LS_TRY(st, read_layout(&l, name), out);
    LS_TRY(st,
           ls_args_has(args, "json") ? describe_json(tok, &l, name, out)
                                     : describe_text(tok, &l, name, out),
           out);
out:
    ls_tokenizer_free(tok);
    json_decref(l.root);
    ls_str_release(&l.normalizer);
    return st;
}

static ls_status run_tokenizer(const ls_args *args, ls_str *out)
{
    return (ls_args_has(args, "train") ? run_train : describe)(args, out);
}

/* --- tables ----------------------------------------------------------------------------------- */

static const ls_flag tokenizer_flags[] = {
    {"train", 0, NULL, false, "Train a tokenizer on the files named."},
    {"vocab", 0, "N", false, "Tokens to make: 256 bytes and special tokens are among them."},
    {"out", 'o', "FOLDER", false,
     "Where to write tokenizer.json and tokenizer_config.json; must not exist yet."},
    {"pattern", 0, "PATTERN", false,
     "How text is cut into words: gpt2, llama3, qwen2 or a regular expression; gpt2 unless given."},
    {"special", 0, "TOKEN", true, "A special token; " DEFAULT_SPECIAL " unless given."},
    {"min-count", 0, "N", false, "Merge only pairs that occur N times; 2 unless given."},
    {"field", 0, "NAME", false, "Field of a JSON line that holds the text; text unless given."},
    {"utf8", 0, "strict|replace", false,
     "What to do with bytes that are not UTF-8: strict stops there, replace puts U+FFFD."},
    LS_CMD_DATA_JSON_FLAG,
    LS_CMD_DATA_END_FLAGS};
const ls_command ls_cmd_tokenizer = {
    .name = "tokenizer",
    .summary = "train a tokenizer on text, or describe one",
    .arguments = "FOLDER | FILE ...",
    .about = "With --train, makes a byte-level BPE vocabulary of the text in the files: .txt, "
             ".jsonl, also as .gz or .zst, or \"builtin:stories\". Any text can be encoded with "
             "it, whatever it was trained on. The folder loads in transformers and in the "
             "tokenizers package, and its merges equal those that the package would find.\n"
             "A pattern in quotes names files as data.text does.\n"
             "Without --train, shows kind, vocabulary, pattern, special tokens and hash of the "
             "tokenizer in a folder.",
    .examples =
        "lineshaft data tokenizer --train --vocab 8192 -o tok corpus.txt  # writes tok/\n"
        "lineshaft data tokenizer --train --vocab 512 -o small builtin:stories  # to try it\n"
        "lineshaft data tokenizer tok  # what is in it",
    .flags = tokenizer_flags,
    .run = run_tokenizer};
