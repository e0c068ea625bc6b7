/* collectives.h -- the collectives that a model calls.
 *
 * A split model (model_split.h) ends some products with a part of their sum and needs tensors that
 * other ranks hold; ranks that share sequences (pass_context.c) need each other's keys; ranks that
 * divide experts exchange rows (pass_expert_parallel.c). The model calls a table of functions, which
 * parallel/mp_group.h fills with a communicator, so this room knows none. Tensors lie where the
 * stream's rows work. All ranks of a group make the same calls in the same order. A call that fails
 * fails the stream, and everything queued after it is dropped.
 *
 *   of 2 ranks          rank 0   rank 1         rank 0     rank 1
 *   SUM                 a b      c d        ->  a+c b+d    a+c b+d
 *   GATHER              a        b          ->  a b        a b
 *   SCATTER             a b      c d        ->  a+c        b+d
 *   SHIFT               a        b          ->  b          a
 *   deal                a | b    c | d      ->  a | c      b | d */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

typedef enum ls_collectives_move {
    LS_COLLECTIVES_SUM,     /* to[n] = sum over ranks of from[n]; in place: to is from */
    LS_COLLECTIVES_GATHER,  /* to[ranks][n] = from[n] of each rank */
    LS_COLLECTIVES_SCATTER, /* to[n] = sum over ranks of part number `rank` of from[ranks][n] */
    LS_COLLECTIVES_SHIFT    /* to[n] = from[n] of the rank before, the last one's of the first */
} ls_collectives_move;

/* Gather and scatter move multiples of this number of elements. */
enum { LS_COLLECTIVES_UNIT = 16 };

typedef struct ls_collectives_ask {
    ls_collectives_move move;
    ls_dtype type;
    const void *from;
    void *to;
    int64_t n;
} ls_collectives_ask;

/* An all-to-all: each rank gives every rank some elements, side by side in the order of ranks. */
typedef struct ls_collectives_deal {
    ls_dtype type;
    const void *from;
    void *to;
    const int64_t *sent, *received; /* elements for and from each rank; both NULL: n for each */
    int64_t n;
    bool host; /* both lie in the memory of the host, wherever rows work */
} ls_collectives_deal;

typedef struct ls_collectives {
    void *context;
    bool overlaps; /* what is started goes on while the rank computes; else it is done at once */
    void (*run)(void *context, ls_stream *stream, const ls_collectives_ask *ask);
    /* Begin a move, and give a number to wait for, -1: it is done. Its memory belongs to it until
     * then. Two are under way at a time, at most. */
    int (*start)(void *context, ls_stream *stream, const ls_collectives_ask *ask);
    void (*wait)(void *context, ls_stream *stream, int number); /* -1: for nothing */
    void (*deal)(void *context, ls_stream *stream, const ls_collectives_deal *deal);
    /* Memory that moves reach where it lies, zeroed and resident; moves take any other too, and are
     * slower then. */
    ls_status (*alloc)(void *context, int64_t bytes, const char *what, void **memory_out);
    void (*free)(void *context, void *memory); /* NULL is allowed */
} ls_collectives;

/* Elements of a gradient that `copies` ranks side by side have alike, each a part of their sum. */
typedef struct ls_collectives_span {
    int64_t first, count;
    int copies;
} ls_collectives_span;

/* Bytes that each rank sends at least for one move, which is by the ring algorithm. */
static inline int64_t ls_collectives_sent(ls_collectives_move move, int64_t ranks, int64_t bytes)
{
    return move == LS_COLLECTIVES_SUM     ? 2 * (ranks - 1) * bytes / ranks
           : move == LS_COLLECTIVES_SHIFT ? bytes
                                          : (ranks - 1) * bytes;
}

/* Bytes of host memory that a move of `bytes` passes through, where tensors lie on a device: what
 * all ranks have, or what goes and what comes. */
static inline int64_t ls_collectives_place(ls_collectives_move move, int64_t ranks, int64_t bytes)
{
    return move == LS_COLLECTIVES_SUM     ? bytes
           : move == LS_COLLECTIVES_SHIFT ? 2 * bytes
                                          : ranks * bytes;
}

LS_C_END
