/* token_shard_write.c -- writing a shard as a stream.
 *
 * Tokens go through one buffer into the file behind room for the header; document starts go into a
 * second file without a name, because a corpus may have more documents than memory, and are copied
 * behind the tokens at the end; marks, where there are any, go into a third in the same way. The
 * header is written last: until then the file is zeros where the magic must be. Then fsync, rename,
 * fsync of the folder; only the rename commits.
 *
 * The file has no name while it grows (O_TMPFILE), so that even kill -9 leaves nothing. It gets a
 * temporary name for the instant before the rename, because a link cannot replace a file. */
#include "data/corpus/token_shard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>
#include "data/corpus/token_shard_impl.h"
#include "base/fault.h"
#include "base/mem.h"

enum { BUFFER_BYTES = 1 << 20, STARTS_BUFFERED = 4096, MARKS_BUFFERED = 1 << 15 };

struct ls_token_shard_writer {
    char *path, *temp; /* owned; temp is PATH.tmp.PID */
    char *folder;      /* owned */
    const ls_tokenizer *tok;
    int fd;         /* -1: none */
    int starts_fd;  /* -1: none yet */
    int marks_fd;   /* likewise */
    bool named;     /* temp exists */
    bool fresh;     /* the next append begins a document */
    ls_status lost; /* a failure that an append already reported */
    ls_token_shard_header header;
    ls_hash_stream tokens_hash, starts_hash, source_hash, marks_hash;
    size_t used; /* bytes in buffer */
    int n_starts;
    uint64_t starts[STARTS_BUFFERED];
    int64_t marks_written;               /* tokens whose marks lie in the file */
    unsigned char marks[MARKS_BUFFERED]; /* of the tokens behind them, a bit each */
    unsigned char buffer[BUFFER_BYTES];
};

/* A file in folder that vanishes when it is closed; temp is used and unlinked where O_TMPFILE is
 * not possible, unless keep: then it stays and *named_out says so. */
static ls_status open_unnamed(const char *folder, const char *temp, bool keep, int *fd_out,
                              bool *named_out)
{
    *named_out = false;
    if (!LS_FAULT("shard.unnamed") && access("/proc/self/fd", X_OK) == 0) {
        *fd_out = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
        if (*fd_out >= 0)
            return LS_OK;
    }
    *fd_out = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (*fd_out < 0)
        return ls_fail_sys(LS_EIO, "cannot create a file in \"%s\"", folder);
    if (keep)
        *named_out = true;
    else
        unlink(temp);
    return LS_OK;
}

static void release(ls_token_shard_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    if (w->starts_fd >= 0)
        close(w->starts_fd);
    if (w->marks_fd >= 0)
        close(w->marks_fd);
    if (w->named)
        unlink(w->temp);
    ls_mem_free(w->path);
    ls_mem_free(w->temp);
    ls_mem_free(w->folder);
    ls_mem_free(w);
}

void ls_token_shard_abandon(ls_token_shard_writer *writer)
{
    if (writer)
        release(writer);
}

static ls_status name_files(ls_token_shard_writer *w, const char *path)
{
    size_t n = strlen(path) + 32;

    w->path = ls_mem_strdup(path);
    w->folder = ls_mem_alloc(n);
    w->temp = ls_mem_alloc(n);
    if (!w->path || !w->folder || !w->temp)
        return LS_ENOMEM;
    snprintf(w->temp, n, "%s.tmp.%d", path, (int)getpid());
    snprintf(w->folder, n, "%s", path);
    char *slash = strrchr(w->folder, '/');
    if (slash)
        slash[slash == w->folder] = '\0'; /* "/x.lst" lies in "/" */
    else
        memcpy(w->folder, ".", 2);
    return LS_OK;
}

static void fill_header(ls_token_shard_header *h, const ls_token_shard_args *args)
{
    uint32_t vocab = (uint32_t)ls_tokenizer_vocab(args->tok);
    int width = args->width ? args->width : vocab <= 1u << 8 ? 1 : vocab <= 1u << 16 ? 2 : 4;

    memcpy(h->magic, LS_TOKEN_SHARD_MAGIC, sizeof h->magic);
    h->version = args->window > 0 ? LS_TOKEN_SHARD_MARKED : LS_TOKEN_SHARD_VERSION;
    h->window = (uint64_t)ls_max_i64(0, args->window);
    h->header_bytes = LS_TOKEN_SHARD_HEADER;
    h->tokens_at = LS_TOKEN_SHARD_HEADER;
    h->width = (uint32_t)width;
    h->vocab = vocab;
    h->separator = ls_tokenizer_separator(args->tok);
    h->tokenizer_hash = ls_tokenizer_hash(args->tok);
    h->key = args->key;
    snprintf(h->tokenizer, sizeof h->tokenizer, "%s", ls_tokenizer_name(args->tok));
    snprintf(h->source, sizeof h->source, "%s", args->source);
}

ls_status ls_token_shard_create(ls_token_shard_writer **writer_out, const ls_token_shard_args *args)
{
    static const unsigned char room[LS_TOKEN_SHARD_HEADER];
    ls_status st = LS_OK;

    if (ls_tokenizer_separator(args->tok) < 0) {
        st = ls_fail(LS_EDATA, "the tokenizer \"%s\" has no token that ends a text",
                     ls_tokenizer_name(args->tok));
        ls_err_hint("Name one as \"eos_token\" in its tokenizer_config.json.");
        return st;
    }
    ls_token_shard_writer *w = ls_mem_alloc(sizeof *w);
    if (!w)
        return LS_ENOMEM;
    w->fd = w->starts_fd = w->marks_fd = -1;
    w->tok = args->tok;
    LS_TRY(st, name_files(w, args->path), out);
    fill_header(&w->header, args);
    ls_hash_begin(&w->tokens_hash);
    ls_hash_begin(&w->starts_hash);
    ls_hash_begin(&w->source_hash);
    ls_hash_begin(&w->marks_hash);
    LS_TRY(st, open_unnamed(w->folder, w->temp, true, &w->fd, &w->named), out);
    LS_TRY(st, ls_file_write_all(w->fd, room, sizeof room, w->path), out);
    *writer_out = w;
out:
    if (st != LS_OK)
        release(w);
    return st;
}

static ls_status write_tokens(ls_token_shard_writer *w)
{
    if (LS_FAULT("shard.write")) {
        errno = ENOSPC;
        return ls_fail_sys(LS_EIO, "cannot write \"%s\"", w->path);
    }
    ls_hash_add(&w->tokens_hash, w->buffer, w->used);
    ls_status st = ls_file_write_all(w->fd, w->buffer, w->used, w->path);
    w->used = 0;
    return st;
}

/* Bytes to a file beside the tokens, which is made when it is first needed. */
static ls_status write_aside(ls_token_shard_writer *w, int *fd, const char *suffix,
                             const void *bytes, size_t len)
{
    ls_status st = LS_OK;
    char temp[PATH_MAX];
    bool named;

    if (*fd < 0) {
        if ((size_t)snprintf(temp, sizeof temp, "%s.%s", w->temp, suffix) >= sizeof temp)
            return ls_fail(LS_EIO, "cannot write \"%s\": the path is too long", w->path);
        LS_TRY(st, open_unnamed(w->folder, temp, false, fd, &named), out);
    }
    st = ls_file_write_all(*fd, bytes, len, w->path);
out:
    return st;
}

static ls_status write_starts(ls_token_shard_writer *w)
{
    size_t len = (size_t)w->n_starts * 8;

    ls_hash_add(&w->starts_hash, w->starts, len);
    w->n_starts = 0;
    return write_aside(w, &w->starts_fd, "docs", w->starts, len);
}

/* The marks that are buffered; all of their bytes but the last are full. */
static ls_status write_marks(ls_token_shard_writer *w)
{
    int64_t n = (int64_t)w->header.tokens - w->marks_written;
    size_t len = (size_t)ls_token_shard_mark_bytes((uint64_t)n);

    ls_hash_add(&w->marks_hash, w->marks, len);
    ls_status st = write_aside(w, &w->marks_fd, "marks", w->marks, len);
    memset(w->marks, 0, sizeof w->marks);
    w->marks_written += n;
    return st;
}

void ls_token_shard_begin_document(ls_token_shard_writer *writer)
{
    writer->fresh = true;
}

static void put_token(ls_token_shard_writer *w, int32_t id)
{
    unsigned char *to = w->buffer + w->used;
    uint32_t width = w->header.width;

    /* Little endian: the low bytes come first, whatever the width. */
    for (uint32_t i = 0; i < width; i++)
        to[i] = (unsigned char)((uint32_t)id >> (8 * i));
    w->used += width;
    w->header.tokens++;
}

static ls_status start_document(ls_token_shard_writer *w)
{
    ls_status st = LS_OK;

    if (w->header.documents && !w->header.window)
        put_token(w, w->header.separator);
    if (w->n_starts == STARTS_BUFFERED)
        LS_TRY(st, write_starts(w), out);
    w->starts[w->n_starts++] = w->header.tokens;
    w->header.documents++;
    w->fresh = false;
out:
    return st;
}

ls_status ls_token_shard_append(ls_token_shard_writer *writer, const int32_t *ids, int64_t n)
{
    ls_status st = LS_OK;
    ls_token_shard_writer *w = writer;

    for (int64_t i = 0; i < n; i++) {
        if (w->used + 8 > BUFFER_BYTES) /* room for a separator and a token */
            LS_TRY(st, write_tokens(w), out);
        if (w->fresh || !w->header.documents)
            LS_TRY(st, start_document(w), out);
        LS_BUG_IF(ids[i] < 0 || (uint32_t)ids[i] >= w->header.vocab, "writing token %d of %u",
                  (int)ids[i], (unsigned)w->header.vocab);
        put_token(w, ids[i]);
    }
out:
    if (st != LS_OK)
        w->lost = st;
    return st;
}

ls_status ls_token_shard_append_marked(ls_token_shard_writer *writer, const int32_t *ids,
                                       const unsigned char *marks, int64_t n)
{
    ls_status st = LS_OK;
    ls_token_shard_writer *w = writer;

    LS_BUG_IF(!w->header.window, "marks for a plain shard");
    for (int64_t i = 0; i < n; i++) {
        int64_t bit = (int64_t)w->header.tokens - w->marks_written;
        if (bit == MARKS_BUFFERED * 8) {
            LS_TRY(st, write_marks(w), out);
            bit = 0;
        }
        LS_TRY(st, ls_token_shard_append(w, &ids[i], 1), out);
        if (marks[i]) {
            w->marks[bit / 8] |= (unsigned char)(1u << (bit % 8));
            w->header.marked++;
        }
    }
out:
    if (st != LS_OK)
        w->lost = st;
    return st;
}

ls_status ls_token_shard_fill_window(ls_token_shard_writer *writer)
{
    int64_t T = (int64_t)writer->header.window, used = (int64_t)writer->header.tokens % T;
    int32_t separator = ls_tokenizer_separator(writer->tok);
    const unsigned char none = 0;
    ls_status st = LS_OK;

    if (used)
        ls_token_shard_begin_document(writer);
    for (; used && used < T && st == LS_OK; used++)
        st = ls_token_shard_append_marked(writer, &separator, &none, 1);
    return st;
}

void ls_token_shard_note_text(ls_token_shard_writer *writer, const void *bytes, size_t len)
{
    ls_hash_add(&writer->source_hash, bytes, len);
}

int64_t ls_token_shard_written_tokens(const ls_token_shard_writer *writer)
{
    return (int64_t)writer->header.tokens;
}

/* The first left bytes of a file beside, behind what is there. */
static ls_status copy_aside(ls_token_shard_writer *w, int fd, uint64_t left)
{
    ls_status st = LS_OK;

    for (off_t at = 0; left;) {
        size_t want = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        ssize_t n = pread(fd, w->buffer, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ls_fail_sys(LS_EIO, "cannot read back the document index of \"%s\"", w->path);
        LS_TRY(st, ls_file_write_all(w->fd, w->buffer, (size_t)n, w->path), out);
        at += n;
        left -= (uint64_t)n;
    }
out:
    return st;
}

/* Document starts behind the tokens, at a multiple of 8, and marks behind them. */
static ls_status copy_index(ls_token_shard_writer *w)
{
    static const unsigned char zeros[8];
    ls_status st = LS_OK;
    ls_token_shard_header *h = &w->header;
    uint64_t tokens_end = LS_TOKEN_SHARD_HEADER + h->tokens * h->width;

    h->starts_at = ls_token_shard_starts_at(h->tokens, h->width);
    LS_TRY(st, ls_file_write_all(w->fd, zeros, (size_t)(h->starts_at - tokens_end), w->path), out);
    LS_TRY(st, copy_aside(w, w->starts_fd, h->documents * 8), out);
    if (h->window) {
        h->marks_at = h->starts_at + h->documents * 8;
        LS_TRY(st, copy_aside(w, w->marks_fd, ls_token_shard_mark_bytes(h->tokens)), out);
    }
out:
    return st;
}

static ls_status seal(ls_token_shard_writer *w)
{
    ls_token_shard_header *h = &w->header;

    h->tokens_hash = ls_hash_end(&w->tokens_hash);
    h->starts_hash = ls_hash_end(&w->starts_hash);
    h->source_hash = ls_hash_end(&w->source_hash);
    if (h->window)
        h->marks_hash = ls_hash_end(&w->marks_hash);
    h->crc = ls_hash_crc32c(0, h, offsetof(ls_token_shard_header, crc));
    if (lseek(w->fd, 0, SEEK_SET) != 0)
        return ls_fail_sys(LS_EIO, "cannot write \"%s\"", w->path);
    ls_status st = ls_file_write_all(w->fd, h, sizeof *h, w->path);
    if (st == LS_OK && fsync(w->fd) != 0)
        st = ls_fail_sys(LS_EIO, "cannot sync \"%s\"", w->path);
    return st;
}

static ls_status commit(ls_token_shard_writer *w)
{
    if (!w->named) {
        char from[64];
        snprintf(from, sizeof from, "/proc/self/fd/%d", w->fd);
        unlink(w->temp); /* left by a process of the same number that was killed right here */
        if (linkat(AT_FDCWD, from, AT_FDCWD, w->temp, AT_SYMLINK_FOLLOW) != 0)
            return ls_fail_sys(LS_EIO, "cannot create \"%s\"", w->temp);
        w->named = true;
    }
    if (LS_FAULT("shard.rename")) {
        errno = EIO;
        return ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", w->temp, w->path);
    }
    if (rename(w->temp, w->path) != 0)
        return ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", w->temp, w->path);
    w->named = false;
    return ls_file_sync_dir(w->folder);
}

ls_status ls_token_shard_finish(ls_token_shard_writer *writer)
{
    ls_status st = writer->lost;

    if (st != LS_OK)
        goto out;
    LS_BUG_IF(writer->header.window && writer->header.tokens % writer->header.window,
              "%llu tokens do not fill windows of %llu", (unsigned long long)writer->header.tokens,
              (unsigned long long)writer->header.window);
    LS_TRY(st, write_tokens(writer), out);
    LS_TRY(st, write_starts(writer), out);
    if (writer->header.window)
        LS_TRY(st, write_marks(writer), out);
    LS_TRY(st, copy_index(writer), out);
    LS_TRY(st, seal(writer), out);
    LS_TRY(st, commit(writer), out);
out:
    release(writer);
    return st;
}
