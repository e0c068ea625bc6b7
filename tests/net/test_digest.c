/* test_digest.c -- published answers of FIPS 180-4, whole and in pieces; digits. */
#include "harness.h"

#include "net/digest.h"

static void check(const char *text, const char *want)
{
    uint8_t got[LS_DIGEST_BYTES], back[LS_DIGEST_BYTES];
    char hex[LS_DIGEST_HEX];
    size_t len = strlen(text);

    LS_CHECK_OK(ls_digest_bytes(text, len, got));
    ls_digest_hex(got, hex);
    LS_CHECK_STR(hex, want);
    LS_CHECK(ls_digest_parse(hex, back) && memcmp(back, got, sizeof got) == 0);
    for (size_t cut = 0; cut <= len; cut++) {
        ls_digest d;
        LS_CHECK_OK(ls_digest_begin(&d));
        ls_digest_add(&d, text, cut);
        ls_digest_add(&d, text + cut, len - cut);
        LS_CHECK_OK(ls_digest_end(&d, back));
        LS_CHECK(memcmp(back, got, sizeof got) == 0);
    }
}

LS_TEST(digest_gives_the_published_answers)
{
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

LS_TEST(digest_reads_digits_strictly)
{
    char hex[LS_DIGEST_HEX];
    uint8_t bytes[LS_DIGEST_BYTES];
    ls_digest d = {NULL};

    memset(hex, 'a', sizeof hex - 1);
    hex[sizeof hex - 1] = '\0';
    LS_CHECK(ls_digest_parse(hex, bytes));
    for (int i = 0; i < LS_DIGEST_HEX - 1; i++) {
        static const char wrong[] = {'A', 'g', ' ', '\0', '/', ':'};
        for (size_t k = 0; k < sizeof wrong; k++) {
            hex[i] = wrong[k];
            LS_CHECK(!ls_digest_parse(hex, bytes));
        }
        hex[i] = 'a';
    }
    /* one that was never begun has no digest */
    ls_digest_add(&d, "x", 1);
    LS_CHECK_FAILS(ls_digest_end(&d, bytes), LS_EFAIL, "SHA-256");
    ls_digest_release(&d);
}
