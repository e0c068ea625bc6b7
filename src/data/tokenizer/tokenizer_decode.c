/* tokenizer_decode.c -- from a token as tokenizer.json writes it to the bytes that it stands for.
 *
 * ByteLevel writes each byte as one printable character, so that a vocabulary can be JSON: bytes
 * that are printable in Latin-1 are themselves, the other 68 are U+0100 and up, in order (a blank,
 * the 33rd of them, is U+0120). The steps of a decoder are run once per token when the tokenizer is
 * opened; decoding then only joins bytes. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include <utf8proc.h>

static bool prints(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* The byte that ByteLevel writes as this character; -1: none. */
static int byte_of(uint32_t code)
{
    if (code < 0x100)
        return prints(code) ? (int)code : -1;
    if (code < 0x121) /* 0x00 .. 0x20 */
        return (int)code - 0x100;
    if (code < 0x143) /* 0x7f .. 0xa0 */
        return (int)code - 0x121 + 0x7f;
    return code == 0x143 ? 0xad : -1;
}

bool ls_byte_level_text(const char *token, ls_str *out)
{
    const unsigned char *p = (const unsigned char *)token;
    size_t len = strlen(token), before = out->len;

    for (size_t i = 0; i < len;) {
        int32_t code;
        utf8proc_ssize_t n = utf8proc_iterate(p + i, (utf8proc_ssize_t)(len - i), &code);
        int byte = n > 0 ? byte_of((uint32_t)code) : -1;
        if (byte < 0) {
            if (before < out->len) {
                out->len = before;
                out->p[before] = '\0';
            }
            return false;
        }
        ls_str_append_char(out, (char)byte);
        i += (size_t)n;
    }
    return true;
}

static void replace_all(const char *text, size_t len, const char *from, const char *to, ls_str *out)
{
    size_t n = strlen(from), at = 0;

    while (at < len) {
        const char *hit = memmem(text + at, len - at, from, n);
        size_t end = hit ? (size_t)(hit - text) : len;
        ls_str_append_bytes(out, text + at, end - at);
        if (!hit)
            return;
        ls_str_append(out, to);
        at = end + n;
    }
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static void strip(const char *text, size_t len, const ls_tokenizer_decode_step *step, ls_str *out)
{
    size_t n = strlen(step->from);

    for (int i = 0; i < step->start && len >= n && memcmp(text, step->from, n) == 0; i++) {
        text += n;
        len -= n;
    }
    for (int i = 0; i < step->stop && len >= n && memcmp(text + len - n, step->from, n) == 0; i++)
        len -= n;
    ls_str_append_bytes(out, text, len);
}

static void undo(const ls_tokenizer_decode_step *step, const char *text, size_t len, bool first,
                 ls_str *out)
{
    switch (step->kind) {
    case LS_TOKENIZER_DECODE_BYTES:
        if (!ls_byte_level_text(text, out))
            ls_str_append_bytes(out, text, len);
        return;
    case LS_TOKENIZER_DECODE_FALLBACK:
        if (len == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' && hex(text[3]) >= 0 &&
            hex(text[4]) >= 0)
            ls_str_append_char(out, (char)(hex(text[3]) * 16 + hex(text[4])));
        else
            ls_str_append_bytes(out, text, len);
        return;
    case LS_TOKENIZER_DECODE_STRIP:
        strip(text, len, step, out);
        return;
    case LS_TOKENIZER_DECODE_MARK:
        replace_all(text, len, step->from, first && !step->keep_first ? "" : " ", out);
        return;
    case LS_TOKENIZER_DECODE_REPLACE:
        replace_all(text, len, step->from, step->to, out);
    }
}

void ls_tokenizer_decode_token(const ls_tokenizer_decode_step *steps, int n, const char *token,
                               bool first, ls_str *out)
{
    ls_str a, b;

    ls_str_init(&a);
    ls_str_init(&b);
    ls_str_append(&a, token);
    for (int i = 0; i < n; i++) {
        ls_str_clear(&b);
        undo(&steps[i], a.p, a.len, first, &b);
        ls_str swap = a;
        a = b;
        b = swap;
    }
    ls_str_append_bytes(out, a.p, a.len);
    if (ls_str_status(&a) != LS_OK || ls_str_status(&b) != LS_OK)
        out->failed = true;
    ls_str_release(&a);
    ls_str_release(&b);
}
