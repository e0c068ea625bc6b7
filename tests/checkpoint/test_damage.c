/* test_damage.c -- what a disk, a person or a bad cable can do to a store: always noticed, named,
 * never loaded; the checkpoint before is used. */
#include "harness.h"
#include "sample.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"

#include <unistd.h>

static int warnings; /* announced so far */

/* Two checkpoints, and the paths of what belongs to the second alone. */
static void make_two(sample *s, file_list *own)
{
    file_list first, both;

    log_catch();
    LS_CHECK_OK(sample_save("c", s, 100));
    file_list_make(&first, "c", "");
    LS_CHECK_OK(sample_save("c", s, 200));
    file_list_make(&both, "c", "");
    own->n = 0;
    for (int i = 0; i < both.n; i++) {
        bool old = false;
        for (int j = 0; j < first.n; j++)
            old = old || strcmp(first.path[j], both.path[i]) == 0;
        if (!old)
            memcpy(own->path[own->n++], both.path[i], sizeof own->path[0]);
    }
}

/* The store must give step 100 and say why, naming the file. */
static void expect_fallback(sample *s, const char *hurt)
{
    ls_ckpt_store *store;
    ls_ckpt_info info = {.step = -1};
    bool found;

    sample_wipe(s);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_load_newest(store, s->tensors, s->n, &info, &found));
    if (!found || info.step != 100 || !sample_is(s, 100))
        ls_test_fail(__FILE__, __LINE__, "damage in %s was not noticed", hurt);
    LS_CHECK(strstr(log_last(), hurt));
    LS_CHECK(strstr(log_last(), "going back to step 100 costs 100 steps"));
    LS_EXPECT_LOG(++warnings);
    ls_ckpt_close(store);
}

LS_TEST_SECONDS(damage_flipped_bits_are_found, 60)
{
    sample s;
    file_list own;

    sample_make(&s);
    make_two(&s, &own);
    LS_CHECK_EQ(own.n, 12); /* manifest and 11 objects; frozen and empty ones are shared */
    for (int f = 0; f < own.n; f++) {
        int64_t size = file_size(own.path[f]);
        for (int k = 0; k < 6; k++) {
            ls_rng_block r = ls_rng_philox(ls_rng_derive(1, 2, 3), (uint32_t)f, (uint32_t)k, 0, 0);
            int64_t byte = k == 0 ? 0 : k == 1 ? size - 1 : (int64_t)r.v[0] % size;
            file_flip(own.path[f], byte, (int)(r.v[1] % 8));
            expect_fallback(&s, own.path[f]);
            file_flip(own.path[f], byte, (int)(r.v[1] % 8));
        }
    }
    sample_release(&s);
}

LS_TEST_SECONDS(damage_every_byte_of_a_small_checkpoint, 60)
{
    sample s;
    file_list own;

    sample_make_tiny(&s);
    make_two(&s, &own);
    LS_CHECK_EQ(own.n, 3);
    for (int f = 0; f < own.n; f++)
        for (int64_t byte = 0; byte < file_size(own.path[f]); byte++) {
            file_flip(own.path[f], byte, (int)(byte % 8));
            expect_fallback(&s, own.path[f]);
            file_flip(own.path[f], byte, (int)(byte % 8));
        }
    sample_release(&s);
}

LS_TEST(damage_truncated_longer_missing_and_swapped_files)
{
    sample s;
    file_list own;

    sample_make_tiny(&s);
    make_two(&s, &own);
    for (int f = 0; f < own.n; f++) {
        int64_t size = file_size(own.path[f]), cuts[] = {0, 1, size / 2, size - 1};
        LS_CHECK_EQ(link(own.path[f], "keep"), 0);
        for (size_t i = 0; i < LS_COUNT(cuts); i++) {
            ls_str text;
            ls_str_init(&text);
            LS_CHECK_OK(ls_file_read("keep", 1 << 20, &text));
            LS_CHECK_OK(ls_file_write_atomic(own.path[f], text.p, (size_t)cuts[i]));
            expect_fallback(&s, own.path[f]);
            ls_str_append(&text, "x"); /* one byte too many */
            LS_CHECK_OK(ls_file_write_atomic(own.path[f], text.p, text.len));
            expect_fallback(&s, own.path[f]);
            ls_str_release(&text);
        }
        LS_CHECK_EQ(unlink(own.path[f]), 0);
        if (strstr(own.path[f], ".safetensors"))
            expect_fallback(&s, own.path[f]); /* a missing manifest is no checkpoint, not damage */
        LS_CHECK_EQ(rename("keep", own.path[f]), 0);
    }
    /* the two objects have different sizes here; equal ones are swapped below */
    LS_CHECK_EQ(rename(own.path[0], "x"), 0);
    LS_CHECK_EQ(rename(own.path[1], own.path[0]), 0);
    LS_CHECK_EQ(rename("x", own.path[1]), 0);
    expect_fallback(&s, "objects/");
    sample_release(&s);
}

LS_TEST(damage_objects_of_equal_size_swapped)
{
    sample s = {.n = 0};
    file_list own;

    sample_add(&s, "a", "param", "g", LS_F32, 1, (const int64_t[]){50});
    sample_add(&s, "a", "adam.m", "g", LS_F32, 1, (const int64_t[]){50});
    make_two(&s, &own);
    LS_CHECK_EQ(own.n, 3);
    LS_CHECK_EQ(file_size(own.path[0]), file_size(own.path[1]));
    LS_CHECK_EQ(rename(own.path[0], "x"), 0);
    LS_CHECK_EQ(rename(own.path[1], own.path[0]), 0);
    LS_CHECK_EQ(rename("x", own.path[1]), 0);
    expect_fallback(&s, "is damaged in bytes 0 to");
    sample_release(&s);
}

LS_TEST(damage_manifest_under_another_name)
{
    sample s;
    file_list own;

    sample_make_tiny(&s);
    make_two(&s, &own);
    LS_CHECK_EQ(rename("c/step-0000000200.json", "c/step-0000000300.json"), 0);
    ls_ckpt_store *store;
    ls_ckpt *ckpt;
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_FAILS(ls_ckpt_find(store, 300, &ckpt, NULL), LS_EDATA, "manifest of step 200");
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(damage_everywhere_is_an_error_not_an_empty_store)
{
    sample s;
    file_list own;
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    ls_ckpt_info info;
    bool found;

    sample_make_tiny(&s);
    make_two(&s, &own);
    file_flip("c/step-0000000200.json", 50, 1);
    file_flip("c/step-0000000100.json", 50, 1);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_FAILS(ls_ckpt_find(store, -1, &ckpt, NULL), LS_EDATA, "none of the 2 checkpoints");
    LS_CHECK_FAILS(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found), LS_EDATA,
                   "step-0000000200.json\" is damaged: its hash does not match");
    LS_CHECK_FAILS(ls_ckpt_find(store, 100, &ckpt, NULL), LS_EDATA, "does not match");
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(damage_is_reported_in_notes)
{
    sample s;
    file_list own;
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    ls_str notes;

    ls_str_init(&notes);
    sample_make_tiny(&s);
    make_two(&s, &own);
    LS_CHECK_EQ(unlink(own.path[0]), 0);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_find(store, -1, &ckpt, &notes));
    LS_CHECK_EQ(ls_ckpt_about(ckpt)->step, 100);
    LS_CHECK(strstr(notes.p, own.path[0]) && strstr(notes.p, "costs 100 steps\n"));
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    ls_str_release(&notes);
    sample_release(&s);
}

/* A run that went back and comes to the damaged step again makes the same bytes. The object of that
 * name exists with the right size, and must not be trusted for it. */
LS_TEST(damage_is_healed_by_saving_again)
{
    sample s;
    file_list own;
    ls_ckpt_store *store;
    ls_ckpt_info info;
    bool found;

    LS_EXPECT_LOG(3); /* one object flipped, one cut; and one fallback */
    sample_make_tiny(&s);
    make_two(&s, &own);
    file_flip(own.path[0], 40, 3);
    file_cut(own.path[1], 9);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found));
    LS_CHECK_EQ(info.step, 100);
    ls_ckpt_close(store);
    LS_CHECK_OK(sample_save("c", &s, 200));
    LS_CHECK(strstr(log_last(), "writing it anew"));
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    sample_wipe(&s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found));
    LS_CHECK(info.step == 200 && sample_is(&s, 200));
    ls_ckpt_close(store);
    sample_release(&s);
}

static void count_damage(const char *object, const char *reason, const char *tensors, void *context)
{
    char *line = context;

    snprintf(line, 1024, "%s|%s|%s", object, reason, tensors);
}

LS_TEST(damage_verify_names_object_and_tensors)
{
    sample s;
    file_list own;
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    char line[1024] = "";
    int damaged = -1;

    sample_make(&s);
    make_two(&s, &own);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_find(store, 200, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_verify(ckpt, count_damage, line, &damaged));
    LS_CHECK_EQ(damaged, 0);
    for (int f = 0; f < own.n; f++) {
        if (file_size(own.path[f]) < LS_MIB)
            continue;
        file_flip(own.path[f], LS_MIB + 5, 0); /* in the second block */
        LS_CHECK_OK(ls_ckpt_verify(ckpt, count_damage, line, &damaged));
        LS_CHECK_EQ(damaged, 1);
        LS_CHECK(strstr(line, own.path[f]) && strstr(line, "h.1.attn.weight (") &&
                 strstr(line, "h.1.ln.bias (") && strstr(line, "damaged in bytes 1048576 to "));
        file_flip(own.path[f], LS_MIB + 5, 0);
    }
    LS_CHECK(line[0]);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}
