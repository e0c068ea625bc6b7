/* tokenizer_bytes.c -- every byte is a token.
 *
 * No training, no vocabulary file, no text that cannot be encoded: the right first tokenizer, and
 * the one for data that is not text. Byte 0 separates documents; it does not occur in text, and if
 * it does nothing breaks, because the document index and not the byte says where documents start.
 */
#include "data/tokenizer/tokenizer_impl.h"

enum { VOCAB = 256 };

static bool claims(const char *name)
{
    return strcmp(name, "bytes") == 0;
}

static ls_status open_bytes(ls_tokenizer *tok, const char *name)
{
    static const char identity[] = "lineshaft tokenizer bytes 1";

    snprintf(tok->name, sizeof tok->name, "%s", name);
    tok->vocab = VOCAB;
    tok->separator = 0;
    tok->hash = ls_hash_bytes(identity, sizeof identity - 1);
    return LS_OK;
}

static ls_status encode(const ls_tokenizer *tok, const unsigned char *bytes, size_t len,
                        unsigned how, ls_tokens *out)
{
    ls_status st = ls_tokens_reserve(out, (int64_t)len);

    (void)tok;
    (void)how;
    if (st != LS_OK)
        return st;
    for (size_t i = 0; i < len; i++)
        out->ids[out->count + (int64_t)i] = bytes[i];
    out->count += (int64_t)len;
    return LS_OK;
}

#define FOUR(n) n, n + 1, n + 2, n + 3
#define SIXTEEN(n) FOUR(n), FOUR(n + 4), FOUR(n + 8), FOUR(n + 12)
#define SIXTY_FOUR(n) SIXTEEN(n), SIXTEEN(n + 16), SIXTEEN(n + 32), SIXTEEN(n + 48)
static const unsigned char each_byte[VOCAB] = {SIXTY_FOUR(0), SIXTY_FOUR(64), SIXTY_FOUR(128),
                                               SIXTY_FOUR(192)};

static const unsigned char *piece(const ls_tokenizer *tok, int32_t id, bool first, size_t *len_out)
{
    (void)tok;
    (void)first;
    *len_out = 1;
    return &each_byte[id];
}

const ls_tokenizer_kind ls_tokenizer_bytes = {
    .claims = claims, .open = open_bytes, .encode = encode, .piece = piece};
