/* test_hash.c -- content names and checksums against published values. */
#include "harness.h"
#include "base/hash.h"

static void fill(unsigned char *bytes, size_t len)
{
    uint32_t x = 1;

    for (size_t i = 0; i < len; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(x >> 24);
    }
}

LS_TEST(hash_crc32c_known_answers)
{
    unsigned char block[32];

    LS_CHECK_EQ(ls_hash_crc32c(0, "123456789", 9), 0xE3069283u);
    LS_CHECK_EQ(ls_hash_crc32c(0, "", 0), 0);
    LS_CHECK_EQ(ls_hash_crc32c(0, NULL, 0), 0);
    /* RFC 3720, B.4 */
    memset(block, 0, sizeof block);
    LS_CHECK_EQ(ls_hash_crc32c(0, block, 32), 0x8A9136AAu);
    memset(block, 0xff, sizeof block);
    LS_CHECK_EQ(ls_hash_crc32c(0, block, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++)
        block[i] = (unsigned char)i;
    LS_CHECK_EQ(ls_hash_crc32c(0, block, 32), 0x46DD794Eu);
}

LS_TEST(hash_crc32c_continues_over_any_cut)
{
    unsigned char bytes[601];

    fill(bytes, sizeof bytes);
    uint32_t whole = ls_hash_crc32c(0, bytes, sizeof bytes);
    for (size_t cut = 0; cut <= sizeof bytes; cut += 7) {
        uint32_t part = ls_hash_crc32c(0, bytes, cut);
        LS_CHECK_EQ(ls_hash_crc32c(part, bytes + cut, sizeof bytes - cut), whole);
    }
}

LS_TEST(hash_known_answer_of_nothing)
{
    char hex[LS_HASH_HEX];

    ls_hash_hex(ls_hash_bytes("", 0), hex); /* XXH3-128 of the empty input, seed 0 */
    LS_CHECK_STR(hex, "99aa06d3014798d86001c324468d497f");
}

/* Lengths around the borders of XXH3: 16, 128, 240, 256 (its buffer), 1024 (its stripe block). */
LS_TEST(hash_stream_equals_whole_for_every_length_and_cut)
{
    static unsigned char bytes[4099];
    static const size_t lengths[] = {0,   1,   3,   16,  17,   127,  128,  129,  240,
                                     241, 255, 256, 257, 1023, 1024, 1025, 2048, sizeof bytes};
    static const size_t cuts[] = {1, 5, 64, 255, 256, 1000};

    fill(bytes, sizeof bytes);
    for (size_t l = 0; l < LS_COUNT(lengths); l++)
        for (size_t c = 0; c < LS_COUNT(cuts); c++) {
            ls_hash_stream stream;
            ls_hash_begin(&stream);
            for (size_t at = 0; at < lengths[l]; at += cuts[c]) {
                size_t left = lengths[l] - at;
                ls_hash_add(&stream, bytes + at, left < cuts[c] ? left : cuts[c]);
                ls_hash_add(&stream, NULL, 0);
            }
            ls_hash got = ls_hash_end(&stream);
            LS_CHECK(ls_hash_equal(got, ls_hash_bytes(bytes, lengths[l])));
            LS_CHECK(ls_hash_equal(got, ls_hash_end(&stream))); /* end does not consume */
        }
}

LS_TEST(hash_stream_can_be_copied_midway)
{
    ls_hash_stream a, b;

    ls_hash_begin(&a);
    ls_hash_add(&a, "shared", 6);
    b = a;
    ls_hash_add(&a, "A", 1);
    ls_hash_add(&b, "B", 1);
    LS_CHECK(ls_hash_equal(ls_hash_end(&a), ls_hash_bytes("sharedA", 7)));
    LS_CHECK(ls_hash_equal(ls_hash_end(&b), ls_hash_bytes("sharedB", 7)));
}

LS_TEST(hash_notices_any_single_bit)
{
    unsigned char bytes[333];

    fill(bytes, sizeof bytes);
    ls_hash h = ls_hash_bytes(bytes, sizeof bytes);
    uint32_t crc = ls_hash_crc32c(0, bytes, sizeof bytes);
    for (size_t bit = 0; bit < sizeof bytes * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        LS_CHECK(!ls_hash_equal(h, ls_hash_bytes(bytes, sizeof bytes)));
        LS_CHECK(crc != ls_hash_crc32c(0, bytes, sizeof bytes));
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

LS_TEST(hash_hex_reads_back)
{
    static const ls_hash values[] = {
        {0, 0}, {UINT64_MAX, UINT64_MAX}, {1, 0}, {0, 1}, {0x0123456789abcdef, 0xfedcba9876543210}};
    char hex[LS_HASH_HEX];

    for (size_t i = 0; i < LS_COUNT(values); i++) {
        ls_hash back = {7, 7};
        ls_hash_hex(values[i], hex);
        LS_CHECK_EQ(strlen(hex), 32);
        LS_CHECK_OK(ls_hash_parse(hex, &back));
        LS_CHECK(ls_hash_equal(back, values[i]));
    }
}

LS_TEST(hash_parse_refuses_all_else)
{
    static const char *const bad[] = {
        "",
        "0",
        "0123456789abcdef0123456789abcde",   /* 31 */
        "0123456789abcdef0123456789abcdef0", /* 33 */
        "0123456789ABCDEF0123456789abcdef",  /* upper case would give one content two names */
        "0123456789abcdef0123456789abcdeg",
        "0x23456789abcdef0123456789abcdef0",
        " 123456789abcdef0123456789abcdef",
        "0123456789abcdef0123456789abcd\n0",
        "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffghijklmnopqrstuv",
    };

    for (size_t i = 0; i < LS_COUNT(bad); i++) {
        ls_hash h = {1, 2};
        LS_CHECK_FAILS(ls_hash_parse(bad[i], &h), LS_EDATA, "a hash ");
        LS_CHECK(h.hi == 1 && h.lo == 2); /* untouched */
    }
}
