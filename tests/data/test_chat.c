/* test_chat.c -- conversations: read, written out, marked, laid into windows, served. */
#include "data/chat/chat.h"

#include <unistd.h>
#include "data/corpus/corpus.h"
#include "data/corpus/loader.h"
#include "data/corpus/order_proof.h"
#include "data/corpus/source.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "base/mem.h"
#include "base/time.h"
#include "harness.h"

static const char hello[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                            "{\"role\":\"assistant\",\"content\":\"Hello\"}]}";

typedef struct chat {
    ls_tokenizer *tok;
    ls_chat *chat;
    ls_chat_text text;
} chat;

static void open_chat(chat *c, const char *template)
{
    LS_CHECK_OK(ls_tokenizer_open(&c->tok, "bytes"));
    LS_CHECK_OK(ls_chat_open(&c->chat, template, c->tok));
    ls_chat_text_init(&c->text);
}

static void close_chat(chat *c)
{
    ls_chat_close(c->chat);
    ls_tokenizer_free(c->tok);
    ls_chat_text_release(&c->text);
}

static ls_status render(chat *c, const char *line)
{
    json_error_t error;
    json_t *object = json_loads(line, 0, &error);

    LS_CHECK(object);
    ls_status st = ls_chat_render(c->chat, object, "f.jsonl:7", 0, &c->text);
    json_decref(object);
    return st;
}

/* The text with its answers in square brackets. */
static void check_text(chat *c, const char *line, const char *want)
{
    ls_str marked;
    size_t at = 0;

    LS_CHECK_OK(render(c, line));
    ls_str_init(&marked);
    for (int i = 0; i < c->text.answers.count; i++) {
        const ls_jinja_span *span = &c->text.answers.items[i];
        ls_str_append_bytes(&marked, c->text.text.p + at, span->begin - at);
        ls_str_append_char(&marked, '[');
        ls_str_append_bytes(&marked, c->text.text.p + span->begin, span->end - span->begin);
        ls_str_append_char(&marked, ']');
        at = span->end;
    }
    ls_str_append(&marked, c->text.text.p + at);
    LS_CHECK_STR(marked.p, want);
    ls_str_release(&marked);
}

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

LS_TEST(built_in_templates_mark_answers)
{
    static const char two[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
        "{\"role\":\"user\",\"content\":\"yes\"},{\"role\":\"assistant\",\"content\":\"yes\"},"
        "{\"role\":\"user\",\"content\":\"yes\"},{\"role\":\"assistant\",\"content\":\" ok "
        "\\n\"}]}";
    chat c;

    open_chat(&c, "chatml");
    check_text(&c, hello,
               "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>]\n");
    check_text(&c, two,
               "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nyes<|im_end|>\n"
               "<|im_start|>assistant\n[yes<|im_end|>]\n<|im_start|>user\nyes<|im_end|>\n"
               "<|im_start|>assistant\n[ ok \n<|im_end|>]\n");
    close_chat(&c);
    open_chat(&c, "qwen");
    check_text(&c, hello,
               "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
               "assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
               "[Hello<|im_end|>]\n");
    close_chat(&c);
    open_chat(&c, "llama3");
    check_text(&c, two,
               "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
               "<|start_header_id|>user<|end_header_id|>\n\nyes<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n[yes<|eot_id|>]"
               "<|start_header_id|>user<|end_header_id|>\n\nyes<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n[ok<|eot_id|>]");
    close_chat(&c);
}

LS_TEST(spellings_of_messages)
{
    chat c;

    put("plain.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                       "{% if add_generation_prompt %}a:{% endif %}");
    open_chat(&c, "plain.jinja");
    check_text(&c,
               "{\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\","
               "\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"r\"}]}",
               "s:s;u:q;a:[r;]");
    check_text(&c,
               "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
               "{\"type\":\"text\",\"text\":\"\xc3\xa9\"}]},{\"role\":\"assistant\",\"content\":"
               "[{\"type\":\"text\",\"text\":\"b\"}]}]}",
               "u:a\xc3\xa9;a:[b;]");
    check_text(&c,
               "{\"messages\":[{\"role\":\"assistant\",\"content\":\"first\"},{\"role\":\"user\","
               "\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\"}]}",
               "a:[first;]u:q;a:[;]");
    close_chat(&c);
    /* Without anything that ends a turn, white space does. */
    put("bare.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ '\\n' }}{% endfor "
                      "%}{% if add_generation_prompt %}a:{% endif %}");
    open_chat(&c, "bare.jinja");
    check_text(&c, hello, "u:Hi\na:[Hello\n]");
    close_chat(&c);
}

/* Thoughts of earlier answers are dropped, as Qwen3's template does. */
static const char thinking[] =
    "{%- set ns = namespace(last=0) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{%- for m in messages %}{{- '<' ~ m.role ~ '>' }}"
    "{%- if m.role == 'assistant' and loop.index0 < ns.last %}"
    "{{- m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{%- else %}{{- m.content }}{% endif %}{{- '<end>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<assistant>' }}{% endif %}";

LS_TEST(answers_are_found_in_rewritten_history)
{
    chat c;

    put("think.jinja", thinking);
    open_chat(&c, "think.jinja");
    check_text(&c,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\","
               "\"content\":\"<think>x</think>\\n\\nb\"},{\"role\":\"user\",\"content\":\"c\"},"
               "{\"role\":\"assistant\",\"content\":\"<think>y</think>\\n\\nd\"}]}",
               "<user>b<end>\n<assistant>[b<end>]\n<user>c<end>\n"
               "<assistant>[<think>y</think>\n\nd<end>]\n");
    close_chat(&c);
    /* A template that does not show an answer at all is told so. */
    put("blind.jinja", "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    open_chat(&c, "blind.jinja");
    LS_CHECK_FAILS(render(&c, hello), LS_EDATA,
                   "f.jsonl:7: the answer in message 2 cannot be found");
    close_chat(&c);
}

/* As Qwen3's template: behind the last question an answer shows its thoughts, an empty block when
 * it stands last; calls of tools follow the content, and what a tool says is written by the user. */
static const char qwen3[] =
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set text = m.content %}{%- set thoughts = m.reasoning_content or '' %}"
    "{%- if '</think>' in text %}"
    "{%- set thoughts = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- '<assistant>' }}"
    "{%- if loop.index0 > ns.last and (loop.last or thoughts) %}"
    "{{- '<think>' ~ thoughts ~ '</think>' }}{%- endif %}{{- text }}"
    "{%- for t in m.tool_calls or [] %}{{- '<call>' ~ t.function.name ~ '</call>' }}{%- endfor %}"
    "{{- '<end>\\n' }}"
    "{%- elif m.role == 'tool' %}{{- '<user><said>' ~ m.content ~ '</said><end>\\n' }}"
    "{%- else %}{{- '<' ~ m.role ~ '>' ~ m.content ~ '<end>\\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<assistant>' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}"
    "{%- endif %}{%- endif %}";

#define CALL(content)                                                                          \
    "{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[{\"function\":{\"name\":" \
    "\"f\",\"arguments\":{}}}]}"
#define TOOL "{\"role\":\"tool\",\"content\":\"4\"}"
#define SAID(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"

LS_TEST(a_template_may_write_a_message_in_another_way_when_more_follow)
{
    chat c;

    put("qwen3.jinja", qwen3);
    open_chat(&c, "qwen3.jinja");
    /* A call without thoughts, followed by the tool's word: alone it shows an empty thought. */
    check_text(&c,
               "{\"messages\":[" SAID("user", "q") "," CALL("null") "," TOOL
                                                                    "," SAID("assistant", "a") "]}",
               "<user>q<end>\n<assistant>[<call>f</call><end>]\n<user><said>4</said><end>\n"
               "<assistant>[<think></think>a<end>]\n");
    check_text(&c, "{\"messages\":[" SAID("user", "q") "," CALL("\"so\"") "," TOOL "]}",
               "<user>q<end>\n<assistant>[so<call>f</call><end>]\n<user><said>4</said><end>\n");
    /* Two answers in a row: the thoughts of both are answers. */
    check_text(
        &c,
        "{\"messages\":[" SAID("user", "q") "," SAID("assistant", "<think>x</think>a") "," SAID(
            "assistant", "<think>y</think>b") "]}",
        "<user>q<end>\n<assistant>[<think>x</think>a<end>]\n"
        "<assistant>[<think>y</think>b<end>]\n");
    /* A prompt that closes the thought: only the last answer has it, the first begins with '<'. */
    check_text(
        &c,
        "{\"messages\":[" SAID("user", "q") "," SAID("assistant", "<t>") "," SAID(
            "user", "r") "," SAID("assistant",
                                  "b") "],"
                                       "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
        "<user>q<end>\n<assistant>[<t><end>]\n<user>r<end>\n"
        "<assistant><think></think>[b<end>]\n");
    close_chat(&c);
}

/* Phi-3's template ends a text that asks nobody with a token of its own: that is no prompt, and ends no turn. */
LS_TEST(the_end_of_a_text_is_not_the_end_of_a_turn)
{
    static const char template[] =
        "{% for m in messages %}{{ '<' + m.role + '>\n' + m.content + '<end>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% else %}{{ '<stop>' }}{% endif %}";
    ls_str end;
    int32_t id;
    chat c;

    put("phi.jinja", template);
    open_chat(&c, "phi.jinja");
    check_text(
        &c,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
        "\"Ho\"},"
        "{\"role\":\"user\",\"content\":\"And?\"},{\"role\":\"assistant\",\"content\":\"So\"}]}",
        "<user>\nHi<end>\n<assistant>\n[Ho<end>]\n<user>\nAnd?<end>\n<assistant>\n[So<end>]\n<"
        "stop>");
    ls_str_init(&end);
    LS_CHECK_OK(ls_chat_turn_end(c.chat, &end, &id));
    LS_CHECK_STR(end.p, "<end>");
    ls_str_release(&end);
    close_chat(&c);
}

LS_TEST(built_in_templates_write_tool_calls_or_refuse_them)
{
    static const char line[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
        "\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":{\"x\":1}}},{\"name\":\"g\",\"arguments\":\"{}\"}]},{\"role\":\"tool\","
        "\"content\":\"4\"}]}";
    chat c;

    open_chat(&c, "chatml");
    check_text(&c, line,
               "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
               "[<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
               "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>]\n"
               "<|im_start|>tool\n4<|im_end|>\n");
    close_chat(&c);
    open_chat(&c, "llama3");
    LS_CHECK_FAILS(render(&c, line), LS_EDATA,
                   "f.jsonl:7: chat template line 5: the template "
                   "refuses this: llama3 has no form for tool calls");
    close_chat(&c);
}

/* A hundred thousand messages take as long as a hundred thousand short conversations, not longer;
 * a template that must be asked message by message says no. */
LS_TEST(long_conversations_take_no_square_of_time)
{
    enum { MANY = 100000 };
    int64_t since = ls_time_now_ns();
    ls_str line;
    chat c;

    ls_str_init(&line);
    ls_str_append(&line, "{\"messages\":[");
    for (int i = 0; i < MANY; i++)
        ls_str_append(&line, i == 0  ? SAID("user", "q")
                             : i % 2 ? "," SAID("assistant", "a")
                                     : "," SAID("user", "q"));
    ls_str_append(&line, "]}");
    open_chat(&c, "chatml");
    LS_CHECK_OK(render(&c, line.p));
    LS_CHECK_EQ(c.text.answers.count, MANY / 2);
    close_chat(&c);
    put("macro.jinja", "{% macro all() %}{% for m in messages %}{{ m.role[0] }}:{{ m.content }};"
                       "{% endfor %}{% if add_generation_prompt %}a:{% endif %}{% endmacro %}"
                       "{{ all() }}");
    open_chat(&c, "macro.jinja");
    check_text(&c, hello, "u:Hi;a:[Hello;]");
    LS_CHECK_FAILS(render(&c, line.p), LS_EDATA, "has 100000 messages");
    close_chat(&c);
    ls_str_release(&line);
    LS_CHECK_WITHIN(since, 30000);
}

LS_TEST(generation_blocks_are_believed)
{
    chat c;

    put("gen.jinja",
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<end>{% endfor %}");
    open_chat(&c, "gen.jinja");
    check_text(&c, hello, "<user>Hi<end><assistant>[Hello]<end>");
    LS_CHECK_FAILS(render(&c, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"), LS_EDATA,
                   "no message of the assistant");
    close_chat(&c);
}

LS_TEST(bad_conversations_are_refused_by_line)
{
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"{\"text\":\"x\"}", "has no list \"messages\""},
        {"{\"messages\":\"x\"}", "has no list \"messages\""},
        {"{\"messages\":[]}", "the conversation is empty"},
        {"{\"messages\":[1]}", "message 1 is not an object"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "message 1 has no role"},
        {"{\"messages\":[{\"role\":\"narrator\",\"content\":\"x\"}]}", "unknown role \"narrator\""},
        {"{\"messages\":[{\"role\":\"user\"}]}", "the content of message 1 is missing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "message 1 is not a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "message 1 is not a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
         "part 1 of message 1 is not text"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "no message of the assistant"},
    };
    chat c;

    open_chat(&c, "chatml");
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        LS_CHECK_FAILS(render(&c, rows[i].line), LS_EDATA, rows[i].says);
        LS_CHECK(strncmp(ls_err_last()->text, "f.jsonl:7: ", 11) == 0);
    }
    close_chat(&c);
    put("no.jinja", "{{ raise_exception('only in pairs') }}");
    open_chat(&c, "no.jinja");
    LS_CHECK_FAILS(render(&c, hello), LS_EDATA,
                   "f.jsonl:7: chat template line 1: the template "
                   "refuses this: only in pairs");
    close_chat(&c);
}

/* What Python's json module writes: unread it does not matter, and a template writes it as Python
 * does. */
LS_TEST(numbers_that_only_python_has_do_not_stop_a_conversation)
{
    static const char want[] = "\"arguments\": {\"n\": -18446744073709551615, "
                               "\"x\": [NaN, -Infinity, Infinity, 7]}}";
    ls_source *source;
    const json_t *object;
    chat c;

    put("n.jsonl",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"id\":18446744073709551615,"
        "\"score\":NaN},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":"
        "{\"name\":\"f\",\"arguments\":{\"n\":-18446744073709551615,\"x\":[NaN,-Infinity,1e999,7]"
        "}}}]}]}\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":NaN},{\"role\":\"assistant\",\"content\":"
        "\"b\"}]}\n");
    open_chat(&c, "chatml");
    LS_CHECK_OK(ls_source_open(&source, &(ls_source_args){.path = "n.jsonl"}));
    LS_CHECK_OK(ls_source_next_object(source, ls_chat_fields, &object));
    LS_CHECK_OK(ls_chat_render(c.chat, object, "n.jsonl:1", 0, &c.text));
    LS_CHECK(strstr(c.text.text.p, want));
    LS_CHECK_OK(ls_source_next_object(source, ls_chat_fields, &object));
    LS_CHECK_FAILS(ls_chat_render(c.chat, object, "n.jsonl:2", 0, &c.text), LS_EDATA,
                   "n.jsonl:2: the content of message 1 is not a string");
    ls_source_close(source);
    close_chat(&c);
}

LS_TEST(templates_are_found_or_refused)
{
    ls_tokenizer *tok;
    ls_chat *c;

    LS_CHECK(!ls_chat_is_meant(NULL) && !ls_chat_is_meant("none") && ls_chat_is_meant("auto"));
    LS_CHECK_OK(ls_tokenizer_open(&tok, "bytes"));
    LS_CHECK_FAILS(ls_chat_open(&c, "auto", tok), LS_EUSAGE, "has no chat template of its own");
    LS_CHECK_FAILS(ls_chat_open(&c, "chatmel", tok), LS_EUSAGE, "no chat template \"chatmel\"");
    put("bad.jinja", "a\n{{ x | foo }}");
    LS_CHECK_FAILS(ls_chat_open(&c, "bad.jinja", tok), LS_EDATA,
                   "chat template line 2: filter \"foo\" is not supported");
    ls_tokenizer_free(tok);
}

LS_TEST(marks_are_those_of_the_answers)
{
    chat c;
    ls_tokens ids;
    ls_str marks;

    open_chat(&c, "chatml");
    ls_tokens_init(&ids);
    ls_str_init(&marks);
    LS_CHECK_OK(render(&c, hello));
    LS_CHECK_OK(ls_chat_encode(c.chat, &c.text, &ids, &marks));
    LS_CHECK_EQ(ids.count, (int64_t)c.text.text.len);
    LS_CHECK_EQ(marks.len, c.text.text.len);
    const ls_jinja_span *span = &c.text.answers.items[0];
    for (int64_t i = 0; i < ids.count; i++) {
        LS_CHECK_EQ(ids.ids[i], (unsigned char)c.text.text.p[i]);
        LS_CHECK_EQ(marks.p[i], (size_t)i >= span->begin && (size_t)i < span->end);
    }
    ls_tokens_release(&ids);
    ls_str_release(&marks);
    close_chat(&c);
}

/* What ends the turn is told from the content, also when there is none or it looks like that. */
LS_TEST(blank_and_misleading_answers_end_with_their_turn)
{
    static const char blank[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                                "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]},"
                                "{\"role\":\"assistant\",\"content\":\"\\n\"},"
                                "{\"role\":\"assistant\",\"content\":\"<|im_end|> \"}]}";
    chat c;

    open_chat(&c, "chatml");
    check_text(&c, blank,
               "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[<|im_end|>]\n"
               "<|im_start|>assistant\n[\n<|im_end|>]\n"
               "<|im_start|>assistant\n[<|im_end|> <|im_end|>]\n");
    close_chat(&c);
    put("open.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                      "{% if add_generation_prompt %}assistant: {% endif %}");
    open_chat(&c, "open.jinja");
    check_text(&c, hello, "user: Hi\nassistant: [Hello\n]");
    close_chat(&c);
}

/* A tokenizer that changes text, as normalisation does: two equal bytes in a row become one id. */
static ls_status codec(const ls_tokenizer *tok, const unsigned char *bytes, size_t len,
                       unsigned how, ls_tokens *out)
{
    (void)tok;
    (void)how;
    LS_CHECK_OK(ls_tokens_reserve(out, (int64_t)len));
    for (size_t i = 0; i < len; i++)
        if (i == 0 || bytes[i] != bytes[i - 1])
            out->ids[out->count++] = bytes[i];
    return LS_OK;
}

static const unsigned char *no_piece(const ls_tokenizer *tok, int32_t id, bool first,
                                     size_t *len_out)
{
    (void)tok;
    (void)id;
    (void)first;
    *len_out = 1;
    return (const unsigned char *)"?";
}

LS_TEST(marks_do_not_need_tokens_that_spell_the_text)
{
    static const ls_tokenizer_kind kind = {.encode = codec, .piece = no_piece};
    ls_tokenizer tok = {.kind = &kind, .vocab = 256, .bos = -1, .eos = -1};
    chat c = {.tok = &tok};
    ls_tokens ids;
    ls_str marks;
    json_error_t error;
    json_t *object = json_loads(hello, 0, &error);

    put("t.jinja", "{% for m in messages %}{{ m.role[0] }}::{{ m.content }};;{% endfor %}"
                   "{% if add_generation_prompt %}a::{% endif %}");
    LS_CHECK_OK(ls_chat_open(&c.chat, "t.jinja", &tok));
    ls_chat_text_init(&c.text);
    ls_tokens_init(&ids);
    ls_str_init(&marks);
    LS_CHECK_OK(ls_chat_render(c.chat, object, "f:1", 0, &c.text));
    LS_CHECK_STR(c.text.text.p, "u::Hi;;a::Hello;;");
    LS_CHECK_OK(ls_chat_encode(c.chat, &c.text, &ids, &marks));
    static const char want[] = "u:Hi;a:Helo;", counts[] = ".......xxxxx";
    LS_CHECK_EQ(ids.count, (int64_t)strlen(want));
    for (int64_t i = 0; i < ids.count; i++) {
        LS_CHECK_EQ(ids.ids[i], want[i]);
        LS_CHECK_EQ(marks.p[i], counts[i] == 'x');
    }
    json_decref(object);
    ls_tokens_release(&ids);
    ls_str_release(&marks);
    ls_chat_text_release(&c.text);
    ls_chat_close(c.chat);
}

/* Two equal bytes in a row are one token, whose id says nothing of the text. */
static ls_status pair_up(const ls_tokenizer *tok, const unsigned char *bytes, size_t len,
                         unsigned how, ls_tokens *out)
{
    (void)tok;
    (void)how;
    LS_CHECK_OK(ls_tokens_reserve(out, (int64_t)len));
    for (size_t i = 0; i < len; i++) {
        bool two = i + 1 < len && bytes[i] == bytes[i + 1];
        out->ids[out->count++] = bytes[i] + (two ? 128 : 0);
        i += two;
    }
    return LS_OK;
}

LS_TEST(a_token_that_begins_before_the_answer_is_no_target)
{
    static const ls_tokenizer_kind kind = {.encode = pair_up, .piece = no_piece};
    ls_tokenizer tok = {.kind = &kind, .vocab = 256, .bos = -1, .eos = -1};
    chat c = {.tok = &tok};
    ls_tokens ids;
    ls_str marks;

    put("t.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                   "{% if add_generation_prompt %}a:{% endif %}");
    LS_CHECK_OK(ls_chat_open(&c.chat, "t.jinja", &tok));
    ls_chat_text_init(&c.text);
    ls_tokens_init(&ids);
    ls_str_init(&marks);
    LS_CHECK_OK(render(&c, "{\"messages\":[{\"role\":\"user\",\"content\":\"H\"},{\"role\":"
                           "\"assistant\",\"content\":\":x\"}]}"));
    LS_CHECK_STR(c.text.text.p, "u:H;a::x;");
    LS_CHECK_OK(ls_chat_encode(c.chat, &c.text, &ids, &marks));
    LS_CHECK_EQ(ids.count, 8);
    for (int64_t i = 0; i < ids.count; i++)
        LS_CHECK_EQ(marks.p[i], i >= 6); /* number 5 is the two colons */
    ls_tokens_release(&ids);
    ls_str_release(&marks);
    ls_chat_text_release(&c.text);
    ls_chat_close(c.chat);
}

/* --- shards and runs ---------------------------------------------------------------------------
 */

/* "u" and k letters, answered by k letters: 3 + 3 + 2k tokens with the template below. */
static void put_chats(const char *path, const int *lengths, int n)
{
    ls_str s;

    ls_str_init(&s);
    for (int i = 0; i < n; i++) {
        ls_str_append(&s, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (int k = 0; k < lengths[i]; k++)
            ls_str_append_char(&s, (char)('a' + i % 26));
        ls_str_append(&s, "\"},{\"role\":\"assistant\",\"content\":\"");
        for (int k = 0; k < lengths[i]; k++)
            ls_str_append_char(&s, (char)('A' + i % 26));
        ls_str_append(&s, "\"}]}\n");
    }
    put(path, s.p);
    ls_str_release(&s);
    put("t.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                   "{% if add_generation_prompt %}a:{% endif %}");
}

LS_TEST(conversations_are_laid_into_windows)
{
    static const int lengths[] = {5, 0, 2, 30, 1}; /* 16, 6, 10, 66, 8 tokens */
    const char *files[] = {"c.jsonl"};
    ls_chat_built built;
    ls_token_shard shard;
    int32_t ids[24];
    chat c;

    LS_EXPECT_LOG(1);
    put_chats("c.jsonl", lengths, 5);
    open_chat(&c, "t.jinja");
    LS_CHECK_OK(
        ls_chat_build(c.chat,
                      &(ls_chat_build_args){
                          .out = "c.lst", .files = files, .n_files = 1, .name = "c", .window = 24},
                      &built));
    LS_CHECK_EQ(built.conversations, 5);
    LS_CHECK_EQ(built.cut, 1);
    LS_CHECK_EQ(built.lost, 1); /* its question fills the window */
    LS_CHECK_EQ(built.tokens, 16 + 6 + 10 + 8);
    LS_CHECK_EQ(built.targets, 6 + 1 + 3 + 2);
    LS_CHECK_EQ(built.windows, 2);
    LS_CHECK_OK(ls_token_shard_open(&shard, "c.lst"));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    LS_CHECK_EQ(shard.tokens, 48);
    LS_CHECK_EQ(shard.documents, 6); /* 16 6 and filling, 10 8 and filling */
    LS_CHECK_EQ(ls_token_shard_start(&shard, 2), 22);
    LS_CHECK_EQ(ls_token_shard_start(&shard, 3), 24);
    LS_CHECK_OK(ls_token_shard_read(&shard, 0, 24, ids));
    static const char want[] = "u:aaaaa;a:AAAAA;u:;a:;\0\0";
    static const char marks[] = "..........xxxxxx.....x..";
    for (int i = 0; i < 24; i++) {
        LS_CHECK_EQ(ids[i], want[i]);
        LS_CHECK_EQ(ls_token_shard_is_target(&shard, i), marks[i] == 'x');
    }
    ls_token_shard_close(&shard);
    /* Files that hold no conversation leave nothing behind. */
    files[0] = "empty.jsonl";
    put("empty.jsonl", "\n \n");
    LS_CHECK_FAILS(
        ls_chat_build(c.chat,
                      &(ls_chat_build_args){
                          .out = "e.lst", .files = files, .n_files = 1, .name = "e", .window = 24},
                      NULL),
        LS_EDATA, "holds no conversation");
    LS_CHECK(!ls_file_exists("e.lst"));
    files[0] = "plain.txt";
    put("plain.txt", "x\n");
    LS_CHECK_FAILS(
        ls_chat_build(c.chat,
                      &(ls_chat_build_args){
                          .out = "e.lst", .files = files, .n_files = 1, .name = "e", .window = 24},
                      NULL),
        LS_EUSAGE, "\"plain.txt\" does not hold JSON lines");
    close_chat(&c);
}

#define WITH_TOOLS(tools)                                   \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}," \
    "{\"role\":\"assistant\",\"content\":\"b\"}],\"tools\":" tools "}\n"

LS_TEST(tools_may_be_a_text_of_json)
{
    chat c;

    put("tools.jinja",
        "{{ tools | tojson if tools else 'none' }}{% for m in messages %}|{{ m.content "
        "}}{% endfor %}");
    open_chat(&c, "tools.jinja");
    check_text(&c, WITH_TOOLS("[{\"name\":\"f\"}]"), "[{\"name\": \"f\"}]|a[|b]");
    check_text(&c, WITH_TOOLS("\"[{\\\"name\\\":\\\"f\\\"}]\""), "[{\"name\": \"f\"}]|a[|b]");
    check_text(&c, WITH_TOOLS("\"\""), "none|a[|b]");
    check_text(&c, WITH_TOOLS("null"), "none|a[|b]");
    LS_CHECK_FAILS(render(&c, WITH_TOOLS("\"f(x)\"")), LS_EDATA,
                   "f.jsonl:7: \"tools\" is a text that is not JSON");
    close_chat(&c);
}

LS_TEST(tools_that_a_template_does_not_write_are_told)
{
    static const char *const lines[] = {WITH_TOOLS("[{\"name\":\"f\"}]"), WITH_TOOLS("[]"),
                                        WITH_TOOLS("[1]")};
    const char *files[] = {"t.jsonl"};
    chat c;

    put("reads.jinja",
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% endfor %}");
    for (int i = 0; i < 3; i++) {
        put("t.jsonl", lines[i]);
        open_chat(&c, i == 2 ? "reads.jinja" : "chatml");
        if (i == 0)
            LS_EXPECT_LOG(1);
        LS_CHECK_OK(ls_chat_build(
            c.chat,
            &(ls_chat_build_args){
                .out = "t.lst", .files = files, .n_files = 1, .name = "t", .window = 100},
            NULL));
        close_chat(&c);
    }
}

LS_TEST(bad_lines_are_skipped_where_that_is_asked_for)
{
    const char *files[] = {"c.jsonl"};
    ls_chat_build_args args = {
        .out = "c.lst", .files = files, .n_files = 1, .name = "c", .window = 24};
    ls_chat_built built;
    chat c;

    LS_EXPECT_LOG(4); /* three lines and their number */
    put("t.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                   "{% if add_generation_prompt %}a:{% endif %}");
    put("c.jsonl", "{\"messages\":[]}\n"
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                   "\"content\":\"a\"}]}\n"
                   "not JSON\n"
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n");
    open_chat(&c, "t.jinja");
    LS_CHECK_FAILS(ls_chat_build(c.chat, &args, &built), LS_EDATA,
                   "c.jsonl:1: the conversation is empty");
    args.skip_bad = true;
    LS_CHECK_OK(ls_chat_build(c.chat, &args, &built));
    LS_CHECK_EQ(built.conversations, 1);
    LS_CHECK_EQ(built.skipped, 3);
    close_chat(&c);
}

typedef struct setup {
    ls_run run;
    ls_tokenizer *tok;
    const char *items[2];
} setup;

static void set_up(setup *s, const char *entry, int64_t context)
{
    memset(s, 0, sizeof *s);
    s->items[0] = entry;
    s->run.model.context = context;
    s->run.data.field = "text";
    s->run.data.chat_template = "t.jinja";
    s->run.data.shuffle = true;
    s->run.data.text = (ls_run_list){s->items, 1};
    LS_CHECK_OK(ls_tokenizer_open(&s->tok, "bytes"));
}

/* Every conversation comes whole, sees only itself, and counts only its answers. */
LS_TEST(a_run_trains_on_answers_only)
{
    enum { T = 24, CHATS = 26 };
    int lengths[CHATS], seen[CHATS] = {0};
    static ls_sample_order order;
    static ls_order_proof proof;
    const ls_batch *batch;
    ls_loader *loader;
    ls_corpus *c;
    setup s;

    for (int i = 0; i < CHATS; i++)
        lengths[i] = i % 9; /* 6 to 22 tokens */
    put_chats("c.jsonl", lengths, CHATS);
    set_up(&s, "c.jsonl", T);
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache"));
    LS_CHECK(ls_corpus_isolates(c));
    LS_CHECK_EQ(ls_corpus_built(c), 1);
    LS_CHECK_OK(ls_corpus_order(c, 3, T, &order));
    LS_CHECK_EQ(order.windows * T, ls_corpus_train_tokens(c, 0));
    LS_CHECK_OK(ls_order_proof_order(&order, 3 * order.windows + 1, NULL, NULL, &proof));
    LS_CHECK_STR(proof.fault, "");
    LS_CHECK(proof.passed);
    LS_CHECK_EQ(proof.sources[0].epochs, 3);
    ls_loader_args args = {.corpus = c, .seed = 3, .T = T, .sequences = 1};
    LS_CHECK_OK(ls_loader_open(&loader, &args));
    for (int64_t w = 0; w < order.windows; w++) {
        int64_t counted = 0;
        LS_CHECK_OK(ls_loader_next(loader, ls_test_soon(), &batch));
        LS_CHECK(batch->start);
        for (int t = 0; t < T; t++) {
            int32_t id = batch->tokens[t], target = batch->targets[t];
            if (id == 'u' && batch->tokens[t + 1] == ':')
                LS_CHECK_EQ(batch->start[t], t);
            /* An answer is capitals and the end of its turn. */
            bool counts =
                t + 1 < T && ((batch->tokens[t + 1] >= 'A' && batch->tokens[t + 1] <= 'Z') ||
                              (batch->tokens[t + 1] == ';' && id != ':' && id < 'a') ||
                              (batch->tokens[t + 1] == ';' && id == ':' && t > 0 &&
                               batch->tokens[t - 1] == 'a'));
            LS_CHECK_EQ(target, counts ? batch->tokens[t + 1] : -1);
            counted += counts;
            if (counts && target == ';' && id >= 'A')
                seen[id - 'A']++;
        }
        LS_CHECK_EQ(batch->counted, counted);
        ls_sample sample = ls_sample_order_at(&order, w);
        LS_CHECK_EQ(ls_corpus_window_targets(c, 0, sample.first, T, true), counted);
    }
    for (int i = 0; i < CHATS; i++)
        LS_CHECK_EQ(seen[i], lengths[i] > 0);
    ls_loader_close(loader);
    ls_corpus_close(c);
    ls_tokenizer_free(s.tok);
}

LS_TEST(chat_data_is_cached_split_and_checked)
{
    int lengths[40];
    int32_t tokens[24], targets[24], start[24];
    ls_corpus *c;
    setup s;

    for (int i = 0; i < 40; i++)
        lengths[i] = 7; /* 20 tokens: one in each window */
    put_chats("c.jsonl", lengths, 40);
    set_up(&s, "c.jsonl", 24);
    s.run.data.validation = 0.1;
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache"));
    LS_CHECK_EQ(ls_corpus_train_tokens(c, 0), 36 * 24);
    LS_CHECK_EQ(ls_corpus_validation_windows(c, 24), 4);
    for (int64_t i = 0; i < 4; i++) {
        LS_CHECK_OK(ls_corpus_validation(c, i, 24, tokens, targets, start));
        LS_CHECK_EQ(ls_corpus_counted(targets, 24), 8);
        LS_CHECK_EQ(start[23], 20); /* the filling */
        LS_CHECK_EQ(tokens[2], 'a' + (36 + i) % 26);
    }
    ls_hash hash = ls_corpus_hash(c);
    ls_corpus_close(c);
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache"));
    LS_CHECK_EQ(ls_corpus_built(c), 0);
    LS_CHECK(ls_hash_equal(ls_corpus_hash(c), hash));
    ls_corpus_close(c);
    /* Another template or another context is another shard. */
    s.run.model.context = 26;
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache"));
    LS_CHECK_EQ(ls_corpus_built(c), 1);
    ls_corpus_close(c);
    put("t.jinja", "{% for m in messages %}{{ m.role[1] }}:{{ m.content }};{% endfor %}"
                   "{% if add_generation_prompt %}s:{% endif %}");
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache"));
    LS_CHECK_EQ(ls_corpus_built(c), 1);
    ls_corpus_close(c);
    /* The shard alone, for the context it was made for and for another one. */
    s.items[0] = "cache/text-0.lst";
    s.run.data.shards = s.run.data.text;
    s.run.data.text.count = 0;
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache"));
    LS_CHECK(ls_corpus_isolates(c));
    ls_corpus_close(c);
    s.run.model.context = 24;
    LS_CHECK_FAILS(ls_corpus_open(&c, &s.run, s.tok, "cache"), LS_EDATA,
                   "laid out for a context of 26 tokens, model.context is 24");
    ls_tokenizer_free(s.tok);
}

LS_TEST(too_few_conversations_are_refused)
{
    static const int lengths[] = {7};
    ls_corpus *c;
    setup s;

    put_chats("c.jsonl", lengths, 1);
    set_up(&s, "c.jsonl", 24);
    LS_CHECK_OK(ls_corpus_open(&c, &s.run, s.tok, "cache")); /* one window is enough */
    ls_corpus_close(c);
    s.run.data.validation = 0.1;
    LS_CHECK_FAILS(ls_corpus_open(&c, &s.run, s.tok, "cache"), LS_EDATA,
                   "has 1 windows of 24 tokens, of which 0 are left for training");
    ls_tokenizer_free(s.tok);
}

LS_TEST(every_failing_allocation_of_a_chat_build_is_reported)
{
    static const int lengths[] = {3, 4};
    const char *files[] = {"c.jsonl"};
    uint64_t n = 1;
    chat c;

    put_chats("c.jsonl", lengths, 2);
    for (;; n++) {
        c = (chat){.tok = NULL};
        LS_CHECK_OK(ls_tokenizer_open(&c.tok, "bytes"));
        ls_mem_fail_nth(n);
        ls_status st = ls_chat_open(&c.chat, "t.jinja", c.tok);
        if (st == LS_OK)
            st = ls_chat_build(
                c.chat,
                &(ls_chat_build_args){
                    .out = "c.lst", .files = files, .n_files = 1, .name = "c", .window = 24},
                NULL);
        ls_mem_fail_nth(0);
        ls_chat_close(c.chat);
        ls_tokenizer_free(c.tok);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(!ls_file_exists("c.lst"));
    }
    LS_CHECK(n > 20);
}
