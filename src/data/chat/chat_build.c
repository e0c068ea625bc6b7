/* chat_build.c -- conversations of files into one shard, laid out for windows.
 *
 * Example with windows of 8 tokens and conversations of 5, 2, 4 and 11:
 *   | 5 5 5 5 5 2 2 . | 4 4 4 4 . . . . | 11 cut to 8      |
 * "." is the separator without loss. Next fit and not best fit: it needs no memory of earlier
 * windows, and the order of the file stays the order of the shard. */
#include "data/chat/chat.h"

#include <sys/stat.h>
#include "data/corpus/token_shard.h"
#include "data/corpus/source.h"
#include "base/log.h"
#include "base/mem.h"

typedef struct builder {
    const ls_chat *chat;
    const ls_chat_build_args *args;
    ls_token_shard_writer *writer;
    ls_chat_text text;
    ls_tokens ids;
    ls_str marks;
    ls_chat_built built;
    int64_t bytes;
    int64_t toolless; /* conversations whose tools the template does not write */
} builder;

static ls_status lay_down(builder *b)
{
    int64_t T = b->args->window, n = b->ids.count, targets = 0;
    ls_status st = LS_OK;

    b->built.conversations++;
    if (n > T) {
        b->built.cut++;
        n = T;
    }
    for (int64_t i = 0; i < n; i++)
        targets += b->marks.p[i];
    if (targets == 0) {
        b->built.lost++;
        return LS_OK;
    }
    if (n > T - ls_token_shard_written_tokens(b->writer) % T)
        LS_TRY(st, ls_token_shard_fill_window(b->writer), out);
    ls_token_shard_begin_document(b->writer);
    LS_TRY(
        st,
        ls_token_shard_append_marked(b->writer, b->ids.ids, (const unsigned char *)b->marks.p, n),
        out);
    b->built.tokens += n;
    b->built.targets += targets;
out:
    return st;
}

static ls_status copy_file(builder *b, const char *file)
{
    ls_status st = LS_OK;
    ls_source *source = NULL;
    const json_t *object;
    struct stat info;
    ls_str where;

    ls_str_init(&where);
    LS_TRY(st,
           ls_source_open(&source, &(ls_source_args){.path = file,
                                                     .utf8 = b->args->utf8,
                                                     .skip_bad = b->args->skip_bad}),
           out);
    /* A template's today is the day the file was changed: the same file gives the same text. */
    int64_t now = stat(file, &info) == 0 ? info.st_mtime : 0;
    for (;;) {
        LS_TRY(st, ls_source_next_object(source, ls_chat_fields, &object), out);
        if (!object)
            break;
        ls_str_clear(&where);
        ls_str_printf(&where, "%s:%lld", file, (long long)ls_source_line(source));
        LS_TRY(st, ls_str_status(&where), out);
        st = ls_chat_render(b->chat, object, where.p, now, &b->text);
        if (st == LS_EDATA && b->args->skip_bad) {
            st = ls_source_skip(source, st);
            continue;
        }
        if (st != LS_OK)
            goto out;
        b->toolless += ls_chat_drops_tools(b->chat, object);
        LS_TRY(st, ls_chat_encode(b->chat, &b->text, &b->ids, &b->marks), out);
        ls_token_shard_note_text(b->writer, b->text.text.p, b->text.text.len);
        LS_TRY(st, lay_down(b), out);
        b->bytes += (int64_t)b->text.text.len;
        if (b->args->progress)
            b->args->progress(b->args->context, file, b->bytes);
    }
    b->built.skipped += ls_source_skipped(source);
out:
    ls_source_close(source);
    ls_str_release(&where);
    return st;
}

static void tell(const builder *b)
{
    const ls_chat_built *n = &b->built;
    const char *was = n->cut == 1 ? "was" : "were";

    if (n->skipped)
        ls_log(LS_LOG_WARN, "%lld line%s of \"%s\" %s skipped", (long long)n->skipped,
               ls_str_plural(n->skipped), b->args->name, n->skipped == 1 ? "was" : "were");
    if (b->toolless)
        ls_log(LS_LOG_WARN,
               "%lld conversation%s of \"%s\" %s tools, which the chat template does not write",
               (long long)b->toolless, ls_str_plural(b->toolless), b->args->name,
               b->toolless == 1 ? "has" : "have");
    if (n->cut)
        ls_log(LS_LOG_WARN, "%lld of %lld conversation%s %s longer than %lld tokens and %s cut%s",
               (long long)n->cut, (long long)n->conversations, ls_str_plural(n->conversations), was,
               (long long)b->args->window, was,
               n->lost ? "; those without an answer left were dropped" : "");
    ls_log(LS_LOG_INFO, "\"%s\": %lld conversations in %lld windows, %lld tokens, %lld with loss",
           b->args->name, (long long)(n->conversations - n->lost), (long long)n->windows,
           (long long)n->tokens, (long long)n->targets);
}

ls_status ls_chat_build(const ls_chat *chat, const ls_chat_build_args *args,
                        ls_chat_built *built_out)
{
    ls_status st = LS_OK;
    builder b = {.chat = chat, .args = args};
    const ls_tokenizer *tok = ls_chat_tokenizer(chat);

    ls_chat_text_init(&b.text);
    ls_tokens_init(&b.ids);
    ls_str_init(&b.marks);
    ls_chat_warn_of_spelling(chat);
    LS_TRY(st,
           ls_token_shard_create(&b.writer, &(ls_token_shard_args){.path = args->out,
                                                                   .tok = tok,
                                                                   .source = args->name,
                                                                   .key = args->key,
                                                                   .window = args->window}),
           out);
    for (int i = 0; i < args->n_files; i++)
        LS_TRY(st, copy_file(&b, args->files[i]), out);
    if (ls_token_shard_written_tokens(b.writer) == 0) {
        st = ls_fail(LS_EDATA,
                     "\"%s\" holds no conversation with an answer in the first %lld tokens",
                     args->name, (long long)args->window);
        goto out;
    }
    LS_TRY(st, ls_token_shard_fill_window(b.writer), out);
    b.built.windows = ls_token_shard_written_tokens(b.writer) / args->window;
    st = ls_token_shard_finish(b.writer);
    b.writer = NULL;
    if (st == LS_OK)
        tell(&b);
    if (st == LS_OK && built_out)
        *built_out = b.built;
out:
    ls_token_shard_abandon(b.writer);
    ls_chat_text_release(&b.text);
    ls_tokens_release(&b.ids);
    ls_str_release(&b.marks);
    return st;
}
