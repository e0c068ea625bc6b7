/* coordinator_handover.c -- a coordinator's knowledge as bytes.
 *
 *   ls_coordinator_remember, _recall   for its successor on another machine: what cannot be asked
 *                                      for again. Times are written as ages, because each
 *                                      machine's clock begins elsewhere
 *   ls_coordinator_save, _load         for the same program on this machine (coordinator_log.h):
 *                                      all, so that the copy acts the same from then on
 *
 * Example of a time: a host crashed at 1000 s of this clock, which shows 1060 s now. "60 s ago" is
 * written; the successor, whose clock shows 20 s, takes it as -40 s, and forgets it after the same day.
 *
 *   remembered   hosts 2; of each: name, crashes 2, age 8, times 2, still excluded 8, cut off 1
 *                restarts: (node 4, worker 2, restarts 4) ..., ff ff ff ff
 *                views without a step 2, the last error, the error that came twice
 *   saved        the struct itself, its nodes, the members of its view, its hosts, its roster: raw
 *                memory, which only the same program may read (config_digest.h) */
#include "cluster/member/coordinator_impl.h"

#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/wire_codec.h"

enum { HOSTS = 4096 };
static const uint32_t LAST = UINT32_MAX;

/* --- to another machine ----------------------------------------------------------------------- */

/* (node, worker, restarts) of each that was started again, then LAST. */
static void put_restarts(const ls_coordinator *p, ls_str *out)
{
    for (int i = 0; i < p->n_nodes; i++)
        for (int k = 0; k < p->nodes[i].workers; k++) {
            const node *n = &p->nodes[i];
            int restarts = n->state == CALLED ? p->view.member[n->first + k].restarts : 0;
            if (restarts == 0)
                continue;
            ls_wire_codec_put(out, (uint64_t)n->id, 4);
            ls_wire_codec_put(out, (uint64_t)k, 2);
            ls_wire_codec_put(out, (uint64_t)restarts, 4);
        }
    ls_wire_codec_put(out, LAST, 4);
}

static uint64_t ms_of(int64_t ns)
{
    return ns > 0 ? (uint64_t)(ns / LS_NS_PER_MS) : 0;
}

void ls_coordinator_remember(const ls_coordinator *coordinator, int64_t now, ls_str *out)
{
    const ls_coordinator *p = coordinator;
    int hosts = p->n_hosts < HOSTS ? p->n_hosts : HOSTS;

    ls_wire_codec_put(out, (uint64_t)hosts, 2);
    for (int i = 0; i < hosts; i++) {
        const host *h = &p->hosts[i];
        ls_wire_codec_put_text(out, h->name);
        ls_wire_codec_put(out, (uint64_t)h->crashes, 2);
        ls_wire_codec_put(out, ms_of(now - h->crashed_ns), 8);
        ls_wire_codec_put(out, (uint64_t)h->times, 2);
        ls_wire_codec_put(out, ms_of(h->excluded_ns - now), 8);
        ls_wire_codec_put(out, h->cut, 1);
    }
    put_restarts(p, out);
    ls_wire_codec_put(out, (uint64_t)p->view.stepless, 2);
    ls_wire_codec_put_line(out, p->view.error, sizeof p->view.error);
    ls_wire_codec_put_line(out, p->view.again, sizeof p->view.again);
}

/* A quarter of the range: sums of two such times do not overflow either. */
static int64_t get_ms(ls_wire_codec *in)
{
    uint64_t ms = ls_wire_codec_get(in, 8);

    in->bad |= ms > INT64_MAX / 4 / LS_NS_PER_MS;
    return in->bad ? 0 : (int64_t)ms * LS_NS_PER_MS;
}

static ls_status get_hosts(ls_coordinator *p, ls_wire_codec *in, int64_t now)
{
    int n = (int)ls_wire_codec_get(in, 2);
    host *hosts = n <= HOSTS ? ls_mem_array((size_t)n + 1, sizeof *hosts) : NULL;

    if (!hosts)
        return ls_fail(LS_EDATA, "what the coordinator before knew of %d hosts is too much", n);
    for (int i = 0; i < n && !in->bad; i++) {
        ls_wire_codec_get_text(in, hosts[i].name, sizeof hosts[i].name);
        hosts[i].crashes = (int)ls_wire_codec_get(in, 2);
        hosts[i].crashed_ns = now - get_ms(in);
        hosts[i].times = (int)ls_wire_codec_get(in, 2);
        int64_t left_ns = get_ms(in);
        hosts[i].excluded_ns = left_ns ? now + left_ns : 0;
        hosts[i].cut = ls_wire_codec_get(in, 1) != 0;
    }
    ls_mem_free(p->hosts);
    p->hosts = hosts;
    p->n_hosts = in->bad ? 0 : n;
    return LS_OK;
}

/* Of nodes that are gone nothing is left to be counted. */
static void get_restarts(ls_coordinator *p, ls_wire_codec *in)
{
    uint64_t id;

    while ((id = ls_wire_codec_get(in, 4)) != LAST && !in->bad) {
        const node *n = ls_coordinator_find(p, (int)(id & INT32_MAX));
        int worker = (int)ls_wire_codec_get(in, 2),
            restarts = (int)(ls_wire_codec_get(in, 4) & INT32_MAX);
        if (n && n->state == CALLED && worker < n->workers && !in->bad)
            p->view.member[n->first + worker].restarts = restarts;
    }
}

ls_status ls_coordinator_recall(ls_coordinator *coordinator, const void *bytes, size_t len,
                                int64_t now)
{
    ls_coordinator *p = coordinator;
    ls_wire_codec in = {.at = bytes, .left = len};
    ls_status st;

    LS_TRY(st, get_hosts(p, &in, now), out);
    get_restarts(p, &in);
    p->view.stepless = (int)ls_wire_codec_get(&in, 2);
    ls_wire_codec_get_text(&in, p->view.error, sizeof p->view.error);
    ls_wire_codec_get_text(&in, p->view.again, sizeof p->view.again);
    if (!ls_wire_codec_done(&in))
        st = ls_fail(LS_EDATA, "what the coordinator before knew is damaged");
out:
    return st;
}

/* --- to the same machine ---------------------------------------------------------------------- */

void ls_coordinator_save(const ls_coordinator *coordinator, ls_str *out)
{
    const ls_coordinator *p = coordinator;

    ls_str_append_bytes(out, p, sizeof *p);
    ls_str_append_bytes(out, p->nodes, (size_t)p->n_nodes * sizeof *p->nodes);
    ls_str_append_bytes(out, p->view.member, (size_t)p->view.workers * sizeof *p->view.member);
    ls_str_append_bytes(out, p->hosts, (size_t)p->n_hosts * sizeof *p->hosts);
    ls_str_append_bytes(out, p->roster.bytes.p, p->roster.bytes.len);
}

/* Into a struct beside the old one, so that damage, or no memory, leaves the old one as it was. Pointers
 * and calls back in the bytes are those of a process that is gone: all of them are set anew. */
ls_status ls_coordinator_load(ls_coordinator *coordinator, const void *bytes, size_t len)
{
    ls_coordinator *p = coordinator, as = {.n_nodes = 0};
    ls_wire_codec in = {.at = bytes, .left = len};
    const void *head = ls_wire_codec_get_bytes(&in, sizeof as);

    if (head)
        memcpy(&as, head, sizeof as);
    in.bad |= as.n_nodes < 0 || as.view.workers < 0 || as.n_hosts < 0;
    const size_t nodes_len = (size_t)as.n_nodes * sizeof *as.nodes,
                 members_len = (size_t)as.view.workers * sizeof *as.view.member,
                 hosts_len = (size_t)as.n_hosts * sizeof *as.hosts;
    const void *from_nodes = ls_wire_codec_get_bytes(&in, nodes_len);
    const void *members = ls_wire_codec_get_bytes(&in, members_len);
    const void *from_hosts = ls_wire_codec_get_bytes(&in, hosts_len);
    if (in.bad || in.left != as.roster.bytes.len)
        return ls_fail(LS_EDATA, "the coordinator's log is damaged");
    as.args = p->args;
    as.room = as.n_nodes + 8;
    as.view.room = 0;
    as.view.member = NULL;
    as.nodes = ls_mem_array((size_t)as.room, sizeof *as.nodes);
    as.hosts = ls_mem_array((size_t)as.n_hosts + 1, sizeof *as.hosts);
    ls_str_init(&as.roster.bytes);
    ls_str_append_bytes(&as.roster.bytes, in.at, in.left);
    if (!as.nodes || !as.hosts || as.roster.bytes.failed ||
        ls_view_reserve(&as.view, as.view.workers + as.spare_workers) != LS_OK) {
        ls_mem_free(as.nodes);
        ls_mem_free(as.hosts);
        ls_str_release(&as.roster.bytes);
        return ls_fail(LS_ENOMEM, "no memory for what the coordinator's log has");
    }
    memcpy(as.nodes, from_nodes, nodes_len);
    memcpy(as.view.member, members, members_len);
    memcpy(as.hosts, from_hosts, hosts_len);
    ls_view_release(&p->view);
    ls_roster_release(&p->roster);
    ls_mem_free(p->nodes);
    ls_mem_free(p->hosts);
    *p = as;
    return LS_OK;
}
