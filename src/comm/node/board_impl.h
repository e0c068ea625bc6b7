/* board_impl.h -- how a board is laid out, and what a process knows about it.
 *
 * Everything in shared memory is either atomic, or written before an atomic word is raised
 * (release) and read only by who has seen that word (acquire). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "comm/node/board.h"
#include "comm/node/box.h"

enum {
    LS_BOARD_LINE = 64,
    LS_BOARD_PAGE = 4096,
    LS_BOARD_REASON = 512,
    LS_BOARD_WORDS = LS_BOARD_RANKS / 64, /* of a set of local ranks */
    LS_BOARD_CPU_WORDS = 64,
    LS_BOARD_SLOTS = 16,         /* operations in flight of a group */
    LS_BOARD_SMALL_BYTES = 8192, /* what a slot holds itself */
    LS_BOARD_RING = 16,          /* entries of a ring from one rank to another */
    LS_BOARD_ENTRY_BYTES = 512,  /* of a ring */
};

/* A seat goes up these, never down. */
typedef enum ls_board_seat_state {
    LS_BOARD_FREE,
    LS_BOARD_TAKEN,  /* identity is being written */
    LS_BOARD_JOINED, /* identity can be read */
    LS_BOARD_READY,  /* and it knows whom it can read */
    LS_BOARD_LEFT
} ls_board_seat_state;

/* One operation in the black box; all fields by relaxed order: a torn record is a torn line of an
 * autopsy, nothing more. */
typedef struct ls_board_record {
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t seq;
    _Atomic uint32_t what; /* kind, op, type, state: one byte each */
    _Atomic uint32_t group;
    _Atomic int64_t bytes, step, entered_ns, left_ns;
} ls_board_record;

typedef struct ls_board_seat {
    _Alignas(LS_BOARD_LINE) _Atomic uint32_t state;
    int32_t pid, rank;
    uint64_t started;       /* of the process, in the kernel's ticks since boot */
    uint64_t token, *probe; /* a number, and where it lies in that process */
    char host[64];
    unsigned long cpus[LS_BOARD_CPU_WORDS];
    int32_t quota; /* CPUs' worth of time that its control groups allow; INT32_MAX: no limit */
    uint64_t unread[LS_BOARD_WORDS];               /* whose memory it cannot read */
    _Alignas(LS_BOARD_LINE) _Atomic uint32_t bell; /* what it sleeps on */
    _Atomic uint32_t asleep;                       /* its threads that sleep, or are about to */
    _Alignas(LS_BOARD_LINE) _Atomic uint32_t reason_taken;
    uint32_t code;
    char reason[LS_BOARD_REASON];
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t entered; /* operations so far */
    _Atomic int64_t step;
    ls_board_record box[LS_BOX_RECORDS];
} ls_board_seat;

typedef struct ls_board_group {
    _Alignas(LS_BOARD_LINE) _Atomic uint32_t state; /* 0 free, 1 being made, 2 in use */
    _Atomic uint32_t members;                       /* that have not closed it */
    _Atomic uint64_t key;
} ls_board_group;

typedef struct ls_board_head {
    char magic[8];
    uint32_t version, ranks;
    uint64_t generation;
    int64_t seats_at, groups_at, heap_at, group_bytes, heap_bytes, bytes;
    uint32_t no_reads;
    _Alignas(LS_BOARD_LINE) _Atomic uint32_t broken; /* 1 + the seat that has the reason */
    _Alignas(LS_BOARD_LINE) _Atomic uint32_t sleepers;
    ls_board_group group[LS_BOARD_GROUPS];
} ls_board_head;

/* A message between two ranks: an entry of the ring from one to the other. */
typedef struct ls_board_entry {
    _Alignas(LS_BOARD_LINE) uint32_t kind;
    uint32_t how;
    uint64_t tag, ticket, at;
    int64_t bytes;
    char inline_bytes[LS_BOARD_ENTRY_BYTES - 64];
} ls_board_entry;

typedef struct ls_board_ring {
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t put;   /* entries written so far, by the sender */
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t taken; /* entries read so far, by the receiver */
    ls_board_entry entry[LS_BOARD_RING];
} ls_board_ring;

/* What a rank asks for, or is told where its data lies. */
typedef struct ls_board_slot {
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t word; /* seq / SLOTS << 24 | phase */
    int64_t count;
    uint8_t kind, op, type, how_in; /* how: ls_reach_how */
    int32_t root;
    char tiny[32];
    uint8_t tabled; /* data holds a table of its pieces */
    _Alignas(LS_BOARD_LINE) uint64_t in_at, out_at, stage_at;
    int64_t longest; /* elements of its longest piece */
    uint8_t how_out;
    _Alignas(LS_BOARD_LINE) char data[LS_BOARD_SMALL_BYTES];
} ls_board_slot;

/* A piece of what a rank gives: for each member one, where counts differ. */
typedef struct ls_board_piece {
    int64_t at, len;
} ls_board_piece;

typedef struct ls_board_cell {
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t completed; /* all operations up to this one are done */
    _Alignas(LS_BOARD_LINE) _Atomic uint64_t mail[LS_BOARD_WORDS]; /* who put something for it */
    ls_board_slot slot[LS_BOARD_SLOTS];
} ls_board_cell;

typedef struct ls_board_block {
    int64_t at, bytes;
} ls_board_block;

typedef struct ls_board_heap {
    ls_board_block *block; /* owned; in use, by address */
    int blocks, room;
} ls_board_heap;

struct ls_board {
    int fd;
    char *base; /* the whole file */
    ls_board_head *head;
    ls_board_seat *seat; /* ranks of them, and one for the agent */
    char *heap;          /* heaps of all ranks, side by side */
    int64_t heap_total;
    int ranks;
    _Atomic bool crowded; /* more ranks than CPUs: waiting must not spin */
    uint64_t token;
    pthread_mutex_t lock; /* of the heaps' lists */
    ls_board_heap *heaps; /* owned */
};

static inline bool ls_board_set_has(const uint64_t *set, int local)
{
    return set[local / 64] >> (local % 64) & 1;
}

static inline bool ls_board_in_heap(const ls_board *board, const void *p, int64_t bytes)
{
    uintptr_t at = (uintptr_t)p, first = (uintptr_t)board->heap;

    return at >= first && at - first <= (uintptr_t)board->heap_total &&
           (uint64_t)bytes <= (uint64_t)board->heap_total - (at - first);
}

ls_board_cell *ls_board_cell_at(const ls_board *board, int group, int local);
ls_board_ring *ls_board_ring_at(const ls_board *board, int group, int from, int to);

/* Make the bytes of a range of the file be there. */
ls_status ls_board_commit(const ls_board *board, int64_t at, int64_t bytes, const char *what);
void ls_board_drop(const ls_board *board, int64_t at, int64_t bytes); /* and read as zero again */

/* The 22nd number of /proc/PID/stat: when it was started; 0 when there is no such process. The
 * state's letter comes too. */
uint64_t ls_board_started(int pid, char *state_out);

/* Wake whoever sleeps on this board. */
void ls_board_wake_all(ls_board *board);

void ls_board_heaps_release(ls_board *board);
