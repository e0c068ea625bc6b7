/* cmd_generate_session.c -- a conversation at the terminal.
 *
 * Each turn writes out all messages by the chat template and encodes them anew, since templates rewrite
 * earlier turns (they drop an older answer's thoughts, for one). The decoder compares the ids with what
 * its cache holds and reads only what follows their common beginning, so a conversation that grows costs
 * its new tokens.
 *
 *   messages   system? user assistant user assistant ... user
 *              ^^^^^^^ stays
 *                      ^^^^^^^^^^^^^^ the oldest turns are left out when there is no room for an answer
 *
 * At the prompt Ctrl-C ends the program, as it does by default; in an answer it ends the answer, which
 * stays in the conversation as far as it came. */
#include "cli/generate/cmd_generate.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include "data/tokenizer/utf8.h"

typedef struct session {
    ls_generate_model *m;
    const ls_generate_settings *s;
    int64_t context;  /* tokens that the model may see */
    json_t *messages; /* owned */
    ls_tokens ids;    /* of the last turn, with its answer: what the cache holds begins so */
    ls_tokens next;   /* of this turn */
    int64_t said;     /* tokens of all answers */
} session;

static const char help[] = "  /reset        forget the conversation and begin a new one\n"
                           "  /system TEXT  begin a new one with these instructions\n"
                           "  /quit         end (or Ctrl-D)\n"
                           "  A \\ at the end of a line continues the message on the next one.\n"
                           "  Ctrl-C ends an answer.\n";

static ls_status add_message(session *c, const char *role, const char *text, size_t len)
{
    json_t *message = json_pack("{s:s,s:s%}", "role", role, "content", text, len);

    if (!message || json_array_append_new(c->messages, message) != 0)
        return ls_fail(LS_ENOMEM, "out of memory");
    return LS_OK;
}

static ls_status reset(session *c, const char *instructions)
{
    json_array_clear(c->messages);
    return instructions ? add_message(c, "system", instructions, strlen(instructions)) : LS_OK;
}

/* --- one turn --------------------------------------------------------------------------------- */

static ls_status encode(session *c)
{
    json_t *object = json_pack("{s:O}", "messages", c->messages);
    ls_status st;

    if (!object)
        return ls_fail(LS_ENOMEM, "out of memory");
    ls_tokens_clear(&c->next);
    st = ls_generate_encode_chat(c->m, object, &c->next);
    json_decref(object);
    return st;
}

/* Leave out the oldest turn, behind what the system says. False: only the last message is left. */
static bool drop_turn(session *c)
{
    const char *role = json_string_value(json_object_get(json_array_get(c->messages, 0), "role"));
    size_t first = role && strcmp(role, "system") == 0;

    if (json_array_size(c->messages) < first + 3)
        return false;
    json_array_remove(c->messages, first);
    json_array_remove(c->messages, first);
    return true;
}

/* c->next, with room for an answer of at least a quarter of the context, or of --tokens. */
static ls_status encode_to_fit(session *c)
{
    int64_t room = ls_min_i64(c->s->count, ls_max_i64(c->context / 4, 1));
    int dropped = 0;
    ls_status st;

    LS_TRY(st, encode(c), out);
    while (c->next.count + room > c->context && drop_turn(c)) {
        dropped++;
        LS_TRY(st, encode(c), out);
    }
    if (c->next.count > c->context) {
        st = ls_fail(LS_EUSAGE, "the message has %lld tokens, but the context holds %lld",
                     (long long)c->next.count, (long long)c->context);
        ls_err_hint("Shorten it, or raise --context.");
        goto out;
    }
    if (dropped)
        fprintf(stderr, "the context of %lld tokens is full: %d oldest turn%s left out\n",
                (long long)c->context, dropped, dropped == 1 ? " is" : "s are");
out:
    return st;
}

/* How many of the next ids the cache holds. */
static int64_t common_beginning(const session *c)
{
    int64_t n = 0;

    while (n < c->ids.count && n + 1 < c->next.count && c->ids.ids[n] == c->next.ids[n])
        n++;
    return n;
}

static ls_status take_turn(session *c, const char *text, size_t len)
{
    json_t *before_it = json_copy(c->messages);
    ls_tokens swap;
    ls_str said;
    ls_status st = before_it ? LS_OK : ls_fail(LS_ENOMEM, "out of memory");

    ls_str_init(&said);
    if (st == LS_OK)
        st = add_message(c, "user", text, len);
    if (st == LS_OK)
        st = encode_to_fit(c);
    if (st != LS_OK && before_it) { /* a message that cannot be answered was not sent */
        json_decref(c->messages);
        c->messages = json_incref(before_it);
    }
    if (st != LS_OK)
        goto out;
    int64_t held = common_beginning(c), before = c->next.count;
    const ls_generate_task task = {.ids = &c->next, .held = held, .position = c->said};
    st = ls_generate_speak(c->m, c->s, &task, &said);
    c->said += c->next.count - before;
    swap = c->ids;
    c->ids = c->next;
    c->next = swap;
    if (st == LS_EINTR) { /* a part of an answer is one too */
        ls_err_clear();
        st = LS_OK;
    }
    if (st == LS_OK)
        st = add_message(c, "assistant", said.p, ls_utf8_valid(said.p, said.len));
out:
    json_decref(before_it);
    ls_str_release(&said);
    return st;
}

/* --- what the user types ---------------------------------------------------------------------- */

/* A line, or several that \ joins. False at the end of the input. */
static bool read_message(ls_str *out)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    ls_str_clear(out);
    fputs("> ", stdout);
    fflush(stdout);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            n--;
        if (n == 0 || line[n - 1] != '\\') {
            ls_str_append_bytes(out, line, (size_t)n);
            break;
        }
        ls_str_append_bytes(out, line, (size_t)n - 1);
        ls_str_append_char(out, '\n');
        fputs(". ", stdout);
        fflush(stdout);
    }
    free(line);
    return n >= 0;
}

/* A line that begins with /. *quit_out: the session is over. */
static ls_status obey(session *c, const char *line, bool *quit_out)
{
    static const char system_word[] = "/system ";

    *quit_out =
        strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0 || strcmp(line, "/bye") == 0;
    if (*quit_out)
        return LS_OK;
    if (strcmp(line, "/reset") == 0 || strcmp(line, "/clear") == 0 || strcmp(line, "/new") == 0) {
        fputs("a new conversation\n", stderr);
        return reset(c, NULL);
    }
    if (strncmp(line, system_word, sizeof system_word - 1) == 0) {
        fputs("a new conversation with these instructions\n", stderr);
        return reset(c, line + sizeof system_word - 1);
    }
    if (strcmp(line, "/help") != 0 && strcmp(line, "/?") != 0)
        fputs("there is no such command; a message may begin with a blank instead:\n", stderr);
    fputs(help, stderr);
    return LS_OK;
}

/* A mistake in a message does not end the session. */
static ls_status forgive(ls_status st)
{
    if (st != LS_EUSAGE && st != LS_EDATA)
        return st;
    fprintf(stderr, "%s\n", ls_err_last()->text);
    if (*ls_err_last()->hint)
        fprintf(stderr, "  hint: %s\n", ls_err_last()->hint);
    ls_err_clear();
    return LS_OK;
}

ls_status ls_generate_converse(ls_generate_model *m, const ls_generate_settings *s, int64_t context)
{
    session c = {.m = m, .s = s, .context = context, .messages = json_array()};
    bool quit = false;
    ls_str text;
    ls_status st = c.messages ? LS_OK : ls_fail(LS_ENOMEM, "out of memory");

    ls_tokens_init(&c.ids);
    ls_tokens_init(&c.next);
    ls_str_init(&text);
    if (!s->quiet)
        fputs("/help lists the commands, Ctrl-D ends.\n", stderr);
    while (st == LS_OK && !quit) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        if (!read_message(&text))
            break;
        st = ls_str_status(&text);
        if (st == LS_OK && ls_utf8_valid(text.p, text.len) != text.len)
            fputs("the message is not UTF-8\n", stderr);
        else if (st == LS_OK && text.len > 0 && text.p[0] == '/')
            st = obey(&c, text.p, &quit);
        else if (st == LS_OK && text.len > 0)
            st = forgive(take_turn(&c, text.p, text.len));
    }
    if (!quit)
        fputc('\n', stdout);
    json_decref(c.messages);
    ls_tokens_release(&c.ids);
    ls_tokens_release(&c.next);
    ls_str_release(&text);
    return st;
}
