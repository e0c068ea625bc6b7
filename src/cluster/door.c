/* door.c -- the connections of a job that heals: who comes later, who goes away, signs of life.
 *
 * What follows from that is decided behind the door (league.h, parish.h). */
#include "cluster/rendezvous_impl.h"

#include <sys/timerfd.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/parcel.h"

enum { PATIENT = 4 }; /* times that a coordinator may be silent longer */

static ls_rendezvous_peer *find_peer(ls_rendezvous *r, int node)
{
    if (!r->args.hosts)
        return r->peers[0].linked ? &r->peers[0] : NULL;
    for (int i = 0; i < r->n_peers; i++)
        if (r->peers[i].linked && r->peers[i].phase == JOINED && r->peers[i].node == node)
            return &r->peers[i];
    return NULL;
}

/* A peer went away, or is silent: the thread's last record says why. */
void ls_rendezvous_lose(ls_rendezvous *r, ls_rendezvous_peer *p, int64_t silent_ns)
{
    char why[640];
    int node = p->node;

    if (r->door && r->door->orphaned && !r->args.hosts && !r->failed && r->met) {
        snprintf(why, sizeof why, "%.600s", ls_err_last()->text);
        ls_rendezvous_drop(p);
        p->phase = LOST;
        r->door->orphaned(r->door->context, why, silent_ns);
        return;
    }
    if (!r->door || !r->args.hosts) {
        r->dropped = !r->args.hosts && !r->failed;
        ls_rendezvous_decide_lost(r, p);
        ls_rendezvous_drop(p);
        p->phase = LOST;
        return;
    }
    snprintf(why, sizeof why, "node %d (%s) was lost: %.300s", node, p->host, ls_err_last()->text);
    ls_rendezvous_drop(p);
    p->phase = LOST;
    r->door->lost(r->door->context, node, why, silent_ns);
}

static void look_at_pulse(ls_rendezvous *r, ls_rendezvous_peer *p, int64_t now)
{
    const ls_rendezvous_door *d = r->door;
    /* Without its coordinator a node that cannot succeed it can do nothing but end: it waits
     * longer. */
    int64_t dead_ns = r->args.hosts || d->heirs ? d->dead_ns : PATIENT * d->dead_ns;
    int64_t silent_ns = ls_pulse_silent(&p->pulse, now);

    if (ls_pulse_is_dead(&p->pulse, dead_ns, now)) {
        ls_fail(LS_EPEER, "no sign of life for %.1f s", (double)silent_ns / 1e9);
        ls_rendezvous_lose(r, p, silent_ns);
    } else if (silent_ns > d->suspect_ns && !p->pulse.suspected) {
        p->pulse.suspected = true;
        ls_log(LS_LOG_INFO, "no sign of life of %s for %.1f s",
               r->args.hosts ? p->host : r->address.text, (double)silent_ns / 1e9);
    }
}

/* Give signs of life, and look for those of others. */
void ls_rendezvous_beat(ls_rendezvous *r)
{
    int64_t now = ls_time_now_ns();
    uint64_t times;

    if (r->pulse_fd < 0 || read(r->pulse_fd, &times, sizeof times) < 0)
        return;
    int64_t away_ns = r->beat_ns ? now - r->beat_ns - 2 * r->door->pulse_ns : 0;
    r->beat_ns = now;
    for (int i = 0; i < r->n_peers; i++) {
        ls_rendezvous_peer *p = &r->peers[i];
        if (!p->linked || p->phase != JOINED)
            continue;
        (void)ls_frame_send(&p->link, PULSE, "", 0); /* LOST is seen */
        if (away_ns > 0) /* this process had no time to listen: that is nobody's silence */
            ls_pulse_forgive(&p->pulse, away_ns);
        else if (r->met)
            look_at_pulse(r, p, now);
    }
}

ls_status ls_rendezvous_attach(ls_rendezvous *r, const ls_rendezvous_door *door)
{
    const struct timespec every = {.tv_sec = door->pulse_ns / LS_NS_PER_S,
                                   .tv_nsec = door->pulse_ns % LS_NS_PER_S};
    ls_status st = LS_OK;

    r->pulse_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r->pulse_fd < 0 ||
        timerfd_settime(r->pulse_fd, 0,
                        &(struct itimerspec){.it_value = every, .it_interval = every}, NULL) != 0)
        return ls_fail_sys(LS_EIO, "cannot make a timer for signs of life");
    LS_TRY(st, ls_rendezvous_watch(r, r->pulse_fd), out);
    /* Room for newcomers, and for who may have some one day. */
    ls_rendezvous_peer *peers = ls_mem_array(LS_MEMBERS_NODES, sizeof *peers);
    LS_TRY(st, peers ? LS_OK : LS_ENOMEM, out);
    memcpy(peers, r->peers, (size_t)r->n_peers * sizeof *peers);
    ls_mem_free(r->peers);
    r->peers = peers;
    r->next_node = r->args.nodes;
    r->door = door;
out:
    return st;
}

/* A place for somebody who comes when the job runs; NULL: there is none. */
ls_rendezvous_peer *ls_rendezvous_new_peer(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers; i++)
        if (!r->peers[i].linked && r->peers[i].phase != GONE_WELL)
            return &r->peers[i];
    return r->n_peers < LS_MEMBERS_NODES ? &r->peers[r->n_peers++] : NULL;
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
    ls_rendezvous_peer *p = find_peer(r, node);

    if (p)
        (void)ls_frame_send(&p->link, WORD, bytes, len); /* LOST is seen */
}

void ls_rendezvous_expel(ls_rendezvous *r, int node, const char *why)
{
    ls_rendezvous_peer *p = find_peer(r, node);

    if (!p)
        return;
    ls_log(LS_LOG_WARN, "node %d (%s) is sent away: %s", node, p->host, why);
    ls_rendezvous_send_text(p, LEAVE, why);
    ls_rendezvous_drop(p);
    p->phase = LOST;
}

/* A newcomer of a job that runs; it is called when it is needed. */
void ls_rendezvous_admit(ls_rendezvous *r, ls_rendezvous_peer *p)
{
    ls_members_node about = {.ranks = p->ranks};
    char why[256];

    memcpy(about.host, p->host, sizeof about.host);
    memcpy(about.ip, p->ip, sizeof about.ip);
    p->node = r->next_node++;
    ls_pulse_heard(&p->pulse, r->door->pulse_ns, ls_time_now_ns());
    (void)ls_frame_send(&p->link, HOLD, "", 0); /* LOST is seen */
    if (!r->door->joins(r->door->context, p->node, &about, why, sizeof why))
        ls_rendezvous_refuse(r, p, why);
}

/* Its place in the list is for numbers and variables of its ranks; a view has a list of its own. */
void ls_rendezvous_call(ls_rendezvous *r, int node)
{
    ls_rendezvous_peer *p = find_peer(r, node);
    ls_str bytes;

    if (!p)
        return;
    ls_str_init(&bytes);
    if (ls_members_add(&r->members, p->host, p->ip, p->ranks, p->ports) != LS_OK) {
        ls_rendezvous_send_text(p, LEAVE, "the job has had too many ranks");
        ls_rendezvous_lose(r, p, 0);
    } else {
        ls_parcel_put(&bytes, (uint64_t)(r->members.nodes - 1), 2);
        ls_members_encode(&r->members, &bytes);
        if (!bytes.failed)
            (void)ls_frame_send(&p->link, VIEW, bytes.p, bytes.len); /* LOST is seen */
    }
    ls_str_release(&bytes);
}

void ls_rendezvous_stop(ls_rendezvous *r, int code, const ls_err_record *why)
{
    ls_rendezvous_decide(r, code, why, false);
}

/* Nodes that have no part in the job need not be waited for when it is over. */
void ls_rendezvous_dismiss(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers && r->door; i++)
        if (r->peers[i].phase == JOINED && r->door->idle(r->door->context, r->peers[i].node))
            r->peers[i].phase = GONE_WELL;
}
