/* hash.c -- XXH3-128 from libxxhash, CRC32C from ISA-L. */
#include "base/hash.h"

#include <isa-l/crc.h>
/* The streaming state is part of libxxhash's stable interface only in "static" mode. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
/* Plain calls are made for the least of all processors; these pick the instruction set of this one
 * and take a third of the time. The hash is the same. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

_Static_assert(sizeof(XXH3_state_t) <= sizeof(((ls_hash_stream *)0)->state),
               "ls_hash_stream must hold an XXH3 state");

static XXH3_state_t *state_of(ls_hash_stream *stream)
{
    return (XXH3_state_t *)(void *)stream->state;
}

ls_hash ls_hash_bytes(const void *bytes, size_t len)
{
    XXH128_hash_t h = XXH3_128bits(bytes, len);

    return (ls_hash){.hi = h.high64, .lo = h.low64};
}

void ls_hash_begin(ls_hash_stream *stream)
{
    memset(stream, 0, sizeof *stream);
    XXH3_128bits_reset(state_of(stream));
}

void ls_hash_add(ls_hash_stream *stream, const void *bytes, size_t len)
{
    if (len)
        XXH3_128bits_update(state_of(stream), bytes, len);
}

ls_hash ls_hash_end(const ls_hash_stream *stream)
{
    XXH128_hash_t h = XXH3_128bits_digest((const XXH3_state_t *)(const void *)stream->state);

    return (ls_hash){.hi = h.high64, .lo = h.low64};
}

bool ls_hash_equal(ls_hash a, ls_hash b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

void ls_hash_hex(ls_hash hash, char hex_out[LS_HASH_HEX])
{
    snprintf(hex_out, LS_HASH_HEX, "%016llx%016llx", (unsigned long long)hash.hi,
             (unsigned long long)hash.lo);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

ls_status ls_hash_parse(const char *text, ls_hash *hash_out)
{
    uint64_t word[2] = {0, 0};

    if (strnlen(text, LS_HASH_HEX) != LS_HASH_HEX - 1)
        return ls_fail(LS_EDATA, "a hash must have %d hexadecimal digits", LS_HASH_HEX - 1);
    for (int i = 0; i < LS_HASH_HEX - 1; i++) {
        int d = hex_digit(text[i]);
        if (d < 0)
            return ls_fail(LS_EDATA, "a hash has a digit that is not hexadecimal: \"%s\"", text);
        word[i / 16] = word[i / 16] << 4 | (uint64_t)d;
    }
    *hash_out = (ls_hash){.hi = word[0], .lo = word[1]};
    return LS_OK;
}

/* ISA-L folds without the usual inversions; applying them here gives the CRC32C that RFC 3720,
 * TensorBoard and others mean. Its length is an int, so long blocks go in pieces. */
uint32_t ls_hash_crc32c(uint32_t crc, const void *bytes, size_t len)
{
    unsigned char *p = (unsigned char *)(uintptr_t)bytes;

    crc = ~crc;
    while (len) {
        int n = len > (1 << 30) ? 1 << 30 : (int)len;
        crc = crc32_iscsi(p, n, crc);
        p += n;
        len -= (size_t)n;
    }
    return ~crc;
}
