/* word.c -- see word.h. Numbers that may be negative travel as they lie in 8 bytes. */
#include "cluster/word.h"

#include "cluster/parcel.h"

void ls_word_release(ls_word *word)
{
    ls_members_release(&word->members);
}

/* Texts come from anywhere; control characters would be refused by the reader. */
static void put_text(ls_str *out, const char *text)
{
    char clean[LS_WORD_TEXT];
    size_t n = 0;

    for (; text[n] && n + 1 < sizeof clean; n++)
        clean[n] = (unsigned char)text[n] < ' ' || text[n] == 127 ? ' ' : text[n];
    clean[n] = '\0';
    ls_parcel_put_text(out, clean);
}

static void put_report(ls_str *out, const ls_view_report *r)
{
    ls_parcel_put(out, (uint64_t)r->have, 8);
    ls_parcel_put(out, (uint64_t)r->reached, 8);
    ls_parcel_put(out, (uint64_t)r->met, 8);
    ls_parcel_put(out, (uint64_t)r->port, 2);
    ls_parcel_put(out, r->serial, 4);
}

static void get_report(ls_parcel *in, ls_view_report *r)
{
    r->have = (int64_t)ls_parcel_get(in, 8);
    r->reached = (int64_t)ls_parcel_get(in, 8);
    r->met = (int64_t)ls_parcel_get(in, 8);
    r->port = (int32_t)ls_parcel_get(in, 2);
    r->serial = (uint32_t)ls_parcel_get(in, 4);
}

static void put_end(ls_str *out, const ls_word *w)
{
    ls_parcel_put(out, (uint64_t)w->signal, 1);
    ls_parcel_put(out, (uint64_t)w->code, 2);
    ls_parcel_put(out, w->asked, 1);
    ls_parcel_put(out, w->error, 1);
    ls_parcel_put(out, (uint64_t)w->record.code, 1);
    put_text(out, w->record.text);
    put_text(out, w->record.hint);
}

static void get_end(ls_parcel *in, ls_word *w)
{
    w->signal = (int)ls_parcel_get(in, 1);
    w->code = (int)ls_parcel_get(in, 2);
    w->asked = ls_parcel_get(in, 1) != 0;
    w->error = ls_parcel_get(in, 1) != 0;
    uint64_t code = ls_parcel_get(in, 1);
    w->record = (ls_err_record){.code = (ls_status)code, .file = ""};
    ls_parcel_get_text(in, w->record.text, sizeof w->record.text);
    ls_parcel_get_text(in, w->record.hint, sizeof w->record.hint);
    in->bad |= code > LS_EINTR || w->code > 255;
}

static void put_view(ls_str *out, const ls_word *w)
{
    const ls_word_view *v = &w->view;
    const int64_t numbers[] = {v->plan.reached, v->plan.base,      v->plan.source, v->plan.met,
                               v->plan.ranks,   v->plan.restarted, v->plan.lost,   v->plan.joined,
                               v->lost_ns,      v->noticed_ns};

    ls_parcel_put(out, v->plan.generation, 8);
    for (size_t i = 0; i < LS_COUNT(numbers); i++)
        ls_parcel_put(out, (uint64_t)numbers[i], 8);
    ls_parcel_put(out, (uint64_t)(v->plan.spread | v->plan.first_new << 1 | v->begun << 2), 1);
    put_text(out, v->cause);
    ls_parcel_put(out, (uint64_t)w->workers, 2);
    for (int i = 0; i < w->workers; i++) {
        ls_parcel_put(out, (uint64_t)(w->rank[i] + 1), 2);
        ls_parcel_put(out, w->serial[i], 4);
    }
    ls_members_encode(&w->members, out);
}

static ls_status get_view(ls_parcel *in, ls_word *w)
{
    ls_word_view *v = &w->view;
    int64_t n[10];

    v->plan.generation = ls_parcel_get(in, 8);
    for (size_t i = 0; i < LS_COUNT(n); i++)
        n[i] = (int64_t)ls_parcel_get(in, 8);
    uint64_t flags = ls_parcel_get(in, 1);
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
    ls_parcel_get_text(in, v->cause, sizeof v->cause);
    w->workers = (int)ls_parcel_get(in, 2);
    in->bad |= w->workers > LS_WORD_WORKERS || n[4] < 1 || n[4] > LS_MEMBERS_RANKS || n[2] < -1 ||
               n[2] >= n[4];
    for (int i = 0; i < w->workers && !in->bad; i++) {
        w->rank[i] = (int32_t)ls_parcel_get(in, 2) - 1;
        w->serial[i] = (uint32_t)ls_parcel_get(in, 4);
        in->bad |= w->rank[i] >= n[4];
    }
    if (in->bad)
        return LS_OK; /* the caller sees it */
    ls_status st = ls_members_decode(&w->members, in->at, in->left);
    in->left = 0;
    in->bad |= st == LS_OK && w->members.ranks != n[4];
    return st;
}

void ls_word_encode(const ls_word *word, ls_str *out)
{
    const ls_word *w = word;

    ls_parcel_put(out, (uint64_t)w->kind, 1);
    ls_parcel_put(out, (uint64_t)w->worker, 2);
    switch (w->kind) {
    case LS_WORD_REPORT:
        put_text(out, w->why);
        put_report(out, &w->report);
        ls_likeness_encode(&w->likeness, out);
        break;
    case LS_WORD_ENDED:
        put_text(out, w->why);
        put_end(out, w);
        break;
    case LS_WORD_VIEW:
        put_view(out, w);
        break;
    case LS_WORD_REVOKE:
        put_text(out, w->why);
        break;
    case LS_WORD_VERDICT:
        ls_parcel_put(out, (uint64_t)w->verdict, 1);
        break;
    case LS_WORD_STANDS:
        ls_parcel_put(out, w->generation, 8);
        ls_parcel_put(out, (uint64_t)(w->stood + 1), 2);
        ls_parcel_put(out, w->out, 1);
        break;
    case LS_WORD_READY:
    case LS_WORD_LEFT:
    case LS_WORD_REGROUP:
        break;
    }
}

ls_status ls_word_decode(ls_word *word, const void *bytes, size_t len)
{
    ls_word *w = word;
    ls_parcel in = {.at = bytes, .left = len};
    ls_status st = LS_OK;

    *w = (ls_word){.kind = (ls_word_kind)ls_parcel_get(&in, 1)};
    w->worker = (int)ls_parcel_get(&in, 2);
    in.bad |= w->kind < LS_WORD_REPORT || w->kind > LS_WORD_STANDS || w->worker >= LS_WORD_WORKERS;
    if (!in.bad &&
        (w->kind == LS_WORD_REPORT || w->kind == LS_WORD_ENDED || w->kind == LS_WORD_REVOKE))
        ls_parcel_get_text(&in, w->why, sizeof w->why);
    if (!in.bad && w->kind == LS_WORD_REPORT) {
        get_report(&in, &w->report);
        ls_likeness_decode(&w->likeness, &in);
    } else if (!in.bad && w->kind == LS_WORD_ENDED) {
        get_end(&in, w);
    } else if (!in.bad && w->kind == LS_WORD_VIEW) {
        st = get_view(&in, w);
    } else if (!in.bad && w->kind == LS_WORD_VERDICT) {
        w->verdict = (ls_view_verdict)ls_parcel_get(&in, 1);
        in.bad |= w->verdict > LS_VIEW_DROP;
    } else if (!in.bad && w->kind == LS_WORD_STANDS) {
        w->generation = ls_parcel_get(&in, 8);
        w->stood = (int)ls_parcel_get(&in, 2) - 1;
        w->out = ls_parcel_get(&in, 1) != 0;
        in.bad |= w->stood >= LS_MEMBERS_RANKS;
    }
    if (st == LS_OK && !ls_parcel_done(&in))
        st = ls_fail(LS_EDATA, "a word between agents is damaged");
    if (st != LS_OK)
        ls_word_release(w);
    return st;
}
