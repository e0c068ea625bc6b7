/* test_shm_segment.c -- the node's shared memory: what is refused, what runs out, what stays. */
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
#include "comm/node/shm_segment_impl.h"
#include "comm/node/ranks.h"
#include "comm/node/wait.h"

static int make(int ranks)
{
    int fd = -1;

    LS_CHECK_OK(ls_shm_segment_create(
        &(ls_shm_segment_args){.generation = 5, .ranks = ranks, .heap_bytes = 16 * LS_MIB}, &fd));
    return fd;
}

/* --- opening ---------------------------------------------------------------------------------- */

LS_TEST(segment_refuses_numbers_of_ranks_that_cannot_be)
{
    int fd;

    LS_CHECK_FAILS(ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 0}, &fd), LS_EUSAGE,
                   "0 ranks");
    LS_CHECK_FAILS(ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 10000}, &fd), LS_EUSAGE,
                   "10000 ranks on one node: there can be 1 to 256");
}

LS_TEST(segment_of_most_ranks_with_all_memory_opens)
{
    ls_shm_segment *segment;
    int fd;

#if defined(__SANITIZE_THREAD__)
    ls_test_skip("a sanitizer has no room for so many addresses");
#endif
    LS_CHECK_OK(ls_shm_segment_create(&(ls_shm_segment_args){.ranks = LS_SHM_SEGMENT_RANKS}, &fd));
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 0));
    LS_CHECK_EQ(ls_shm_segment_ranks(segment), LS_SHM_SEGMENT_RANKS);
    ls_shm_segment_close(segment);
    close(fd);
}

static void refuse(int fd, ls_status status, const char *why)
{
    ls_shm_segment *segment = NULL;

    LS_CHECK_FAILS(ls_shm_segment_open(&segment, fd, 5), status, why);
    LS_CHECK(!segment);
}

LS_TEST(segment_refuses_what_is_not_one)
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

LS_TEST(segment_refuses_another_version_layout_or_generation)
{
    uint32_t version = 77, ranks[] = {0, 3, 100000, UINT32_MAX};
    int64_t far[] = {-1, 0, INT64_MAX, 4096};
    ls_shm_segment *segment;
    int fd = make(2);

    LS_CHECK_FAILS(ls_shm_segment_open(&segment, fd, 6), LS_EUSAGE,
                   "the node's shared memory is of generation 5, not 6");
    change(offsetof(ls_shm_segment_head, version), &version, sizeof version, LS_EDATA,
           "has version 77");
    for (size_t i = 0; i < LS_COUNT(ranks); i++)
        change(offsetof(ls_shm_segment_head, ranks), &ranks[i], sizeof *ranks, LS_EDATA,
               "laid out for another build");
    for (size_t i = 0; i < LS_COUNT(far); i++) {
        change(offsetof(ls_shm_segment_head, heap_at), &far[i], sizeof *far, LS_EDATA,
               "another build");
        change(offsetof(ls_shm_segment_head, bytes), &far[i], sizeof *far, LS_EDATA,
               "another build");
        change(offsetof(ls_shm_segment_head, heap_bytes), &far[i], sizeof *far, LS_EDATA,
               "another build");
        change(offsetof(ls_shm_segment_head, processes_at), &far[i], sizeof *far, LS_EDATA,
               "another build");
        change(offsetof(ls_shm_segment_head, groups_at), &far[i], sizeof *far, LS_EDATA,
               "another build");
        change(offsetof(ls_shm_segment_head, group_bytes), &far[i], sizeof *far, LS_EDATA,
               "another build");
    }
    close(fd);
}

LS_TEST(segment_cannot_be_cut_by_anybody)
{
    int fd = make(1);

    LS_CHECK(ftruncate(fd, 0) != 0 && errno == EPERM);
    close(fd);
}

LS_TEST(segment_opens_or_says_that_memory_is_short)
{
    int fd = make(2), n = 1;
    ls_shm_segment *segment;

    for (;; n++) {
        ls_mem_fail_nth((uint64_t)n);
        ls_status st = ls_shm_segment_open(&segment, fd, 5);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n > 1);
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST(segment_beyond_the_limit_of_files_is_an_error)
{
    struct rlimit most = {LS_MIB, RLIM_INFINITY};
    int fd;

    LS_CHECK_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
    LS_CHECK_FAILS(ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 2}, &fd), LS_ENOMEM,
                   "files may not be larger than 1.0 MiB");
}

LS_TEST(segment_beyond_the_limit_of_addresses_is_an_error)
{
    struct rlimit most = {LS_GIB, RLIM_INFINITY};
    ls_shm_segment *segment;
    int fd;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    ls_test_skip("a sanitizer needs more addresses than this test allows");
#endif
    LS_CHECK_OK(
        ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 2, .heap_bytes = 8 * LS_GIB}, &fd));
    LS_CHECK_EQ(setrlimit(RLIMIT_AS, &most), 0);
    LS_CHECK_FAILS(ls_shm_segment_open(&segment, fd, 0), LS_ENOMEM,
                   "cannot map the node's shared memory");
}

/* --- seats ------------------------------------------------------------------------------------ */

LS_TEST(segment_gives_a_seat_once)
{
    char name[LS_SHM_SEGMENT_NAME], want[LS_SHM_SEGMENT_NAME];
    int fd = make(2);
    ls_shm_segment *segment;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    LS_CHECK_STR(ls_shm_segment_name(segment, 1, name), "local rank 1");
    LS_CHECK_OK(ls_shm_segment_join(segment, 1, 33, "here"));
    snprintf(want, sizeof want, "rank 33 (pid %d on here)", (int)getpid());
    LS_CHECK_STR(ls_shm_segment_name(segment, 1, name), want);
    LS_CHECK_FAILS(ls_shm_segment_join(segment, 1, 34, "here"), LS_EBUSY, "which is running");
    LS_CHECK_FAILS(ls_shm_segment_join(segment, 2, 34, "here"), LS_EUSAGE, "this node has 2");
    LS_CHECK_FAILS(ls_shm_segment_join(segment, -1, 34, "here"), LS_EUSAGE, "this node has 2");
    LS_CHECK_FAILS(ls_shm_segment_meet(segment, 1, ls_ranks_in_ms(50)), LS_EDEADLINE,
                   "local rank 0 did not come");
    LS_CHECK_FAILS(ls_shm_segment_meet(segment, 1, ls_test_soon()), LS_EPEER,
                   "gave up: local rank 0 did not come"); /* at once */
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST(segment_seat_of_a_dead_process_is_named)
{
    int fd = make(1), status;
    ls_shm_segment *segment;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    int pid = fork();
    if (pid == 0)
        _exit(ls_shm_segment_join(segment, 0, 0, "here") != LS_OK);
    LS_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    LS_CHECK_FAILS(ls_shm_segment_join(segment, 0, 0, "here"), LS_EBUSY, "which is gone");
    ls_shm_segment_close(segment);
    close(fd);
}

/* --- heap ------------------------------------------------------------------------------------- */

LS_TEST(segment_hands_out_zeroed_aligned_memory)
{
    int fd = make(2);
    ls_shm_segment *segment;
    void *p[3], *again;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    for (int round = 0; round < 2; round++) {
        static const int64_t sizes[] = {1, 5000, 3 * LS_MIB};
        for (int i = 0; i < 3; i++) {
            LS_CHECK_OK(ls_shm_segment_alloc(segment, 1, sizes[i], "test", &p[i]));
            LS_CHECK_EQ((uintptr_t)p[i] % 4096, 0);
            for (int64_t k = 0; k < sizes[i]; k++)
                LS_CHECK_EQ(((char *)p[i])[k], 0);
            memset(p[i], 1, (size_t)sizes[i]);
        }
        ls_shm_segment_free(segment, 1, p[1]);
        LS_CHECK_OK(ls_shm_segment_alloc(segment, 1, 4097, "test", &again)); /* the gap is used */
        LS_CHECK(again == p[1]);
        ls_shm_segment_free(segment, 1, again);
        ls_shm_segment_free(segment, 1, p[0]);
        ls_shm_segment_free(segment, 1, p[2]);
        ls_shm_segment_free(segment, 1, NULL);
    }
    LS_CHECK_FAILS(ls_shm_segment_alloc(segment, 1, -1, "test", &again), LS_EUSAGE, "-1 bytes");
    ls_shm_segment_close(segment);
    close(fd);
}

/* What another rank has counts as foreign once it was touched; the own memory never does. */
LS_TEST(segment_knows_whose_memory_is_resident)
{
    enum { OWN = 100 * 4096, OTHER = 37 * 4096 };
    int fd = make(2);
    ls_shm_segment *segment;
    void *own, *other;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    LS_CHECK_OK(ls_shm_segment_alloc(segment, 0, OWN, "test", &own));
    LS_CHECK_OK(ls_shm_segment_alloc(segment, 1, OTHER, "test", &other));
    LS_CHECK_EQ(ls_shm_segment_foreign_bytes(segment, 0),
                -OWN); /* taken, and nowhere resident yet */
    memset(own, 1, OWN);
    LS_CHECK_EQ(ls_shm_segment_foreign_bytes(segment, 0), 0);
    memset(other, 1, OTHER);
    LS_CHECK_EQ(ls_shm_segment_foreign_bytes(segment, 0), OTHER);
    LS_CHECK_EQ(ls_shm_segment_foreign_bytes(segment, 1), OWN);
    ls_shm_segment_free(segment, 1, other);
    LS_CHECK_EQ(ls_shm_segment_foreign_bytes(segment, 0), 0);
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST(segment_memory_that_is_not_there_is_an_error)
{
    int fd = make(2), large;
    ls_shm_segment *segment;
    void *p;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_shm_segment_alloc(segment, 0, 1, "gradients", &p), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_FAILS(ls_shm_segment_alloc(segment, 0, 17 * LS_MIB, "gradients", &p), LS_ENOMEM,
                   "for \"gradients\": each rank has room for 16.0 MiB in all");
    LS_CHECK_FAILS(ls_shm_segment_alloc(segment, 0, INT64_MAX, "gradients", &p), LS_EUSAGE,
                   "bytes");
    LS_CHECK_FAILS(ls_shm_segment_alloc(segment, 0, INT64_MAX / 2, "gradients", &p), LS_ENOMEM,
                   "room");
    LS_CHECK_OK(ls_shm_segment_alloc(segment, 0, 16 * LS_MIB, "gradients", &p));
    ls_shm_segment_close(segment);
    close(fd);
    /* All that the machine has, which is more than is free: refused, nothing is killed. */
    LS_CHECK_OK(ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 1}, &large));
    LS_CHECK_OK(ls_shm_segment_open(&segment, large, 0));
    LS_CHECK_FAILS(ls_shm_segment_alloc(segment, 0, segment->head->heap_bytes, "gradients", &p),
                   LS_ENOMEM, "MiB are free");
    ls_shm_segment_close(segment);
    close(large);
}

/* --- breaking and waiting --------------------------------------------------------------------- */

LS_TEST(segment_keeps_the_first_reason)
{
    int fd = make(2);
    ls_shm_segment *segment;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    LS_CHECK_OK(ls_shm_segment_failure(segment));
    LS_CHECK(!ls_shm_segment_aborted(segment));
    ls_shm_segment_abort(segment, 1, LS_EUSAGE, "reason %d", 1);
    ls_shm_segment_abort(segment, 0, LS_EPEER, "reason %d", 2);
    ls_shm_segment_abort(segment, LS_SHM_SEGMENT_AGENT, LS_EPEER, "reason %d", 3);
    LS_CHECK(ls_shm_segment_aborted(segment));
    LS_CHECK_FAILS(ls_shm_segment_failure(segment), LS_EUSAGE, "reason 1");
    LS_CHECK_FAILS(ls_shm_segment_join(segment, 0, 0, "here"), LS_EUSAGE, "reason 1");
    ls_shm_segment_close(segment);
    close(fd);
}

static void sleeper(ls_ranks *r)
{
    _Atomic int64_t *woken_ns = r->context;
    ls_wait_turn turn = LS_WAIT_ON;
    ls_wait wait;

    if (r->me == 0) {
        int64_t until = ls_test_soon();
        while (!ls_wait_anybody(r->segment) && ls_time_now_ns() < until)
            usleep(1000);
        LS_CHECK(ls_wait_anybody(r->segment));
        usleep(30000); /* most likely all of them */
        atomic_store(woken_ns, ls_time_now_ns());
        ls_shm_segment_abort(r->segment, 0, LS_EPEER, "wake up");
        return;
    }
    ls_wait_begin(&wait, r->segment, r->me, ls_test_soon());
    while (turn == LS_WAIT_ON)
        turn = ls_wait_once(&wait);
    ls_wait_end(&wait);
    LS_CHECK_EQ(turn, LS_WAIT_BROKEN);
    LS_CHECK_WITHIN(atomic_load(woken_ns), 2000);
}

LS_TEST(segment_abort_wakes_sleepers)
{
    void *shared = ls_ranks_shared(4096);

    ls_ranks_run(&(ls_ranks_args){.ranks = 4, .context = shared}, sleeper);
    ls_ranks_run(&(ls_ranks_args){.ranks = 4, .threads = true, .context = shared}, sleeper);
}

LS_TEST(segment_groups_run_out_with_a_sentence)
{
    ls_group group[LS_SHM_SEGMENT_GROUPS + 1];
    ls_shm_segment *segment;
    int fd = make(1), local = 0;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    LS_CHECK_OK(ls_shm_segment_join(segment, 0, 0, "here"));
    LS_CHECK_OK(ls_shm_segment_meet(segment, 0, ls_test_soon()));
    for (int i = 0; i < LS_SHM_SEGMENT_GROUPS; i++)
        LS_CHECK_OK(ls_group_open(
            &group[i], segment,
            &(ls_group_args){.key = (uint64_t)i + 1, .local = 0, .locals = &local, .members = 1},
            0));
    LS_CHECK_FAILS(
        ls_group_open(&group[LS_SHM_SEGMENT_GROUPS], segment,
                      &(ls_group_args){.key = 500, .local = 0, .locals = &local, .members = 1}, 0),
        LS_EBUSY, "all 64 groups of this node are in use");
    ls_shm_segment_close(segment);
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
    ls_shm_segment *segment;
    ls_group group;
    ls_shm_coll *direct;
    ls_death_watch *watch;
    void *memory;

    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 5));
    LS_CHECK_OK(ls_shm_segment_join(segment, 0, 0, "here"));
    LS_CHECK_OK(ls_shm_segment_meet(segment, 0, ls_test_soon()));
    LS_CHECK_OK(ls_death_watch_open(&watch, segment, 0));
    LS_CHECK_OK(ls_group_open(&group, segment, &(ls_group_args){1, 0, &local, 1}, 0));
    LS_CHECK_OK(ls_shm_coll_open(&direct, &group));
    LS_CHECK_OK(ls_shm_segment_alloc(segment, 0, 100000, "test", &memory));
    memset(memory, 1, 100000);
    LS_CHECK_OK(ls_shm_coll_run(direct, &(ls_coll){.count = 25000, .in = memory, .out = memory},
                                ls_test_soon()));
    ls_shm_coll_close(direct);
    ls_group_close(&group);
    ls_death_watch_close(watch);
    ls_shm_segment_leave(segment, 0);
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST(segment_opened_and_closed_1000_times_leaves_nothing)
{
    open_and_close();
    int files = open_files();
    int64_t kib = mapped_kib();
    for (int i = 0; i < ls_test_times(1000); i++)
        open_and_close();
    LS_CHECK_EQ(open_files(), files);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    LS_CHECK(mapped_kib() < kib + 16 * 1024); /* a shared-memory segment takes more than that */
#else
    (void)kib;
#endif
}
