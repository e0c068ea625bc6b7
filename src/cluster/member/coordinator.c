/* coordinator.c -- the nodes of a job, above the rules of view.h; the states of a node are in
 * coordinator.h.
 *
 *   ls_coordinator_joins           -> SPARE, or CALLED for a node that the job begins with
 *   SPARE  --call()----> CALLED    by call_spares() and call_needed()
 *   SPARE  --forget()--> GONE      by ls_coordinator_lose_node()
 *   CALLED --forget()--> GONE      the same; also expelled: refuse(), take_end(), part_cut()
 *
 * A view goes through
 *
 *   whole  --give_up()---> lost    REVOKE to all nodes; workers report
 *   lost   --announce()--> whole   when all that are alive have reported: VIEW to all nodes
 *   whole  --regroup()---> whole   joiners wait: the ranks are asked to report at the end of a step
 *
 * The workers of a node have neighbouring places in the view, and nodes have theirs in the order in
 * which they were called. So a newcomer is never the first rank while an old member lives, and the
 * list of members has the ranks of a node in one piece. A node that is gone leaves no gap.
 *
 * Which cause is shown? Ranks see connections end before anybody knows why. Their report is a
 * suspicion, and gives way to the sentence of the agent that saw the death itself. */
#include "cluster/member/coordinator_impl.h"

#include "base/log.h"
#include "base/time.h"
#include "cluster/member/growing_array.h"
#include "cluster/member/recovery_policy.h"

static const int64_t DAY_NS = 24 * 3600 * LS_NS_PER_S;

ls_status ls_coordinator_open(ls_coordinator **coordinator_out, const ls_coordinator_args *args)
{
    ls_coordinator *p = ls_mem_alloc(sizeof *p);

    if (!p)
        return LS_ENOMEM;
    p->args = *args;
    ls_roster_init(&p->roster);
    ls_status st = ls_view_init(&p->view, 0, args->rules); /* workers come with their nodes */
    if (st == LS_OK)
        *coordinator_out = p;
    else
        ls_mem_free(p);
    return st;
}

void ls_coordinator_close(ls_coordinator *coordinator)
{
    if (!coordinator)
        return;
    ls_view_release(&coordinator->view);
    ls_roster_release(&coordinator->roster);
    ls_mem_free(coordinator->nodes);
    ls_mem_free(coordinator->hosts);
    ls_mem_free(coordinator);
}

const ls_view *ls_coordinator_view(const ls_coordinator *coordinator)
{
    return &coordinator->view;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static bool is_here(const node *n)
{
    return n->state != GONE && !n->lost;
}

/* Numbers grow from node to node where they are given in the order of coming, as they usually are:
 * then half of those that are left is enough to look at, each time. */
node *ls_coordinator_find(ls_coordinator *p, int id)
{
    int first = 0, last = p->n_nodes - 1;

    while (first < last) {
        int middle = first + (last - first) / 2;
        if (p->nodes[middle].id < id)
            first = middle + 1;
        else
            last = middle;
    }
    if (first < p->n_nodes && p->nodes[first].id == id && is_here(&p->nodes[first]))
        return &p->nodes[first];
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].id == id && is_here(&p->nodes[i]))
            return &p->nodes[i];
    return NULL;
}

/* Workers of a node in this state of the view. A spare has no places there yet, a node that is gone has
 * none any more. */
static int count_in(const ls_coordinator *p, const node *n, ls_view_state state)
{
    int found = 0;

    for (int i = 0; i < n->workers && n->state == CALLED; i++)
        found += p->view.member[n->first + i].state == state;
    return found;
}

/* Workers of a node that are not over. */
static int living(const ls_coordinator *p, const node *n)
{
    if (n->state != CALLED)
        return 0;
    return n->workers - count_in(p, n, LS_VIEW_OUT) - count_in(p, n, LS_VIEW_DONE);
}

static int count_nodes(const ls_coordinator *p)
{
    int n = 0;

    for (int i = 0; i < p->n_nodes; i++)
        n += living(p, &p->nodes[i]) > 0;
    return n;
}

static bool any_done(const ls_coordinator *p)
{
    return p->view.count[LS_VIEW_DONE] > 0;
}

/* A node whose workers all wait or are given up has no part in a job that is over: nobody waits for
 * its end. id -1 asks whether the job is over at all. */
bool ls_coordinator_is_idle(ls_coordinator *coordinator, int id)
{
    ls_coordinator *p = coordinator;

    if (!p->finished && !any_done(p))
        return false;
    const node *n = ls_coordinator_find(p, id);
    return !n || n->state != CALLED ||
           count_in(p, n, LS_VIEW_IN) + count_in(p, n, LS_VIEW_DONE) == 0;
}

/* A spare becomes a member: it gets its name in the roster and its places behind all others. needed:
 * the next view waits for it; otherwise its workers are joiners, which the view goes on without.
 *
 *     node       0    1    2                0    1    2    3 (was a spare)
 *     places     0 1  2 3  4 5      ->      0 1  2 3  4 5  6 7 */
static void call(ls_coordinator *p, node *n, bool needed)
{
    n->state = CALLED;
    p->spares--;
    p->spare_workers -= n->workers;
    n->entry = p->roster.nodes;
    (void)ls_roster_add(&p->roster, n->host, n->ip); /* announce() sees what is missing */
    n->first = ls_view_add(&p->view, n->workers, needed);
    if (n->begins)
        for (int i = 0; i < n->workers; i++)
            p->view.member[n->first + i].joiner = false;
    else
        p->args.call(p->args.context, n->id);
}

/* Nodes that are gone leave the list when the next one comes, and not before: callers hold
 * pointers into it while a loss is dealt with. */
static void purge(ls_coordinator *p)
{
    int kept = 0;

    for (int i = 0; i < p->n_nodes && p->gone > 0; i++)
        if (p->nodes[i].state != GONE)
            p->nodes[kept++] = p->nodes[i];
    p->n_nodes = p->gone > 0 ? kept : p->n_nodes;
    p->gone = 0;
}

ls_status ls_coordinator_joins(ls_coordinator *coordinator, int id, const char *host_name,
                               const char *ip, int workers, bool begins)
{
    ls_coordinator *p = coordinator;

    ls_status st;
    int before = p->view.workers + p->spare_workers;
    int most = p->args.rules.most > 0 ? p->args.rules.most : LS_VIEW_WORKERS;

    purge(p);
    if (workers < 1 || workers > LS_MEMBER_MESSAGE_WORKERS || workers > most - before ||
        p->n_nodes >= LS_MEMBERS_NODES)
        return ls_fail(
            LS_EUSAGE,
            "%d workers on \"%s\" are too many: %d on a node, %d in all, and there are %d", workers,
            host_name, LS_MEMBER_MESSAGE_WORKERS, most, before);
    if (!ls_growing_array_add((void **)&p->nodes, p->n_nodes, &p->room, sizeof *p->nodes))
        return LS_ENOMEM;
    LS_TRY(st, ls_view_reserve(&p->view, before + workers), out);
    node *n = &p->nodes[p->n_nodes++];
    p->spares++;
    p->spare_workers += workers;
    *n = (node){.id = id, .state = SPARE, .workers = workers, .begins = begins};
    snprintf(n->host, sizeof n->host, "%s", host_name);
    snprintf(n->ip, sizeof n->ip, "%s", ip);
    if (begins)
        call(p, n, true);
out:
    return st;
}

void ls_coordinator_has_named(ls_coordinator *coordinator)
{
    for (int i = 0; i < coordinator->n_nodes; i++)
        coordinator->nodes[i].known = coordinator->roster.bytes.len;
}

/* --- hosts that crash ------------------------------------------------------------------------- */

static host *host_of(ls_coordinator *p, const char *name)
{
    for (int i = 0; i < p->n_hosts; i++)
        if (strcmp(p->hosts[i].name, name) == 0)
            return &p->hosts[i];
    host *hosts = ls_mem_resize(p->hosts, (size_t)(p->n_hosts + 1) * sizeof *hosts);
    if (!hosts)
        return NULL; /* then nobody is excluded */
    p->hosts = hosts;
    hosts[p->n_hosts] = (host){.crashes = 0};
    snprintf(hosts[p->n_hosts].name, sizeof hosts->name, "%s", name);
    return &hosts[p->n_hosts++];
}

/* Twice as long each time, at most 1024 times: with cool_ns of 60 s 1, 2, 4 ... minutes. A host that
 * is repaired comes back soon, one that keeps crashing hardly ever disturbs. */
static void exclude(ls_coordinator *p, host *h, bool cut, int64_t now)
{
    p->learned = true;
    h->excluded_ns = now + (p->args.cool_ns << (h->times < 10 ? h->times : 10));
    h->cut = cut;
    h->times++;
}

/* A worker of this node has crashed; whether that was once too often. The coordinator's own node
 * stays: without it there is no job. */
static bool note_crash(ls_coordinator *p, const node *n, int64_t now)
{
    host *h = p->args.quarantine > 0 && n->id != p->args.self ? host_of(p, n->host) : NULL;

    if (!h)
        return false;
    if (now - h->crashed_ns > DAY_NS)
        h->crashes = 0;
    h->crashed_ns = now;
    p->learned = true;
    if (++h->crashes < p->args.quarantine)
        return false;
    h->crashes = 0;
    exclude(p, h, false, now);
    return true;
}

bool ls_coordinator_excludes(const ls_coordinator *coordinator, const char *host_name, int64_t now,
                             char *why, size_t cap)
{
    for (int i = 0; i < coordinator->n_hosts; i++) {
        const host *h = &coordinator->hosts[i];
        if (strcmp(h->name, host_name) == 0 && now < h->excluded_ns) {
            snprintf(why, cap, "%s is in quarantine for %lld s more, because %s", host_name,
                     (long long)((h->excluded_ns - now) / LS_NS_PER_S + 1),
                     h->cut ? "it and another host did not reach each other"
                            : "its workers crashed");
            return true;
        }
    }
    return false;
}

/* --- losing the view -------------------------------------------------------------------------- */

static void tell_all(ls_coordinator *p, const ls_member_message *message)
{
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].state == CALLED && is_here(&p->nodes[i]))
            p->args.tell(p->args.context, p->nodes[i].id, message);
}

static void revoke(ls_coordinator *p)
{
    ls_member_message message = {.kind = LS_MEMBER_MESSAGE_REVOKE};

    memcpy(message.why, p->cause, sizeof message.why);
    tell_all(p, &message);
}

/* The view ends here. The first sure cause stays; a suspicion gives way to it. */
static void give_up(ls_coordinator *p, const char *why, bool sure, int64_t noticed_ns, int64_t now)
{
    bool first = p->lost_ns == 0;

    if (p->view.generation == 0 || (!first && (p->sure || !sure)))
        return; /* there is none, or all is known */
    if (first || p->lost_ns > now - noticed_ns)
        p->lost_ns = now - noticed_ns;
    p->sure = sure;
    p->noticed_ns = now - p->lost_ns;
    snprintf(p->cause, sizeof p->cause, "%s", p->regroups && !sure ? p->coming : why);
    if (sure || !p->regroups) /* ranks that meet anew come by themselves */
        revoke(p);
}

static void end_job(ls_coordinator *p, int id, int code, const ls_err_record *why)
{
    if (p->finished)
        return;
    p->finished = true;
    p->args.stop(p->args.context, id, code, why);
}

/* The run cannot go on with what is left. The message has both numbers and both limits, because either
 * may be the one that is missed. */
static void end_too_few(ls_coordinator *p, const char *why)
{
    ls_fail(LS_EPEER, "%.300s: %d ranks on %d nodes are left, the run needs %d on %d", why,
            ls_view_alive(&p->view), count_nodes(p), ls_view_least(&p->view),
            p->args.min_nodes > 0 ? p->args.min_nodes : 1);
    ls_err_hint("heal.min_ranks and heal.min_nodes say with how few a run goes on.");
    end_job(p, -1, ls_err_exit_code(LS_EPEER), ls_err_last());
}

/* Places of a node that is gone. Workers that have done their work stay: they show that the
 * job is over. */
static void forget(ls_coordinator *p, node *n)
{
    bool keeps = n->state == CALLED && count_in(p, n, LS_VIEW_DONE) > 0;

    if (n->state == CALLED && !keeps) {
        ls_view_remove(&p->view, n->first, n->workers);
        for (int i = 0; i < p->n_nodes; i++)
            if (p->nodes[i].state == CALLED && p->nodes[i].first > n->first)
                p->nodes[i].first -= n->workers;
    }
    if (n->state == SPARE) {
        p->spares--;
        p->spare_workers -= n->workers;
    }
    n->lost = true;
    if (!keeps)
        n->state = GONE;
    p->gone += !keeps;
}

/* Nodes that wait take the places of lost ones, when the run needs them. */
static void call_needed(ls_coordinator *p, const node *lost)
{
    int left = ls_view_alive(&p->view) - living(p, lost), nodes = count_nodes(p) - 1;

    for (int i = 0; i < p->n_nodes && !any_done(p); i++) {
        node *n = &p->nodes[i];
        if (n->state != SPARE || (left >= ls_view_least(&p->view) && nodes >= p->args.min_nodes))
            continue;
        call(p, n, true);
        left += n->workers;
        nodes++;
    }
}

/* A node and all its workers at once. Example, nodes 0, 1, 2 with 2 workers each, node 1 dies:
 *
 *     places   0 1 | 2 3 | 4 5       2 and 3 are IN: they are OUT, the view is given up
 *     places   0 1 | 2 3             node 2 has the places 2 and 3 from now on
 *
 * A spare is called first, so that it counts when the rules ask whether enough are left. */
void ls_coordinator_lose_node(ls_coordinator *coordinator, int id, const char *why,
                              int64_t noticed_ns, int64_t now)
{
    ls_coordinator *p = coordinator;
    node *n = ls_coordinator_find(p, id);
    bool was_in = false, stops = false, mattered = n && living(p, n) > count_in(p, n, LS_VIEW_NEW);

    if (!n)
        return;
    if (mattered)
        call_needed(p, n);
    for (int i = 0; i < n->workers && n->state == CALLED; i++) {
        ls_view_state state = p->view.member[n->first + i].state;
        if (state == LS_VIEW_OUT || state == LS_VIEW_DONE)
            continue;
        was_in |= state == LS_VIEW_IN;
        stops |= ls_recovery_policy_decide(&p->view, n->first + i, &(ls_view_end){.gone = true}) ==
                 LS_VIEW_STOP;
    }
    forget(p, n);
    if (was_in)
        give_up(p, why, true, noticed_ns, now);
    if (mattered && !p->finished && !any_done(p) && (stops || count_nodes(p) < p->args.min_nodes))
        end_too_few(p, why);
}

/* --- a new coordinator ------------------------------------------------------------------------ */

void ls_coordinator_resume(ls_coordinator *coordinator, const ls_view_past *past, const char *why,
                           int64_t noticed_ns, int64_t now)
{
    ls_coordinator *p = coordinator;
    ls_view_past known = *past;

    if (known.generation == 0)
        known.generation = 1; /* of a spare, which others have trained without */
    ls_view_resume(&p->view, &known);
    p->made_ns = now;
    give_up(p, why, true, noticed_ns, now);
}

void ls_coordinator_send_missed(ls_coordinator *coordinator, int id)
{
    ls_coordinator *p = coordinator;
    ls_member_message message = {.kind = LS_MEMBER_MESSAGE_REVOKE};

    if (p->lost_ns == 0 || !ls_coordinator_find(p, id))
        return;
    memcpy(message.why, p->cause, sizeof message.why);
    p->args.tell(p->args.context, id, &message);
}

/* A worker of the view that a coordinator before made. */
static void take_standing(ls_coordinator *p, int place, const ls_member_message *w)
{
    if (p->lost_ns == 0 || p->view.member[place].state != LS_VIEW_AWAY)
        return;
    ls_view_resume(&p->view, &w->past);
    bool known = w->past.generation == p->view.generation;
    ls_view_set_resumed(&p->view, place, known ? w->stood : -1, w->out);
}

/* --- messages --------------------------------------------------------------------------------- */

/* A node of the beginning ends the job, because the user has set it up wrong; one that comes later is
 * only sent away. */
static void refuse(ls_coordinator *p, node *n, const char *differs, int64_t now)
{
    char why[LS_MEMBER_MESSAGE_TEXT];

    snprintf(why, sizeof why, "%s differs from the first node in: %.300s", n->host, differs);
    if (n->begins) {
        ls_fail(LS_EUSAGE, "%s", why);
        ls_err_hint("Every machine must have the same program, run file, tokenizer and data.");
        end_job(p, -1, ls_err_exit_code(LS_EUSAGE), ls_err_last());
        return;
    }
    p->args.expel(p->args.context, n->id, why);
    ls_coordinator_lose_node(p, n->id, why, 0, now);
}

/* A report while the worker is IN says that it has lost others: a suspicion, which ends the view at
 * once, because its ranks wait for nothing else. */
static void take_report(ls_coordinator *p, node *n, const ls_member_message *w, int64_t now)
{
    int place = n->first + w->worker;
    char differs[320];

    if (w->config_digest.rows > 0)
        n->config_digest = w->config_digest;
    if (p->config_digest.rows > 0 && w->config_digest.rows > 0 &&
        !ls_config_digest_same(&p->config_digest, &w->config_digest, differs, sizeof differs)) {
        refuse(p, n, differs, now);
        return;
    }
    if (p->view.member[place].state == LS_VIEW_IN)
        give_up(p, w->why, false, 0, now);
    ls_view_reports(&p->view, place, &w->report);
}

/* The decision about a death, in order: has its host crashed too often; what do the rules of the view
 * say (again, without it, or stop); the verdict to its agent; then the view ends for the others. The
 * verdict comes before REVOKE, so that an agent that restarts its worker does so at once. */
static void take_end(ls_coordinator *p, node *n, const ls_member_message *w, int64_t now)
{
    int place = n->first + w->worker, id = n->id;
    bool was_in = p->view.member[place].state == LS_VIEW_IN;
    bool excluded = !w->asked && !any_done(p) && count_nodes(p) > 1 && note_crash(p, n, now);
    const ls_view_end end = {.signal = w->signal,
                             .error = w->error ? &w->record : NULL,
                             .asked = w->asked,
                             .gone = excluded};
    char why[LS_MEMBER_MESSAGE_TEXT];

    if (excluded)
        call_needed(p, n);
    ls_view_verdict verdict = ls_recovery_policy_decide(&p->view, place, &end);
    p->learned = true;
    ls_member_message answer = {
        .kind = LS_MEMBER_MESSAGE_VERDICT, .worker = w->worker, .verdict = verdict};
    p->args.tell(p->args.context, id, &answer);
    if (verdict == LS_VIEW_STOP) {
        if (p->view.rules.unit > 1 && !w->error && ls_view_is_short(&p->view))
            ls_log(
                LS_LOG_WARN,
                "%d of the %d ranks that share one model (mesh.pp, tp, ep) or share "
                "sequences (mesh.cp) are left: the run cannot go on without the one that is lost",
                ls_view_alive(&p->view), p->view.rules.unit);
        ls_fail(w->error ? w->record.code : LS_EFAIL, "%s", w->why); /* it names the rank */
        ls_err_hint("%s", w->error ? w->record.hint : "");
        end_job(p, id, w->code, ls_err_last());
        return;
    }
    snprintf(why, sizeof why, "%.300s%s%s", w->why, excluded ? "; in quarantine: " : "",
             excluded ? n->host : "");
    if (was_in)
        give_up(p, why, true, 0, now);
    if (excluded) {
        p->args.expel(p->args.context, id, why);
        ls_coordinator_lose_node(p, id, why, 0, now);
    }
}

void ls_coordinator_handle_message(ls_coordinator *coordinator, int id,
                                   const ls_member_message *message, int64_t now)
{
    ls_coordinator *p = coordinator;
    node *n = ls_coordinator_find(p, id);

    if (!n || n->state != CALLED || message->worker >= n->workers)
        return;
    int place = n->first + message->worker;
    bool over =
        p->view.member[place].state == LS_VIEW_OUT || p->view.member[place].state == LS_VIEW_DONE;
    if (over || p->finished) {
        const ls_member_message answer = {.kind = LS_MEMBER_MESSAGE_VERDICT,
                                          .worker = message->worker,
                                          .verdict = p->finished ? LS_VIEW_STOP : LS_VIEW_DROP};
        if (message->kind == LS_MEMBER_MESSAGE_ENDED)
            p->args.tell(p->args.context, id, &answer);
        return;
    }
    switch (message->kind) {
    case LS_MEMBER_MESSAGE_REPORT:
        take_report(p, n, message, now);
        break;
    case LS_MEMBER_MESSAGE_READY:
        ls_view_set_ready(&p->view, place);
        if (p->view.member[place].rank == 0)
            p->unhealed_ns = 0;
        break;
    case LS_MEMBER_MESSAGE_LEFT:
        ls_view_set_left(&p->view, place);
        break;
    case LS_MEMBER_MESSAGE_ENDED:
        take_end(p, n, message, now);
        break;
    case LS_MEMBER_MESSAGE_RESUME:
        take_standing(p, place, message);
        break;
    default:
        break; /* from a coordinator to its nodes */
    }
}

/* --- views ------------------------------------------------------------------------------------ */

/* The workers of the first view set the digests that all later nodes must have. */
static bool all_alike(ls_coordinator *p, int64_t now)
{
    char differs[320];

    if (p->config_digest.rows > 0)
        return true;
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].state == CALLED && p->nodes[i].config_digest.rows > 0) {
            p->config_digest = p->nodes[i].config_digest;
            break;
        }
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].state == CALLED && p->nodes[i].config_digest.rows > 0 &&
            !ls_config_digest_same(&p->config_digest, &p->nodes[i].config_digest, differs,
                                   sizeof differs)) {
            refuse(p, &p->nodes[i], differs, now);
            return false;
        }
    return true;
}

/* Ranks of the next view by nodes, in the order of the nodes' places. A node of which no worker is in
 * the view is not listed. */
static ls_status list_members(const ls_coordinator *p, uint64_t generation, ls_members *members)
{
    uint16_t ports[LS_MEMBER_MESSAGE_WORKERS];
    ls_status st = LS_OK;

    ls_members_init(members);
    members->generation = generation;
    for (int i = 0; i < p->n_nodes && st == LS_OK; i++) {
        const node *n = &p->nodes[i];
        int ranks = 0;
        for (int k = 0; k < n->workers && n->state == CALLED; k++)
            if (p->view.member[n->first + k].rank >= 0)
                ports[ranks++] = (uint16_t)p->view.member[n->first + k].report.port;
        if (ranks > 0)
            st = ls_members_add(members, n->host, n->ip, ranks, ports);
        if (ranks > 0 && st == LS_OK)
            members->node[members->nodes - 1].entry = n->entry;
    }
    return st;
}

/* Each node hears its own ranks, and the end of the roster that it lacks: with 3 names of 40 bytes known
 * to it and 5 in the roster, only the last 2. */
static void tell_view(ls_coordinator *p, node *n, ls_member_message *message)
{
    message->known = n->known;
    n->known = p->roster.bytes.len;
    message->workers = n->workers;
    for (int i = 0; i < n->workers; i++) {
        message->rank[i] = p->view.member[n->first + i].rank;
        message->serial[i] = p->view.member[n->first + i].report.serial;
    }
    p->args.tell(p->args.context, n->id, message);
}

/* Whether the nodes that decide accept the next view. Its nodes: those of which a worker waits,
 * and the coordinator's own. */
static bool agreed(ls_coordinator *p)
{
    int n = 0;

    if (!p->args.agree)
        return true;
    int *nodes = ls_mem_array((size_t)p->n_nodes + 1, sizeof *nodes);
    if (!nodes)
        return false; /* asked again */
    nodes[n++] = p->args.self;
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].id != p->args.self && count_in(p, &p->nodes[i], LS_VIEW_WAITS) > 0)
            nodes[n++] = p->nodes[i].id;
    uint64_t generation = p->args.agree(p->args.context, nodes, n, p->view.generation);
    ls_mem_free(nodes);
    if (generation == 0)
        return false;
    p->view.generation = generation - 1;
    return true;
}

/* Another coordinator may need it when the ranks have heard of the view. */
static void pass_on(ls_coordinator *p, int stepless)
{
    if ((p->learned || stepless != p->view.stepless) && p->args.remember)
        p->args.remember(p->args.context);
    p->learned = false;
}

static void announce(ls_coordinator *p, int64_t now)
{
    ls_member_message message = {.kind = LS_MEMBER_MESSAGE_VIEW};
    int stepless = p->view.stepless;
    ls_status st;

    if (!all_alike(p, now) || !agreed(p))
        return;
    LS_TRY(st, ls_str_status(&p->roster.bytes), out);
    LS_TRY(st, ls_recovery_policy_next_view(&p->view, &message.view.plan), out);
    pass_on(p, stepless);
    message.roster = &p->roster;
    LS_TRY(st, list_members(p, message.view.plan.generation, &message.members), out);
    message.view.begun = p->view.begun;
    if (p->lost_ns && !p->unhealed_ns)
        p->unhealed_ns = p->lost_ns;
    message.view.lost_ns = p->unhealed_ns ? now - p->unhealed_ns : -1;
    message.view.noticed_ns = p->noticed_ns;
    memcpy(message.view.cause, p->cause, sizeof message.view.cause);
    p->lost_ns = p->noticed_ns = 0;
    p->sure = p->regroups = false;
    p->cause[0] = '\0';
    p->made_ns = now;
    for (int i = 0; i < p->n_nodes; i++)
        if (count_in(p, &p->nodes[i], LS_VIEW_IN) > 0)
            tell_view(p, &p->nodes[i], &message);
out:
    ls_member_message_release(&message);
    if (st != LS_OK)
        end_job(p, -1, ls_err_exit_code(st), ls_err_last());
}

static bool has_room(const ls_coordinator *p)
{
    return p->view.generation > 0 && !any_done(p) &&
           (p->args.max_nodes == 0 || count_nodes(p) < p->args.max_nodes);
}

/* --- nodes that do not reach each other -------------------------------------------------------
 *
 * Both are heard by the coordinator, but a rank of one has waited in vain for a connection to a
 * rank of the other: a cable, a firewall, a route in one direction. The next view would end in the
 * same way. So one of them goes: the one that is named most often; of two the later one; never the
 * coordinator's own node. Before the first step it is reported as a mistake instead. */

static node *node_of(ls_coordinator *p, int place)
{
    for (int i = 0; i < p->n_nodes; i++) {
        node *n = &p->nodes[i];
        if (n->state == CALLED && is_here(n) && place >= n->first && place < n->first + n->workers)
            return n;
    }
    return NULL;
}

/* The node that this waiting worker could not reach, when its worker waits, too; NULL: none. */
static node *not_reached_by(ls_coordinator *p, int place)
{
    const ls_view_member *m = &p->view.member[place];

    if (m->state != LS_VIEW_WAITS || m->report.unreached == 0)
        return NULL;
    for (int i = 0; i < p->view.workers; i++)
        if (p->view.member[i].state == LS_VIEW_WAITS &&
            p->view.member[i].rank == m->report.unreached - 1)
            return node_of(p, i) == node_of(p, place) ? NULL : node_of(p, i);
    return NULL;
}

/* A pair of nodes that do not reach each other; the second is the one to go. */
static bool find_cut(ls_coordinator *p, node **stays_out, node **goes_out)
{
    int most = 0;

    for (int i = 0; i < p->view.workers; i++) {
        node *b = not_reached_by(p, i), *a = b ? node_of(p, i) : NULL;
        if (!a)
            continue;
        int named[2] = {0, 0};
        for (int k = 0; k < p->view.workers; k++) {
            const node *to = not_reached_by(p, k), *from = to ? node_of(p, k) : NULL;
            named[0] += to && (from == a || to == a);
            named[1] += to && (from == b || to == b);
        }
        bool first = a->id != p->args.self && (b->id == p->args.self || named[0] > named[1] ||
                                               (named[0] == named[1] && a > b));
        if (named[!first] <= most)
            continue;
        most = named[!first];
        *stays_out = first ? b : a;
        *goes_out = first ? a : b;
    }
    return most > 0;
}

static void part_cut(ls_coordinator *p, int64_t now)
{
    char why[LS_MEMBER_MESSAGE_TEXT];
    node *stays, *goes;

    while (!p->finished && find_cut(p, &stays, &goes)) {
        snprintf(why, sizeof why, "%.150s and %.150s do not reach each other", stays->host,
                 goes->host);
        if (!p->view.begun) {
            ls_fail(LS_EDEADLINE, "%s", why);
            ls_err_hint("Ranks listen at ports that the kernel chooses: see that these hosts may "
                        "connect to each other at any port.");
            end_job(p, -1, ls_err_exit_code(LS_EDEADLINE), ls_err_last());
            return;
        }
        host *h = p->args.cool_ns > 0 ? host_of(p, goes->host) : NULL;
        if (h)
            exclude(p, h, true, now);
        give_up(p, why, true, p->unhealed_ns ? now - p->made_ns : 0, now);
        p->args.expel(p->args.context, goes->id, why);
        ls_coordinator_lose_node(p, goes->id, why, 0, now);
    }
}

/* Spares, as many as there is room for. */
static void call_spares(ls_coordinator *p)
{
    for (int i = 0; i < p->n_nodes && p->spares > 0 && has_room(p); i++)
        if (p->nodes[i].state == SPARE)
            call(p, &p->nodes[i], false);
}

/* Ask the ranks to meet the joiners that wait. */
static void regroup(ls_coordinator *p)
{
    const ls_member_message message = {.kind = LS_MEMBER_MESSAGE_REGROUP};
    size_t n = (size_t)snprintf(p->coming, sizeof p->coming, "joined:");

    for (int i = 0; i < p->n_nodes; i++)
        if (count_in(p, &p->nodes[i], LS_VIEW_WAITS) > 0 && n < sizeof p->coming - 1)
            n += (size_t)snprintf(p->coming + n, sizeof p->coming - n, " %s", p->nodes[i].host);
    p->regroups = true;
    tell_all(p, &message);
}

/* Whether joiners wait to be met, at the right time. */
static bool wants_guests(const ls_coordinator *p)
{
    return p->lost_ns == 0 && !p->regroups && !any_done(p) && ls_view_has_guests(&p->view) &&
           p->view.begun;
}

int64_t ls_coordinator_due_in(const ls_coordinator *coordinator, bool asked, int64_t now)
{
    const ls_coordinator *p = coordinator;

    if (p->finished)
        return -1;
    if ((ls_view_complete(&p->view) && !asked) || (p->spares > 0 && has_room(p)))
        return 0;
    return wants_guests(p) ? ls_max_i64(p->made_ns + p->args.grow_wait_ns - now, 0) : -1;
}

void ls_coordinator_do_due(ls_coordinator *coordinator, int64_t now)
{
    ls_coordinator *p = coordinator;

    if (p->finished)
        return;
    if (ls_view_complete(&p->view))
        part_cut(p, now);
    if (!p->finished && ls_view_complete(&p->view))
        announce(p, now);
    if (p->finished)
        return;
    call_spares(p);
    if (wants_guests(p) && now - p->made_ns >= p->args.grow_wait_ns)
        regroup(p);
}
