/* member_message.c -- messages as bytes: one row of numbers for each kind, and of a view two parts,
 * because the second is made once for all nodes. Numbers that may be negative are written at
 * full width. */
#include "cluster/member/member_message.h"

#include "cluster/member/wire_codec.h"

void ls_member_message_release(ls_member_message *message)
{
    ls_members_release(&message->members);
}

#define NUMBER(member, bytes) LS_WIRE_NUMBER(ls_member_message, member, bytes)
#define TEXT(member) LS_WIRE_TEXT(ls_member_message, member)
#define FIELDS(list)         \
    {                        \
        list, LS_COUNT(list) \
    }

static const ls_wire_field report[] = {
    TEXT(why),
    NUMBER(report.have, 8),
    NUMBER(report.reached, 8),
    NUMBER(report.met, 8),
    NUMBER(report.port, 2),
    NUMBER(report.serial, 4),
    NUMBER(report.part, 2),
    NUMBER(report.unit, 2),
    NUMBER(report.unreached, 4),
};
static const ls_wire_field ended[] = {
    TEXT(why),        NUMBER(signal, 1),      NUMBER(code, 2),   NUMBER(asked, 1),
    NUMBER(error, 1), NUMBER(record.code, 1), TEXT(record.text), TEXT(record.hint),
};
static const ls_wire_field revoke[] = {TEXT(why)};
static const ls_wire_field verdict[] = {NUMBER(verdict, 1)};
static const ls_wire_field resume[] = {NUMBER(past.generation, 8), NUMBER(past.begun, 1),
                                       NUMBER(past.reached, 8), NUMBER(stood, 4), NUMBER(out, 1)};

/* The part of a view that is the same for all nodes, before its list of members. */
static const ls_wire_field shared[] = {
    NUMBER(view.plan.generation, 8), NUMBER(view.plan.reached, 8),   NUMBER(view.plan.base, 8),
    NUMBER(view.plan.source, 4),     NUMBER(view.plan.met, 8),       NUMBER(view.plan.ranks, 4),
    NUMBER(view.plan.restarted, 4),  NUMBER(view.plan.lost, 4),      NUMBER(view.plan.joined, 4),
    NUMBER(view.plan.spread, 1),     NUMBER(view.plan.first_new, 1), NUMBER(view.begun, 1),
    NUMBER(view.lost_ns, 8),         NUMBER(view.noticed_ns, 8),     TEXT(view.cause),
};

/* The fields of each kind; READY, LEFT and REGROUP have none, a VIEW is written further below. */
static const struct {
    const ls_wire_field *list;
    size_t n;
} fields[LS_MEMBER_MESSAGE_RESUME + 1] = {
    [LS_MEMBER_MESSAGE_REPORT] = FIELDS(report), [LS_MEMBER_MESSAGE_ENDED] = FIELDS(ended),
    [LS_MEMBER_MESSAGE_REVOKE] = FIELDS(revoke), [LS_MEMBER_MESSAGE_VERDICT] = FIELDS(verdict),
    [LS_MEMBER_MESSAGE_RESUME] = FIELDS(resume),
};

/* --- views ------------------------------------------------------------------------------------ */

/* What is each node's own: its workers' ranks, and names that it lacks. */
static void put_own(ls_str *out, const ls_member_message *w)
{
    size_t known = w->known <= w->roster->bytes.len ? w->known : 0;

    ls_wire_codec_put(out, (uint64_t)w->workers, 2);
    for (int i = 0; i < w->workers; i++) {
        ls_wire_codec_put(out, (uint64_t)(w->rank[i] + 1), 4);
        ls_wire_codec_put(out, w->serial[i], 4);
    }
    ls_wire_codec_put(out, known, 4);
    ls_wire_codec_put(out, w->roster->bytes.len - known, 4);
    ls_str_append_bytes(out, w->roster->bytes.p + known, w->roster->bytes.len - known);
}

/* Runs of nodes whose numbers follow each other and that have as many ranks: how many numbers lie
 * between this run and the one before, nodes, ranks of each. Then the port of each rank. */
static void put_list(ls_str *out, const ls_members *m)
{
    int next = 0;

    ls_wire_codec_put(out, (uint64_t)m->nodes, 4);
    for (int i = 0, n; i < m->nodes; i += n) {
        const ls_members_node *first = &m->node[i];
        for (n = 1; i + n < m->nodes && first[n].entry == first->entry + n &&
                    first[n].ranks == first->ranks;)
            n++;
        ls_wire_codec_put_count(out, (uint32_t)(first->entry - next));
        ls_wire_codec_put_count(out, (uint32_t)n);
        ls_wire_codec_put_count(out, (uint32_t)first->ranks);
        next = first->entry + n;
    }
    for (int r = 0; r < m->ranks; r++)
        ls_wire_codec_put(out, m->ports[r], 2);
}

static void get_own(ls_wire_codec *in, ls_member_message *w)
{
    w->workers = (int)ls_wire_codec_get(in, 2);
    in->bad |= w->workers > LS_MEMBER_MESSAGE_WORKERS;
    for (int i = 0; i < w->workers && !in->bad; i++) {
        uint64_t rank = ls_wire_codec_get(in, 4);
        in->bad |= rank > LS_MEMBERS_RANKS;
        w->rank[i] = in->bad ? -1 : (int32_t)rank - 1;
        w->serial[i] = (uint32_t)ls_wire_codec_get(in, 4);
    }
    w->known = (size_t)ls_wire_codec_get(in, 4);
    size_t names = (size_t)ls_wire_codec_get(in, 4);
    w->names = (ls_wire_codec){.at = ls_wire_codec_get_bytes(in, names), .left = names};
}

/* One run of the list. */
typedef struct run {
    uint64_t first, nodes, ranks; /* number of the first node; ranks of each */
} run;

/* The next run behind this one. Numbers are sums of what came from the network, so each is compared
 * with what is left before it is used: nodes 3 x ranks 8 of 20 ranks left is damage. */
static run get_run(ls_wire_codec *in, const run *before, uint64_t nodes_left, uint64_t ranks_left)
{
    run r = {.first = before->first + before->nodes + ls_wire_codec_get_count(in)};

    r.nodes = ls_wire_codec_get_count(in);
    r.ranks = ls_wire_codec_get_count(in);
    in->bad |= r.nodes < 1 || r.nodes > nodes_left || r.ranks < 1 ||
               r.nodes * r.ranks > ranks_left || r.first > INT32_MAX / 2;
    return in->bad ? (run){.first = 0} : r;
}

/* Whether the list is one of as many ranks as the view has. */
static void check_list(ls_wire_codec *in, uint64_t ranks)
{
    uint64_t nodes = ls_wire_codec_get(in, 4), left = ranks;
    run r = {.first = 0};

    in->bad |= nodes < 1 || nodes > LS_MEMBERS_NODES;
    while (nodes > 0 && !in->bad) {
        r = get_run(in, &r, nodes, left);
        nodes -= r.nodes;
        left -= r.nodes * r.ranks;
    }
    in->bad |= left != 0 || in->left != 2 * ranks;
}

static void get_view(ls_wire_codec *in, ls_member_message *w)
{
    const ls_view_plan *plan = &w->view.plan;

    get_own(in, w);
    ls_wire_codec_get_fields(in, w, shared, LS_COUNT(shared));
    in->bad |= plan->ranks < 1 || plan->ranks > LS_MEMBERS_RANKS || plan->source < -1 ||
               plan->source >= plan->ranks;
    for (int i = 0; i < w->workers && !in->bad; i++)
        in->bad |= w->rank[i] >= plan->ranks;
    w->list = *in;
    check_list(in, (uint64_t)plan->ranks);
    (void)ls_wire_codec_get_bytes(in, in->left); /* the ports, which unpack() reads */
}

/* Decoding has checked the list without making it: of 10,000 messages the agent needs the list of the
 * newest one only. Here names come from the roster by their numbers:
 *
 *     roster   0 h0   1 h1   2 h2   3 h3        list   first 0, 1 node; first 2, 2 nodes
 *     members  h0, h2, h3                       (h1 is gone, and keeps its number) */
ls_status ls_member_message_unpack(ls_member_message *message, ls_roster *roster)
{
    ls_member_message *w = message;
    ls_members *m = &w->members;
    ls_wire_codec in = w->list;
    run r = {.first = 0};
    uint64_t at = 0, left, nodes;
    ls_status st = LS_OK;

    if (w->kind != LS_MEMBER_MESSAGE_VIEW || !in.at)
        return LS_OK;
    if (w->names.left > 0)
        LS_TRY(st, ls_roster_learn(roster, w->known, w->names.at, w->names.left), out);
    ls_roster_walk walk = {
        .in = {.at = (const uint8_t *)roster->bytes.p, .left = roster->bytes.len}};
    m->generation = w->view.plan.generation;
    left = (uint64_t)w->view.plan.ranks;
    nodes = ls_wire_codec_get(&in, 4);
    while (nodes > 0 && !in.bad) {
        r = get_run(&in, &r, nodes, left);
        nodes -= r.nodes;
        left -= r.nodes * r.ranks;
        for (; at < r.first + r.nodes && !in.bad; at++) {
            in.bad |= !ls_roster_next(&walk);
            if (in.bad || at < r.first)
                continue;
            LS_TRY(st, ls_members_add(m, walk.host, walk.ip, (int)r.ranks, NULL), out);
            m->node[m->nodes - 1].entry = (int)at;
        }
    }
    for (int i = 0; i < m->ranks && !in.bad; i++)
        m->ports[i] = (uint16_t)ls_wire_codec_get(&in, 2);
    if (in.bad)
        st = ls_fail(LS_EDATA, "a view is of nodes that nobody has named");
    w->list = w->names = (ls_wire_codec){.at = NULL};
out:
    return st;
}

/* --- all -------------------------------------------------------------------------------------- */

void ls_member_message_encode(const ls_member_message *message, ls_str *out)
{
    ls_member_message_encode_own(message, out);
    ls_member_message_encode_shared(message, out);
}

void ls_member_message_encode_shared(const ls_member_message *message, ls_str *out)
{
    if (message->kind != LS_MEMBER_MESSAGE_VIEW)
        return;
    ls_wire_codec_put_fields(out, message, shared, LS_COUNT(shared));
    put_list(out, &message->members);
}

void ls_member_message_encode_own(const ls_member_message *message, ls_str *out)
{
    ls_wire_codec_put(out, (uint64_t)message->kind, 1);
    ls_wire_codec_put(out, (uint64_t)message->worker, 2);
    ls_wire_codec_put_fields(out, message, fields[message->kind].list, fields[message->kind].n);
    if (message->kind == LS_MEMBER_MESSAGE_REPORT)
        ls_config_digest_encode(&message->config_digest, out);
    if (message->kind == LS_MEMBER_MESSAGE_VIEW)
        put_own(out, message);
}

/* What the rows of the table cannot say: the values that a field may have. */
static bool in_range(const ls_member_message *w)
{
    return w->report.unreached >= 0 && w->report.unreached <= LS_MEMBERS_RANKS &&
           w->record.code <= LS_EINTR && w->code <= 255 && w->verdict <= LS_VIEW_DROP &&
           w->stood >= -1 && w->stood < LS_MEMBERS_RANKS;
}

ls_status ls_member_message_decode(ls_member_message *message, const void *bytes, size_t len)
{
    ls_member_message *w = message;
    ls_wire_codec in = {.at = bytes, .left = len};

    *w = (ls_member_message){.kind = (ls_member_message_kind)ls_wire_codec_get(&in, 1),
                             .record = {.file = ""}};
    w->worker = (int)ls_wire_codec_get(&in, 2);
    in.bad |= w->kind < LS_MEMBER_MESSAGE_REPORT || w->kind > LS_MEMBER_MESSAGE_RESUME ||
              w->worker >= LS_MEMBER_MESSAGE_WORKERS;
    if (!in.bad)
        ls_wire_codec_get_fields(&in, w, fields[w->kind].list, fields[w->kind].n);
    in.bad |= !in_range(w);
    if (w->kind == LS_MEMBER_MESSAGE_REPORT)
        ls_config_digest_decode(&w->config_digest, &in);
    if (w->kind == LS_MEMBER_MESSAGE_VIEW)
        get_view(&in, w);
    return ls_wire_codec_done(&in) ? LS_OK
                                   : ls_fail(LS_EDATA, "a message between agents is damaged");
}
