/* test_vote_store.c -- promises on disk: kept, torn, damaged, and a disk that fails. */
#include "harness.h"
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "cluster/elect/journal.h"
#include "cluster/elect/vote_store.h"

static ls_quorum_promise promise;

static ls_vote_store *open_vote_store(void)
{
    ls_vote_store *v;

    promise.term = 99; /* must be set */
    LS_CHECK_OK(ls_vote_store_open(&v, "vote", &promise));
    return v;
}

static void keep(ls_vote_store *v, uint64_t term)
{
    promise.term = term;
    promise.voted = promise.self;
    LS_CHECK(ls_vote_store_keep(v, &promise));
}

LS_TEST(vote_store_is_kept_with_its_number)
{
    ls_vote_store *v = open_vote_store();
    uint64_t self = promise.self;

    LS_CHECK(self != 0 && promise.term == 0 && promise.view.generation == 0);
    promise.view.n = 2;
    promise.view.member[1] = 5;
    for (uint64_t term = 1; term <= 10; term++)
        keep(v, term);
    ls_vote_store_close(v);
    v = open_vote_store();
    LS_CHECK(promise.self == self && promise.term == 10 && promise.voted == self);
    LS_CHECK(promise.view.n == 2 && promise.view.member[1] == 5);
    ls_vote_store_close(v);
    /* Another journal, another number. */
    LS_CHECK_EQ(unlink("vote"), 0);
    v = open_vote_store();
    LS_CHECK(promise.self != self && promise.term == 0);
    ls_vote_store_close(v);
}

LS_TEST(vote_store_does_not_grow_for_ever)
{
    struct stat info;
    ls_vote_store *v = open_vote_store();

    promise.view.n = promise.view.n_base = LS_QUORUM_NODES; /* 16 KiB each */
    for (uint64_t term = 1; term <= 150; term++)
        keep(v, term);
    LS_CHECK(stat("vote", &info) == 0 && info.st_size < 3 << 19);
    ls_vote_store_close(v);
    v = open_vote_store();
    LS_CHECK_EQ(promise.term, 150);
    ls_vote_store_close(v);
}

LS_TEST(vote_store_torn_is_the_one_before_and_damaged_is_a_new_node)
{
    ls_vote_store *v = open_vote_store();
    uint64_t self = promise.self;
    ls_str file;

    for (uint64_t term = 1; term <= 3; term++)
        keep(v, term);
    ls_vote_store_close(v);
    ls_str_init(&file);
    LS_CHECK_OK(ls_file_read("vote", 1 << 20, &file));
    LS_EXPECT_LOG(2);
    LS_CHECK_EQ(truncate("vote", (off_t)file.len - 1), 0);
    v = open_vote_store();
    LS_CHECK(promise.self == self && promise.term == 2);
    ls_vote_store_close(v);
    file.p[LS_JOURNAL_HEADER + 20] ^= 1; /* of the first record: two that were promised follow */
    LS_CHECK_OK(ls_file_write_atomic("vote", file.p, file.len));
    v = open_vote_store();
    LS_CHECK(promise.self != self && promise.term == 0);
    keep(v, 1);
    ls_vote_store_close(v);
    v = open_vote_store();
    LS_CHECK_EQ(promise.term, 1);
    ls_vote_store_close(v);
    ls_str_release(&file);
}

LS_TEST(vote_store_that_cannot_be_written_is_not_kept)
{
    static const char *const points[] = {"file.write@1", "journal.sync@1"};
    ls_vote_store *v = open_vote_store();

    LS_EXPECT_LOG(3);
    keep(v, 1);
    for (size_t i = 0; i < LS_COUNT(points); i++) {
        promise.term = 10 * (i + 1);
        ls_fault_arm(points[i]);
        LS_CHECK(!ls_vote_store_keep(v, &promise));
        ls_fault_arm(NULL);
        LS_CHECK(ls_vote_store_keep(v, &promise)); /* the disk is well again: a new file */
    }
    ls_mem_fail_nth(1);
    LS_CHECK(!ls_vote_store_keep(v, &promise)); /* memory may end, too */
    ls_mem_fail_nth(0);
    ls_vote_store_close(v);
    v = open_vote_store();
    LS_CHECK_EQ(promise.term, 20);
    ls_vote_store_close(v);
    ls_quorum_promise *p = &promise;
    LS_CHECK_FAILS(ls_vote_store_open(&v, "nowhere/vote", p), LS_EIO, "nowhere/vote");
    for (uint64_t n = 1; n < 3; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_vote_store_open(&v, "vote", p), LS_ENOMEM);
    }
    ls_mem_fail_nth(0);
}
