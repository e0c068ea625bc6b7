/* fuzz_checkpoint.c -- any bytes as a manifest: parsed or refused, and what is parsed can be
 * written and read again with the same result. The manifest's hash is not asked for, because no
 * random bytes would carry it. Bytes that are not a manifest are tried as an object too. */
#include "checkpoint/ckpt_impl.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t bytes[2][LS_SECRET_BYTES] = {"a key", "another key"};
static char path[] = "fuzz";
static const ls_ckpt_key key = {.secret = {bytes[0]}, .path = path};
static const ls_ckpt_key other = {.secret = {bytes[1]}, .path = path};

/* What was accepted must survive being written and signed: same text twice. */
static void write_again(const ls_ckpt *ckpt)
{
    ls_ckpt again = {.n_rows = 0};
    ls_ckpt_trust trust;
    ls_str first, second;

    ls_str_init(&first);
    ls_str_init(&second);
    ls_arena_init(&again.arena);
    ls_ckpt_manifest_body(ckpt, &first);
    LS_BUG_IF(ls_ckpt_manifest_tail(ckpt, &key, &first) != LS_OK, "cannot sign");
    LS_BUG_IF(ls_ckpt_check_trust(&key, first.p, first.len, &trust) != LS_OK ||
                  trust != LS_CKPT_PROVED,
              "own signature refused");
    LS_BUG_IF(ls_ckpt_check_trust(&other, first.p, first.len, &trust) != LS_EDATA,
              "wrong key taken");
    LS_BUG_IF(ls_ckpt_manifest_check(first.p, first.len, NULL) != LS_OK, "wrong hash written");
    LS_BUG_IF(ls_ckpt_manifest_parse(&again, first.p, first.len) != LS_OK,
              "cannot read own text: %s", ls_err_last()->text);
    ls_ckpt_manifest_body(&again, &second);
    LS_BUG_IF(!ls_ckpt_manifest_same(first.p, first.len, &second), "another text after reading");
    ls_arena_release(&again.arena);
    ls_str_release(&first);
    ls_str_release(&second);
}

static void try_object(const uint8_t *data, size_t size)
{
    ls_safetensors file;

    if (ls_safetensors_parse(&file, data, size, "fuzz") == LS_OK)
        for (int i = 0; i < file.count; i++) {
            const ls_safetensors_entry *e = ls_safetensors_find(&file, file.entries[i].name);
            LS_BUG_IF(!e || e->begin < file.data_begin || e->end < e->begin ||
                          e->end > (int64_t)size,
                      "an entry outside the file was accepted");
        }
    ls_safetensors_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_ckpt ckpt = {.n_rows = 0};
    ls_ckpt_trust trust;

    ls_arena_init(&ckpt.arena);
    LS_BUG_IF(ls_ckpt_check_trust(&key, (const char *)data, size, &trust) == LS_OK,
              "forged by chance");
    LS_BUG_IF(ls_ckpt_check_trust(NULL, (const char *)data, size, &trust) != LS_OK,
              "no key, no check");
    ls_ckpt_manifest_check((const char *)data, size, NULL);
    if (ls_ckpt_manifest_parse(&ckpt, (const char *)data, size) == LS_OK)
        write_again(&ckpt);
    ls_arena_release(&ckpt.arena);
    try_object(data, size);
    return 0;
}
