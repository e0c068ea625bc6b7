/* safetensors_write.c -- a safetensors file written piece by piece.
 *
 *     [length][header][tensor 0][tensor 1]...      put() appends; finish() needs the last byte
 *
 *     create -> put ... put -> finish    the file is whole and on disk
 *                    \-------> abandon   it is cut short; the caller removes its folder
 *
 * The space is reserved before the first byte, so that a full disk is found at once and not after
 * an hour. Where a file system cannot reserve, writing goes on without. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include "base/fault.h"

/* Take the space for the whole file now. Only a clear answer (no space, quota, file size) is a
 * failure; other errors mean that the file system cannot reserve. */
static ls_status reserve(const ls_safetensors_writer *w)
{
    int error = LS_FAULT("safetensors.reserve") ? ENOSPC
                : w->end > 0                    ? posix_fallocate(w->fd, 0, w->end)
                                                : 0;

    if (error != ENOSPC && error != EDQUOT && error != EFBIG)
        return LS_OK; /* not supported here, or done */
    errno = error;
    ls_status st = ls_fail_sys(LS_EIO, "cannot write \"%s\", which needs %.1f MB", w->path,
                               (double)w->end / 1e6);
    if (error != EFBIG) /* a limit of the process has its own hint */
        ls_err_hint("Free some space there, or choose another folder.");
    return st;
}

ls_status ls_safetensors_create(ls_safetensors_writer *w, const char *path,
                                ls_safetensors_item *items, int count)
{
    ls_status st;
    ls_str head;

    *w = (ls_safetensors_writer){.fd = -1, .path = path};
    ls_str_init(&head);
    LS_TRY(st, ls_safetensors_layout(items, count, &head), out);
    w->end = count ? items[count - 1].end : (int64_t)head.len;
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
        goto out;
    }
    LS_TRY(st, reserve(w), out);
    LS_TRY(st, ls_safetensors_put(w, head.p, (int64_t)head.len), out);
out:
    ls_str_release(&head);
    if (st != LS_OK)
        ls_safetensors_abandon(w);
    return st;
}

ls_status ls_safetensors_put(ls_safetensors_writer *w, const void *bytes, int64_t len)
{
    LS_BUG_IF(len < 0 || len > w->end - w->at, "more bytes than \"%s\" has room for", w->path);
    ls_status st = ls_file_write_all(w->fd, bytes, (size_t)len, w->path);
    if (st == LS_OK)
        w->at += len;
    return st;
}

ls_status ls_safetensors_finish(ls_safetensors_writer *w)
{
    ls_status st = LS_OK;

    LS_BUG_IF(w->at != w->end, "\"%s\" lacks %lld bytes", w->path, (long long)(w->end - w->at));
    if (fsync(w->fd) != 0)
        st = ls_fail_sys(LS_EIO, "cannot sync \"%s\"", w->path);
    ls_safetensors_abandon(w);
    return st;
}

void ls_safetensors_abandon(ls_safetensors_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}
