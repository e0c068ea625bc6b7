/* mac.c -- libcrypto computes HMAC-SHA256; HKDF is two lines over it.
 *
 * libcrypto's headers come first: they use a parameter name that base/banned.h forbids. */
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include "net/mac.h"

ls_status ls_mac_hmac(const uint8_t *key, size_t key_len, const ls_mac_part *parts, int count,
                      uint8_t mac_out[LS_MAC_BYTES])
{
    static const char digest[] = "SHA256";
    OSSL_PARAM params[2] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)(uintptr_t)digest, 0),
        OSSL_PARAM_construct_end()};
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = mac ? EVP_MAC_CTX_new(mac) : NULL;
    size_t len = 0;
    bool ok = context && EVP_MAC_init(context, key, key_len, params);

    for (int i = 0; ok && i < count; i++)
        ok = EVP_MAC_update(context, parts[i].bytes, parts[i].len);
    ok = ok && EVP_MAC_final(context, mac_out, &len, LS_MAC_BYTES) && len == LS_MAC_BYTES;
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    return ok ? LS_OK : ls_fail(LS_EFAIL, "libcrypto cannot compute HMAC-SHA256");
}

ls_status ls_mac_derive(ls_mac_part salt, ls_mac_part secret, ls_mac_part info, uint8_t *key_out,
                        size_t key_len)
{
    ls_status st = LS_OK;
    uint8_t pseudo[LS_MAC_BYTES], block[LS_MAC_BYTES], number = 0;
    size_t at = 0, before = 0;

    LS_TRY(st, ls_mac_hmac(salt.bytes, salt.len, &secret, 1, pseudo), out);
    while (at < key_len) {
        number++;
        ls_mac_part parts[3] = {{block, before}, info, {&number, 1}};
        LS_TRY(st, ls_mac_hmac(pseudo, sizeof pseudo, parts, 3, block), out);
        size_t n = key_len - at < sizeof block ? key_len - at : sizeof block;
        memcpy(key_out + at, block, n);
        at += n;
        before = sizeof block;
    }
out:
    explicit_bzero(pseudo, sizeof pseudo);
    explicit_bzero(block, sizeof block);
    return st;
}

bool ls_mac_equal(const uint8_t *a, const uint8_t *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}
