/* group.c -- taking and giving back a group number.
 *
 *     state 0 (free) --- the first member takes it: 1 --- memory committed, key written: 2
 *       2 --- the last member that closes drops the memory and sets it back to 0
 *
 *     first member, local rank 1                     local rank 3
 *     number 5: 0 -> 1, pages, key, -> 2             looks for the key: not there, sleeps
 *     wakes all                            ------>   finds the key at number 5
 *     ...                                            ...
 *     closes: 2 members -> 1                         closes: 1 member -> 0, drops pages, 2 -> 0
 *
 * The other members look for the key among the numbers in state 2. They cannot find an old one: a
 * number stays in use until every member of its group has closed it, and members that have not
 * opened it yet are counted from the start. */
#include "comm/node/group.h"

#include "comm/node/shm_segment_impl.h"
#include "comm/node/wait.h"

/* The first member takes a free number, commits its memory, writes the key and then state 2: from
 * then on the others can find it. */
static ls_status make(ls_shm_segment *segment, uint64_t key, int members, int *number_out)
{
    for (int i = 0; i < LS_SHM_SEGMENT_GROUPS; i++) {
        ls_shm_segment_group *g = &segment->head->group[i];
        int64_t members_bytes = segment->ranks * (int64_t)sizeof(ls_shm_segment_member);
        uint32_t idle = 0;
        if (!atomic_compare_exchange_strong(&g->state, &idle, 1))
            continue;
        ls_status st = ls_shm_segment_commit(
            segment, segment->head->groups_at + i * segment->head->group_bytes,
            ls_round_up(members_bytes, LS_SHM_SEGMENT_PAGE), "a group of ranks");
        if (st != LS_OK) {
            atomic_store(&g->state, 0);
            return st;
        }
        atomic_store_explicit(&g->members, (uint32_t)members, memory_order_relaxed);
        atomic_store_explicit(&g->key, key, memory_order_relaxed);
        atomic_store(&g->state, 2);
        ls_shm_segment_wake_all(segment);
        *number_out = i;
        return LS_OK;
    }
    return ls_fail(LS_EBUSY, "all %d groups of this node are in use", LS_SHM_SEGMENT_GROUPS);
}

static int find(const ls_shm_segment *segment, uint64_t key)
{
    for (int i = 0; i < LS_SHM_SEGMENT_GROUPS; i++) {
        const ls_shm_segment_group *g = &segment->head->group[i];
        if (atomic_load_explicit(&g->state, memory_order_acquire) == 2 &&
            atomic_load_explicit(&g->key, memory_order_relaxed) == key)
            return i;
    }
    return -1;
}

/* The other members wait until a number in use has their key. */
static ls_status look_for(ls_shm_segment *segment, const ls_group_args *args, int64_t deadline_ns,
                          int *number_out)
{
    char name[LS_SHM_SEGMENT_NAME], where[LS_FLIGHT_RECORDER_TEXT];
    ls_wait_turn turn = LS_WAIT_ON;
    ls_wait wait;
    int number;

    ls_wait_begin(&wait, segment, args->local, deadline_ns);
    while ((number = find(segment, args->key)) < 0 && turn == LS_WAIT_ON)
        turn = ls_wait_once(&wait);
    ls_wait_end(&wait);
    if (number < 0 && turn == LS_WAIT_BROKEN)
        return ls_shm_segment_failure(segment);
    if (number < 0)
        return ls_fail(LS_EDEADLINE, "%s did not open a group of ranks in time: %s",
                       ls_shm_segment_name(segment, args->locals[0], name),
                       ls_flight_recorder_where(segment, args->locals[0], where));
    *number_out = number;
    return LS_OK;
}

ls_status ls_group_open(ls_group *group, ls_shm_segment *segment, const ls_group_args *args,
                        int64_t deadline_ns)
{
    *group = (ls_group){.members = args->members, .me = -1, .local = args->local};
    LS_BUG_IF(args->key == 0 || args->members < 1 || args->members > segment->ranks,
              "a group of %d ranks", args->members);
    for (int i = 0; i < args->members; i++) {
        LS_BUG_IF(args->locals[i] < 0 || args->locals[i] >= segment->ranks, "local rank %d",
                  args->locals[i]);
        group->locals[i] = (uint16_t)args->locals[i];
        if (args->locals[i] == args->local)
            group->me = i;
    }
    LS_BUG_IF(group->me < 0, "local rank %d is not in its own group", args->local);
    ls_status st = ls_shm_segment_failure(segment);
    if (st != LS_OK)
        return st;
    if (group->me == 0)
        st = make(segment, args->key, args->members, &group->number);
    else
        st = look_for(segment, args, deadline_ns, &group->number);
    if (st == LS_OK)
        group->segment = segment;
    else if (st != LS_EPEER)
        ls_shm_segment_abort(segment, args->local, LS_EPEER, "%s", ls_err_last()->text);
    return st;
}

void ls_group_close(ls_group *group)
{
    ls_shm_segment *segment = group->segment;

    group->segment = NULL;
    if (!segment)
        return;
    ls_shm_segment_group *g = &segment->head->group[group->number];
    if (atomic_fetch_sub(&g->members, 1) != 1)
        return;
    ls_shm_segment_drop(segment,
                        segment->head->groups_at + group->number * segment->head->group_bytes,
                        segment->head->group_bytes);
    atomic_store_explicit(&g->key, 0, memory_order_relaxed);
    atomic_store(&g->state, 0);
}
