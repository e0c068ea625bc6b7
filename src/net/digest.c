/* digest.c -- libcrypto computes SHA-256, with the instructions that this processor has for it (SHA
 * extensions of x86 and ARM, otherwise AVX2, SSSE3 or plain code, chosen when the program runs).
 *
 * libcrypto's headers come first: they use a parameter name that base/banned.h forbids. */
#include <openssl/evp.h>
#include "net/digest.h"

static ls_status refused(void)
{
    return ls_fail(LS_EFAIL, "libcrypto cannot compute SHA-256");
}

ls_status ls_digest_begin(ls_digest *digest)
{
    digest->context = EVP_MD_CTX_new();
    if (digest->context && EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL))
        return LS_OK;
    ls_digest_release(digest);
    return refused();
}

void ls_digest_add(ls_digest *digest, const void *bytes, size_t len)
{
    if (len && digest->context && !EVP_DigestUpdate(digest->context, bytes, len))
        ls_digest_release(digest);
}

ls_status ls_digest_end(ls_digest *digest, uint8_t digest_out[LS_DIGEST_BYTES])
{
    unsigned len = 0;
    bool ok = digest->context && EVP_DigestFinal_ex(digest->context, digest_out, &len) &&
              len == LS_DIGEST_BYTES;

    ls_digest_release(digest);
    return ok ? LS_OK : refused();
}

void ls_digest_release(ls_digest *digest)
{
    EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
}

ls_status ls_digest_bytes(const void *bytes, size_t len, uint8_t digest_out[LS_DIGEST_BYTES])
{
    ls_digest digest;
    ls_status st = ls_digest_begin(&digest);

    if (st != LS_OK)
        return st;
    ls_digest_add(&digest, bytes, len);
    return ls_digest_end(&digest, digest_out);
}

void ls_digest_hex(const uint8_t digest[LS_DIGEST_BYTES], char hex_out[LS_DIGEST_HEX])
{
    for (int i = 0; i < LS_DIGEST_BYTES; i++)
        snprintf(hex_out + (size_t)2 * (size_t)i, 3, "%02x", digest[i]);
}

bool ls_digest_parse(const char *text, uint8_t digest_out[LS_DIGEST_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < LS_DIGEST_BYTES; i++) {
        int value = 0;
        for (int j = 0; j < 2; j++) {
            const char *found = text[2 * i + j] ? strchr(digits, text[2 * i + j]) : NULL;
            if (!found)
                return false;
            value = value * 16 + (int)(found - digits);
        }
        digest_out[i] = (uint8_t)value;
    }
    return true;
}
