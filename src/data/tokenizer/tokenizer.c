/* tokenizer.c -- the table of tokenizer kinds, and what all kinds share.
 *
 * A kind supplies a few functions (data/tokenizer/tokenizer_impl.h); decoding and streaming are
 * built here on "the bytes of one id". Another kind is one more row and one more file. */
#include "data/tokenizer/tokenizer.h"

#include "data/tokenizer/tokenizer_impl.h"
#include "data/tokenizer/utf8.h"
#include "base/mem.h"
#include "config/hub_name.h"

static const ls_tokenizer_kind *const kinds[] = {&ls_tokenizer_bytes, &ls_tokenizer_json};

void ls_tokens_init(ls_tokens *tokens)
{
    *tokens = (ls_tokens){.ids = NULL};
}

void ls_tokens_release(ls_tokens *tokens)
{
    ls_mem_free(tokens->ids);
    ls_tokens_init(tokens);
}

void ls_tokens_clear(ls_tokens *tokens)
{
    tokens->count = 0;
}

ls_status ls_tokens_reserve(ls_tokens *tokens, int64_t more)
{
    if (more <= tokens->cap - tokens->count)
        return LS_OK;
    if (more > (INT64_MAX >> 4) - tokens->count)
        return ls_fail(LS_ENOMEM, "cannot hold %lld more tokens", (long long)more);
    int64_t cap = ls_max_i64(tokens->count + more, ls_max_i64(256, tokens->cap * 2));
    int32_t *ids = ls_mem_resize(tokens->ids, (size_t)cap * sizeof *ids);
    if (!ids)
        return LS_ENOMEM;
    tokens->ids = ids;
    tokens->cap = cap;
    return LS_OK;
}

ls_status ls_tokenizer_open(ls_tokenizer **out, const char *name)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    const ls_tokenizer_kind *kind = NULL;

    for (size_t i = 0; i < LS_COUNT(kinds) && !kind; i++)
        if (kinds[i]->claims(name))
            kind = kinds[i];
    if (!kind) {
        st = ls_fail(LS_EUSAGE, "there is no tokenizer \"%s\"", name);
        if (!ls_hub_name_hint(name, LS_HUB_MODEL))
            ls_err_hint("Write \"bytes\", or the path of a folder that has a tokenizer.json.");
        return st;
    }
    tok = ls_mem_alloc(sizeof *tok);
    if (!tok)
        return LS_ENOMEM;
    tok->kind = kind;
    tok->bos = tok->eos = tok->pad = -1;
    LS_TRY(st, kind->open(tok, name), out);
    *out = tok;
out:
    if (st != LS_OK)
        ls_tokenizer_free(tok);
    return st;
}

void ls_tokenizer_free(ls_tokenizer *tok)
{
    if (!tok)
        return;
    if (tok->kind->close)
        tok->kind->close(tok);
    ls_mem_free(tok);
}

const char *ls_tokenizer_name(const ls_tokenizer *tok)
{
    return tok->name;
}

int32_t ls_tokenizer_vocab(const ls_tokenizer *tok)
{
    return tok->vocab;
}

ls_hash ls_tokenizer_hash(const ls_tokenizer *tok)
{
    return tok->hash;
}

int32_t ls_tokenizer_separator(const ls_tokenizer *tok)
{
    return tok->separator;
}

int32_t ls_tokenizer_bos(const ls_tokenizer *tok)
{
    return tok->bos;
}

int32_t ls_tokenizer_eos(const ls_tokenizer *tok)
{
    return tok->eos;
}

int32_t ls_tokenizer_pad(const ls_tokenizer *tok)
{
    return tok->pad;
}

int32_t ls_tokenizer_find(const ls_tokenizer *tok, const char *token)
{
    return tok->kind->find ? tok->kind->find(tok, token) : -1;
}

bool ls_tokenizer_is_special(const ls_tokenizer *tok, int32_t id)
{
    return tok->kind->is_special && tok->kind->is_special(tok, id);
}

const char *ls_tokenizer_chat_template(const ls_tokenizer *tok)
{
    return tok->chat_template;
}

ls_status ls_tokenizer_encode(const ls_tokenizer *tok, const void *bytes, size_t len, unsigned how,
                              ls_tokens *out)
{
    return tok->kind->encode(tok, bytes, len, how, out);
}

size_t ls_tokenizer_cut(const ls_tokenizer *tok, const void *bytes, size_t len)
{
    return tok->kind->cut ? tok->kind->cut(tok, bytes, len) : len;
}

/* The bytes that id adds to a text, or LS_EDATA. begun and strip are those of the text so far. */
static ls_status piece_of(const ls_tokenizer *tok, int32_t id, bool *begun, int *strip,
                          const unsigned char **bytes_out, size_t *len_out)
{
    if (id < 0 || id >= tok->vocab)
        return ls_fail(LS_EDATA, "token id %d is not in the vocabulary of \"%s\" (0 to %d)",
                       (int)id, tok->name, (int)tok->vocab - 1);
    *bytes_out = tok->kind->piece(tok, id, !*begun, len_out);
    *begun = true;
    while (*strip && *len_out) {
        if (**bytes_out != tok->strip_byte) {
            *strip = 0;
            break;
        }
        ++*bytes_out;
        --*len_out;
        --*strip;
    }
    return LS_OK;
}

ls_status ls_tokenizer_decode(const ls_tokenizer *tok, const int32_t *ids, int64_t n, ls_str *out)
{
    bool begun = false;
    int strip = tok->strip;

    for (int64_t i = 0; i < n; i++) {
        const unsigned char *bytes;
        size_t len;
        ls_status st = piece_of(tok, ids[i], &begun, &strip, &bytes, &len);
        if (st != LS_OK) {
            ls_err_hint("It is id number %lld of those given.", (long long)i + 1);
            return st;
        }
        if (i && tok->join_blank)
            ls_str_append_char(out, ' ');
        ls_str_append_bytes(out, bytes, len);
    }
    return ls_str_status(out);
}

void ls_tokenizer_stream_begin(ls_tokenizer_stream *stream, const ls_tokenizer *tok)
{
    *stream = (ls_tokenizer_stream){.tok = tok, .strip = tok->strip};
}

/* One more byte: emit what is now complete or can no longer become complete. */
static void take_byte(ls_tokenizer_stream *stream, unsigned char byte, ls_str *out)
{
    stream->held[stream->n_held++] = byte;
    while (stream->n_held) {
        int n = ls_utf8_next(stream->held, (size_t)stream->n_held);
        if (n == 0)
            return;
        if (n > 0)
            ls_str_append_bytes(out, stream->held, (size_t)n);
        else
            ls_str_append(out, LS_UTF8_REPLACEMENT);
        int used = n > 0 ? n : -n;
        stream->n_held -= used;
        memmove(stream->held, stream->held + used, (size_t)stream->n_held);
    }
}

ls_status ls_tokenizer_stream_feed(ls_tokenizer_stream *stream, int32_t id, ls_str *out)
{
    const unsigned char *bytes;
    size_t len;
    bool follows = stream->begun;
    ls_status st = piece_of(stream->tok, id, &stream->begun, &stream->strip, &bytes, &len);

    if (st != LS_OK)
        return st;
    if (follows && stream->tok->join_blank)
        take_byte(stream, ' ', out);
    for (size_t i = 0; i < len; i++)
        take_byte(stream, bytes[i], out);
    return ls_str_status(out);
}

ls_status ls_tokenizer_stream_end(ls_tokenizer_stream *stream, ls_str *out)
{
    if (stream->n_held)
        ls_str_append(out, LS_UTF8_REPLACEMENT);
    ls_tokenizer_stream_begin(stream, stream->tok);
    return ls_str_status(out);
}
