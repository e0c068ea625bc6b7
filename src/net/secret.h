/* secret.h -- the job's secret: 32 random bytes that only the processes of a job know.
 *
 * It lies in a file that only its owner may read, or comes through an inherited descriptor; never
 * on a command line, in the environment or in a log. In memory it has a page of its own that is
 * left out of core files, and it is wiped when it is released. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_SECRET_BYTES = 32 };

typedef struct ls_secret {
    uint8_t *bytes; /* LS_SECRET_BYTES on an owned page; NULL when released */
} ls_secret;

/* Draw a new secret and write it to path, which must not exist (LS_EBUSY), with mode 0600. */
ls_status ls_secret_make(const char *path);

/* Read the secret at path. Refused with LS_EUSAGE: a link, not a plain file, another owner,
 * readable by others; with LS_EDATA: not exactly 32 bytes. */
ls_status ls_secret_read(ls_secret *secret, const char *path);

/* Read it from an inherited descriptor (a pipe or a memory file), which stays the caller's. */
ls_status ls_secret_read_fd(ls_secret *secret, int fd);

/* The other way: a memory file with these bytes, to be inherited; owned by the caller. */
ls_status ls_secret_to_fd(const uint8_t bytes[LS_SECRET_BYTES], int *fd_out);

/* A secret of the caller's bytes. */
ls_status ls_secret_hold(ls_secret *secret, const uint8_t bytes[LS_SECRET_BYTES]);

/* Wipe and unmap. Safe on a released or zeroed secret. */
void ls_secret_release(ls_secret *secret);

/* Random bytes of the kernel. */
ls_status ls_secret_random(void *bytes, size_t len);

LS_C_END
