/* dissemination.c -- a barrier in log2(n) steps: every rank learns that every other one has
 * arrived.
 *
 *     n = 5, round k: rank r signals r + 2^k, is signalled by r - 2^k
 *
 *     k=0   0 -> 1 -> 2 -> 3 -> 4 -> 0        each knows of itself and one other
 *     k=1   0 -> 2 -> 4 -> 1 -> 3 -> 0        of four
 *     k=2   0 -> 4 -> 3 -> 2 -> 1 -> 0        of all
 *
 * Worked example: rank 0 learns of 4 in round 0, of 3 and 2 (from 3) in round 1, and of 1 (which by
 * then knows of 0, 4 and 3 too) in round 2. A message of a round goes out when those of the earlier
 * rounds have arrived: it waits for the last one, and for the send before it, which waited for the
 * others. Messages are empty. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

static void draft_dissemination(ls_algo_draft *d)
{
    int n = d->args->ranks, me = d->args->rank;
    int32_t heard = -1, told = -1;

    for (int by = 1; by < n; by *= 2) {
        int32_t send =
            ls_algo_send(d, ls_algo_turn(d, me, by), ls_algo_at(LS_SCHED_IN, 0), 0, heard);
        ls_algo_also(d, send, told);
        heard = ls_algo_recv(d, ls_algo_turn(d, me, -by), ls_algo_at(LS_SCHED_OUT, 0), 0, -1);
        told = send;
    }
}

const ls_algo ls_algo_dissemination = {
    .name = "dissemination",
    .what = "barrier: rank r signals r + 1, r + 2, r + 4, ...; log2(n) steps",
    .draft = {[LS_COLL_BARRIER] = draft_dissemination},
    .time_ns = ls_cost_time_dissemination,
    .sent = ls_cost_sent_dissemination,
};
