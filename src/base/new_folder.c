/* new_folder.c -- folders that appear whole.
 *
 * A folder is written under a temporary name beside its final place, synced, and renamed: rename()
 * replaces an empty folder and fails on any other, so nothing of anybody is ever overwritten. While
 * its process lives the folder is locked; one that can be locked was left by a process that was
 * killed, and the next one to write to the same place removes it. */
#include "base/new_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

static ls_status occupied(const char *final)
{
    ls_status st = ls_fail(LS_EUSAGE, "\"%s\" exists and is not an empty folder", final);

    ls_err_hint("Choose another folder, or remove this one first.");
    return st;
}

bool ls_new_folder_is_empty(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    if (!dir)
        return false;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n <= 2; /* itself and its parent */
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void ls_new_folder_remove(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The lock of a folder; -1: another process has it, or it is no folder. */
static int lock_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Remove folders in the making for base in parent whose process is gone. */
static void remove_stale(const char *parent, const char *base)
{
    char path[PATH_MAX];
    size_t n = strlen(base);
    DIR *dir = opendir(parent);
    const struct dirent *e;

    while (dir && (e = readdir(dir)) != NULL) {
        const char *rest = e->d_name + n;
        if (strncmp(e->d_name, base, n) != 0 || strncmp(rest, ".tmp-", 5) != 0 || !rest[5] ||
            rest[5 + strspn(rest + 5, "0123456789")] != '\0')
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", parent, e->d_name) >= sizeof path)
            continue;
        int fd = lock_folder(path);
        if (fd < 0)
            continue;
        ls_new_folder_remove(path);
        close(fd);
    }
    if (dir)
        closedir(dir);
}

ls_status ls_new_folder_begin(ls_new_folder *folder, const char *final)
{
    size_t n = strlen(final);
    char parent[sizeof folder->path];

    folder->path[0] = '\0';
    folder->locked = false;
    while (n > 1 && final[n - 1] == '/')
        n--;
    if (n == 0 || n + 32 >= sizeof folder->final)
        return ls_fail(LS_EUSAGE, "the folder's name is empty or too long");
    snprintf(folder->final, sizeof folder->final, "%.*s", (int)n, final);
    if (ls_file_exists(folder->final) && !ls_new_folder_is_empty(folder->final))
        return occupied(folder->final);
    const char *slash = strrchr(folder->final, '/');
    snprintf(parent, sizeof parent, "%s", ".");
    if (slash)
        snprintf(parent, sizeof parent, "%.*s",
                 slash == folder->final ? 1 : (int)(slash - folder->final), folder->final);
    ls_status st = ls_file_make_dirs(parent);
    if (st != LS_OK)
        return st;
    remove_stale(parent, slash ? slash + 1 : folder->final);
    snprintf(folder->path, sizeof folder->path, "%.*s.tmp-%ld", (int)n, folder->final,
             (long)getpid());
    if (mkdir(folder->path, 0755) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot create folder \"%s\"", folder->path);
        folder->path[0] = '\0';
        return st;
    }
    folder->fd = lock_folder(folder->path); /* without locks nothing stale is ever removed */
    folder->locked = folder->fd >= 0;
    return LS_OK;
}

static void unlock(ls_new_folder *folder)
{
    if (folder->locked)
        close(folder->fd);
    folder->locked = false;
}

static ls_status sync_parent(const char *path)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');

    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    return ls_file_sync_dir(parent);
}

ls_status ls_new_folder_commit(ls_new_folder *folder)
{
    ls_status st = ls_file_sync_dir(folder->path);

    if (st != LS_OK)
        return st;
    if (rename(folder->path, folder->final) != 0) {
        if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
            return occupied(folder->final);
        return ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", folder->path, folder->final);
    }
    folder->path[0] = '\0';
    unlock(folder);
    return sync_parent(folder->final);
}

ls_status ls_new_folder_commit_file(ls_new_folder *folder, const char *name)
{
    char path[sizeof folder->path + 64];

    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    if (ls_file_exists(folder->final))
        return occupied(folder->final);
    if (rename(path, folder->final) != 0)
        return ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", path, folder->final);
    ls_new_folder_drop(folder);
    return sync_parent(folder->final);
}

void ls_new_folder_drop(ls_new_folder *folder)
{
    if (folder->path[0])
        ls_new_folder_remove(folder->path);
    folder->path[0] = '\0';
    unlock(folder);
}
