/* test_sign.c -- signed checkpoints: what is taken, what is refused, and by whom. An attacker here
 * can write to the folder and knows the format, but has no key: he computes every hash anew. */
#include "harness.h"
#include "sample.h"
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/time.h"
#include "checkpoint/ckpt_impl.h"

static void save_as(const char *dir, const char *key, sample *s, int64_t step, ls_ckpt_saved *out)
{
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(step);

    LS_CHECK_OK(ls_ckpt_open(&store, dir, true));
    if (key)
        LS_CHECK_OK(ls_ckpt_use_key(store, key, false));
    sample_fill(s, (uint32_t)step);
    LS_CHECK_OK(ls_ckpt_save(store, &info, s->tensors, s->n, out));
    ls_ckpt_close(store);
}

static ls_ckpt_store *open_as(const char *dir, const char *key, bool accept)
{
    ls_ckpt_store *store;

    LS_CHECK_OK(ls_ckpt_open(&store, dir, false));
    if (key)
        LS_CHECK_OK(ls_ckpt_use_key(store, key, accept));
    return store;
}

/* Find and load one step; trust_out may be NULL. */
static ls_status load_as(const char *dir, const char *key, bool accept, sample *s, int64_t step,
                         ls_ckpt_trust *trust_out)
{
    ls_ckpt_store *store = open_as(dir, key, accept);
    ls_ckpt *ckpt = NULL;
    ls_status st = ls_ckpt_find(store, step, &ckpt, NULL);

    sample_wipe(s);
    if (st == LS_OK && trust_out)
        *trust_out = ls_ckpt_about(ckpt)->trust;
    if (st == LS_OK)
        st = ls_ckpt_load(ckpt, s->tensors, s->n);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    return st;
}

static void put_file(const char *path, const ls_str *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text->p, text->len));
}

static void get_file(const char *path, ls_str *text)
{
    ls_str_clear(text);
    LS_CHECK_OK(ls_file_read(path, LS_MIB, text));
}

/* The hash that ends a manifest, made anew: anybody can. */
static void rehash(ls_str *text)
{
    size_t at = text->len - LS_CKPT_HASH_LINE;
    char hex[LS_HASH_HEX];

    ls_hash_hex(ls_hash_bytes(text->p, at), hex);
    memcpy(text->p + at + strlen(LS_CKPT_HASH_START), hex, LS_HASH_HEX - 1);
}

/* Without its signature, as if it never had one. */
static void strip(ls_str *text)
{
    char *line = strstr(text->p, "  \"signature\"");

    LS_CHECK(line != NULL);
    const char *next = strchr(line, '\n') + 1;
    size_t rest = text->len - (size_t)(next - text->p);
    memmove(line, next, rest + 1);
    text->len = (size_t)(line - text->p) + rest;
    rehash(text);
}

static void replace_all(ls_str *text, const char *old, const char *fresh)
{
    LS_CHECK(strlen(old) == strlen(fresh));
    for (char *p = text->p; (p = strstr(p, old)) != NULL;)
        memcpy(p, fresh, strlen(fresh));
}

#define STEP1 "c/step-0000000001.json"
static char path_of_key[] = "k";

LS_TEST(sign_proves_what_was_saved_with_the_key)
{
    sample s;
    ls_ckpt_saved saved;
    ls_ckpt_trust trust;
    ls_ckpt_store *store;
    ls_ckpt_info info;
    ls_str text;
    bool found;

    ls_str_init(&text);
    sample_make(&s);
    LS_CHECK_OK(ls_secret_make("k"));
    save_as("c", "k", &s, 1, NULL);
    save_as("c", "k", &s, 2, &saved);
    LS_CHECK(saved.objects_reused > 0 && saved.objects_written > 0); /* frozen ones are shared */
    get_file(STEP1, &text);
    LS_CHECK(strstr(text.p, "\"signature\": \"") && strstr(text.p, "\"sha256\": \""));
    LS_CHECK_OK(load_as("c", "k", false, &s, 1, &trust));
    LS_CHECK(trust == LS_CKPT_PROVED && sample_is(&s, 1));
    store = open_as("c", "k", false);
    sample_wipe(&s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found));
    LS_CHECK(found && info.step == 2 && info.trust == LS_CKPT_PROVED && sample_is(&s, 2));
    ls_ckpt_close(store);
    /* without a key: loads, and it is known that nothing was checked */
    LS_CHECK_OK(load_as("c", NULL, false, &s, 2, &trust));
    LS_CHECK(trust == LS_CKPT_UNCHECKED && sample_is(&s, 2));
    /* the same state once more is left as it is; by another key it is signed anew */
    save_as("c", "k", &s, 1, NULL);
    LS_CHECK_OK(load_as("c", "k", false, &s, 1, &trust));
    LS_CHECK_OK(ls_secret_make("k2"));
    save_as("c", "k2", &s, 1, NULL);
    LS_CHECK_FAILS(load_as("c", "k", false, &s, 1, NULL), LS_EDATA, "not made with the key \"k\"");
    LS_CHECK_OK(load_as("c", "k2", false, &s, 1, &trust));
    LS_CHECK(trust == LS_CKPT_PROVED && sample_is(&s, 1));
    ls_str_release(&text);
    sample_release(&s);
}

LS_TEST(sign_refuses_what_the_key_did_not_sign)
{
    sample s;
    ls_ckpt_trust trust;
    ls_str text;

    ls_str_init(&text);
    sample_make_tiny(&s);
    LS_CHECK_OK(ls_secret_make("k"));
    LS_CHECK_OK(ls_secret_make("wrong"));
    save_as("c", "k", &s, 1, NULL);
    LS_CHECK_FAILS(load_as("c", "wrong", false, &s, 1, NULL), LS_EDATA, "is refused");
    LS_CHECK_FAILS(load_as("c", "wrong", true, &s, 1, NULL), LS_EDATA, "not made with the key");
    LS_CHECK(strstr(ls_err_last()->hint, "key") != NULL);
    /* the signature taken away: unsigned, with all that follows from it */
    get_file(STEP1, &text);
    strip(&text);
    put_file(STEP1, &text);
    LS_CHECK_FAILS(load_as("c", "k", false, &s, 1, NULL), LS_EDATA, "it is not signed");
    LS_CHECK_OK(load_as("c", NULL, false, &s, 1, &trust));
    LS_CHECK_EQ(trust, LS_CKPT_UNSIGNED);
    /* old ones, on purpose */
    save_as("old", NULL, &s, 1, NULL);
    LS_CHECK_FAILS(load_as("old", "k", false, &s, 1, NULL), LS_EDATA, "it is not signed");
    LS_CHECK_FAILS(load_as("old", "k", false, &s, -1, NULL), LS_EDATA, "the only checkpoint in");
    LS_CHECK(strstr(ls_err_last()->hint, "take_unsigned") != NULL);
    LS_CHECK_OK(load_as("old", "k", true, &s, 1, &trust));
    LS_CHECK(trust == LS_CKPT_UNSIGNED && sample_is(&s, 1));
    ls_str_release(&text);
    sample_release(&s);
}

/* Any bit of the text; of some, with the hash made right again, what a reader does with it. */
LS_TEST(sign_finds_every_changed_bit_of_a_manifest)
{
    ls_ckpt_key key = {.path = path_of_key};
    ls_ckpt_trust trust;
    ls_str text, good;
    sample s;

    ls_str_init(&text);
    ls_str_init(&good);
    sample_make_tiny(&s);
    LS_CHECK_OK(ls_secret_make("k"));
    LS_CHECK_OK(ls_secret_read(&key.secret, "k"));
    save_as("c", "k", &s, 1, NULL);
    get_file(STEP1, &text);
    get_file(STEP1, &good);
    LS_CHECK_OK(ls_ckpt_check_trust(&key, text.p, text.len, &trust));
    for (size_t bit = 0; bit < 8 * (text.len - LS_CKPT_HASH_LINE);
         bit += (size_t)ls_test_stride(7)) {
        char flip = (char)(1 << bit % 8);
        text.p[bit / 8] = (char)(text.p[bit / 8] ^ flip);
        LS_CHECK_EQ(ls_ckpt_check_trust(&key, text.p, text.len, &trust), LS_EDATA);
        if (bit % 997 == 0) {
            rehash(&text);
            put_file(STEP1, &text);
            LS_CHECK_FAILS(load_as("c", "k", false, &s, 1, NULL), LS_EDATA, "is refused");
            LS_CHECK(!sample_is(&s, 1)); /* not a byte was used */
        }
        text.p[bit / 8] = (char)(text.p[bit / 8] ^ flip);
    }
    put_file(STEP1, &good);
    LS_CHECK_OK(load_as("c", "k", false, &s, 1, NULL));
    ls_secret_release(&key.secret);
    ls_str_release(&text);
    ls_str_release(&good);
    sample_release(&s);
}

/* An object with other weights, under its new name, in a manifest with right hashes and checksums:
 * without a key it cannot be told from a true one. */
LS_TEST(sign_finds_forged_weights)
{
    sample s;
    ls_ckpt_trust trust;
    file_list files;
    ls_str text, bytes, path;
    char old[LS_HASH_HEX], fresh[LS_HASH_HEX], crc[2][16];

    ls_str_init(&text);
    ls_str_init(&bytes);
    ls_str_init(&path);
    sample_make_tiny(&s);
    LS_CHECK_OK(ls_secret_make("k"));
    save_as("c", "k", &s, 1, NULL);
    file_list_make(&files, "c/objects", ".safetensors");
    get_file(files.path[0], &bytes);
    ls_hash_hex(ls_hash_bytes(bytes.p, bytes.len), old);
    snprintf(crc[0], sizeof crc[0], "%08x", ls_hash_crc32c(0, bytes.p, bytes.len));
    bytes.p[bytes.len - 1] ^= 64;
    ls_hash name = ls_hash_bytes(bytes.p, bytes.len);
    ls_hash_hex(name, fresh);
    snprintf(crc[1], sizeof crc[1], "%08x", ls_hash_crc32c(0, bytes.p, bytes.len));
    ls_ckpt_object_path("c", name, &path);
    LS_CHECK_OK(ls_file_make_dirs(path.p));
    LS_CHECK_EQ(rmdir(path.p), 0);
    put_file(path.p, &bytes);
    get_file(STEP1, &text);
    replace_all(&text, old, fresh);
    replace_all(&text, crc[0], crc[1]);
    rehash(&text);
    put_file(STEP1, &text);
    LS_CHECK_OK(load_as("c", NULL, false, &s, 1, &trust)); /* the forgery is a good one */
    LS_CHECK(trust == LS_CKPT_UNCHECKED && !sample_is(&s, 1));
    LS_CHECK_FAILS(load_as("c", "k", false, &s, 1, NULL), LS_EDATA, "is refused");
    LS_CHECK_FAILS(load_as("c", "k", true, &s, 1, NULL), LS_EDATA, "is refused");
    /* and without the signature line it is only another unsigned one */
    strip(&text);
    put_file(STEP1, &text);
    LS_CHECK_FAILS(load_as("c", "k", false, &s, 1, NULL), LS_EDATA, "is refused");
    ls_str_release(&text);
    ls_str_release(&bytes);
    ls_str_release(&path);
    sample_release(&s);
}

/* Somebody found other bytes with the same XXH3 and the same checksums: as the reader sees it, the
 * object is what its name says, and not what the signed manifest says. Made here from the other
 * side: the manifest lists another SHA-256, and is signed. */
static void collide(const char *key)
{
    ls_ckpt_key signer = {.accept_unsigned = false};
    ls_str text;
    char hash[LS_HASH_HEX];

    ls_str_init(&text);
    LS_CHECK_OK(ls_secret_read(&signer.secret, key));
    get_file(STEP1, &text);
    for (char *p = text.p; (p = strstr(p, "\"sha256\": \"")) != NULL;) {
        p += strlen("\"sha256\": \"");
        *p = *p == '0' ? '1' : '0';
    }
    char *line = strstr(text.p, "  \"signature\"");
    *line = '\0';
    text.len = (size_t)(line - text.p);
    LS_CHECK_OK(ls_ckpt_sign(&signer, &text));
    ls_hash_hex(ls_hash_bytes(text.p, text.len), hash);
    ls_str_printf(&text, LS_CKPT_HASH_START "%s" LS_CKPT_HASH_END, hash);
    put_file(STEP1, &text);
    ls_secret_release(&signer.secret);
    ls_str_release(&text);
}

LS_TEST(sign_proves_objects_by_sha256)
{
    sample s;
    ls_ckpt_store *store, *to;
    ls_ckpt_copied copied;
    ls_ckpt *ckpt = NULL;
    int damaged;
    float part[5];

    sample_make_tiny(&s);
    LS_CHECK_OK(ls_secret_make("k"));
    save_as("c", "k", &s, 1, NULL);
    collide("k");
    store = open_as("c", "k", false);
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    sample_wipe(&s);
    LS_CHECK_FAILS(ls_ckpt_load(ckpt, s.tensors, s.n), LS_EDATA, "SHA-256");
    LS_CHECK(!sample_is(&s, 1));
    LS_CHECK_FAILS(ls_ckpt_read_box(ckpt, "a", "param", (int64_t[]){1, 0}, (int64_t[]){1, 5}, part),
                   LS_EDATA, "SHA-256");
    LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
    LS_CHECK_EQ(damaged, 2);
    LS_CHECK_OK(ls_ckpt_open(&to, "d", true));
    LS_CHECK_FAILS(ls_ckpt_copy(ckpt, to, &copied), LS_EDATA, "SHA-256");
    LS_CHECK(!ls_file_exists("d/step-0000000001.json"));
    ls_ckpt_close(to);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    /* without a key: by its name alone, but verify looks at what is listed */
    LS_CHECK_OK(load_as("c", NULL, false, &s, 1, NULL));
    store = open_as("c", NULL, false);
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
    LS_CHECK_EQ(damaged, 2);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}

/* Objects of one size that change places; a part alone; a mirror that heals, and one that lies. */
LS_TEST(sign_reads_parts_swaps_and_mirrors)
{
    static const int64_t shape[] = {3, 5};
    sample s = {.n = 0};
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    file_list files;
    float part[10], want[15];
    int damaged;

    sample_add(&s, "a", "param", "g", LS_F32, 2, shape);
    sample_add(&s, "b", "param", "h", LS_F32, 2, shape);
    LS_CHECK_OK(ls_secret_make("k"));
    save_as("c", "k", &s, 1, NULL);
    save_as("m", "k", &s, 1, NULL);
    memcpy(want, s.tensors[0].bytes, sizeof want);
    file_list_make(&files, "c/objects", ".safetensors");
    LS_CHECK(files.n == 2 && file_size(files.path[0]) == file_size(files.path[1]));
    LS_CHECK_EQ(rename(files.path[0], "x"), 0);
    LS_CHECK_EQ(rename(files.path[1], files.path[0]), 0);
    LS_CHECK_EQ(rename("x", files.path[1]), 0);
    LS_CHECK_FAILS(load_as("c", "k", false, &s, 1, NULL), LS_EDATA, "damaged");
    LS_EXPECT_LOG(1);
    store = open_as("c", "k", false);
    LS_CHECK_OK(ls_ckpt_set_mirror(store, "m"));
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_read_box(ckpt, "a", "param", (int64_t[]){1, 0}, (int64_t[]){2, 5}, part));
    LS_CHECK(memcmp(part, want + 5, sizeof part) == 0);
    LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
    LS_CHECK_EQ(damaged, 1); /* the other one was not asked for yet */
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}

/* A forged newest one is passed over, and neither pushes true ones out nor is removed. */
LS_TEST(sign_passes_over_and_keeps_what_it_refuses)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info info;
    bool found;

    sample_make_tiny(&s);
    LS_CHECK_OK(ls_secret_make("k"));
    save_as("c", NULL, &s, 1, NULL); /* of the time before the key */
    for (int64_t step = 2; step <= 4; step++)
        save_as("c", "k", &s, step, NULL);
    save_as("c", NULL, &s, 8, NULL); /* somebody else's */
    save_as("c", NULL, &s, 9, NULL);
    LS_EXPECT_LOG(2);
    log_catch();
    store = open_as("c", "k", false);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found));
    LS_CHECK(found && info.step == 4 && sample_is(&s, 4));
    LS_CHECK(strstr(log_last(), "it is not signed") && strstr(log_last(), "costs 4 steps"));
    LS_CHECK_OK(ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 2}, NULL));
    for (int64_t step = 1; step <= 9; step++) {
        char path[64];
        snprintf(path, sizeof path, "c/step-%010lld.json", (long long)step);
        LS_CHECK_EQ(ls_file_exists(path), step == 1 || step == 3 || step == 4 || step >= 8);
    }
    ls_ckpt_close(store);
    LS_CHECK_OK(load_as("c", NULL, false, &s, 1, NULL)); /* with its objects */
    LS_CHECK(sample_is(&s, 1));
    sample_release(&s);
}

/* Two writers and one that commits. */
LS_TEST(sign_needs_the_key_of_every_writer)
{
    for (int keyless = 0; keyless < 2; keyless++) {
        const char *dir = keyless ? "e" : "c";
        ls_ckpt_report reports[2];
        ls_ckpt_info info = sample_info(1);
        ls_ckpt_part parts[SAMPLE_MOST];
        ls_ckpt_store *store;
        ls_str texts[2];
        sample s;

        sample_make_tiny(&s);
        sample_fill(&s, 1);
        if (!keyless)
            LS_CHECK_OK(ls_secret_make("k"));
        LS_CHECK_OK(ls_ckpt_open(&store, dir, true));
        LS_CHECK_OK(ls_ckpt_use_key(store, "k", false));
        for (int w = 0; w < 2; w++) {
            ls_ckpt_store *own = open_as(dir, w == 1 && keyless ? NULL : "k", false);
            int n = 0;
            for (int i = w; i < s.n; i += 2) {
                parts[n] = (ls_ckpt_part){.of = s.tensors[i]};
                memcpy(parts[n++].shape, s.tensors[i].shape, sizeof parts[0].shape);
            }
            ls_str_init(&texts[w]);
            LS_CHECK_OK(ls_ckpt_write_parts(own, &(ls_ckpt_writing){.step = 1, .writers = 2}, parts,
                                            n, &texts[w]));
            reports[w] = (ls_ckpt_report){.text = texts[w].p, .len = texts[w].len, .writer = w};
            ls_ckpt_close(own);
        }
        ls_status st = ls_ckpt_commit(store, &info, reports, 2, ls_time_now_ns(), NULL);
        if (keyless) {
            LS_CHECK_FAILS(st, LS_EDATA, "has no SHA-256");
        } else {
            LS_CHECK_OK(st);
            LS_CHECK_OK(load_as(dir, "k", false, &s, 1, NULL));
            LS_CHECK(sample_is(&s, 1));
        }
        ls_ckpt_close(store);
        ls_str_release(&texts[0]);
        ls_str_release(&texts[1]);
        sample_release(&s);
    }
}

LS_TEST(sign_takes_only_keys_that_are_secret)
{
    ls_ckpt_store *store;

    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_FAILS(ls_ckpt_use_key(store, "k", false), LS_EIO, "\"k\"");
    LS_CHECK(strstr(ls_err_last()->hint, "lineshaft ckpt key") != NULL);
    LS_CHECK_OK(ls_secret_make("k"));
    LS_CHECK_EQ(chmod("k", 0644), 0);
    LS_CHECK_FAILS(ls_ckpt_use_key(store, "k", false), LS_EUSAGE, "can be read by others");
    LS_CHECK_EQ(chmod("k", 0600), 0);
    LS_CHECK_EQ(symlink("k", "link"), 0);
    LS_CHECK_FAILS(ls_ckpt_use_key(store, "link", false), LS_EUSAGE, "a link");
    file_cut("k", 31);
    LS_CHECK_FAILS(ls_ckpt_use_key(store, "k", false), LS_EDATA, "31 bytes");
    ls_ckpt_close(store);
}
