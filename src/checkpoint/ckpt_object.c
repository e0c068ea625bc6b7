/* ckpt_object.c -- reads objects of the store in a way that shows damage.
 *
 *     read() block k -> memory -> CRC32C of block k == the manifest's? -> the caller may use it
 *
 * Reading uses read(), not a mapping: a bad sector becomes an error message instead of SIGBUS, and
 * the bytes that were checked are the bytes that are used. On a network file system a handle may go
 * stale, and a name may appear late: then the file is opened again, until the client's cache has
 * expired. ckpt_object_write.c writes objects; ckpt_fetch.c reads many whole ones. */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"

void ls_ckpt_object_path(const char *dir, ls_hash hash, ls_str *path_out)
{
    char hex[LS_HASH_HEX];

    ls_hash_hex(hash, hex);
    ls_str_printf(path_out, "%s/objects/%.2s/%s.safetensors", dir, hex, hex);
}

/* After a failed call: whether to try it again, because a handle is stale; waits a little. NFS answers
 * ESTALE when another host has replaced or removed the file; opening it by name again finds the new
 * one as soon as this host's cache of the folder has expired. */
static bool is_stale(int64_t until_ns)
{
    if (errno != ESTALE || ls_time_now_ns() >= until_ns)
        return false;
    usleep(50 * 1000);
    return true;
}

int ls_ckpt_open_file(const char *path, int flags)
{
    int64_t until_ns = ls_time_now_ns() + LS_CKPT_SEEN_S * LS_NS_PER_S;
    int fd;

    while ((fd = open(path, flags | O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0 && is_stale(until_ns))
        ;
    return fd;
}

int ls_ckpt_stat_file(const char *path, struct stat *info_out)
{
    int64_t until_ns = ls_time_now_ns() + LS_CKPT_SEEN_S * LS_NS_PER_S;
    int rc;

    while ((rc = stat(path, info_out)) != 0 && is_stale(until_ns))
        ;
    return rc;
}

bool ls_ckpt_file_exists(const char *path)
{
    struct stat info;

    return ls_ckpt_stat_file(path, &info) == 0;
}

ls_status ls_ckpt_read_file(const char *path, int64_t limit_bytes, ls_str *text_out)
{
    int64_t until_ns = ls_time_now_ns() + LS_CKPT_SEEN_S * LS_NS_PER_S;
    ls_status st;

    while ((st = ls_file_read(path, limit_bytes, text_out)) == LS_EIO && is_stale(until_ns))
        ;
    return st;
}

/* An object's file, of the right size. */
static ls_status open_object(const char *path, const ls_ckpt_object *object, int *fd_out)
{
    struct stat info;
    int fd = ls_ckpt_open_file(path, 0);
    ls_status st = LS_OK;

    if (fd < 0 || fstat(fd, &info) != 0)
        st = errno == ENOENT ? ls_fail(LS_EDATA, "object \"%s\" is missing", path)
                             : ls_fail_sys(LS_EIO, "cannot read object \"%s\"", path);
    else if (!S_ISREG(info.st_mode))
        st = ls_fail(LS_EDATA, "object \"%s\" is not a plain file", path);
    else if (info.st_size != object->bytes)
        st = ls_fail(LS_EDATA, "object \"%s\" has %lld bytes instead of %lld", path,
                     (long long)info.st_size, (long long)object->bytes);
    if (st == LS_OK)
        *fd_out = fd;
    else if (fd >= 0)
        close(fd);
    return st;
}

ls_status ls_ckpt_reader_open(ls_ckpt_reader *reader, const char *dir, const ls_ckpt_object *object,
                              void *memory)
{
    ls_status st = LS_OK;

    *reader = (ls_ckpt_reader){.fd = -1, .object = object};
    ls_str_init(&reader->path);
    ls_ckpt_object_path(dir, object->hash, &reader->path);
    LS_TRY(st, ls_str_status(&reader->path), out);
    LS_TRY(st, open_object(reader->path.p, object, &reader->fd), out);
    reader->loaded = ls_mem_array((size_t)ls_ckpt_blocks(object->bytes), sizeof(bool));
    LS_TRY(st, reader->loaded ? LS_OK : LS_ENOMEM, out);
    reader->bytes = memory ? memory : ls_mem_alloc((size_t)object->bytes);
    LS_TRY(st, reader->bytes ? LS_OK : LS_ENOMEM, out);
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

/* Read len bytes at this place into memory, unverified. */
static ls_status read_bytes(ls_ckpt_reader *reader, int64_t at, int64_t len)
{
    int64_t until_ns = ls_time_now_ns() + LS_CKPT_SEEN_S * LS_NS_PER_S;
    const char *path = reader->path.p;

    while (len) {
        ssize_t n = pread(reader->fd, reader->bytes + at, (size_t)len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && is_stale(until_ns)) {
            close(reader->fd);
            reader->fd = -1;
            ls_status st = open_object(path, reader->object, &reader->fd);
            if (st != LS_OK)
                return st;
            continue;
        }
        if (n < 0)
            return ls_fail_sys(LS_EIO, "cannot read object \"%s\"", path);
        if (n == 0)
            return ls_fail(LS_EDATA, "object \"%s\" became shorter while it was read", path);
        at += n;
        len -= n;
    }
    return LS_OK;
}

ls_status ls_ckpt_reader_check(const ls_ckpt_reader *reader, int64_t first, int64_t end)
{
    const ls_ckpt_object *o = reader->object;

    for (int64_t b = first; b < end; b++) {
        int64_t at = b * LS_CKPT_BLOCK, len = ls_min_i64(LS_CKPT_BLOCK, o->bytes - at);
        if (ls_hash_crc32c(0, reader->bytes + at, (size_t)len) != o->crcs[b])
            return ls_fail(LS_EDATA, "object \"%s\" is damaged in bytes %lld to %lld",
                           reader->path.p, (long long)at, (long long)(at + len - 1));
    }
    return LS_OK;
}

/* Read the blocks that hold bytes begin .. end-1 and are not in memory yet, and compare each with
 * its checksum. */
static ls_status load_blocks(ls_ckpt_reader *reader, int64_t begin, int64_t end)
{
    ls_status st = LS_OK;
    const ls_ckpt_object *o = reader->object;

    for (int64_t b = begin / LS_CKPT_BLOCK; b * LS_CKPT_BLOCK < end; b++) {
        int64_t at = b * LS_CKPT_BLOCK;
        int64_t len = ls_min_i64(LS_CKPT_BLOCK, o->bytes - at);
        if (reader->loaded[b])
            continue;
        LS_TRY(st, read_bytes(reader, at, len), out);
        LS_TRY(st, ls_ckpt_reader_check(reader, b, b + 1), out);
        reader->loaded[b] = true;
        reader->bytes_read += len;
    }
out:
    return st;
}

ls_status ls_ckpt_reader_prove(ls_ckpt_reader *reader, const uint8_t sha[LS_DIGEST_BYTES])
{
    const ls_ckpt_object *o = reader->object;

    if (!o->has_sha || memcmp(sha, o->sha, LS_DIGEST_BYTES) != 0)
        return ls_fail(LS_EDATA,
                       "object \"%s\" does not have the SHA-256 that the manifest lists: somebody "
                       "has exchanged it",
                       reader->path.p);
    reader->proved = true;
    return LS_OK;
}

/* Example, bytes 1,048,000 to 1,049,000 of an object of 3 MiB: they lie in blocks 0 and 1, which are read
 * and checked whole. Of a signed object all three are read, and their SHA-256 is compared. */
ls_status ls_ckpt_reader_need(ls_ckpt_reader *reader, int64_t begin, int64_t end)
{
    const ls_ckpt_object *o = reader->object;
    uint8_t sha[LS_DIGEST_BYTES];
    ls_status st = LS_OK;

    if (!o->by_sha)
        return load_blocks(reader, begin, end);
    if (reader->proved)
        return LS_OK;
    LS_TRY(st, load_blocks(reader, 0, o->bytes), out);
    LS_TRY(st, ls_digest_bytes(reader->bytes, (size_t)o->bytes, sha), out);
    LS_TRY(st, ls_ckpt_reader_prove(reader, sha), out);
out:
    return st;
}

ls_status ls_ckpt_reader_all(ls_ckpt_reader *reader)
{
    const ls_ckpt_object *o = reader->object;
    ls_status st = ls_ckpt_reader_need(reader, 0, o->bytes);

    if (st == LS_OK && !ls_hash_equal(o->hash, ls_hash_bytes(reader->bytes, (size_t)o->bytes)))
        st = ls_fail(LS_EDATA, "object \"%s\" does not have the hash of its name", reader->path.p);
    return st;
}

ls_status ls_ckpt_object_verify(const char *dir, const ls_ckpt_object *object)
{
    ls_ckpt_reader reader;
    ls_status st = ls_ckpt_reader_open(&reader, dir, object, NULL);

    if (st == LS_OK)
        st = ls_ckpt_reader_all(&reader);
    ls_ckpt_reader_close(&reader);
    return st;
}
