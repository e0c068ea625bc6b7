/* test_keep.c -- which checkpoints stay: the newest, every M-th, pinned ones, two at least; and the
 * chain of manifests. */
#include "harness.h"
#include "sample.h"
#include "base/file.h"
#include "base/mem.h"

#include <unistd.h>

static void save_steps(sample *s, int first, int last)
{
    for (int step = first; step <= last; step++)
        LS_CHECK_OK(sample_save("c", s, step));
}

/* The steps that are there are those of the list, which ends with 0. */
static void expect_steps(const int *want)
{
    ls_ckpt_store *store;
    int64_t *steps;
    int n;

    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_steps(store, &steps, &n));
    for (int i = 0; i < n; i++) {
        ls_ckpt *ckpt = NULL;
        int damaged = 1;
        LS_CHECK_EQ(steps[i], want[i]);
        LS_CHECK_OK(ls_ckpt_find(store, steps[i], &ckpt, NULL));
        LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
        LS_CHECK_EQ(damaged, 0);
        ls_ckpt_free(ckpt);
    }
    LS_CHECK_EQ(want[n], 0);
    ls_mem_free(steps);
    ls_ckpt_close(store);
}

static void prune(const ls_ckpt_pruning *how)
{
    ls_ckpt_store *store;

    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_prune_by(store, how, NULL));
    ls_ckpt_close(store);
}

LS_TEST(keep_newest_every_and_pinned)
{
    sample s;
    ls_ckpt_store *store;

    sample_make_tiny(&s);
    save_steps(&s, 1, 12);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_pin(store, 7, true));
    LS_CHECK_OK(ls_ckpt_pin(store, 7, true)); /* twice is once */
    LS_CHECK(ls_ckpt_is_pinned(store, 7) && !ls_ckpt_is_pinned(store, 8));
    LS_CHECK_FAILS(ls_ckpt_pin(store, 99, true), LS_EUSAGE, "no checkpoint of step 99");
    LS_CHECK(!ls_ckpt_is_pinned(store, 99));
    LS_CHECK_FAILS(ls_ckpt_pin(store, 8, false), LS_EUSAGE, "step 8 is not pinned");
    prune(&(ls_ckpt_pruning){.keep = 2, .keep_every = 5});
    expect_steps((const int[]){5, 7, 10, 11, 12, 0});
    LS_CHECK_OK(ls_ckpt_pin(store, 7, false));
    prune(&(ls_ckpt_pruning){.keep = 1, .keep_every = 5, .least = 3});
    expect_steps((const int[]){5, 10, 11, 12, 0});
    prune(&(ls_ckpt_pruning){.keep = 1, .least = 2});
    expect_steps((const int[]){11, 12, 0});
    /* a damaged one does not count */
    save_steps(&s, 13, 13);
    file_cut("c/step-0000000013.json", 50);
    prune(&(ls_ckpt_pruning){.keep = 1, .least = 2});
    LS_CHECK_EQ(unlink("c/step-0000000013.json"), 0);
    expect_steps((const int[]){11, 12, 0});
    ls_ckpt_close(store);
    sample_release(&s);
}

/* What is pinned in a run's own store stays in its mirror. */
LS_TEST(keep_what_another_store_has_pinned)
{
    sample s;
    ls_ckpt_store *store;

    sample_make_tiny(&s);
    save_steps(&s, 1, 5);
    LS_CHECK_OK(sample_save("other", &s, 2));
    LS_CHECK_OK(ls_ckpt_open(&store, "other", false));
    LS_CHECK_OK(ls_ckpt_pin(store, 2, true));
    prune(&(ls_ckpt_pruning){.keep = 1, .like = store});
    expect_steps((const int[]){2, 5, 0});
    ls_ckpt_close(store);
    sample_release(&s);
}

static int64_t follows(int64_t step)
{
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    int64_t before = -9;

    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_OK(ls_ckpt_find(store, step, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_follows(store, ckpt, &before));
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    return before;
}

LS_TEST(keep_chain_of_manifests)
{
    sample s;

    sample_make_tiny(&s);
    save_steps(&s, 1, 4);
    LS_CHECK_EQ(follows(1), -1);
    LS_CHECK_EQ(follows(2), 1);
    LS_CHECK_EQ(follows(4), 3);
    file_flip("c/step-0000000003.json", 40, 2);
    LS_CHECK_EQ(follows(4), -2); /* damaged */
    file_flip("c/step-0000000003.json", 40, 2);
    LS_CHECK_EQ(follows(4), 3);
    LS_CHECK_EQ(unlink("c/step-0000000003.json"), 0);
    LS_CHECK_EQ(follows(4), -2);
    sample_fill(&s, 9); /* another content, as of a run that went back */
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(3);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, NULL));
    ls_ckpt_close(store);
    LS_CHECK_EQ(follows(3), 2);
    LS_CHECK_EQ(follows(4), -2);
    sample_release(&s);
}

static void save_best(sample *s, int step)
{
    ls_ckpt_store *store;
    ls_ckpt_info info = sample_info(step);

    info.best = true;
    info.lineage = "from a, step 3";
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_save(store, &info, s->tensors, s->n, NULL));
    ls_ckpt_close(store);
}

/* The step that "best" means by this path. */
static int64_t best_by(const char *path)
{
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    int64_t step;
    ls_str dir;

    ls_str_init(&dir);
    LS_CHECK_OK(ls_ckpt_locate(path, &dir, &step));
    LS_CHECK_EQ(step, LS_CKPT_BEST);
    LS_CHECK_OK(ls_ckpt_open(&store, dir.p, false));
    LS_CHECK_OK(ls_ckpt_find(store, step, &ckpt, NULL));
    step = ls_ckpt_about(ckpt)->step;
    LS_CHECK(ls_ckpt_about(ckpt)->best);
    LS_CHECK_STR(ls_ckpt_about(ckpt)->lineage, "from a, step 3");
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    ls_str_release(&dir);
    return step;
}

/* The newest that was the best stays, however old it gets; the one before it goes like any other. */
LS_TEST(keep_the_best)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;

    sample_make_tiny(&s);
    save_steps(&s, 1, 2);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
    LS_CHECK_FAILS(ls_ckpt_find(store, LS_CKPT_BEST, &ckpt, NULL), LS_EUSAGE,
                   "is marked as the best");
    save_best(&s, 3);
    save_steps(&s, 4, 4);
    save_best(&s, 5);
    save_steps(&s, 6, 9);
    prune(&(ls_ckpt_pruning){.keep = 2});
    expect_steps((const int[]){5, 8, 9, 0});
    LS_CHECK_EQ(best_by("c/best"), 5);
    /* a damaged one is not the best of those that are left */
    save_best(&s, 10);
    file_cut("c/step-0000000010.json", 50);
    LS_CHECK_EQ(best_by("c/best"), 5);
    prune(&(ls_ckpt_pruning){.keep = 1});
    LS_CHECK_EQ(unlink("c/step-0000000010.json"), 0);
    expect_steps((const int[]){5, 9, 0});
    ls_ckpt_close(store);
    sample_release(&s);
}
