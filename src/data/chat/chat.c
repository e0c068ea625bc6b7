/* chat.c -- renders a conversation and finds the answers in it.
 *
 * A template does not mark the answers in its text, unless it has {% generation %} blocks, which are
 * trusted. Without them, rendering the conversation several times shows three things:
 *   turns    what the template's loop over the messages writes for each of them in the whole
 *            conversation (ls_jinja_args.item_spans)
 *   prompt   what the template adds to ask the model to speak: the text of the messages before the
 *            first answer, with and without it, or behind its loop
 *   shape    the whole once more with another content in all answers, to tell what a turn has
 *            before its content
 * An answer is its turn behind the prompt, without the white space at its end. Example in ChatML:
 *   turn     <|im_start|>assistant\nHello<|im_end|>\n
 *   prompt   <|im_start|>assistant\n
 *   shape    <|im_start|>assistant\n?<|im_end|>\n
 *   answer   Hello<|im_end|>
 * Where a turn has only the front of the prompt (which opens a thought that this turn lacks), the
 * answer begins behind what turn, shape and prompt share. All this is done on the whole text, so it
 * does not matter that some templates write a message in another way when more messages follow it,
 * as those do that drop earlier thoughts. The work is that of four renders.
 *
 * A template that does not loop over the messages themselves is asked message by message. The text
 * `before` has the messages 0 to i-1 and the prompt, `after` the messages 0 to i. What `after` has
 * beyond `before` is the answer, where the whole begins with it; otherwise the answer lies where the
 * whole changes with its content. The work grows with the square of the messages and is limited. */
#include "data/chat/chat.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { VERSION = 4 };          /* raise it when other answers are found in the same text */
enum { SLOW_MESSAGES = 1000 }; /* of a conversation that is asked message by message */
static const int64_t longest_template = LS_JINJA_TEXT;
/* Characters for private use: no text has them, no template looks for them. */
static const char other_content[] = "\xee\x80\x81\xee\x80\x82\xee\x80\x83";

struct ls_chat {
    ls_jinja *tpl;
    char *text; /* of the template, owned */
    const ls_tokenizer *tok;
    ls_hash hash;
};

const char *const ls_chat_fields[] = {"messages", "conversations", "tools", "chat_template_kwargs",
                                      NULL};

bool ls_chat_is_meant(const char *name)
{
    return name && name[0] && strcmp(name, "none") != 0;
}

/* The template's text appended to text. */
static ls_status find_template(const char *name, const ls_tokenizer *tok, ls_str *text)
{
    const char *found = ls_jinja_builtin(name);
    ls_status st = LS_OK;

    if (strcmp(name, "auto") == 0) {
        found = ls_tokenizer_chat_template(tok);
        if (!found) {
            st = ls_fail(LS_EUSAGE, "tokenizer \"%s\" has no chat template of its own",
                         ls_tokenizer_name(tok));
            ls_err_hint("Name one: chatml, llama3, qwen, or a .jinja file.");
            return st;
        }
    }
    if (found) {
        ls_str_append(text, found);
        return ls_str_status(text);
    }
    if (!ls_file_exists(name)) {
        st = ls_fail(LS_EUSAGE, "there is no chat template \"%s\"", name);
        ls_err_hint("Name auto (the tokenizer's own), chatml, llama3, qwen, or a .jinja file.");
        return st;
    }
    return ls_file_read(name, longest_template, text);
}

void ls_chat_warn_of_spelling(const ls_chat *chat)
{
    char mark[64];

    if (strcmp(ls_tokenizer_name(chat->tok), "bytes") == 0)
        return; /* spells everything */
    for (const char *p = strstr(chat->text, "<|"); p; p = strstr(p + 2, "<|")) {
        const char *end = strstr(p, "|>");
        size_t n = end ? (size_t)(end + 2 - p) : sizeof mark;
        if (n >= sizeof mark || memchr(p, ' ', n) || memchr(p, '\'', n) || memchr(p, '"', n))
            continue; /* put together by the template */
        snprintf(mark, sizeof mark, "%.*s", (int)n, p);
        if (ls_tokenizer_find(chat->tok, mark) >= 0)
            continue;
        ls_log(LS_LOG_WARN,
               "the chat template writes %s, which is no token of \"%s\": it is spelled in pieces",
               mark, ls_tokenizer_name(chat->tok));
        return;
    }
}

ls_status ls_chat_open(ls_chat **out, const char *name, const ls_tokenizer *tok)
{
    ls_status st = LS_OK;
    ls_str text;
    ls_chat *chat = ls_mem_alloc(sizeof *chat);

    if (!chat)
        return LS_ENOMEM;
    ls_str_init(&text);
    chat->tok = tok;
    LS_TRY(st, find_template(name, tok, &text), out);
    LS_TRY(st, ls_jinja_parse(&chat->tpl, text.p, text.len, "chat template"), out);
    chat->text = ls_mem_alloc(text.len + 1);
    if (!chat->text) {
        st = LS_ENOMEM;
        goto out;
    }
    memcpy(chat->text, text.p, text.len + 1);
    ls_str_printf(&text, "%cversion %d", '\0', VERSION);
    LS_TRY(st, ls_str_status(&text), out);
    chat->hash = ls_hash_bytes(text.p, text.len);
    *out = chat;
out:
    if (st != LS_OK)
        ls_chat_close(chat);
    ls_str_release(&text);
    return st;
}

void ls_chat_close(ls_chat *chat)
{
    if (!chat)
        return;
    ls_jinja_free(chat->tpl);
    ls_mem_free(chat->text);
    ls_mem_free(chat);
}

const char *ls_chat_template(const ls_chat *chat)
{
    return chat->text;
}

bool ls_chat_drops_tools(const ls_chat *chat, const json_t *object)
{
    const json_t *tools = json_object_get(object, "tools");
    const char *text = json_string_value(tools);
    bool has = json_array_size(tools) > 0 || (text && *text && strcmp(text, "[]") != 0);

    return has && !strstr(chat->text, "tools");
}

ls_hash ls_chat_hash(const ls_chat *chat)
{
    return chat->hash;
}

const ls_tokenizer *ls_chat_tokenizer(const ls_chat *chat)
{
    return chat->tok;
}

void ls_chat_text_init(ls_chat_text *text)
{
    ls_str_init(&text->text);
    ls_jinja_spans_init(&text->answers);
}

void ls_chat_text_release(ls_chat_text *text)
{
    ls_str_release(&text->text);
    ls_jinja_spans_release(&text->answers);
}

/* --- the messages -----------------------------------------------------------------------------
 */

/* One conversation being written out. */
typedef struct job {
    const ls_chat *chat;
    const char *where;
    int64_t now;
    json_t *context;           /* owned; its messages are replaced for each text */
    json_t *messages;          /* owned */
    ls_jinja_item_spans turns; /* what each message wrote in the whole text; owned */
} job;

static ls_status no_json(void)
{
    return ls_fail(LS_ENOMEM, "cannot allocate a JSON value");
}

/* Texts of a list of {"type": "text", "text": ...} parts, joined. */
static ls_status join_parts(const job *j, size_t number, const json_t *parts, ls_str *out)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!json_is_string(text) || (type && strcmp(type, "text") != 0)) {
            ls_fail(LS_EDATA, "%s: part %zu of message %zu is not text", j->where, i + 1,
                    number + 1);
            ls_err_hint("Models here read text only: leave such lines out, or pass over them with "
                        "data.skip_bad (data build: --skip-bad).");
            return LS_EDATA;
        }
        ls_str_append_bytes(out, json_string_value(text), json_string_length(text));
    }
    return ls_str_status(out);
}

/* The content of a message as one string (or null beside tool calls), stored in it. */
static ls_status clean_content(const job *j, size_t number, json_t *message, const json_t *content)
{
    ls_status st = LS_OK;
    ls_str text;
    json_t *value = NULL;

    ls_str_init(&text);
    if (json_is_string(content)) {
        value = json_stringn(json_string_value(content), json_string_length(content));
    } else if (json_is_array(content)) {
        LS_TRY(st, join_parts(j, number, content, &text), out);
        value = json_stringn(text.p, text.len);
    } else if ((!content || json_is_null(content)) && json_object_get(message, "tool_calls")) {
        value = json_string("");
    } else {
        st = ls_fail(LS_EDATA, "%s: the content of message %zu is %s", j->where, number + 1,
                     content ? "not a string" : "missing");
        ls_err_hint("A message is {\"role\": ..., \"content\": \"text\"}.");
        goto out;
    }
    if (!value || json_object_set_new(message, "content", value) != 0)
        st = no_json();
out:
    ls_str_release(&text);
    return st;
}

static ls_status clean_role(const job *j, size_t number, json_t *message, const json_t *role)
{
    static const struct {
        const char *from, *to;
    } known[] = {{"user", "user"},       {"assistant", "assistant"}, {"system", "system"},
                 {"tool", "tool"},       {"developer", "developer"}, {"human", "user"},
                 {"gpt", "assistant"},   {"model", "assistant"},     {"function", "tool"},
                 {"observation", "tool"}};
    const char *name = json_string_value(role);

    for (size_t i = 0; name && i < LS_COUNT(known); i++)
        if (strcmp(name, known[i].from) == 0)
            return json_object_set_new(message, "role", json_string(known[i].to)) == 0 ? LS_OK
                                                                                       : no_json();
    ls_status st = name ? ls_fail(LS_EDATA, "%s: message %zu has the unknown role \"%.60s\"",
                                  j->where, number + 1, name)
                        : ls_fail(LS_EDATA, "%s: message %zu has no role", j->where, number + 1);
    ls_err_hint("Roles are system, developer, user, assistant and tool (human and gpt in the "
                "ShareGPT spelling).");
    return st;
}

/* Thoughts go by three names; templates read the first two. */
static ls_status name_thoughts(json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};

    for (size_t i = 0; i < LS_COUNT(names); i++) {
        json_t *thoughts = json_object_get(message, names[i]);
        if (!thoughts || json_is_null(thoughts))
            continue;
        if (json_object_set(message, "reasoning_content", thoughts) != 0 ||
            (!json_object_get(message, "thinking") &&
             json_object_set(message, "thinking", thoughts) != 0))
            return no_json();
        break;
    }
    return LS_OK;
}

/* The messages of a line in one spelling, as a new array in j. */
static ls_status read_messages(job *j, const json_t *object)
{
    const json_t *list = json_object_get(object, "messages");
    bool share = !list && json_object_get(object, "conversations");
    ls_status st = LS_OK;

    list = share ? json_object_get(object, "conversations") : list;
    if (!json_is_array(list)) {
        st = ls_fail(LS_EDATA, "%s: the line has no list \"messages\"", j->where);
        if (json_object_get(object, "instruction"))
            ls_err_hint("These are instructions: write each as {\"messages\": [{\"role\": "
                        "\"user\", \"content\": INSTRUCTION}, "
                        "{\"role\": \"assistant\", \"content\": OUTPUT}]}.");
        else
            ls_err_hint(
                "Chat data has {\"messages\": [{\"role\": ..., \"content\": ...}, ...]} in each "
                "line; for plain text set data.template to none.");
        return st;
    }
    if (json_array_size(list) == 0)
        return ls_fail(LS_EDATA, "%s: the conversation is empty", j->where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *message = json_copy(json_array_get(list, i));
        if (!json_is_object(message)) {
            json_decref(message);
            return ls_fail(LS_EDATA, "%s: message %zu is not an object", j->where, i + 1);
        }
        if (json_array_append_new(j->messages, message) != 0)
            return no_json();
        const json_t *from = json_object_get(message, "from"),
                     *value = json_object_get(message, "value");
        const json_t *role = json_object_get(message, "role"),
                     *content = json_object_get(message, "content");
        LS_TRY(st, clean_role(j, i, message, role ? role : from), out);
        LS_TRY(st, clean_content(j, i, message, content ? content : value), out);
        LS_TRY(st, name_thoughts(message), out);
    }
out:
    return st;
}

/* The tools of a line, a new reference, none: null. Tables cannot hold lists of unlike objects, so many
 * data sets have them as a text of JSON. */
static ls_status read_tools(const job *j, const json_t *object, json_t **out)
{
    json_t *tools = json_object_get(object, "tools");

    if (!json_is_string(tools)) {
        *out = tools ? json_incref(tools) : json_null();
        return LS_OK;
    }
    *out = json_string_length(tools) == 0
               ? json_null()
               : json_loads(json_string_value(tools), JSON_DECODE_ANY, NULL);
    return *out ? LS_OK : ls_fail(LS_EDATA, "%s: \"tools\" is a text that is not JSON", j->where);
}

/* A special token by its text, for templates that name it. */
static ls_status put_token(job *j, const char *name, int32_t id)
{
    ls_status st = LS_OK;
    ls_str text;

    if (id < 0)
        return LS_OK;
    ls_str_init(&text);
    LS_TRY(st, ls_tokenizer_decode(j->chat->tok, &id, 1, &text), out);
    if (json_object_set_new(j->context, name, json_stringn(text.p, text.len)) != 0)
        st = no_json();
out:
    ls_str_release(&text);
    return st;
}

/* What a template may read besides the messages. */
static ls_status fill_context(job *j, const json_t *object)
{
    json_t *tools = NULL, *more;
    ls_status st = LS_OK;

    LS_TRY(st, read_tools(j, object, &tools), out);
    LS_TRY(st, put_token(j, "bos_token", ls_tokenizer_bos(j->chat->tok)), out);
    LS_TRY(st, put_token(j, "eos_token", ls_tokenizer_eos(j->chat->tok)), out);
    more = json_object_get(object, "chat_template_kwargs");
    if ((json_is_object(more) && json_object_update(j->context, more) != 0) ||
        json_object_set(j->context, "tools", tools) != 0 ||
        json_object_set_new(j->context, "documents", json_null()) != 0)
        st = no_json();
out:
    json_decref(tools);
    return st;
}

/* --- the text ---------------------------------------------------------------------------------
 */

/* Write out the first n of some messages; args: what to note. */
static ls_status render_list(const job *j, json_t *messages, size_t n, bool prompt,
                             ls_jinja_args args, ls_str *out)
{
    json_t *some = json_array();

    for (size_t i = 0; some && i < n; i++)
        if (json_array_append(some, json_array_get(messages, i)) != 0) {
            json_decref(some);
            return no_json();
        }
    if (json_object_set_new(j->context, "messages", some) != 0 ||
        json_object_set_new(j->context, "add_generation_prompt", json_boolean(prompt)) != 0)
        return no_json();
    ls_str_clear(out);
    args.context = j->context;
    args.now = j->now;
    args.list = "messages";
    return ls_jinja_render(j->chat->tpl, &args, out);
}

static ls_status render(const job *j, size_t n, bool prompt, ls_str *out)
{
    return render_list(j, j->messages, n, prompt, (ls_jinja_args){.spans = NULL}, out);
}

/* The same with another content in message i. */
static ls_status render_other(const job *j, size_t n, size_t i, ls_str *out)
{
    json_t *message = json_array_get(j->messages, i);
    json_t *content = json_incref(json_object_get(message, "content"));
    ls_status st = LS_OK;

    if (json_object_set_new(message, "content", json_string(other_content)) != 0)
        st = no_json();
    if (st == LS_OK)
        st = render(j, n, false, out);
    if (json_object_set_new(message, "content", content) != 0 && st == LS_OK)
        st = no_json();
    return st;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t without_space(const char *p, size_t len)
{
    while (len && is_space(p[len - 1]))
        len--;
    return len;
}

static bool is_prefix(const char *p, size_t len, const ls_str *of)
{
    return len <= of->len && memcmp(p, of->p, len) == 0;
}

/* The end of an answer that reaches to len: white space behind the end of the turn is not part of
 * it, but where nothing else ends the turn it is. Nothing does when the content, which may be empty
 * beside tool calls, stands last; one that itself ends like a turn stands earlier too. */
static size_t end_of_turn(const job *j, size_t i, const char *text, size_t begin, size_t len)
{
    const json_t *content = json_object_get(json_array_get(j->messages, i), "content");
    const char *words = json_string_value(content);
    size_t n = without_space(words, json_string_length(content)), bare = without_space(text, len);

    if (bare <= begin)
        return len;
    return n && memmem(text + begin, bare - begin, words, n) == text + bare - n ? len : bare;
}

/* Where a and b part, and how much of their ends is equal behind that; never inside a character. */
static void compare_texts(const ls_str *a, const ls_str *b, size_t *front_out, size_t *back_out)
{
    size_t most = a->len < b->len ? a->len : b->len, front = 0, back = 0;

    while (front < most && a->p[front] == b->p[front])
        front++;
    while (front && ((unsigned char)a->p[front] & 0xc0) == 0x80)
        front--;
    while (back < most - front && a->p[a->len - 1 - back] == b->p[b->len - 1 - back])
        back++;
    while (back && ((unsigned char)a->p[a->len - back] & 0xc0) == 0x80)
        back--;
    *front_out = front;
    *back_out = back;
}

static ls_status refuse_answer(const job *j, size_t i)
{
    ls_status st =
        ls_fail(LS_EDATA,
                "%s: the answer in message %zu cannot be found in the text that the chat "
                "template makes of the conversation",
                j->where, i + 1);
    ls_err_hint("\"lineshaft data chat\" shows the text; a template with {%% generation %%} blocks "
                "says itself where answers are.");
    return st;
}

/* The answer of message i in a text that was rewritten; after holds messages 0 .. i. */
static ls_status find_rewritten(const job *j, size_t i, const ls_str *whole, const ls_str *after,
                                ls_jinja_span *span_out)
{
    size_t front, back, front_after, back_after;
    ls_status st = LS_OK;
    ls_str other;

    ls_str_init(&other);
    LS_TRY(st, render_other(j, json_array_size(j->messages), i, &other), out);
    compare_texts(whole, &other, &front, &back);
    if (whole->len == other.len && front == whole->len) { /* nothing of it is shown */
        st = refuse_answer(j, i);
        goto out;
    }
    LS_TRY(st, render_other(j, i + 1, i, &other), out);
    compare_texts(after, &other, &front_after, &back_after);
    size_t end = whole->len - back, tail_at = after->len - back_after;
    size_t tail = without_space(after->p + tail_at, back_after);
    tail = tail ? tail : back_after;
    if (json_object_get(json_array_get(j->messages, i), "tool_calls") || tail > back ||
        memcmp(whole->p + end, after->p + tail_at, tail) != 0)
        st = refuse_answer(j, i);
    *span_out = (ls_jinja_span){front, end + tail};
out:
    ls_str_release(&other);
    return st;
}

/* The answer of message i, asked for by itself. */
static ls_status find_alone(const job *j, size_t i, const ls_str *whole, ls_jinja_span *span_out)
{
    ls_status st = LS_OK;
    ls_str before, after;

    if (json_array_size(j->messages) > SLOW_MESSAGES)
        return ls_fail(LS_EDATA,
                       "%s: the conversation has %zu messages; with a template that does not loop "
                       "over the messages at most %d are possible",
                       j->where, json_array_size(j->messages), SLOW_MESSAGES);
    ls_str_init(&before);
    ls_str_init(&after);
    LS_TRY(st, render(j, i + 1, false, &after), out);
    /* A template may refuse a conversation that ends in the middle: then the other way is left. */
    st = render(j, i, true, &before);
    if (st != LS_OK && st != LS_EDATA)
        goto out;
    bool asked = st == LS_OK && is_prefix(before.p, before.len, &after);
    ls_err_clear();
    st = LS_OK;
    size_t end = asked ? end_of_turn(j, i, after.p, before.len, after.len) : 0;
    if (asked && end > before.len && is_prefix(after.p, end, whole))
        *span_out = (ls_jinja_span){before.len, end};
    else
        st = find_rewritten(j, i, whole, &after, span_out);
out:
    ls_str_release(&before);
    ls_str_release(&after);
    return st;
}

static bool is_answer(const job *j, size_t i)
{
    const json_t *role = json_object_get(json_array_get(j->messages, i), "role");

    return strcmp(json_string_value(role), "assistant") == 0;
}

/* What is needed to find answers in their turns. */
typedef struct shape {
    bool known;
    ls_str prompt; /* what asks the model to speak */
    ls_str text;   /* the whole with another content in all answers */
    ls_jinja_item_spans turns;
} shape;

/* How much of a text the template's loop over the messages wrote; 0 where it wrote in no loop. */
static size_t end_of_turns(const ls_jinja_item_spans *turns)
{
    return turns->count ? turns->items[turns->count - 1].span.end : 0;
}

/* The prompt follows the text without it, or takes the place of what a template writes behind its
 * loop where nobody is asked (Phi-3: the token that ends the text). */
static ls_status find_prompt(const job *j, ls_str *prompt_out, bool *found_out)
{
    size_t n = json_array_size(j->messages), first = 0;
    ls_jinja_item_spans turns = {.count = 0};
    ls_status st = LS_OK;
    ls_str without;

    while (first < n && (first == 0 || !is_answer(j, first)))
        first++;
    ls_str_init(&without);
    LS_TRY(st, render(j, first, false, &without), out);
    LS_TRY(
        st,
        render_list(j, j->messages, first, true, (ls_jinja_args){.item_spans = &turns}, prompt_out),
        out);
    *found_out = is_prefix(without.p, without.len, prompt_out);
    if (!*found_out) {
        size_t end = end_of_turns(&turns);
        *found_out = end && end <= without.len && is_prefix(without.p, end, prompt_out);
        without.len = end;
    }
    if (*found_out) {
        prompt_out->len -= without.len;
        memmove(prompt_out->p, prompt_out->p + without.len, prompt_out->len + 1);
    }
out:
    ls_mem_free(turns.items);
    ls_str_release(&without);
    return st;
}

static ls_status render_shape(const job *j, shape *s)
{
    size_t n = json_array_size(j->messages);
    json_t *others = json_array();
    ls_status st = others ? LS_OK : no_json();

    for (size_t i = 0; i < n && st == LS_OK; i++) {
        json_t *message = json_copy(json_array_get(j->messages, i));
        bool failed = message && is_answer(j, i) &&
                      json_object_set_new(message, "content", json_string(other_content)) != 0;
        if (failed)
            json_decref(message);
        if (failed || json_array_append_new(others, message) != 0)
            st = no_json();
    }
    if (st == LS_OK)
        st = render_list(j, others, n, false, (ls_jinja_args){.item_spans = &s->turns}, &s->text);
    json_decref(others);
    return st;
}

/* A template may refuse a conversation that ends early or has another content: then it is asked
 * message by message. */
static ls_status find_shape(const job *j, shape *s)
{
    ls_status st = find_prompt(j, &s->prompt, &s->known);

    if (st == LS_OK && s->known)
        st = render_shape(j, s);
    if (st != LS_EDATA)
        return st;
    s->known = false;
    ls_err_clear();
    return LS_OK;
}

/* The turns of n messages, each by its number: empty for one that wrote nothing, or in pieces. */
static ls_status index_turns(const ls_jinja_item_spans *spans, size_t n, ls_jinja_span **turns_out)
{
    ls_jinja_span *turns = ls_mem_array(n, sizeof *turns);

    if (!turns)
        return LS_ENOMEM;
    for (int i = 0; i < spans->count; i++) {
        ls_jinja_span *turn = &turns[spans->items[i].item];
        *turn = turn->begin || turn->end ? (ls_jinja_span){1, 0} : spans->items[i].span;
    }
    *turns_out = turns;
    return LS_OK;
}

/* The answer of message i in its turn; an empty one where nothing is behind the prompt. False: the
 * turn does not show the content. */
static bool find_in_turn(const job *j, size_t i, const ls_str *whole, ls_jinja_span turn,
                         const shape *s, ls_jinja_span other, ls_jinja_span *span_out)
{
    const char *p = whole->p + turn.begin, *o = s->text.p + other.begin, *asked = s->prompt.p;
    size_t len = turn.end - turn.begin, front = 0;
    const char *content = memmem(o, other.end - other.begin, other_content, strlen(other_content));

    if (!content && !json_object_get(json_array_get(j->messages, i), "tool_calls"))
        return false;
    size_t most = (content ? (size_t)(content - o) : other.end - other.begin);
    const char *hit = s->prompt.len ? memmem(o, most, asked, s->prompt.len) : NULL;
    if (hit) {
        most = (size_t)(hit - o) + s->prompt.len;
        asked = o;
    } else {
        most = most < s->prompt.len ? most : s->prompt.len;
    }
    while (front < most && front < len && p[front] == o[front] && asked[front] == o[front])
        front++;
    while (front && front < len && ((unsigned char)p[front] & 0xc0) == 0x80)
        front--;
    *span_out = (ls_jinja_span){turn.begin + front,
                                end_of_turn(j, i, whole->p, turn.begin + front, turn.end)};
    return true;
}

static ls_status find_answers(const job *j, const ls_str *whole, ls_jinja_spans *answers)
{
    ls_jinja_span *turns = NULL, *others = NULL;
    size_t n = json_array_size(j->messages), last = 0;
    shape s = {.known = false};
    ls_status st = LS_OK;

    answers->count = 0;
    ls_str_init(&s.prompt);
    ls_str_init(&s.text);
    LS_TRY(st, find_shape(j, &s), out);
    LS_TRY(st, index_turns(&j->turns, n, &turns), out);
    LS_TRY(st, index_turns(&s.turns, n, &others), out);
    for (size_t i = 0; i < n; i++) {
        ls_jinja_span span = {0, 0};
        if (!is_answer(j, i))
            continue;
        if (!s.known || turns[i].end <= turns[i].begin || others[i].end <= others[i].begin)
            LS_TRY(st, find_alone(j, i, whole, &span), out);
        else if (!find_in_turn(j, i, whole, turns[i], &s, others[i], &span))
            st = refuse_answer(j, i);
        if (st == LS_OK && span.begin < last)
            st = refuse_answer(j, i);
        if (st != LS_OK)
            goto out;
        last = span.end;
        LS_TRY(st, ls_jinja_spans_add(answers, span), out);
    }
    if (answers->count == 0) {
        st = ls_fail(LS_EDATA, "%s: the conversation has no message of the assistant", j->where);
        ls_err_hint("Loss is only on what the assistant says: leave such lines out.");
    }
out:
    ls_mem_free(turns);
    ls_mem_free(others);
    ls_mem_free(s.turns.items);
    ls_str_release(&s.prompt);
    ls_str_release(&s.text);
    return st;
}

/* A failure of the template gets the place in the data in front. */
static ls_status name_place(const job *j, ls_status st)
{
    if (st != LS_EDATA || strncmp(ls_err_last()->text, j->where, strlen(j->where)) == 0)
        return st;
    ls_err_record record = *ls_err_last();
    st = ls_fail(st, "%s: %s", j->where, record.text);
    if (record.hint[0])
        ls_err_hint("%s", record.hint);
    return st;
}

/* Read the conversation; to be ended even when this fails. */
static ls_status begin_job(job *j, const ls_chat *chat, const json_t *object, const char *where,
                           int64_t now)
{
    ls_status st = LS_OK;

    *j = (job){.chat = chat,
               .where = where,
               .now = now,
               .context = json_object(),
               .messages = json_array()};
    if (!j->context || !j->messages)
        return no_json();
    LS_TRY(st, read_messages(j, object), out);
    st = fill_context(j, object);
out:
    return st;
}

static ls_status end_job(job *j, ls_status st)
{
    json_decref(j->context);
    json_decref(j->messages);
    ls_mem_free(j->turns.items);
    return name_place(j, st);
}

ls_status ls_chat_render(const ls_chat *chat, const json_t *object, const char *where, int64_t now,
                         ls_chat_text *out)
{
    job j;
    ls_status st;
    bool marks = ls_jinja_marks(chat->tpl);

    LS_TRY(st, begin_job(&j, chat, object, where, now), out);
    LS_TRY(
        st,
        render_list(&j, j.messages, json_array_size(j.messages), false,
                    (ls_jinja_args){.spans = marks ? &out->answers : NULL, .item_spans = &j.turns},
                    &out->text),
        out);
    if (!marks)
        st = find_answers(&j, &out->text, &out->answers);
    else if (out->answers.count == 0)
        st = ls_fail(LS_EDATA, "%s: the conversation has no message of the assistant", where);
out:
    return end_job(&j, st);
}

/* All messages, and with `prompt` what asks the assistant to speak. */
static ls_status render_all(const ls_chat *chat, const json_t *object, const char *where,
                            int64_t now, bool prompt, ls_str *out)
{
    job j;
    ls_status st = begin_job(&j, chat, object, where, now);

    if (st == LS_OK)
        st = render(&j, json_array_size(j.messages), prompt, out);
    return end_job(&j, st);
}

ls_status ls_chat_prompt(const ls_chat *chat, const json_t *object, const char *where, int64_t now,
                         ls_str *out)
{
    return render_all(chat, object, where, now, true, out);
}

ls_status ls_chat_whole(const ls_chat *chat, const json_t *object, const char *where, int64_t now,
                        ls_str *out)
{
    return render_all(chat, object, where, now, false, out);
}

/* --- the end of a turn ------------------------------------------------------------------------
 */

/* What stands behind the answer in a conversation that has one. */
static ls_status find_end(const ls_chat *chat, const ls_chat_text *text, const char *content,
                          ls_str *end, int32_t *id_out)
{
    size_t n = strlen(content), at = text->answers.items[text->answers.count - 1].begin;
    size_t last = text->answers.items[text->answers.count - 1].end;
    const char *p = memmem(text->text.p + at, text->text.len - at, content, n);
    ls_status st = LS_OK;
    ls_tokens ids;

    if (!p)
        return LS_OK;
    p += n;
    size_t rest = text->text.p + last > p ? (size_t)(text->text.p + last - p) : 0;
    if (rest == 0) /* a {% generation %} block that closes before the end of the turn */
        rest = text->text.len - (size_t)(p - text->text.p);
    rest = without_space(p, rest);
    for (; rest && is_space(*p); p++)
        rest--;
    ls_tokens_init(&ids);
    ls_str_append_bytes(end, p, rest);
    LS_TRY(st, ls_str_status(end), out);
    LS_TRY(st, ls_tokenizer_encode(chat->tok, p, rest, LS_ENCODE_SPECIAL, &ids), out);
    int32_t id = ids.count ? ids.ids[ids.count - 1] : -1;
    if (ids.count == 1 || (id >= 0 && ls_tokenizer_is_special(chat->tok, id)))
        *id_out = id;
out:
    ls_tokens_release(&ids);
    return st;
}

ls_status ls_chat_turn_end(const ls_chat *chat, ls_str *text, int32_t *id_out)
{
    static const char content[] = "Hello";
    json_t *object = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content",
                               "Hi", "role", "assistant", "content", content);
    ls_chat_text written;
    ls_status st;

    *id_out = -1;
    ls_chat_text_init(&written);
    st = object ? ls_chat_render(chat, object, "the chat template", 0, &written) : no_json();
    if (st == LS_OK)
        st = find_end(chat, &written, content, text, id_out);
    else if (st != LS_ENOMEM) { /* it wants other messages: nothing is known */
        ls_err_clear();
        st = LS_OK;
    }
    ls_chat_text_release(&written);
    json_decref(object);
    return st;
}

/* --- tokens -----------------------------------------------------------------------------------
 */

/* Whether the ids, one by one, stand for exactly the bytes of the text; then a token lies in an
 * answer when its first byte does. */
static ls_status mark_by_bytes(const ls_chat *chat, const ls_chat_text *text, const ls_tokens *ids,
                               char *marks, bool *fits_out)
{
    const ls_jinja_spans *answers = &text->answers;
    ls_status st = LS_OK;
    size_t at = 0;
    int next = 0;
    ls_str piece;

    ls_str_init(&piece);
    *fits_out = false;
    for (int64_t i = 0; i < ids->count; i++) {
        ls_str_clear(&piece);
        LS_TRY(st, ls_tokenizer_decode(chat->tok, &ids->ids[i], 1, &piece), out);
        if (piece.len > text->text.len - at || memcmp(text->text.p + at, piece.p, piece.len) != 0)
            goto out;
        while (next < answers->count && answers->items[next].end <= at)
            next++;
        marks[i] = next < answers->count && at >= answers->items[next].begin;
        at += piece.len;
    }
    *fits_out = at == text->text.len;
out:
    ls_str_release(&piece);
    return st;
}

/* How many ids of the whole text begin in its first len bytes: those that these bytes alone give,
 * and one more where the whole has a token that reaches over their end. */
static ls_status count_begun(const ls_chat *chat, const ls_chat_text *text, const ls_tokens *ids,
                             size_t len, ls_tokens *part, int64_t *n_out)
{
    int64_t n = 0;

    ls_tokens_clear(part);
    ls_status st = ls_tokenizer_encode(chat->tok, text->text.p, len, LS_ENCODE_SPECIAL, part);
    while (st == LS_OK && n < part->count && n < ids->count && part->ids[n] == ids->ids[n])
        n++;
    *n_out = n + (n < part->count && n < ids->count);
    return st;
}

/* For tokenizers that change text (normalisation): an answer's tokens are those that begin behind
 * the text before it, and before its end. */
static ls_status mark_by_parts(const ls_chat *chat, const ls_chat_text *text, const ls_tokens *ids,
                               char *marks)
{
    ls_status st = LS_OK;
    ls_tokens part;

    ls_tokens_init(&part);
    memset(marks, 0, (size_t)ids->count);
    for (int i = 0; i < text->answers.count; i++) {
        int64_t begin, end;
        const ls_jinja_span *span = &text->answers.items[i];
        LS_TRY(st, count_begun(chat, text, ids, span->begin, &part, &begin), out);
        LS_TRY(st, count_begun(chat, text, ids, span->end, &part, &end), out);
        for (int64_t k = begin; k < end; k++)
            marks[k] = 1;
    }
out:
    ls_tokens_release(&part);
    return st;
}

ls_status ls_chat_encode(const ls_chat *chat, const ls_chat_text *text, ls_tokens *ids_out,
                         ls_str *marks_out)
{
    ls_status st = LS_OK;
    bool fits = false;

    ls_tokens_clear(ids_out);
    ls_str_clear(marks_out);
    LS_TRY(st,
           ls_tokenizer_encode(chat->tok, text->text.p, text->text.len, LS_ENCODE_SPECIAL, ids_out),
           out);
    ls_str_reserve(marks_out, (size_t)ids_out->count + 1);
    LS_TRY(st, ls_str_status(marks_out), out);
    marks_out->len = (size_t)ids_out->count;
    marks_out->p[marks_out->len] = '\0';
    LS_TRY(st, mark_by_bytes(chat, text, ids_out, marks_out->p, &fits), out);
    if (!fits)
        LS_TRY(st, mark_by_parts(chat, text, ids_out, marks_out->p), out);
    if (ids_out->count)
        marks_out->p[0] = 0;
out:
    return st;
}
