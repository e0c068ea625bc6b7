/* probe_messages.c -- other nodes are asked about a silent one: the messages of witness.h over a
 * rendezvous.
 *
 *      host                       node 3                  node 7, silent
 *       |  <- REACH: my port ----- |                        |
 *       |  -- PROBE: 7, where ---> |  ----- datagram -----> |
 *       |                          |  <---- datagram ------ |
 *       |  <- PROBED: 7, yes ----- |
 *
 * Nodes that were heard lately are asked, others each time, so that one with a bad network of its
 * own does not decide alone. */
#include "cluster/join/rendezvous_impl.h"

#include "base/log.h"
#include "base/time.h"
#include "cluster/member/wire_codec.h"
#include "net/wire.h"

enum { LOOKED_AT = 256 }; /* nodes that are looked at to find one to ask */

typedef ls_rendezvous_peer peer;

void ls_rendezvous_heard(ls_rendezvous *r, peer *p)
{
    ls_heartbeat_heard(&p->heartbeat, r->heartbeat_ns * (r->args.hosts ? 1 : r->rarely),
                       ls_time_now_ns());
    ls_witness_heard(&p->witness);
}

void ls_rendezvous_open_probe(ls_rendezvous *r)
{
    if (ls_probe_open(&r->probe, r->ip, r->args.secret) != LS_OK ||
        ls_rendezvous_watch(r, ls_probe_fd(r->probe), OF_PROBE) != LS_OK) {
        ls_log(LS_LOG_INFO, "other nodes cannot ask for this one: %s", ls_err_last()->text);
        ls_probe_close(r->probe);
        r->probe = NULL;
        return;
    }
    ls_rendezvous_say_probe(r);
}

void ls_rendezvous_say_probe(ls_rendezvous *r)
{
    uint16_t port = r->probe ? ls_probe_port(r->probe) : 0;
    const uint8_t bytes[2] = {(uint8_t)port, (uint8_t)(port >> 8)};

    if (r->peers[0].linked && r->probe)
        ls_rendezvous_send(r, &r->peers[0], REACH, bytes, sizeof bytes);
}

/* Whether one that is silent can be asked about here. */
static bool can_tell(const ls_rendezvous *r, const peer *p, int64_t now)
{
    return p->linked && p->phase == JOINED && p->probe_port != 0 &&
           ls_heartbeat_silent(&p->heartbeat, now) <= 2 * r->heartbeat_ns;
}

void ls_rendezvous_ask_about(ls_rendezvous *r, peer *p, int64_t now)
{
    int asked = 0, place = (int)(p - r->peers), turn = p->witness.yes + p->witness.no;
    ls_str bytes;

    ls_witness_asked(&p->witness, now);
    if (p->probe_port == 0)
        return;
    ls_str_init(&bytes);
    ls_wire_codec_put(&bytes, (uint64_t)p->node, 4);
    ls_wire_codec_put(&bytes, p->probe_port, 2);
    ls_wire_codec_put_text(&bytes, p->ip);
    for (int i = 1; i < r->n_peers && i < LOOKED_AT && asked < LS_WITNESS_ASKED; i++) {
        peer *other = &r->peers[(place + turn + i) % r->n_peers];
        if (other == p || !can_tell(r, other, now) || bytes.failed)
            continue;
        ls_rendezvous_send(r, other, PROBE, bytes.p, bytes.len);
        asked++;
    }
    ls_str_release(&bytes);
}

static void take_question(ls_rendezvous *r, ls_wire_codec *in)
{
    char ip[LS_MEMBERS_TEXT];
    uint32_t node = (uint32_t)ls_wire_codec_get(in, 4);
    uint16_t port = (uint16_t)ls_wire_codec_get(in, 2);

    ls_wire_codec_get_text(in, ip, sizeof ip);
    if (!ls_wire_codec_done(in) || !r->probe || !r->hooks)
        return;
    /* A node that cannot ask does not know. */
    if (ls_probe_ask(r->probe, ip, port, node, ls_time_now_ns() + r->hooks->suspect_ns) != LS_OK)
        ls_log(LS_LOG_INFO, "cannot ask for node %u: %s", node, ls_err_last()->text);
}

void ls_rendezvous_take_probe(ls_rendezvous *r, peer *p, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};

    if (!r->args.hosts && frame->type == PROBE) {
        take_question(r, &in);
    } else if (r->args.hosts && frame->type == REACH) {
        p->probe_port = (uint16_t)ls_wire_codec_get(&in, 2);
    } else if (r->args.hosts && frame->type == PROBED) {
        int node = (int)ls_wire_codec_get(&in, 4);
        bool reached = ls_wire_codec_get(&in, 1) != 0;
        peer *about = ls_wire_codec_done(&in) ? ls_rendezvous_find(r, node) : NULL;
        if (about)
            ls_witness_says(&about->witness, reached, ls_time_now_ns());
    }
}

void ls_rendezvous_attend_probe(ls_rendezvous *r)
{
    bool reached;
    uint32_t node;

    while (r->probe && ls_probe_next(r->probe, ls_time_now_ns(), &node, &reached)) {
        uint8_t bytes[5] = {[4] = reached};
        ls_wire_put32(bytes, node);
        if (r->peers[0].linked)
            ls_rendezvous_send(r, &r->peers[0], PROBED, bytes, sizeof bytes);
    }
}
