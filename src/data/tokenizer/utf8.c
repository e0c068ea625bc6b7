/* utf8.c -- UTF-8 by its table of well-formed sequences.
 *
 * The second byte decides almost everything: after E0 it must be A0..BF (no overlong form), after
 * ED 80..9F (no surrogate), after F0 90..BF, after F4 80..8F (nothing above U+10FFFF), else 80..BF.
 * Example: E2 82 41 is a cut euro sign and an "A": the answer at E2 is -2, then 1. */
#include "data/tokenizer/utf8.h"

static int sequence_len(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xc2) /* a continuation byte, or an overlong form of ASCII */
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

static bool second_fits(unsigned char first, unsigned char second)
{
    unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;

    return second >= least && second <= most;
}

int ls_utf8_next(const unsigned char *p, size_t left)
{
    int n = sequence_len(p[0]);

    if (n <= 1)
        return n ? 1 : -1;
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= left)
            return 0;
        if (i == 1 ? !second_fits(p[0], p[1]) : p[i] >> 6 != 2)
            return -i;
    }
    return n;
}

size_t ls_utf8_valid(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    size_t i = 0;

    while (i < len) {
        uint64_t eight;
        /* Most text is ASCII: eight bytes at a time while no top bit is set. */
        while (len - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (eight & UINT64_C(0x8080808080808080))
                break;
            i += sizeof eight;
        }
        if (i == len)
            break;
        int n = ls_utf8_next(p + i, len - i);
        if (n <= 0)
            break;
        i += (size_t)n;
    }
    return i;
}

void ls_utf8_append_clean(ls_str *out, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;

    while (len) {
        size_t good = ls_utf8_valid(p, len);
        ls_str_append_bytes(out, p, good);
        p += good;
        len -= good;
        if (!len)
            return;
        int n = ls_utf8_next(p, len);
        size_t bad = n == 0 ? len : (size_t)-n;
        ls_str_append(out, LS_UTF8_REPLACEMENT);
        p += bad;
        len -= bad;
    }
}

ls_status ls_utf8_parse_policy(const char *text, ls_utf8_policy *policy_out)
{
    static const char *const names[] = {"strict", "replace", "bytes"};

    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *policy_out = (ls_utf8_policy)i;
            return LS_OK;
        }
    return ls_fail(LS_EUSAGE, "\"%s\" is not strict, replace or bytes", text);
}
