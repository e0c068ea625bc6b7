/* disk.h -- reads, writes and syncs of files that go on while the caller computes.
 *
 * A caller submits requests and takes their ends, which come in any order. The kernel does them by
 * io_uring where it allows that; otherwise a few threads do, by pread, pwrite and fdatasync
 * (LINESHAFT_DISK=threads: always these). What a request points at is borrowed until its end has
 * been taken. One thread per disk. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_disk ls_disk;

typedef struct ls_disk_request {
    enum { LS_DISK_READ, LS_DISK_WRITE, LS_DISK_SYNC } what; /* sync: fdatasync */
    int fd;
    void *bytes; /* not of a sync, as the next two */
    int64_t len; /* at most 1 GiB */
    int64_t at;  /* in the file */
    int tag;     /* the caller's own */
} ls_disk_request;

typedef struct ls_disk_end {
    int tag;
    int error;    /* errno; 0: none */
    int64_t done; /* bytes, may be fewer than asked for: at the end of a file, on a full disk */
} ls_disk_end;

/* depth: requests that may be under way at once. LS_ENOMEM, LS_EFAIL: no threads. */
ls_status ls_disk_open(ls_disk **disk_out, int depth);

/* Waits for what is under way. NULL is allowed. */
void ls_disk_close(ls_disk *disk);

void ls_disk_submit(ls_disk *disk, const ls_disk_request *request);

/* The end of one request; waits for it. Something must be under way. */
ls_disk_end ls_disk_take(ls_disk *disk);

/* How it is done here: "io_uring", or why not: "threads (io_uring: Operation not permitted)". */
void ls_disk_means(char *text_out, size_t size);

LS_C_END
