/* tokenizer_read.c -- a tokenizer.json: the model, the added tokens, and the bytes of every id.
 *
 * A file from outside: nothing in it is believed. Ids are bounded before anything is allocated by
 * them, and a merge must name tokens that exist. Two tokens with one id are refused: which of them
 * a model means cannot be known. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "base/file.h"
#include "base/mem.h"

typedef struct reader {
    ls_tokenizer *tok;
    ls_json_rules *rules;
    json_t *root, *vocab, *merges;
    const char **by_id; /* [vocab] the token as written, borrowed; NULL: a hole */
    ls_str raw[3];      /* texts in the making */
} reader;

static ls_status bad_id(const char *token, json_int_t id)
{
    return ls_fail(LS_EDATA, "the token \"%.60s\" has the id %lld, which is not 0 to %d", token,
                   (long long)id, LS_JSON_IDS - 1);
}

static ls_status load(reader *r, const char *path, ls_hash *hash_out)
{
    ls_status st = LS_OK;
    ls_str text;
    json_error_t error;

    ls_str_init(&text);
    LS_TRY(st, ls_file_read(path, LS_JSON_FILE_BYTES, &text), out);
    *hash_out = ls_hash_bytes(text.p, text.len);
    r->root = json_loadb(text.p, text.len, 0, &error);
    if (!r->root) {
        st = ls_fail(LS_EDATA, "\"%s\" is not JSON: %s (line %d, column %d)", path, error.text,
                     error.line, error.column);
        if (json_error_code(&error) == json_error_premature_end_of_input)
            ls_err_hint(
                "Its %lld bytes end in the middle: it is cut off. Copy or download it again.",
                (long long)text.len);
        else
            ls_err_hint(
                "Other kinds of tokenizers become one by "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) in transformers.");
    } else if (!json_is_object(r->root))
        st = ls_fail(LS_EDATA, "\"%s\" is not a tokenizer: it holds no object", path);
out:
    ls_str_release(&text);
    return st;
}

static bool is_set(const json_t *value)
{
    const char *text = json_string_value(value);

    return value && !json_is_null(value) && !json_is_false(value) && (!text || *text) &&
           !(json_is_number(value) && json_number_value(value) == 0);
}

/* The model must be a BPE without what changes its rules in ways that are not known here. */
static ls_status check_model(reader *r)
{
    static const char *const without[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    const json_t *model = json_object_get(r->root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));

    r->vocab = json_object_get(model, "vocab");
    r->merges = json_object_get(model, "merges");
    if (!json_is_object(model))
        return ls_fail(LS_EDATA, "the file has no \"model\": it is not a tokenizer.json");
    /* Files of early versions do not name the type; only a BPE has merges. */
    if (type ? strcmp(type, "BPE") != 0 : !json_is_array(r->merges)) {
        ls_status st = ls_fail(LS_EDATA, "the tokenizer's model is %s\"%.60s\", not \"BPE\"",
                               type ? "" : "of no type, ", type ? type : "");
        ls_err_hint("lineshaft reads byte pair encodings (BPE), as GPT-2, Llama, Qwen and Mistral "
                    "have them.");
        return st;
    }
    for (size_t i = 0; i < LS_COUNT(without); i++)
        if (is_set(json_object_get(model, without[i])))
            return ls_fail(LS_EDATA,
                           "the tokenizer's model uses \"%s\", which lineshaft does not know",
                           without[i]);
    if (!json_is_object(r->vocab) || !json_is_array(r->merges))
        return ls_fail(LS_EDATA,
                       "the tokenizer's model has no \"vocab\" object or no \"merges\" list");
    return LS_OK;
}

static ls_status see_id(const json_t *id, const char *token, json_int_t *most)
{
    json_int_t value = json_integer_value(id);

    if (!json_is_integer(id) || value < 0 || value >= LS_JSON_IDS)
        return bad_id(token, value);
    *most = value > *most ? value : *most;
    return LS_OK;
}

/* The highest id, and each token at its id. */
static ls_status index_ids(reader *r)
{
    json_t *added = json_object_get(r->root, "added_tokens"), *item;
    json_int_t most = -1;
    const char *token;
    ls_status st = LS_OK;
    size_t i;

    json_object_foreach(r->vocab, token, item) LS_TRY(st, see_id(item, token, &most), out);
    json_array_foreach(added, i, item)
    {
        token = json_string_value(json_object_get(item, "content"));
        if (!token || !*token)
            return ls_fail(LS_EDATA, "added token %zu of the tokenizer has no content", i + 1);
        LS_TRY(st, see_id(json_object_get(item, "id"), token, &most), out);
    }
    if (most < 0)
        return ls_fail(LS_EDATA, "the tokenizer has an empty vocabulary");
    r->tok->vocab = (int32_t)most + 1;
    r->by_id = ls_mem_array((size_t)r->tok->vocab, sizeof *r->by_id);
    if (!r->by_id)
        return LS_ENOMEM;
    json_object_foreach(r->vocab, token, item)
    {
        json_int_t id = json_integer_value(item);
        if (r->by_id[id])
            return ls_fail(LS_EDATA, "the tokens \"%.60s\" and \"%.60s\" have the same id %lld",
                           r->by_id[id], token, (long long)id);
        r->by_id[id] = token;
    }
out:
    return st;
}

/* A token of the file as the BPE has it; NULL: text never becomes it. */
static const ls_str *bpe_text(reader *r, const char *token, int which)
{
    ls_str *s = &r->raw[which];

    ls_str_clear(s);
    if (!r->rules->by_byte)
        ls_str_append(s, token);
    else if (!ls_byte_level_text(token, s))
        return NULL;
    return s;
}

static ls_status add_vocab(reader *r)
{
    for (int32_t id = 0; id < r->tok->vocab; id++) {
        const ls_str *s = r->by_id[id] ? bpe_text(r, r->by_id[id], 0) : NULL;
        if (!s)
            continue;
        ls_status st = ls_str_status(s);
        st = st != LS_OK ? st : ls_bpe_add_token(r->rules->bpe, id, s->p, s->len);
        if (st != LS_OK)
            return st;
    }
    return LS_OK;
}

static int32_t vocab_id(const reader *r, const char *token)
{
    const json_t *id = json_object_get(r->vocab, token);

    return id ? (int32_t)json_integer_value(id) : -1;
}

/* The two sides of a merge, written "a b" or ["a", "b"]; left points into raw[0]. */
static ls_status merge_sides(reader *r, const json_t *item, size_t i, const char **left,
                             const char **right)
{
    const char *text = json_string_value(item), *blank;

    if (json_is_array(item) && json_array_size(item) == 2) {
        *left = json_string_value(json_array_get(item, 0));
        *right = json_string_value(json_array_get(item, 1));
        if (*left && *right)
            return LS_OK;
    } else if (text && (blank = strchr(text, ' ')) && !strchr(blank + 1, ' ')) {
        ls_str_clear(&r->raw[0]);
        ls_str_append_bytes(&r->raw[0], text, (size_t)(blank - text));
        *left = r->raw[0].p;
        *right = blank + 1;
        return ls_str_status(&r->raw[0]);
    }
    return ls_fail(LS_EDATA, "merge %zu of the tokenizer is not two tokens", i + 1);
}

static ls_status add_merges(reader *r)
{
    ls_status st = LS_OK;
    const json_t *item;
    size_t i;

    json_array_foreach(r->merges, i, item)
    {
        const char *left = "", *right = "";
        LS_TRY(st, merge_sides(r, item, i, &left, &right), out);
        ls_str_clear(&r->raw[1]);
        ls_str_append(&r->raw[1], left);
        ls_str_append(&r->raw[1], right);
        LS_TRY(st, ls_str_status(&r->raw[1]), out);
        int32_t a = vocab_id(r, left), b = vocab_id(r, right), c = vocab_id(r, r->raw[1].p);
        if (a < 0 || b < 0 || c < 0)
            return ls_fail(LS_EDATA,
                           "merge %zu of the tokenizer, \"%.60s\" and \"%.60s\", names a token "
                           "that is not in the vocabulary",
                           i + 1, left, right);
        LS_TRY(st, ls_bpe_add_merge(r->rules->bpe, a, b, c), out);
    }
out:
    return st;
}

static bool model_flag(const reader *r, const char *key)
{
    return json_is_true(json_object_get(json_object_get(r->root, "model"), key));
}

static ls_status read_model(reader *r)
{
    const char *unk =
        json_string_value(json_object_get(json_object_get(r->root, "model"), "unk_token"));
    ls_bpe_args args = {.ids = r->tok->vocab,
                        .merges = (int64_t)json_array_size(r->merges),
                        .by_byte = r->rules->by_byte,
                        .ignore_merges = model_flag(r, "ignore_merges"),
                        .byte_fallback = model_flag(r, "byte_fallback"),
                        .fuse_unk = model_flag(r, "fuse_unk")};
    ls_status st = LS_OK;

    for (int32_t id = 0; id < r->tok->vocab; id++)
        args.text_bytes += r->by_id[id] ? (int64_t)strlen(r->by_id[id]) : 0;
    r->rules->keeps_merging = !args.ignore_merges;
    LS_TRY(st, ls_bpe_create(&r->rules->bpe, &args), out);
    LS_TRY(st, add_vocab(r), out);
    LS_TRY(st, add_merges(r), out);
    if (unk && *unk && vocab_id(r, unk) < 0)
        return ls_fail(LS_EDATA, "the tokenizer's unk_token \"%.60s\" is not in its vocabulary",
                       unk);
    LS_TRY(st, ls_bpe_finish(r->rules->bpe, unk && *unk ? vocab_id(r, unk) : -1), out);
    for (int b = 0; b < 256 && args.by_byte && args.byte_fallback; b++) {
        unsigned char byte = (unsigned char)b;
        if (ls_bpe_find(r->rules->bpe, &byte, 1) < 0)
            return ls_fail(LS_EDATA,
                           "the tokenizer has byte_fallback and ByteLevel, but no token for "
                           "byte %d",
                           b);
    }
out:
    return st;
}

static ls_status read_added_token(reader *r, const json_t *item, ls_added_token *t)
{
    const char *content = json_string_value(json_object_get(item, "content"));
    int32_t known = vocab_id(r, content);
    const json_t *normalized = json_object_get(item, "normalized");

    t->id = (int32_t)json_integer_value(json_object_get(item, "id"));
    t->single_word = json_is_true(json_object_get(item, "single_word"));
    t->lstrip = json_is_true(json_object_get(item, "lstrip"));
    t->rstrip = json_is_true(json_object_get(item, "rstrip"));
    t->special = json_is_true(json_object_get(item, "special"));
    t->normalized = json_is_boolean(normalized) ? json_is_true(normalized) : !t->special;
    if (known >= 0 && known != t->id)
        return ls_fail(LS_EDATA,
                       "the added token \"%.60s\" has the id %d, but the vocabulary says %d",
                       content, (int)t->id, (int)known);
    if (known < 0 && r->by_id[t->id] && strcmp(r->by_id[t->id], content) != 0)
        return ls_fail(LS_EDATA, "the tokens \"%.60s\" and \"%.60s\" have the same id %d",
                       r->by_id[t->id], content, (int)t->id);
    r->by_id[t->id] = content;
    t->content = t->match = ls_arena_strdup(&r->rules->arena, content);
    if (!t->content)
        return LS_ENOMEM;
    t->match_len = strlen(content);
    r->rules->special[t->id] = t->special;
    return LS_OK;
}

/* What a token looks like in a text that has been normalised. */
static ls_status normalise_token(ls_json_rules *rules, ls_norm_work *work, ls_added_token *t)
{
    const unsigned char *text = (const unsigned char *)t->content;
    size_t len = t->match_len;
    ls_status st = ls_norm_run(work, rules->norm, rules->n_norm, false, &text, &len);

    if (st != LS_OK)
        return st;
    char *copy = ls_arena_alloc(&rules->arena, len + 1);
    if (!copy)
        return LS_ENOMEM;
    memcpy(copy, text, len);
    t->match = copy;
    t->match_len = len;
    return LS_OK;
}

static ls_status read_added(reader *r)
{
    ls_json_rules *rules = r->rules;
    json_t *added = json_object_get(r->root, "added_tokens"), *item;
    ls_norm_work work;
    ls_status st = LS_OK;
    size_t i;

    ls_norm_init(&work);
    rules->special = ls_mem_array((size_t)r->tok->vocab, sizeof *rules->special);
    rules->added = ls_mem_array(json_array_size(added), sizeof *rules->added);
    if (!rules->special || !rules->added) {
        st = LS_ENOMEM;
        goto out;
    }
    ls_added_init(&rules->before, rules->added);
    ls_added_init(&rules->after, rules->added);
    json_array_foreach(added, i, item)
    {
        ls_added_token *t = &rules->added[rules->n_added];
        LS_TRY(st, read_added_token(r, item, t), out);
        if (t->normalized)
            LS_TRY(st, normalise_token(rules, &work, t), out);
        r->by_id[t->id] = t->match; /* decoded as it is found, so does the package */
        LS_TRY(st, ls_added_insert(t->normalized ? &rules->after : &rules->before, rules->n_added),
               out);
        rules->n_added++;
    }
out:
    ls_norm_release(&work);
    return st;
}

static ls_status fill_pieces(reader *r, ls_piece_table *table, bool first)
{
    int32_t n = r->tok->vocab;

    ls_str_init(&table->bytes);
    table->at = ls_mem_array((size_t)n + 1, sizeof *table->at);
    if (!table->at)
        return LS_ENOMEM;
    for (int32_t id = 0; id < n; id++) {
        if (r->by_id[id])
            ls_tokenizer_decode_token(r->rules->undo, r->rules->n_undo, r->by_id[id], first,
                                      &table->bytes);
        table->at[id + 1] = (int64_t)table->bytes.len;
    }
    return ls_str_status(&table->bytes);
}

static ls_status read_pieces(reader *r)
{
    ls_json_rules *rules = r->rules;
    ls_status st = fill_pieces(r, &rules->pieces, false);

    for (int i = 0; i < rules->n_undo && st == LS_OK; i++)
        if (rules->undo[i].kind == LS_TOKENIZER_DECODE_MARK && !rules->undo[i].keep_first)
            return fill_pieces(r, &rules->first, true);
    return st;
}

ls_status ls_json_read(ls_tokenizer *tok, ls_json_rules *rules, const char *path)
{
    reader r = {.tok = tok, .rules = rules};
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(r.raw); i++)
        ls_str_init(&r.raw[i]);
    LS_TRY(st, load(&r, path, &tok->hash), out);
    LS_TRY(st, check_model(&r), out);
    LS_TRY(st, index_ids(&r), out);
    LS_TRY(st, ls_json_read_steps(tok, rules, r.root), out);
    LS_TRY(st, read_model(&r), out);
    LS_TRY(st, read_added(&r), out);
    LS_TRY(st, read_pieces(&r), out);
    st = ls_json_plan_cuts(rules);
out:
    for (size_t i = 0; i < LS_COUNT(r.raw); i++)
        ls_str_release(&r.raw[i]);
    ls_mem_free(r.by_id);
    json_decref(r.root);
    return st;
}
