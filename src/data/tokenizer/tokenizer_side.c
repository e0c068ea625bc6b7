/* tokenizer_side.c -- what the files next to a tokenizer.json add: which token begins a text, which
 * ends it, and the chat template.
 *
 * tokenizer_config.json comes first, then special_tokens_map.json, then the usual names; between texts
 * stands what ends one, or what the model's config.json names. A null in a file is an answer ("there
 * is none"), a missing key is not. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "base/file.h"
#include "base/json_line.h"

enum { SIDE_BYTES = 16 << 20 };

static ls_status load(const char *folder, const char *name, json_t **out)
{
    ls_status st = LS_OK;
    ls_str path, text;
    json_error_t error;
    ls_json_line_found unread; /* transformers writes 31 digits: model_max_length */

    *out = NULL;
    ls_str_init(&path);
    ls_str_init(&text);
    ls_str_printf(&path, "%s/%s", folder, name);
    LS_TRY(st, ls_str_status(&path), out);
    if (!ls_file_exists(path.p))
        goto out;
    LS_TRY(st, ls_file_read(path.p, SIDE_BYTES, &text), out);
    *out = ls_json_line_parse(text.p, text.len, (const char *const[]){NULL}, &unread, &error);
    if (!*out)
        st = ls_fail(LS_EDATA, "\"%s\" is not JSON: %s (line %d, column %d)", path.p, error.text,
                     error.line, error.column);
out:
    ls_str_release(&path);
    ls_str_release(&text);
    return st;
}

/* Set *id_out from a token written as a text or as an object; true when the file gives an answer.
 */
static bool answer(const ls_tokenizer *tok, const json_t *file, const char *key, int32_t *id_out)
{
    const json_t *value = json_object_get(file, key);
    const char *text =
        json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);

    if (!value)
        return false;
    *id_out = text ? ls_json_find(tok, text) : -1;
    return true;
}

static int32_t choose(const ls_tokenizer *tok, json_t *const files[2], const char *key,
                      const char *const *names)
{
    int32_t id = -1;

    for (int i = 0; i < 2; i++)
        if (answer(tok, files[i], key, &id))
            return id;
    for (; *names && id < 0; names++)
        id = ls_json_find(tok, *names);
    return id;
}

/* A text, or the one named "default" of a list. */
static const char *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *item;
    size_t i;

    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(item, "template"));
    }
    return json_string_value(value);
}

static ls_status read_template(ls_tokenizer *tok, ls_json_rules *rules, const char *folder,
                               const json_t *config)
{
    ls_status st = LS_OK;
    ls_str path, text;
    const char *found = template_of(config);

    ls_str_init(&path);
    ls_str_init(&text);
    ls_str_printf(&path, "%s/chat_template.jinja", folder);
    LS_TRY(st, ls_str_status(&path), out);
    if (ls_file_exists(path.p)) {
        LS_TRY(st, ls_file_read(path.p, SIDE_BYTES, &text), out);
        found = text.p;
    }
    if (found) {
        tok->chat_template = ls_arena_strdup(&rules->arena, found);
        st = tok->chat_template ? LS_OK : LS_ENOMEM;
    }
out:
    ls_str_release(&path);
    ls_str_release(&text);
    return st;
}

/* Where no file of the tokenizer names an end, the one that the model's config.json names separates texts: our own exports of
 * models that were trained on bytes have no other. */
static ls_status read_separator(ls_tokenizer *tok, const char *folder)
{
    json_t *config = NULL;
    ls_status st = LS_OK;

    tok->separator = tok->eos >= 0 ? tok->eos : ls_json_find(tok, "<|endoftext|>");
    if (tok->separator >= 0)
        return LS_OK;
    LS_TRY(st, load(folder, "config.json", &config), out);
    const json_t *id = json_object_get(config, "eos_token_id");
    id = json_is_array(id) ? json_array_get(id, 0) : id;
    if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < tok->vocab)
        tok->separator = (int32_t)json_integer_value(id);
out:
    json_decref(config);
    return st;
}

ls_status ls_json_read_side(ls_tokenizer *tok, ls_json_rules *rules, const char *folder)
{
    static const char *const bos[] = {"<|begin_of_text|>", "<s>", NULL};
    static const char *const eos[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>",
                                      NULL};
    json_t *files[2] = {NULL, NULL};
    ls_status st = LS_OK;
    char values[64];

    LS_TRY(st, load(folder, "tokenizer_config.json", &files[0]), out);
    LS_TRY(st, load(folder, "special_tokens_map.json", &files[1]), out);
    tok->bos = choose(tok, files, "bos_token", bos);
    tok->eos = choose(tok, files, "eos_token", eos);
    tok->pad = choose(tok, files, "pad_token", (const char *const[]){NULL});
    LS_TRY(st, read_separator(tok, folder), out);
    LS_TRY(st, read_template(tok, rules, folder, files[0]), out);
    /* The separator decides ids in a shard, so it belongs to what the hash names. */
    int n = snprintf(values, sizeof values, "%d %d %d json 1", (int)tok->bos, (int)tok->eos,
                     (int)tok->separator);
    ls_hash_stream stream;
    ls_hash_begin(&stream);
    ls_hash_add(&stream, &tok->hash, sizeof tok->hash);
    ls_hash_add(&stream, values, (size_t)n);
    tok->hash = ls_hash_end(&stream);
out:
    json_decref(files[0]);
    json_decref(files[1]);
    return st;
}
