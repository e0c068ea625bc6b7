/* quorum_sim.c -- see quorum_sim.h.
 *
 * Faults for SIM_FAULTS of fake time: messages are lost (up to 20 %), late (up to 2 s) or told
 * twice; nodes are cut into two sides, or in one direction; nodes crash and come back with what
 * they had on disk, which may fail for a while; the coordinator makes views without the silent
 * nodes, and takes in those that are back. Then the network is good again for SIM_CALM, and the job
 * must have one coordinator and a view with everybody. What must never happen is checked whenever
 * it could. */
#include "cluster/quorum_sim.h"

#include <stdio.h>
#include <string.h>
#include "base/rng.h"
#include "base/time.h"
#include "cluster/elect/quorum.h"

enum { NODES = 7, LETTERS = 512, TERMS = 4096, VIEWS = 512, TEXT = 200 };
static const int64_t tick_ns = 50 * LS_NS_PER_MS;
static const int64_t dead_ns = 3 * LS_NS_PER_S, leave_ns = 60 * LS_NS_PER_S;
static const int64_t faults_ns = 20 * LS_NS_PER_S, calm_ns = 25 * LS_NS_PER_S;

typedef struct letter {
    int64_t at_ns;
    int from, to;
    bool join; /* not of the rules: "take me in" */
    ls_quorum_message m;
    bool has_view; /* of so few nodes: a whole ls_quorum_view is large */
    int n, n_base;
    uint64_t member[NODES], base[NODES];
} letter;

typedef struct node {
    ls_quorum q;
    ls_quorum_promise disk;
    bool up, disk_fails;
    int64_t back_ns; /* when down: up again */
    uint64_t ran;    /* generation that it trained in last */
    uint64_t joins[NODES];
    int n_joins;
} node;

static struct sim {
    node node[NODES];
    int n;
    letter letter[LETTERS]; /* on their way, in no order */
    int n_letters;
    int64_t now_ns;
    ls_rng_key key;
    uint32_t drawn;
    bool calm, forgets;
    ls_quorum_promise first; /* of the job */
    int side[NODES];         /* of a cut */
    bool deaf[NODES][NODES]; /* what goes from one to another is lost */
    uint32_t loss;           /* in 1000 */
    int64_t delay_ns;
    uint64_t leader[TERMS];
    int n_held[VIEWS];
    uint64_t held[VIEWS][NODES];
    char broken[TEXT];
    sim_result result;
} sim;

static uint32_t draw(uint32_t below)
{
    return ls_rng_philox(sim.key, sim.drawn++, 0, 0, 0).v[0] % below;
}

static void broke(const char *what, uint64_t a, uint64_t b, uint64_t c)
{
    if (!sim.broken[0])
        snprintf(sim.broken, TEXT, "%s (%llu, %llu, %llu) at %lld ms", what, (unsigned long long)a,
                 (unsigned long long)b, (unsigned long long)c,
                 (long long)(sim.now_ns / LS_NS_PER_MS));
}

/* --- hooks ------------------------------------------------------------------------------------ */

static bool keep(void *context, const ls_quorum_promise *promise)
{
    node *nd = context;

    if (nd->disk_fails || (!sim.calm && draw(100) == 0))
        return false;
    if (promise->term < nd->disk.term)
        broke("a promise goes back", promise->self, promise->term, nd->disk.term);
    nd->disk.self = promise->self;
    nd->disk.term = promise->term;
    nd->disk.voted = promise->voted;
    ls_quorum_view_copy(&nd->disk.view, &promise->view);
    return true;
}

static void post(int from, int to, const ls_quorum_message *m, bool join)
{
    /* A node that wants to join has a connection, which needs both directions. */
    bool lost = sim.side[from] != sim.side[to] || sim.deaf[from][to] ||
                (join && sim.deaf[to][from]) || draw(1000) < sim.loss;
    int copies = lost ? 0 : 1 + (!sim.calm && draw(50) == 0);

    for (; copies > 0 && sim.n_letters < LETTERS; copies--) {
        letter *l = &sim.letter[sim.n_letters++];
        *l = (letter){.from = from, .to = to, .join = join, .has_view = m && m->view};
        l->at_ns = sim.now_ns + 1 + (int64_t)draw((uint32_t)(sim.delay_ns / 1000)) * 1000;
        if (m)
            l->m = *m;
        if (l->has_view) {
            l->n = m->view->n;
            l->n_base = m->view->n_base;
            memcpy(l->member, m->view->member, (size_t)l->n * 8);
            memcpy(l->base, m->view->base, (size_t)l->n_base * 8);
        }
    }
}

static int index_of(uint64_t id)
{
    return (int)id - 1;
}

static void send(void *context, const ls_quorum_message *m)
{
    const node *nd = context;

    if (m->term > nd->disk.term + (m->kind == LS_QUORUM_ASK) || m->made > nd->disk.view.made)
        broke("told before it was kept", m->from, m->term, nd->disk.term);
    post(index_of(m->from), index_of(m->to), m, false);
}

static void holds(void *context, const ls_quorum_view *v)
{
    const node *nd = context;
    uint64_t g = v->generation;

    if (g >= VIEWS || g < 1) {
        broke("too many views", g, 0, 0);
        return;
    }
    if (sim.n_held[g] &&
        (sim.n_held[g] != v->n || memcmp(sim.held[g], v->member, (size_t)v->n * 8) != 0))
        broke("two views of one generation hold", g, sim.held[g][0], nd->q.promise.self);
    if (g > 1 && !sim.n_held[g - 1])
        broke("a view was made from one that never held", g, v->made, nd->q.promise.self);
    bool same = v->n == v->n_base && memcmp(v->member, v->base, (size_t)v->n * 8) == 0;
    if (g > 1 && sim.n_held[g - 1] && !same && /* once held, its base is itself */
        (sim.n_held[g - 1] != v->n_base ||
         memcmp(sim.held[g - 1], v->base, (size_t)v->n_base * 8) != 0))
        broke("a view was made from another one than the one before", g, v->made,
              nd->q.promise.self);
    sim.result.views += sim.n_held[g] == 0;
    sim.n_held[g] = v->n;
    memcpy(sim.held[g], v->member, (size_t)v->n * 8);
}

static const ls_quorum_times usual = {
    .beat_ns = 250 * LS_NS_PER_MS, .suspect_ns = LS_NS_PER_S, .stop_ns = 3 * LS_NS_PER_S};

/* --- nodes ------------------------------------------------------------------------------------ */

static ls_quorum_hooks hooks_of(node *nd)
{
    return (ls_quorum_hooks){.keep = keep, .send = send, .holds = holds, .context = nd};
}

static void set_up(int n)
{
    ls_quorum_promise *first = &sim.first;

    sim.n_letters = 0;
    memset(sim.leader, 0, sizeof sim.leader);
    memset(sim.n_held, 0, sizeof sim.n_held);
    memset(sim.side, 0, sizeof sim.side);
    memset(sim.deaf, 0, sizeof sim.deaf);
    sim.n = n;
    sim.now_ns = LS_NS_PER_S;
    sim.calm = true; /* what a job begins with is on disk */
    sim.broken[0] = '\0';
    sim.result = (sim_result){0};
    first->term = first->voted = first->view.generation = first->view.made = 1;
    first->view.held = true;
    first->view.n = first->view.n_base = n;
    for (int i = 0; i < n; i++)
        first->view.member[i] = first->view.base[i] = (uint64_t)i + 1;
    for (int i = 0; i < n; i++) {
        node *nd = &sim.node[i];
        nd->up = true;
        nd->disk_fails = false;
        nd->ran = 0;
        nd->n_joins = 0;
        nd->disk.term = 0;
        first->self = (uint64_t)i + 1;
        (void)keep(nd, first);
        ls_quorum_hooks hooks = hooks_of(nd);
        ls_quorum_init(&nd->q, first, i == 0, &hooks, &usual, sim.now_ns);
    }
}

static void restart(node *nd)
{
    ls_quorum_hooks hooks = hooks_of(nd);

    nd->up = true;
    nd->n_joins = 0;
    nd->ran = 0; /* its ranks, and what they had in memory, are gone */
    sim.first.self = nd->disk.self;
    if (sim.forgets)
        nd->disk.term = 0;
    ls_quorum_init(&nd->q, sim.forgets ? &sim.first : &nd->disk, false, &hooks, &usual, sim.now_ns);
}

static void crash(node *nd, int64_t for_ns)
{
    nd->up = false;
    nd->back_ns = sim.now_ns + for_ns;
    sim.result.crashes++;
}

static void add_join(node *nd, uint64_t id)
{
    for (int i = 0; i < nd->n_joins; i++)
        if (nd->joins[i] == id)
            return;
    nd->joins[nd->n_joins++] = id;
}

static bool is_member(const ls_quorum_view *v, uint64_t id)
{
    for (int i = 0; i < v->n; i++)
        if (v->member[i] == id)
            return true;
    return false;
}

/* The nodes of the next view, the coordinator first: those that answer, in their order, and those
 * that want to join. False: there is nothing to change, or it may not be changed now, because the
 * view does not hold yet or too few answer. */
static bool plan_view(const ls_quorum *q, const uint64_t *joins, int n_joins, uint64_t *member_out,
                      int *n_out)
{
    const ls_quorum_view *v = &q->promise.view;
    int n = 0, lost = 0, joined = 0;
    bool first = false;

    if (q->role != LS_QUORUM_LEADS || !v->held)
        return false;
    member_out[n++] = q->promise.self;
    for (int i = 0; i < v->n; i++) { /* peers are listed in the order of members */
        const ls_quorum_peer *p = &q->peer[i];
        bool alive = p->id == q->promise.self || sim.now_ns - p->heard_ns < dead_ns;
        lost += !alive;
        first |= alive && i == 0;
        if (alive && p->id != q->promise.self)
            member_out[n++] = p->id;
    }
    for (int i = 0; i < n_joins && n < LS_QUORUM_NODES; i++)
        if (!is_member(v, joins[i])) {
            member_out[n++] = joins[i];
            joined++;
        }
    *n_out = n;
    return lost + joined > 0 && ls_quorum_enough(v->n - lost, v->n, first);
}

sim_duty sim_duty_at(int number, int64_t now_ns)
{
    const ls_quorum *q = &sim.node[number].q;
    const ls_quorum_view *v = &q->promise.view;
    int64_t alone_ns = now_ns - q->firm_ns;

    if (alone_ns >= leave_ns)
        return SIM_LEAVE;
    return alone_ns < q->times.stop_ns && q->runs > 0 && q->runs == v->generation &&
                   is_member(v, q->promise.self)
               ? SIM_TRAIN
               : SIM_STOP;
}

/* What a coordinator does beside beating. */
static void coordinate(node *nd)
{
    uint64_t member[LS_QUORUM_NODES];
    int n;
    uint64_t term = nd->q.promise.term;

    if (nd->q.role != LS_QUORUM_LEADS)
        return;
    if (term < TERMS) {
        sim.result.leaders += sim.leader[term] == 0;
        if (sim.leader[term] && sim.leader[term] != nd->q.promise.self)
            broke("two coordinators of one term", term, sim.leader[term], nd->q.promise.self);
        sim.leader[term] = nd->q.promise.self;
    }
    if (plan_view(&nd->q, nd->joins, nd->n_joins, member, &n) &&
        ls_quorum_offer(&nd->q, member, n, sim.now_ns) == LS_OK)
        nd->n_joins = 0;
}

static void look(int i)
{
    node *nd = &sim.node[i];

    if (!nd->up) {
        if (sim.now_ns >= nd->back_ns)
            restart(nd);
        return;
    }
    ls_quorum_look(&nd->q, sim.now_ns);
    coordinate(nd);
    switch (sim_duty_at(i, sim.now_ns)) {
    case SIM_TRAIN:
        if (nd->q.runs < nd->ran)
            broke("a node trains in an older generation", nd->q.promise.self, nd->q.runs, nd->ran);
        nd->ran = nd->q.runs;
        break;
    case SIM_LEAVE:
        crash(nd, LS_NS_PER_S); /* somebody starts it again */
        break;
    case SIM_STOP:
        break;
    }
    if (nd->q.behind && draw(8) == 0) /* it has heard that the others went on without it */
        for (int k = 0; k < sim.n; k++)
            if (k != i)
                post(i, k, NULL, true);
}

static void hand_over(const letter *l)
{
    static ls_quorum_view view;
    node *nd = &sim.node[l->to];
    ls_quorum_message m = l->m;

    if (!nd->up)
        return;
    if (l->join) {
        add_join(nd, (uint64_t)l->from + 1);
        return;
    }
    m.view = NULL;
    if (l->has_view) {
        view.generation = m.generation;
        view.made = m.made;
        view.held = m.held;
        view.n = l->n;
        view.n_base = l->n_base;
        memcpy(view.member, l->member, (size_t)l->n * 8);
        memcpy(view.base, l->base, (size_t)l->n_base * 8);
        m.view = &view;
    }
    ls_quorum_hear(&nd->q, &m, sim.now_ns);
}

static void deliver(void)
{
    for (;;) {
        int next = -1;
        for (int i = 0; i < sim.n_letters; i++)
            if (sim.letter[i].at_ns <= sim.now_ns &&
                (next < 0 || sim.letter[i].at_ns < sim.letter[next].at_ns))
                next = i;
        if (next < 0)
            return;
        letter l = sim.letter[next];
        sim.letter[next] = sim.letter[--sim.n_letters];
        hand_over(&l);
    }
}

/* --- faults ----------------------------------------------------------------------------------- */

static void disturb(void)
{
    int who = (int)draw((uint32_t)sim.n);

    switch (draw(60)) {
    case 0: /* two sides */
        for (int i = 0; i < sim.n; i++)
            sim.side[i] = (int)draw(2);
        sim.result.cuts++;
        break;
    case 1: /* one is alone: often the coordinator */
        memset(sim.side, 0, sizeof sim.side);
        for (int i = 0; i < sim.n && draw(2); i++)
            if (sim.node[i].q.role == LS_QUORUM_LEADS)
                who = i;
        sim.side[who] = 1;
        sim.result.cuts++;
        break;
    case 2:
        sim.deaf[who][draw((uint32_t)sim.n)] = true;
        break;
    case 3:
    case 4:
        memset(sim.side, 0, sizeof sim.side);
        memset(sim.deaf, 0, sizeof sim.deaf);
        break;
    case 5:
        if (sim.node[who].up)
            crash(&sim.node[who], (int64_t)draw(6000) * LS_NS_PER_MS);
        break;
    case 6:
        sim.node[who].disk_fails = !sim.node[who].disk_fails;
        break;
    default:
        break;
    }
}

static void calm_down(void)
{
    sim.calm = true;
    sim.loss = 0;
    sim.delay_ns = 20 * LS_NS_PER_MS;
    memset(sim.side, 0, sizeof sim.side);
    memset(sim.deaf, 0, sizeof sim.deaf);
    for (int i = 0; i < sim.n; i++)
        sim.node[i].disk_fails = false;
}

/* One coordinator, whose view has everybody, and everybody trains in it. Says what is missing. */
static const char *unfinished(void)
{
    const node *lead = NULL;

    for (int i = 0; i < sim.n; i++)
        if (sim.node[i].up && sim.node[i].q.role == LS_QUORUM_LEADS) {
            if (lead)
                return "two coordinators at the end";
            lead = &sim.node[i];
        }
    if (!lead)
        return "no coordinator at the end";
    if (lead->q.promise.view.n != sim.n)
        return "not everybody is back";
    for (int i = 0; i < sim.n; i++)
        if (!sim.node[i].up || sim.node[i].q.runs != lead->q.runs ||
            sim_duty_at(i, sim.now_ns) != SIM_TRAIN)
            return "a node does not train at the end";
    return NULL;
}

static void pass(int64_t ns)
{
    int64_t end_ns = sim.now_ns + ns;

    while (sim.now_ns < end_ns && !sim.broken[0]) {
        sim.now_ns += tick_ns;
        deliver();
        if (!sim.calm)
            disturb();
        for (int i = 0; i < sim.n; i++)
            look(i);
    }
}

const char *sim_play(uint64_t seed, bool forget, sim_result *result_out)
{
    sim.key = ls_rng_derive(seed, 8, 57);
    sim.drawn = 0;
    sim.forgets = forget;
    sim.loss = draw(3) ? draw(50) : draw(200);
    sim.delay_ns = draw(3) ? 20 * LS_NS_PER_MS : 2000 * LS_NS_PER_MS;
    set_up(2 + (int)draw(NODES - 1));
    sim.calm = false;
    pass(faults_ns);
    calm_down();
    for (int64_t end_ns = sim.now_ns + calm_ns;
         sim.now_ns < end_ns && !sim.broken[0] && unfinished();)
        pass(LS_NS_PER_S);
    if (unfinished())
        broke(unfinished(), (uint64_t)sim.n, 0, 0);
    *result_out = sim.result;
    return sim_broken();
}

void sim_begin(int n)
{
    sim.key = ls_rng_derive(1, 8, 57);
    sim.drawn = 0;
    sim.forgets = false;
    sim.n = 0;
    calm_down();
    set_up(n);
}

void sim_run(int64_t ms)
{
    pass(ms * LS_NS_PER_MS);
}

void sim_cut(unsigned nodes)
{
    memset(sim.deaf, 0, sizeof sim.deaf);
    for (int i = 0; i < sim.n; i++)
        sim.side[i] = nodes >> i & 1;
}

void sim_silence(int from, int to)
{
    sim.deaf[from][to] = true;
}

void sim_crash(int who, int64_t ms)
{
    crash(&sim.node[who], ms * LS_NS_PER_MS);
}

ls_quorum *sim_node(int who)
{
    return &sim.node[who].q;
}

int64_t sim_now_ns(void)
{
    return sim.now_ns;
}

int sim_leader(void)
{
    int leader = -1;

    for (int i = 0; i < sim.n; i++)
        if (sim.node[i].up && sim.node[i].q.role == LS_QUORUM_LEADS)
            leader = leader < 0 ? i : NODES;
    return leader == NODES ? -1 : leader;
}

const char *sim_broken(void)
{
    return sim.broken[0] ? sim.broken : NULL;
}
