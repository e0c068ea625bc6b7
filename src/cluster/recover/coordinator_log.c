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

size_t ls_coordinator_log_begin(ls_str *out, ls_coordinator_log_kind kind)
{
    size_t at = out->len;

    ls_wire_codec_put(out, 0, 4);
    ls_wire_codec_put(out, (uint64_t)kind, 1);
    return at;
}

void ls_coordinator_log_end(ls_str *out, size_t at)
{
    if (out->failed)
        return;
    uint32_t len = (uint32_t)(out->len - at - 4);
    for (int i = 0; i < 4; i++)
        out->p[at + (size_t)i] = (char)(len >> 8 * i & 0xff);
}

void ls_coordinator_log_put_bytes(ls_str *out, const void *bytes, size_t len)
{
    ls_wire_codec_put(out, len, 4);
    ls_str_append_bytes(out, bytes, len);
}

const void *ls_coordinator_log_get_bytes(ls_wire_codec *in, size_t *len_out)
{
    size_t len = (size_t)ls_wire_codec_get(in, 4);
    const void *bytes = in->at;

    in->bad |= len > in->left;
    *len_out = in->bad ? 0 : len;
    if (!in->bad) {
        in->at += len;
        in->left -= len;
    }
    return bytes;
}

void ls_coordinator_log_get_text(ls_wire_codec *in, char *text_out, size_t cap)
{
    size_t len;
    const char *text = ls_coordinator_log_get_bytes(in, &len);

    snprintf(text_out, cap, "%.*s", (int)len, len ? text : "");
}

static void put_text(ls_str *out, const char *text)
{
    ls_coordinator_log_put_bytes(out, text, strlen(text));
}

static void put_record(ls_str *out, const ls_err_record *record)
{
    ls_wire_codec_put(out, (uint64_t)record->code, 2);
    put_text(out, record->text);
    put_text(out, record->hint);
}

void ls_coordinator_log_get_record(ls_wire_codec *in, ls_err_record *record_out)
{
    *record_out = (ls_err_record){.code = (ls_status)ls_wire_codec_get(in, 2), .file = ""};
    ls_coordinator_log_get_text(in, record_out->text, sizeof record_out->text);
    ls_coordinator_log_get_text(in, record_out->hint, sizeof record_out->hint);
}

size_t ls_coordinator_log_frame(const void *p, size_t left)
{
    ls_wire_codec in = {.at = p, .left = left};
    size_t len = (size_t)ls_wire_codec_get(&in, 4);

    return in.bad || len < 1 || len > in.left ? 0 : len + 4;
}

ls_coordinator_log_kind ls_coordinator_log_kind_of(const void *frame)
{
    return (ls_coordinator_log_kind)((const uint8_t *)frame)[4];
}

ls_wire_codec ls_coordinator_log_body(const void *frame)
{
    ls_wire_codec in = {.at = frame, .left = 4};
    size_t len = (size_t)ls_wire_codec_get(&in, 4);

    return (ls_wire_codec){.at = (const uint8_t *)frame + LS_COORDINATOR_LOG_HEAD, .left = len - 1};
}

/* --- what goes out ---------------------------------------------------------------------------- */

static size_t begin(ls_coordinator_log *c, ls_coordinator_log_kind kind)
{
    c->n_out++;
    return ls_coordinator_log_begin(&c->out, kind);
}

/* The large part of a view is the same for all: it goes out once. */
static void on_tell(void *context, int node, const ls_messages *message)
{
    ls_coordinator_log *c = context;
    bool shared = message->kind == LS_MESSAGES_VIEW;

    if (shared && c->shared_of != message->view.plan.generation) {
        c->shared_of = message->view.plan.generation;
        size_t at = begin(c, LS_COORDINATOR_LOG_SHARED);
        ls_messages_encode_shared(message, &c->out);
        ls_coordinator_log_end(&c->out, at);
    }
    size_t at = begin(c, LS_COORDINATOR_LOG_TELL);
    ls_wire_codec_put(&c->out, (uint64_t)node, 4);
    ls_wire_codec_put(&c->out, shared, 1);
    ls_messages_encode_own(message, &c->out);
    ls_coordinator_log_end(&c->out, at);
}

static void on_call(void *context, int node)
{
    ls_coordinator_log *c = context;
    size_t at = begin(c, LS_COORDINATOR_LOG_CALL);

    ls_wire_codec_put(&c->out, (uint64_t)node, 4);
    ls_coordinator_log_end(&c->out, at);
}

static void on_expel(void *context, int node, const char *why)
{
    ls_coordinator_log *c = context;
    size_t at = begin(c, LS_COORDINATOR_LOG_EXPEL);

    ls_wire_codec_put(&c->out, (uint64_t)node, 4);
    put_text(&c->out, why);
    ls_coordinator_log_end(&c->out, at);
}

static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    ls_coordinator_log *c = context;
    size_t at = begin(c, LS_COORDINATOR_LOG_STOP);

    ls_wire_codec_put(&c->out, (uint64_t)(node + 1), 4);
    ls_wire_codec_put(&c->out, (uint64_t)code, 2);
    put_record(&c->out, why);
    ls_coordinator_log_end(&c->out, at);
}

static void on_remember(void *context)
{
    ls_coordinator_log *c = context;
    size_t at = begin(c, LS_COORDINATOR_LOG_REMEMBER);

    ls_coordinator_remember(c->coordinator, c->now, &c->out);
    ls_coordinator_log_end(&c->out, at);
}

/* Asked once for each view; until the answer comes there is none. */
static uint64_t on_agree(void *context, const int *nodes, int n, uint64_t above)
{
    ls_coordinator_log *c = context;
    ls_str asked;

    ls_str_init(&asked);
    ls_wire_codec_put(&asked, above, 8);
    ls_wire_codec_put(&asked, (uint64_t)n, 4);
    for (int i = 0; i < n; i++)
        ls_wire_codec_put(&asked, (uint64_t)nodes[i], 4);
    if (asked.failed ||
        (asked.len == c->asked.len && memcmp(asked.p, c->asked.p, asked.len) == 0)) {
        ls_str_release(&asked);
        return c->agreed;
    }
    ls_str_release(&c->asked);
    c->asked = asked;
    c->agreed = 0;
    c->question++;
    size_t at = begin(c, LS_COORDINATOR_LOG_ASK);
    ls_wire_codec_put(&c->out, c->question, 8);
    ls_str_append_bytes(&c->out, c->asked.p, c->asked.len);
    ls_coordinator_log_end(&c->out, at);
    return 0;
}

/* --- what comes in ---------------------------------------------------------------------------- */

static void take_join(ls_coordinator_log *c, ls_wire_codec *in)
{
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    int node = (int)ls_wire_codec_get(in, 4), workers = (int)ls_wire_codec_get(in, 4);
    bool begins = ls_wire_codec_get(in, 1) != 0;

    ls_coordinator_log_get_text(in, host, sizeof host);
    ls_coordinator_log_get_text(in, ip, sizeof ip);
    ls_err_clear();
    if (!in->bad)
        (void)ls_coordinator_joins(c->coordinator, node, host, ip, workers, begins, c->now);
    c->most = node > c->most ? node : c->most;
    size_t at = begin(c, LS_COORDINATOR_LOG_JOINED);
    put_record(&c->out, ls_err_last());
    ls_coordinator_log_end(&c->out, at);
}

static ls_status take_message(ls_coordinator_log *c, ls_wire_codec *in)
{
    int node = (int)ls_wire_codec_get(in, 4);
    ls_messages message;
    ls_status st = ls_messages_decode(&message, in->at, in->left);

    if (st == LS_OK)
        ls_coordinator_takes(c->coordinator, node, &message, c->now);
    ls_messages_release(&message);
    in->at += in->left;
    in->left = 0;
    return st;
}

static void take_loss(ls_coordinator_log *c, ls_wire_codec *in)
{
    char why[LS_MESSAGES_TEXT];
    int node = (int)ls_wire_codec_get(in, 4);
    int64_t noticed_ns = (int64_t)ls_wire_codec_get(in, 8);

    ls_coordinator_log_get_text(in, why, sizeof why);
    if (!in->bad)
        ls_coordinator_loses(c->coordinator, node, why, noticed_ns, c->now);
}

static void take_past(ls_coordinator_log *c, ls_wire_codec *in)
{
    char why[LS_MESSAGES_TEXT];
    ls_view_past past = {.generation = ls_wire_codec_get(in, 8)};

    past.begun = ls_wire_codec_get(in, 1) != 0;
    past.reached = (int64_t)ls_wire_codec_get(in, 8);
    int64_t noticed_ns = (int64_t)ls_wire_codec_get(in, 8);
    ls_coordinator_log_get_text(in, why, sizeof why);
    if (!in->bad)
        ls_coordinator_restores(c->coordinator, &past, why, noticed_ns, c->now);
}

static void take_agreement(ls_coordinator_log *c, ls_wire_codec *in)
{
    uint64_t question = ls_wire_codec_get(in, 8), generation = ls_wire_codec_get(in, 8);

    if (question == c->question && !in->bad)
        c->agreed = generation;
}

ls_status ls_coordinator_log_take(ls_coordinator_log *coordinator_log, const void *frame)
{
    ls_coordinator_log *c = coordinator_log;
    ls_coordinator_log_kind kind = ls_coordinator_log_kind_of(frame);
    ls_wire_codec in = ls_coordinator_log_body(frame);
    ls_status st = LS_OK;

    c->now = (int64_t)ls_wire_codec_get(&in, 8);
    c->n_in += kind != LS_COORDINATOR_LOG_LOOK;
    switch (kind) {
    case LS_COORDINATOR_LOG_JOINS: /* its answer comes before anything that follows */
        take_join(c, &in);
        return in.bad ? ls_fail(LS_EDATA, "a frame for the coordinator is damaged") : LS_OK;
    case LS_COORDINATOR_LOG_NAMED:
        ls_coordinator_has_named(c->coordinator);
        break;
    case LS_COORDINATOR_LOG_TAKES:
        st = take_message(c, &in);
        break;
    case LS_COORDINATOR_LOG_LOSES:
        take_loss(c, &in);
        break;
    case LS_COORDINATOR_LOG_RESTORES:
        take_past(c, &in);
        break;
    case LS_COORDINATOR_LOG_RETURNS:
        ls_coordinator_returns(c->coordinator, (int)ls_wire_codec_get(&in, 4));
        break;
    case LS_COORDINATOR_LOG_RECALLS:
        st = ls_coordinator_recall(c->coordinator, in.at, in.left, c->now);
        in.left = 0;
        break;
    case LS_COORDINATOR_LOG_AGREED:
        take_agreement(c, &in);
        break;
    case LS_COORDINATOR_LOG_LOOK:
        break;
    default:
        in.bad = true;
    }
    if (st != LS_OK)
        return st;
    if (!ls_wire_codec_done(&in))
        return ls_fail(LS_EDATA, "a frame for the coordinator is damaged");
    ls_coordinator_looks(c->coordinator, c->now);
    if (!c->over && ls_coordinator_is_idle(c->coordinator, -1)) {
        c->over = true;
        ls_coordinator_log_end(&c->out, begin(c, LS_COORDINATOR_LOG_OVER));
    }
    return ls_str_status(&c->out);
}

ls_status ls_coordinator_log_answer(const ls_coordinator_log *coordinator_log, const void *frame,
                                    ls_str *out)
{
    const ls_coordinator_log *c = coordinator_log;
    ls_wire_codec in = ls_coordinator_log_body(frame);
    int64_t now = (int64_t)ls_wire_codec_get(&in, 8);
    char host[LS_MEMBERS_TEXT], why[256] = "";

    if (ls_coordinator_log_kind_of(frame) == LS_COORDINATOR_LOG_EXCLUDES) {
        ls_coordinator_log_get_text(&in, host, sizeof host);
        bool excluded = ls_coordinator_excludes(c->coordinator, host, now, why, sizeof why);
        ls_wire_codec_put(out, excluded, 1);
        put_text(out, why);
        return ls_str_status(out);
    }
    bool over = ls_coordinator_is_idle(c->coordinator, -1);
    ls_wire_codec_put(out, over, 1);
    for (int i = 0; i <= c->most && over; i++)
        if (!ls_coordinator_is_idle(c->coordinator, i))
            ls_wire_codec_put(out, (uint64_t)i, 4);
    return ls_str_status(out);
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

/* The shared part of a view is sent once more behind this, here as well as by the copy: both
 * must count alike. */
void ls_coordinator_log_save(ls_coordinator_log *coordinator_log, ls_str *out)
{
    ls_coordinator_log *c = coordinator_log;

    c->shared_of = 0;
    ls_wire_codec_put(out, c->n_in, 8);
    ls_wire_codec_put(out, c->n_out, 8);
    ls_wire_codec_put(out, c->question, 8);
    ls_wire_codec_put(out, c->agreed, 8);
    ls_wire_codec_put(out, (uint64_t)c->most, 4);
    ls_wire_codec_put(out, c->over, 1);
    ls_coordinator_log_put_bytes(out, c->asked.p, c->asked.len);
    ls_coordinator_save(c->coordinator, out);
}

ls_status ls_coordinator_log_load(ls_coordinator_log *coordinator_log, const void *bytes,
                                  size_t len)
{
    ls_coordinator_log *c = coordinator_log;
    ls_wire_codec in = {.at = bytes, .left = len};
    size_t asked_len;

    c->shared_of = 0;
    c->n_in = ls_wire_codec_get(&in, 8);
    c->n_out = ls_wire_codec_get(&in, 8);
    c->question = ls_wire_codec_get(&in, 8);
    c->agreed = ls_wire_codec_get(&in, 8);
    c->most = (int)ls_wire_codec_get(&in, 4);
    c->over = ls_wire_codec_get(&in, 1) != 0;
    const void *asked = ls_coordinator_log_get_bytes(&in, &asked_len);
    ls_str_clear(&c->asked);
    ls_str_append_bytes(&c->asked, asked, asked_len);
    if (in.bad)
        return ls_fail(LS_EDATA, "the coordinator's log is damaged");
    return ls_coordinator_load(c->coordinator, in.at, in.left);
}
