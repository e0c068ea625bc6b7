/* quorum_wire.c -- promises and messages of quorum.h as bytes, little-endian:
 *
 *   view      generation 8, made 8, held 1, members 2, members of its base 2, then 8 for each
 *   promise   self 8, term 8, voted 8, view
 *   message   kind 1, flags 1 (held, yes, trial, with a view), from 8, to 8, term 8, made 8,
 *             generation 8, round 8, age 8, leader 8; then the view, if there is one
 *
 * A promise fills a journal's record, a message a frame: both have a checksum of their own. What is
 * too short, too long or out of range is LS_EDATA. */
#include "cluster/member/wire_codec.h"
#include "cluster/elect/quorum.h"

static void put_view(ls_str *out, const ls_quorum_view *v)
{
    ls_wire_codec_put(out, v->generation, 8);
    ls_wire_codec_put(out, v->made, 8);
    ls_wire_codec_put(out, v->held, 1);
    ls_wire_codec_put(out, (uint64_t)v->n, 2);
    ls_wire_codec_put(out, (uint64_t)v->n_base, 2);
    for (int i = 0; i < v->n; i++)
        ls_wire_codec_put(out, v->member[i], 8);
    for (int i = 0; i < v->n_base; i++)
        ls_wire_codec_put(out, v->base[i], 8);
}

/* The last thing in its bytes. */
static bool get_view(ls_wire_codec *in, ls_quorum_view *v)
{
    v->generation = ls_wire_codec_get(in, 8);
    v->made = ls_wire_codec_get(in, 8);
    uint64_t held = ls_wire_codec_get(in, 1);
    uint64_t n = ls_wire_codec_get(in, 2), n_base = ls_wire_codec_get(in, 2);
    v->n = v->n_base = 0;
    if (in->bad || held > 1 || n > LS_QUORUM_NODES || n_base > LS_QUORUM_NODES ||
        in->left != 8 * (n + n_base))
        return false;
    v->held = held == 1;
    v->n = (int)n;
    v->n_base = (int)n_base;
    for (int i = 0; i < v->n; i++)
        v->member[i] = ls_wire_codec_get(in, 8);
    for (int i = 0; i < v->n_base; i++)
        v->base[i] = ls_wire_codec_get(in, 8);
    return true;
}

void ls_quorum_encode(const ls_quorum_promise *promise, ls_str *out)
{
    ls_wire_codec_put(out, promise->self, 8);
    ls_wire_codec_put(out, promise->term, 8);
    ls_wire_codec_put(out, promise->voted, 8);
    put_view(out, &promise->view);
}

ls_status ls_quorum_decode(ls_quorum_promise *promise, const void *bytes, size_t len)
{
    ls_wire_codec in = {.at = bytes, .left = len};

    promise->self = ls_wire_codec_get(&in, 8);
    promise->term = ls_wire_codec_get(&in, 8);
    promise->voted = ls_wire_codec_get(&in, 8);
    return get_view(&in, &promise->view)
               ? LS_OK
               : ls_fail(LS_EDATA, "a promise of %zu bytes is damaged", len);
}

void ls_quorum_encode_message(const ls_quorum_message *message, ls_str *out)
{
    const ls_quorum_message *m = message;
    const uint64_t numbers[] = {
        m->from, m->to, m->term, m->made, m->generation, m->round, (uint64_t)m->age_ns, m->leader};

    ls_wire_codec_put(out, (uint64_t)m->kind, 1);
    ls_wire_codec_put(out,
                      (uint64_t)m->held | (uint64_t)m->yes << 1 | (uint64_t)m->trial << 2 |
                          (uint64_t)(m->view != NULL) << 3,
                      1);
    for (size_t i = 0; i < LS_COUNT(numbers); i++)
        ls_wire_codec_put(out, numbers[i], 8);
    if (m->view)
        put_view(out, m->view);
}

ls_status ls_quorum_decode_message(ls_quorum_message *message, ls_quorum_view *view,
                                   const void *bytes, size_t len)
{
    ls_wire_codec in = {.at = bytes, .left = len};
    ls_quorum_message *m = message;
    uint64_t kind = ls_wire_codec_get(&in, 1), flags = ls_wire_codec_get(&in, 1);

    *m = (ls_quorum_message){.kind = (ls_quorum_kind)kind,
                             .held = flags & 1,
                             .yes = flags >> 1 & 1,
                             .trial = flags >> 2 & 1};
    m->from = ls_wire_codec_get(&in, 8);
    m->to = ls_wire_codec_get(&in, 8);
    m->term = ls_wire_codec_get(&in, 8);
    m->made = ls_wire_codec_get(&in, 8);
    m->generation = ls_wire_codec_get(&in, 8);
    m->round = ls_wire_codec_get(&in, 8);
    m->age_ns = (int64_t)ls_wire_codec_get(&in, 8);
    m->leader = ls_wire_codec_get(&in, 8);
    bool sound = kind >= LS_QUORUM_BEAT && kind <= LS_QUORUM_ANSWER && flags < 16 &&
                 m->age_ns >= 0 && m->age_ns <= INT64_MAX / 2 && m->term < UINT64_MAX;
    if (sound && flags >> 3) {
        sound = get_view(&in, view) && view->made == m->made && view->generation == m->generation;
        m->view = view;
    }
    return sound && ls_wire_codec_done(&in)
               ? LS_OK
               : ls_fail(LS_EDATA, "a message of %zu bytes about views is damaged", len);
}
