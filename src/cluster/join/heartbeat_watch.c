/* heartbeat_watch.c -- the watchdog of nodes: sends heartbeats, and declares a node dead whose own do
 * not come. heartbeat.h has the limit, witness.h the second opinion of other nodes.
 *
 *     ls_rendezvous_pace()   how often, by the number of nodes
 *     ls_rendezvous_beat()   each time: send heartbeats; look_at_heartbeat() for each peer
 *     ls_rendezvous_lose()   (late_join.c) a peer is dead: the hooks of recover_cluster.c hear it
 *
 * A hang of a rank whose node is alive is found elsewhere: comm/watchdog.c, cluster/member/worker_channel.h. */
#include "cluster/join/rendezvous_impl.h"

#include <sys/timerfd.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"

enum { PATIENT = 4 };                  /* times that a coordinator may be silent longer */
enum { MANY_PEERS = 256, SLICES = 8 }; /* more peers than this are looked at in SLICES turns */

/* In a large job each node sends fewer heartbeats: all nodes together at most HEARTBEATS_PER_S a second
 * to the coordinator, but each at least HEARTBEATS_LEAST within dead_ns. The coordinator itself sends
 * even fewer where nodes wait PATIENT times longer for it, because none of them can succeed it. */
enum { HEARTBEATS_PER_S = 5000, HEARTBEATS_LEAST = 3 };

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

/* Send heartbeats, and look for those of others. */
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

/* Example with 10,000 nodes, heartbeats of 250 ms and dead_ns of 9 s: 5,000 a second allow one of each
 * node in 2 s, and a third of dead_ns is 3 s: 2 s it is. The host looks at an eighth of its peers each
 * 250 ms. */
void ls_rendezvous_pace(ls_rendezvous *r, int nodes)
{
    int64_t many_ns =
        ls_min_i64(nodes * (LS_NS_PER_S / HEARTBEATS_PER_S), r->hooks->dead_ns / HEARTBEATS_LEAST);

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
