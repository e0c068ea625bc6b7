/* test_moves.c -- what the model says of ranks that reach each other's memory (comm/cost.h),
 * against what they do: meetings, and bytes read and written, exactly. */
#include "comm/coll_case.h"
#include "comm/cost.h"
#include "comm/node/shm_coll_impl.h"
#include "comm/node/ranks.h"

static void compare(ls_ranks *r, const ls_call *c)
{
    int64_t bytes = ls_call_bytes(c, r->ranks, r->me);
    char *in = ls_ranks_alloc(r, true, bytes),
         *out = c->in_place ? in : ls_ranks_alloc(r, true, bytes);
    const ls_cost_memory memory = {.crowded = atomic_load(&r->segment->crowded)};
    const ls_cost_query q = {.kind = c->kind,
                             .ranks = r->ranks,
                             .rank = r->me,
                             .peer = c->root,
                             .count = c->count,
                             .size = ls_dtype_bytes(c->type),
                             .in_place = c->in_place};
    const ls_shm_coll_done before = r->direct->done;
    ls_cost_moves m;

    ls_coll coll = ls_call_fill(c, r->ranks, r->me, in, out);
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, ls_test_soon()));
    ls_call_check(c, r->ranks, r->me, out);
    ls_cost_memory_moves(&memory, &q, &m);
    const ls_shm_coll_done *now = &r->direct->done;
    if (now->posts - before.posts != m.meets || now->read - before.read != m.read ||
        now->written - before.written != m.written)
        ls_test_fail(__FILE__, __LINE__,
                     "%s of %lld elements, %d ranks, %s: rank %d meets %lld times, reads %lld and "
                     "writes %lld bytes; predicted %lld, %lld, %lld",
                     ls_coll_kind_name(c->kind), (long long)c->count, r->ranks,
                     c->in_place ? "in place" : "apart", r->me,
                     (long long)(now->posts - before.posts), (long long)(now->read - before.read),
                     (long long)(now->written - before.written), (long long)m.meets,
                     (long long)m.read, (long long)m.written);
    if (!c->in_place)
        ls_ranks_free(r, true, out);
    ls_ranks_free(r, true, in);
}

static void all_kinds(ls_ranks *r)
{
    static const int64_t counts[] = {0, 1, 5, 100, 513, 2048, 2049, 4100, 20011, 100003};

    for (size_t i = 0; i < LS_COUNT(counts); i++)
        for (int way = 0; way < 4; way++)
            for (int kind = 0; kind <= LS_COLL_GATHER; kind++)
                compare(r, &(ls_call){.kind = (ls_coll_kind)kind,
                                      .type = way & 1 ? LS_F32 : LS_I64,
                                      .count = counts[i],
                                      .in_place = way & 2,
                                      .root = ((int)i + kind) % r->ranks});
    const ls_shm_coll_done before = r->direct->done;
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon()));
    LS_CHECK_EQ(r->direct->done.posts - before.posts, 1);
    LS_CHECK_EQ(r->direct->done.read - before.read, 0);
}

LS_TEST_SECONDS(memory_is_moved_as_the_model_says, 120)
{
    static const int worlds[] = {2, 3, 5}; /* the last one is crowded on most machines that test */

    for (size_t i = 0; i < LS_COUNT(worlds); i++)
        ls_ranks_run(&(ls_ranks_args){.ranks = worlds[i]}, all_kinds);
}
