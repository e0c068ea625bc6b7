/* journal.h -- a log on disk: what was appended is there after a crash, whole and in order.
 *
 *   header    "LSJRNL1\n", number of the first record (8), CRC32C (4), zero (4)
 *   record    length of the payload (4), CRC32C (4), number (8), payload
 *
 * Numbers are little-endian; a record's CRC covers length, number and payload, and records are
 * numbered without a gap. An append returns when the disk has the record, so nothing may be sent
 * that depends on it before. Replay stops at the first record that is torn or damaged, and reports it.
 *
 * Compaction replaces everything so far by one record: a new file beside the old one, synced,
 * renamed over it, and the folder synced; so at any moment one of the two is there, whole. After a
 * failed sync the kernel may have dropped what it could not write, and a second sync would lie:
 * nothing is appended any more until a compaction has made a new file.
 *
 * What a record means is the caller's business. One process at a time (PATH.lock), one thread. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum {
    LS_JOURNAL_HEADER = 24,
    LS_JOURNAL_HEAD = 16,        /* before a payload */
    LS_JOURNAL_RECORD = 1 << 20, /* longest payload */
    LS_JOURNAL_FILE = 64 << 20   /* longest file; compact long before */
};

typedef struct ls_journal ls_journal;

/* Called for each sound record, in order; anything but LS_OK ends the replay with it. NULL: they are
 * only checked. */
typedef ls_status (*ls_journal_take)(void *context, const void *bytes, size_t len);

/* What a replay found. */
typedef struct ls_journal_found {
    uint64_t first, records; /* number of the first record, and how many are sound */
    int64_t sound_bytes;     /* header and sound records */
    int64_t cut_bytes;       /* behind them; 0: the file ends with a whole record */
    bool damaged;  /* this was no torn write: sound records lie behind the bad one, or the header is
                    * bad. What had been promised may be forgotten. */
    char why[160]; /* "" when cut_bytes is 0 */
} ls_journal_found;

/* The records in len bytes of a file. */
ls_status ls_journal_replay(const void *bytes, size_t len, ls_journal_take take, void *context,
                            ls_journal_found *found_out);

/* Replay, cut off what is torn, and go on behind it. A new file is made when there is none. Of a
 * damaged one a copy is kept as PATH.damaged. LS_EBUSY: another process has it. */
ls_status ls_journal_open(ls_journal **journal_out, const char *path, ls_journal_take take,
                          void *context, ls_journal_found *found_out);
void ls_journal_close(ls_journal *journal); /* NULL is allowed */

/* Append a record of 1 to LS_JOURNAL_RECORD bytes; LS_OK: it is on the disk. LS_EIO: it is not, and
 * what was before still is. */
ls_status ls_journal_append(ls_journal *journal, const void *bytes, size_t len);

/* Replace all records by this one. LS_EIO: the file before, or the new one, is there. */
ls_status ls_journal_compact(ls_journal *journal, const void *bytes, size_t len);

/* Bytes of the file, for the caller to decide when to compact. */
int64_t ls_journal_bytes(const ls_journal *journal);

LS_C_END
