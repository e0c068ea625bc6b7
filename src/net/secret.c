/* secret.c -- make, read, hold and wipe the job's secret.
 *
 * The file is created with its final mode (never widened or narrowed afterwards) and exclusively,
 * so that no other user can have put a file there before. Reading opens without following a link
 * and judges the open file, not its name, so that nothing can be exchanged in between.
 *
 * The page is kept out of core files (MADV_DONTDUMP) and of children made by fork (MADV_WIPEONFORK
 * would zero it there; but ranks started by fork without exec need it, so it stays). It is locked
 * in memory where that is allowed; where it is not, swap is the host's. */
#include "net/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

enum { PAGE = 4096 };

static ls_status new_page(ls_secret *secret)
{
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return ls_fail_sys(LS_ENOMEM, "cannot get a page for the job's secret");
    madvise(page, PAGE, MADV_DONTDUMP);
    (void)mlock(page, PAGE);
    secret->bytes = page;
    return LS_OK;
}

void ls_secret_release(ls_secret *secret)
{
    if (!secret->bytes)
        return;
    explicit_bzero(secret->bytes, PAGE);
    munmap(secret->bytes, PAGE);
    secret->bytes = NULL;
}

ls_status ls_secret_random(void *bytes, size_t len)
{
    size_t at = 0;

    while (at < len) {
        ssize_t n = getrandom((char *)bytes + at, len - at, 0);
        if (n < 0 && errno != EINTR)
            return ls_fail_sys(LS_EIO, "the kernel gives no random bytes");
        at += n > 0 ? (size_t)n : 0;
    }
    return LS_OK;
}

ls_status ls_secret_make(const char *path)
{
    ls_status st = LS_OK;
    ls_secret secret = {0};
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0) {
        st =
            ls_fail_sys(errno == EEXIST ? LS_EBUSY : LS_EIO, "cannot make the secret \"%s\"", path);
        if (st == LS_EBUSY)
            ls_err_hint("Remove it if no job uses it, or let this job use it.");
        goto out;
    }
    LS_TRY(st, new_page(&secret), out);
    LS_TRY(st, ls_secret_random(secret.bytes, LS_SECRET_BYTES), out);
    /* A umask narrows the mode only; a file system without modes must not widen it. */
    if (fchmod(fd, 0600) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot give the secret \"%s\" to its owner alone", path);
        goto out;
    }
    LS_TRY(st, ls_file_write_all(fd, secret.bytes, LS_SECRET_BYTES, path), out);
    if (fsync(fd) != 0)
        st = ls_fail_sys(LS_EIO, "cannot write the secret \"%s\"", path);
out:
    ls_secret_release(&secret);
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && st != LS_OK)
        unlink(path);
    return st;
}

static ls_status judge(int fd, const char *path)
{
    struct stat info;
    ls_status st;

    if (fstat(fd, &info) != 0)
        return ls_fail_sys(LS_EIO, "cannot look at the secret \"%s\"", path);
    if (!S_ISREG(info.st_mode))
        return ls_fail(LS_EUSAGE, "the secret \"%s\" is not a plain file", path);
    if (info.st_uid != geteuid()) {
        st = ls_fail(LS_EUSAGE, "the secret \"%s\" belongs to user %u, not to %u who runs this",
                     path, (unsigned)info.st_uid, (unsigned)geteuid());
        ls_err_hint("Whoever owns the file knows the secret; make one of your own.");
        return st;
    }
    if ((info.st_mode & 077) != 0) {
        st = ls_fail(LS_EUSAGE, "the secret \"%s\" can be read by others (mode %04o)", path,
                     (unsigned)(info.st_mode & 07777));
        ls_err_hint("Take a new secret, with mode 0600: this one may be known.");
        return st;
    }
    if (info.st_size != LS_SECRET_BYTES)
        return ls_fail(LS_EDATA, "the secret \"%s\" has %lld bytes, not %d", path,
                       (long long)info.st_size, LS_SECRET_BYTES);
    return LS_OK;
}

/* Exactly the secret's bytes, then the end. A file is read from its beginning, wherever others who
 * share the descriptor have read to; a pipe as it comes. */
static ls_status take(ls_secret *secret, int fd, const char *path)
{
    size_t at = 0;

    while (at <= LS_SECRET_BYTES) { /* one byte more, to see the end */
        size_t room = LS_SECRET_BYTES + 1 - at;
        ssize_t n = pread(fd, secret->bytes + at, room, (off_t)at);
        if (n < 0 && errno == ESPIPE)
            n = read(fd, secret->bytes + at, room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ls_fail_sys(LS_EIO, "cannot read the secret \"%s\"", path);
        if (n == 0)
            break;
        at += (size_t)n;
    }
    if (at != LS_SECRET_BYTES)
        return ls_fail(LS_EDATA, "the secret \"%s\" does not have %d bytes", path, LS_SECRET_BYTES);
    return LS_OK;
}

ls_status ls_secret_read(ls_secret *secret, const char *path)
{
    ls_status st = LS_OK;

    *secret = (ls_secret){0};
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ELOOP)
        return ls_fail(LS_EUSAGE, "the secret \"%s\" is a link, not a plain file", path);
    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot read the secret \"%s\"", path);
    LS_TRY(st, judge(fd, path), out);
    LS_TRY(st, new_page(secret), out);
    LS_TRY(st, take(secret, fd, path), out);
out:
    close(fd);
    if (st != LS_OK)
        ls_secret_release(secret);
    return st;
}

ls_status ls_secret_read_fd(ls_secret *secret, int fd)
{
    ls_status st = LS_OK;
    char name[32];

    *secret = (ls_secret){0};
    snprintf(name, sizeof name, "descriptor %d", fd);
    LS_TRY(st, new_page(secret), out);
    LS_TRY(st, take(secret, fd, name), out);
out:
    if (st != LS_OK)
        ls_secret_release(secret);
    return st;
}

ls_status ls_secret_to_fd(const uint8_t bytes[LS_SECRET_BYTES], int *fd_out)
{
    int fd = memfd_create("secret", MFD_CLOEXEC);

    if (fd < 0 || pwrite(fd, bytes, LS_SECRET_BYTES, 0) != LS_SECRET_BYTES) {
        ls_fail_sys(LS_EIO, "cannot make a memory file for the secret of the job");
        if (fd >= 0)
            close(fd);
        return LS_EIO;
    }
    *fd_out = fd;
    return LS_OK;
}

ls_status ls_secret_hold(ls_secret *secret, const uint8_t bytes[LS_SECRET_BYTES])
{
    *secret = (ls_secret){0};
    ls_status st = new_page(secret);
    if (st == LS_OK)
        memcpy(secret->bytes, bytes, LS_SECRET_BYTES);
    return st;
}
