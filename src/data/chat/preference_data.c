/* preference_data.c -- lines of preferences as windows of a marked shard.
 *
 * A window holds one sample: the prompt with one answer, the prompt with the other one, separators.
 * Each of the three is a document, so that nothing of one is seen by another. With windows of 16
 * tokens, a prompt P of 3, answers c of 4 and r of 2 (+: a target):
 *
 *     dpo    P P P c c c c | P P P r r | . . . .
 *                  + + + +         + +
 *     orpo   P P P c c c c | P P P r r | . . . .     its loss is that of the chosen one's prompt, too
 *              + + + + + +         + +
 *     kto    P P P a a a a | P P P o o | . . . .     o: the answer of the line before
 *            d     + + + +         + +               d: the answer is desirable
 *
 * So a pair is one sample: what decides the order of samples, their leaves and ranks, or where a
 * run goes on, knows nothing of pairs. The mark of a window's first token is free, because no token
 * predicts it: it says that the answer of kto is desirable.
 *
 * Tokens are those of trl: prompt alone and prompt with answer are encoded, and the answer begins
 * where they part. The end token follows a text; messages end as the template says. With kto, line
 * 1 takes the answer of the last line: it is laid down last. */
#include "data/chat/preference_data.h"

#include <sys/stat.h>
#include "base/log.h"
#include "base/mem.h"
#include "data/corpus/source.h"
#include "data/corpus/token_shard.h"

/* The tokens of a line. */
typedef struct sample {
    ls_tokens prompt;    /* alone */
    ls_tokens answer[2]; /* prompt and answer; kto: the second one is that of another line */
    int64_t begins;      /* tokens of the prompt in both */
    bool desirable;      /* kto */
} sample;

typedef struct builder {
    const ls_preference_data_args *args;
    ls_token_shard_writer *writer;
    sample now, first, before; /* of kto the first line, and the one before */
    ls_str text, marks;
    const char *where; /* "file:12" */
    int64_t now_s;     /* what a template takes for today */
    int64_t read, skipped, cut, lost;
} builder;

static void sample_init(sample *s)
{
    ls_tokens_init(&s->prompt);
    ls_tokens_init(&s->answer[0]);
    ls_tokens_init(&s->answer[1]);
}

static void sample_release(sample *s)
{
    ls_tokens_release(&s->prompt);
    ls_tokens_release(&s->answer[0]);
    ls_tokens_release(&s->answer[1]);
}

/* --- reading a line --------------------------------------------------------------------------- */

static ls_status no_json(void)
{
    return ls_fail(LS_ENOMEM, "cannot allocate a JSON value");
}

static ls_status bad_line(const builder *b, const char *why)
{
    ls_status st = ls_fail(LS_EDATA, "%s: %s", b->where, why);

    ls_err_hint(b->args->objective == LS_OBJECTIVE_KTO
                    ? "A line is {\"prompt\": ..., \"completion\": ..., \"label\": true}; prompt "
                      "and completion are both texts or both lists of messages."
                    : "A line is {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}, all of "
                      "them texts or all lists of messages.");
    return st;
}

static ls_status append_text(const json_t *text, ls_str *out)
{
    ls_str_append_bytes(out, json_string_value(text), json_string_length(text));
    return ls_str_status(out);
}

/* The text of prompt and answer; with NULL that of the prompt. */
static ls_status write_text(builder *b, const json_t *prompt, const json_t *answer)
{
    ls_status st = LS_OK;

    ls_str_clear(&b->text);
    LS_TRY(st, append_text(prompt, &b->text), out);
    if (answer)
        st = append_text(answer, &b->text);
out:
    return st;
}

/* The same of messages. line: the object, whose tools the template may read. */
static ls_status write_chat(builder *b, const json_t *line, const json_t *prompt,
                            const json_t *answer)
{
    ls_status st = LS_OK;
    json_t *object = json_copy((json_t *)(uintptr_t)line), *messages = json_array();

    ls_str_clear(&b->text);
    if (!object || !messages || json_array_extend(messages, (json_t *)(uintptr_t)prompt) != 0 ||
        (answer && json_array_extend(messages, (json_t *)(uintptr_t)answer) != 0) ||
        json_object_set(object, "messages", messages) != 0)
        st = no_json();
    if (st == LS_OK)
        st = (answer ? ls_chat_whole : ls_chat_prompt)(b->args->chat, object, b->where, b->now_s,
                                                       &b->text);
    json_decref(messages);
    json_decref(object);
    return st;
}

/* A text ends with the token that ends documents. */
static ls_status end_text(const builder *b, ls_tokens *ids)
{
    int32_t eos = ls_tokenizer_eos(b->args->tok);
    ls_status st = LS_OK;

    if (eos < 0)
        eos = ls_tokenizer_separator(b->args->tok);
    if (eos < 0 || (ids->count && ids->ids[ids->count - 1] == eos))
        return LS_OK;
    LS_TRY(st, ls_tokens_reserve(ids, 1), out);
    ids->ids[ids->count++] = eos;
out:
    return st;
}

/* Prompt and answer (NULL: none) as tokens. */
static ls_status encode(builder *b, const json_t *line, const json_t *prompt, const json_t *answer,
                        ls_tokens *ids)
{
    bool chat = json_is_array(prompt);
    int how = LS_ENCODE_SPECIAL | (chat ? 0 : LS_ENCODE_TEMPLATE);
    ls_status st = LS_OK;

    LS_TRY(st, chat ? write_chat(b, line, prompt, answer) : write_text(b, prompt, answer), out);
    ls_tokens_clear(ids);
    LS_TRY(st, ls_tokenizer_encode(b->args->tok, b->text.p, b->text.len, how, ids), out);
    ls_token_shard_note_text(b->writer, b->text.p, b->text.len);
    if (!chat && answer)
        st = end_text(b, ids);
out:
    return st;
}

static int64_t in_common(const ls_tokens *a, const ls_tokens *b)
{
    int64_t n = 0;

    while (n < a->count && n < b->count && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* Its fields are there. names: ended by NULL. */
static ls_status check_fields(const builder *b, const json_t *line, const char *const *names)
{
    char why[64];

    for (; *names; names++) {
        if (json_object_get(line, *names))
            continue;
        snprintf(why, sizeof why, "the line has no \"%s\"", *names);
        return bad_line(b, why);
    }
    return LS_OK;
}

/* Texts or messages, all of the same kind. */
static ls_status check_parts(const builder *b, const json_t *const *parts, int n)
{
    bool chat = json_is_array(parts[0]);

    for (int i = 0; i < n; i++)
        if (chat ? !json_is_array(parts[i]) : !json_is_string(parts[i]))
            return bad_line(b, "prompt and answers are not of one kind");
        else if (i > 0 && chat && json_array_size(parts[i]) == 0)
            return bad_line(b, "an answer has no message");
    if (!chat || b->args->chat)
        return LS_OK;
    ls_status st =
        ls_fail(LS_EDATA, "%s: there are messages, and no chat template for them", b->where);
    ls_err_hint("Set data.template to chatml, llama3, qwen or a .jinja file: the tokenizer has no "
                "template of its own.");
    return st;
}

/* What both answers begin with, as prompt, and what is left of them; new references. */
static ls_status split_messages(const json_t *const answers[2], json_t *parts_out[3])
{
    size_t n = 0;

    while (n < json_array_size(answers[0]) && n < json_array_size(answers[1]) &&
           json_equal(json_array_get(answers[0], n), json_array_get(answers[1], n)))
        n++;
    for (int i = 0; i < 3; i++)
        parts_out[i] = json_array();
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < json_array_size(answers[i]); k++)
            if ((k >= n || i == 0) &&
                json_array_append(parts_out[k < n ? 0 : 1 + i], json_array_get(answers[i], k)) != 0)
                return no_json();
    return LS_OK;
}

static ls_status split_texts(const json_t *const answers[2], json_t *parts_out[3])
{
    const char *a = json_string_value(answers[0]), *b = json_string_value(answers[1]);
    size_t la = json_string_length(answers[0]), lb = json_string_length(answers[1]), n = 0;

    while (n < la && n < lb && a[n] == b[n])
        n++;
    while (n > 0 && n < la && ((unsigned char)a[n] & 0xc0) == 0x80)
        n--; /* never inside a character */
    if (n > 0 && a[n - 1] == ' ')
        n--; /* a space belongs to the word behind it */
    parts_out[0] = json_stringn(a, n);
    parts_out[1] = json_stringn(a + n, la - n);
    parts_out[2] = json_stringn(b + n, lb - n);
    return parts_out[0] && parts_out[1] && parts_out[2] ? LS_OK : no_json();
}

/* A pair into b->now. */
static ls_status read_pair(builder *b, const json_t *line)
{
    json_t *own[3] = {NULL};
    const json_t *prompt = json_object_get(line, "prompt");
    const json_t *answers[2] = {json_object_get(line, "chosen"), json_object_get(line, "rejected")};
    sample *s = &b->now;
    ls_status st = LS_OK;

    LS_TRY(st, check_fields(b, line, (const char *const[]){"chosen", "rejected", NULL}), out);
    LS_TRY(st, check_parts(b, answers, 2), out);
    /* Beside answers in messages a prompt as text only repeats what both begin with. */
    bool repeated = json_is_string(prompt) && json_is_array(answers[0]);
    if (!prompt || repeated) {
        LS_TRY(st,
               json_is_array(answers[0]) ? split_messages(answers, own) : split_texts(answers, own),
               out);
        if (repeated && json_array_size(own[0]) == 0) {
            st = bad_line(b, "prompt and answers are not of one kind");
            goto out;
        }
        prompt = own[0];
        answers[0] = own[1];
        answers[1] = own[2];
    }
    LS_TRY(st, check_parts(b, (const json_t *const[]){prompt, answers[0], answers[1]}, 3), out);
    LS_TRY(st, encode(b, line, prompt, NULL, &s->prompt), out);
    for (int i = 0; i < 2; i++)
        LS_TRY(st, encode(b, line, prompt, answers[i], &s->answer[i]), out);
    s->begins =
        ls_min_i64(in_common(&s->prompt, &s->answer[0]), in_common(&s->prompt, &s->answer[1]));
out:
    for (int i = 0; i < 3; i++)
        json_decref(own[i]);
    return st;
}

/* An answer that is desirable or not. */
static ls_status read_answer(builder *b, const json_t *line)
{
    const json_t *parts[2] = {json_object_get(line, "prompt"), json_object_get(line, "completion")};
    const json_t *label = json_object_get(line, "label");
    sample *s = &b->now;
    ls_status st = LS_OK;

    st = check_fields(b, line, (const char *const[]){"prompt", "completion", "label", NULL});
    if (st == LS_EDATA && json_object_get(line, "chosen"))
        ls_err_hint("These are pairs: set train.objective to dpo or orpo.");
    if (st != LS_OK)
        goto out;
    LS_TRY(st, check_parts(b, parts, 2), out);
    bool number = json_is_integer(label) &&
                  (json_integer_value(label) == 0 || json_integer_value(label) == 1);
    if (!json_is_boolean(label) && !number) {
        st = bad_line(b, "\"label\" is neither true nor false");
        goto out;
    }
    s->desirable = number ? json_integer_value(label) == 1 : json_is_true(label);
    LS_TRY(st, encode(b, line, parts[0], NULL, &s->prompt), out);
    LS_TRY(st, encode(b, line, parts[0], parts[1], &s->answer[0]), out);
    s->begins = in_common(&s->prompt, &s->answer[0]);
out:
    return st;
}

/* --- laying down ------------------------------------------------------------------------------ */

/* One document of the sample in hand: of its n tokens those from `target` on are targets. */
static ls_status lay_answer(builder *b, const sample *s, int which, int64_t target)
{
    int64_t n = ls_min_i64(s->answer[which].count, b->args->window / 2);
    ls_status st = LS_OK;

    ls_str_clear(&b->marks);
    ls_str_reserve(&b->marks, (size_t)n);
    LS_TRY(st, ls_str_status(&b->marks), out);
    memset(b->marks.p, 0, (size_t)n);
    for (int64_t i = ls_max_i64(1, target); i < n; i++)
        b->marks.p[i] = 1;
    b->marks.p[0] = which == 0 && s->desirable;
    ls_token_shard_begin_document(b->writer);
    st = ls_token_shard_append_marked(b->writer, s->answer[which].ids,
                                      (const unsigned char *)b->marks.p, n);
out:
    return st;
}

/* Whether an answer has a target left in its half of the window. */
static bool has_target(const builder *b, const sample *s, int which)
{
    int64_t n = ls_min_i64(s->answer[which].count, b->args->window / 2);

    return n > ls_max_i64(1, s->begins);
}

static ls_status lay_sample(builder *b, const sample *s)
{
    int64_t half = b->args->window / 2;
    bool orpo = b->args->objective == LS_OBJECTIVE_ORPO;
    ls_status st = LS_OK;

    b->cut += s->answer[0].count > half || s->answer[1].count > half;
    if (!has_target(b, s, 0) || !has_target(b, s, 1)) {
        b->lost++;
        return LS_OK;
    }
    LS_TRY(st, lay_answer(b, s, 0, orpo ? 1 : s->begins), out);
    LS_TRY(st, lay_answer(b, s, 1, s->begins), out);
    st = ls_token_shard_fill_window(b->writer);
out:
    return st;
}

static ls_status append_ids(ls_tokens *to, const int32_t *ids, int64_t n)
{
    ls_status st = ls_tokens_reserve(to, n);

    if (st == LS_OK) {
        memcpy(to->ids + to->count, ids, (size_t)n * sizeof *ids);
        to->count += n;
    }
    return st;
}

/* Give s the answer of `other` for its second one, and lay it down. */
static ls_status lay_with_other(builder *b, sample *s, const sample *other)
{
    ls_status st = LS_OK;

    ls_tokens_clear(&s->answer[1]);
    LS_TRY(st, append_ids(&s->answer[1], s->answer[0].ids, s->begins), out);
    LS_TRY(st,
           append_ids(&s->answer[1], other->answer[0].ids + other->begins,
                      other->answer[0].count - other->begins),
           out);
    st = lay_sample(b, s);
out:
    return st;
}

static void swap_samples(sample *a, sample *b)
{
    sample keep = *a;

    *a = *b;
    *b = keep;
}

/* The sample of a line. Of kto the first one waits for the last line; each later one becomes the
 * line before. */
static ls_status lay_line(builder *b)
{
    ls_status st = LS_OK;

    b->read++;
    if (b->args->objective != LS_OBJECTIVE_KTO)
        return lay_sample(b, &b->now);
    if (b->read == 1) {
        swap_samples(&b->now, &b->first);
        return LS_OK;
    }
    st = lay_with_other(b, &b->now, b->read == 2 ? &b->first : &b->before);
    swap_samples(&b->now, &b->before);
    return st;
}

/* --- the whole -------------------------------------------------------------------------------- */

static ls_status next_line(const builder *b, ls_source *source, const json_t **line_out)
{
    static const char *const fields[] = {
        "prompt", "chosen", "rejected", "completion", "label", "tools", "chat_template_kwargs",
        NULL};
    ls_status st = ls_source_next_object(source, fields, line_out);

    if (st == LS_EUSAGE)
        ls_err_hint("train.objective: %s learns from JSON lines (.jsonl); docs/guide/preference.md "
                    "shows them.",
                    b->args->objective == LS_OBJECTIVE_KTO    ? "kto"
                    : b->args->objective == LS_OBJECTIVE_ORPO ? "orpo"
                                                              : "dpo");
    return st;
}

static ls_status read_file(builder *b, const char *file)
{
    ls_status st = LS_OK;
    ls_source *source = NULL;
    const json_t *line;
    struct stat info;
    ls_str where;

    ls_str_init(&where);
    LS_TRY(st,
           ls_source_open(&source, &(ls_source_args){.path = file,
                                                     .utf8 = b->args->utf8,
                                                     .skip_bad = b->args->skip_bad}),
           out);
    b->now_s = stat(file, &info) == 0 ? info.st_mtime : 0;
    for (;;) {
        LS_TRY(st, next_line(b, source, &line), out);
        if (!line)
            break;
        ls_str_clear(&where);
        ls_str_printf(&where, "%s:%lld", file, (long long)ls_source_line(source));
        LS_TRY(st, ls_str_status(&where), out);
        b->where = where.p;
        st = b->args->objective == LS_OBJECTIVE_KTO ? read_answer(b, line) : read_pair(b, line);
        if (st == LS_EDATA && b->args->skip_bad) {
            st = ls_source_skip(source, st);
            continue;
        }
        if (st == LS_OK)
            st = lay_line(b);
        if (st != LS_OK)
            goto out;
    }
    b->skipped += ls_source_skipped(source);
out:
    ls_source_close(source);
    ls_str_release(&where);
    return st;
}

static ls_status finish(builder *b)
{
    const ls_preference_data_args *a = b->args;
    bool kto = a->objective == LS_OBJECTIVE_KTO;
    ls_status st = LS_OK;

    if (kto && b->read == 1) {
        st = ls_fail(LS_EDATA, "\"%s\" has one line; kto compares answers of several", a->name);
        goto out;
    }
    if (kto && b->read > 1)
        LS_TRY(st, lay_with_other(b, &b->first, &b->before), out);
    if (ls_token_shard_written_tokens(b->writer) == 0) {
        st = ls_fail(LS_EDATA, "\"%s\" holds no pair whose answers begin in the first %lld tokens",
                     a->name, (long long)(a->window / 2));
        ls_err_hint("A prompt with one of its answers has half of model.context: raise it.");
        goto out;
    }
    int64_t windows = ls_token_shard_written_tokens(b->writer) / a->window;
    st = ls_token_shard_finish(b->writer);
    b->writer = NULL;
    if (st != LS_OK)
        goto out;
    if (b->skipped)
        ls_log(LS_LOG_WARN, "%lld line%s of \"%s\" %s skipped", (long long)b->skipped,
               ls_str_plural(b->skipped), a->name, b->skipped == 1 ? "was" : "were");
    if (b->cut)
        ls_log(LS_LOG_WARN,
               "%lld of %lld samples have an answer that was cut at %lld tokens, half of "
               "model.context%s",
               (long long)b->cut, (long long)b->read, (long long)(a->window / 2),
               b->lost ? "; those without an answer left were dropped" : "");
    ls_log(LS_LOG_INFO, "\"%s\": %lld samples", a->name, (long long)windows);
out:
    return st;
}

ls_status ls_preference_data_build(const ls_preference_data_args *args)
{
    ls_status st = LS_OK;
    builder b = {.args = args};
    sample *const all[] = {&b.now, &b.first, &b.before};

    for (size_t i = 0; i < LS_COUNT(all); i++)
        sample_init(all[i]);
    ls_str_init(&b.text);
    ls_str_init(&b.marks);
    if (args->chat)
        ls_chat_warn_of_spelling(args->chat);
    LS_TRY(st,
           ls_token_shard_create(&b.writer, &(ls_token_shard_args){.path = args->out,
                                                                   .tok = args->tok,
                                                                   .source = args->name,
                                                                   .key = args->key,
                                                                   .window = args->window}),
           out);
    for (int i = 0; i < args->n_files; i++)
        LS_TRY(st, read_file(&b, args->files[i]), out);
    st = finish(&b);
out:
    ls_token_shard_abandon(b.writer);
    for (size_t i = 0; i < LS_COUNT(all); i++)
        sample_release(all[i]);
    ls_str_release(&b.text);
    ls_str_release(&b.marks);
    return st;
}
