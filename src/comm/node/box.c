/* box.c -- a ring of records in each rank's seat.
 *
 * Only the owner writes it (its threads take numbers from `entered`), anybody reads it at any time,
 * so each field is atomic and a record that is being replaced may be seen half old: its place in
 * the ring is known from the number, and the worst is one wrong line in an autopsy. */
#include "comm/node/box.h"

#include "base/time.h"
#include "comm/node/board_impl.h"

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

static uint32_t pack(const ls_box_record *r, ls_box_state state)
{
    return (uint32_t)r->kind | (uint32_t)r->op << 8 | (uint32_t)r->type << 16 |
           (uint32_t)state << 24;
}

uint64_t ls_box_enter(ls_board *board, int local, const ls_box_record *record)
{
    ls_board_seat *s = &board->seat[local];
    uint64_t n = atomic_fetch_add_explicit(&s->entered, 1, memory_order_relaxed);
    ls_board_record *to = &s->box[n % LS_BOX_RECORDS];

    atomic_store_explicit(&to->seq, record->seq, memory_order_relaxed);
    atomic_store_explicit(&to->group, (uint32_t)record->group, memory_order_relaxed);
    set(&to->bytes, record->bytes);
    set(&to->step, get(&s->step));
    set(&to->entered_ns, tick_ns());
    atomic_store_explicit(&to->what, pack(record, LS_BOX_ENTERED), memory_order_release);
    return n;
}

void ls_box_leave(ls_board *board, int local, uint64_t ticket, ls_box_state state)
{
    ls_board_seat *s = &board->seat[local];
    ls_board_record *to = &s->box[ticket % LS_BOX_RECORDS];
    uint32_t what = atomic_load_explicit(&to->what, memory_order_relaxed);

    if (atomic_load_explicit(&s->entered, memory_order_relaxed) - ticket > LS_BOX_RECORDS)
        return; /* its place was needed */
    set(&to->left_ns, tick_ns());
    atomic_store_explicit(&to->what, (what & 0xffffffu) | (uint32_t)state << 24,
                          memory_order_release);
}

void ls_box_set_step(ls_board *board, int local, int64_t step)
{
    set(&board->seat[local].step, step);
}

int ls_box_read(const ls_board *board, int local, ls_box_record *records_out)
{
    const ls_board_seat *s = &board->seat[local];
    uint64_t end = atomic_load_explicit(&s->entered, memory_order_relaxed);
    uint64_t first = end > LS_BOX_RECORDS ? end - LS_BOX_RECORDS : 0;
    int n = 0;

    for (uint64_t i = first; i < end; i++) {
        const ls_board_record *from = &s->box[i % LS_BOX_RECORDS];
        uint32_t what = atomic_load_explicit(&from->what, memory_order_acquire);
        if (what >> 24 == LS_BOX_NONE)
            continue; /* being written for the first time */
        records_out[n++] = (ls_box_record){
            .kind = (ls_coll_kind)(what & 0xff),
            .op = (ls_coll_op)(what >> 8 & 0xff),
            .type = (ls_dtype)(what >> 16 & 0xff),
            .state = (ls_box_state)(what >> 24),
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

const char *ls_box_where(const ls_board *board, int local, char text_out[LS_BOX_TEXT])
{
    const ls_board_seat *s = &board->seat[local];
    uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    ls_box_record r[LS_BOX_RECORDS];
    int n = ls_box_read(board, local, r), in = 0, used;
    char run_state = '\0';

    while (in < n && r[in].state != LS_BOX_ENTERED)
        in++;
    if (state < LS_BOARD_JOINED || state == LS_BOARD_LEFT) {
        snprintf(text_out, LS_BOX_TEXT, "%s",
                 state == LS_BOARD_LEFT ? "it has left" : "it never came");
        return text_out;
    }
    if (in < n)
        used = snprintf(text_out, LS_BOX_TEXT, "it has been in %s %llu (step %lld) for %.1f s",
                        ls_coll_kind_name(r[in].kind), (unsigned long long)r[in].seq,
                        (long long)r[in].step, (double)(tick_ns() - r[in].entered_ns) / 1e9);
    else if (n > 0)
        used = snprintf(text_out, LS_BOX_TEXT,
                        "it has not been in a collective for %.1f s, the last was %s %llu",
                        (double)(tick_ns() - r[n - 1].left_ns) / 1e9,
                        ls_coll_kind_name(r[n - 1].kind), (unsigned long long)r[n - 1].seq);
    else
        used = snprintf(text_out, LS_BOX_TEXT, "it has not been in a collective so far");
    ls_board_started(s->pid, &run_state);
    if (used > 0 && used < LS_BOX_TEXT && (run_state == 'T' || run_state == 't'))
        snprintf(text_out + used, (size_t)(LS_BOX_TEXT - used), "; it is stopped by a signal");
    return text_out;
}
