/* state_file.c -- a process that lives holds a lock.
 *
 *     5e1f.wal  5e1f.wal.lock     the file, and what its process puts beside it
 *     5e1f.wal.held               locked (flock) by that process until it ends, even by kill -9
 *
 * A sweep that gets the lock of a .held file has proof that its process is gone; a number of a process
 * would be none, because containers with numbers of their own may share the folder. The .held file
 * gets its name only when it is locked, so no sweep finds it without:
 *
 *     open .new-5e1f -> flock -> rename to 5e1f.wal.held
 *
 * Files without a .held (of earlier versions, or of a disk without locks) are removed after a week. */
#include "cluster/elect/state_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KEPT_DAYS = 7, FOLDER = PATH_MAX / 2 };

static const char held[] = ".held";

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

static void find_folder(char folder_out[FOLDER])
{
    const char *state = getenv("LINESHAFT_STATE");

    if (state && *state)
        snprintf(folder_out, FOLDER, "%s", state);
    else
        snprintf(folder_out, FOLDER, "/var/tmp/lineshaft-%d", (int)getuid());
}

/* All whose names begin with this one, the .held file last. */
static void remove_all(const char *folder, const char *name)
{
    char last[NAME_MAX + 1];
    DIR *dir = opendir(folder);

    if (!dir)
        return;
    for (const struct dirent *e; (e = readdir(dir));)
        if (strncmp(e->d_name, name, strlen(name)) == 0 && !ends_in(e->d_name, held))
            unlinkat(dirfd(dir), e->d_name, 0);
    snprintf(last, sizeof last, "%s%s", name, held);
    unlinkat(dirfd(dir), last, 0);
    closedir(dir);
}

/* Gone: the lock of its process can be had. */
static void remove_if_gone(const char *folder, int dir_fd, const char *held_name)
{
    char name[NAME_MAX + 1];
    int fd = openat(dir_fd, held_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        snprintf(name, sizeof name, "%.*s", (int)(strlen(held_name) - strlen(held)), held_name);
        remove_all(folder, name);
    }
    close(fd);
}

static void remove_if_old(int dir_fd, const char *name)
{
    static const char *const kinds[] = {".vote", ".vow" /* as it was before 0.2 */, ".wal",
                                        ".new-"};
    time_t before = time(NULL) - KEPT_DAYS * 24 * 3600;
    struct stat info;

    for (size_t i = 0; i < LS_COUNT(kinds); i++)
        if (strstr(name, kinds[i]) && fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode) && info.st_mtime < before)
            unlinkat(dir_fd, name, 0);
}

static bool is_held(int dir_fd, const char *name)
{
    char path[NAME_MAX + 1];
    size_t suffix = strcspn(name, ".");

    suffix += name[suffix] ? 1 + strcspn(name + suffix + 1, ".") : 0;
    return (size_t)snprintf(path, sizeof path, "%.*s%s", (int)suffix, name, held) < sizeof path &&
           faccessat(dir_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void ls_state_file_sweep(void)
{
    char folder[FOLDER];

    find_folder(folder);
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (ends_in(e->d_name, held))
            remove_if_gone(folder, dirfd(dir), e->d_name);
        else if (!is_held(dirfd(dir), e->d_name))
            remove_if_old(dirfd(dir), e->d_name);
    }
    if (dir)
        closedir(dir);
}

/* Only the last folder is made, and for this user alone: one in /var/tmp that somebody else has made
 * first is not trusted. */
static ls_status make_folder(const char *folder)
{
    struct stat info;
    ls_status st = LS_OK;

    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        st = ls_fail_sys(LS_EIO, "cannot make the folder \"%s\" for promises of this machine",
                         folder);
    else if (lstat(folder, &info) != 0)
        st = ls_fail_sys(LS_EIO, "cannot look at the folder \"%s\"", folder);
    else if (!getenv("LINESHAFT_STATE") && (!S_ISDIR(info.st_mode) || info.st_uid != getuid()))
        st = ls_fail(LS_EIO, "\"%s\" is not a folder of this user", folder);
    if (st != LS_OK)
        ls_err_hint("Set LINESHAFT_STATE to a folder on a disk of this machine.");
    return st;
}

/* Without a lock the file is kept for a week if its process is killed. */
static void hold(ls_state_file *file, const char *folder, uint64_t name)
{
    char fresh[PATH_MAX], path[PATH_MAX + 8];

    snprintf(fresh, sizeof fresh, "%s/.new-%016llx", folder, (unsigned long long)name);
    snprintf(path, sizeof path, "%s%s", file->path, held);
    file->held_fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file->held_fd < 0)
        return;
    if (flock(file->held_fd, LOCK_EX | LOCK_NB) == 0 && rename(fresh, path) == 0)
        return;
    unlink(fresh);
    close(file->held_fd);
    file->held_fd = -1;
}

ls_status ls_state_file_create(ls_state_file *file, const char *suffix)
{
    char folder[FOLDER];
    uint64_t name = 0;
    ls_status st;

    *file = (ls_state_file){.held_fd = -1};
    find_folder(folder);
    st = make_folder(folder);
    if (st != LS_OK)
        return st;
    ls_state_file_sweep();
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name)
        return ls_fail_sys(LS_EIO, "cannot draw a name for a file in \"%s\"", folder);
    snprintf(file->path, sizeof file->path, "%s/%016llx%s", folder, (unsigned long long)name,
             suffix);
    hold(file, folder, name);
    return LS_OK;
}

void ls_state_file_remove(ls_state_file *file)
{
    char folder[PATH_MAX];
    char *slash;

    if (!*file->path)
        return;
    snprintf(folder, sizeof folder, "%s", file->path);
    slash = strrchr(folder, '/');
    *slash = '\0';
    remove_all(folder, slash + 1);
    if (file->held_fd >= 0)
        close(file->held_fd);
    *file = (ls_state_file){.held_fd = -1};
}
