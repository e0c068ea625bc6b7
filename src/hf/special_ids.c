/* special_ids.c -- who says which token ends a text, and in which order that counts.
 *
 *   trained here on conversations   what ends a turn        in front of
 *   trained here on documents       the separator           in front of, unless config.json has it
 *   config.json, generation_config  their eos_token_id      in front of
 *   with --chat                     what ends a turn
 *   nothing of these                the tokenizer's end, else its separator
 *
 * Ids outside the model's vocabulary never occur and are left out. */
#include "hf/special_ids.h"

#include <jansson.h>
#include <limits.h>
#include "base/file.h"
#include "base/json_line.h"
#include "data/chat/chat.h"

enum { CONFIG_BYTES = 1 << 20 };

static bool has(const ls_special_ids *ids, int64_t id)
{
    for (int i = 0; i < ids->n_eos; i++)
        if (ids->eos[i] == id)
            return true;
    return false;
}

static void add(ls_special_ids *ids, int64_t vocab, int64_t id, bool front)
{
    if (id < 0 || id >= vocab || has(ids, id) || ids->n_eos == LS_SPECIAL_IDS_EOS)
        return;
    if (front)
        memmove(ids->eos + 1, ids->eos, (size_t)ids->n_eos * sizeof *ids->eos);
    ids->eos[front ? 0 : ids->n_eos] = id;
    ids->n_eos++;
}

/* Of generation_config.json, which may name more ends than config.json. */
static ls_status read_generation(const ls_hf_folder *f, int64_t vocab, ls_special_ids *ids)
{
    char path[PATH_MAX + 32];
    const char *origin = ls_hf_folder_origin(f);
    json_t *config = NULL;
    const json_t *id;
    json_error_t where;
    size_t k;
    ls_str text;
    ls_status st = LS_OK;

    snprintf(path, sizeof path, "%s/generation_config.json", origin);
    if (!*origin || !ls_file_exists(path))
        return LS_OK;
    ls_str_init(&text);
    LS_TRY(st, ls_file_read(path, CONFIG_BYTES, &text), out);
    config = ls_json_line_parse_file(text.p, text.len, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(config)) {
        st = ls_fail(LS_EDATA, "\"%s\" is not a JSON object: line %d: %s", path,
                     config ? 1 : where.line, config ? "another value" : where.text);
        goto out;
    }
    const json_t *eos = json_object_get(config, "eos_token_id");
    const json_t *pad = json_object_get(config, "pad_token_id");
    if (json_is_integer(eos))
        add(ids, vocab, json_integer_value(eos), false);
    json_array_foreach(eos, k, id) if (json_is_integer(id))
        add(ids, vocab, json_integer_value(id), false);
    if (ids->pad < 0 && json_is_integer(pad) && json_integer_value(pad) < vocab)
        ids->pad = json_integer_value(pad);
out:
    json_decref(config);
    ls_str_release(&text);
    return st;
}

/* What ends a turn by the template of this name. */
static ls_status read_turn(const ls_tokenizer *tok, const char *name, ls_special_ids *ids)
{
    ls_chat *chat = NULL;
    int32_t id;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, ls_chat_open(&chat, name, tok), out);
    LS_TRY(st, ls_chat_turn_end(chat, &text, &id), out);
    ids->turn = id;
    if (text.len < sizeof ids->turn_text)
        memcpy(ids->turn_text, text.p, text.len + 1);
out:
    ls_chat_close(chat);
    ls_str_release(&text);
    return st;
}

/* Pad as config.json had it, null included; else the tokenizer's. */
static int64_t pad_of(const ls_hf_config *config, const ls_tokenizer *tok)
{
    for (int i = 0; i < config->n_kept; i++)
        if (strcmp(config->kept[i].key, "pad_token_id") == 0 &&
            config->kept[i].kind == LS_HF_CONFIG_KEPT_INT)
            return (int64_t)config->kept[i].value;
    return tok ? ls_tokenizer_pad(tok) : -1;
}

ls_status ls_special_ids_find(const ls_hf_folder *f, const ls_tokenizer *tok, bool chat,
                              ls_special_ids *out)
{
    const ls_hf_config *config = ls_hf_folder_config(f);
    const ls_run *run = ls_hf_folder_run(f);
    const char *name = run->data.chat_template;
    /* The tokenizer may have more tokens than the run file's model says: then nothing is refused here. */
    int64_t vocab = run->model.vocab > 0 ? run->model.vocab : tok ? ls_tokenizer_vocab(tok) : 0;
    bool taught = ls_chat_is_meant(name);
    ls_special_ids ids = {.bos = config->bos, .pad = pad_of(config, tok), .turn = -1};
    ls_status st = LS_OK;

    for (int i = 0; i < config->n_eos; i++)
        add(&ids, vocab, config->eos[i], false);
    LS_TRY(st, read_generation(f, vocab, &ids), out);
    if (!tok)
        goto done;
    /* Training began its texts with the tokenizer's, which config.json may not know. */
    bool began = ls_hf_folder_is_trained(f) && ls_tokenizer_bos(tok) >= 0;
    if (began || (ids.bos < 0 && config->bos_unsaid))
        ids.bos = ls_tokenizer_bos(tok);
    if (ls_hf_folder_is_trained(f))
        add(&ids, vocab, ls_tokenizer_separator(tok), true);
    if (ids.n_eos == 0)
        add(&ids, vocab, ls_tokenizer_eos(tok), false);
    if (ids.n_eos == 0)
        add(&ids, vocab, ls_tokenizer_separator(tok), false);
    if (taught || (chat && ls_tokenizer_chat_template(tok)))
        LS_TRY(st, read_turn(tok, taught ? name : "auto", &ids), out);
    add(&ids, vocab, ids.turn, taught);
done:
    if (ids.pad >= vocab)
        ids.pad = -1;
    if (ids.bos >= vocab)
        ids.bos = -1;
    *out = ids;
out:
    return st;
}
