/* test_mac.c -- published answers: RFC 4231 (HMAC-SHA256) and RFC 5869 (HKDF). */
#include "harness.h"

#include "net/mac.h"

static size_t unhex(const char *hex, uint8_t *out)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        LS_CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

LS_TEST(mac_gives_the_published_answers)
{
    uint8_t key[20], want[32], got[32];
    ls_mac_part whole = {"Hi There", 8}, cut[3] = {{"Hi", 2}, {"", 0}, {" There", 6}};

    memset(key, 0x0b, sizeof key);
    unhex("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", want);
    LS_CHECK_OK(ls_mac_hmac(key, sizeof key, &whole, 1, got));
    LS_CHECK(ls_mac_equal(got, want, sizeof want));
    LS_CHECK_OK(ls_mac_hmac(key, sizeof key, cut, 3, got));
    LS_CHECK(ls_mac_equal(got, want, sizeof want));
    got[31] ^= 1;
    LS_CHECK(!ls_mac_equal(got, want, sizeof want));
    whole = (ls_mac_part){"what do ya want for nothing?", 28};
    unhex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", want);
    LS_CHECK_OK(ls_mac_hmac((const uint8_t *)"Jefe", 4, &whole, 1, got));
    LS_CHECK(ls_mac_equal(got, want, sizeof want));
}

LS_TEST(mac_derives_the_published_keys)
{
    uint8_t secret[22], salt[13], info[10], want[42], got[42];

    memset(secret, 0x0b, sizeof secret);
    unhex("000102030405060708090a0b0c", salt);
    unhex("f0f1f2f3f4f5f6f7f8f9", info);
    unhex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
          want);
    LS_CHECK_OK(ls_mac_derive((ls_mac_part){salt, 13}, (ls_mac_part){secret, 22},
                              (ls_mac_part){info, 10}, got, sizeof got));
    LS_CHECK(memcmp(got, want, sizeof want) == 0);
    unhex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
          want);
    LS_CHECK_OK(ls_mac_derive((ls_mac_part){"", 0}, (ls_mac_part){secret, 22}, (ls_mac_part){"", 0},
                              got, sizeof got));
    LS_CHECK(memcmp(got, want, sizeof want) == 0);
}
