/* quorum_wire.c -- promises and messages of quorum.h as bytes, little-endian:
 *
 *   view      generation 8, made 8, held 1, members 2, members of its base 2, then 8 for each
 *   promise   self 8, term 8, voted 8, view
 *   message   kind 1, held 1, yes 1, trial 1, from 8, to 8, term 8, made 8, generation 8,
 *             round 8, age 8, leader 8, whether there is a view 1; then the view
 *
 * A promise fills a journal's record, a message a frame: both have a checksum of their own. What is
 * too short, too long or out of range is LS_EDATA. */
#include "cluster/member/wire_codec.h"
#include "cluster/elect/quorum.h"

static const ls_wire_field view_fields[] = {
    LS_WIRE_NUMBER(ls_quorum_view, generation, 8), LS_WIRE_NUMBER(ls_quorum_view, made, 8),
    LS_WIRE_NUMBER(ls_quorum_view, held, 1), LS_WIRE_NUMBER(ls_quorum_view, n, 2),
    LS_WIRE_NUMBER(ls_quorum_view, n_base, 2)};
static const ls_wire_field promise_fields[] = {LS_WIRE_NUMBER(ls_quorum_promise, self, 8),
                                               LS_WIRE_NUMBER(ls_quorum_promise, term, 8),
                                               LS_WIRE_NUMBER(ls_quorum_promise, voted, 8)};
#define NUMBER(member, bytes) LS_WIRE_NUMBER(ls_quorum_message, member, bytes)
static const ls_wire_field message_fields[] = {
    NUMBER(kind, 1),       NUMBER(held, 1),  NUMBER(yes, 1),    NUMBER(trial, 1),
    NUMBER(from, 8),       NUMBER(to, 8),    NUMBER(term, 8),   NUMBER(made, 8),
    NUMBER(generation, 8), NUMBER(round, 8), NUMBER(age_ns, 8), NUMBER(leader, 8)};

static void put_view(ls_str *out, const ls_quorum_view *v)
{
    ls_wire_codec_put_fields(out, v, view_fields, LS_COUNT(view_fields));
    for (int i = 0; i < v->n; i++)
        ls_wire_codec_put(out, v->member[i], 8);
    for (int i = 0; i < v->n_base; i++)
        ls_wire_codec_put(out, v->base[i], 8);
}

/* The last thing in its bytes. */
static bool get_view(ls_wire_codec *in, ls_quorum_view *v)
{
    ls_wire_codec_get_fields(in, v, view_fields, LS_COUNT(view_fields));
    if (in->bad || v->n > LS_QUORUM_NODES || v->n_base > LS_QUORUM_NODES ||
        in->left != 8 * (size_t)(v->n + v->n_base)) {
        v->n = v->n_base = 0;
        return false;
    }
    for (int i = 0; i < v->n; i++)
        v->member[i] = ls_wire_codec_get(in, 8);
    for (int i = 0; i < v->n_base; i++)
        v->base[i] = ls_wire_codec_get(in, 8);
    return true;
}

void ls_quorum_encode(const ls_quorum_promise *promise, ls_str *out)
{
    ls_wire_codec_put_fields(out, promise, promise_fields, LS_COUNT(promise_fields));
    put_view(out, &promise->view);
}

ls_status ls_quorum_decode(ls_quorum_promise *promise, const void *bytes, size_t len)
{
    ls_wire_codec in = {.at = bytes, .left = len};

    ls_wire_codec_get_fields(&in, promise, promise_fields, LS_COUNT(promise_fields));
    return get_view(&in, &promise->view)
               ? LS_OK
               : ls_fail(LS_EDATA, "a promise of %zu bytes is damaged", len);
}

void ls_quorum_encode_message(const ls_quorum_message *message, ls_str *out)
{
    ls_wire_codec_put_fields(out, message, message_fields, LS_COUNT(message_fields));
    ls_wire_codec_put(out, message->view != NULL, 1);
    if (message->view)
        put_view(out, message->view);
}

ls_status ls_quorum_decode_message(ls_quorum_message *message, ls_quorum_view *view,
                                   const void *bytes, size_t len)
{
    ls_wire_codec in = {.at = bytes, .left = len};
    ls_quorum_message *m = message;

    *m = (ls_quorum_message){.view = NULL};
    ls_wire_codec_get_fields(&in, m, message_fields, LS_COUNT(message_fields));
    bool has_view = ls_wire_codec_get(&in, 1) != 0;
    bool sound = m->kind >= LS_QUORUM_BEAT && m->kind <= LS_QUORUM_ANSWER && m->age_ns >= 0 &&
                 m->age_ns <= INT64_MAX / 2 && m->term < UINT64_MAX;
    if (sound && has_view) {
        sound = get_view(&in, view) && view->made == m->made && view->generation == m->generation;
        m->view = view;
    }
    return sound && ls_wire_codec_done(&in)
               ? LS_OK
               : ls_fail(LS_EDATA, "a message of %zu bytes about views is damaged", len);
}
