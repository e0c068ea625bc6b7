/* disk_cache.c -- a file of records that outlives the process.
 *
 * A record is a head, the key, the value. It is appended by one write, which the kernel does not
 * mix with another process's. What follows a torn record cannot be found any more, so a process
 * that adds to such a file removes it first. The file is read anew for each question: it has a few
 * dozen records, and questions are asked once per process and key. */
#include "base/disk_cache.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"

static const uint32_t MAGIC = 0x4f4d534cu; /* "LSMO" */

typedef struct head {
    uint32_t magic, key_bytes, value_bytes, unused;
    uint64_t sum; /* of key and value */
} head;

void ls_disk_cache_path(const char *about, char path_out[4096])
{
    ls_file_cache_path("memo", about, LS_HASH_HEX - 1, path_out, 4096);
}

/* The record at `at`, or false when there is none or it is damaged. */
static bool record_at(const ls_str *file, size_t at, head *h_out)
{
    if (file->len - at < sizeof *h_out)
        return false;
    memcpy(h_out, file->p + at, sizeof *h_out);
    size_t bytes = (size_t)h_out->key_bytes + h_out->value_bytes;
    return h_out->magic == MAGIC && h_out->key_bytes <= LS_DISK_CACHE_KEY &&
           h_out->value_bytes <= LS_DISK_CACHE_VALUE && file->len - at - sizeof *h_out >= bytes &&
           ls_hash_bytes(file->p + at + sizeof *h_out, bytes).lo == h_out->sum;
}

/* Where the value of the key is, NULL: nowhere. *end_out: up to where the file is whole. */
static const char *look(const ls_str *file, const void *key, size_t key_bytes, size_t value_bytes,
                        size_t *end_out)
{
    size_t at = 0;
    head h;

    for (; record_at(file, at, &h); at += sizeof h + h.key_bytes + h.value_bytes) {
        const char *body = file->p + at + sizeof h;
        if (h.key_bytes == key_bytes && h.value_bytes == value_bytes &&
            memcmp(body, key, key_bytes) == 0)
            return body + key_bytes;
    }
    *end_out = at;
    return NULL;
}

/* The file's bytes; empty where there is none, or one that cannot be a cache. */
static void read_cache(const char *path, ls_str *file)
{
    ls_str_init(file);
    if (*path && ls_file_exists(path) && ls_file_read(path, LS_DISK_CACHE_BYTES, file) != LS_OK)
        ls_err_clear();
}

bool ls_disk_cache_find(const char *about, const void *key, size_t key_bytes, void *value_out,
                        size_t value_bytes)
{
    char path[4096];
    ls_str file;
    size_t end;

    ls_disk_cache_path(about, path);
    read_cache(path, &file);
    const char *value = look(&file, key, key_bytes, value_bytes, &end);
    if (value)
        memcpy(value_out, value, value_bytes);
    ls_str_release(&file);
    return value != NULL;
}

/* The folder of path is there, or cannot be made. */
static bool make_folder(const char *path)
{
    char folder[4096];

    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    if (ls_file_make_dirs(folder) == LS_OK)
        return true;
    ls_err_clear();
    return false;
}

void ls_disk_cache_add(const char *about, const void *key, size_t key_bytes, const void *value,
                       size_t value_bytes)
{
    unsigned char record[sizeof(head) + LS_DISK_CACHE_KEY + LS_DISK_CACHE_VALUE];
    head h = {
        .magic = MAGIC, .key_bytes = (uint32_t)key_bytes, .value_bytes = (uint32_t)value_bytes};
    size_t bytes = sizeof h + key_bytes + value_bytes, end = 0;
    char path[4096];
    ls_str file;

    LS_BUG_IF(key_bytes > LS_DISK_CACHE_KEY || value_bytes > LS_DISK_CACHE_VALUE,
              "a fact of %zu bytes", bytes);
    ls_disk_cache_path(about, path);
    if (!*path || !make_folder(path))
        return;
    read_cache(path, &file);
    bool known = look(&file, key, key_bytes, value_bytes, &end) != NULL;
    if (!known && (end != file.len || (file.len == 0 && ls_file_exists(path)) ||
                   end + bytes > LS_DISK_CACHE_BYTES))
        (void)unlink(path);
    ls_str_release(&file);
    if (known)
        return;
    memcpy(record + sizeof h, key, key_bytes);
    memcpy(record + sizeof h + key_bytes, value, value_bytes);
    h.sum = ls_hash_bytes(record + sizeof h, key_bytes + value_bytes).lo;
    memcpy(record, &h, sizeof h);
    int fd = -1;
    if (ls_file_open_append(path, 0644, &fd) != LS_OK) {
        ls_err_clear();
        return;
    }
    if (write(fd, record, bytes) != (ssize_t)bytes)
        (void)unlink(path); /* a full disk: begin anew another time */
    close(fd);
}
