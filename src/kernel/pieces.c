/* pieces.c -- copies rows between buffers of different pitch, a block of rows for each task.
 *
 *   packed product, a row a token   | q0 q0 | k0 | v0 |     keys that are sent   | k0 k1 k2 |
 *   (2 query heads, 1 of keys)      | q1 q1 | k1 | v1 |
 *                                   | q2 q2 | k2 | v2 |                                        */
#include "kernel/pieces.h"

#include "base/pool.h"

enum { ROWS = 64 };

typedef struct job {
    ls_pieces a;
    bool back;
} job;

static void copy_rows(void *context, int64_t index, int worker)
{
    const job *j = context;
    const ls_pieces *a = &j->a;
    int64_t size = ls_dtype_bytes(a->type), bytes = a->H * a->D * size;
    int64_t end = ls_min_i64((index + 1) * ROWS, a->B * a->T);

    (void)worker;
    for (int64_t row = index * ROWS; row < end; row++) {
        int64_t at = row / a->T * a->heads.batch + row % a->T * a->heads.time;
        char *there = (char *)a->heads.p + at * size, *dense = (char *)a->dense + row * bytes;
        memcpy(j->back ? there : dense, j->back ? dense : there, (size_t)bytes);
    }
}

static void copy(ls_stream *stream, const ls_pieces *a, bool back)
{
    job j = {.a = *a, .back = back};

    LS_BUG_IF(a->heads.head != a->D, "heads that lie apart from each other");
    ls_pool_run(ls_stream_pool(stream), copy_rows, &j, (a->B * a->T + ROWS - 1) / ROWS);
}

void ls_pieces_pack(ls_stream *stream, const ls_pieces *a)
{
    copy(stream, a, false);
}

void ls_pieces_unpack(ls_stream *stream, const ls_pieces *a)
{
    copy(stream, a, true);
}
