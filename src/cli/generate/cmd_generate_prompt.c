/* cmd_generate_prompt.c -- from what the user gave to the tokens that the model reads. */
#include "cli/generate/cmd_generate.h"

#include <jansson.h>
#include <time.h>
#include "base/file.h"
#include "data/chat/chat.h"
#include "data/tokenizer/utf8.h"

enum { PROMPT_BYTES = 64 << 20 };

ls_status ls_generate_read_prompt(const ls_args *args, ls_str *prompt_out)
{
    const char *text = ls_args_value(args, "prompt"), *file = ls_args_value(args, "prompt-file");

    if (file)
        return ls_file_read(strcmp(file, "-") == 0 ? "/dev/stdin" : file, PROMPT_BYTES, prompt_out);
    ls_str_append(prompt_out, text ? text : "");
    return ls_str_status(prompt_out);
}

/* The prompt as what a user says, written out up to where the answer begins: by the template that
 * the run was trained with, otherwise by the tokenizer's own. */
static ls_status write_chat(const ls_generate_model *m, const ls_str *prompt, ls_str *out)
{
    const char *name = ls_hf_folder_run(m->folder)->data.chat_template;
    ls_chat *chat = NULL;
    json_t *object = NULL;
    ls_status st;

    if (ls_utf8_valid(prompt->p, prompt->len) != prompt->len)
        return ls_fail(LS_EDATA, "the prompt is not UTF-8, which --chat needs");
    if (!ls_chat_is_meant(name) && !ls_tokenizer_chat_template(m->tokenizer)) {
        st = ls_fail(LS_EUSAGE, "--chat needs a chat template, but the model's tokenizer has none");
        ls_err_hint("It is no chat model, or its tokenizer_config.json is missing.");
        return st;
    }
    LS_TRY(st, ls_chat_open(&chat, ls_chat_is_meant(name) ? name : "auto", m->tokenizer), out);
    object = json_pack("{s:[{s:s,s:s%}]}", "messages", "role", "user", "content", prompt->p,
                       prompt->len);
    if (!object) {
        st = ls_fail(LS_ENOMEM, "out of memory");
        goto out;
    }
    st = ls_chat_prompt(chat, object, "the prompt", (int64_t)time(NULL), out);
out:
    ls_chat_close(chat);
    json_decref(object);
    return st;
}

static ls_status encode_text(const ls_generate_model *m, const ls_generate_settings *s,
                             const ls_str *prompt, ls_tokens *ids_out)
{
    ls_status st;
    ls_str chat;

    if (!s->chat)
        return ls_tokenizer_encode(m->tokenizer, prompt->p, prompt->len,
                                   LS_ENCODE_TEMPLATE | LS_ENCODE_SPECIAL, ids_out);
    ls_str_init(&chat);
    LS_TRY(st, write_chat(m, prompt, &chat), out);
    /* A chat template writes the first token of a text itself. */
    st = ls_tokenizer_encode(m->tokenizer, chat.p, chat.len, LS_ENCODE_SPECIAL, ids_out);
out:
    ls_str_release(&chat);
    return st;
}

ls_status ls_generate_encode(const ls_generate_model *m, const ls_generate_settings *s,
                             const ls_str *prompt, ls_tokens *ids_out)
{
    int64_t context = s->context ? s->context : m->model.shape.T;
    int64_t most = ls_hf_folder_positions(m->folder);
    ls_status st;

    if (context > most)
        return ls_fail(LS_EUSAGE, "--context is %lld, but the model has %lld positions",
                       (long long)context, (long long)most);
    LS_TRY(st, encode_text(m, s, prompt, ids_out), out);
    if (ids_out->count == 0) { /* no prompt: begin as after the end of a document */
        if (ls_tokenizer_separator(m->tokenizer) < 0) {
            st = ls_fail(LS_EUSAGE,
                         "the tokenizer \"%s\" has no token that ends a text, so nothing "
                         "can be generated without a prompt",
                         ls_tokenizer_name(m->tokenizer));
            ls_err_hint("Give a text with --prompt.");
            goto out;
        }
        LS_TRY(st, ls_tokens_reserve(ids_out, 1), out);
        ids_out->ids[ids_out->count++] = ls_tokenizer_separator(m->tokenizer);
    }
    if (ids_out->count > context) {
        st = ls_fail(LS_EUSAGE, "the prompt has %lld tokens, but the context holds %lld",
                     (long long)ids_out->count, (long long)context);
        if (context < most)
            ls_err_hint("Shorten it, or raise --context; the model has %lld positions.",
                        (long long)most);
        else
            ls_err_hint("Shorten it: the model cannot read more at once.");
    }
out:
    return st;
}
