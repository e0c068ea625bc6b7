/* reader.c -- plain files, gzip through zlib, zstd through libzstd.
 *
 * One block of input at a time; a decoder takes from it and says when it wants more. What must
 * hold: at the end of the file the decoder stands between two members (or frames), else data is
 * missing. */
#include "data/corpus/reader_impl.h"

#include <errno.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include "base/file.h"
#include "base/mem.h"

enum { BLOCK = 1 << 17 };

typedef enum form { PLAIN, GZIP, ZSTD } form;

struct ls_reader {
    char *path; /* owned */
    int fd;     /* -1: none */
    form form;
    z_stream gzip;
    bool gzip_open;  /* inflateInit2 was done */
    bool between;    /* no member or frame is open */
    ZSTD_DCtx *zstd; /* owned */
    size_t at, have; /* unread part of block */
    bool ended;      /* the file has no more bytes */
    unsigned char block[BLOCK];
};

bool ls_reader_ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);

    return n >= m && strcasecmp(path + n - m, suffix) == 0;
}

static ls_status start_decoder(ls_reader *r)
{
    if (r->form == GZIP) {
        if (inflateInit2(&r->gzip, 16 + MAX_WBITS) != Z_OK)
            return ls_fail(LS_ENOMEM, "cannot allocate a gzip decoder for \"%s\"", r->path);
        r->gzip_open = true;
    } else if (r->form == ZSTD) {
        r->zstd = ZSTD_createDCtx();
        if (!r->zstd)
            return ls_fail(LS_ENOMEM, "cannot allocate a zstd decoder for \"%s\"", r->path);
    }
    return LS_OK;
}

ls_status ls_reader_open(ls_reader **reader_out, const char *path)
{
    ls_status st = LS_OK;
    ls_reader *r = ls_mem_alloc(sizeof *r);

    if (!r)
        return LS_ENOMEM;
    r->fd = -1;
    r->between = true;
    r->form = ls_reader_ends_in(path, ".gz")    ? GZIP
              : ls_reader_ends_in(path, ".zst") ? ZSTD
                                                : PLAIN;
    r->path = ls_mem_strdup(path);
    if (!r->path) {
        st = LS_ENOMEM;
        goto out;
    }
    st = ls_file_open_read(path, &r->fd);
    if (st != LS_OK && ls_file_is_dir(path))
        ls_err_hint("Name the files in it with a pattern such as \"%s/*.txt\".", path);
    LS_TRY(st, st, out);
    LS_TRY(st, start_decoder(r), out);
    *reader_out = r;
out:
    if (st != LS_OK)
        ls_reader_close(r);
    return st;
}

void ls_reader_close(ls_reader *reader)
{
    if (!reader)
        return;
    if (reader->gzip_open)
        inflateEnd(&reader->gzip);
    ZSTD_freeDCtx(reader->zstd);
    if (reader->fd >= 0)
        close(reader->fd);
    ls_mem_free(reader->path);
    ls_mem_free(reader);
}

static ls_status read_some(ls_reader *r, void *bytes, size_t cap, size_t *n_out)
{
    for (;;) {
        ssize_t n = read(r->fd, bytes, cap);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ls_fail_sys(LS_EIO, "cannot read \"%s\"", r->path);
        *n_out = (size_t)n;
        return LS_OK;
    }
}

static ls_status fill_block(ls_reader *r)
{
    ls_status st = read_some(r, r->block, sizeof r->block, &r->have);

    r->at = 0;
    r->ended = st == LS_OK && r->have == 0;
    return st;
}

static ls_status damaged(const ls_reader *r, const char *why)
{
    /* The libraries' words for a file that never was one of theirs. */
    if (strcmp(why, "incorrect header check") == 0 ||
        strcmp(why, "Unknown frame descriptor") == 0) {
        ls_fail(LS_EDATA, "\"%s\" is not compressed as its name says", r->path);
        ls_err_hint("Give it a name without .gz or .zst if it is plain text.");
        return LS_EDATA;
    }
    ls_fail(LS_EDATA, "\"%s\" is damaged: %s", r->path, why);
    ls_err_hint("Copy or download it again.");
    return LS_EDATA;
}

/* Inflate from the block; *n_out may be 0 when more input is needed. */
static ls_status inflate_some(ls_reader *r, void *bytes, size_t cap, size_t *n_out)
{
    z_stream *z = &r->gzip;

    if (r->between) { /* the next member */
        inflateReset(z);
        r->between = false;
    }
    z->next_in = r->block + r->at;
    z->avail_in = (uInt)(r->have - r->at);
    z->next_out = bytes;
    z->avail_out = (uInt)ls_min_i64((int64_t)cap, 1 << 30);
    uInt room = z->avail_out;
    int rc = inflate(z, Z_NO_FLUSH);
    r->at = r->have - z->avail_in;
    *n_out = room - z->avail_out;
    if (rc == Z_STREAM_END)
        r->between = true;
    else if (rc == Z_MEM_ERROR)
        return ls_fail(LS_ENOMEM, "cannot allocate memory to read \"%s\"", r->path);
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return damaged(r, z->msg ? z->msg : "not gzip data");
    return LS_OK;
}

static ls_status unzstd_some(ls_reader *r, void *bytes, size_t cap, size_t *n_out)
{
    ZSTD_inBuffer in = {r->block, r->have, r->at};
    ZSTD_outBuffer out = {bytes, cap, 0};
    size_t rc = ZSTD_decompressStream(r->zstd, &out, &in);

    if (ZSTD_isError(rc))
        return damaged(r, ZSTD_getErrorName(rc));
    r->at = in.pos;
    *n_out = out.pos;
    r->between = rc == 0;
    return LS_OK;
}

ls_status ls_reader_read(ls_reader *reader, void *bytes, size_t cap, size_t *n_out)
{
    ls_status st = LS_OK;
    size_t n = 0;

    if (reader->form == PLAIN)
        return read_some(reader, bytes, cap, n_out);
    while (n == 0) {
        if (reader->at == reader->have && !reader->ended)
            LS_TRY(st, fill_block(reader), out);
        if (reader->ended && reader->between)
            break;
        /* At the end a decoder may still hold output; if not, the file stops too early. */
        LS_TRY(st,
               reader->form == GZIP ? inflate_some(reader, bytes, cap, &n)
                                    : unzstd_some(reader, bytes, cap, &n),
               out);
        if (n == 0 && reader->ended && !reader->between) {
            st = damaged(reader, "the file is cut off");
            goto out;
        }
    }
    *n_out = n;
out:
    return st;
}
