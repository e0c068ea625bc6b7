/* badfs.c -- a library that is loaded before libc's own and makes the file system of checkpoints
 * bad: calls fail, handles go stale, names that other processes made are seen late. It also watches
 * the order of things: whatever gets a name before its bytes are on disk is written to a log.
 *
 *   BADFS_FAIL=fdatasync:3:EIO   the third fdatasync fails so; "SHORT": a write of half the bytes
 *   BADFS_FAIL=pwrite:2+:EDQUOT  the second and all after it
 *   BADFS_STALE=40               each 40th call on a file that is read, written or looked at:
 * ESTALE BADFS_LATE=2                 names made by others are not seen for 2 seconds
 *   BADFS_LOG=FILE               "UNSYNCED PATH" for each rule that was broken; at the end of a
 *                                process "CALLS NAME COUNT" for the call that BADFS_FAIL names
 *
 *   BADFS_RANK=1                 only in the process of this rank
 *
 * Only files with "/checkpoints/" in their path are touched, and never the lock. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

enum { FILES = 4096, NAMES = 4096 };

/* A file that was written: on disk or not. */
typedef struct file {
    ino_t inode;
    bool dirty;
} file;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static file files[FILES];
static int n_files;
static char *own[NAMES]; /* paths that this process has named */
static int n_own;
static char *unsynced[NAMES]; /* folders with a name that is not on disk */
static int n_unsynced;
static long calls, stale_calls;

static void say(const char *word, const char *what)
{
    const char *path = getenv("BADFS_LOG");
    char line[PATH_MAX + 64];
    int n = snprintf(line, sizeof line, "%s %s\n", word, what);
    int fd =
        path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;

    if (fd < 0)
        return;
    (void)!syscall(SYS_write, fd, line, (size_t)n);
    (void)syscall(SYS_close, fd);
}

/* Whether this process is to suffer. */
static bool chosen(void)
{
    const char *which = getenv("BADFS_RANK"), *rank = getenv("LINESHAFT_RANK");

    return !which || (rank && strcmp(which, rank) == 0);
}

static bool ours(const char *path)
{
    return chosen() && path && strstr(path, "/checkpoints/") && !strstr(path, "/checkpoints/lock");
}

static bool our_fd(int fd, char path[PATH_MAX])
{
    char link[64];
    int error = errno;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = '\0';
    errno = error;
    /* a folder's own path has no final slash */
    return chosen() && n > 0 &&
           (ours(path) || (strlen(path) > 12 && !strcmp(path + strlen(path) - 12, "/checkpoints")));
}

static int error_of(const char *name)
{
    static const struct {
        const char *name;
        int error;
    } all[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},
               {"ESTALE", ESTALE}, {"EROFS", EROFS},   {"EACCES", EACCES}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].error;
    return EIO;
}

/* Whether this call is the one that fails: 0: no, -1: half of it is done, else errno. */
static int fails(const char *call)
{
    const char *plan = getenv("BADFS_FAIL");
    size_t n = strlen(call);
    char *end;

    if (!plan || strncmp(plan, call, n) != 0 || plan[n] != ':')
        return 0;
    long which = strtol(plan + n + 1, &end, 10);
    bool more = *end == '+';
    pthread_mutex_lock(&lock);
    long now = ++calls;
    pthread_mutex_unlock(&lock);
    if (more)
        end++;
    if (*end != ':' || !(now == which || (more && now > which)))
        return 0;
    return strcmp(end + 1, "SHORT") == 0 ? -1 : error_of(end + 1);
}

static bool stale(void)
{
    const char *every = getenv("BADFS_STALE");
    bool is = false;

    if (!every)
        return false;
    pthread_mutex_lock(&lock);
    is = ++stale_calls % strtol(every, NULL, 10) == 0;
    pthread_mutex_unlock(&lock);
    if (is)
        errno = ESTALE;
    return is;
}

static void remember(char **list, int *n, const char *path)
{
    pthread_mutex_lock(&lock);
    if (*n < NAMES)
        list[(*n)++] = strdup(path);
    pthread_mutex_unlock(&lock);
}

static bool is_own(const char *path)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_own && !found; i++)
        found = strcmp(own[i], path) == 0;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Made by another process a short time ago: not seen yet. */
static bool hidden(const char *path)
{
    const char *late = getenv("BADFS_LATE");
    struct timespec now;
    struct stat info;
    const char *base = strrchr(path, '/');

    if (!late || is_own(path) || (!strstr(path, ".safetensors") && strncmp(base, "/step-", 6) != 0))
        return false;
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &info, 0) != 0)
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = difftime(now.tv_sec, info.st_ctim.tv_sec) +
                 (double)(now.tv_nsec - info.st_ctim.tv_nsec) / 1e9;
    if (age >= strtod(late, NULL))
        return false;
    errno = ENOENT;
    return true;
}

static void mark(int fd, bool dirty)
{
    struct stat info;
    int i;

    if (fstat(fd, &info) != 0)
        return;
    pthread_mutex_lock(&lock);
    for (i = 0; i < n_files && files[i].inode != info.st_ino; i++)
        ;
    if (i < FILES) {
        files[i] = (file){.inode = info.st_ino, .dirty = dirty};
        n_files = i == n_files ? n_files + 1 : n_files;
    }
    pthread_mutex_unlock(&lock);
}

/* A file gets a name: its bytes must be on disk; of a manifest all folders before it, too. */
static void named(const char *path)
{
    char folder[PATH_MAX];
    const char *base = strrchr(path, '/');
    struct stat info;

    if (syscall(SYS_newfstatat, AT_FDCWD, path, &info, 0) != 0)
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_files; i++)
        if (files[i].inode == info.st_ino && files[i].dirty)
            say("UNSYNCED", path);
    if (strncmp(base, "/step-", 6) == 0)
        for (int i = 0; i < n_unsynced; i++)
            if (unsynced[i])
                say("UNSYNCED", unsynced[i]);
    pthread_mutex_unlock(&lock);
    remember(own, &n_own, path);
    if (strstr(path, ".safetensors")) {
        snprintf(folder, sizeof folder, "%.*s", (int)(base - path), path);
        remember(unsynced, &n_unsynced, folder);
    }
}

static void folder_synced(const char *path)
{
    size_t n = strlen(path);

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_unsynced; i++) {
        size_t m = unsynced[i] ? strlen(unsynced[i]) : 0;
        /* recorded as they were given, relative perhaps; seen here in full */
        if (m && m <= n && strcmp(path + n - m, unsynced[i]) == 0) {
            free(unsynced[i]);
            unsynced[i] = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
}

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

SHOWN ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    char path[PATH_MAX];

    if (our_fd(fd, path)) {
        int error = fails("pwrite");
        if (error > 0 || stale())
            return error > 0 ? (errno = error, -1) : -1;
        len = error < 0 ? (len + 1) / 2 : len;
        mark(fd, true);
    }
    return REAL(pwrite)(fd, bytes, len, at);
}

SHOWN ssize_t write(int fd, const void *bytes, size_t len)
{
    char path[PATH_MAX];

    if (our_fd(fd, path)) {
        int error = fails("write");
        if (error > 0)
            return errno = error, -1;
        len = error < 0 ? (len + 1) / 2 : len;
        mark(fd, true);
    }
    return REAL(write)(fd, bytes, len);
}

SHOWN ssize_t pread(int fd, void *bytes, size_t len, off_t at)
{
    char path[PATH_MAX];

    if (our_fd(fd, path)) {
        int error = fails("pread");
        if (error > 0 || stale())
            return error > 0 ? (errno = error, -1) : -1;
        len = error < 0 ? (len + 1) / 2 : len;
    }
    return REAL(pread)(fd, bytes, len, at);
}

SHOWN int ftruncate(int fd, off_t len)
{
    char path[PATH_MAX];

    if (our_fd(fd, path)) {
        int error = fails("ftruncate");
        if (error > 0)
            return errno = error, -1;
        mark(fd, true);
    }
    return REAL(ftruncate)(fd, len);
}

SHOWN int fallocate(int fd, int mode, off_t at, off_t len)
{
    char path[PATH_MAX];
    int error = our_fd(fd, path) ? fails("fallocate") : 0;

    return error > 0 ? (errno = error, -1) : REAL(fallocate)(fd, mode, at, len);
}

SHOWN int fdatasync(int fd)
{
    char path[PATH_MAX];

    if (!our_fd(fd, path))
        return REAL(fdatasync)(fd);
    int error = fails("fdatasync");
    if (error > 0 || stale())
        return error > 0 ? (errno = error, -1) : -1;
    int rc = REAL(fdatasync)(fd);
    if (rc == 0)
        mark(fd, false);
    return rc;
}

SHOWN int fsync(int fd)
{
    char path[PATH_MAX];

    if (!our_fd(fd, path))
        return REAL(fsync)(fd);
    int error = fails("fsync");
    if (error > 0 || stale())
        return error > 0 ? (errno = error, -1) : -1;
    int rc = REAL(fsync)(fd);
    if (rc == 0) {
        mark(fd, false);
        folder_synced(path);
    }
    return rc;
}

SHOWN int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    int error = ours(to) ? fails("linkat") : 0;
    int rc = error > 0 ? (errno = error, -1) : REAL(linkat)(from_fd, from, to_fd, to, flags);

    if (rc == 0 && ours(to))
        named(to);
    return rc;
}

SHOWN int link(const char *from, const char *to)
{
    int error = ours(to) ? fails("link") : 0;
    int rc = error > 0 ? (errno = error, -1) : REAL(link)(from, to);

    if (rc == 0 && ours(to))
        named(to);
    return rc;
}

SHOWN int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    int error = ours(to) ? fails("renameat2") : 0;
    int rc = error > 0 ? (errno = error, -1) : REAL(renameat2)(from_fd, from, to_fd, to, flags);

    if (rc == 0 && ours(to))
        named(to);
    return rc;
}

SHOWN int rename(const char *from, const char *to)
{
    int error = ours(to) ? fails("rename") : 0;
    int rc = error > 0 ? (errno = error, -1) : REAL(rename)(from, to);

    if (rc == 0 && ours(to))
        named(to);
    return rc;
}

SHOWN int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list args;

    if (flags & (O_CREAT | O_TMPFILE)) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    if (ours(path)) {
        int error = fails("open");
        if (error > 0)
            return errno = error, -1;
        if (!(flags & (O_WRONLY | O_RDWR)) && (hidden(path) || stale()))
            return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

SHOWN int stat(const char *path, struct stat *info)
{
    if (ours(path) && (hidden(path) || stale()))
        return -1;
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, info, 0);
}

__attribute__((destructor)) static void tell(void)
{
    const char *plan = getenv("BADFS_FAIL");
    char text[128];

    if (!plan || calls == 0)
        return;
    snprintf(text, sizeof text, "%.*s %ld", (int)strcspn(plan, ":"), plan, calls);
    say("CALLS", text);
}
