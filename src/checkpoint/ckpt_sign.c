/* ckpt_sign.c -- manifests that only the holder of a key can have made.
 *
 * The hash that ends a manifest, the names of objects and the checksums of blocks find damage. They
 * do not stop a user who can write to the folder and wants to deceive, because anyone can compute
 * them. With a key (32 random bytes in a file that only its owner may read)
 *
 *   the manifest lists the SHA-256 of each object, and
 *   the line before its hash holds the HMAC-SHA256 by the key of a label and all earlier text
 *
 *       "previous": "5a08eabb4ecdabb43004a4622f9b5d08",
 *       "signature": "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
 *       "hash": "0f5888cfaffa6698277ff38170887710"
 *
 * A reader that has the key checks these lines, whose place counts from the end and whose shape is
 * fixed, before it parses anything. It uses bytes of an object only after it has read all of them
 * and their SHA-256 was right (ckpt_object.c, ckpt_fetch.c). The label keeps the signature apart
 * from other uses of the same bytes, such as the secret of a job.
 *
 * What a signature does not prove: that there is no newer checkpoint (a user who can write to the
 * folder can also remove files), and to which run it belongs. Runs that must not be confused need
 * keys of their own. */
#include "checkpoint/ckpt_impl.h"

#include "base/file.h"
#include "base/mem.h"
#include "net/mac.h"

#define SIGN_START "  \"signature\": \""
#define SIGN_END "\",\n"
static const char label[] = "lineshaft checkpoint 1\n";

_Static_assert((int)LS_MAC_BYTES == (int)LS_DIGEST_BYTES, "both are written alike");

ls_status ls_ckpt_use_key(ls_ckpt_store *store, const char *path, bool accept_unsigned)
{
    ls_ckpt_key *key = ls_mem_alloc(sizeof *key);
    ls_status st = LS_OK;

    if (!key)
        return LS_ENOMEM;
    key->accept_unsigned = accept_unsigned;
    key->path = ls_mem_strdup(path);
    LS_TRY(st, key->path ? LS_OK : LS_ENOMEM, out);
    st = ls_secret_read(&key->secret, path);
    if (st == LS_EIO && !ls_file_exists(path))
        ls_err_hint("\"lineshaft ckpt key %s\" makes one, for checkpoints that are to come.", path);
out:
    if (st == LS_OK) {
        ls_ckpt_key_free(store->key);
        store->key = key;
    } else {
        ls_ckpt_key_free(key);
    }
    return st;
}

void ls_ckpt_key_free(ls_ckpt_key *key)
{
    if (!key)
        return;
    ls_secret_release(&key->secret);
    ls_mem_free(key->path);
    ls_mem_free(key);
}

static ls_status mac_of(const ls_ckpt_key *key, const char *text, size_t len,
                        uint8_t mac_out[LS_MAC_BYTES])
{
    const ls_mac_part parts[] = {{label, sizeof label - 1}, {text, len}};

    return ls_mac_hmac(key->secret.bytes, LS_SECRET_BYTES, parts, 2, mac_out);
}

ls_status ls_ckpt_sign(const ls_ckpt_key *key, ls_str *text)
{
    uint8_t mac[LS_MAC_BYTES];
    char hex[LS_DIGEST_HEX];
    ls_status st = ls_str_status(text);

    if (st == LS_OK)
        st = mac_of(key, text->p, text->len, mac);
    if (st != LS_OK)
        return st;
    ls_digest_hex(mac, hex);
    ls_str_printf(text, SIGN_START "%s" SIGN_END, hex);
    return ls_str_status(text);
}

/* The signature of a text, and how much of it is signed; false: it has none. Its place counts from the
 * end, so that no text in a run's name or config can pass for it:
 *
 *     ... signed text ... | signature line, 83 bytes | hash line, 47 bytes | end */
static bool find_signature(const char *text, size_t len, size_t *signed_out,
                           uint8_t mac_out[LS_MAC_BYTES])
{
    size_t start = sizeof SIGN_START - 1, end = sizeof SIGN_END - 1;
    size_t line = start + LS_DIGEST_HEX - 1 + end;

    if (len < LS_CKPT_HASH_LINE + line)
        return false;
    *signed_out = len - LS_CKPT_HASH_LINE - line;
    text += *signed_out;
    return memcmp(text, SIGN_START, start) == 0 && memcmp(text + line - end, SIGN_END, end) == 0 &&
           ls_digest_parse(text + start, mac_out);
}

ls_status ls_ckpt_check_trust(const ls_ckpt_key *key, const char *text, size_t len,
                              ls_ckpt_trust *trust_out)
{
    uint8_t want[LS_MAC_BYTES], got[LS_MAC_BYTES];
    size_t signed_len = 0;
    bool is_signed = find_signature(text, len, &signed_len, got);
    ls_status st;

    if (!key || (!is_signed && key->accept_unsigned)) {
        *trust_out = is_signed ? LS_CKPT_UNCHECKED : LS_CKPT_UNSIGNED;
        return LS_OK;
    }
    if (!is_signed)
        return ls_fail(LS_EDATA, "it is not signed, and the key \"%s\" was given", key->path);
    st = mac_of(key, text, signed_len, want);
    if (st != LS_OK)
        return st;
    if (!ls_mac_equal(want, got, sizeof want))
        return ls_fail(LS_EDATA,
                       "its signature was not made with the key \"%s\", or it was changed since",
                       key->path);
    *trust_out = LS_CKPT_PROVED;
    return LS_OK;
}

ls_status ls_ckpt_bind_objects(const ls_ckpt *ckpt)
{
    for (int i = 0; i < ckpt->n_objects; i++) {
        char hex[LS_HASH_HEX];
        ls_hash_hex(ckpt->objects[i].hash, hex);
        if (!ckpt->objects[i].has_sha)
            return ls_fail(LS_EDATA, "object %s has no SHA-256, which a signature needs", hex);
        ckpt->objects[i].by_sha = true;
    }
    return LS_OK;
}

bool ls_ckpt_is_foreign(const ls_ckpt_store *store, int64_t step)
{
    ls_ckpt *ckpt = NULL;

    if (!store->key || ls_ckpt_read_trusted(store, step, &ckpt) != LS_EDATA) {
        ls_ckpt_free(ckpt);
        return false;
    }
    bool sane = ls_ckpt_read_manifest(store->dir, step, &ckpt) == LS_OK;
    ls_ckpt_free(ckpt);
    return sane;
}
