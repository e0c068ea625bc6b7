/* wrap.c -- applies the plan to each send before the inner transport sees it.
 *
 * A late or changed send is carried by a message of our own, in a list ordered by due time; it
 * points to the caller's memory or to a changed copy. When the inner transport is done with it, the
 * caller's message is done. Receives pass untouched.
 *
 *     caller sends m7 (delay=5ms)  ->  list [m6 at 2.1 ms, m7 at 5.3 ms]  ->  inner transport */
#include "comm/transport/wrap.h"

#include <signal.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"

enum { NUMBERED = 16 };
typedef enum deed { DROP, CORRUPT, KILL, STOP } deed;

typedef struct late {
    struct late *next;
    ls_message message; /* what the inner transport gets */
    ls_message *caller; /* the message of the caller */
    uint8_t *copy;      /* owned changed bytes, or NULL */
    int64_t due_ns;     /* when it is handed over */
    bool posted;
} late;

typedef struct wrap {
    ls_transport transport; /* first */
    ls_transport *inner;    /* owned */
    uint64_t seed;
    int64_t delay_ns;
    double drop, corrupt;
    struct {
        deed deed;
        int64_t nth;
    } numbered[NUMBERED];
    int numbered_count;
    int64_t sent; /* messages so far */
    late *first, *last;
} wrap;

/* --- the plan --- */

static ls_status unreadable(const char *plan, const char *item)
{
    ls_status st =
        ls_fail(LS_EUSAGE, "the plan \"%.100s\" cannot be read at \"%.40s\"", plan, item);

    ls_err_hint("A plan is a list such as delay=5ms,drop=0.01,corrupt=0.001,kill@120.");
    return st;
}

/* "5ms", "20us", "1s", "100ns". */
static bool read_time(const char *text, int64_t *ns_out)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    char *end;
    double value = strtod(text, &end);

    if (end == text || !(value >= 0) || value > 1e9)
        return false;
    for (size_t i = 0; i < LS_COUNT(units); i++)
        if (strcmp(end, units[i].unit) == 0) {
            *ns_out = (int64_t)(value * units[i].ns);
            return true;
        }
    return false;
}

static bool read_share(const char *text, double *share_out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value >= 0 && value <= 1))
        return false;
    *share_out = value;
    return true;
}

static bool read_numbered(wrap *w, const char *name, const char *text)
{
    static const char *const names[] = {
        [DROP] = "drop", [CORRUPT] = "corrupt", [KILL] = "kill", [STOP] = "stop"};
    char *end;
    long long nth = strtoll(text, &end, 10);

    if (end == text || *end || nth < 1 || w->numbered_count == NUMBERED)
        return false;
    for (int d = 0; d < (int)LS_COUNT(names); d++)
        if (strcmp(name, names[d]) == 0) {
            w->numbered[w->numbered_count].deed = (deed)d;
            w->numbered[w->numbered_count++].nth = nth;
            return true;
        }
    return false;
}

/* One item of the plan: NAME=VALUE (delay, drop, corrupt, seed) or NAME@N for the N-th message. */
static bool read_item(wrap *w, char *item)
{
    char *at = strpbrk(item, "=@"), *end;

    if (!at)
        return false;
    bool numbered = *at == '@';
    *at++ = '\0';
    if (numbered)
        return read_numbered(w, item, at);
    if (strcmp(item, "delay") == 0)
        return read_time(at, &w->delay_ns);
    if (strcmp(item, "drop") == 0)
        return read_share(at, &w->drop);
    if (strcmp(item, "corrupt") == 0)
        return read_share(at, &w->corrupt);
    if (strcmp(item, "seed") != 0 || *at < '0' || *at > '9')
        return false;
    w->seed = strtoull(at, &end, 10);
    return *end == '\0';
}

/* All items; LS_EUSAGE names the one that cannot be read. */
static ls_status read_plan(wrap *w, const char *plan)
{
    char item[64];

    for (const char *from = plan; *from;) {
        size_t len = strcspn(from, ",");
        if (len == 0 || len >= sizeof item)
            return unreadable(plan, from);
        memcpy(item, from, len);
        item[len] = '\0';
        if (!read_item(w, item))
            return unreadable(plan, from);
        from += len;
        if (*from == ',' && *++from == '\0')
            return unreadable(plan, ",");
    }
    return LS_OK;
}

/* --- deeds --- */

/* Whether the plan has this fault for the n-th message. */
static bool wants(const wrap *w, deed what, int64_t nth)
{
    double share = what == DROP ? w->drop : what == CORRUPT ? w->corrupt : 0;
    ls_rng_key key = ls_rng_derive(w->seed, (uint64_t)what, 0);

    for (int i = 0; i < w->numbered_count; i++)
        if (w->numbered[i].deed == what && w->numbered[i].nth == nth)
            return true;
    ls_rng_block b = ls_rng_philox(key, (uint32_t)nth, (uint32_t)(nth >> 32), 0, 0);
    return share > 0 && (double)ls_rng_uniform(b.v[0]) < share;
}

static ls_status changed_copy(const wrap *w, const ls_message *message, uint8_t **copy_out)
{
    ls_rng_key key = ls_rng_derive(w->seed, CORRUPT, 1);
    ls_rng_block b = ls_rng_philox(key, (uint32_t)w->sent, (uint32_t)(w->sent >> 32), 0, 0);
    uint8_t *copy = ls_mem_alloc((size_t)message->bytes);

    if (!copy)
        return LS_ENOMEM;
    memcpy(copy, message->data, (size_t)message->bytes);
    uint64_t at = ((uint64_t)b.v[0] << 32 | b.v[1]) % (uint64_t)message->bytes;
    copy[at] ^= (uint8_t)(1u << (b.v[2] % 8));
    *copy_out = copy;
    return LS_OK;
}

/* Keep a send for later, in the list by due time; a changed one gets a copy of its bytes. */
static ls_status hold(wrap *w, ls_message *message, bool change, int64_t delay_ns)
{
    ls_status st = LS_OK;
    late *entry = ls_mem_alloc(sizeof *entry);

    if (!entry)
        return LS_ENOMEM;
    entry->message = *message;
    entry->caller = message;
    entry->due_ns = ls_time_now_ns() + delay_ns;
    if (w->last) /* nothing overtakes */
        entry->due_ns = ls_max_i64(entry->due_ns, w->last->due_ns);
    if (change && message->bytes > 0) {
        LS_TRY(st, changed_copy(w, message, &entry->copy), out);
        entry->message.data = entry->copy;
    }
    if (w->last)
        w->last->next = entry;
    else
        w->first = entry;
    w->last = entry;
    entry = NULL;
out:
    ls_mem_free(entry);
    return st;
}

/* Hand over what is due, and complete what is done. */
static ls_status advance(wrap *w, bool *moved)
{
    int64_t now = ls_time_now_ns();
    ls_status st;

    for (late **at = &w->first, *before = NULL; *at;) {
        late *entry = *at;
        if (!entry->posted && entry->due_ns <= now) {
            st = w->inner->table->send(w->inner, &entry->message);
            if (st == LS_EBUSY)
                return LS_OK; /* later */
            if (st != LS_OK)
                return st;
            entry->posted = *moved = true;
        }
        if (!entry->message.done || !entry->posted) {
            before = entry;
            at = &entry->next;
            continue;
        }
        entry->caller->done = true;
        *moved = true;
        *at = entry->next;
        if (w->last == entry)
            w->last = before;
        ls_mem_free(entry->copy);
        ls_mem_free(entry);
    }
    return LS_OK;
}

/* --- the table --- */

/* Apply the plan to the n-th send: drop, corrupt, delay, kill or stop; otherwise it passes on. */
static ls_status send_wrapped(ls_transport *transport, ls_message *message)
{
    wrap *w = (wrap *)transport;
    int64_t delay_ns = w->delay_ns;
    ls_fault_about about;
    ls_fault_deed fault =
        ls_fault_planned ? ls_fault_visit(LS_FAULT_AT_LINK, &about) : LS_FAULT_NONE;
    bool moved;

    if (fault == LS_FAULT_SLOW)
        delay_ns += about.ms * LS_NS_PER_MS;
    w->sent++;
    if (wants(w, KILL, w->sent))
        raise(SIGKILL);
    if (wants(w, STOP, w->sent))
        raise(SIGSTOP);
    message->done = false;
    if (fault == LS_FAULT_CUT || wants(w, DROP, w->sent))
        return LS_OK;
    bool change = wants(w, CORRUPT, w->sent), waits = w->last && !w->last->posted;
    if (!change && delay_ns == 0 && !waits)
        return w->inner->table->send(w->inner, message);
    ls_status st = hold(w, message, change, delay_ns);
    return st == LS_OK ? advance(w, &moved) : st;
}

static ls_status receive_wrapped(ls_transport *transport, ls_message *message)
{
    wrap *w = (wrap *)transport;

    return w->inner->table->receive(w->inner, message);
}

static ls_status poll_wrapped(ls_transport *transport, bool *moved_out)
{
    wrap *w = (wrap *)transport;
    bool moved = false, inner_moved = false;
    ls_status st = advance(w, &moved);

    if (st == LS_OK)
        st = w->inner->table->poll(w->inner, &inner_moved);
    if (st == LS_OK)
        st = advance(w, &moved);
    *moved_out = moved || inner_moved;
    return st;
}

static void sleep_wrapped(ls_transport *transport, int64_t until_ns)
{
    wrap *w = (wrap *)transport;

    for (const late *entry = w->first; entry; entry = entry->next)
        if (!entry->posted) { /* in the order in which they are due */
            until_ns = ls_min_i64(until_ns, entry->due_ns);
            break;
        }
    w->inner->table->sleep(w->inner, until_ns);
}

static void wake_wrapped(ls_transport *transport)
{
    wrap *w = (wrap *)transport;

    w->inner->table->wake(w->inner);
}

static void count_wrapped(const ls_transport *transport, int peer, int64_t *sent_out,
                          int64_t *received_out)
{
    const wrap *w = (const wrap *)transport;

    w->inner->table->count(w->inner, peer, sent_out, received_out);
}

static void close_wrapped(ls_transport *transport)
{
    wrap *w = (wrap *)transport;

    ls_transport_close(w->inner);
    for (late *entry = w->first, *after; entry; entry = after) {
        after = entry->next;
        ls_mem_free(entry->copy);
        ls_mem_free(entry);
    }
    ls_mem_free(w);
}

static const ls_transport_table table = {.name = "wrap",
                                         .send = send_wrapped,
                                         .receive = receive_wrapped,
                                         .poll = poll_wrapped,
                                         .sleep = sleep_wrapped,
                                         .wake = wake_wrapped,
                                         .count = count_wrapped,
                                         .close = close_wrapped};

ls_status ls_wrap_open(ls_transport **transport_out, ls_transport *inner, const char *plan,
                       uint64_t seed)
{
    ls_status st = LS_OK;
    wrap *w = ls_mem_alloc(sizeof *w);

    if (!w)
        return LS_ENOMEM;
    *w = (wrap){.transport = {&table}, .inner = inner, .seed = seed};
    LS_TRY(st, read_plan(w, plan), out);
    *transport_out = &w->transport;
    w = NULL;
out:
    ls_mem_free(w);
    return st;
}
