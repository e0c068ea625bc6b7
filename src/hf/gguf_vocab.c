/* gguf_vocab.c -- from tokenizer.json to the settings of a GGUF file.
 *
 * The file has been read by our own tokenizer first, so what stands in it is sound; here it is read
 * once more for its spelling. Scores of a SentencePiece vocabulary are made of the merges: a token
 * that is made later has a lower score. That is exact when merges and scores say the same, which is
 * checked: every way to make a token out of two is a merge, and the merges that make one token stand
 * in a row. An example, with the tokens a, b, c, ab and abc:
 *
 *   merges  a b, ab c        ab has score 0, abc has -1
 *   a bc    is no way to make abc, since bc is no token
 */
#include "hf/gguf_vocab.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include "base/mem.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"

#include <jansson.h>

/* What a token is to llama.cpp. */
typedef enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_ADDED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
} token_kind;

typedef struct token {
    const char *text; /* in the JSON; NULL: none has this id */
    token_kind kind;
    float score;
} token;

typedef struct job {
    ls_gguf_settings *settings;
    const char *folder, *name;
    const ls_hf_config *config;
    ls_str *notes;
    ls_tokenizer *tok;
    json_t *root, *model; /* tokenizer.json */
    int64_t vocab;
    token *tokens; /* owned, [vocab] */
} job;

static ls_status LS_PRINTF(1, 2) refuse(const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    ls_status st = ls_fail(LS_EUSAGE, "llama.cpp cannot use this tokenizer: %s", what);
    ls_err_hint("Export a Hugging Face folder instead: leave \".gguf\" out of the name.");
    return st;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static bool is_true(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);

    return value ? json_is_true(value) : otherwise;
}

static bool has_type(const json_t *step, const char *type)
{
    return strcmp(text_of(step, "type"), type) == 0;
}

/* A normalizer, pre-tokenizer or decoder is one step or a sequence of steps: step i, or NULL. */
static const json_t *step_of(const json_t *steps, const char *list, size_t i)
{
    if (!json_is_object(steps))
        return NULL;
    if (has_type(steps, "Sequence"))
        return json_array_get(json_object_get(steps, list), i);
    return i == 0 ? steps : NULL;
}

/* --- tokens ----------------------------------------------------------------------------------- */

static ls_status put_token(job *j, const char *text, json_int_t id, token_kind kind)
{
    if (id < 0 || id >= j->vocab)
        return refuse("the token \"%s\" has id %lld, and the model has %lld rows", text,
                      (long long)id, (long long)j->vocab);
    j->tokens[id] = (token){.text = text, .kind = kind};
    return LS_OK;
}

static bool is_byte_token(const char *text)
{
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>';
}

static ls_status read_tokens(job *j)
{
    bool bytes = is_true(j->model, "byte_fallback", false);
    const char *unk = text_of(j->model, "unk_token"), *text;
    const json_t *vocab = json_object_get(j->model, "vocab");
    const json_t *added = json_object_get(j->root, "added_tokens"), *item;
    json_t *id;
    size_t i;
    ls_status st = LS_OK;

    json_object_foreach((json_t *)(uintptr_t)vocab, text, id)
        LS_TRY(st,
               put_token(j, text, json_integer_value(id),
                         bytes && is_byte_token(text)     ? TOKEN_BYTE
                         : *unk && strcmp(text, unk) == 0 ? TOKEN_UNKNOWN
                                                          : TOKEN_NORMAL),
               out);
    json_array_foreach(added, i, item)
    {
        text = text_of(item, "content");
        LS_TRY(st,
               put_token(j, text, json_integer_value(json_object_get(item, "id")),
                         *unk && strcmp(text, unk) == 0    ? TOKEN_UNKNOWN
                         : is_true(item, "special", false) ? TOKEN_CONTROL
                                                           : TOKEN_ADDED),
               out);
    }
out:
    return st;
}

static void put_tokens(job *j, bool scores)
{
    ls_gguf_settings *s = j->settings;
    uint64_t n = (uint64_t)j->vocab;
    char name[32];

    ls_gguf_put_array(s, "tokenizer.ggml.tokens", LS_GGUF_TEXT, n);
    for (int64_t i = 0; i < j->vocab; i++) {
        const char *text = j->tokens[i].text;
        if (!text) {
            snprintf(name, sizeof name, "[PAD%lld]", (long long)i);
            text = name;
        }
        ls_gguf_add_text(s, text, strlen(text));
    }
    ls_gguf_put_array(s, "tokenizer.ggml.token_type", LS_GGUF_I32, n);
    for (int64_t i = 0; i < j->vocab; i++)
        ls_gguf_add_i32(s, j->tokens[i].text ? (int32_t)j->tokens[i].kind : TOKEN_UNUSED);
    if (!scores)
        return;
    ls_gguf_put_array(s, "tokenizer.ggml.scores", LS_GGUF_F32, n);
    for (int64_t i = 0; i < j->vocab; i++)
        ls_gguf_add_f32(s, j->tokens[i].score);
}

/* --- merges ----------------------------------------------------------------------------------- */

/* The two sides of merge i; "a b" or ["a", "b"] in the file. *len_out: bytes of the left one. */
static void sides_of(const json_t *merge, const char **left_out, size_t *len_out,
                     const char **right_out)
{
    if (json_is_array(merge)) {
        *left_out = json_string_value(json_array_get(merge, 0));
        *right_out = json_string_value(json_array_get(merge, 1));
        *len_out = strlen(*left_out);
        return;
    }
    *left_out = json_string_value(merge);
    *len_out = strcspn(*left_out, " ");
    *right_out = *left_out + *len_out + 1;
}

static ls_status put_merges(job *j)
{
    const json_t *merges = json_object_get(j->model, "merges"), *merge;
    const char *left, *right;
    size_t len, i;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    ls_gguf_put_array(j->settings, "tokenizer.ggml.merges", LS_GGUF_TEXT, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        sides_of(merge, &left, &len, &right);
        ls_str_clear(&text);
        ls_str_append_bytes(&text, left, len);
        ls_str_append_char(&text, ' ');
        ls_str_append(&text, right);
        ls_gguf_add_text(j->settings, text.p, text.len);
    }
    st = ls_str_status(&text);
    ls_str_release(&text);
    return st;
}

/* --- byte-level BPE --------------------------------------------------------------------------- */

static bool same_pattern(const char *pattern, const char *name)
{
    ls_pretokenizer *known = NULL;
    bool same = ls_pretokenizer_open(&known, name) == LS_OK &&
                strcmp(pattern, ls_pretokenizer_pattern(known)) == 0;

    ls_pretokenizer_free(known);
    return same;
}

/* The pattern in GPT-2's own spelling, which ls_pretokenizer_pattern() does not give. */
#define GPT2_SPELLED \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* What llama.cpp calls a pattern; NULL: nothing. whole: a piece that is a token stays whole. */
static const char *name_of_pattern(const char *pattern, bool whole)
{
    if (same_pattern(pattern, LS_PRETOKENIZER_LLAMA3))
        return whole ? "llama-bpe" : "dbrx";
    if (whole)
        return NULL;
    if (same_pattern(pattern, LS_PRETOKENIZER_QWEN2))
        return "qwen2";
    if (same_pattern(pattern, LS_PRETOKENIZER_GPT2) || strcmp(pattern, GPT2_SPELLED) == 0)
        return "gpt-2";
    return NULL;
}

/* The name of the pre-tokenizer: ByteLevel with its own pattern, with one split before it, or with
 * digits taken apart before it. */
static ls_status name_pre(const job *j, const char **name_out)
{
    const json_t *pre = json_object_get(j->root, "pre_tokenizer");
    const json_t *first = step_of(pre, "pretokenizers", 0);
    const json_t *second = step_of(pre, "pretokenizers", 1);
    const json_t *last = second ? second : first;
    bool whole = is_true(j->model, "ignore_merges", false);
    bool merges = json_array_size(json_object_get(j->model, "merges")) > 0;

    if (!last || !has_type(last, "ByteLevel") || step_of(pre, "pretokenizers", 2))
        return refuse("its pre-tokenizer is not ByteLevel with at most one step before it");
    if (is_true(last, "add_prefix_space", true))
        return refuse("it puts a blank before every text");
    if (!second && !merges)
        *name_out = "gpt-2"; /* nothing is merged, so it does not matter where texts are cut */
    else if (!second)
        *name_out = is_true(last, "use_regex", true) && !whole ? "gpt-2" : NULL;
    else if (has_type(first, "Digits"))
        *name_out =
            is_true(first, "individual_digits", false) && is_true(last, "use_regex", true) && !whole
                ? "smollm"
                : NULL;
    else if (has_type(first, "Split") && strcmp(text_of(first, "behavior"), "Isolated") == 0 &&
             !is_true(first, "invert", false) && !is_true(last, "use_regex", true))
        *name_out = name_of_pattern(text_of(json_object_get(first, "pattern"), "Regex"), whole);
    else
        *name_out = NULL;
    if (!*name_out)
        return refuse("it cuts texts by a pattern that is none of GPT-2, Llama 3, Qwen2 and "
                      "SmolLM");
    return LS_OK;
}

static ls_status put_byte_level(job *j)
{
    const json_t *normalizer = json_object_get(j->root, "normalizer");
    const json_t *step = step_of(normalizer, "normalizers", 0);
    const char *name = NULL;
    ls_status st = LS_OK;

    if (step && (!has_type(step, "NFC") || step_of(normalizer, "normalizers", 1)))
        return refuse("its normalizer \"%s\" is unknown there", text_of(step, "type"));
    if (step)
        ls_str_append(j->notes,
                      "llama.cpp does not normalize texts to NFC, as this tokenizer does\n");
    LS_TRY(st, name_pre(j, &name), out);
    ls_gguf_put_text(j->settings, "tokenizer.ggml.model", "gpt2");
    ls_gguf_put_text(j->settings, "tokenizer.ggml.pre", name);
    put_tokens(j, false);
    st = put_merges(j);
out:
    return st;
}

/* --- SentencePiece ---------------------------------------------------------------------------- */

#define BLANK "\xe2\x96\x81"

/* Whether a blank is put before a text, of a normalizer or pre-tokenizer that does nothing but
 * write blanks as BLANK. */
static ls_status blank_in_front(job *j, bool *front_out)
{
    const json_t *normalizer = json_object_get(j->root, "normalizer"), *step;
    const json_t *pre = json_object_get(j->root, "pre_tokenizer");
    bool front = false;

    for (size_t i = 0; (step = step_of(normalizer, "normalizers", i)); i++) {
        const char *pattern = text_of(json_object_get(step, "pattern"), "String");
        if (has_type(step, "Prepend") && strcmp(text_of(step, "prepend"), BLANK) == 0)
            front = true;
        else if (!has_type(step, "Replace") || strcmp(pattern, " ") != 0 ||
                 strcmp(text_of(step, "content"), BLANK) != 0)
            return refuse("its normalizer \"%s\" is unknown there", text_of(step, "type"));
    }
    step = step_of(pre, "pretokenizers", 0);
    if (step && (!has_type(step, "Metaspace") || step_of(pre, "pretokenizers", 1) ||
                 strcmp(text_of(step, "replacement"), BLANK) != 0 || is_true(step, "split", true)))
        return refuse("its pre-tokenizer \"%s\" is unknown there", text_of(step, "type"));
    const char *scheme = step ? text_of(step, "prepend_scheme") : "never";
    front |= strcmp(scheme, "never") != 0;
    if (strcmp(scheme, "first") == 0)
        ls_str_append(j->notes,
                      "llama.cpp puts a blank before the text behind a special token too\n");
    *front_out = front;
    return LS_OK;
}

/* Ways to make text out of two tokens. */
static int64_t ways_of(const json_t *vocab, const char *text, ls_str *left)
{
    int64_t n = 0;

    for (size_t len = 1; text[len]; len++) {
        if (((unsigned char)text[len] & 0xc0) == 0x80 || !json_object_get(vocab, text + len))
            continue;
        ls_str_clear(left);
        ls_str_append_bytes(left, text, len);
        n += json_object_get(vocab, left->p) != NULL;
    }
    return n;
}

/* Scores of what merges make, in their order. ways[id] counts the merges of a token. */
static ls_status score_merges(job *j, int32_t *ways, ls_str *whole)
{
    const json_t *vocab = json_object_get(j->model, "vocab"), *merge;
    const char *left, *right;
    size_t len, i;
    int64_t last = -1, order = 0;

    json_array_foreach(json_object_get(j->model, "merges"), i, merge)
    {
        sides_of(merge, &left, &len, &right);
        ls_str_clear(whole);
        ls_str_append_bytes(whole, left, len);
        ls_str_append(whole, right);
        if (whole->failed)
            return LS_ENOMEM;
        int64_t id = json_integer_value(json_object_get(vocab, whole->p));
        if (id != last && ways[id] > 0)
            return refuse("the merges that make \"%s\" do not stand in a row, so it is not one of "
                          "SentencePiece",
                          whole->p);
        if (id != last)
            j->tokens[id].score = -(float)order++;
        ways[id]++;
        last = id;
    }
    return LS_OK;
}

static ls_status score(job *j)
{
    const json_t *vocab = json_object_get(j->model, "vocab");
    int32_t *ways = ls_mem_array((size_t)j->vocab, sizeof *ways);
    const char *text;
    json_t *id;
    ls_str buffer;
    ls_status st = LS_ENOMEM;

    ls_str_init(&buffer);
    if (!ways)
        goto out;
    LS_TRY(st, score_merges(j, ways, &buffer), out);
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id)
    {
        json_int_t n = json_integer_value(id);
        if (j->tokens[n].kind == TOKEN_NORMAL && ways_of(vocab, text, &buffer) > ways[n]) {
            st = refuse("\"%s\" can be made of two tokens that no merge joins, so it is not one of "
                        "SentencePiece",
                        text);
            goto out;
        }
    }
    st = ls_str_status(&buffer);
out:
    ls_str_release(&buffer);
    ls_mem_free(ways);
    return st;
}

static ls_status put_sentence_piece(job *j)
{
    bool front = false;
    ls_status st = LS_OK;

    LS_TRY(st, blank_in_front(j, &front), out);
    LS_TRY(st, score(j), out);
    ls_gguf_put_text(j->settings, "tokenizer.ggml.model", "llama");
    ls_gguf_put_text(j->settings, "tokenizer.ggml.pre", "default");
    put_tokens(j, true);
    ls_gguf_put_bool(j->settings, "tokenizer.ggml.add_space_prefix", front);
out:
    return st;
}

/* --- special tokens --------------------------------------------------------------------------- */

static void put_id(job *j, const char *key, int64_t id)
{
    if (id >= 0 && id < j->vocab)
        ls_gguf_put_u32(j->settings, key, (uint32_t)id);
}

/* Byte 0 as byte-level tokenizers write it (U+0100). Texts do not have it, so it can be the end of a
 * model that has none: llama.cpp would take token 11. */
#define BYTE_0 "\xc4\x80"

/* What our own tokenizer puts around a text says whether llama.cpp has to. */
static ls_status put_around(job *j)
{
    int64_t bos = ls_tokenizer_bos(j->tok), eos = ls_tokenizer_eos(j->tok);
    ls_tokens ids;
    ls_status st;

    ls_tokens_init(&ids);
    LS_TRY(st, ls_tokenizer_encode(j->tok, "", 0, LS_ENCODE_TEMPLATE, &ids), out);
    bool front = ids.count > 0 && ids.ids[0] == bos;
    bool back = ids.count > front && ids.ids[ids.count - 1] == eos;
    if (ids.count != front + back) {
        st = refuse("it puts %lld tokens around a text", (long long)ids.count);
        goto out;
    }
    /* llama.cpp adds the token of this id, whatever config.json says. */
    put_id(j, "tokenizer.ggml.bos_token_id", front || j->config->bos < 0 ? bos : j->config->bos);
    ls_gguf_put_bool(j->settings, "tokenizer.ggml.add_bos_token", front);
    ls_gguf_put_bool(j->settings, "tokenizer.ggml.add_eos_token", back);
out:
    ls_tokens_release(&ids);
    return st;
}

static ls_status put_special(job *j)
{
    const ls_hf_config *c = j->config;
    const char *unk = text_of(j->model, "unk_token");
    const char *chat = ls_tokenizer_chat_template(j->tok);
    int64_t eos = c->n_eos ? c->eos[0] : ls_tokenizer_eos(j->tok);

    if (eos < 0)
        eos = ls_tokenizer_find(j->tok, BYTE_0);
    put_id(j, "tokenizer.ggml.eos_token_id", eos);
    if (c->n_eos > 1)
        put_id(j, "tokenizer.ggml.eot_token_id", c->eos[1]);
    if (c->n_eos > 2)
        put_id(j, "tokenizer.ggml.eom_token_id", c->eos[2]);
    if (*unk)
        put_id(j, "tokenizer.ggml.unknown_token_id", ls_tokenizer_find(j->tok, unk));
    for (int i = 0; i < c->n_kept; i++)
        if (strcmp(c->kept[i].key, "pad_token_id") == 0 && c->kept[i].kind == LS_HF_CONFIG_KEPT_INT)
            put_id(j, "tokenizer.ggml.padding_token_id", (int64_t)c->kept[i].value);
    if (chat)
        ls_gguf_put_text(j->settings, "tokenizer.chat_template", chat);
    return put_around(j);
}

/* A model whose name has "phi-3" loses white space behind special tokens, and must have these. */
static bool can_be_phi3(const job *j)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<|endoftext|>"};

    for (size_t i = 0; i < LS_COUNT(tokens); i++)
        if (ls_tokenizer_find(j->tok, tokens[i]) < 0)
            return false;
    return true;
}

/* Whether that is what the tokenizer does: the last three keep the white space, "</s>" is in no text. */
static bool strips_as_phi3(const json_t *item)
{
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    const char *text = text_of(item, "content");
    bool kept = false;

    for (size_t i = 0; i < LS_COUNT(keep); i++)
        kept |= strcmp(text, keep[i]) == 0;
    return !is_true(item, "lstrip", false) &&
           (strcmp(text, "</s>") == 0 || is_true(item, "rstrip", false) != kept);
}

/* llama.cpp knows by the name alone whether white space behind special tokens is left out. */
static void put_name(job *j)
{
    const json_t *item;
    bool strips = false, alike = can_be_phi3(j);
    bool named = strcasestr(j->name, "phi-3") || strcasestr(j->name, "phi3");
    size_t i;
    ls_str name;

    json_array_foreach(json_object_get(j->root, "added_tokens"), i, item)
    {
        strips |= is_true(item, "lstrip", false) || is_true(item, "rstrip", false);
        alike &= strips_as_phi3(item);
    }
    ls_str_init(&name);
    if (strips && alike && !named)
        ls_str_printf(&name, "%s (phi-3)", j->name);
    else
        ls_str_append(&name, named && !can_be_phi3(j) ? "model" : j->name);
    if (strips && !alike && !(named && can_be_phi3(j)))
        ls_str_append(j->notes,
                      "llama.cpp keeps white space beside special tokens, which this tokenizer "
                      "leaves out\n");
    ls_gguf_put_text(j->settings, "general.name", ls_str_status(&name) == LS_OK ? name.p : j->name);
    ls_str_release(&name);
}

/* --- the whole -------------------------------------------------------------------------------- */

static ls_status read_json(job *j)
{
    char path[PATH_MAX + 32];
    json_error_t error;

    snprintf(path, sizeof path, "%s/tokenizer.json", j->folder);
    j->root = json_load_file(path, 0, &error);
    if (!j->root)
        return ls_fail(LS_EDATA, "\"%s\": %s", path, error.text);
    j->model = json_object_get(j->root, "model");
    if (*text_of(j->model, "continuing_subword_prefix") || *text_of(j->model, "end_of_word_suffix"))
        return refuse("tokens inside and at the end of a word are marked");
    return LS_OK;
}

ls_status ls_gguf_vocab_put(ls_gguf_settings *settings, const char *folder, int64_t vocab,
                            const ls_hf_config *config, const char *name, ls_str *notes)
{
    job j = {.settings = settings,
             .folder = folder,
             .config = config,
             .notes = notes,
             .vocab = vocab,
             .name = name};
    ls_status st;

    LS_TRY(st, ls_tokenizer_open(&j.tok, folder), out);
    LS_TRY(st, read_json(&j), out);
    j.tokens = ls_mem_array((size_t)vocab, sizeof *j.tokens);
    if (!j.tokens) {
        st = LS_ENOMEM;
        goto out;
    }
    put_name(&j);
    LS_TRY(st, read_tokens(&j), out);
    LS_TRY(st,
           is_true(j.model, "byte_fallback", false) ? put_sentence_piece(&j) : put_byte_level(&j),
           out);
    st = put_special(&j);
out:
    ls_mem_free(j.tokens);
    json_decref(j.root);
    ls_tokenizer_free(j.tok);
    return st;
}
