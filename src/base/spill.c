/* spill.c -- a mapped file without a name. */
#include "base/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/base.h"
#include "base/fault.h"

enum { PAGE = 4096 };

/* A file that nobody else can find; where the file system has none such, its name is removed. */
static int open_nameless(const char *dir)
{
    char path[PATH_MAX];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    if ((size_t)snprintf(path, sizeof path, "%s/.spill-XXXXXX", dir) >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static int take_room(int fd, int64_t bytes)
{
    int error;

    if (LS_FAULT("base.spill.full"))
        return ENOSPC;
    do
        error = posix_fallocate(fd, 0, bytes);
    while (error == EINTR);
    return error;
}

static ls_status fail_room(const char *dir, int64_t bytes, const char *what)
{
    struct statvfs fs;
    int64_t left = statvfs(dir, &fs) == 0 ? (int64_t)(fs.f_bavail * fs.f_frsize) : 0;
    ls_status st = ls_fail_sys(LS_EIO, "cannot take %.1f MiB in \"%s\" for %s (%.1f MiB are free)",
                               ls_size_up(bytes, LS_MIB), dir, what, ls_size_down(left, LS_MIB));

    ls_err_hint("Free some space there, or choose a folder on another disk.");
    return st;
}

ls_status ls_spill_open(ls_spill *spill, const char *dir, int64_t bytes, const char *what)
{
    int64_t all = ls_round_up(ls_max_i64(1, bytes), PAGE);
    int fd = open_nameless(dir), error;
    ls_status st = LS_OK;
    void *base;

    if (fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make a file in \"%s\" for %s", dir, what);
        ls_err_hint("It must be a folder that this process may write to.");
        return st;
    }
    error = take_room(fd, all);
    if (error) {
        errno = error;
        st = fail_room(dir, all, what);
        goto out;
    }
    base = mmap(NULL, (size_t)all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        st = ls_fail_sys(LS_ENOMEM, "cannot map %lld bytes of a file for %s", (long long)all, what);
        ls_err_hint("Look at the limit of virtual memory (ulimit -v).");
        goto out;
    }
    *spill = (ls_spill){.base = base, .bytes = all};
out:
    close(fd);
    return st;
}

void ls_spill_close(ls_spill *spill)
{
    if (spill->base)
        munmap(spill->base, (size_t)spill->bytes);
    *spill = (ls_spill){.base = NULL};
}

/* All pages that have bytes of the range: dropping one too many costs a fault, not a byte. */
static void advise(const char *bytes, int64_t count, int advice)
{
    int64_t before = (int64_t)((uintptr_t)bytes % PAGE);

    if (count > 0)
        (void)madvise((char *)(uintptr_t)(bytes - before),
                      (size_t)ls_round_up(before + count, PAGE), advice);
}

void ls_spill_fetch(const ls_spill *spill, int64_t first, int64_t count)
{
    advise(spill->base + first, ls_min_i64(count, spill->bytes - first), MADV_WILLNEED);
}

void ls_spill_drop(const ls_spill *spill, int64_t first, int64_t count)
{
    advise(spill->base + first, ls_min_i64(count, spill->bytes - first), MADV_DONTNEED);
}

void ls_spill_give_back(const void *bytes, int64_t count)
{
    advise(bytes, count, MADV_DONTNEED);
}
