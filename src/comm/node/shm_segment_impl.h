/* shm_segment_impl.h -- the layout of a segment, and what a process keeps about it.
 *
 * Everything in shared memory is either atomic, or written before an atomic word is raised
 * (release) and read only after that word was seen (acquire). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "comm/node/shm_segment.h"
#include "comm/node/flight_recorder.h"

enum {
    LS_SHM_SEGMENT_LINE = 64,
    LS_SHM_SEGMENT_PAGE = 4096,
    LS_SHM_SEGMENT_REASON = 512,
    LS_SHM_SEGMENT_STAT = 1024,                       /* bytes of a line of /proc/PID/stat */
    LS_SHM_SEGMENT_WORDS = LS_SHM_SEGMENT_RANKS / 64, /* of a set of local ranks */
    LS_SHM_SEGMENT_CPU_WORDS = 64,
    LS_SHM_SEGMENT_SLOTS = 16,         /* operations in flight of a group */
    LS_SHM_SEGMENT_SMALL_BYTES = 8192, /* what a slot holds itself */
    LS_SHM_SEGMENT_RING = 16,          /* entries of a ring from one rank to another */
    LS_SHM_SEGMENT_ENTRY_BYTES = 512,  /* of a ring */
};

/* A process goes up these, never down. */
typedef enum ls_shm_segment_process_state {
    LS_SHM_SEGMENT_FREE,
    LS_SHM_SEGMENT_TAKEN,  /* identity is being written */
    LS_SHM_SEGMENT_JOINED, /* identity can be read */
    LS_SHM_SEGMENT_READY,  /* and it knows which memory it can read */
    LS_SHM_SEGMENT_LEFT
} ls_shm_segment_process_state;

/* One operation in the flight recorder. All fields are relaxed atomics: a torn record is a wrong
 * line of a hang report, nothing more. */
typedef struct ls_shm_segment_record {
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t seq;
    _Atomic uint32_t what; /* kind, op, type, state: one byte each */
    _Atomic uint32_t group;
    _Atomic int64_t bytes, step, entered_ns, left_ns;
} ls_shm_segment_record;

typedef struct ls_shm_segment_process {
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint32_t state;
    int32_t pid, rank;
    uint64_t started;       /* of the process, in the kernel's ticks since boot */
    uint64_t token, *probe; /* a number, and where it lies in that process */
    char host[64];
    unsigned long cpus[LS_SHM_SEGMENT_CPU_WORDS];
    int32_t quota; /* CPUs' worth of time that its control groups allow; INT32_MAX: no limit */
    uint64_t unread[LS_SHM_SEGMENT_WORDS]; /* local ranks whose memory it cannot read */
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint32_t
        wakeups;             /* the word it sleeps on: counts how often it was woken */
    _Atomic uint32_t asleep; /* its threads that sleep, or are about to */
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint32_t reason_taken;
    uint32_t code;
    char reason[LS_SHM_SEGMENT_REASON];
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t entered; /* operations so far */
    _Atomic int64_t step;
    ls_shm_segment_record record[LS_FLIGHT_RECORDER_RECORDS];
} ls_shm_segment_process;

typedef struct ls_shm_segment_group {
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint32_t state; /* 0 free, 1 being made, 2 in use */
    _Atomic uint32_t members;                             /* that have not closed it */
    _Atomic uint64_t key;
} ls_shm_segment_group;

typedef struct ls_shm_segment_head {
    char magic[8];
    uint32_t version, ranks;
    uint64_t generation;
    int64_t processes_at, groups_at, heap_at, group_bytes, heap_bytes, bytes;
    uint32_t no_reads;
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint32_t broken; /* 1 + the process that has the reason */
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint32_t sleepers;
    ls_shm_segment_group group[LS_SHM_SEGMENT_GROUPS];
} ls_shm_segment_head;

/* A message between two ranks: an entry of the ring from one to the other. */
typedef struct ls_shm_segment_entry {
    _Alignas(LS_SHM_SEGMENT_LINE) uint32_t kind;
    uint32_t how;
    uint64_t tag, ticket, at;
    int64_t bytes;
    char inline_bytes[LS_SHM_SEGMENT_ENTRY_BYTES - 64];
} ls_shm_segment_entry;

typedef struct ls_shm_segment_ring {
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t put; /* entries written so far, by the sender */
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t taken; /* entries read so far, by the receiver */
    ls_shm_segment_entry entry[LS_SHM_SEGMENT_RING];
} ls_shm_segment_ring;

/* What a rank asks for, and where its data lies. */
typedef struct ls_shm_segment_slot {
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t word; /* seq / SLOTS << 24 | phase */
    int64_t count;
    uint8_t kind, op, type, how_in; /* how: ls_peer_memory_how */
    int32_t root;
    char tiny[32];
    uint8_t tabled; /* data holds a table of its pieces */
    _Alignas(LS_SHM_SEGMENT_LINE) uint64_t in_at, out_at, stage_at;
    int64_t longest; /* elements of its longest piece */
    uint8_t how_out;
    _Alignas(LS_SHM_SEGMENT_LINE) char data[LS_SHM_SEGMENT_SMALL_BYTES];
} ls_shm_segment_slot;

/* A piece of what a rank gives: for each member one, where counts differ. */
typedef struct ls_shm_segment_piece {
    int64_t at, len;
} ls_shm_segment_piece;

typedef struct ls_shm_segment_member {
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t
        completed; /* all operations up to this one are done */
    _Alignas(LS_SHM_SEGMENT_LINE) _Atomic uint64_t
        senders[LS_SHM_SEGMENT_WORDS]; /* ranks that wrote entries for it */
    ls_shm_segment_slot slot[LS_SHM_SEGMENT_SLOTS];
} ls_shm_segment_member;

typedef struct ls_shm_segment_block {
    int64_t at, bytes;
} ls_shm_segment_block;

typedef struct ls_shm_segment_heap {
    ls_shm_segment_block *block; /* owned; in use, by address */
    int blocks, room;
} ls_shm_segment_heap;

struct ls_shm_segment {
    int fd;
    char *base; /* the whole file */
    ls_shm_segment_head *head;
    ls_shm_segment_process *process; /* one for each local rank, and one for the agent */
    char *heap;                      /* heaps of all ranks, side by side */
    int64_t heap_total;
    int ranks;
    _Atomic bool crowded; /* more ranks than CPUs: waiting must not spin */
    uint64_t token;
    pthread_mutex_t lock;       /* of the heaps' lists */
    ls_shm_segment_heap *heaps; /* owned */
};

static inline bool ls_shm_segment_set_has(const uint64_t *set, int local)
{
    return set[local / 64] >> (local % 64) & 1;
}

static inline bool ls_shm_segment_in_heap(const ls_shm_segment *segment, const void *p,
                                          int64_t bytes)
{
    uintptr_t at = (uintptr_t)p, first = (uintptr_t)segment->heap;

    return at >= first && at - first <= (uintptr_t)segment->heap_total &&
           (uint64_t)bytes <= (uint64_t)segment->heap_total - (at - first);
}

ls_shm_segment_member *ls_shm_segment_member_at(const ls_shm_segment *segment, int group,
                                                int local);
ls_shm_segment_ring *ls_shm_segment_ring_at(const ls_shm_segment *segment, int group, int from,
                                            int to);

/* Make the bytes of a range of the file be there. */
ls_status ls_shm_segment_commit(const ls_shm_segment *segment, int64_t at, int64_t bytes,
                                const char *what);
void ls_shm_segment_drop(const ls_shm_segment *segment, int64_t at,
                         int64_t bytes); /* and read as zero again */

/* The line of /proc/PID/stat. Returns where the program's name ends, which may hold anything, also
 * blanks: fields are counted from there. NULL: there is no such process. */
const char *ls_shm_segment_stat(int pid, char text_out[LS_SHM_SEGMENT_STAT]);

/* Its 22nd field: when the process was started; 0 when there is none. The state's letter comes
 * too. */
uint64_t ls_shm_segment_started(int pid, char *state_out);

/* Wake all threads that sleep on this segment. */
void ls_shm_segment_wake_all(ls_shm_segment *segment);

void ls_shm_segment_heaps_release(ls_shm_segment *segment);
