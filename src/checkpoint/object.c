/* object.c -- files of the store, written so that they are whole or absent, read so that damage
 * shows.
 *
 * Writing an object, in this order:
 *
 *   temporary file without a name   a killed writer leaves nothing; where the file system has none,
 *                                   a named one that carries a lock, so that a later sweep can tell
 *                                   a dead writer's file from a living one's
 *   fallocate                       a full disk is found before the first byte
 *   write, fdatasync                the content is on disk ...
 *   link                            ... before the name is; never over an existing name
 *
 * The caller syncs the folders once for all objects. When fdatasync fails, the kernel may have
 * dropped the dirty pages and a second call may report success: so the file is thrown away and
 * written anew, once.
 *
 * Reading goes through read(), not through a mapping: a bad sector becomes an error message instead
 * of SIGBUS, and the bytes that were checked are the bytes that are used. */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/spill.h"

void ls_ckpt_object_path(const char *dir, ls_hash hash, ls_str *path_out)
{
    char hex[LS_HASH_HEX];

    ls_hash_hex(hash, hex);
    ls_str_printf(path_out, "%s/objects/%.2s/%s.safetensors", dir, hex, hex);
}

/* --- reading ------------------------------------------------------------------------------------
 */

ls_status ls_ckpt_reader_open(ls_ckpt_reader *reader, const char *dir, const ls_ckpt_object *object)
{
    ls_status st = LS_OK;
    struct stat info;

    *reader = (ls_ckpt_reader){.fd = -1, .object = object};
    ls_str_init(&reader->path);
    ls_ckpt_object_path(dir, object->hash, &reader->path);
    LS_TRY(st, ls_str_status(&reader->path), out);
    reader->fd = open(reader->path.p, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0 || fstat(reader->fd, &info) != 0) {
        st = errno == ENOENT ? ls_fail(LS_EDATA, "object \"%s\" is missing", reader->path.p)
                             : ls_fail_sys(LS_EIO, "cannot read object \"%s\"", reader->path.p);
        goto out;
    }
    if (info.st_size != object->bytes) {
        st = ls_fail(LS_EDATA, "object \"%s\" has %lld bytes instead of %lld", reader->path.p,
                     (long long)info.st_size, (long long)object->bytes);
        goto out;
    }
    reader->bytes = ls_mem_alloc((size_t)object->bytes);
    reader->loaded = ls_mem_array((size_t)ls_ckpt_blocks(object->bytes), sizeof(bool));
    if (!reader->bytes || !reader->loaded)
        st = LS_ENOMEM;
out:
    if (st != LS_OK)
        ls_ckpt_reader_close(reader);
    return st;
}

void ls_ckpt_reader_close(ls_ckpt_reader *reader)
{
    if (reader->fd >= 0)
        close(reader->fd);
    ls_str_release(&reader->path);
    ls_mem_free(reader->bytes);
    ls_mem_free(reader->loaded);
    *reader = (ls_ckpt_reader){.fd = -1};
    ls_str_init(&reader->path);
}

static ls_status read_at(int fd, void *bytes, int64_t len, int64_t at, const char *path)
{
    char *p = bytes;

    while (len) {
        ssize_t n = pread(fd, p, (size_t)len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ls_fail_sys(LS_EIO, "cannot read object \"%s\"", path);
        if (n == 0)
            return ls_fail(LS_EDATA, "object \"%s\" became shorter while it was read", path);
        p += n;
        at += n;
        len -= n;
    }
    return LS_OK;
}

static ls_status check_block(const ls_ckpt_object *object, int64_t block, const void *bytes,
                             int64_t len, const char *path)
{
    if (ls_hash_crc32c(0, bytes, (size_t)len) == object->crcs[block])
        return LS_OK;
    return ls_fail(LS_EDATA, "object \"%s\" is damaged in bytes %lld to %lld", path,
                   (long long)(block * LS_CKPT_BLOCK),
                   (long long)(block * LS_CKPT_BLOCK + len - 1));
}

ls_status ls_ckpt_reader_need(ls_ckpt_reader *reader, int64_t begin, int64_t end)
{
    ls_status st = LS_OK;
    const ls_ckpt_object *o = reader->object;

    for (int64_t b = begin / LS_CKPT_BLOCK; b * LS_CKPT_BLOCK < end; b++) {
        int64_t at = b * LS_CKPT_BLOCK;
        int64_t len = ls_min_i64(LS_CKPT_BLOCK, o->bytes - at);
        if (reader->loaded[b])
            continue;
        LS_TRY(st, read_at(reader->fd, reader->bytes + at, len, at, reader->path.p), out);
        LS_TRY(st, check_block(o, b, reader->bytes + at, len, reader->path.p), out);
        reader->loaded[b] = true;
    }
out:
    return st;
}

static ls_status check_name(const ls_ckpt_object *object, ls_hash got, const char *path)
{
    if (ls_hash_equal(object->hash, got))
        return LS_OK;
    return ls_fail(LS_EDATA, "object \"%s\" does not have the hash of its name", path);
}

ls_status ls_ckpt_reader_all(ls_ckpt_reader *reader)
{
    ls_status st = LS_OK;
    const ls_ckpt_object *o = reader->object;

    LS_TRY(st, ls_ckpt_reader_need(reader, 0, o->bytes), out);
    LS_TRY(st, check_name(o, ls_hash_bytes(reader->bytes, (size_t)o->bytes), reader->path.p), out);
out:
    return st;
}

static ls_status verify_blocks(int fd, const ls_ckpt_object *object, unsigned char *block,
                               const char *path)
{
    ls_status st = LS_OK;
    ls_hash_stream hash;

    ls_hash_begin(&hash);
    for (int64_t b = 0; b < ls_ckpt_blocks(object->bytes); b++) {
        int64_t at = b * LS_CKPT_BLOCK;
        int64_t len = ls_min_i64(LS_CKPT_BLOCK, object->bytes - at);
        LS_TRY(st, read_at(fd, block, len, at, path), out);
        LS_TRY(st, check_block(object, b, block, len, path), out);
        ls_hash_add(&hash, block, (size_t)len);
    }
    LS_TRY(st, check_name(object, ls_hash_end(&hash), path), out);
out:
    return st;
}

ls_status ls_ckpt_object_verify(const char *dir, const ls_ckpt_object *object)
{
    ls_status st = LS_OK;
    struct stat info;
    ls_str path;
    unsigned char *block = NULL;
    int fd = -1;

    ls_str_init(&path);
    ls_ckpt_object_path(dir, object->hash, &path);
    LS_TRY(st, ls_str_status(&path), out);
    fd = open(path.p, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot read object \"%s\"", path.p);
        goto out;
    }
    if (info.st_size != object->bytes) {
        st = ls_fail(LS_EDATA, "object \"%s\" has %lld bytes instead of %lld", path.p,
                     (long long)info.st_size, (long long)object->bytes);
        goto out;
    }
    block = ls_mem_alloc(LS_CKPT_BLOCK);
    st = block ? verify_blocks(fd, object, block, path.p) : LS_ENOMEM;
out:
    if (fd >= 0)
        close(fd);
    ls_mem_free(block);
    ls_str_release(&path);
    return st;
}

/* --- temporary files ----------------------------------------------------------------------------
 */

typedef struct temp {
    int fd;
    ls_str name; /* "" for a file without a name */
} temp;

/* What became of one attempt to write a file. */
typedef enum outcome { DONE, AGAIN, FAILED } outcome;

static ls_status temp_open_named(temp *t, const char *folder)
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
            /* Tells a sweeper that we live. Without locks on this file system nobody sweeps. */
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

static ls_status temp_open(temp *t, const char *folder, bool named)
{
    *t = (temp){.fd = -1};
    ls_str_init(&t->name);
    if (!named) {
        t->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
        if (t->fd >= 0)
            return LS_OK;
        if (errno == ENOSPC || errno == EDQUOT || errno == EACCES || errno == EROFS)
            return ls_fail_sys(LS_EIO, "cannot create a temporary file in \"%s\"", folder);
    }
    return temp_open_named(t, folder);
}

static void temp_close(temp *t)
{
    if (t->fd >= 0)
        close(t->fd);
    if (t->name.len)
        unlink(t->name.p);
    ls_str_release(&t->name);
    t->fd = -1;
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

static ls_status reserve(int fd, int64_t bytes, const char *path)
{
    if (fallocate(fd, 0, 0, bytes) == 0 || (errno != ENOSPC && errno != EDQUOT && errno != EIO))
        return LS_OK; /* not every file system can; the write will tell */
    ls_status st =
        ls_fail_sys(LS_EIO, "cannot reserve %lld bytes for \"%s\"", (long long)bytes, path);
    ls_err_hint("Free some space there, or keep fewer checkpoints.");
    return st;
}

/* --- writing ------------------------------------------------------------------------------------
 */

/* A large object goes past the page cache, where the file system can do that (O_DIRECT): nobody
 * reads it soon, and its sync need not wait for what others have written. Then blocks must be
 * aligned, in memory and in the file: they are put together in a buffer, the last one is filled up
 * with zeros, and the file is cut to its length at the end. */
enum { DIRECT_LEAST = 1 << 20, DIRECT_BYTES = 4 << 20, DIRECT_ALIGN = 4096 };

typedef struct sink {
    int fd;
    const char *path;
    void *memory; /* owned; NULL: pieces are written as they are */
    char *buffer; /* DIRECT_BYTES in it, aligned */
    int64_t filled;
} sink;

static void sink_open(sink *s, int fd, int64_t bytes, const char *path)
{
    int flags = fcntl(fd, F_GETFL);

    *s = (sink){.fd = fd, .path = path};
    if (bytes < DIRECT_LEAST || flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0)
        return;
    s->memory = ls_mem_alloc(DIRECT_BYTES + DIRECT_ALIGN);
    if (s->memory)
        s->buffer =
            (char *)s->memory + (DIRECT_ALIGN - (uintptr_t)s->memory % DIRECT_ALIGN) % DIRECT_ALIGN;
    else
        (void)fcntl(fd, F_SETFL, flags);
}

/* What is in the buffer, n bytes of it, to the file. */
static ls_status sink_flush(sink *s, int64_t n)
{
    ssize_t done;

    do
        done = write(s->fd, s->buffer, (size_t)n);
    while (done < 0 && errno == EINTR);
    s->filled = 0;
    if (done == n)
        return LS_OK;
    if (done < 0 && errno != EINVAL)
        return ls_fail_sys(LS_EIO, "cannot write \"%s\"", s->path);
    /* it was promised and does not work, or stopped in the middle: through the cache, then */
    (void)fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) & ~O_DIRECT);
    done = done < 0 ? 0 : done;
    return ls_file_write_all(s->fd, s->buffer + done, (size_t)(n - done), s->path);
}

static ls_status sink_put(sink *s, const char *bytes, int64_t len)
{
    ls_status st = LS_OK;

    if (!s->memory)
        return ls_file_write_all(s->fd, bytes, (size_t)len, s->path);
    while (len > 0) {
        int64_t n = ls_min_i64(len, DIRECT_BYTES - s->filled);
        memcpy(s->buffer + s->filled, bytes, (size_t)n);
        s->filled += n;
        bytes += n;
        len -= n;
        if (s->filled == DIRECT_BYTES)
            LS_TRY(st, sink_flush(s, DIRECT_BYTES), out);
    }
out:
    return st;
}

/* The rest; then the file has so many bytes. */
static ls_status sink_end(sink *s, int64_t bytes)
{
    int64_t n = ls_round_up(s->filled, DIRECT_ALIGN);
    ls_status st = LS_OK;

    if (!s->memory)
        return LS_OK;
    memset(s->buffer + s->filled, 0, (size_t)(n - s->filled));
    if (n > 0)
        LS_TRY(st, sink_flush(s, n), out);
    if (ftruncate(s->fd, bytes) != 0)
        st = ls_fail_sys(LS_EIO, "cannot set the length of \"%s\"", s->path);
out:
    return st;
}

/* What a drill's plan does to a write: its error, after a part of it where it is torn; 0: none. */
static int broken_write(sink *to, const ls_ckpt_piece *piece)
{
    ls_fault_deed deed = ls_fault_at(LS_FAULT_AT_SAVE_WRITE);

    if (deed == LS_FAULT_TORN)
        (void)sink_put(to, piece->bytes, piece->len / 2);
    return LS_FAULT("ckpt.object.write") ? ENOSPC : ls_fault_errno(deed);
}

static ls_status write_pieces(int fd, const ls_ckpt_object *object, const ls_ckpt_piece *pieces,
                              int n, const char *path)
{
    ls_status st = LS_OK;
    sink to;

    sink_open(&to, fd, object->bytes, path);
    for (int i = 0; i < n; i++) {
        errno = broken_write(&to, &pieces[i]);
        if (errno) {
            st = ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
            goto out;
        }
        LS_TRY(st, sink_put(&to, pieces[i].bytes, pieces[i].len), out);
        if (pieces[i].spilled)
            ls_spill_give_back(pieces[i].bytes, pieces[i].len);
    }
    LS_TRY(st, sink_end(&to, object->bytes), out);
out:
    ls_mem_free(to.memory);
    return st;
}

/* Give the written file its name. AGAIN: this way does not work here, named files may. */
static outcome link_object(ls_ckpt_store *store, temp *t, const char *path, bool replace)
{
    char self[64];
    int rc;

    if (LS_FAULT("ckpt.object.link")) {
        errno = EIO;
        rc = -1;
    } else if (t->name.len) {
        bool moved = replace;
        rc = replace ? rename(t->name.p, path) : link(t->name.p, path);
        if (rc != 0 && !replace && (errno == EPERM || errno == EOPNOTSUPP)) {
            moved = true;
            rc = rename(t->name.p, path); /* no hard links here; the content is the same anyway */
        }
        if (rc == 0 && moved)
            ls_str_clear(&t->name); /* nothing left to unlink */
    } else {
        snprintf(self, sizeof self, "/proc/self/fd/%d", t->fd);
        rc = linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
        if (rc != 0 &&
            (errno == ENOENT || errno == EXDEV || errno == EOPNOTSUPP || errno == EPERM)) {
            store->named_temps = true;
            return AGAIN;
        }
    }
    if (rc == 0 || errno == EEXIST) /* the same content came from somewhere else */
        return DONE;
    ls_fail_sys(LS_EIO, "cannot name object \"%s\"", path);
    return FAILED;
}

static outcome write_once(ls_ckpt_store *store, const ls_ckpt_object *object,
                          const ls_ckpt_piece *pieces, int n, const char *path, bool replace)
{
    outcome result = FAILED;
    char folder[LS_CKPT_PATH];
    temp t;

    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (mkdir(folder, 0755) != 0 && errno != EEXIST) {
        ls_fail_sys(LS_EIO, "cannot create folder \"%s\"", folder);
        return FAILED;
    }
    if (temp_open(&t, folder, replace || store->named_temps) != LS_OK)
        goto out;
    if (reserve(t.fd, object->bytes, path) != LS_OK ||
        write_pieces(t.fd, object, pieces, n, path) != LS_OK)
        goto out;
    bool unsynced = LS_FAULT("ckpt.object.sync") || ls_fault_at(LS_FAULT_AT_SAVE_SYNC);
    if (unsynced ? (errno = EIO, true) : fdatasync(t.fd) != 0) {
        ls_fail_sys(LS_EIO, "cannot sync object \"%s\"", path);
        result = AGAIN;
        goto out;
    }
    result = link_object(store, &t, path, replace);
out:
    temp_close(&t);
    return result;
}

ls_status ls_ckpt_object_write(ls_ckpt_store *store, const ls_ckpt_object *object,
                               const ls_ckpt_piece *pieces, int n, bool replace)
{
    ls_status st = LS_OK;
    outcome result = AGAIN;
    ls_str path;

    ls_str_init(&path);
    ls_ckpt_object_path(store->dir, object->hash, &path);
    LS_TRY(st, ls_str_status(&path), out);
    for (int tries = 0; tries < 2 && result == AGAIN; tries++)
        result = write_once(store, object, pieces, n, path.p, replace);
    if (result != DONE)
        st = ls_err_last()->code;
out:
    ls_str_release(&path);
    return st;
}

ls_status ls_ckpt_objects_sync(const char *dir, const bool touched[256])
{
    char folder[LS_CKPT_PATH];
    bool any = false;
    ls_status st = LS_OK;

    for (int i = 0; i < 256; i++) {
        if (!touched[i])
            continue;
        snprintf(folder, sizeof folder, "%s/objects/%02x", dir, (unsigned)i);
        LS_TRY(st, ls_file_sync_dir(folder), out);
        any = true;
    }
    snprintf(folder, sizeof folder, "%s/objects", dir);
    if (any)
        LS_TRY(st, ls_file_sync_dir(folder), out);
out:
    return st;
}

/* Rename without replacing, unless asked to. */
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
        rc = rename(from, to); /* the caller holds the store, so nobody else can have come first */
    return rc;
}

static outcome commit_once(const char *dir, const char *path, const ls_str *text, bool replace)
{
    outcome result = FAILED;
    temp t;

    if (temp_open(&t, dir, true) != LS_OK || reserve(t.fd, (int64_t)text->len, path) != LS_OK)
        goto out;
    ls_fault_deed deed = ls_fault_at(LS_FAULT_AT_SAVE_MANIFEST);
    if (deed == LS_FAULT_TORN)
        (void)ls_file_write_all(t.fd, text->p, text->len / 2, path);
    errno = LS_FAULT("ckpt.manifest.write") ? ENOSPC : ls_fault_errno(deed);
    if (errno) {
        ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
        goto out;
    }
    if (ls_file_write_all(t.fd, text->p, text->len, path) != LS_OK)
        goto out;
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
    temp_close(&t);
    return result;
}

ls_status ls_ckpt_manifest_commit(ls_ckpt_store *store, const char *path, const ls_str *text,
                                  bool replace)
{
    outcome result = AGAIN;

    for (int tries = 0; tries < 2 && result == AGAIN; tries++)
        result = commit_once(store->dir, path, text, replace);
    return result == DONE ? ls_file_sync_dir(store->dir) : ls_err_last()->code;
}
