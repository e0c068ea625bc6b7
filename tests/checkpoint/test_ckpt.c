/* test_ckpt.c -- saving, sharing, finding, loading, pruning: when nothing goes wrong. */
#include "harness.h"
#include "sample.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

LS_TEST(ckpt_round_trip_is_bit_exact)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(7), back;
    ls_ckpt_saved saved;
    bool found;

    sample_make(&s);
    sample_fill(&s, 7);
    LS_CHECK_OK(ls_ckpt_open(&store, "run/checkpoints/", true));
    LS_CHECK_STR(ls_ckpt_dir(store), "run/checkpoints");
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(!found);
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
    LS_CHECK_STR(saved.path, "run/checkpoints/step-0000000007.json");
    LS_CHECK(saved.bytes_written > s.bytes && saved.bytes_written < s.bytes + 16 * 4096);
    LS_CHECK_EQ(saved.objects_written, 13); /* wte, h.0, h.1 times 3; frozen, odd, "", odd state */
    sample_wipe(&s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(found && sample_is(&s, 7));
    LS_CHECK(back.step == 7 && back.cursor == 84 && back.tokens == 7 * 768);
    LS_CHECK(back.seed == UINT64_MAX - 3 && isnan(back.val_loss) && back.generation == 0);
    LS_CHECK_NEAR(back.loss, 2.5, 0);
    LS_CHECK_STR(back.run_name, info.run_name);
    LS_CHECK_STR(back.config, info.config);
    LS_CHECK_STR(back.extra, "");
    LS_CHECK_EQ(strlen(back.weights_hash), 32);
    LS_CHECK_EQ(back.new_bytes, saved.bytes_written);
    LS_CHECK_EQ(back.total_bytes, saved.bytes_written);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_unchanged_objects_are_shared)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(1);
    ls_ckpt_saved first, second, third;

    sample_make(&s);
    sample_fill(&s, 1);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &first));
    info.step = 2;
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &second));
    LS_CHECK_EQ(second.bytes_written, 0);
    LS_CHECK_EQ(second.bytes_reused, first.bytes_written);
    LS_CHECK_EQ(second.objects_reused, first.objects_written);
    /* one changed tensor costs its group's object and nothing else */
    ((char *)s.tensors[0].bytes)[5] ^= 1;
    info.step = 3;
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &third));
    LS_CHECK_EQ(third.objects_written, 1);
    LS_CHECK(third.bytes_written > 65 * 33 * 4 && third.bytes_written < 65 * 33 * 4 + 1024);
    LS_CHECK_EQ(third.bytes_written + third.bytes_reused, first.bytes_written);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_objects_are_safetensors_and_text_is_json)
{
    sample s;
    file_list files;
    json_error_t error;

    sample_make(&s);
    LS_CHECK_OK(sample_save("c", &s, 1));
    file_list_make(&files, "c", ".json");
    LS_CHECK_EQ(files.n, 1);
    json_t *root = json_load_file(files.path[0], JSON_REJECT_DUPLICATES, &error);
    LS_CHECK(root != NULL);
    LS_CHECK_EQ(json_array_size(json_object_get(root, "tensors")), s.n);
    LS_CHECK_EQ(json_object_size(json_object_get(root, "objects")), 13);
    LS_CHECK(json_is_null(json_object_get(root, "previous")));
    json_decref(root);
    sample_release(&s);
}

LS_TEST_SECONDS(ckpt_large_tensors_are_cut_into_slabs, 60)
{
    sample s = {.n = 0};
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(1);
    ls_ckpt_saved saved;
    ls_ckpt *ckpt;
    unsigned char part[2][3];

    sample_add(&s, "big", "param", "g", LS_U8, 2, (const int64_t[]){66, LS_MIB});
    unsigned char *big = s.tensors[0].bytes;
    for (int64_t i = 0; i < 66 * LS_MIB; i += 4093)
        big[i] = (unsigned char)(i >> 7);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
    LS_CHECK_EQ(saved.objects_written, 2); /* 64 rows and 2 rows */
    big[65 * LS_MIB + 9]++;
    info.step = 2;
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
    LS_CHECK_EQ(saved.objects_written, 1);
    LS_CHECK(saved.bytes_written < 3 * LS_MIB);
    LS_CHECK_OK(ls_ckpt_find(store, -1, &ckpt, NULL));
    /* a part across the cut */
    LS_CHECK_OK(ls_ckpt_read_box(ckpt, "big", "param", (const int64_t[]){63, 8},
                                 (const int64_t[]){2, 3}, part));
    for (int r = 0; r < 2; r++)
        LS_CHECK(memcmp(part[r], big + (63 + r) * LS_MIB + 8, 3) == 0);
    unsigned char *copy = malloc(66 * LS_MIB);
    LS_CHECK(copy != NULL);
    memcpy(copy, big, 66 * LS_MIB);
    memset(big, 0, 66 * LS_MIB);
    LS_CHECK_OK(ls_ckpt_load(ckpt, s.tensors, s.n));
    LS_CHECK(memcmp(copy, big, 66 * LS_MIB) == 0);
    free(copy);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_reads_any_box_of_a_tensor)
{
    sample s = {.n = 0};
    ls_ckpt_store *store;
    ls_ckpt *ckpt;
    const int64_t D[4] = {3, 4, 5, 6};
    uint32_t turn = 0;

    sample_add(&s, "t", "param", NULL, LS_I32, 4, D);
    LS_CHECK_OK(sample_save("c", &s, 1));
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    const int32_t *all = s.tensors[0].bytes;
    for (int round = 0; round < 200; round++) {
        int64_t off[4], shape[4], n = 1;
        int32_t got[3 * 4 * 5 * 6 + 1];
        for (int i = 0; i < 4; i++) {
            ls_rng_block r = ls_rng_philox(ls_rng_derive(1, 2, 3), turn++, 0, 0, 0);
            off[i] = r.v[0] % (uint32_t)D[i];
            shape[i] = 1 + r.v[1] % (uint32_t)(D[i] - off[i]);
            if (r.v[2] % 3 == 0) {
                off[i] = 0;
                shape[i] = D[i];
            }
            n *= shape[i];
        }
        got[n] = 12345;
        LS_CHECK_OK(ls_ckpt_read_box(ckpt, "t", "param", off, shape, got));
        LS_CHECK_EQ(got[n], 12345);
        for (int64_t k = 0; k < n; k++) {
            int64_t d = k % shape[3], c = k / shape[3] % shape[2],
                    b = k / shape[3] / shape[2] % shape[1], a = k / shape[3] / shape[2] / shape[1];
            int64_t at = (((off[0] + a) * 4 + off[1] + b) * 5 + off[2] + c) * 6 + off[3] + d;
            LS_CHECK_EQ(got[k], all[at]);
        }
    }
    LS_CHECK_FAILS(ls_ckpt_read_box(ckpt, "t", "param", (const int64_t[]){0, 0, 0, 1}, D, NULL),
                   LS_EDATA, "[3, 4, 5, 6]");
    LS_CHECK_FAILS(ls_ckpt_read_box(ckpt, "u", "param", D, D, NULL), LS_EDATA, "no tensor \"u\"");
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_other_shape_type_or_name_is_refused_with_both)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info info;
    bool found;

    sample_make_tiny(&s);
    LS_CHECK_OK(sample_save("c", &s, 1));
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    ls_ckpt_tensor t = s.tensors[0];
    t.shape[1] = 4;
    sample_wipe(&s);
    LS_CHECK_FAILS(ls_ckpt_load_newest(store, &t, 1, &info, &found), LS_EDATA,
                   "F32 [3, 5] in checkpoint \"c/step-0000000001.json\", but the run needs F32 "
                   "[3, 4]");
    t = s.tensors[0];
    t.type = LS_I32;
    LS_CHECK_FAILS(ls_ckpt_load_newest(store, &t, 1, &info, &found), LS_EDATA, "needs I32 [3, 5]");
    t = s.tensors[0];
    t.kind = "adam.v";
    LS_CHECK_FAILS(ls_ckpt_load_newest(store, &t, 1, &info, &found), LS_EDATA,
                   "no tensor \"a\" (adam.v)");
    /* fewer than stored is fine: a program that only generates needs no moments */
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, 2, &info, &found));
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_impossible_tensors_are_refused_before_writing)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(1);
    file_list files;

    sample_make_tiny(&s);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    s.tensors[1].name = "a";
    LS_CHECK_FAILS(ls_ckpt_save(store, &info, s.tensors, s.n, NULL), LS_EDATA, "twice");
    s.tensors[1].name = "";
    LS_CHECK_FAILS(ls_ckpt_save(store, &info, s.tensors, s.n, NULL), LS_EDATA, "name");
    s.tensors[1].name = "__metadata__";
    LS_CHECK_FAILS(ls_ckpt_save(store, &info, s.tensors, s.n, NULL), LS_EDATA, "name");
    s.tensors[1].name = "b";
    s.tensors[1].shape[0] = -1;
    LS_CHECK_FAILS(ls_ckpt_save(store, &info, s.tensors, s.n, NULL), LS_EDATA, "shape");
    s.tensors[1].shape[0] = INT64_MAX;
    LS_CHECK_FAILS(ls_ckpt_save(store, &info, s.tensors, s.n, NULL), LS_EDATA, "shape");
    file_list_make(&files, "c/objects", "");
    LS_CHECK_EQ(files.n, 0);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_same_step_again_is_kept_or_replaced)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(5), back;
    ls_ckpt_saved saved;
    struct stat before, after;
    bool found;

    sample_make_tiny(&s);
    LS_CHECK_OK(sample_save("c", &s, 5));
    LS_CHECK_EQ(stat("c/step-0000000005.json", &before), 0);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
    LS_CHECK_STR(saved.path, "c/step-0000000005.json");
    LS_CHECK_EQ(stat("c/step-0000000005.json", &after), 0);
    LS_CHECK_EQ(before.st_ino, after.st_ino); /* same content: not touched */
    sample_fill(&s, 99);
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
    LS_CHECK_EQ(saved.objects_written, 2);
    sample_wipe(&s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(back.step == 5 && sample_is(&s, 99));
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_find_takes_a_step_or_the_newest)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt *ckpt;
    int64_t *steps;
    int n;

    LS_CHECK_FAILS(ls_ckpt_open(&store, "c", false), LS_EIO, "no checkpoint folder");
    sample_make_tiny(&s);
    for (int64_t step = 0; step <= 30; step += 10)
        LS_CHECK_OK(sample_save("c", &s, step));
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_steps(store, &steps, &n));
    LS_CHECK(n == 4 && steps[0] == 0 && steps[3] == 30);
    ls_mem_free(steps);
    LS_CHECK_OK(ls_ckpt_find(store, -1, &ckpt, NULL));
    LS_CHECK_EQ(ls_ckpt_about(ckpt)->step, 30);
    LS_CHECK_EQ(ls_ckpt_count(ckpt), 3);
    ls_ckpt_tensor t = ls_ckpt_nth(ckpt, 0);
    LS_CHECK_STR(t.name, "a");
    LS_CHECK_STR(t.kind, "adam.m");
    LS_CHECK(t.ndim == 2 && t.shape[0] == 3 && t.shape[1] == 5);
    ls_ckpt_free(ckpt);
    LS_CHECK_OK(ls_ckpt_find(store, 10, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_load(ckpt, s.tensors, s.n));
    LS_CHECK(sample_is(&s, 10));
    ls_ckpt_free(ckpt);
    LS_CHECK_FAILS(ls_ckpt_find(store, 11, &ckpt, NULL), LS_EUSAGE, "no checkpoint of step 11");
    LS_CHECK(strstr(ls_err_last()->hint, "step 30"));
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_locate_understands_run_folders_stores_and_files)
{
    sample s;
    ls_str dir;
    int64_t step;

    sample_make_tiny(&s);
    LS_CHECK_OK(sample_save("run/checkpoints", &s, 12));
    ls_str_init(&dir);
    LS_CHECK_OK(ls_ckpt_locate("run", &dir, &step));
    LS_CHECK_STR(dir.p, "run/checkpoints");
    LS_CHECK_EQ(step, -1);
    ls_str_clear(&dir);
    LS_CHECK_OK(ls_ckpt_locate("run/checkpoints", &dir, &step));
    LS_CHECK_STR(dir.p, "run/checkpoints");
    ls_str_clear(&dir);
    LS_CHECK_OK(ls_ckpt_locate("run/checkpoints/step-0000000012.json", &dir, &step));
    LS_CHECK_STR(dir.p, "run/checkpoints");
    LS_CHECK_EQ(step, 12);
    LS_CHECK_FAILS(ls_ckpt_locate("nowhere", &dir, &step), LS_EUSAGE, "there is no \"nowhere\"");
    LS_CHECK_FAILS(ls_ckpt_locate("/", &dir, &step), LS_EUSAGE, "no checkpoints");
    ls_str_release(&dir);
    sample_release(&s);
}

LS_TEST(ckpt_prune_keeps_the_newest_and_their_objects)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info back;
    file_list files;
    int64_t freed;
    bool found;

    sample_make_tiny(&s);
    for (int64_t step = 1; step <= 5; step++)
        LS_CHECK_OK(sample_save("c", &s, step));
    file_list_make(&files, "c", ".safetensors");
    LS_CHECK_EQ(files.n, 10);
    LS_CHECK_OK(ls_file_write_atomic("c/objects/.tmp-1-1", "x", 1)); /* not ours to touch */
    LS_CHECK_OK(ls_file_write_atomic("c/.tmp-1-1", "x", 1));         /* nobody holds it */
    LS_CHECK_OK(ls_file_write_atomic("c/notes.txt", "x", 1));
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 2}, &freed));
    LS_CHECK(freed > 0 && !ls_file_exists("c/.tmp-1-1") && ls_file_exists("c/notes.txt"));
    file_list_make(&files, "c", ".json");
    LS_CHECK_EQ(files.n, 2);
    LS_CHECK_STR(files.path[0], "c/step-0000000004.json");
    file_list_make(&files, "c", ".safetensors");
    LS_CHECK_EQ(files.n, 4);
    LS_CHECK_OK(ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 2}, &freed));
    LS_CHECK_EQ(freed, 0);
    LS_CHECK_OK(
        ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 0}, &freed)); /* never fewer than one */
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(found && back.step == 5 && sample_is(&s, 5));
    file_list_make(&files, "c", ".safetensors");
    LS_CHECK_EQ(files.n, 2);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_prune_never_removes_the_last_usable_one)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_info back;
    bool found;

    LS_EXPECT_LOG(1);
    log_catch();
    sample_make_tiny(&s);
    for (int64_t step = 1; step <= 4; step++)
        LS_CHECK_OK(sample_save("c", &s, step));
    file_cut("c/step-0000000004.json", 100);
    file_cut("c/step-0000000002.json", 100);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 1}, NULL));
    LS_CHECK(ls_file_exists("c/step-0000000004.json")); /* newer than the last usable: left */
    LS_CHECK(!ls_file_exists("c/step-0000000002.json"));
    LS_CHECK(!ls_file_exists("c/step-0000000001.json"));
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(found && back.step == 3 && sample_is(&s, 3));
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(ckpt_store_has_one_writer)
{
    ls_ckpt_store *a, *b;
    sample s;

    sample_make_tiny(&s);
    LS_CHECK_OK(ls_ckpt_open(&a, "c", true));
    LS_CHECK_FAILS(ls_ckpt_open(&b, "c", true), LS_EBUSY, "held by another");
    LS_CHECK_OK(ls_ckpt_open(&b, "c", false));
    ls_ckpt_info info = sample_info(1);
    LS_CHECK_FAILS(ls_ckpt_save(b, &info, s.tensors, s.n, NULL), LS_EBUSY, "held by another");
    LS_CHECK_FAILS(ls_ckpt_prune_by(b, &(ls_ckpt_pruning){.keep = 1}, NULL), LS_EBUSY,
                   "held by another");
    ls_ckpt_close(a);
    LS_CHECK_OK(ls_ckpt_save(b, &info, s.tensors, s.n, NULL));
    ls_ckpt_close(b);
    sample_release(&s);
}

LS_TEST(ckpt_weights_hash_sees_parameters_only)
{
    sample s;
    char a[33], b[33];

    sample_make_tiny(&s);
    sample_fill(&s, 1);
    LS_CHECK_OK(ls_ckpt_weights_hash(s.tensors, s.n, a));
    ls_ckpt_tensor first = s.tensors[0]; /* order and groups do not matter */
    s.tensors[0] = s.tensors[1];
    s.tensors[1] = first;
    s.tensors[1].group = "other";
    ((char *)s.tensors[2].bytes)[0] ^= 1; /* a moment */
    LS_CHECK_OK(ls_ckpt_weights_hash(s.tensors, s.n, b));
    LS_CHECK_STR(a, b);
    ((char *)s.tensors[0].bytes)[0] ^= 1;
    LS_CHECK_OK(ls_ckpt_weights_hash(s.tensors, s.n, b));
    LS_CHECK(strcmp(a, b) != 0);
    sample_release(&s);
}

/* Lengths around those of blocks, pages and buffers; from 1 MiB on they go past the page cache. */
LS_TEST(ckpt_objects_of_odd_lengths)
{
    static const int64_t lengths[] = {(1 << 20) - 300, (1 << 20) - 1,    1 << 20,
                                      (4 << 20) - 8,   4 << 20,          (4 << 20) + 1,
                                      (8 << 20) - 77,  (8 << 20) + 4095, 9 << 20};
    enum { N = LS_COUNT(lengths) };
    ls_ckpt_tensor tensors[N];
    char names[N][16];
    ls_ckpt_info info = sample_info(1);
    ls_ckpt_store *store;
    bool found;

    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tensors[i] = (ls_ckpt_tensor){.name = names[i],
                                      .kind = "param",
                                      .group = names[i],
                                      .type = LS_U8,
                                      .ndim = 1,
                                      .shape = {lengths[i]},
                                      .bytes = malloc((size_t)lengths[i])};
        LS_CHECK(tensors[i].bytes != NULL);
        for (int64_t b = 0; b < lengths[i]; b++)
            ((unsigned char *)tensors[i].bytes)[b] = (unsigned char)(b * 31 + b / 251 + i);
    }
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_save(store, &info, tensors, N, NULL));
    for (int i = 0; i < N; i++)
        memset(tensors[i].bytes, 0, (size_t)lengths[i]);
    LS_CHECK_OK(ls_ckpt_load_newest(store, tensors, N, &info, &found));
    for (int i = 0; i < N; i++) {
        const unsigned char *bytes = tensors[i].bytes;
        for (int64_t b = 0; b < lengths[i]; b++)
            if (bytes[b] != (unsigned char)(b * 31 + b / 251 + i))
                ls_test_fail(__FILE__, __LINE__, "tensor %d differs at %lld", i, (long long)b);
        free(tensors[i].bytes);
    }
    ls_ckpt_close(store);
}
