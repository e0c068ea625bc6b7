/* loader.h -- the batches of a run, step after step, prepared ahead of time.
 *
 * One thread fills a ring of buffers with the samples that data/corpus/sample_order.h names; the
 * trainer takes them in order. Memory is allocated once, at open; a step touches no heap. One
 * caller at a time.
 *
 * Of a batch that several ranks share, a rank reads the windows of its own slice. */
#pragma once
#include "data/corpus/corpus.h"

LS_C_BEGIN

typedef struct ls_loader ls_loader;

/* A step's batch, and the part of it that is read here. */
typedef struct ls_loader_slice {
    int64_t position;   /* of the batch's first sample in the order */
    int64_t sequences;  /* of the batch */
    int64_t first, own; /* sequences of it that are read; own may be 0 */
} ls_loader_slice;

typedef struct ls_loader_args {
    const ls_corpus *corpus; /* borrowed until close */
    uint64_t seed;
    int64_t T;          /* tokens of a sequence */
    int64_t sequences;  /* that a slice has at most */
    int64_t first_step; /* the step whose batch comes first */
    bool isolate;       /* fill in ls_batch.start; so it is for chat data in any case */
    int depth;          /* buffers in the ring, at least 2; 0: 2 */
    /* The slice of a step, asked once for each, in order, by the thread that calls
     * ls_loader_open() and ls_loader_next(): for the last of `depth` steps when the first of them
     * is taken. NULL: step s is samples s * sequences .. (s + 1) * sequences - 1, all read here. */
    ls_loader_slice (*slice)(void *context, int64_t step);
    void *context;
} ls_loader_args;

typedef struct ls_batch {
    int64_t step;
    int64_t B, T; /* sequences that are here: those of the slice */
    ls_loader_slice slice;
    const int32_t *tokens;  /* [B, T] */
    const int32_t *targets; /* [B, T]: the token after each, or -1: no loss there */
    int64_t counted;        /* targets that are not -1, of the whole batch; of pairs: all of them */
    const int64_t *pairs; /* [B]: number of each pair (ls_corpus_pair); NULL where there are none */
    const int32_t *start; /* [B, T]: first position of the token's document; NULL unless isolate */
} ls_batch;

/* Start preparing. LS_ENOMEM, LS_EFAIL (no thread), or what ls_corpus_order() says. */
ls_status ls_loader_open(ls_loader **out, const ls_loader_args *args);
/* Stop the thread and give everything back. NULL is allowed. */
void ls_loader_close(ls_loader *loader);

/* The batch of the next step, valid until the next call or close. LS_EDEADLINE: it was not ready by
 * deadline_ns (of ls_time_now_ns()); asking again is allowed. A failure of the thread comes out
 * here and stays. */
ls_status ls_loader_next(ls_loader *loader, int64_t deadline_ns, const ls_batch **batch_out);

/* Bytes that open will allocate for batches. */
int64_t ls_loader_bytes(const ls_loader_args *args);

LS_C_END
