/* bpe_train_write.c -- a trained BPE as the files that the world reads.
 *
 * tokenizer.json has the fields of the `tokenizers` package in its order, tokenizer_config.json
 * what transformers wants to know beside it. The folder appears with both, and only in the place of
 * an empty one, so an earlier tokenizer cannot be lost (base/new_folder.h).
 *
 * Merges are written as "a b", which every version of the package reads: no token has a space in
 * it, since a space is spelled U+0120. Only where a line would begin with "#version" they are
 * arrays, because the package passes over such lines. */
#include "data/tokenizer/bpe_train_impl.h"

#include <limits.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/new_folder.h"

static void spell_token(const ls_bpe_train *train, int32_t id, ls_str *out)
{
    const ls_bpe_train_token *token = &train->tokens[id];

    ls_bpe_train_spell(out, train->bytes.p + token->at, (size_t)token->len);
}

ls_status ls_bpe_train_merge(const ls_bpe_train *train, int32_t i, ls_str *out)
{
    LS_BUG_IF(i < 0 || i >= train->stats.merges, "merge %d of %d", (int)i,
              (int)train->stats.merges);
    ls_bpe_train_pair of = train->tokens[LS_BPE_TRAIN_BYTES + i].of;
    spell_token(train, of.left, out);
    ls_str_append_char(out, ' ');
    spell_token(train, of.right, out);
    return ls_str_status(out);
}

/* --- tokenizer.json --------------------------------------------------------------------------- */

/* The fields of an added token; a key "id" unless id is negative. */
static void put_special(ls_json *j, int32_t id, const char *content)
{
    ls_json_open(j, '{');
    if (id >= 0)
        ls_json_put_int(j, "id", id);
    ls_json_put_str(j, "content", content);
    ls_json_put_bool(j, "single_word", false);
    ls_json_put_bool(j, "lstrip", false);
    ls_json_put_bool(j, "rstrip", false);
    ls_json_put_bool(j, "normalized", false);
    ls_json_put_bool(j, "special", true);
    ls_json_close(j);
}

static void put_byte_level(ls_json *j, bool trim_offsets, bool use_regex)
{
    ls_json_open(j, '{');
    ls_json_put_str(j, "type", "ByteLevel");
    ls_json_put_bool(j, "add_prefix_space", false);
    ls_json_put_bool(j, "trim_offsets", trim_offsets);
    ls_json_put_bool(j, "use_regex", use_regex);
    ls_json_close(j);
}

static void put_pre_tokenizer(ls_json *j, const ls_bpe_train *train)
{
    if (train->gpt2 || train->uncut) {
        put_byte_level(j, true, train->gpt2);
        return;
    }
    ls_json_open(j, '{');
    ls_json_put_str(j, "type", "Sequence");
    ls_json_put_open(j, "pretokenizers", '[');
    ls_json_open(j, '{');
    ls_json_put_str(j, "type", "Split");
    ls_json_put_open(j, "pattern", '{');
    ls_json_put_str(j, "Regex", train->pattern);
    ls_json_close(j);
    ls_json_put_str(j, "behavior", "Isolated");
    ls_json_put_bool(j, "invert", false);
    ls_json_close(j);
    put_byte_level(j, true, false);
    ls_json_close(j);
    ls_json_close(j);
}

static void put_merges(ls_json *j, const ls_bpe_train *train, ls_str *line)
{
    bool arrays = false;

    for (int32_t i = 0; i < train->stats.merges; i++) {
        ls_str_clear(line);
        spell_token(train, train->tokens[LS_BPE_TRAIN_BYTES + i].of.left, line);
        arrays = arrays || strncmp(line->p, "#version", 8) == 0;
    }
    ls_json_open(j, '[');
    for (int32_t i = 0; i < train->stats.merges; i++) {
        ls_str_clear(line);
        if (!arrays) {
            ls_bpe_train_merge(train, i, line);
            ls_json_str(j, line->p);
            continue;
        }
        ls_json_open(j, '[');
        spell_token(train, train->tokens[LS_BPE_TRAIN_BYTES + i].of.left, line);
        ls_json_str(j, line->p);
        ls_str_clear(line);
        spell_token(train, train->tokens[LS_BPE_TRAIN_BYTES + i].of.right, line);
        ls_json_str(j, line->p);
        ls_json_close(j);
    }
    ls_json_close(j);
}

static void put_model(ls_json *j, const ls_bpe_train *train, ls_str *line)
{
    ls_json_open(j, '{');
    ls_json_put_str(j, "type", "BPE");
    ls_json_put_str(j, "dropout", NULL);
    ls_json_put_str(j, "unk_token", NULL);
    ls_json_put_str(j, "continuing_subword_prefix", NULL);
    ls_json_put_str(j, "end_of_word_suffix", NULL);
    ls_json_put_bool(j, "fuse_unk", false);
    ls_json_put_bool(j, "byte_fallback", false);
    ls_json_put_bool(j, "ignore_merges", false);
    ls_json_put_open(j, "vocab", '{');
    for (int32_t id = 0; id < train->n_tokens; id++) {
        ls_str_clear(line);
        spell_token(train, id, line);
        ls_json_put_int(j, line->p, id);
    }
    ls_json_close(j);
    ls_json_key(j, "merges");
    put_merges(j, train, line);
    ls_json_close(j);
}

/* line: for the text of one token at a time; the caller has checked that the longest fits. */
static void put_tokenizer(const ls_bpe_train *train, ls_str *out, ls_str *line)
{
    ls_json j;

    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "version", "1.0");
    ls_json_put_str(&j, "truncation", NULL);
    ls_json_put_str(&j, "padding", NULL);
    ls_json_put_open(&j, "added_tokens", '[');
    for (int i = 0; i < train->n_specials; i++)
        put_special(&j, train->n_tokens + i, train->specials[i]);
    ls_json_close(&j);
    ls_json_put_str(&j, "normalizer", NULL);
    ls_json_key(&j, "pre_tokenizer");
    put_pre_tokenizer(&j, train);
    ls_json_key(&j, "post_processor");
    if (train->uncut)
        ls_json_str(&j, NULL);
    else
        put_byte_level(&j, false, false);
    ls_json_key(&j, "decoder");
    put_byte_level(&j, true, false);
    ls_json_key(&j, "model");
    put_model(&j, train, line);
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
}

/* --- tokenizer_config.json -------------------------------------------------------------------- */

/* The first of the names that is a special token. */
static const char *find_named(const ls_bpe_train *train, const char *const *names)
{
    for (; *names; names++)
        for (int i = 0; i < train->n_specials; i++)
            if (strcmp(train->specials[i], *names) == 0)
                return *names;
    return NULL;
}

/* Which special token begins and which ends a text: the one with a known name, else the first, as
 * GPT-2 uses its only one for both. */
static void put_config(const ls_bpe_train *train, ls_str *out)
{
    static const char *const ends[] = {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", NULL};
    static const char *const begins[] = {"<s>", "<|begin_of_text|>", "<bos>", NULL};
    const char *eos = find_named(train, ends), *bos = find_named(train, begins);
    ls_json j;

    if (!eos && train->n_specials)
        eos = train->specials[0];
    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_bool(&j, "add_prefix_space", false);
    ls_json_put_open(&j, "added_tokens_decoder", '{');
    for (int i = 0; i < train->n_specials; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", (int)train->n_tokens + i);
        ls_json_key(&j, id);
        put_special(&j, -1, train->specials[i]);
    }
    ls_json_close(&j);
    if (eos)
        ls_json_put_str(&j, "bos_token", bos ? bos : eos);
    ls_json_put_bool(&j, "clean_up_tokenization_spaces", false);
    if (eos)
        ls_json_put_str(&j, "eos_token", eos);
    ls_json_put_num(&j, "model_max_length", 1e30); /* what transformers writes for "no limit" */
    ls_json_put_str(&j, "tokenizer_class", "PreTrainedTokenizerFast");
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
}

/* --- the folder ------------------------------------------------------------------------------- */

static ls_status refuse_folder(const char *folder, const char *why)
{
    ls_status st = ls_fail(LS_EUSAGE, "cannot write a tokenizer to \"%s\": %s", folder, why);

    ls_err_hint("Name a folder that does not exist yet, or remove this one.");
    return st;
}

ls_status ls_bpe_train_check_folder(const char *folder)
{
    struct stat info;

    if (!*folder)
        return refuse_folder(folder, "the name is empty");
    if (lstat(folder, &info) != 0)
        return LS_OK;
    if (!S_ISDIR(info.st_mode))
        return refuse_folder(folder, "there is a file of that name");
    return ls_new_folder_is_empty(folder) ? LS_OK
                                          : refuse_folder(folder, "the folder is not empty");
}

static ls_status write_file(const char *folder, const char *name, const ls_str *text)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return ls_file_write_atomic(path, text->p, text->len);
}

static ls_status write_folder(const char *name, const ls_str *tokenizer, const ls_str *config)
{
    ls_status st = LS_OK;
    ls_new_folder folder = {.path = ""};

    LS_TRY(st, ls_new_folder_begin(&folder, name), out);
    LS_TRY(st, write_file(folder.path, "tokenizer.json", tokenizer), out);
    LS_TRY(st, write_file(folder.path, "tokenizer_config.json", config), out);
    st = ls_new_folder_commit(&folder);
out:
    ls_new_folder_drop(&folder);
    return st;
}

ls_status ls_bpe_train_write(const ls_bpe_train *train, const char *folder)
{
    ls_status st = LS_OK;
    ls_str tokenizer, config, line;
    size_t longest = 0;

    ls_str_init(&tokenizer);
    ls_str_init(&config);
    ls_str_init(&line);
    LS_TRY(st, ls_bpe_train_check_folder(folder), out);
    for (int32_t id = 0; id < train->n_tokens; id++)
        longest = (size_t)ls_max_i64((int64_t)longest, train->tokens[id].len);
    ls_str_reserve(&line, 4 * longest + 16); /* two tokens, at most two bytes for each byte */
    LS_TRY(st, ls_str_status(&line), out);
    put_tokenizer(train, &tokenizer, &line);
    put_config(train, &config);
    LS_TRY(st, ls_str_status(&tokenizer), out);
    LS_TRY(st, ls_str_status(&config), out);
    st = write_folder(folder, &tokenizer, &config);
out:
    ls_str_release(&tokenizer);
    ls_str_release(&config);
    ls_str_release(&line);
    return st;
}

ls_status ls_bpe_train_write_bytes(const char *folder)
{
    static const char config[] = "{\n"
                                 "  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                 "  \"clean_up_tokenization_spaces\": false\n"
                                 "}\n";
    ls_bpe_train_token tokens[LS_BPE_TRAIN_BYTES];
    ls_bpe_train train = {.tokens = tokens, .n_tokens = LS_BPE_TRAIN_BYTES, .uncut = true};
    ls_str text, line;
    ls_status st;

    ls_str_init(&train.bytes);
    ls_str_init(&text);
    ls_str_init(&line);
    ls_str_reserve(&line, 16);
    for (int b = 0; b < LS_BPE_TRAIN_BYTES; b++) {
        ls_str_append_char(&train.bytes, (char)b);
        tokens[b] = (ls_bpe_train_token){.at = (uint64_t)b, .len = 1};
    }
    LS_TRY(st, ls_str_status(&line), out);
    LS_TRY(st, ls_str_status(&train.bytes), out);
    put_tokenizer(&train, &text, &line);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, write_file(folder, "tokenizer.json", &text), out);
    ls_str_clear(&text);
    ls_str_append(&text, config);
    LS_TRY(st, ls_str_status(&text), out);
    st = write_file(folder, "tokenizer_config.json", &text);
out:
    ls_str_release(&train.bytes);
    ls_str_release(&text);
    ls_str_release(&line);
    return st;
}
