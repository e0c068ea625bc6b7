/* test_cmd_ckpt_copy.c -- two stores: copies, healing from a mirror; what differs; what prune would
 * remove. */
#include "harness.h"
#include "sample.h"
#include <math.h>
#include <unistd.h>
#include "base/file.h"

/* The checkpoint of a step of a store, and its copy in another. */
static ls_status copy(const char *from, int64_t step, const char *to, ls_ckpt_copied *copied)
{
    ls_ckpt_store *a = NULL, *b = NULL;
    ls_ckpt *ckpt = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, ls_ckpt_open(&a, from, false), out);
    LS_TRY(st, ls_ckpt_find(a, step, &ckpt, NULL), out);
    LS_TRY(st, ls_ckpt_open(&b, to, true), out);
    LS_TRY(st, ls_ckpt_copy(ckpt, b, copied), out);
out:
    ls_ckpt_free(ckpt);
    ls_ckpt_close(a);
    ls_ckpt_close(b);
    return st;
}

static void check_whole(const char *dir, sample *s, uint32_t salt)
{
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    ls_ckpt_info info;
    bool found;
    int damaged;

    LS_CHECK_OK(ls_ckpt_open(&store, dir, false));
    LS_CHECK_OK(ls_ckpt_find(store, salt, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
    LS_CHECK_EQ(damaged, 0);
    sample_wipe(s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s->tensors, s->n, &info, &found));
    LS_CHECK(found && sample_is(s, salt));
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
}

LS_TEST(ckpt_copy_goes_on_and_heals)
{
    sample s;
    ls_ckpt_copied c;
    file_list files;

    sample_make(&s);
    LS_CHECK_OK(sample_save("a", &s, 1));
    LS_CHECK_OK(sample_save("a", &s, 2));
    LS_CHECK_OK(copy("a", 2, "b", &c));
    LS_CHECK(c.objects_copied > 2 && c.objects_there == 0 && c.objects_healed == 0);
    int all = c.objects_copied;
    check_whole("b", &s, 2);
    LS_CHECK(!ls_file_exists("b/step-0000000001.json"));
    /* again: nothing to do; with one object gone and one damaged: only these */
    LS_CHECK_OK(copy("a", 2, "b", &c));
    LS_CHECK(c.objects_copied == 0 && c.objects_there == all);
    file_list_make(&files, "b/objects", ".safetensors");
    LS_CHECK_EQ(unlink(files.path[0]), 0);
    file_flip(files.path[1], file_size(files.path[1]) / 2, 3);
    LS_CHECK_OK(copy("a", 2, "b", &c));
    LS_CHECK(c.objects_copied == 2 && c.objects_healed == 1 && c.objects_there == all - 2);
    check_whole("b", &s, 2);
    /* what the first step shares with the second is there already */
    LS_CHECK_OK(copy("a", 1, "b", &c));
    LS_CHECK(c.objects_there > 0 && c.objects_copied > 0);
    /* a damaged source is found, and commits nothing */
    file_list_make(&files, "a/objects", ".safetensors");
    for (int i = 0; i < files.n; i++)
        file_flip(files.path[i], file_size(files.path[i]) - 1, 0);
    LS_CHECK_FAILS(copy("a", 2, "c", &c), LS_EDATA, "damaged");
    LS_CHECK(!ls_file_exists("c/step-0000000002.json"));
    sample_release(&s);
}

LS_TEST(ckpt_mirror_heals_what_is_read)
{
    sample s;
    ls_ckpt_copied c;
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    ls_ckpt_info info;
    file_list files;
    bool found;
    int damaged;

    log_catch();
    sample_make(&s);
    LS_CHECK_OK(sample_save("a", &s, 2));
    LS_CHECK_OK(copy("a", 2, "m", &c));
    file_list_make(&files, "a/objects", ".safetensors");
    for (int i = 0; i < files.n; i++)
        if (i % 3 == 0)
            LS_CHECK_EQ(unlink(files.path[i]), 0);
        else
            file_flip(files.path[i], file_size(files.path[i]) - 1, i % 8);
    LS_CHECK_OK(ls_ckpt_open(&store, "a", true));
    LS_CHECK_FAILS(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found), LS_EDATA, "missing");
    LS_CHECK_OK(ls_ckpt_set_mirror(store, "m"));
    sample_wipe(&s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &info, &found));
    LS_CHECK(found && sample_is(&s, 2));
    LS_CHECK(strstr(log_last(), "healed from \"m\""));
    LS_CHECK_OK(ls_ckpt_find(store, 2, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
    LS_CHECK_EQ(damaged, 0);
    /* a part alone heals too; not from a mirror that is damaged as well */
    const ls_ckpt_tensor *t = &s.tensors[0];
    const int64_t zero[LS_CKPT_RANK] = {0};
    for (int i = 0; i < files.n; i++)
        file_flip(files.path[i], file_size(files.path[i]) - 1, 1);
    for (int i = 0; i < s.n; i++)
        LS_CHECK_OK(ls_ckpt_read_box(ckpt, s.tensors[i].name, s.tensors[i].kind, zero,
                                     s.tensors[i].shape, s.tensors[i].bytes));
    LS_CHECK(sample_is(&s, 2));
    for (int i = 0; i < files.n; i++) {
        file_flip(files.path[i], file_size(files.path[i]) - 1, 1);
        files.path[i][0] = 'm';
        file_flip(files.path[i], file_size(files.path[i]) - 1, 2);
    }
    LS_CHECK_FAILS(ls_ckpt_read_box(ckpt, t->name, t->kind, zero, t->shape, t->bytes), LS_EDATA,
                   "damaged in bytes");
    LS_CHECK(strstr(log_last(), "cannot heal from \"m\""));
    LS_EXPECT_LOG(2 * files.n); /* healed twice but one that is empty; the last one not at all */
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}

typedef struct changes {
    int n;
    ls_ckpt_change last;
} changes;

static void note(const ls_ckpt_change *c, void *context)
{
    changes *all = context;

    all->n++;
    all->last = *c;
}

/* a and b of the same tensors, b with one element of "w" changed. */
static void diff(const ls_ckpt_tensor *a, int n_a, const ls_ckpt_tensor *b, int n_b, changes *seen,
                 ls_ckpt_diffs *sum)
{
    ls_ckpt_store *one, *two;
    ls_ckpt *x = NULL, *y = NULL;
    ls_ckpt_info info = sample_info(1);

    *seen = (changes){.n = 0};
    LS_CHECK_OK(ls_ckpt_open(&one, "one", true));
    LS_CHECK_OK(ls_ckpt_open(&two, "two", true));
    LS_CHECK_OK(ls_ckpt_save(one, &info, a, n_a, NULL));
    LS_CHECK_OK(ls_ckpt_save(two, &info, b, n_b, NULL));
    LS_CHECK_OK(ls_ckpt_find(one, 1, &x, NULL));
    LS_CHECK_OK(ls_ckpt_find(two, 1, &y, NULL));
    LS_CHECK_OK(ls_ckpt_diff(x, y, note, seen, sum));
    ls_ckpt_free(x);
    ls_ckpt_free(y);
    ls_ckpt_close(one);
    ls_ckpt_close(two);
}

LS_TEST(ckpt_diff_shows_what_and_how_much)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16, LS_F64, LS_I32, LS_U8};
    uint16_t halves[2] = {0x3c00, 0x3e00}, others[2] = {0x3c00, 0xbe00}; /* 1, 1.5 and 1, -1.5 */
    uint16_t brains[2] = {0x3f80, 0x3fc0}, odd[2] = {0x3f80, 0xbfc0};
    float singles[2] = {1, 1.5f}, more[2] = {1, -1.5f};
    double doubles[2] = {1, 1.5}, less[2] = {1, -1.5};
    int32_t counts[2] = {1, 2}, fewer[2] = {1, -1};
    unsigned char bytes[2] = {1, 5}, low[2] = {1, 2};
    void *first[] = {singles, brains, halves, doubles, counts, bytes};
    void *second[] = {more, odd, others, less, fewer, low};
    changes seen;
    ls_ckpt_diffs sum;

    for (size_t i = 0; i < LS_COUNT(types); i++) {
        ls_ckpt_tensor a[2] = {
            {.name = "w", .kind = "param", .type = types[i], .ndim = 1, .shape = {2}},
            {.name = "x", .kind = "param", .group = "x", .type = LS_F32, .ndim = 1, .shape = {2}}};
        ls_ckpt_tensor b[2];
        a[0].bytes = first[i];
        a[1].bytes = singles;
        memcpy(b, a, sizeof b);
        diff(a, 2, b, 2, &seen, &sum);
        LS_CHECK(seen.n == 0 && sum.same == 2 && sum.different == 0 && sum.shared_bytes > 0);
        b[0].bytes = second[i];
        diff(a, 2, b, 2, &seen, &sum);
        LS_CHECK(seen.n == 1 && seen.last.how == LS_CKPT_CHANGED && seen.last.differ == 1);
        LS_CHECK(seen.last.most == 3 && sum.same == 1 && sum.shared_bytes > 0);
    }
    ls_ckpt_tensor a = {
        .name = "w", .kind = "param", .type = LS_F32, .ndim = 1, .shape = {2}, .bytes = singles};
    ls_ckpt_tensor b[2] = {a, a};
    more[1] = NAN;
    b[0].bytes = more;
    diff(&a, 1, b, 1, &seen, &sum);
    LS_CHECK(seen.n == 1 && isinf(seen.last.most));
    b[0].shape[0] = 1;
    diff(&a, 1, b, 1, &seen, &sum);
    LS_CHECK(seen.n == 1 && seen.last.how == LS_CKPT_SHAPED);
    b[0] = a;
    b[1].name = "y";
    diff(&a, 1, b, 2, &seen, &sum);
    LS_CHECK(seen.n == 1 && seen.last.how == LS_CKPT_SECOND_ONLY);
    diff(b, 2, &a, 1, &seen, &sum);
    LS_CHECK(seen.n == 1 && seen.last.how == LS_CKPT_FIRST_ONLY);
}

static void count(const char *path, int64_t bytes, void *context)
{
    LS_CHECK_EQ(file_size(path), bytes);
    *(int *)context += 1;
}

LS_TEST(ckpt_prune_shows_before_it_removes)
{
    sample s;
    ls_ckpt_store *store, *holder;
    file_list before, after;
    int shown = 0;
    int64_t would, freed;

    sample_make(&s);
    for (int64_t step = 1; step <= 4; step++)
        LS_CHECK_OK(sample_save("c", &s, step));
    file_list_make(&before, "c", "");
    LS_CHECK_OK(ls_ckpt_open(&holder, "c", true)); /* a run that writes is not disturbed */
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_prune_by(
        store, &(ls_ckpt_pruning){.keep = 2, .dry = true, .tell = count, .context = &shown},
        &would));
    file_list_make(&after, "c", "");
    LS_CHECK(shown > 2 && would > 0 && after.n == before.n);
    ls_ckpt_close(holder);
    LS_CHECK_OK(ls_ckpt_prune_by(store, &(ls_ckpt_pruning){.keep = 2}, &freed));
    file_list_make(&after, "c", "");
    LS_CHECK(freed == would && after.n == before.n - shown);
    ls_ckpt_close(store);
    check_whole("c", &s, 4);
    sample_release(&s);
}
