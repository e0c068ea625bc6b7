/* mac.h -- proofs and keys: HMAC-SHA256, and HKDF (RFC 5869) over it. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_MAC_BYTES = 32 };

typedef struct ls_mac_part {
    const void *bytes;
    size_t len;
} ls_mac_part;

/* HMAC-SHA256 of the parts, laid end to end. */
ls_status ls_mac_hmac(const uint8_t *key, size_t key_len, const ls_mac_part *parts, int count,
                      uint8_t mac_out[LS_MAC_BYTES]);

/* key_len bytes (at most 255 * 32) made of a secret; salt and info may be empty. */
ls_status ls_mac_derive(ls_mac_part salt, ls_mac_part secret, ls_mac_part info, uint8_t *key_out,
                        size_t key_len);

/* Whether len bytes are equal, in a time that does not depend on where they differ. */
bool ls_mac_equal(const uint8_t *a, const uint8_t *b, size_t len);

LS_C_END
