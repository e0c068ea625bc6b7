/* flight_recorder.c -- a ring of records for each rank, in shared memory.
 *
 *     entered = 70:   record 64 65 66 67 68 69 | 6 7 ... 63     (64 slots: 6 .. 69 can be read)
 *
 * Only the owner writes (its threads take numbers from `entered`), and any process of the node
 * reads at any time. So each field is atomic, and a record that is being replaced may be seen half
 * old. Its position in the ring follows from its number; the worst outcome is one wrong line in a
 * hang report. */
#include "comm/node/flight_recorder.h"

#include "base/time.h"
#include "comm/node/shm_segment_impl.h"

/* A quarter of the cost of the exact clock, and exact to the tick, which is enough for a rank that
 * is missing for seconds. */
static int64_t tick_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * LS_NS_PER_S + t.tv_nsec;
}

static void set(_Atomic int64_t *field, int64_t value)
{
    atomic_store_explicit(field, value, memory_order_relaxed);
}

static int64_t get(const _Atomic int64_t *field)
{
    return atomic_load_explicit(field, memory_order_relaxed);
}

static uint32_t pack(const ls_flight_recorder_record *r, ls_flight_recorder_state state)
{
    return (uint32_t)r->kind | (uint32_t)r->op << 8 | (uint32_t)r->type << 16 |
           (uint32_t)state << 24;
}

uint64_t ls_flight_recorder_enter(ls_shm_segment *segment, int local,
                                  const ls_flight_recorder_record *record)
{
    ls_shm_segment_process *s = &segment->process[local];
    uint64_t n = atomic_fetch_add_explicit(&s->entered, 1, memory_order_relaxed);
    ls_shm_segment_record *to = &s->record[n % LS_FLIGHT_RECORDER_RECORDS];

    atomic_store_explicit(&to->seq, record->seq, memory_order_relaxed);
    atomic_store_explicit(&to->group, (uint32_t)record->group, memory_order_relaxed);
    set(&to->bytes, record->bytes);
    set(&to->step, get(&s->step));
    set(&to->entered_ns, tick_ns());
    atomic_store_explicit(&to->what, pack(record, LS_FLIGHT_RECORDER_ENTERED),
                          memory_order_release);
    return n;
}

void ls_flight_recorder_leave(ls_shm_segment *segment, int local, uint64_t ticket,
                              ls_flight_recorder_state state)
{
    ls_shm_segment_process *s = &segment->process[local];
    ls_shm_segment_record *to = &s->record[ticket % LS_FLIGHT_RECORDER_RECORDS];
    uint32_t what = atomic_load_explicit(&to->what, memory_order_relaxed);

    if (atomic_load_explicit(&s->entered, memory_order_relaxed) - ticket >
        LS_FLIGHT_RECORDER_RECORDS)
        return; /* its place was needed */
    set(&to->left_ns, tick_ns());
    atomic_store_explicit(&to->what, (what & 0xffffffu) | (uint32_t)state << 24,
                          memory_order_release);
}

void ls_flight_recorder_set_step(ls_shm_segment *segment, int local, int64_t step)
{
    set(&segment->process[local].step, step);
}

int ls_flight_recorder_read(const ls_shm_segment *segment, int local,
                            ls_flight_recorder_record *records_out)
{
    const ls_shm_segment_process *s = &segment->process[local];
    uint64_t end = atomic_load_explicit(&s->entered, memory_order_relaxed);
    uint64_t first = end > LS_FLIGHT_RECORDER_RECORDS ? end - LS_FLIGHT_RECORDER_RECORDS : 0;
    int n = 0;

    for (uint64_t i = first; i < end; i++) {
        const ls_shm_segment_record *from = &s->record[i % LS_FLIGHT_RECORDER_RECORDS];
        uint32_t what = atomic_load_explicit(&from->what, memory_order_acquire);
        if (what >> 24 == LS_FLIGHT_RECORDER_NONE)
            continue; /* being written for the first time */
        records_out[n++] = (ls_flight_recorder_record){
            .kind = (ls_coll_kind)(what & 0xff),
            .op = (ls_coll_op)(what >> 8 & 0xff),
            .type = (ls_dtype)(what >> 16 & 0xff),
            .state = (ls_flight_recorder_state)(what >> 24),
            .group = (int)atomic_load_explicit(&from->group, memory_order_relaxed),
            .seq = atomic_load_explicit(&from->seq, memory_order_relaxed),
            .bytes = get(&from->bytes),
            .step = get(&from->step),
            .entered_ns = get(&from->entered_ns),
            .left_ns = get(&from->left_ns),
        };
    }
    return n;
}

/* What a record is worth as an answer to "where is this rank?": 7: it is in this one, of the group
 * that is asked for; 5: in this one, of another group; 3: the last one of the group; 1: the last
 * one. So a rank that waits in a message while others wait for it in collective 17 is shown in the
 * message. */
bool ls_flight_recorder_find(const ls_shm_segment *segment, int local, int group,
                             ls_flight_recorder_record *record_out)
{
    ls_flight_recorder_record r[LS_FLIGHT_RECORDER_RECORDS];
    int n = ls_flight_recorder_read(segment, local, r), best = -1, worth = 0;

    for (int i = 0; i < n; i++) {
        int is =
            (r[i].state == LS_FLIGHT_RECORDER_ENTERED ? 4 : 0) + (r[i].group == group ? 2 : 0) + 1;
        /* Of those that it is in, the oldest; of those that it was in, the newest. */
        if (is > worth || (is == worth && is < 4)) {
            best = i;
            worth = is;
        }
    }
    if (best >= 0)
        *record_out = r[best];
    return best >= 0;
}

const char *ls_flight_recorder_call(const ls_flight_recorder_record *r,
                                    char text_out[LS_FLIGHT_RECORDER_TEXT])
{
    snprintf(text_out, LS_FLIGHT_RECORDER_TEXT, "%s %llu (%lld bytes of %s, step %lld)",
             ls_coll_kind_name(r->kind), (unsigned long long)r->seq, (long long)r->bytes,
             ls_coll_type_name(r->type), (long long)r->step);
    return text_out;
}

const char *ls_flight_recorder_say(const ls_flight_recorder_record *r,
                                   char text_out[LS_FLIGHT_RECORDER_TEXT])
{
    char call[LS_FLIGHT_RECORDER_TEXT];

    if (!r)
        snprintf(text_out, LS_FLIGHT_RECORDER_TEXT, "it has not been in a collective so far");
    else if (r->state == LS_FLIGHT_RECORDER_ENTERED)
        snprintf(text_out, LS_FLIGHT_RECORDER_TEXT, "it has been in %.160s for %.1f s",
                 ls_flight_recorder_call(r, call), (double)(tick_ns() - r->entered_ns) / 1e9);
    else
        snprintf(text_out, LS_FLIGHT_RECORDER_TEXT,
                 "it has not been in a collective for %.1f s, the last was %.160s",
                 (double)(tick_ns() - r->left_ns) / 1e9, ls_flight_recorder_call(r, call));
    return text_out;
}

bool ls_flight_recorder_stopped(const ls_shm_segment *segment, int local)
{
    char state = '\0';

    ls_shm_segment_started(segment->process[local].pid, &state);
    return state == 'T' || state == 't';
}

const char *ls_flight_recorder_where(const ls_shm_segment *segment, int local,
                                     char text_out[LS_FLIGHT_RECORDER_TEXT])
{
    uint32_t state = atomic_load_explicit(&segment->process[local].state, memory_order_acquire);
    ls_flight_recorder_record r;

    if (state < LS_SHM_SEGMENT_JOINED || state == LS_SHM_SEGMENT_LEFT) {
        snprintf(text_out, LS_FLIGHT_RECORDER_TEXT, "%s",
                 state == LS_SHM_SEGMENT_LEFT ? "it has left" : "it never came");
        return text_out;
    }
    ls_flight_recorder_say(ls_flight_recorder_find(segment, local, -1, &r) ? &r : NULL, text_out);
    if (ls_flight_recorder_stopped(segment, local)) {
        size_t used = strlen(text_out);
        snprintf(text_out + used, LS_FLIGHT_RECORDER_TEXT - used, "; it is stopped by a signal");
    }
    return text_out;
}
