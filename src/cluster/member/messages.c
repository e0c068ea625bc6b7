/* messages.c -- messages as bytes: one row of numbers for each kind, and of a view two parts,
 * because the second is made once for all nodes. Numbers that may be negative are written as
 * their 8 bytes. */
#include "cluster/member/messages.h"

#include "cluster/member/wire_codec.h"

void ls_messages_release(ls_messages *message)
{
    ls_members_release(&message->members);
}

static void put_text(ls_str *out, const char *text)
{
    ls_wire_codec_put_line(out, text, LS_MESSAGES_TEXT);
}

static void put_report(ls_str *out, const ls_view_report *r)
{
    ls_wire_codec_put(out, (uint64_t)r->have, 8);
    ls_wire_codec_put(out, (uint64_t)r->reached, 8);
    ls_wire_codec_put(out, (uint64_t)r->met, 8);
    ls_wire_codec_put(out, (uint64_t)r->port, 2);
    ls_wire_codec_put(out, r->serial, 4);
    ls_wire_codec_put(out, (uint64_t)r->part, 2);
    ls_wire_codec_put(out, (uint64_t)r->unit, 2);
    ls_wire_codec_put(out, (uint64_t)r->unreached, 4);
}

static void get_report(ls_wire_codec *in, ls_view_report *r)
{
    r->have = (int64_t)ls_wire_codec_get(in, 8);
    r->reached = (int64_t)ls_wire_codec_get(in, 8);
    r->met = (int64_t)ls_wire_codec_get(in, 8);
    r->port = (int32_t)ls_wire_codec_get(in, 2);
    r->serial = (uint32_t)ls_wire_codec_get(in, 4);
    r->part = (int32_t)ls_wire_codec_get(in, 2);
    r->unit = (int32_t)ls_wire_codec_get(in, 2);
    uint64_t unreached = ls_wire_codec_get(in, 4);
    in->bad |= unreached > LS_MEMBERS_RANKS;
    r->unreached = (int32_t)unreached;
}

static void put_end(ls_str *out, const ls_messages *w)
{
    ls_wire_codec_put(out, (uint64_t)w->signal, 1);
    ls_wire_codec_put(out, (uint64_t)w->code, 2);
    ls_wire_codec_put(out, w->asked, 1);
    ls_wire_codec_put(out, w->error, 1);
    ls_wire_codec_put(out, (uint64_t)w->record.code, 1);
    put_text(out, w->record.text);
    put_text(out, w->record.hint);
}

static void get_end(ls_wire_codec *in, ls_messages *w)
{
    w->signal = (int)ls_wire_codec_get(in, 1);
    w->code = (int)ls_wire_codec_get(in, 2);
    w->asked = ls_wire_codec_get(in, 1) != 0;
    w->error = ls_wire_codec_get(in, 1) != 0;
    uint64_t code = ls_wire_codec_get(in, 1);
    w->record = (ls_err_record){.code = (ls_status)code, .file = ""};
    ls_wire_codec_get_text(in, w->record.text, sizeof w->record.text);
    ls_wire_codec_get_text(in, w->record.hint, sizeof w->record.hint);
    in->bad |= code > LS_EINTR || w->code > 255;
}

/* --- views ------------------------------------------------------------------------------------ */

/* What is each node's own: its workers' ranks, and names that it lacks. */
static void put_own(ls_str *out, const ls_messages *w)
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

static void put_view(ls_str *out, const ls_messages *w)
{
    const ls_messages_view *v = &w->view;
    const int64_t numbers[] = {v->plan.reached, v->plan.base,      v->plan.source, v->plan.met,
                               v->plan.ranks,   v->plan.restarted, v->plan.lost,   v->plan.joined,
                               v->lost_ns,      v->noticed_ns};

    ls_wire_codec_put(out, v->plan.generation, 8);
    for (size_t i = 0; i < LS_COUNT(numbers); i++)
        ls_wire_codec_put(out, (uint64_t)numbers[i], 8);
    ls_wire_codec_put(out, (uint64_t)(v->plan.spread | v->plan.first_new << 1 | v->begun << 2), 1);
    put_text(out, v->cause);
    put_list(out, &w->members);
}

static void get_own(ls_wire_codec *in, ls_messages *w)
{
    w->workers = (int)ls_wire_codec_get(in, 2);
    in->bad |= w->workers > LS_MESSAGES_WORKERS;
    for (int i = 0; i < w->workers && !in->bad; i++) {
        uint64_t rank = ls_wire_codec_get(in, 4);
        in->bad |= rank > LS_MEMBERS_RANKS;
        w->rank[i] = in->bad ? -1 : (int32_t)rank - 1;
        w->serial[i] = (uint32_t)ls_wire_codec_get(in, 4);
    }
    w->known = (size_t)ls_wire_codec_get(in, 4);
    size_t names = (size_t)ls_wire_codec_get(in, 4);
    in->bad |= names > in->left;
    if (in->bad)
        return;
    w->names = (ls_wire_codec){.at = in->at, .left = names};
    in->at += names;
    in->left -= names;
}

/* One run of the list. */
typedef struct run {
    uint64_t first, nodes, ranks; /* number of the first node; ranks of each */
} run;

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

static void get_view(ls_wire_codec *in, ls_messages *w)
{
    ls_messages_view *v = &w->view;
    int64_t n[10];

    get_own(in, w);
    v->plan.generation = ls_wire_codec_get(in, 8);
    for (size_t i = 0; i < LS_COUNT(n); i++)
        n[i] = (int64_t)ls_wire_codec_get(in, 8);
    uint64_t flags = ls_wire_codec_get(in, 1);
    v->plan = (ls_view_plan){.generation = v->plan.generation,
                             .reached = n[0],
                             .base = n[1],
                             .source = (int)n[2],
                             .met = n[3],
                             .ranks = (int)n[4],
                             .restarted = (int)n[5],
                             .lost = (int)n[6],
                             .joined = (int)n[7],
                             .spread = flags & 1,
                             .first_new = flags >> 1 & 1};
    v->lost_ns = n[8];
    v->noticed_ns = n[9];
    v->begun = flags >> 2 & 1;
    ls_wire_codec_get_text(in, v->cause, sizeof v->cause);
    in->bad |= n[4] < 1 || n[4] > LS_MEMBERS_RANKS || n[2] < -1 || n[2] >= n[4];
    for (int i = 0; i < w->workers && !in->bad; i++)
        in->bad |= w->rank[i] >= n[4];
    w->list = *in;
    check_list(in, (uint64_t)n[4]);
    in->at += in->left; /* the ports, which unpack() reads */
    in->left = 0;
}

ls_status ls_messages_unpack(ls_messages *message, ls_roster *roster)
{
    ls_messages *w = message;
    ls_members *m = &w->members;
    ls_wire_codec in = w->list;
    run r = {.first = 0};
    uint64_t at = 0, left, nodes;
    ls_status st = LS_OK;

    if (w->kind != LS_MESSAGES_VIEW || !in.at)
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

void ls_messages_encode(const ls_messages *message, ls_str *out)
{
    ls_messages_encode_own(message, out);
    ls_messages_encode_shared(message, out);
}

void ls_messages_encode_shared(const ls_messages *message, ls_str *out)
{
    if (message->kind == LS_MESSAGES_VIEW)
        put_view(out, message);
}

void ls_messages_encode_own(const ls_messages *message, ls_str *out)
{
    const ls_messages *w = message;

    ls_wire_codec_put(out, (uint64_t)w->kind, 1);
    ls_wire_codec_put(out, (uint64_t)w->worker, 2);
    switch (w->kind) {
    case LS_MESSAGES_REPORT:
        put_text(out, w->why);
        put_report(out, &w->report);
        ls_config_digest_encode(&w->config_digest, out);
        break;
    case LS_MESSAGES_ENDED:
        put_text(out, w->why);
        put_end(out, w);
        break;
    case LS_MESSAGES_VIEW:
        put_own(out, w);
        break;
    case LS_MESSAGES_REVOKE:
        put_text(out, w->why);
        break;
    case LS_MESSAGES_VERDICT:
        ls_wire_codec_put(out, (uint64_t)w->verdict, 1);
        break;
    case LS_MESSAGES_STANDS:
        ls_wire_codec_put(out, w->past.generation, 8);
        ls_wire_codec_put(out, w->past.begun, 1);
        ls_wire_codec_put(out, (uint64_t)w->past.reached, 8);
        ls_wire_codec_put(out, (uint64_t)(w->stood + 1), 4);
        ls_wire_codec_put(out, w->out, 1);
        break;
    case LS_MESSAGES_READY:
    case LS_MESSAGES_LEFT:
    case LS_MESSAGES_REGROUP:
        break;
    }
}

ls_status ls_messages_decode(ls_messages *message, const void *bytes, size_t len)
{
    ls_messages *w = message;
    ls_wire_codec in = {.at = bytes, .left = len};

    *w = (ls_messages){.kind = (ls_messages_kind)ls_wire_codec_get(&in, 1)};
    w->worker = (int)ls_wire_codec_get(&in, 2);
    in.bad |= w->kind < LS_MESSAGES_REPORT || w->kind > LS_MESSAGES_STANDS ||
              w->worker >= LS_MESSAGES_WORKERS;
    if (!in.bad && (w->kind == LS_MESSAGES_REPORT || w->kind == LS_MESSAGES_ENDED ||
                    w->kind == LS_MESSAGES_REVOKE))
        ls_wire_codec_get_text(&in, w->why, sizeof w->why);
    if (!in.bad && w->kind == LS_MESSAGES_REPORT) {
        get_report(&in, &w->report);
        ls_config_digest_decode(&w->config_digest, &in);
    } else if (!in.bad && w->kind == LS_MESSAGES_ENDED) {
        get_end(&in, w);
    } else if (!in.bad && w->kind == LS_MESSAGES_VIEW) {
        get_view(&in, w);
    } else if (!in.bad && w->kind == LS_MESSAGES_VERDICT) {
        w->verdict = (ls_view_verdict)ls_wire_codec_get(&in, 1);
        in.bad |= w->verdict > LS_VIEW_DROP;
    } else if (!in.bad && w->kind == LS_MESSAGES_STANDS) {
        w->past.generation = ls_wire_codec_get(&in, 8);
        w->past.begun = ls_wire_codec_get(&in, 1) != 0;
        w->past.reached = (int64_t)ls_wire_codec_get(&in, 8);
        uint64_t stood = ls_wire_codec_get(&in, 4);
        w->out = ls_wire_codec_get(&in, 1) != 0;
        in.bad |= stood > LS_MEMBERS_RANKS;
        w->stood = in.bad ? -1 : (int)stood - 1;
    }
    return ls_wire_codec_done(&in) ? LS_OK
                                   : ls_fail(LS_EDATA, "a message between agents is damaged");
}
