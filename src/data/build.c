/* build.c -- documents of files, through the tokenizer, into one shard. */
#include "data/corpus.h"

#include "base/mem.h"

static ls_status copy_file(ls_shard_writer *writer, const ls_corpus_build_args *args,
                           const char *file, ls_tokens *tokens, int64_t *bytes)
{
    ls_status st = LS_OK;
    ls_source *source = NULL;
    ls_source_piece piece;

    LS_TRY(st, ls_source_open(&source, &(ls_source_args){file, args->field, args->utf8}), out);
    for (;;) {
        LS_TRY(st, ls_source_next(source, &piece), out);
        if (!piece.bytes)
            break;
        if (piece.begins)
            ls_shard_begin_document(writer);
        ls_shard_note_text(writer, piece.bytes, piece.len);
        ls_tokens_clear(tokens);
        LS_TRY(st,
               ls_tokenizer_encode(args->tok, piece.bytes, piece.len, LS_ENCODE_SPECIAL, tokens),
               out);
        LS_TRY(st, ls_shard_append(writer, tokens->ids, tokens->count), out);
        *bytes += (int64_t)piece.len;
        if (args->progress)
            args->progress(args->context, file, *bytes);
    }
out:
    ls_source_close(source);
    return st;
}

ls_status ls_corpus_build(const ls_corpus_build_args *args)
{
    ls_status st = LS_OK;
    ls_shard_writer *writer = NULL;
    ls_tokens tokens;
    int64_t bytes = 0;

    ls_tokens_init(&tokens);
    LS_TRY(st,
           ls_shard_create(&writer, &(ls_shard_args){.path = args->out,
                                                     .tok = args->tok,
                                                     .source = args->name,
                                                     .key = args->key}),
           out);
    for (int i = 0; i < args->n_files; i++)
        LS_TRY(st, copy_file(writer, args, args->files[i], &tokens, &bytes), out);
    if (ls_shard_written_tokens(writer) == 0) {
        st = ls_fail(LS_EDATA, "\"%s\" holds no text", args->name);
        ls_err_hint("Name a file with text in it.");
        goto out;
    }
    st = ls_shard_finish(writer);
    writer = NULL;
out:
    ls_shard_abandon(writer);
    ls_tokens_release(&tokens);
    return st;
}
