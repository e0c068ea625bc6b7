/* test_board.c -- the node's shared memory: what is refused, what runs out, what stays. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/board_impl.h"
#include "comm/node/ranks.h"
#include "comm/node/wait.h"

static int make(int ranks)
{
    int fd = -1;

    LS_CHECK_OK(ls_board_create(
        &(ls_board_args){.generation = 5, .ranks = ranks, .heap_bytes = 16 * LS_MIB}, &fd));
    return fd;
}

/* --- opening ---------------------------------------------------------------------------------- */

LS_TEST(board_refuses_numbers_of_ranks_that_cannot_be)
{
    int fd;

    LS_CHECK_FAILS(ls_board_create(&(ls_board_args){.ranks = 0}, &fd), LS_EUSAGE, "0 ranks");
    LS_CHECK_FAILS(ls_board_create(&(ls_board_args){.ranks = 10000}, &fd), LS_EUSAGE,
                   "10000 ranks on one node: there can be 1 to 256");
}

LS_TEST(board_of_most_ranks_with_all_memory_opens)
{
    ls_board *board;
    int fd;

#if defined(__SANITIZE_THREAD__)
    ls_test_skip("a sanitizer has no room for so many addresses");
#endif
    LS_CHECK_OK(ls_board_create(&(ls_board_args){.ranks = LS_BOARD_RANKS}, &fd));
    LS_CHECK_OK(ls_board_open(&board, fd, 0));
    LS_CHECK_EQ(ls_board_ranks(board), LS_BOARD_RANKS);
    ls_board_close(board);
    close(fd);
}

static void refuse(int fd, ls_status status, const char *why)
{
    ls_board *board = NULL;

    LS_CHECK_FAILS(ls_board_open(&board, fd, 5), status, why);
    LS_CHECK(!board);
}

LS_TEST(board_refuses_what_is_not_one)
{
    char garbage[8192];
    int fds[2], fd;

    memset(garbage, 0xa5, sizeof garbage);
    refuse(-1, LS_EIO, "cannot use descriptor -1");
    refuse(999, LS_EIO, "Bad file descriptor");
    LS_CHECK_EQ(pipe(fds), 0);
    refuse(fds[0], LS_EDATA, "is not the shared memory of a node");
    fd = open("/dev/null", O_RDWR);
    refuse(fd, LS_EDATA, "is not the shared memory of a node");
    fd = open("file", O_RDWR | O_CREAT, 0600);
    LS_CHECK_EQ(write(fd, garbage, sizeof garbage), sizeof garbage);
    refuse(fd, LS_EDATA, "is not the shared memory of a node");
    fd = memfd_create("empty", MFD_ALLOW_SEALING);
    LS_CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    refuse(fd, LS_EDATA, "is not the shared memory of a node");
    fd = memfd_create("garbage", MFD_ALLOW_SEALING);
    LS_CHECK_EQ(write(fd, garbage, sizeof garbage), sizeof garbage);
    refuse(fd, LS_EDATA, "is not the shared memory of a node"); /* not sealed */
    LS_CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    refuse(fd, LS_EDATA, "is not the shared memory of a node");
}

/* Change some bytes of a good header. */
static void change(size_t at, const void *bytes, size_t len, ls_status status, const char *why)
{
    int fd = make(2);

    LS_CHECK_EQ(pwrite(fd, bytes, len, (off_t)at), len);
    refuse(fd, status, why);
    close(fd);
}

LS_TEST(board_refuses_another_version_layout_or_generation)
{
    uint32_t version = 77, ranks[] = {0, 3, 100000, UINT32_MAX};
    int64_t far[] = {-1, 0, INT64_MAX, 4096};
    ls_board *board;
    int fd = make(2);

    LS_CHECK_FAILS(ls_board_open(&board, fd, 6), LS_EUSAGE,
                   "the node's shared memory is of generation 5, not 6");
    change(offsetof(ls_board_head, version), &version, sizeof version, LS_EDATA, "has version 77");
    for (size_t i = 0; i < LS_COUNT(ranks); i++)
        change(offsetof(ls_board_head, ranks), &ranks[i], sizeof *ranks, LS_EDATA,
               "laid out for another build");
    for (size_t i = 0; i < LS_COUNT(far); i++) {
        change(offsetof(ls_board_head, heap_at), &far[i], sizeof *far, LS_EDATA, "another build");
        change(offsetof(ls_board_head, bytes), &far[i], sizeof *far, LS_EDATA, "another build");
        change(offsetof(ls_board_head, heap_bytes), &far[i], sizeof *far, LS_EDATA,
               "another build");
        change(offsetof(ls_board_head, seats_at), &far[i], sizeof *far, LS_EDATA, "another build");
        change(offsetof(ls_board_head, groups_at), &far[i], sizeof *far, LS_EDATA, "another build");
        change(offsetof(ls_board_head, group_bytes), &far[i], sizeof *far, LS_EDATA,
               "another build");
    }
    close(fd);
}

LS_TEST(board_cannot_be_cut_by_anybody)
{
    int fd = make(1);

    LS_CHECK(ftruncate(fd, 0) != 0 && errno == EPERM);
    close(fd);
}

LS_TEST(board_opens_or_says_that_memory_is_short)
{
    int fd = make(2), n = 1;
    ls_board *board;

    for (;; n++) {
        ls_mem_fail_nth((uint64_t)n);
        ls_status st = ls_board_open(&board, fd, 5);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n > 1);
    ls_board_close(board);
    close(fd);
}

LS_TEST(board_beyond_the_limit_of_files_is_an_error)
{
    struct rlimit most = {LS_MIB, RLIM_INFINITY};
    int fd;

    LS_CHECK_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
    LS_CHECK_FAILS(ls_board_create(&(ls_board_args){.ranks = 2}, &fd), LS_ENOMEM,
                   "files may not be larger than 1.0 MiB");
}

LS_TEST(board_beyond_the_limit_of_addresses_is_an_error)
{
    struct rlimit most = {LS_GIB, RLIM_INFINITY};
    ls_board *board;
    int fd;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    ls_test_skip("a sanitizer needs more addresses than this test allows");
#endif
    LS_CHECK_OK(ls_board_create(&(ls_board_args){.ranks = 2, .heap_bytes = 8 * LS_GIB}, &fd));
    LS_CHECK_EQ(setrlimit(RLIMIT_AS, &most), 0);
    LS_CHECK_FAILS(ls_board_open(&board, fd, 0), LS_ENOMEM, "cannot map the node's shared memory");
}

/* --- seats ------------------------------------------------------------------------------------ */

LS_TEST(board_gives_a_seat_once)
{
    char name[LS_BOARD_NAME], want[LS_BOARD_NAME];
    int fd = make(2);
    ls_board *board;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    LS_CHECK_STR(ls_board_name(board, 1, name), "local rank 1");
    LS_CHECK_OK(ls_board_join(board, 1, 33, "here"));
    snprintf(want, sizeof want, "rank 33 (pid %d on here)", (int)getpid());
    LS_CHECK_STR(ls_board_name(board, 1, name), want);
    LS_CHECK_FAILS(ls_board_join(board, 1, 34, "here"), LS_EBUSY, "which is running");
    LS_CHECK_FAILS(ls_board_join(board, 2, 34, "here"), LS_EUSAGE, "this node has 2");
    LS_CHECK_FAILS(ls_board_join(board, -1, 34, "here"), LS_EUSAGE, "this node has 2");
    LS_CHECK_FAILS(ls_board_meet(board, 1, ls_ranks_in_ms(50)), LS_EDEADLINE,
                   "local rank 0 did not come");
    LS_CHECK_FAILS(ls_board_meet(board, 1, ls_test_soon()), LS_EPEER,
                   "gave up: local rank 0 did not come"); /* at once */
    ls_board_close(board);
    close(fd);
}

LS_TEST(board_seat_of_a_dead_process_is_named)
{
    int fd = make(1), status;
    ls_board *board;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    int pid = fork();
    if (pid == 0)
        _exit(ls_board_join(board, 0, 0, "here") != LS_OK);
    LS_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    LS_CHECK_FAILS(ls_board_join(board, 0, 0, "here"), LS_EBUSY, "which is gone");
    ls_board_close(board);
    close(fd);
}

/* --- heap ------------------------------------------------------------------------------------- */

LS_TEST(board_hands_out_zeroed_aligned_memory)
{
    int fd = make(2);
    ls_board *board;
    void *p[3], *again;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    for (int round = 0; round < 2; round++) {
        static const int64_t sizes[] = {1, 5000, 3 * LS_MIB};
        for (int i = 0; i < 3; i++) {
            LS_CHECK_OK(ls_board_alloc(board, 1, sizes[i], "test", &p[i]));
            LS_CHECK_EQ((uintptr_t)p[i] % 4096, 0);
            for (int64_t k = 0; k < sizes[i]; k++)
                LS_CHECK_EQ(((char *)p[i])[k], 0);
            memset(p[i], 1, (size_t)sizes[i]);
        }
        ls_board_free(board, 1, p[1]);
        LS_CHECK_OK(ls_board_alloc(board, 1, 4097, "test", &again)); /* the gap is used */
        LS_CHECK(again == p[1]);
        ls_board_free(board, 1, again);
        ls_board_free(board, 1, p[0]);
        ls_board_free(board, 1, p[2]);
        ls_board_free(board, 1, NULL);
    }
    LS_CHECK_FAILS(ls_board_alloc(board, 1, -1, "test", &again), LS_EUSAGE, "-1 bytes");
    ls_board_close(board);
    close(fd);
}

/* What another rank has counts as foreign once it was touched; the own memory never does. */
LS_TEST(board_knows_whose_memory_is_resident)
{
    enum { OWN = 100 * 4096, OTHER = 37 * 4096 };
    int fd = make(2);
    ls_board *board;
    void *own, *other;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    LS_CHECK_OK(ls_board_alloc(board, 0, OWN, "test", &own));
    LS_CHECK_OK(ls_board_alloc(board, 1, OTHER, "test", &other));
    LS_CHECK_EQ(ls_board_foreign_bytes(board, 0), -OWN); /* taken, and nowhere resident yet */
    memset(own, 1, OWN);
    LS_CHECK_EQ(ls_board_foreign_bytes(board, 0), 0);
    memset(other, 1, OTHER);
    LS_CHECK_EQ(ls_board_foreign_bytes(board, 0), OTHER);
    LS_CHECK_EQ(ls_board_foreign_bytes(board, 1), OWN);
    ls_board_free(board, 1, other);
    LS_CHECK_EQ(ls_board_foreign_bytes(board, 0), 0);
    ls_board_close(board);
    close(fd);
}

LS_TEST(board_memory_that_is_not_there_is_an_error)
{
    int fd = make(2), large;
    ls_board *board;
    void *p;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_board_alloc(board, 0, 1, "gradients", &p), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_FAILS(ls_board_alloc(board, 0, 17 * LS_MIB, "gradients", &p), LS_ENOMEM,
                   "for \"gradients\": each rank has room for 16.0 MiB in all");
    LS_CHECK_FAILS(ls_board_alloc(board, 0, INT64_MAX, "gradients", &p), LS_EUSAGE, "bytes");
    LS_CHECK_FAILS(ls_board_alloc(board, 0, INT64_MAX / 2, "gradients", &p), LS_ENOMEM, "room");
    LS_CHECK_OK(ls_board_alloc(board, 0, 16 * LS_MIB, "gradients", &p));
    ls_board_close(board);
    close(fd);
    /* All that the machine has, which is more than is free: refused, nothing is killed. */
    LS_CHECK_OK(ls_board_create(&(ls_board_args){.ranks = 1}, &large));
    LS_CHECK_OK(ls_board_open(&board, large, 0));
    LS_CHECK_FAILS(ls_board_alloc(board, 0, board->head->heap_bytes, "gradients", &p), LS_ENOMEM,
                   "MiB are free");
    ls_board_close(board);
    close(large);
}

/* --- breaking and waiting --------------------------------------------------------------------- */

LS_TEST(board_keeps_the_first_reason)
{
    int fd = make(2);
    ls_board *board;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    LS_CHECK_OK(ls_board_failure(board));
    LS_CHECK(!ls_board_aborted(board));
    ls_board_abort(board, 1, LS_EUSAGE, "reason %d", 1);
    ls_board_abort(board, 0, LS_EPEER, "reason %d", 2);
    ls_board_abort(board, LS_BOARD_AGENT, LS_EPEER, "reason %d", 3);
    LS_CHECK(ls_board_aborted(board));
    LS_CHECK_FAILS(ls_board_failure(board), LS_EUSAGE, "reason 1");
    LS_CHECK_FAILS(ls_board_join(board, 0, 0, "here"), LS_EUSAGE, "reason 1");
    ls_board_close(board);
    close(fd);
}

static void sleeper(ls_ranks *r)
{
    _Atomic int64_t *woken_ns = r->context;
    ls_wait_turn turn = LS_WAIT_ON;
    ls_wait wait;

    if (r->me == 0) {
        int64_t until = ls_test_soon();
        while (!ls_wait_anybody(r->board) && ls_time_now_ns() < until)
            usleep(1000);
        LS_CHECK(ls_wait_anybody(r->board));
        usleep(30000); /* most likely all of them */
        atomic_store(woken_ns, ls_time_now_ns());
        ls_board_abort(r->board, 0, LS_EPEER, "wake up");
        return;
    }
    ls_wait_begin(&wait, r->board, r->me, ls_test_soon());
    while (turn == LS_WAIT_ON)
        turn = ls_wait_once(&wait);
    ls_wait_end(&wait);
    LS_CHECK_EQ(turn, LS_WAIT_BROKEN);
    LS_CHECK_WITHIN(atomic_load(woken_ns), 2000);
}

LS_TEST(board_abort_wakes_sleepers)
{
    void *shared = ls_ranks_shared(4096);

    ls_ranks_run(&(ls_ranks_args){.ranks = 4, .context = shared}, sleeper);
    ls_ranks_run(&(ls_ranks_args){.ranks = 4, .threads = true, .context = shared}, sleeper);
}

LS_TEST(board_groups_run_out_with_a_sentence)
{
    ls_group group[LS_BOARD_GROUPS + 1];
    ls_board *board;
    int fd = make(1), local = 0;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    LS_CHECK_OK(ls_board_join(board, 0, 0, "here"));
    LS_CHECK_OK(ls_board_meet(board, 0, ls_test_soon()));
    for (int i = 0; i < LS_BOARD_GROUPS; i++)
        LS_CHECK_OK(ls_group_open(
            &group[i], board,
            &(ls_group_args){.key = (uint64_t)i + 1, .local = 0, .locals = &local, .members = 1},
            0));
    LS_CHECK_FAILS(
        ls_group_open(&group[LS_BOARD_GROUPS], board,
                      &(ls_group_args){.key = 500, .local = 0, .locals = &local, .members = 1}, 0),
        LS_EBUSY, "all 64 groups of this node are in use");
    ls_board_close(board);
    close(fd);
}

/* --- nothing is left -------------------------------------------------------------------------- */

static int open_files(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int64_t mapped_kib(void)
{
    char line[256];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");

    LS_CHECK(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmSize:", 7) == 0)
            kib = strtoll(line + 7, NULL, 10);
    fclose(f);
    return kib;
}

static void open_and_close(void)
{
    int fd = make(1), local = 0;
    ls_board *board;
    ls_group group;
    ls_direct *direct;
    ls_watch *watch;
    void *memory;

    LS_CHECK_OK(ls_board_open(&board, fd, 5));
    LS_CHECK_OK(ls_board_join(board, 0, 0, "here"));
    LS_CHECK_OK(ls_board_meet(board, 0, ls_test_soon()));
    LS_CHECK_OK(ls_watch_open(&watch, board, 0));
    LS_CHECK_OK(ls_group_open(&group, board, &(ls_group_args){1, 0, &local, 1}, 0));
    LS_CHECK_OK(ls_direct_open(&direct, &group));
    LS_CHECK_OK(ls_board_alloc(board, 0, 100000, "test", &memory));
    memset(memory, 1, 100000);
    LS_CHECK_OK(ls_direct_run(direct, &(ls_coll){.count = 25000, .in = memory, .out = memory},
                              ls_test_soon()));
    ls_direct_close(direct);
    ls_group_close(&group);
    ls_watch_close(watch);
    ls_board_leave(board, 0);
    ls_board_close(board);
    close(fd);
}

LS_TEST(board_opened_and_closed_1000_times_leaves_nothing)
{
    open_and_close();
    int files = open_files();
    int64_t kib = mapped_kib();
    for (int i = 0; i < ls_test_times(1000); i++)
        open_and_close();
    LS_CHECK_EQ(open_files(), files);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    LS_CHECK(mapped_kib() < kib + 16 * 1024); /* a board takes more than that */
#else
    (void)kib;
#endif
}
