/* sum_bytes.h -- how many bytes a rank of `ranks` sends in ls_mp_group_sum() to the others that have
 * these elements, by ring algorithms: elements of one kind are packed into a buffer, which is summed
 * when it is full. */
#pragma once
#include "model/collectives.h"

enum { SUM_BUFFER = 64 * 1024 }; /* elements of the buffer of mp_group.c */

static int64_t mp_sum_bytes(const ls_collectives_span *spans, int n, int ranks)
{
    int64_t all[2] = {0}, sent = 0; /* by kind: of all ranks, of some */

    for (int kind = 0; kind < 2; kind++) {
        int of = ranks;
        for (int i = 0; i < n; i++)
            if (spans[i].copies > 1 && (spans[i].copies < ranks) == kind) {
                all[kind] += spans[i].count;
                of = spans[i].copies;
            }
        for (int64_t left = all[kind]; left > 0; left -= SUM_BUFFER)
            sent += ls_collectives_sent(LS_COLLECTIVES_SUM, of,
                                        ls_min_i64(left, SUM_BUFFER) * (int64_t)sizeof(float));
    }
    return sent;
}
