/* quorum.c -- the rules of quorum.h; its table has the roles, and here is what takes each arrow:
 *
 *   FOLLOWS --ls_quorum_look(), ask_all(ASK)------> ASKS
 *   ASKS    --count_votes(): a new term, its vote-> STANDS
 *   STANDS  --count_votes(), lead()---------------> LEADS
 *   any     --follow(): a later term, or a beat---> FOLLOWS
 *
 * A new coordinator offers the view it has once more, because a view that some accepted need not
 * hold. Without that rule five nodes a..e make two lines of views:
 *
 *   term 1   a leads       generation 1 = {a b c d e} holds
 *   term 2   b leads       offers generation 2 = {a b c}; only b itself accepts
 *   term 3   b leads, by   makes generation 3 = {b c} from generation 2 without asking: b and c
 *            b, c, d       accept, which is more than half of {b c} and of {a b c}
 *   term 4   d leads, by   knows of generation 1 only, and makes another generation 2 = {a d e}
 *            a, d, e       -> two views, two halves of a job that both train
 *
 * So generation 3 is made only when generation 2 holds in the term of its maker. The model finds
 * this with five nodes (BUG_SKIP).
 *
 * Safety rests on promises alone, never on time: a coordinator that slept may send what it likes.
 * Times only decide when to try. */
#include "cluster/elect/quorum.h"

#include <string.h>
#include "base/time.h"

/* --- promises --------------------------------------------------------------------------------- */

void ls_quorum_view_copy(ls_quorum_view *to, const ls_quorum_view *from)
{
    to->generation = from->generation;
    to->made = from->made;
    to->held = from->held;
    to->n = from->n;
    to->n_base = from->n_base;
    memmove(to->member, from->member, (size_t)from->n * sizeof *to->member);
    memmove(to->base, from->base, (size_t)from->n_base * sizeof *to->base);
}

/* --- counting --------------------------------------------------------------------------------- */

bool ls_quorum_enough(int count, int n, bool first)
{
    return 2 * count > n || (2 * count == n && first);
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Compares the view that a message names with this node's: older (-1), the same (0), newer (1). */
static int newness(const ls_quorum *q, const ls_quorum_message *m)
{
    const ls_quorum_view *v = &q->promise.view;
    int by = compare(m->made, v->made);

    return by ? by : compare(m->generation, v->generation);
}

static ls_quorum_peer *find(ls_quorum *q, uint64_t id)
{
    for (int i = 0; i < q->n_peers; i++)
        if (q->peer[i].id == id)
            return &q->peer[i];
    return NULL;
}

static bool is_member(const ls_quorum_view *v, uint64_t id)
{
    for (int i = 0; i < v->n; i++)
        if (v->member[i] == id)
            return true;
    return false;
}

/* The table of peers for the present view: its nodes in order, then those of its base. What is
 * known of them stays. */
static void list_peers(ls_quorum *q, int64_t now_ns)
{
    const ls_quorum_view *v = &q->promise.view;
    int before = q->n_peers, n = 0;

    memcpy(q->before, q->peer, (size_t)before * sizeof *q->before);
    q->n_peers = 0;
    for (int i = 0; i < v->n + v->n_base; i++) {
        uint64_t id = i < v->n ? v->member[i] : v->base[i - v->n];
        ls_quorum_peer *p = i < v->n ? NULL : find(q, id);
        if (!p) {
            p = &q->peer[n++];
            *p = (ls_quorum_peer){.id = id, .heard_ns = now_ns};
            for (int k = 0; k < before; k++)
                if (q->before[k].id == id)
                    *p = q->before[k];
            p->in_view = p->in_base = p->votes = false;
            q->n_peers = n;
        }
        p->in_view |= i < v->n;
        p->in_base |= i >= v->n;
    }
}

typedef bool test(const ls_quorum *q, const ls_quorum_peer *p, uint64_t what);

/* Whether those of the view (or of its base) that pass the test are enough. */
static bool enough_of(const ls_quorum *q, bool base, test *passes, uint64_t what)
{
    const ls_quorum_view *v = &q->promise.view;
    int n = base ? v->n_base : v->n, count = 0;
    bool first = false;

    for (int i = 0; i < q->n_peers; i++) {
        const ls_quorum_peer *p = &q->peer[i];
        if (!(base ? p->in_base : p->in_view) || !passes(q, p, what))
            continue;
        count++;
        first |= p->id == (base ? v->base[0] : v->member[0]);
    }
    return ls_quorum_enough(count, n, first);
}

static bool enough_of_both(const ls_quorum *q, test *passes, uint64_t what)
{
    return enough_of(q, false, passes, what) && enough_of(q, true, passes, what);
}

static bool has_voted(const ls_quorum *q, const ls_quorum_peer *p, uint64_t what)
{
    (void)q;
    (void)what;
    return p->votes;
}

static bool has_view(const ls_quorum *q, const ls_quorum_peer *p, uint64_t what)
{
    const ls_quorum_view *v = &q->promise.view;

    (void)what;
    return p->id == q->promise.self || (p->made == v->made && p->generation == v->generation);
}

static bool has_answered(const ls_quorum *q, const ls_quorum_peer *p, uint64_t round)
{
    return p->id == q->promise.self || p->round >= round;
}

/* --- what goes out ---------------------------------------------------------------------------- */

/* Whether the promise is on disk as it is here. */
static bool settle(ls_quorum *q)
{
    if (q->dirty && q->hooks.keep(q->hooks.context, &q->promise))
        q->dirty = false;
    return !q->dirty;
}

static void send(ls_quorum *q, uint64_t to, ls_quorum_message m)
{
    const ls_quorum_view *v = &q->promise.view;

    if (!settle(q))
        return;
    m.from = q->promise.self;
    m.to = to;
    m.term = m.kind == LS_QUORUM_ASK ? q->promise.term + 1 : q->promise.term;
    m.made = v->made;
    m.generation = v->generation;
    m.held = v->held;
    m.leader = q->leader;
    q->hooks.send(q->hooks.context, &m);
}

static void send_beat(ls_quorum *q, const ls_quorum_peer *p, int64_t now_ns)
{
    send(q, p->id,
         (ls_quorum_message){.kind = LS_QUORUM_BEAT,
                             .round = q->round,
                             .age_ns = now_ns - q->firm_ns,
                             .view = has_view(q, p, 0) ? NULL : &q->promise.view});
}

static void beat(ls_quorum *q, int64_t now_ns)
{
    q->round++;
    q->sent_ns[q->round % LS_QUORUM_ROUNDS] = now_ns;
    q->next_ns = now_ns + q->times.beat_ns;
    if (enough_of(q, false, has_answered, q->round)) { /* alone */
        q->firm_round = q->round;
        q->firm_ns = now_ns;
    }
    for (int i = 0; i < q->n_peers; i++) /* nodes of the base only have no part in this view */
        if (q->peer[i].in_view && q->peer[i].id != q->promise.self)
            send_beat(q, &q->peer[i], now_ns);
}

/* Of a node that is not the coordinator: when to try next. Successors come in their order; the rest
 * of the delay keeps two from trying at the same time for ever. */
static int64_t next_try(const ls_quorum *q, int64_t now_ns)
{
    const ls_quorum_view *v = &q->promise.view;
    uint64_t mix = (q->promise.self + q->tries) * UINT64_C(0x9E3779B97F4A7C15);
    int place = 0;

    while (place < v->n && place < 8 && v->member[place] != q->promise.self)
        place++;
    return now_ns + q->times.suspect_ns / 2 + place * q->times.beat_ns +
           (int64_t)(mix >> 32) % (q->times.beat_ns / 2);
}

static void follow(ls_quorum *q, uint64_t leader, int64_t now_ns)
{
    q->role = LS_QUORUM_FOLLOWS;
    q->leader = leader;
    q->next_ns = next_try(q, now_ns);
}

/* A later term: a coordinator or candidate of an older one becomes a follower. */
static void enter_term(ls_quorum *q, uint64_t term, int64_t now_ns)
{
    if (term <= q->promise.term)
        return;
    q->promise.term = term;
    q->promise.voted = 0;
    q->dirty = true;
    follow(q, 0, now_ns);
}

/* --- a view ----------------------------------------------------------------------------------- */

/* The view is known to hold: votes of the view before are no longer counted. */
static void note_held(ls_quorum *q, int64_t now_ns)
{
    ls_quorum_view *v = &q->promise.view;

    if (v->held)
        return;
    v->held = true;
    v->n_base = v->n;
    memcpy(v->base, v->member, (size_t)v->n * sizeof *v->base);
    q->runs = v->generation > q->runs ? v->generation : q->runs;
    list_peers(q, now_ns);
}

/* The coordinator has heard something: does its view hold now? */
static void settle_view(ls_quorum *q, int64_t now_ns)
{
    ls_quorum_view *v = &q->promise.view;

    if (!settle(q)) /* its own disk counts, too */
        return;
    if (!v->held && enough_of_both(q, has_view, 0)) {
        if (q->hooks.holds)
            q->hooks.holds(q->hooks.context, v);
        note_held(q, now_ns);
        q->dirty = true;
        beat(q, now_ns); /* so that all know at once */
    }
}

/* Elected: whether the view that it has holds is not known. */
static void lead(ls_quorum *q, int64_t now_ns)
{
    ls_quorum_view *v = &q->promise.view;

    q->role = LS_QUORUM_LEADS;
    q->leader = q->promise.self;
    v->made = q->promise.term;
    v->held = false; /* in this term; its base stays what it was */
    q->dirty = true;
    q->firm_ns = now_ns;
    q->firm_round = q->round;
    for (int i = 0; i < q->n_peers; i++)
        q->peer[i].heard_ns = now_ns;
    beat(q, now_ns);
    settle_view(q, now_ns);
}

ls_status ls_quorum_offer(ls_quorum *quorum, const uint64_t *member, int n, int64_t now_ns)
{
    ls_quorum *q = quorum;
    ls_quorum_view *v = &q->promise.view;

    LS_BUG_IF(n < 1 || n > LS_QUORUM_NODES, "a view of %d nodes", n);
    if (q->role != LS_QUORUM_LEADS || !v->held)
        return ls_fail(LS_EBUSY, "the next view cannot be offered now: %s",
                       q->role == LS_QUORUM_LEADS ? "the present one does not hold yet"
                                                  : "this node is not the coordinator");
    v->n_base = v->n;
    memcpy(v->base, v->member, (size_t)v->n * sizeof *v->base);
    v->n = n;
    memcpy(v->member, member, (size_t)n * sizeof *v->member);
    v->generation++;
    v->made = q->promise.term;
    v->held = false;
    q->dirty = true;
    list_peers(q, now_ns);
    beat(q, now_ns);
    settle_view(q, now_ns);
    return LS_OK;
}

/* --- messages --------------------------------------------------------------------------------- */

/* age_ns is how long ago enough nodes confirmed the sender as coordinator. A beat from a coordinator that
 * is cut off from the rest comes with a growing age, and does not keep this node from asking. */
static void hear_beat(ls_quorum *q, const ls_quorum_message *m, int64_t now_ns)
{
    ls_quorum_view *v = &q->promise.view;

    if (m->term == q->promise.term) {
        if (m->age_ns < q->times.suspect_ns) /* one that nobody confirms is none */
            q->heard_ns = now_ns;
        if (now_ns - m->age_ns > q->firm_ns)
            q->firm_ns = now_ns - m->age_ns;
        follow(q, m->from, now_ns);
        if (m->view && newness(q, m) > 0) {
            ls_quorum_view_copy(v, m->view);
            v->held = false;
            q->dirty = true;
            list_peers(q, now_ns);
        }
        if (m->made == v->made && m->generation == v->generation) {
            if (m->held)
                note_held(q, now_ns);
            q->behind = 0;
        }
    }
    send(q, m->from, (ls_quorum_message){.kind = LS_QUORUM_ACK, .round = m->round});
}

/* Rounds number beats. Example, 5 nodes, round 12 sent at 3.00 s: with the answers of two others, and
 * itself, 3 of 5 stand behind the coordinator as of 3.00 s, whenever the answers came. */
static void hear_ack(ls_quorum *q, const ls_quorum_message *m, int64_t now_ns)
{
    ls_quorum_peer *p = find(q, m->from);

    if (q->role != LS_QUORUM_LEADS || m->term != q->promise.term || !p)
        return;
    if (m->round < p->round) /* overtaken on its way */
        return;
    p->made = m->made;
    p->generation = m->generation;
    p->heard_ns = now_ns;
    p->round = m->round;
    if (m->round > q->firm_round && m->round + LS_QUORUM_ROUNDS > q->round &&
        enough_of(q, false, has_answered, m->round)) {
        q->firm_round = m->round;
        q->firm_ns = q->sent_ns[m->round % LS_QUORUM_ROUNDS];
    }
    if (p->in_view && !has_view(q, p, 0) && m->round == q->round)
        send_beat(q, p, now_ns);
    settle_view(q, now_ns);
}

/* Whether a coordinator is there, as far as this node knows. */
static bool has_coordinator(const ls_quorum *q, int64_t now_ns)
{
    int64_t last_ns = q->role == LS_QUORUM_LEADS ? q->firm_ns : q->heard_ns;

    return q->leader != 0 && now_ns - last_ns < q->times.suspect_ns;
}

static void hear_asker(ls_quorum *q, const ls_quorum_message *m, int64_t now_ns)
{
    bool fits = newness(q, m) >= 0, trial = m->kind == LS_QUORUM_ASK, yes;

    if (trial) { /* the coordinator itself asks: it has given up */
        yes = fits && m->term > q->promise.term &&
              (m->from == q->leader || !has_coordinator(q, now_ns));
    } else {
        yes = fits && m->term == q->promise.term &&
              (q->promise.voted == 0 || q->promise.voted == m->from);
        if (yes && q->promise.voted == 0) {
            q->promise.voted = m->from;
            q->dirty = true;
            q->next_ns = next_try(q, now_ns);
        }
    }
    send(q, m->from,
         (ls_quorum_message){.kind = LS_QUORUM_ANSWER,
                             .yes = yes,
                             .trial = trial,
                             .round = m->round}); /* names the try that it answers */
}

static void ask_all(ls_quorum *q, ls_quorum_kind kind, int64_t now_ns);

static void count_votes(ls_quorum *q, int64_t now_ns)
{
    if (!enough_of_both(q, has_voted, 0))
        return;
    if (q->role == LS_QUORUM_STANDS) {
        if (settle(q)) /* its own vote is on disk */
            lead(q, now_ns);
        return;
    }
    q->promise.term++;
    q->promise.voted = q->promise.self;
    q->dirty = true;
    q->role = LS_QUORUM_STANDS;
    ask_all(q, LS_QUORUM_VOTE, now_ns);
}

static void hear_answer(ls_quorum *q, const ls_quorum_message *m, int64_t now_ns)
{
    ls_quorum_peer *p = find(q, m->from);
    bool ours = m->round == q->tries &&
                (m->trial ? q->role == LS_QUORUM_ASKS
                          : q->role == LS_QUORUM_STANDS && m->term == q->promise.term);

    if (!m->yes && newness(q, m) > 0) /* even of the same number: its own came to nothing */
        q->behind = m->generation;
    if (!p || !ours || !m->yes)
        return;
    p->votes = true;
    count_votes(q, now_ns);
}

static void ask_all(ls_quorum *q, ls_quorum_kind kind, int64_t now_ns)
{
    q->tries++;
    q->next_ns = next_try(q, now_ns);
    for (int i = 0; i < q->n_peers; i++)
        q->peer[i].votes = q->peer[i].id == q->promise.self;
    for (int i = 0; i < q->n_peers; i++)
        if (q->peer[i].id != q->promise.self)
            send(q, q->peer[i].id, (ls_quorum_message){.kind = kind, .round = q->tries});
    count_votes(q, now_ns); /* alone */
}

void ls_quorum_hear(ls_quorum *quorum, const ls_quorum_message *message, int64_t now_ns)
{
    ls_quorum *q = quorum;
    const ls_quorum_message *m = message;

    if (m->to != q->promise.self || m->from == q->promise.self)
        return;
    if (m->kind != LS_QUORUM_ASK)
        enter_term(q, m->term, now_ns);
    switch (m->kind) {
    case LS_QUORUM_BEAT:
        hear_beat(q, m, now_ns);
        break;
    case LS_QUORUM_ACK:
        hear_ack(q, m, now_ns);
        break;
    case LS_QUORUM_ASK:
    case LS_QUORUM_VOTE:
        hear_asker(q, m, now_ns);
        break;
    case LS_QUORUM_ANSWER:
        hear_answer(q, m, now_ns);
        break;
    }
}

/* --- time ------------------------------------------------------------------------------------- */

void ls_quorum_init(ls_quorum *quorum, const ls_quorum_promise *promise, bool leads,
                    const ls_quorum_hooks *hooks, const ls_quorum_times *times, int64_t now_ns)
{
    ls_quorum *q = quorum;

    q->promise.self = promise->self;
    q->promise.term = promise->term;
    q->promise.voted = promise->voted;
    ls_quorum_view_copy(&q->promise.view, &promise->view);
    q->hooks = *hooks;
    q->times = *times;
    q->role = LS_QUORUM_FOLLOWS;
    q->dirty = true;
    q->leader = q->behind = q->round = q->firm_round = q->tries = 0;
    q->runs = q->promise.view.held ? q->promise.view.generation : 0;
    q->heard_ns = now_ns;
    q->firm_ns = now_ns - q->times.stop_ns; /* it trains when it has heard of a coordinator */
    q->n_peers = 0;
    list_peers(q, now_ns);
    q->next_ns = next_try(q, now_ns + q->times.suspect_ns);
    if (leads)
        lead(q, now_ns);
}

void ls_quorum_look(ls_quorum *quorum, int64_t now_ns)
{
    ls_quorum *q = quorum;

    if (q->role == LS_QUORUM_LEADS && now_ns - q->firm_ns >= q->times.stop_ns)
        follow(q, 0, now_ns); /* the others may have another one by now */
    if (now_ns < q->next_ns)
        return;
    if (q->role == LS_QUORUM_LEADS) {
        beat(q, now_ns);
        settle_view(q, now_ns);
    } else if (is_member(&q->promise.view, q->promise.self) && !has_coordinator(q, now_ns)) {
        q->role = LS_QUORUM_ASKS;
        q->leader = 0;
        ask_all(q, LS_QUORUM_ASK, now_ns);
    }
}

void ls_quorum_assure(ls_quorum *quorum, int64_t now_ns)
{
    if (quorum->leader != 0 && quorum->role == LS_QUORUM_FOLLOWS)
        quorum->heard_ns = now_ns;
}

void ls_quorum_suspect(ls_quorum *quorum, int64_t now_ns)
{
    ls_quorum *q = quorum;

    if (q->role != LS_QUORUM_FOLLOWS)
        return;
    q->heard_ns = now_ns - q->times.suspect_ns;
    /* At once, in their order; the first is the one that is lost. */
    q->next_ns = next_try(q, now_ns) - q->times.suspect_ns / 2 - q->times.beat_ns;
}
