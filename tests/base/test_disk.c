/* test_disk.c -- requests that go on while the caller computes: by io_uring and by threads. */
#include "harness.h"
#include "base/disk.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { DEPTH = 6, PIECES = 40, BYTES = 70001 };

/* Both ways, one after the other. */
static void each_way(void (*test)(void))
{
    char means[96];

    test();
    LS_CHECK_EQ(setenv("LINESHAFT_DISK", "threads", 1), 0);
    ls_disk_means(means, sizeof means);
    LS_CHECK_STR(means, "threads (LINESHAFT_DISK=threads)");
    test();
}

static unsigned char byte_at(int64_t at)
{
    return (unsigned char)((uint64_t)at * 2654435761u >> 13);
}

/* Take `count` ends; all requests must have ended well, with this many bytes. */
static void take(ls_disk *disk, int count, int64_t bytes, bool *seen)
{
    for (int i = 0; i < count; i++) {
        ls_disk_end end = ls_disk_take(disk);
        LS_CHECK_EQ(end.error, 0);
        LS_CHECK_EQ(end.done, bytes);
        LS_CHECK(!seen[end.tag]);
        seen[end.tag] = true;
    }
}

static void write_and_read_back(void)
{
    unsigned char *memory = ls_mem_alloc((size_t)PIECES * BYTES), *back;
    bool seen[PIECES] = {false}, read[PIECES] = {false};
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    ls_disk *disk;

    LS_CHECK(fd >= 0 && memory);
    for (int64_t i = 0; i < (int64_t)PIECES * BYTES; i++)
        memory[i] = byte_at(i);
    LS_CHECK_OK(ls_disk_open(&disk, DEPTH));
    for (int i = 0; i < PIECES; i++) {
        int64_t at = (int64_t)(i * 7 % PIECES) * BYTES; /* in any order */
        take(disk, i >= DEPTH, BYTES, seen);
        ls_disk_submit(disk, &(ls_disk_request){.what = LS_DISK_WRITE,
                                                .fd = fd,
                                                .bytes = memory + at,
                                                .len = BYTES,
                                                .at = at,
                                                .tag = i});
    }
    take(disk, DEPTH, BYTES, seen);
    ls_disk_submit(disk, &(ls_disk_request){.what = LS_DISK_SYNC, .fd = fd, .tag = 7});
    ls_disk_end end = ls_disk_take(disk);
    LS_CHECK(end.tag == 7 && end.error == 0 && end.done == 0);
    back = ls_mem_alloc((size_t)PIECES * BYTES);
    LS_CHECK(back);
    for (int i = 0; i < PIECES; i++) {
        take(disk, i >= DEPTH, BYTES, read);
        ls_disk_submit(disk, &(ls_disk_request){.what = LS_DISK_READ,
                                                .fd = fd,
                                                .bytes = back + (int64_t)i * BYTES,
                                                .len = BYTES,
                                                .at = (int64_t)i * BYTES,
                                                .tag = i});
    }
    take(disk, DEPTH, BYTES, read);
    LS_CHECK(memcmp(memory, back, (size_t)PIECES * BYTES) == 0);
    for (int i = 0; i < PIECES; i++)
        LS_CHECK(seen[i] && read[i]);
    ls_disk_close(disk);
    ls_mem_free(memory);
    ls_mem_free(back);
    close(fd);
}

LS_TEST(disk_writes_and_reads_back)
{
    each_way(write_and_read_back);
}

static void errors_and_short_reads(void)
{
    char bytes[100];
    int fd = open("short", O_RDWR | O_CREAT | O_TRUNC, 0644);
    ls_disk_request r = {.what = LS_DISK_READ, .fd = fd, .bytes = bytes, .len = 100, .tag = 1};
    ls_disk *disk;

    LS_CHECK_EQ(write(fd, "0123456789", 10), 10);
    LS_CHECK_OK(ls_disk_open(&disk, 2));
    r.at = 4;
    ls_disk_submit(disk, &r);
    ls_disk_end end = ls_disk_take(disk);
    LS_CHECK(end.error == 0 && end.done == 6 && memcmp(bytes, "456789", 6) == 0);
    r.at = 10;
    ls_disk_submit(disk, &r);
    end = ls_disk_take(disk);
    LS_CHECK(end.error == 0 && end.done == 0);
    r.fd = -1;
    ls_disk_submit(disk, &r);
    end = ls_disk_take(disk);
    LS_CHECK(end.error == EBADF && end.done == 0 && end.tag == 1);
    /* closed with something under way: waits for it */
    r.fd = fd;
    r.at = 0;
    ls_disk_submit(disk, &r);
    r.tag = 2;
    ls_disk_submit(disk, &r);
    ls_disk_close(disk);
    ls_disk_close(NULL);
    close(fd);
}

LS_TEST(disk_reports_errors_and_short_reads)
{
    each_way(errors_and_short_reads);
}

static void no_memory(void)
{
    ls_disk *disk;

    for (uint64_t n = 1; n <= 2; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_disk_open(&disk, 2), LS_ENOMEM);
    }
    ls_mem_fail_nth(0);
}

LS_TEST(disk_without_memory)
{
    each_way(no_memory);
}
