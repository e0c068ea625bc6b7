/* clerk.c -- see clerk.h. */
#include "cluster/clerk.h"

#include "base/mem.h"

/* --- frames ----------------------------------------------------------------------------------- */

size_t ls_clerk_begin(ls_str *out, ls_clerk_kind kind)
{
    size_t at = out->len;

    ls_parcel_put(out, 0, 4);
    ls_parcel_put(out, (uint64_t)kind, 1);
    return at;
}

void ls_clerk_end(ls_str *out, size_t at)
{
    if (out->failed)
        return;
    uint32_t len = (uint32_t)(out->len - at - 4);
    for (int i = 0; i < 4; i++)
        out->p[at + (size_t)i] = (char)(len >> 8 * i & 0xff);
}

void ls_clerk_put_bytes(ls_str *out, const void *bytes, size_t len)
{
    ls_parcel_put(out, len, 4);
    ls_str_append_bytes(out, bytes, len);
}

const void *ls_clerk_get_bytes(ls_parcel *in, size_t *len_out)
{
    size_t len = (size_t)ls_parcel_get(in, 4);
    const void *bytes = in->at;

    in->bad |= len > in->left;
    *len_out = in->bad ? 0 : len;
    if (!in->bad) {
        in->at += len;
        in->left -= len;
    }
    return bytes;
}

void ls_clerk_get_text(ls_parcel *in, char *text_out, size_t cap)
{
    size_t len;
    const char *text = ls_clerk_get_bytes(in, &len);

    snprintf(text_out, cap, "%.*s", (int)len, len ? text : "");
}

static void put_text(ls_str *out, const char *text)
{
    ls_clerk_put_bytes(out, text, strlen(text));
}

void ls_clerk_put_record(ls_str *out, const ls_err_record *record)
{
    ls_parcel_put(out, (uint64_t)record->code, 2);
    put_text(out, record->text);
    put_text(out, record->hint);
}

void ls_clerk_get_record(ls_parcel *in, ls_err_record *record_out)
{
    *record_out = (ls_err_record){.code = (ls_status)ls_parcel_get(in, 2), .file = ""};
    ls_clerk_get_text(in, record_out->text, sizeof record_out->text);
    ls_clerk_get_text(in, record_out->hint, sizeof record_out->hint);
}

size_t ls_clerk_frame(const void *p, size_t left)
{
    ls_parcel in = {.at = p, .left = left};
    size_t len = (size_t)ls_parcel_get(&in, 4);

    return in.bad || len < 1 || len > in.left ? 0 : len + 4;
}

ls_clerk_kind ls_clerk_kind_of(const void *frame)
{
    return (ls_clerk_kind)((const uint8_t *)frame)[4];
}

ls_parcel ls_clerk_body(const void *frame)
{
    ls_parcel in = {.at = frame, .left = 4};
    size_t len = (size_t)ls_parcel_get(&in, 4);

    return (ls_parcel){.at = (const uint8_t *)frame + LS_CLERK_HEAD, .left = len - 1};
}

/* --- what goes out ---------------------------------------------------------------------------- */

static size_t begin(ls_clerk *c, ls_clerk_kind kind)
{
    c->n_out++;
    return ls_clerk_begin(&c->out, kind);
}

/* The large part of a view is the same for all: it goes out once. */
static void on_tell(void *context, int node, const ls_word *word)
{
    ls_clerk *c = context;
    bool shared = word->kind == LS_WORD_VIEW;

    if (shared && c->shared_of != word->view.plan.generation) {
        c->shared_of = word->view.plan.generation;
        size_t at = begin(c, LS_CLERK_SHARED);
        ls_word_encode_shared(word, &c->out);
        ls_clerk_end(&c->out, at);
    }
    size_t at = begin(c, LS_CLERK_TELL);
    ls_parcel_put(&c->out, (uint64_t)node, 4);
    ls_parcel_put(&c->out, shared, 1);
    ls_word_encode_own(word, &c->out);
    ls_clerk_end(&c->out, at);
}

static void on_call(void *context, int node)
{
    ls_clerk *c = context;
    size_t at = begin(c, LS_CLERK_CALL);

    ls_parcel_put(&c->out, (uint64_t)node, 4);
    ls_clerk_end(&c->out, at);
}

static void on_expel(void *context, int node, const char *why)
{
    ls_clerk *c = context;
    size_t at = begin(c, LS_CLERK_EXPEL);

    ls_parcel_put(&c->out, (uint64_t)node, 4);
    put_text(&c->out, why);
    ls_clerk_end(&c->out, at);
}

static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    ls_clerk *c = context;
    size_t at = begin(c, LS_CLERK_STOP);

    ls_parcel_put(&c->out, (uint64_t)(node + 1), 4);
    ls_parcel_put(&c->out, (uint64_t)code, 2);
    ls_clerk_put_record(&c->out, why);
    ls_clerk_end(&c->out, at);
}

static void on_remember(void *context)
{
    ls_clerk *c = context;
    size_t at = begin(c, LS_CLERK_REMEMBER);

    ls_parish_remember(c->parish, c->now, &c->out);
    ls_clerk_end(&c->out, at);
}

/* Asked once for each view; until the answer comes there is none. */
static uint64_t on_agree(void *context, const int *nodes, int n, uint64_t above)
{
    ls_clerk *c = context;
    ls_str asked;

    ls_str_init(&asked);
    ls_parcel_put(&asked, above, 8);
    ls_parcel_put(&asked, (uint64_t)n, 4);
    for (int i = 0; i < n; i++)
        ls_parcel_put(&asked, (uint64_t)nodes[i], 4);
    if (asked.failed ||
        (asked.len == c->asked.len && memcmp(asked.p, c->asked.p, asked.len) == 0)) {
        ls_str_release(&asked);
        return c->agreed;
    }
    ls_str_release(&c->asked);
    c->asked = asked;
    c->agreed = 0;
    c->question++;
    size_t at = begin(c, LS_CLERK_ASK);
    ls_parcel_put(&c->out, c->question, 8);
    ls_str_append_bytes(&c->out, c->asked.p, c->asked.len);
    ls_clerk_end(&c->out, at);
    return 0;
}

/* --- what comes in ---------------------------------------------------------------------------- */

static void take_join(ls_clerk *c, ls_parcel *in)
{
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    int node = (int)ls_parcel_get(in, 4), workers = (int)ls_parcel_get(in, 4);
    bool begins = ls_parcel_get(in, 1) != 0;

    ls_clerk_get_text(in, host, sizeof host);
    ls_clerk_get_text(in, ip, sizeof ip);
    ls_err_clear();
    if (!in->bad)
        (void)ls_parish_joins(c->parish, node, host, ip, workers, begins, c->now);
    c->most = node > c->most ? node : c->most;
    size_t at = begin(c, LS_CLERK_JOINED);
    ls_clerk_put_record(&c->out, ls_err_last());
    ls_clerk_end(&c->out, at);
}

static ls_status take_word(ls_clerk *c, ls_parcel *in)
{
    int node = (int)ls_parcel_get(in, 4);
    ls_word word;
    ls_status st = ls_word_decode(&word, in->at, in->left);

    if (st == LS_OK)
        ls_parish_takes(c->parish, node, &word, c->now);
    ls_word_release(&word);
    in->at += in->left;
    in->left = 0;
    return st;
}

static void take_loss(ls_clerk *c, ls_parcel *in)
{
    char why[LS_WORD_TEXT];
    int node = (int)ls_parcel_get(in, 4);
    int64_t noticed_ns = (int64_t)ls_parcel_get(in, 8);

    ls_clerk_get_text(in, why, sizeof why);
    if (!in->bad)
        ls_parish_loses(c->parish, node, why, noticed_ns, c->now);
}

static void take_past(ls_clerk *c, ls_parcel *in)
{
    char why[LS_WORD_TEXT];
    ls_view_past past = {.generation = ls_parcel_get(in, 8)};

    past.begun = ls_parcel_get(in, 1) != 0;
    past.reached = (int64_t)ls_parcel_get(in, 8);
    int64_t noticed_ns = (int64_t)ls_parcel_get(in, 8);
    ls_clerk_get_text(in, why, sizeof why);
    if (!in->bad)
        ls_parish_restores(c->parish, &past, why, noticed_ns, c->now);
}

static void take_agreement(ls_clerk *c, ls_parcel *in)
{
    uint64_t question = ls_parcel_get(in, 8), generation = ls_parcel_get(in, 8);

    if (question == c->question && !in->bad)
        c->agreed = generation;
}

ls_status ls_clerk_take(ls_clerk *clerk, const void *frame)
{
    ls_clerk *c = clerk;
    ls_clerk_kind kind = ls_clerk_kind_of(frame);
    ls_parcel in = ls_clerk_body(frame);
    ls_status st = LS_OK;

    c->now = (int64_t)ls_parcel_get(&in, 8);
    c->n_in += kind != LS_CLERK_LOOK;
    switch (kind) {
    case LS_CLERK_JOINS: /* called when it is looked next: who joins must be told that first */
        take_join(c, &in);
        return in.bad ? ls_fail(LS_EDATA, "a frame for the coordinator is damaged") : LS_OK;
    case LS_CLERK_NAMED:
        ls_parish_has_named(c->parish);
        break;
    case LS_CLERK_TAKES:
        st = take_word(c, &in);
        break;
    case LS_CLERK_LOSES:
        take_loss(c, &in);
        break;
    case LS_CLERK_RESTORES:
        take_past(c, &in);
        break;
    case LS_CLERK_RETURNS:
        ls_parish_returns(c->parish, (int)ls_parcel_get(&in, 4));
        break;
    case LS_CLERK_RECALLS:
        st = ls_parish_recall(c->parish, in.at, in.left, c->now);
        in.left = 0;
        break;
    case LS_CLERK_AGREED:
        take_agreement(c, &in);
        break;
    case LS_CLERK_LOOK:
        break;
    default:
        in.bad = true;
    }
    if (st != LS_OK)
        return st;
    if (!ls_parcel_done(&in))
        return ls_fail(LS_EDATA, "a frame for the coordinator is damaged");
    ls_parish_looks(c->parish, c->now);
    if (!c->over && ls_parish_is_idle(c->parish, -1)) {
        c->over = true;
        ls_clerk_end(&c->out, begin(c, LS_CLERK_OVER));
    }
    return ls_str_status(&c->out);
}

ls_status ls_clerk_answer(const ls_clerk *clerk, const void *frame, ls_str *out)
{
    const ls_clerk *c = clerk;
    ls_parcel in = ls_clerk_body(frame);
    int64_t now = (int64_t)ls_parcel_get(&in, 8);
    char host[LS_MEMBERS_TEXT], why[256] = "";

    if (ls_clerk_kind_of(frame) == LS_CLERK_EXCLUDES) {
        ls_clerk_get_text(&in, host, sizeof host);
        bool excluded = ls_parish_excludes(c->parish, host, now, why, sizeof why);
        ls_parcel_put(out, excluded, 1);
        put_text(out, why);
        return ls_str_status(out);
    }
    bool over = ls_parish_is_idle(c->parish, -1);
    ls_parcel_put(out, over, 1);
    for (int i = 0; i <= c->most && over; i++)
        if (!ls_parish_is_idle(c->parish, i))
            ls_parcel_put(out, (uint64_t)i, 4);
    return ls_str_status(out);
}

int64_t ls_clerk_due_in(const ls_clerk *clerk, int64_t now)
{
    return ls_parish_due_in(clerk->parish, clerk->asked.len > 0 && clerk->agreed == 0, now);
}

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_clerk_open(ls_clerk **clerk_out, const ls_parish_args *args)
{
    ls_clerk *c = ls_mem_alloc(sizeof *c);
    ls_parish_args own = *args;

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
    ls_status st = ls_parish_open(&c->parish, &own);
    if (st == LS_OK)
        *clerk_out = c;
    else
        ls_clerk_close(c);
    return st;
}

void ls_clerk_close(ls_clerk *clerk)
{
    if (!clerk)
        return;
    ls_parish_close(clerk->parish);
    ls_str_release(&clerk->out);
    ls_str_release(&clerk->asked);
    ls_mem_free(clerk);
}

/* What all are told of a view is told once more behind this, here as well as by who loads it: both
 * must count alike. */
void ls_clerk_save(ls_clerk *clerk, ls_str *out)
{
    ls_clerk *c = clerk;

    c->shared_of = 0;
    ls_parcel_put(out, c->n_in, 8);
    ls_parcel_put(out, c->n_out, 8);
    ls_parcel_put(out, c->question, 8);
    ls_parcel_put(out, c->agreed, 8);
    ls_parcel_put(out, (uint64_t)c->most, 4);
    ls_parcel_put(out, c->over, 1);
    ls_clerk_put_bytes(out, c->asked.p, c->asked.len);
    ls_parish_save(c->parish, out);
}

ls_status ls_clerk_load(ls_clerk *clerk, const void *bytes, size_t len)
{
    ls_clerk *c = clerk;
    ls_parcel in = {.at = bytes, .left = len};
    size_t asked_len;

    c->shared_of = 0;
    c->n_in = ls_parcel_get(&in, 8);
    c->n_out = ls_parcel_get(&in, 8);
    c->question = ls_parcel_get(&in, 8);
    c->agreed = ls_parcel_get(&in, 8);
    c->most = (int)ls_parcel_get(&in, 4);
    c->over = ls_parcel_get(&in, 1) != 0;
    const void *asked = ls_clerk_get_bytes(&in, &asked_len);
    ls_str_clear(&c->asked);
    ls_str_append_bytes(&c->asked, asked, asked_len);
    if (in.bad)
        return ls_fail(LS_EDATA, "the coordinator's log is damaged");
    return ls_parish_load(c->parish, in.at, in.left);
}
