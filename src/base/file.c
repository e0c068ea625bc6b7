/* file.c -- POSIX files with named errors. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"

/* A file that a user names may be a pipe without a writer or a device without an end. */
static ls_status judge_kind(int fd, const char *path)
{
    struct stat info;
    mode_t kind;

    if (fstat(fd, &info) != 0)
        return ls_fail_sys(LS_EIO, "cannot read \"%s\"", path);
    kind = info.st_mode & S_IFMT;
    if (kind == S_IFREG)
        return LS_OK;
    if (kind == S_IFDIR)
        return ls_fail(LS_EIO, "cannot read \"%s\": it is a folder", path);
    ls_fail(LS_EIO, "cannot read \"%s\": it is a %s, not a plain file", path,
            kind == S_IFIFO ? "pipe" : "device");
    ls_err_hint("Write what it gives to a file, and name that.");
    return LS_EIO;
}

ls_status ls_file_open_read(const char *path, int *fd_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us */
    ls_status st;

    if (fd < 0 && errno == ENXIO) /* a socket */
        return ls_fail(LS_EIO, "cannot read \"%s\": it is no plain file", path);
    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot open \"%s\"", path);
    st = judge_kind(fd, path);
    if (st == LS_OK)
        *fd_out = fd;
    else
        close(fd);
    return st;
}

/* To the end of the file. */
static ls_status read_all(int fd, const char *path, int64_t limit_bytes, ls_str *text_out)
{
    size_t before = text_out->len;
    ls_status st = LS_OK;

    while (!text_out->failed) {
        char block[65536];
        ssize_t n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = ls_fail_sys(LS_EIO, "cannot read \"%s\"", path);
            goto out;
        }
        if (n == 0)
            break;
        if ((int64_t)(text_out->len - before) > limit_bytes - n) {
            st =
                ls_fail(LS_EDATA, "\"%s\" is longer than %lld bytes", path, (long long)limit_bytes);
            goto out;
        }
        ls_str_append_bytes(text_out, block, (size_t)n);
    }
    st = ls_str_status(text_out);
out:
    if (st != LS_OK && text_out->len > before)
        text_out->p[text_out->len = before] = '\0';
    return st;
}

ls_status ls_file_read(const char *path, int64_t limit_bytes, ls_str *text_out)
{
    int fd = -1;
    ls_status st = ls_file_open_read(path, &fd);

    if (st != LS_OK)
        return st;
    st = read_all(fd, path, limit_bytes, text_out);
    close(fd);
    return st;
}

ls_status ls_file_read_stdin(int64_t limit_bytes, ls_str *text_out)
{
    return read_all(STDIN_FILENO, "standard input", limit_bytes, text_out);
}

ls_status ls_file_map_open(ls_file_map *map, const char *path)
{
    struct stat info;
    ls_status st;
    int fd = -1;

    *map = (ls_file_map){.bytes = NULL};
    st = ls_file_open_read(path, &fd);
    if (st != LS_OK)
        return st;
    if (fstat(fd, &info) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot read \"%s\"", path);
    } else if (info.st_size == 0) {
        map->bytes = (const unsigned char *)"";
    } else {
        void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            st = ls_fail_sys(LS_EIO, "cannot map \"%s\"", path);
        } else {
            map->bytes = p;
            map->len = (size_t)info.st_size;
        }
    }
    close(fd);
    return st;
}

void ls_file_map_close(ls_file_map *map)
{
    if (map->len)
        munmap((void *)(uintptr_t)map->bytes, map->len);
    *map = (ls_file_map){.bytes = NULL};
}

/* open() with O_NOFOLLOW, in words that say what was found. */
static int open_own(const char *path, int flags, mode_t mode, const char *what)
{
    int fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode);
    struct stat info;

    if (fd < 0 && errno == ELOOP) {
        ls_file_refuse_link(path);
    } else if (fd < 0) {
        ls_fail_sys(LS_EIO, "cannot %s \"%s\"", what, path);
    } else if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ls_fail(LS_EIO, "cannot %s \"%s\": it is not a plain file", what, path);
        close(fd);
        fd = -1;
    }
    return fd;
}

ls_status ls_file_refuse_link(const char *path)
{
    struct stat info;

    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode))
        return LS_OK;
    ls_fail(LS_EIO, "\"%s\" is a symbolic link: nothing is written through it", path);
    ls_err_hint("Remove the link, or put the file it points to in its place.");
    return LS_EIO;
}

ls_status ls_file_open_append(const char *path, mode_t mode, int *fd_out)
{
    int fd = open_own(path, O_WRONLY | O_CREAT | O_APPEND, mode, "write");

    if (fd < 0)
        return LS_EIO;
    *fd_out = fd;
    return LS_OK;
}

ls_status ls_file_write_all(int fd, const void *bytes, size_t len, const char *path)
{
    const char *p = bytes;

    while (len) {
        ssize_t n = LS_FAULT("file.write") ? (errno = ENOSPC, -1) : write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            ls_status st = ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
            if (errno == ENOSPC || errno == EDQUOT)
                ls_err_hint("Free some space there, or choose another folder.");
            return st;
        }
        p += n;
        len -= (size_t)n;
    }
    return LS_OK;
}

ls_status ls_file_sync_dir(const char *path)
{
    ls_status st = LS_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot open folder \"%s\"", path);
    if (fsync(fd) != 0)
        st = ls_fail_sys(LS_EIO, "cannot sync folder \"%s\"", path);
    close(fd);
    return st;
}

ls_status ls_file_write_atomic(const char *path, const void *bytes, size_t len)
{
    ls_status st = LS_OK;
    char temp[PATH_MAX], folder[PATH_MAX];
    int fd = -1;
    bool named = false;

    if ((size_t)snprintf(temp, sizeof temp, "%s.tmp.%d", path, (int)getpid()) >= sizeof temp ||
        (size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder)
        return ls_fail(LS_EIO, "cannot write \"%s\": the path is too long", path);
    /* A link of this name, which can be foreseen, would have us write somewhere else. */
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot create \"%s\"", temp);
    named = true;
    LS_TRY(st, ls_file_write_all(fd, bytes, len, path), out);
    if (fsync(fd) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot sync \"%s\"", path);
        goto out;
    }
    if (rename(temp, path) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", temp, path);
        goto out;
    }
    named = false;
    LS_TRY(st, ls_file_sync_dir(dirname(folder)), out);
out:
    close(fd);
    if (named)
        unlink(temp);
    return st;
}

/* The number of the process that wrote it, behind the last ".tmp." of a name; 0: it is no name of ours. */
static pid_t writer_of(const char *name)
{
    const char *mark = ".tmp.", *at = NULL;

    for (const char *p = name; (p = strstr(p, mark)); p += strlen(mark))
        at = p + strlen(mark);
    if (!at || !*at || at[strspn(at, "0123456789")] || strlen(at) > 9)
        return 0;
    return (pid_t)strtol(at, NULL, 10);
}

void ls_file_sweep_temps(const char *folder)
{
    struct stat info;
    DIR *dir = opendir(folder);

    for (const struct dirent *e; dir && (e = readdir(dir));) {
        pid_t writer = writer_of(e->d_name);
        if (writer <= 0 || (writer != getpid() && (kill(writer, 0) == 0 || errno != ESRCH)))
            continue;
        if (fstatat(dirfd(dir), e->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode))
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

ls_status ls_file_make_dirs(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);

    if (n == 0 || n >= sizeof part)
        return ls_fail(LS_EIO, "cannot create folder \"%s\": the path is empty or too long", path);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        char c = part[i];
        part[i] = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST) {
            ls_status st = ls_fail_sys(LS_EIO, "cannot create folder \"%s\"", part);
            ls_err_hint("Choose a place where you may write.");
            return st;
        }
        part[i] = c;
    }
    if (!ls_file_is_dir(path))
        return ls_fail(LS_EIO, "cannot create folder \"%s\": a file of that name exists", path);
    return LS_OK;
}

bool ls_file_exists(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0;
}

bool ls_file_is_dir(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

ls_status ls_file_free_bytes(const char *path, int64_t *bytes_out)
{
    char part[PATH_MAX];
    struct statvfs info;

    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", path);
    while (statvfs(part, &info) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            return ls_fail_sys(LS_EIO, "cannot ask for the free space of \"%s\"", path);
        char *slash = strrchr(part, '/');
        if (!slash)
            memcpy(part, ".", 2);
        else
            slash[slash == part] = '\0';
    }
    *bytes_out = (int64_t)info.f_bavail * (int64_t)info.f_frsize;
    return LS_OK;
}

ls_status ls_file_lock(const char *path, int *fd_out)
{
    char text[160] = "";
    char host[64] = "";
    ls_status st;
    int fd = open_own(path, O_RDWR | O_CREAT, 0644, "open lock");

    if (fd < 0)
        return LS_EIO;
    if (LS_FAULT("file.lock") ? (errno = ENOLCK, true) : flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            st = ls_fail_sys(LS_EIO, "cannot lock \"%s\"", path);
            goto out;
        }
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        st = ls_fail(LS_EBUSY, "\"%s\" is held by another process (%s)", path,
                     text[0] ? text : "unknown");
        goto out;
    }
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "pid %d on %s\n", (int)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) {
        st = ls_fail_sys(LS_EIO, "cannot write lock \"%s\"", path);
        goto out;
    }
    *fd_out = fd;
    return LS_OK;
out:
    close(fd);
    return st;
}

void ls_file_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

ls_status ls_file_glob(const char *pattern, ls_str *names_out, int *count_out)
{
    ls_status st = LS_OK;
    glob_t found = {0};
    int rc = glob(pattern, 0, NULL, &found);

    if (rc == GLOB_NOMATCH) {
        st = ls_fail(LS_EIO, "no file matches \"%s\"", pattern);
        goto out;
    }
    if (rc != 0) {
        st = ls_fail_sys(LS_EIO, "cannot look for files that match \"%s\"", pattern);
        goto out;
    }
    for (size_t i = 0; i < found.gl_pathc; i++)
        ls_str_append_bytes(names_out, found.gl_pathv[i], strlen(found.gl_pathv[i]) + 1);
    LS_TRY(st, ls_str_status(names_out), out);
    *count_out = (int)found.gl_pathc;
out:
    globfree(&found);
    return st;
}

void ls_file_cache_path(const char *folder, const char *about, int digits, char *path_out,
                        size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/';
    char hex[LS_HASH_HEX];
    int len = 0;

    path_out[0] = '\0';
    ls_hash_hex(ls_hash_bytes(about, strlen(about)), hex);
    if (own || (home && home[0] == '/'))
        len = snprintf(path_out, size, "%s%s/lineshaft/%s/%.*s", own ? cache : home,
                       own ? "" : "/.cache", folder, digits, hex);
    if (len < 0 || (size_t)len >= size)
        path_out[0] = '\0';
}
