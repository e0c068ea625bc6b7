/* corpus_build.c -- documents of files, through the tokenizer, into one shard.
 *
 * A document arrives in parts, but its ids must be those of the whole. The text is encoded up to
 * the last place where the tokenizer says it may be cut, and the rest waits for the next part.
 * Where there is no such place the document is gathered and encoded in one go, up to
 * LS_TOKENIZER_WHOLE bytes; it is asked again only when twice as much has come, so that a long
 * document without a place to cut is not searched over and over. */
#include "data/corpus/corpus.h"

#include "base/log.h"
#include "base/mem.h"

typedef struct builder {
    const ls_corpus_build_args *args;
    ls_token_shard_writer *writer;
    ls_tokens tokens;
    ls_str held;    /* text of the document that waits */
    size_t look_at; /* ask for a cut when this much is held */
    bool continues; /* the document's beginning has been encoded */
    int64_t bytes;
} builder;

static ls_status put(builder *b, const char *bytes, size_t len)
{
    ls_status st = LS_OK;
    unsigned how = LS_ENCODE_SPECIAL | (b->continues ? LS_ENCODE_CONTINUE : 0u);

    if (len == 0)
        return LS_OK;
    ls_tokens_clear(&b->tokens);
    LS_TRY(st, ls_tokenizer_encode(b->args->tok, bytes, len, how, &b->tokens), out);
    LS_TRY(st, ls_token_shard_append(b->writer, b->tokens.ids, b->tokens.count), out);
    b->continues = true;
out:
    return st;
}

/* The document has ended: nothing follows what is held. */
static ls_status put_rest(builder *b)
{
    ls_status st = put(b, b->held.p, b->held.len);

    ls_str_clear(&b->held);
    b->look_at = 0;
    b->continues = false;
    return st;
}

static ls_status check_held(const builder *b)
{
    if ((int64_t)b->held.len <= LS_TOKENIZER_WHOLE)
        return LS_OK;
    ls_status st =
        ls_fail(LS_EDATA,
                "a document has %lld MiB without a place where the tokenizer \"%s\" "
                "can be interrupted; at most %lld are encoded in one go",
                (long long)((int64_t)b->held.len / LS_MIB), ls_tokenizer_name(b->args->tok),
                (long long)(LS_TOKENIZER_WHOLE / LS_MIB));
    ls_err_hint("Split the text into documents, for example one a line in a .jsonl file.");
    return st;
}

static ls_status put_part(builder *b, const ls_source_piece *piece)
{
    ls_status st = LS_OK;

    if (b->held.len == 0) { /* the usual case: no copy of what can be encoded at once */
        size_t n = ls_tokenizer_cut(b->args->tok, piece->bytes, piece->len);
        LS_TRY(st, put(b, piece->bytes, n), out);
        ls_str_append_bytes(&b->held, piece->bytes + n, piece->len - n);
        b->look_at = n ? 0 : 2 * b->held.len;
        LS_TRY(st, ls_str_status(&b->held), out);
        return check_held(b);
    }
    ls_str_append_bytes(&b->held, piece->bytes, piece->len);
    LS_TRY(st, ls_str_status(&b->held), out);
    if (b->held.len < b->look_at)
        return check_held(b);
    size_t n = ls_tokenizer_cut(b->args->tok, b->held.p, b->held.len);
    b->look_at = n ? 0 : 2 * b->held.len;
    LS_TRY(st, put(b, b->held.p, n), out);
    b->held.len -= n;
    memmove(b->held.p, b->held.p + n, b->held.len + 1);
    st = check_held(b);
out:
    return st;
}

static ls_status copy_file(builder *b, const char *file)
{
    ls_status st = LS_OK;
    ls_source *source = NULL;
    ls_source_piece piece;

    LS_TRY(st,
           ls_source_open(&source, &(ls_source_args){.path = file,
                                                     .field = b->args->field,
                                                     .utf8 = b->args->utf8,
                                                     .skip_bad = b->args->skip_bad}),
           out);
    for (;;) {
        LS_TRY(st, ls_source_next(source, &piece), out);
        if (!piece.bytes)
            break;
        if (piece.begins) {
            LS_TRY(st, put_rest(b), out);
            ls_token_shard_begin_document(b->writer);
        }
        ls_token_shard_note_text(b->writer, piece.bytes, piece.len);
        LS_TRY(st, put_part(b, &piece), out);
        b->bytes += (int64_t)piece.len;
        if (b->args->progress)
            b->args->progress(b->args->context, file, b->bytes);
    }
    if (ls_source_skipped(source))
        ls_log(LS_LOG_WARN, "%lld line%s of \"%s\" %s skipped",
               (long long)ls_source_skipped(source), ls_str_plural(ls_source_skipped(source)), file,
               ls_source_skipped(source) == 1 ? "was" : "were");
    st = put_rest(b);
out:
    ls_source_close(source);
    return st;
}

ls_status ls_corpus_build(const ls_corpus_build_args *args)
{
    ls_status st = LS_OK;
    builder b = {.args = args};

    ls_tokens_init(&b.tokens);
    ls_str_init(&b.held);
    LS_TRY(st,
           ls_token_shard_create(&b.writer, &(ls_token_shard_args){.path = args->out,
                                                                   .tok = args->tok,
                                                                   .source = args->name,
                                                                   .key = args->key}),
           out);
    for (int i = 0; i < args->n_files; i++)
        LS_TRY(st, copy_file(&b, args->files[i]), out);
    if (ls_token_shard_written_tokens(b.writer) == 0) {
        st = ls_fail(LS_EDATA, "\"%s\" holds no text", args->name);
        ls_err_hint("Name a file with text in it.");
        goto out;
    }
    st = ls_token_shard_finish(b.writer);
    b.writer = NULL;
out:
    ls_token_shard_abandon(b.writer);
    ls_tokens_release(&b.tokens);
    ls_str_release(&b.held);
    return st;
}
