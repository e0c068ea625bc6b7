/* cmd_generate_text.c -- the text itself: read the prompt, add token by token, say why it ended.
 *
 * A token's way out: the tokenizer's stream (whole characters only), then the stop strings (what
 * could still become one waits), then standard output. With --json nothing is shown until the end,
 * then one object has everything. */
#include "cli/generate/cmd_generate.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>
#include "base/json.h"
#include "base/time.h"
#include "cli/term.h"
#include "model/decode_stop.h"

enum { PIECE = 256 }; /* tokens of a prompt read between two looks at Ctrl-C */

typedef enum ending { END_LENGTH, END_EOS, END_STOP, END_INTERRUPTED } ending;

typedef struct speech {
    const ls_generate_model *m;
    const ls_generate_settings *s;
    ls_tokenizer_stream stream;
    ls_decode_stop stop;
    ls_tokens *ids;   /* prompt and answer; borrowed */
    int64_t prompt;   /* how many of them are the prompt */
    int64_t held;     /* and of these were read before */
    int64_t position; /* number of the first choice */
    bool shows_prompt;
    ls_str piece, text; /* of the last token; the whole answer */
    bool terminal;
    ending why;
    int64_t read_ns, said_ns; /* to the first token, and from there */
} speech;

static volatile sig_atomic_t stop_asked;

static void on_stop(int number)
{
    stop_asked = 1;
    signal(number, SIG_DFL); /* a second one ends the process at once */
}

/* --- output ----------------------------------------------------------------------------------- */

/* A model may write any byte; a terminal must not obey them. Files and pipes get them as they are.
 */
static ls_status show(const speech *sp, const char *text, size_t len)
{
    if (sp->s->json)
        return LS_OK;
    if (sp->terminal)
        ls_term_text((const unsigned char *)text, len, stdout);
    else
        fwrite(text, 1, len, stdout);
    if (fflush(stdout) != 0 || ferror(stdout))
        return ls_fail_sys(LS_EIO, "cannot write to standard output");
    return LS_OK;
}

/* Let sp->piece through the stop strings and show what comes out. */
static ls_status pass_on(speech *sp, bool last)
{
    size_t before = sp->text.len;
    ls_status st;

    LS_TRY(st, ls_decode_stop_feed(&sp->stop, sp->piece.p, sp->piece.len, &sp->text), out);
    if (last)
        LS_TRY(st, ls_decode_stop_end(&sp->stop, &sp->text), out);
    st = show(sp, sp->text.p + before, sp->text.len - before);
out:
    return st;
}

static const char *const reasons[] = {"length", "eos", "stop", "interrupted"};

/* Per second, or NaN (null in JSON) where there was nothing to measure. */
static double rate(int64_t n, int64_t ns)
{
    return n > 0 && ns > 0 ? (double)n * 1e9 / (double)ns : (double)NAN;
}

static void put_ids(ls_json *json, const char *key, const int32_t *ids, int64_t n)
{
    ls_json_key(json, key);
    ls_json_open(json, '[');
    for (int64_t i = 0; i < n; i++)
        ls_json_int(json, ids[i]);
    ls_json_close(json);
}

static void put_sampling(ls_json *json, const ls_sampling *sampling)
{
    ls_json_key(json, "sampling");
    ls_json_open(json, '{');
    ls_json_put_num(json, "temperature", sampling->temperature);
    ls_json_put_int(json, "top_k", sampling->top_k);
    ls_json_put_num(json, "top_p", sampling->top_p);
    ls_json_put_num(json, "min_p", sampling->min_p);
    ls_json_put_num(json, "repetition_penalty", sampling->repetition);
    ls_json_put_int(json, "seed", (int64_t)sampling->seed);
    ls_json_close(json);
}

static ls_status print_json(speech *sp)
{
    int64_t said = sp->ids->count - sp->prompt;
    ls_json json;

    ls_str_clear(&sp->piece);
    ls_json_begin(&json, &sp->piece);
    ls_json_open(&json, '{');
    ls_json_key(&json, "text");
    ls_json_text(&json, sp->text.p, sp->text.len);
    ls_json_put_str(&json, "finish_reason", reasons[sp->why]);
    ls_json_put_str(&json, "stop", sp->why == END_STOP ? sp->s->stops[sp->stop.hit] : NULL);
    put_sampling(&json, &sp->s->sampling);
    put_ids(&json, "prompt_ids", sp->ids->ids, sp->prompt);
    put_ids(&json, "ids", sp->ids->ids + sp->prompt, said);
    ls_json_key(&json, "timings");
    ls_json_open(&json, '{');
    ls_json_put_int(&json, "prompt_n", sp->prompt);
    ls_json_put_num(&json, "prompt_ms", (double)sp->read_ns / 1e6);
    ls_json_put_num(&json, "prompt_per_second", rate(sp->prompt, sp->read_ns));
    ls_json_put_int(&json, "predicted_n", said);
    ls_json_put_num(&json, "predicted_ms", (double)sp->said_ns / 1e6);
    ls_json_put_num(&json, "predicted_per_second", rate(said - 1, sp->said_ns));
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(&sp->piece, '\n');
    return ls_term_print(&sp->piece);
}

/* " (95.2/s)", or nothing where there was nothing to measure. */
static void print_rate(double per_second)
{
    if (isfinite(per_second))
        fprintf(stderr, per_second < 100 ? " (%.1f/s)" : " (%.0f/s)", per_second);
}

/* "temperature 0.8, top-p 0.95, seed 1", without what does nothing. */
static void print_sampling(const ls_sampling *sampling)
{
    if (sampling->temperature <= 0) {
        fputs("temperature 0", stderr);
        return;
    }
    fprintf(stderr, "temperature %g", sampling->temperature);
    if (sampling->top_k > 0)
        fprintf(stderr, ", top-k %lld", (long long)sampling->top_k);
    if (sampling->top_p < 1)
        fprintf(stderr, ", top-p %g", sampling->top_p);
    if (sampling->min_p > 0)
        fprintf(stderr, ", min-p %g", sampling->min_p);
    fprintf(stderr, ", seed %llu", (unsigned long long)sampling->seed);
}

/* "12 tokens of prompt (340/s), 200 added (95.2/s), ended by --tokens; temperature 0.8, seed 1" */
static void print_summary(const speech *sp)
{
    static const char *const why[] = {"ended by --tokens", "the model ended its text",
                                      "ended by a stop string", "interrupted"};
    int64_t said = sp->ids->count - sp->prompt, read = sp->prompt - sp->held;

    fprintf(stderr, "%lld token%s of prompt", (long long)read, read == 1 ? "" : "s");
    print_rate(rate(read, sp->read_ns));
    fprintf(stderr, ", %lld added", (long long)said);
    print_rate(rate(said - 1, sp->said_ns));
    bool turn = sp->why == END_STOP && sp->s->stops[sp->stop.hit] == sp->m->ids.turn_text;
    fprintf(stderr, ", %s; ", turn ? "the model ended its turn" : why[sp->why]);
    print_sampling(&sp->s->sampling);
    fputc('\n', stderr);
}

/* --- the answer ------------------------------------------------------------------------------- */

static bool ends(const speech *sp, int32_t token)
{
    for (int i = 0; i < sp->m->ids.n_eos && !sp->s->ignore_eos; i++)
        if (sp->m->ids.eos[i] == token)
            return true;
    return false;
}

/* The prompt, a piece at a time, so that Ctrl-C need not wait for all of it. The characters that
 * it leaves open, or the blank that a tokenizer puts between words, belong to the stream. */
static ls_status read_prompt(speech *sp)
{
    const ls_generate_model *m = sp->m;
    ls_status st = LS_OK;

    for (int64_t i = 0; i < sp->prompt && sp->shows_prompt;
         i++) /* a chat's answer is its own text */
        if (!ls_tokenizer_is_special(m->tokenizer, sp->ids->ids[i]))
            LS_TRY(st, ls_tokenizer_stream_feed(&sp->stream, sp->ids->ids[i], &sp->piece), out);
    /* From what the cache holds on: to read less would make it forget the rest. */
    for (int64_t n = sp->held + PIECE; n < sp->prompt && !stop_asked; n += PIECE)
        LS_TRY(st, ls_decode_read(m->decode, m->weights, sp->ids->ids, n), out);
out:
    return st;
}

/* One token more; *more_out is false when it was the last. */
static ls_status add_token(speech *sp, int64_t i, bool *more_out)
{
    const ls_generate_model *m = sp->m;
    int32_t token;
    ls_status st;

    LS_TRY(st, ls_tokens_reserve(sp->ids, 1), out);
    LS_TRY(st,
           ls_decode_next(m->decode, m->weights, sp->ids->ids, sp->ids->count, &sp->s->sampling,
                          (uint64_t)(sp->position + i), &token),
           out);
    sp->ids->ids[sp->ids->count++] = token;
    *more_out = !ends(sp, token);
    if (!*more_out)
        sp->why = END_EOS;
    if (!*more_out || ls_tokenizer_is_special(m->tokenizer, token))
        goto out;
    ls_str_clear(&sp->piece);
    LS_TRY(st, ls_tokenizer_stream_feed(&sp->stream, token, &sp->piece), out);
    LS_TRY(st, pass_on(sp, false), out);
    if (sp->stop.hit >= 0) {
        sp->why = END_STOP;
        *more_out = false;
    }
out:
    return st;
}

static ls_status answer(speech *sp)
{
    int64_t begin = ls_time_now_ns();
    bool more = true;
    ls_status st;

    LS_TRY(st, read_prompt(sp), out);
    for (int64_t i = 0; i < sp->s->count && more && !stop_asked; i++) {
        LS_TRY(st, add_token(sp, i, &more), out);
        if (i == 0)
            sp->read_ns = ls_time_now_ns() - begin;
    }
    if (more && stop_asked)
        sp->why = END_INTERRUPTED;
    int64_t took = ls_time_now_ns() - begin;
    if (sp->read_ns == 0) /* interrupted before the first token */
        sp->read_ns = took;
    sp->said_ns = took - sp->read_ns;
    ls_str_clear(&sp->piece);
    LS_TRY(st, ls_tokenizer_stream_end(&sp->stream, &sp->piece), out);
    LS_TRY(st, pass_on(sp, true), out);
out:
    return st;
}

static void speech_release(speech *sp)
{
    ls_decode_stop_release(&sp->stop);
    ls_str_release(&sp->piece);
    ls_str_release(&sp->text);
}

ls_status ls_generate_speak(ls_generate_model *m, const ls_generate_settings *s,
                            const ls_generate_task *task, ls_str *text_out)
{
    speech sp = {.m = m,
                 .s = s,
                 .ids = task->ids,
                 .prompt = task->ids->count,
                 .held = task->held,
                 .position = task->position,
                 .shows_prompt = task->prompt != NULL,
                 .terminal = isatty(STDOUT_FILENO) == 1};
    ls_status st = LS_OK;

    ls_str_init(&sp.piece);
    ls_str_init(&sp.text);
    ls_tokenizer_stream_begin(&sp.stream, m->tokenizer);
    ls_decode_stop_init(&sp.stop, s->stops, s->n_stops);
    stop_asked = 0;
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
    if (task->prompt)
        LS_TRY(st, show(&sp, task->prompt->p, task->prompt->len), out);
    LS_TRY(st, answer(&sp), out);
    if (s->json)
        LS_TRY(st, print_json(&sp), out);
    else
        LS_TRY(st, show(&sp, "\n", 1), out);
    if (!s->quiet && !s->json)
        print_summary(&sp);
    if (text_out) {
        ls_str_append_bytes(text_out, sp.text.p, sp.text.len);
        LS_TRY(st, ls_str_status(text_out), out);
    }
    if (sp.why == END_INTERRUPTED)
        st = ls_fail(LS_EINTR, "after %lld token%s", (long long)(sp.ids->count - sp.prompt),
                     ls_str_plural(sp.ids->count - sp.prompt));
out:
    speech_release(&sp);
    return st;
}
