/* cmd_generate_prompt.c -- from what the user gave to the tokens that the model reads.
 *
 * Without a flag a pipe or a file at standard input is the prompt, as in `echo text | lineshaft
 * generate m`. Its last line feed, which echo adds, is no part of it; --prompt-file takes every byte.
 * A pipe may be inherited, and nobody writes to it: after WAIT_MS a line says what is waited for. */
#include "cli/generate/cmd_generate.h"

#include <poll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "data/chat/chat.h"
#include "data/tokenizer/utf8.h"

enum { PROMPT_BYTES = 64 << 20, WAIT_MS = 3000 };

/* A pipe or a file, not a terminal or /dev/null. */
static bool stdin_has_text(void)
{
    struct stat info;

    return fstat(STDIN_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
}

bool ls_generate_is_session(const ls_args *args)
{
    return ls_args_has(args, "chat") && !ls_args_has(args, "prompt") &&
           !ls_args_has(args, "prompt-file") && isatty(STDIN_FILENO);
}

static ls_status read_stdin(ls_str *out)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    ls_status st;

    if (poll(&in, 1, WAIT_MS) == 0)
        fputs("waiting for a prompt on standard input; --prompt TEXT gives one, --prompt \"\" "
              "none\n",
              stderr);
    st = ls_file_read_stdin(PROMPT_BYTES, out);
    if (st == LS_OK && out->len > 0 && out->p[out->len - 1] == '\n')
        out->p[--out->len] = '\0';
    return st;
}

ls_status ls_generate_read_prompt(const ls_args *args, ls_str *prompt_out)
{
    const char *text = ls_args_value(args, "prompt"), *file = ls_args_value(args, "prompt-file");

    if (file)
        return strcmp(file, "-") == 0 ? ls_file_read_stdin(PROMPT_BYTES, prompt_out)
                                      : ls_file_read(file, PROMPT_BYTES, prompt_out);
    if (text ? strcmp(text, "-") == 0 : stdin_has_text())
        return read_stdin(prompt_out);
    ls_str_append(prompt_out, text ? text : "");
    return ls_str_status(prompt_out);
}

/* The conversation written out up to where the answer begins: by the template that the run was
 * trained with, otherwise by the tokenizer's own. */
static ls_status write_chat(const ls_generate_model *m, const json_t *object, ls_str *out)
{
    const char *name = ls_hf_folder_run(m->folder)->data.chat_template;
    ls_chat *chat = NULL;
    ls_status st;

    if (!ls_chat_is_meant(name) && !ls_tokenizer_chat_template(m->tokenizer)) {
        st = ls_fail(LS_EUSAGE, "--chat needs a chat template, but the model's tokenizer has none");
        ls_err_hint("It is no chat model, or its tokenizer_config.json is missing.");
        return st;
    }
    LS_TRY(st, ls_chat_open(&chat, ls_chat_is_meant(name) ? name : "auto", m->tokenizer), out);
    st = ls_chat_prompt(chat, object, "the prompt", (int64_t)time(NULL), out);
out:
    ls_chat_close(chat);
    return st;
}

ls_status ls_generate_encode_chat(const ls_generate_model *m, const json_t *object,
                                  ls_tokens *ids_out)
{
    ls_status st;
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, write_chat(m, object, &text), out);
    /* A chat template writes the first token of a text itself. */
    st = ls_tokenizer_encode(m->tokenizer, text.p, text.len, LS_ENCODE_SPECIAL, ids_out);
out:
    ls_str_release(&text);
    return st;
}

static ls_status encode_text(const ls_generate_model *m, const ls_generate_settings *s,
                             const ls_str *prompt, ls_tokens *ids_out)
{
    json_t *object;
    ls_status st;

    if (!s->chat)
        return ls_tokenizer_encode(m->tokenizer, prompt->p, prompt->len,
                                   LS_ENCODE_TEMPLATE | LS_ENCODE_SPECIAL, ids_out);
    if (ls_utf8_valid(prompt->p, prompt->len) != prompt->len)
        return ls_fail(LS_EDATA, "the prompt is not UTF-8, which --chat needs");
    object = json_pack("{s:[{s:s,s:s%}]}", "messages", "role", "user", "content", prompt->p,
                       prompt->len);
    if (!object)
        return ls_fail(LS_ENOMEM, "out of memory");
    st = ls_generate_encode_chat(m, object, ids_out);
    json_decref(object);
    return st;
}

ls_status ls_generate_context(const ls_generate_model *m, const ls_generate_settings *s,
                              int64_t *context_out)
{
    int64_t most = ls_hf_folder_positions(m->folder);

    if (s->context > most)
        return ls_fail(LS_EUSAGE, "--context is %lld, but the model has %lld positions",
                       (long long)s->context, (long long)most);
    *context_out = s->context ? s->context : m->model.shape.T;
    return LS_OK;
}

ls_status ls_generate_encode(const ls_generate_model *m, const ls_generate_settings *s,
                             const ls_str *prompt, ls_tokens *ids_out)
{
    int64_t most = ls_hf_folder_positions(m->folder), context = 0;
    ls_status st;

    LS_TRY(st, ls_generate_context(m, s, &context), out);
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
