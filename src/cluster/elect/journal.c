/* journal.c -- records that survive a crash.
 *
 * Only the last record can be torn, because each is synced before the next is written. So a bad
 * record with a sound one behind it is not a write that a crash has cut, but damage, and promises
 * may be lost; a node that votes must know the difference (quorum.h). Zeros, which some file
 * systems leave behind a crash, are no record: numbers begin at 1, and no record is empty.
 *
 *     header | 1 "one" | 2 "two" | 3 "thr            torn: cut off after 2, which is what was promised
 *     header | 1 "one" | x "two" | 3 "three"         damaged: 2 is bad, and 3 is there */
#include "cluster/elect/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "net/wire.h"

static const char magic[] = "LSJRNL1\n";
enum { MAGIC = 8, GAP = 1 << 20 };

struct ls_journal {
    char path[PATH_MAX], temp[PATH_MAX], folder[PATH_MAX];
    int fd, lock_fd;
    uint64_t next; /* number of the next record */
    int64_t bytes;
    bool broken; /* what the disk has is not known: only a new file will do */
};

/* --- bytes ------------------------------------------------------------------------------------ */

static void put_header(uint8_t *out, uint64_t first)
{
    memset(out, 0, LS_JOURNAL_HEADER);
    memcpy(out, magic, MAGIC);
    ls_wire_put64(out + MAGIC, first);
    ls_wire_put32(out + 16, ls_hash_crc32c(0, out, 16));
}

static bool header_is_sound(const uint8_t *bytes, size_t len, uint64_t *first_out)
{
    if (len < LS_JOURNAL_HEADER || memcmp(bytes, magic, MAGIC) != 0 ||
        ls_wire_get32(bytes + 16) != ls_hash_crc32c(0, bytes, 16) || ls_wire_get32(bytes + 20) != 0)
        return false;
    *first_out = ls_wire_get64(bytes + MAGIC);
    return *first_out > 0;
}

static uint32_t record_crc(const uint8_t *head, const void *payload, size_t len)
{
    uint32_t crc = ls_hash_crc32c(0, head, 4);

    return ls_hash_crc32c(ls_hash_crc32c(crc, head + 8, 8), payload, len);
}

static void put_head(uint8_t *out, uint64_t number, const void *payload, size_t len)
{
    ls_wire_put32(out, (uint32_t)len);
    ls_wire_put64(out + 8, number);
    ls_wire_put32(out + 4, record_crc(out, payload, len));
}

/* Length of the sound record at p, whose number is in [least, most]; 0: there is none. */
static size_t record_at(const uint8_t *p, size_t left, uint64_t least, uint64_t most)
{
    if (left < LS_JOURNAL_HEAD)
        return 0;
    size_t len = ls_wire_get32(p);
    uint64_t number = ls_wire_get64(p + 8);
    bool sound = len > 0 && len <= LS_JOURNAL_RECORD && len <= left - LS_JOURNAL_HEAD &&
                 number >= least && number <= most &&
                 ls_wire_get32(p + 4) == record_crc(p, p + LS_JOURNAL_HEAD, len);
    return sound ? len : 0;
}

/* Whether records lie behind the bad one at p. */
static bool has_records(const uint8_t *p, size_t left, uint64_t number)
{
    for (size_t i = 1; i < left; i++)
        if (record_at(p + i, left - i, number, number + GAP) > 0)
            return true;
    return false;
}

ls_status ls_journal_replay(const void *bytes, size_t len, ls_journal_take take, void *context,
                            ls_journal_found *found_out)
{
    const uint8_t *p = bytes;
    size_t at = LS_JOURNAL_HEADER, n;
    ls_journal_found f = {.first = 1};
    ls_status st = LS_OK;

    if (!header_is_sound(p, len, &f.first)) {
        f.first = 1;
        f.cut_bytes = (int64_t)len;
        f.damaged = true;
        snprintf(f.why, sizeof f.why, "its first %d bytes are damaged", LS_JOURNAL_HEADER);
        *found_out = f;
        return LS_OK;
    }
    while ((n = record_at(p + at, len - at, f.first + f.records, f.first + f.records)) > 0) {
        if (take)
            LS_TRY(st, take(context, p + at + LS_JOURNAL_HEAD, n), out);
        at += LS_JOURNAL_HEAD + n;
        f.records++;
    }
    f.sound_bytes = (int64_t)at;
    f.cut_bytes = (int64_t)(len - at);
    if (f.cut_bytes > 0) {
        f.damaged = has_records(p + at, len - at, f.first + f.records);
        snprintf(f.why, sizeof f.why, "record %llu at byte %zu is %s; %lld bytes are left out",
                 (unsigned long long)(f.first + f.records), at,
                 f.damaged ? "damaged, though others follow" : "torn", (long long)f.cut_bytes);
    }
    *found_out = f;
out:
    return st;
}

/* --- files ------------------------------------------------------------------------------------ */

static bool sync_data(int fd)
{
    return LS_FAULT("journal.sync") ? (errno = EIO, false) : fdatasync(fd) == 0;
}

static ls_status write_record(int fd, uint64_t number, const void *payload, size_t len,
                              const char *path)
{
    ls_str bytes;
    uint8_t head[LS_JOURNAL_HEAD];
    ls_status st;

    ls_str_init(&bytes);
    put_head(head, number, payload, len);
    ls_str_append_bytes(&bytes, head, sizeof head);
    ls_str_append_bytes(&bytes, payload, len); /* one write: it is whole or torn at one place */
    LS_TRY(st, ls_str_status(&bytes), out);
    st = ls_file_write_all(fd, bytes.p, bytes.len, path);
out:
    ls_str_release(&bytes);
    return st;
}

/* A new file in place of the one that is there, if any; with one record, or none. */
static ls_status replace(ls_journal *j, const void *payload, size_t len)
{
    uint8_t header[LS_JOURNAL_HEADER];
    int fd = open(j->temp, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    ls_status st = LS_OK;

    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot create \"%s\"", j->temp);
    put_header(header, j->next);
    LS_TRY(st, ls_file_write_all(fd, header, sizeof header, j->temp), out);
    if (len)
        LS_TRY(st, write_record(fd, j->next, payload, len, j->temp), out);
    if (!sync_data(fd)) {
        st = ls_fail_sys(LS_EIO, "cannot sync \"%s\"", j->temp);
        goto out;
    }
    if (LS_FAULT("journal.rename") ? (errno = EIO, true) : rename(j->temp, j->path) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", j->temp, j->path);
        goto out;
    }
    if (j->fd >= 0)
        close(j->fd);
    j->fd = fd;
    fd = -1;
    j->bytes = LS_JOURNAL_HEADER + (len ? LS_JOURNAL_HEAD + (int64_t)len : 0);
    j->next += len > 0;
    /* Until the folder is synced a crash may bring the old file back, without what is appended to
     * this one. */
    j->broken = true;
    LS_TRY(st, ls_file_sync_dir(j->folder), out);
    j->broken = false;
out:
    if (fd >= 0) {
        close(fd);
        unlink(j->temp);
    }
    return st;
}

/* Of what is there: the records to the caller, and the end where the next one goes. */
static ls_status adopt(ls_journal *j, ls_journal_take take, void *context, ls_journal_found *found)
{
    char aside[PATH_MAX + 16];
    ls_file_map map;
    ls_status st;

    LS_TRY(st, ls_file_map_open(&map, j->path), out);
    if (map.len > LS_JOURNAL_FILE)
        st = ls_fail(LS_EDATA, "\"%s\" has %zu bytes, more than a journal can have", j->path,
                     map.len);
    if (st == LS_OK)
        st = ls_journal_replay(map.bytes, map.len, take, context, found);
    if (st == LS_OK && found->damaged) {
        snprintf(aside, sizeof aside, "%s.damaged", j->path);
        st = ls_file_write_atomic(aside, map.bytes, map.len);
    }
    ls_file_map_close(&map);
    LS_TRY(st, st, out);
    j->next = found->first + found->records;
    if (found->sound_bytes == 0) { /* not even a header */
        st = replace(j, NULL, 0);
        goto out;
    }
    j->fd = open(j->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    j->bytes = found->sound_bytes;
    if (j->fd < 0 ||
        (found->cut_bytes > 0 && (ftruncate(j->fd, j->bytes) != 0 || !sync_data(j->fd))))
        st = ls_fail_sys(LS_EIO, "cannot go on with the journal \"%s\"", j->path);
out:
    return st;
}

ls_status ls_journal_open(ls_journal **journal_out, const char *path, ls_journal_take take,
                          void *context, ls_journal_found *found_out)
{
    char text[PATH_MAX + 8];
    ls_journal *j = ls_mem_alloc(sizeof *j);
    ls_status st = LS_OK;

    if (!j)
        return LS_ENOMEM;
    j->fd = j->lock_fd = -1;
    j->next = 1;
    if ((size_t)snprintf(j->path, sizeof j->path, "%s", path) >= sizeof j->path - 16) {
        st = ls_fail(LS_EIO, "the path of the journal \"%s\" is too long", path);
        goto out;
    }
    snprintf(j->temp, sizeof j->temp, "%.*s.new", PATH_MAX - 8, path);
    snprintf(text, sizeof text, "%s", path);
    snprintf(j->folder, sizeof j->folder, "%s", dirname(text));
    snprintf(text, sizeof text, "%s.lock", path);
    LS_TRY(st, ls_file_lock(text, &j->lock_fd), out);
    *found_out = (ls_journal_found){.first = 1};
    if (ls_file_exists(path))
        LS_TRY(st, adopt(j, take, context, found_out), out);
    else
        LS_TRY(st, replace(j, NULL, 0), out);
    *journal_out = j;
out:
    if (st != LS_OK)
        ls_journal_close(j);
    return st;
}

void ls_journal_close(ls_journal *journal)
{
    if (!journal)
        return;
    if (journal->fd >= 0)
        close(journal->fd);
    ls_file_unlock(journal->lock_fd);
    ls_mem_free(journal);
}

static ls_status check_length(const ls_journal *j, size_t len)
{
    LS_BUG_IF(len == 0, "an empty record in \"%s\"", j->path);
    return len <= LS_JOURNAL_RECORD
               ? LS_OK
               : ls_fail(LS_EUSAGE, "a record of %zu bytes is too long for the journal \"%s\"", len,
                         j->path);
}

ls_status ls_journal_append(ls_journal *journal, const void *bytes, size_t len)
{
    ls_journal *j = journal;
    ls_status st = check_length(j, len);

    if (st != LS_OK)
        return st;
    if (j->broken) {
        ls_fail(LS_EIO, "nothing can be added to the journal \"%s\": an earlier write failed",
                j->path);
        ls_err_hint("It goes on once it could be written anew; look at the disk.");
        return LS_EIO;
    }
    st = write_record(j->fd, j->next, bytes, len, j->path);
    if (st != LS_OK) { /* take back what may have been written of it */
        j->broken = ftruncate(j->fd, j->bytes) != 0;
        return st;
    }
    if (!sync_data(j->fd)) {
        j->broken = true;
        return ls_fail_sys(LS_EIO, "cannot sync the journal \"%s\"", j->path);
    }
    j->bytes += LS_JOURNAL_HEAD + (int64_t)len;
    j->next++;
    return LS_OK;
}

ls_status ls_journal_compact(ls_journal *journal, const void *bytes, size_t len)
{
    ls_status st = check_length(journal, len);

    return st == LS_OK ? replace(journal, bytes, len) : st;
}

int64_t ls_journal_bytes(const ls_journal *journal)
{
    return journal->bytes;
}
