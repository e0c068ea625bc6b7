/* test_coordinator_log.c -- a coordinator that dies at any moment is the same again: what it was told makes
 * the same coordinator, and the same things that follow, whether from the beginning or from what it had
 * saved in between. And frames that make no sense. */
#include "harness.h"
#include <signal.h>
#include <string.h>
#include "base/mem.h"
#include "base/time.h"
#include "cluster/recover/coordinator_log.h"

enum { NODES = 6, WORKERS = 2 };

static uint64_t never(void *context, const int *nodes, int n, uint64_t above)
{
    (void)context;
    (void)nodes;
    (void)n;
    (void)above;
    return 0;
}

static const ls_coordinator_args rules = {.rules = {.restarts = 2, .least = 1},
                                          .min_nodes = 1,
                                          .grow_wait_ns = 2 * LS_NS_PER_S,
                                          .quarantine = 3,
                                          .cool_ns = 10 * LS_NS_PER_S,
                                          .agree = never};

typedef struct story {
    ls_coordinator_log *coordinator_log;
    ls_str log;  /* all that it was told, */
    ls_str said; /* and has said */
    int64_t now;
    int nodes;
    uint64_t question, generation;
    uint32_t serial;
} story;

static void give(story *s, ls_coordinator_log_event event)
{
    size_t at = s->log.len;

    event.now = s->now;
    ls_coordinator_log_put(&s->log, &event);
    LS_CHECK_OK(ls_coordinator_log_take(s->coordinator_log, s->log.p + at));
}

/* What it has said, of which questions are remembered. */
static void listen(story *s)
{
    ls_str *out = &s->coordinator_log->out;

    for (size_t at = 0, n; (n = ls_coordinator_log_frame(out->p + at, out->len - at)) > 0;
         at += n) {
        ls_coordinator_log_event event;
        LS_CHECK(ls_coordinator_log_get(out->p + at, &event));
        if (event.kind != LS_COORDINATOR_LOG_ASK)
            continue;
        s->question = event.number;
        memcpy(&s->generation, event.bytes, sizeof s->generation);
        s->generation++;
    }
    ls_str_append_bytes(&s->said, out->p, out->len);
    ls_str_clear(out);
}

static void give_word(story *s, int node, const ls_member_message *word)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_member_message_encode(word, &bytes);
    give(s,
         (ls_coordinator_log_event){
             .kind = LS_COORDINATOR_LOG_TAKES, .node = node, .bytes = bytes.p, .len = bytes.len});
    ls_str_release(&bytes);
}

static void join(story *s, bool begins)
{
    char host[16];

    snprintf(host, sizeof host, "h%d", s->nodes % NODES);
    give(s, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_JOINS,
                                       .node = s->nodes++,
                                       .workers = WORKERS,
                                       .begins = begins,
                                       .host = host,
                                       .ip = "10.0.0.1"});
}

static void answer(story *s)
{
    uint64_t question = s->question;

    s->question = 0;
    if (question)
        give(s, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_AGREED,
                                           .number = question,
                                           .second = s->generation});
}

static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);

    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* Anything that may happen, whether it makes sense or not. */
static void happen(story *s, uint64_t *random)
{
    int what = (int)(draw(random) % 16), node = (int)(draw(random) % (uint64_t)s->nodes);
    ls_member_message word = {.worker = (int)(draw(random) % WORKERS)};
    int64_t step = (int64_t)(draw(random) % 100);

    s->now += (int64_t)(draw(random) % 500) * LS_NS_PER_MS;
    if (what < 7) {
        word.kind = LS_MEMBER_MESSAGE_REPORT;
        word.report = (ls_view_report){
            .have = step, .reached = step, .met = step, .serial = ++s->serial, .port = 7};
        give_word(s, node, &word);
    } else if (what < 9) {
        word.kind = what == 7 ? LS_MEMBER_MESSAGE_READY : LS_MEMBER_MESSAGE_ENDED;
        word.signal = what == 8 ? SIGKILL : 0;
        word.code = what == 8 ? 128 + SIGKILL : 0;
        snprintf(word.why, sizeof word.why, "killed at %lld", (long long)step);
        give_word(s, node, &word);
    } else if (what < 13) {
        answer(s);
    } else if (what == 13 && s->nodes < 40) {
        join(s, false);
    } else if (what == 14 && node > 0) {
        give(s, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_LOSES,
                                           .node = node,
                                           .noticed_ns = 5,
                                           .why = "cut off"});
    } else {
        give(s, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_LOOK});
    }
    listen(s);
}

static void tell_again(ls_coordinator_log *coordinator_log, const ls_str *log, size_t from)
{
    for (size_t at = from, n; (n = ls_coordinator_log_frame(log->p + at, log->len - at)) > 0;
         at += n)
        LS_CHECK_OK(ls_coordinator_log_take(coordinator_log, log->p + at));
}

/* A story; in the middle of it what the coordinator knows is saved, and it goes on from that. */
static void play(uint64_t seed)
{
    story s = {.now = 1000 * LS_NS_PER_S};
    ls_coordinator_log *again, *half;
    size_t from = 0, said_from = 0;
    uint64_t n_in = 0, n_out = 0;
    uint64_t random = seed;
    ls_str saved;

    ls_str_init(&s.log);
    ls_str_init(&s.said);
    ls_str_init(&saved);
    LS_CHECK_OK(ls_coordinator_log_open(&s.coordinator_log, &rules));
    for (int i = 0; i < 3; i++)
        join(&s, true);
    int length = 20 + (int)(seed % 60), middle = (int)(seed * 7 % (uint64_t)length);
    for (int i = 0; i < length; i++) {
        happen(&s, &random);
        if (i != middle)
            continue;
        from = s.log.len;
        said_from = s.said.len;
        ls_coordinator_log_save(s.coordinator_log, &saved);
        n_in = s.coordinator_log->n_in;
        n_out = s.coordinator_log->n_out;
    }
    LS_CHECK_OK(ls_coordinator_log_open(&half, &rules));
    LS_CHECK_OK(ls_coordinator_log_load(half, saved.p, saved.len));
    LS_CHECK_EQ(half->n_in, n_in);
    LS_CHECK_EQ(half->n_out, n_out);
    tell_again(half, &s.log, from);
    LS_CHECK_EQ(half->n_out, s.coordinator_log->n_out);
    LS_CHECK_EQ(half->out.len, s.said.len - said_from);
    LS_CHECK(memcmp(half->out.p, s.said.p + said_from, half->out.len) == 0);
    /* From the beginning; until the middle, where the one that saved has said a part of the last
     * view once more. */
    LS_CHECK_OK(ls_coordinator_log_open(&again, &rules));
    ls_str head = {.p = s.log.p, .len = from};
    tell_again(again, &head, 0);
    LS_CHECK_EQ(again->out.len, said_from);
    LS_CHECK(memcmp(again->out.p, s.said.p, said_from) == 0);
    LS_CHECK_EQ(again->n_in, n_in);
    ls_coordinator_log_close(again);
    ls_coordinator_log_close(half);
    ls_coordinator_log_close(s.coordinator_log);
    ls_str_release(&s.log);
    ls_str_release(&s.said);
    ls_str_release(&saved);
}

LS_TEST(coordinator_log_is_the_same_again_after_any_story)
{
    for (uint64_t seed = 1; seed <= 300; seed += (uint64_t)ls_test_stride(1))
        play(seed);
}

LS_TEST(coordinator_log_refuses_frames_that_make_no_sense)
{
    ls_coordinator_log *c;
    ls_str frame, out;

    ls_str_init(&out);
    LS_CHECK_OK(ls_coordinator_log_open(&c, &rules));
    ls_str_init(&frame);
    ls_coordinator_log_put(&frame, &(ls_coordinator_log_event){.kind = 31, .now = 1});
    LS_CHECK_FAILS(ls_coordinator_log_take(c, frame.p), LS_EDATA, "damaged");
    ls_str_clear(&frame);
    ls_coordinator_log_put(
        &frame, &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_LOSES, .why = "cut off"});
    LS_CHECK_EQ(ls_coordinator_log_frame(frame.p, frame.len - 1), 0); /* not all of it is there */
    for (uint32_t len = 1; len < frame.len - 4; len++) { /* shorter than what it must hold */
        memcpy(frame.p, &len, sizeof len);
        LS_CHECK_FAILS(ls_coordinator_log_take(c, frame.p), LS_EDATA, "damaged");
    }
    ls_str_release(&frame);
    LS_CHECK_FAILS(ls_coordinator_log_load(c, "short", 5), LS_EDATA, "damaged");
    ls_coordinator_log_save(c, &out);
    LS_CHECK_FAILS(ls_coordinator_log_load(c, out.p, out.len - 1), LS_EDATA, "damaged");
    LS_CHECK_OK(ls_coordinator_log_load(c, out.p, out.len));
    LS_CHECK_EQ(ls_coordinator_log_due_in(c, 5), -1);
    ls_str_release(&out);
    ls_coordinator_log_close(c);
}
