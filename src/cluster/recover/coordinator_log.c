/* coordinator_log.c -- calls to a coordinator as frames, and its calls back as frames.
 *
 *     JOINS 3 | TAKES 3 REPORT | LOSES 2 ...  -->  ls_coordinator_log_take()  -->  coordinator.c
 *     TELL 0 VIEW | TELL 1 VIEW | STOP ...    <--  out, counted in n_out      <--  on_tell() ...
 *
 * Replaying the left side makes the right side again, byte by byte; so after a death the first
 * n_out frames that were sent already are skipped. */
#include "cluster/recover/coordinator_log.h"

#include "base/mem.h"

/* --- frames ----------------------------------------------------------------------------------- */

enum { LENGTH = 4 }; /* bytes in front, which say how many follow */

#define NUMBER(member, bytes) LS_WIRE_NUMBER(ls_coordinator_log_event, member, bytes)
static const ls_wire_field event_fields[] = {
    NUMBER(kind, 1),       NUMBER(now, 8),          NUMBER(node, 4),
    NUMBER(workers, 4),    NUMBER(begins, 1),       NUMBER(shared, 1),
    NUMBER(yes, 1),        NUMBER(noticed_ns, 8),   NUMBER(past.generation, 8),
    NUMBER(past.begun, 1), NUMBER(past.reached, 8), NUMBER(number, 8),
    NUMBER(second, 8),     NUMBER(code, 2),         NUMBER(status, 2),
};

/* A text is written with its final 0, so that a reader can point at it. */
void ls_coordinator_log_put(ls_str *out, const ls_coordinator_log_event *event)
{
    const char *const texts[] = {event->host, event->ip, event->why, event->hint};
    size_t at = out->len;

    ls_wire_codec_put(out, 0, LENGTH);
    ls_wire_codec_put_fields(out, event, event_fields, LS_COUNT(event_fields));
    for (size_t i = 0; i < LS_COUNT(texts); i++) {
        const char *text = texts[i] ? texts[i] : "";
        ls_wire_codec_put(out, strlen(text) + 1, 2);
        ls_str_append_bytes(out, text, strlen(text) + 1);
    }
    if (event->len > 0)
        ls_str_append_bytes(out, event->bytes, event->len);
    if (out->failed)
        return;
    uint32_t len = (uint32_t)(out->len - at - LENGTH);
    memcpy(out->p + at, &len, LENGTH);
}

size_t ls_coordinator_log_frame(const void *p, size_t left)
{
    ls_wire_codec in = {.at = p, .left = left};
    size_t len = (size_t)ls_wire_codec_get(&in, LENGTH);

    return in.bad || len < 1 || len > in.left ? 0 : len + LENGTH;
}

ls_coordinator_log_kind ls_coordinator_log_kind_of(const void *frame)
{
    return (ls_coordinator_log_kind)((const uint8_t *)frame)[LENGTH];
}

bool ls_coordinator_log_get(const void *frame, ls_coordinator_log_event *event_out)
{
    ls_coordinator_log_event *e = event_out;
    const char **const texts[] = {&e->host, &e->ip, &e->why, &e->hint};
    ls_wire_codec in = {.at = (const uint8_t *)frame + LENGTH,
                        .left = ls_coordinator_log_frame(frame, SIZE_MAX) - LENGTH};

    *e = (ls_coordinator_log_event){.node = -1};
    ls_wire_codec_get_fields(&in, e, event_fields, LS_COUNT(event_fields));
    for (size_t i = 0; i < LS_COUNT(texts); i++) {
        size_t n = (size_t)ls_wire_codec_get(&in, 2);
        const char *text = ls_wire_codec_get_bytes(&in, n);
        in.bad |= n == 0 || !text || text[n - 1] != '\0';
        *texts[i] = in.bad ? "" : text;
    }
    e->len = in.left;
    e->bytes = in.at;
    return !in.bad;
}

void ls_coordinator_log_drop(ls_str *frames, size_t n)
{
    if (n == 0)
        return;
    memmove(frames->p, frames->p + n, frames->len - n);
    frames->len -= n;
    frames->p[frames->len] = '\0';
}

/* --- what goes out ---------------------------------------------------------------------------- */

static void put(ls_coordinator_log *c, ls_coordinator_log_event event)
{
    c->n_out++;
    ls_coordinator_log_put(&c->out, &event);
}

static void put_bytes(ls_coordinator_log *c, ls_coordinator_log_event event, const ls_str *bytes)
{
    event.bytes = bytes->p;
    event.len = bytes->len;
    put(c, event);
    c->out.failed |= bytes->failed;
}

/* The large part of a view is the same for all: it goes out once. */
static void on_tell(void *context, int node, const ls_member_message *message)
{
    ls_coordinator_log *c = context;
    ls_coordinator_log_event event = {.kind = LS_COORDINATOR_LOG_TELL,
                                      .node = node,
                                      .shared = message->kind == LS_MEMBER_MESSAGE_VIEW};
    ls_str bytes;

    ls_str_init(&bytes);
    if (event.shared && c->shared_of != message->view.plan.generation) {
        c->shared_of = message->view.plan.generation;
        ls_member_message_encode_shared(message, &bytes);
        put_bytes(c, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_SHARED}, &bytes);
        ls_str_clear(&bytes);
    }
    ls_member_message_encode_own(message, &bytes);
    put_bytes(c, event, &bytes);
    ls_str_release(&bytes);
}

static void on_call(void *context, int node)
{
    put(context, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_CALL, .node = node});
}

static void on_expel(void *context, int node, const char *why)
{
    put(context,
        (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_EXPEL, .node = node, .why = why});
}

static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    put(context, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_STOP,
                                            .node = node,
                                            .code = code,
                                            .status = why->code,
                                            .why = why->text,
                                            .hint = why->hint});
}

static void on_remember(void *context)
{
    ls_coordinator_log *c = context;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_coordinator_remember(c->coordinator, c->now, &bytes);
    put_bytes(c, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_REMEMBER}, &bytes);
    ls_str_release(&bytes);
}

/* Asked once for each view; until the answer comes there is none. */
static uint64_t on_agree(void *context, const int *nodes, int n, uint64_t above)
{
    ls_coordinator_log *c = context;
    ls_str asked;

    ls_str_init(&asked);
    ls_wire_codec_put(&asked, above, 8);
    ls_str_append_bytes(&asked, nodes, (size_t)n * sizeof *nodes);
    if (asked.failed ||
        (asked.len == c->asked.len && memcmp(asked.p, c->asked.p, asked.len) == 0)) {
        ls_str_release(&asked);
        return c->agreed;
    }
    ls_str_release(&c->asked);
    c->asked = asked;
    c->agreed = 0;
    c->question++;
    put_bytes(c, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_ASK, .number = c->question},
              &c->asked);
    return 0;
}

/* --- what comes in ---------------------------------------------------------------------------- */

/* The answer of a join comes before anything that follows from it. */
static ls_status take_join(ls_coordinator_log *c, const ls_coordinator_log_event *e)
{
    ls_err_clear();
    (void)ls_coordinator_joins(c->coordinator, e->node, e->host, e->ip, e->workers, e->begins);
    c->most = e->node > c->most ? e->node : c->most;
    put(c, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_JOINED,
                                      .status = ls_err_last()->code,
                                      .why = ls_err_last()->text,
                                      .hint = ls_err_last()->hint});
    return LS_OK;
}

static ls_status take_message(ls_coordinator_log *c, const ls_coordinator_log_event *e)
{
    ls_member_message message;
    ls_status st = ls_member_message_decode(&message, e->bytes, e->len);

    if (st == LS_OK)
        ls_coordinator_handle_message(c->coordinator, e->node, &message, c->now);
    ls_member_message_release(&message);
    return st;
}

ls_status ls_coordinator_log_take(ls_coordinator_log *coordinator_log, const void *frame)
{
    ls_coordinator_log *c = coordinator_log;
    ls_coordinator_log_event e;
    ls_status st = LS_OK;

    c->n_in += ls_coordinator_log_kind_of(frame) != LS_COORDINATOR_LOG_LOOK;
    if (!ls_coordinator_log_get(frame, &e))
        return ls_fail(LS_EDATA, "a frame for the coordinator is damaged");
    c->now = e.now;
    switch (e.kind) {
    case LS_COORDINATOR_LOG_JOINS:
        return take_join(c, &e);
    case LS_COORDINATOR_LOG_NAMED:
        ls_coordinator_has_named(c->coordinator);
        break;
    case LS_COORDINATOR_LOG_TAKES:
        st = take_message(c, &e);
        break;
    case LS_COORDINATOR_LOG_LOSES:
        ls_coordinator_lose_node(c->coordinator, e.node, e.why, e.noticed_ns, e.now);
        break;
    case LS_COORDINATOR_LOG_RESTORES:
        ls_coordinator_resume(c->coordinator, &e.past, e.why, e.noticed_ns, e.now);
        break;
    case LS_COORDINATOR_LOG_RETURNS:
        ls_coordinator_send_missed(c->coordinator, e.node);
        break;
    case LS_COORDINATOR_LOG_RECALLS:
        st = ls_coordinator_recall(c->coordinator, e.bytes, e.len, e.now);
        break;
    case LS_COORDINATOR_LOG_AGREED:
        c->agreed = e.number == c->question ? e.second : c->agreed;
        break;
    case LS_COORDINATOR_LOG_LOOK:
        break;
    default:
        st = ls_fail(LS_EDATA, "a frame for the coordinator is damaged");
    }
    if (st != LS_OK)
        return st;
    ls_coordinator_do_due(c->coordinator, e.now);
    if (!c->over && ls_coordinator_is_idle(c->coordinator, -1)) {
        c->over = true;
        put(c, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_OVER});
    }
    return ls_str_status(&c->out);
}

void ls_coordinator_log_answer(const ls_coordinator_log *coordinator_log, const void *frame,
                               ls_str *out)
{
    const ls_coordinator_log *c = coordinator_log;
    ls_coordinator_log_event e, answer = {.kind = LS_COORDINATOR_LOG_ANSWER};
    char why[256] = "";
    ls_str busy;

    ls_str_init(&busy);
    if (ls_coordinator_log_get(frame, &e) && e.kind == LS_COORDINATOR_LOG_EXCLUDES) {
        answer.yes = ls_coordinator_excludes(c->coordinator, e.host, e.now, why, sizeof why);
        answer.why = why;
    } else {
        answer.yes = ls_coordinator_is_idle(c->coordinator, -1);
        for (int i = 0; i <= c->most && answer.yes; i++)
            if (!ls_coordinator_is_idle(c->coordinator, i))
                ls_wire_codec_put(&busy, (uint64_t)i, 4);
        answer.bytes = busy.p;
        answer.len = busy.len;
    }
    ls_coordinator_log_put(out, &answer);
    out->failed |= busy.failed;
    ls_str_release(&busy);
}

int64_t ls_coordinator_log_due_in(const ls_coordinator_log *coordinator_log, int64_t now)
{
    return ls_coordinator_due_in(coordinator_log->coordinator,
                                 coordinator_log->asked.len > 0 && coordinator_log->agreed == 0,
                                 now);
}

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_coordinator_log_open(ls_coordinator_log **coordinator_log_out,
                                  const ls_coordinator_args *args)
{
    ls_coordinator_log *c = ls_mem_alloc(sizeof *c);
    ls_coordinator_args own = *args;

    if (!c)
        return LS_ENOMEM;
    ls_str_init(&c->out);
    ls_str_init(&c->asked);
    own.agree = args->agree ? on_agree : NULL;
    own.tell = on_tell;
    own.call = on_call;
    own.expel = on_expel;
    own.stop = on_stop;
    own.remember = on_remember;
    own.context = c;
    ls_status st = ls_coordinator_open(&c->coordinator, &own);
    if (st == LS_OK)
        *coordinator_log_out = c;
    else
        ls_coordinator_log_close(c);
    return st;
}

void ls_coordinator_log_close(ls_coordinator_log *coordinator_log)
{
    if (!coordinator_log)
        return;
    ls_coordinator_close(coordinator_log->coordinator);
    ls_str_release(&coordinator_log->out);
    ls_str_release(&coordinator_log->asked);
    ls_mem_free(coordinator_log);
}

static const ls_wire_field saved_fields[] = {
    LS_WIRE_NUMBER(ls_coordinator_log, n_in, 8),     LS_WIRE_NUMBER(ls_coordinator_log, n_out, 8),
    LS_WIRE_NUMBER(ls_coordinator_log, question, 8), LS_WIRE_NUMBER(ls_coordinator_log, agreed, 8),
    LS_WIRE_NUMBER(ls_coordinator_log, most, 4),     LS_WIRE_NUMBER(ls_coordinator_log, over, 1)};

/* The shared part of a view is sent once more behind this, here as well as by the copy: both
 * must count alike. */
void ls_coordinator_log_save(ls_coordinator_log *coordinator_log, ls_str *out)
{
    ls_coordinator_log *c = coordinator_log;

    c->shared_of = 0;
    ls_wire_codec_put_fields(out, c, saved_fields, LS_COUNT(saved_fields));
    ls_wire_codec_put(out, c->asked.len, 4);
    ls_str_append_bytes(out, c->asked.p, c->asked.len);
    ls_coordinator_save(c->coordinator, out);
}

ls_status ls_coordinator_log_load(ls_coordinator_log *coordinator_log, const void *bytes,
                                  size_t len)
{
    ls_coordinator_log *c = coordinator_log;
    ls_wire_codec in = {.at = bytes, .left = len};

    c->shared_of = 0;
    ls_wire_codec_get_fields(&in, c, saved_fields, LS_COUNT(saved_fields));
    size_t len_asked = (size_t)ls_wire_codec_get(&in, 4);
    const void *asked = ls_wire_codec_get_bytes(&in, len_asked);
    ls_str_clear(&c->asked);
    if (asked)
        ls_str_append_bytes(&c->asked, asked, len_asked);
    if (in.bad)
        return ls_fail(LS_EDATA, "the coordinator's log is damaged");
    return ls_coordinator_load(c->coordinator, in.at, in.left);
}
