/* ckpt_temp.c -- temporary files of the store, the rename of manifests, and syncing folders.
 *
 *     .tmp-XXXX (locked) -- write, fdatasync -- rename to step-0000000100.json -- sync the folder
 *
 * A file without a name disappears with its writer. A manifest needs a name to be renamed from; a
 * named temporary file carries a lock while its writer lives, so that a sweep can tell living from
 * dead. */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"

enum { TRIES = 2, STALE_TRIES = 5 };

/* A temporary file with a name that no other writer has: process number and a counter. */
static ls_status open_named(ls_ckpt_temp *t, const char *folder)
{
    static atomic_uint counter;

    for (int tries = 0; tries < 1000; tries++) {
        ls_str_clear(&t->name);
        ls_str_printf(&t->name, "%s/" LS_CKPT_TEMP "%d-%u", folder, (int)getpid(),
                      atomic_fetch_add(&counter, 1));
        ls_status st = ls_str_status(&t->name);
        if (st != LS_OK)
            return st;
        t->fd = open(t->name.p, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (t->fd >= 0) {
            /* Shows a sweep that this writer lives. Without locks on this file system no sweep
             * runs. */
            (void)flock(t->fd, LOCK_EX | LOCK_NB);
            return LS_OK;
        }
        if (errno != EEXIST)
            break;
    }
    ls_status st = ls_fail_sys(LS_EIO, "cannot create a temporary file in \"%s\"", folder);
    ls_str_clear(&t->name);
    return st;
}

ls_status ls_ckpt_temp_open(ls_ckpt_temp *temp, const char *folder, bool named)
{
    *temp = (ls_ckpt_temp){.fd = -1};
    ls_str_init(&temp->name);
    if (!named) {
        temp->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
        if (temp->fd >= 0)
            return LS_OK;
        if (errno == ENOSPC || errno == EDQUOT || errno == EACCES || errno == EROFS)
            return ls_fail_sys(LS_EIO, "cannot create a temporary file in \"%s\"", folder);
    }
    return open_named(temp, folder);
}

void ls_ckpt_temp_close(ls_ckpt_temp *temp)
{
    if (temp->fd >= 0)
        close(temp->fd);
    if (temp->name.len)
        unlink(temp->name.p);
    ls_str_release(&temp->name);
    temp->fd = -1;
}

void ls_ckpt_temp_sweep(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlink(path);
    close(fd);
}

ls_status ls_ckpt_reserve(int fd, int64_t bytes, const char *path)
{
    if (fallocate(fd, 0, 0, bytes) == 0 || (errno != ENOSPC && errno != EDQUOT && errno != EIO))
        return LS_OK; /* not every file system can; the write will fail instead */
    ls_status st =
        ls_fail_sys(LS_EIO, "cannot reserve %lld bytes for \"%s\"", (long long)bytes, path);
    ls_err_hint("Free some space there, or keep fewer checkpoints.");
    return st;
}

ls_status ls_ckpt_sync_folder(const char *path)
{
    ls_status st = ls_file_sync_dir(path);

    for (int tries = 1; tries < STALE_TRIES && st != LS_OK && errno == ESTALE; tries++) {
        usleep(20 * 1000 << tries);
        st = ls_file_sync_dir(path);
    }
    return st;
}

/* Only folders that got a name, and once each: 24 objects are in 24 of 256 folders at most. */
ls_status ls_ckpt_objects_sync(const char *dir, const bool touched[256])
{
    char folder[LS_CKPT_PATH];
    bool any = false;
    ls_status st = LS_OK;

    for (int i = 0; i < 256; i++) {
        if (!touched[i])
            continue;
        snprintf(folder, sizeof folder, "%s/objects/%02x", dir, (unsigned)i);
        LS_TRY(st, ls_ckpt_sync_folder(folder), out);
        any = true;
    }
    snprintf(folder, sizeof folder, "%s/objects", dir);
    if (any)
        LS_TRY(st, ls_ckpt_sync_folder(folder), out);
out:
    return st;
}

/* Rename without replacing, unless asked to. With RENAME_NOREPLACE the kernel refuses where a manifest of
 * this step has come meanwhile; older kernels and some file systems cannot do that. */
static int commit_rename(const char *from, const char *to, bool replace)
{
    if (LS_FAULT("ckpt.manifest.rename")) {
        errno = EIO;
        return -1;
    }
    if (replace)
        return rename(from, to);
    int rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS))
        rc = rename(from, to); /* the caller holds the store: no other writer can be first */
    return rc;
}

/* The outcome of one attempt. */
typedef enum outcome { DONE, AGAIN, FAILED } outcome;

/* Write, sync and rename a manifest. AGAIN: the file must be written anew (a stale handle, or a
 * sync that failed).
 *
 *     open -> reserve -> write -> fsync -> rename -> DONE
 *       |        |         |        |         +----> FAILED
 *       |        |         |        +--------------> AGAIN
 *       |        |         +--- ESTALE: AGAIN, else FAILED
 *       +--------+--> FAILED                         the temporary file goes, unless DONE */
static outcome commit_once(const char *dir, const char *path, const ls_str *text, bool replace)
{
    outcome result = FAILED;
    ls_ckpt_temp t;

    if (ls_ckpt_temp_open(&t, dir, true) != LS_OK ||
        ls_ckpt_reserve(t.fd, (int64_t)text->len, path) != LS_OK)
        goto out;
    ls_fault_deed deed = ls_fault_at(LS_FAULT_AT_SAVE_MANIFEST);
    if (deed == LS_FAULT_TORN)
        (void)ls_file_write_all(t.fd, text->p, text->len / 2, path);
    errno = LS_FAULT("ckpt.manifest.write") ? ENOSPC : ls_fault_errno(deed);
    if (errno) {
        ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
        goto out;
    }
    if (ls_file_write_all(t.fd, text->p, text->len, path) != LS_OK) {
        result = errno == ESTALE ? AGAIN : FAILED;
        goto out;
    }
    if (LS_FAULT("ckpt.manifest.sync") ? (errno = EIO, true) : fsync(t.fd) != 0) {
        ls_fail_sys(LS_EIO, "cannot sync \"%s\"", path);
        result = AGAIN;
        goto out;
    }
    if (commit_rename(t.name.p, path, replace) != 0) {
        ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", t.name.p, path);
        goto out;
    }
    ls_str_clear(&t.name);
    result = DONE;
out:
    ls_ckpt_temp_close(&t);
    return result;
}

ls_status ls_ckpt_manifest_commit(ls_ckpt_store *store, const char *path, const ls_str *text,
                                  bool replace)
{
    outcome result = AGAIN;

    for (int tries = 0; tries < TRIES && result == AGAIN; tries++)
        result = commit_once(store->dir, path, text, replace);
    return result == DONE ? ls_ckpt_sync_folder(store->dir) : ls_err_last()->code;
}
