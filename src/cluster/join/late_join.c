/* late_join.c -- the connections of a job that heals: nodes that come later, nodes that go away,
 * signs of life. What follows from these is decided by the caller's hooks (recover_cluster.h). */
#include "cluster/join/rendezvous_impl.h"

#include <sys/timerfd.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/member/growing_array.h"

enum { PATIENT = 4 };                  /* times that a coordinator may be silent longer */
enum { MANY_PEERS = 256, SLICES = 8 }; /* more peers than this are looked at in SLICES turns */

/* A node among many gives fewer signs of life: a coordinator shall not have to take more than so
 * many a second, as long as so many come before a node counts as dead. It gives still fewer itself
 * where it may be silent longer: nobody would succeed it. */
enum { SIGNS_PER_S = 5000, SIGNS_LEAST = 3 };

/* A peer went away, or is silent: the thread's last record says why. */
void ls_rendezvous_lose(ls_rendezvous *r, ls_rendezvous_peer *p, int64_t silent_ns)
{
    char why[640];
    int node = p->node;

    if (r->hooks && r->hooks->orphaned && !r->args.hosts && !r->failed && r->met) {
        snprintf(why, sizeof why, "%.600s", ls_err_last()->text);
        ls_rendezvous_drop(p);
        ls_rendezvous_enter(r, p, LOST);
        r->hooks->orphaned(r->hooks->context, why, silent_ns);
        return;
    }
    if (!r->hooks || !r->args.hosts) {
        r->dropped = !r->args.hosts && !r->failed;
        ls_rendezvous_decide_lost(r, p);
        ls_rendezvous_drop(p);
        ls_rendezvous_enter(r, p, LOST);
        return;
    }
    snprintf(why, sizeof why, "node %d (%s) was lost: %.300s", node, p->host, ls_err_last()->text);
    ls_rendezvous_drop(p);
    ls_rendezvous_enter(r, p, LOST);
    r->hooks->lost(r->hooks->context, node, why, silent_ns);
}

/* Alive, suspicious or dead, by how long it was silent. With heartbeats each 250 ms, suspect_ns of 1 s and
 * dead_ns of 3 s:
 *
 *     silent   0 .. 1 s     nothing
 *              1 s ..       said once in the log; the host asks others about it each second
 *              3 s          it is lost; 6 s where another node reaches it (witness.h) */
static void look_at_heartbeat(ls_rendezvous *r, ls_rendezvous_peer *p, int64_t now)
{
    const ls_rendezvous_hooks *d = r->hooks;
    int64_t suspect_ns = ls_max_i64(d->suspect_ns, r->heartbeat_ns * 3 / 2);
    /* Without its coordinator a node that cannot succeed it can do nothing but end: it waits
     * longer. */
    int64_t dead_ns = r->args.hosts   ? ls_witness_limit(&p->witness, d->dead_ns, suspect_ns, now)
                      : d->successors ? d->dead_ns
                                      : PATIENT * d->dead_ns;
    int64_t silent_ns = ls_heartbeat_silent(&p->heartbeat, now);
    char text[80];

    if (ls_heartbeat_is_dead(&p->heartbeat, dead_ns, now)) {
        ls_fail(LS_EPEER, "no sign of life for %.1f s%s", (double)silent_ns / 1e9,
                ls_witness_text(&p->witness, now, text, sizeof text));
        ls_rendezvous_lose(r, p, silent_ns);
        return;
    }
    if (silent_ns <= suspect_ns)
        return;
    if (r->args.hosts && ls_witness_is_due(&p->witness, suspect_ns, now))
        ls_rendezvous_ask_about(r, p, now);
    if (!p->heartbeat.suspected) {
        p->heartbeat.suspected = true;
        ls_log(LS_LOG_INFO, "no sign of life of %s for %.1f s",
               r->args.hosts ? p->host : r->address.text, (double)silent_ns / 1e9);
    }
}

/* Those whose turn it is. */
static void beat_slice(ls_rendezvous *r, int64_t away_ns, int64_t now)
{
    for (int i = r->slice; i < r->n_peers; i += r->slices) {
        ls_rendezvous_peer *p = &r->peers[i];
        if (!p->linked || p->phase != JOINED)
            continue;
        if (!r->args.hosts || r->hooks->successors || r->round % r->rarely == 0)
            ls_rendezvous_send(r, p, HEARTBEAT, "", 0);
        if (r->met && away_ns <= 0)
            look_at_heartbeat(r, p, now);
    }
    r->slice = (r->slice + 1) % r->slices;
    r->round += r->slice == 0;
}

/* Give signs of life, and look for those of others. */
void ls_rendezvous_beat(ls_rendezvous *r)
{
    int64_t now = ls_time_now_ns();
    uint64_t times;

    if (r->heartbeat_fd < 0 || read(r->heartbeat_fd, &times, sizeof times) < 0)
        return;
    int64_t away_ns = r->beat_ns ? now - r->beat_ns - 2 * r->heartbeat_ns : 0;
    r->beat_ns = now;
    /* This process did not run for a while: the other nodes were not silent. */
    for (int i = 0; i < r->n_peers && away_ns > 0; i++)
        if (r->peers[i].linked && r->peers[i].phase == JOINED)
            ls_heartbeat_forgive(&r->peers[i].heartbeat, away_ns);
    for (uint64_t i = 0; i < times && i < (uint64_t)r->slices; i++)
        beat_slice(r, away_ns, now);
}

/* Example with 10,000 nodes, heartbeats of 250 ms and dead_ns of 9 s: 5,000 signs a second allow one
 * each 2 s, and a third of dead_ns is 3 s: 2 s it is. The host looks at an eighth of its peers each
 * 250 ms. */
void ls_rendezvous_pace(ls_rendezvous *r, int nodes)
{
    int64_t many_ns =
        ls_min_i64(nodes * (LS_NS_PER_S / SIGNS_PER_S), r->hooks->dead_ns / SIGNS_LEAST);

    r->slices = r->args.hosts && nodes > MANY_PEERS ? SLICES : 1;
    r->rarely = nodes > MANY_PEERS ? PATIENT : 1;
    r->slice = 0;
    r->heartbeat_ns = ls_max_i64(r->hooks->heartbeat_ns, many_ns);
    int64_t every_ns = r->heartbeat_ns / r->slices;
    const struct timespec every = {.tv_sec = every_ns / LS_NS_PER_S,
                                   .tv_nsec = every_ns % LS_NS_PER_S};
    /* Cannot fail: the descriptor and the times are valid. */
    (void)timerfd_settime(r->heartbeat_fd, 0,
                          &(struct itimerspec){.it_value = every, .it_interval = every}, NULL);
}

ls_status ls_rendezvous_attach(ls_rendezvous *r, const ls_rendezvous_hooks *hooks)
{
    ls_status st = LS_OK;

    r->heartbeat_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r->heartbeat_fd < 0)
        return ls_fail_sys(LS_EIO, "cannot make a timer for signs of life");
    LS_TRY(st, ls_rendezvous_watch(r, r->heartbeat_fd, OF_HEARTBEAT), out);
    r->next_node = r->args.nodes;
    r->hooks = hooks; /* the first sign of life is due when the nodes have met */
    if (!r->args.hosts)
        ls_rendezvous_open_probe(r);
out:
    return st;
}

/* A place for a node that comes while the job runs; NULL: there is none. */
ls_rendezvous_peer *ls_rendezvous_new_peer(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers; i++)
        if (!r->peers[i].linked && r->peers[i].phase != GONE_WELL)
            return &r->peers[i];
    if (r->n_peers >= LS_MEMBERS_NODES)
        return NULL;
    if (!ls_growing_array_add((void **)&r->peers, r->n_peers, &r->peers_room, sizeof *r->peers))
        return NULL;
    r->peers[r->n_peers] = (ls_rendezvous_peer){.phase = WAITED};
    return &r->peers[r->n_peers++];
}

bool ls_rendezvous_was_dropped(const ls_rendezvous *r)
{
    return r->dropped;
}

bool ls_rendezvous_did_without(const ls_rendezvous *r)
{
    return r->ended && !r->met;
}

void ls_rendezvous_tell(ls_rendezvous *r, int node, const void *bytes, size_t len)
{
    ls_rendezvous_peer *p = ls_rendezvous_find(r, node);

    if (p)
        ls_rendezvous_send(r, p, MESSAGE, bytes, len);
}

void ls_rendezvous_expel(ls_rendezvous *r, int node, const char *why)
{
    ls_rendezvous_peer *p = ls_rendezvous_find(r, node);

    if (!p)
        return;
    ls_log(LS_LOG_WARN, "node %d (%s) is sent away: %s", node, p->host, why);
    ls_rendezvous_send_text(r, p, LEAVE, why);
    ls_rendezvous_drop(p);
    ls_rendezvous_enter(r, p, LOST);
}

/* A newcomer of a job that runs; it is called when it is needed. */
void ls_rendezvous_admit(ls_rendezvous *r, ls_rendezvous_peer *p)
{
    ls_members_node about = {.ranks = p->ranks};
    char why[256];

    memcpy(about.host, p->host, sizeof about.host);
    memcpy(about.ip, p->ip, sizeof about.ip);
    if (ls_rendezvous_place(r, p, r->next_node) != LS_OK) {
        ls_rendezvous_refuse(r, p, "there is no memory for it");
        return;
    }
    r->next_node++;
    ls_rendezvous_heard(r, p);
    ls_rendezvous_send(r, p, HOLD, "", 0);
    if (!r->hooks->joins(r->hooks->context, p->node, &about, why, sizeof why))
        ls_rendezvous_refuse(r, p, why);
}

/* Its place in the list is for numbers and variables of its ranks; a view has a list of its own. */
void ls_rendezvous_call(ls_rendezvous *r, int node)
{
    ls_rendezvous_peer *p = ls_rendezvous_find(r, node);

    if (!p)
        return;
    if (ls_members_add(&r->members, p->host, p->ip, p->ranks, p->ports) != LS_OK) {
        ls_rendezvous_send_text(r, p, LEAVE, "the job has had too many ranks");
        ls_rendezvous_lose(r, p, 0);
    } else if (ls_rendezvous_send_list(r, p, r->members.nodes - 1) != LS_OK) {
        ls_rendezvous_lose(r, p, 0);
    }
}

/* Nodes that have no part in the job need not be waited for when it is over. */
void ls_rendezvous_dismiss(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers && r->hooks; i++)
        if (r->peers[i].phase == JOINED && r->hooks->idle(r->hooks->context, r->peers[i].node))
            ls_rendezvous_enter(r, &r->peers[i], GONE_WELL);
}
