/* file.h -- files and folders: whole reads, atomic writes, locks.
 *
 * Every function names the path in its error. A write that must survive a crash goes to an unnamed
 * or temporary file, is synced, is renamed or linked into place, and the folder is synced; only the
 * rename commits. */
#pragma once
#include "base/err.h"
#include "base/str.h"
#include <sys/types.h>

LS_C_BEGIN

/* Open a plain file to read it. A folder, a pipe and a device, which may never begin or never end, are
 * refused (LS_EIO), at once. */
ls_status ls_file_open_read(const char *path, int *fd_out);

/* The whole file, appended to text_out; LS_EDATA for a file longer than limit_bytes. When it fails,
 * text_out holds what it held. */
ls_status ls_file_read(const char *path, int64_t limit_bytes, ls_str *text_out);
/* The same of standard input, which may be a pipe or a terminal. */
ls_status ls_file_read_stdin(int64_t limit_bytes, ls_str *text_out);

/* A file mapped read-only. Empty files map to len 0 and a valid pointer. */
typedef struct ls_file_map {
    const unsigned char *bytes; /* owned mapping */
    size_t len;
} ls_file_map;
ls_status ls_file_map_open(ls_file_map *map, const char *path);
void ls_file_map_close(ls_file_map *map);

/* Open a file of ours to write at its end; it is made with this mode if it is not there. LS_EIO for a
 * symbolic link, through which somebody else would choose the file that is written, and for what is
 * no plain file. */
ls_status ls_file_open_append(const char *path, mode_t mode, int *fd_out);

/* LS_EIO when path is a symbolic link; for files that a library opens. */
ls_status ls_file_refuse_link(const char *path);

/* Replace path by bytes, atomically and durably. */
ls_status ls_file_write_atomic(const char *path, const void *bytes, size_t len);

/* Remove files NAME.tmp.PID of processes that are gone: an atomic write that was killed leaves one.
 * The caller holds the lock under which files are written there, so that a process of another host
 * writes none. */
void ls_file_sweep_temps(const char *folder);

/* All of bytes to fd, through short writes and EINTR; path is for the message. */
ls_status ls_file_write_all(int fd, const void *bytes, size_t len, const char *path);

/* fsync of the folder, so that names in it survive a crash. */
ls_status ls_file_sync_dir(const char *path);

/* Create path and the folders above it; an existing folder is fine. */
ls_status ls_file_make_dirs(const char *path);

bool ls_file_exists(const char *path);
bool ls_file_is_dir(const char *path);

/* Bytes that an ordinary user may still write where path lies; path itself need not exist, the
 * nearest existing folder above counts. */
ls_status ls_file_free_bytes(const char *path, int64_t *bytes_out);

/* Hold path as a lock for the life of the process (flock; the kernel drops it on kill -9). A child
 * made by fork() without exec shares it and keeps it alive. The file holds pid and host for the
 * message of the process that comes second: LS_EBUSY. */
ls_status ls_file_lock(const char *path, int *fd_out);
void ls_file_unlock(int fd);

/* Names in a folder that match a shell pattern, sorted; each is appended with a final '\0', and
 * *count_out is their number. A pattern without a match is LS_EIO. */
ls_status ls_file_glob(const char *pattern, ls_str *names_out, int *count_out);

/* Where something about `about` is remembered between processes: lineshaft/FOLDER/ and the first
 * `digits` of a hash of it, under $XDG_CACHE_HOME or ~/.cache; "" when there is no home, or no room
 * for the path. */
void ls_file_cache_path(const char *folder, const char *about, int digits, char *path_out,
                        size_t size);

LS_C_END
