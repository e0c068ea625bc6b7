/* cmd_chat.c -- lineshaft data chat: conversations as a model would see them.
 *
 * A user who trains on chat data wants to see, before anything is computed, what the template makes
 * of a conversation and which part of it counts. Answers are green on a terminal, and stand between
 * marks that no template uses elsewhere. */
#include "cli/cmd_chat.h"

#include <sys/stat.h>
#include <unistd.h>
#include "data/chat/chat.h"
#include "data/corpus/source.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/term.h"
#include "config/option.h"

static const char open_mark[] = "\xe2\x9f\xa6", close_mark[] = "\xe2\x9f\xa7"; /* U+27E6, U+27E7 */

static const char *value_or(const ls_args *args, const char *flag, const char *otherwise)
{
    const char *value = ls_args_value(args, flag);

    return value ? value : otherwise;
}

/* --- seeing ----------------------------------------------------------------------------------- */

typedef struct viewer {
    ls_chat *chat;
    ls_chat_text text;
    ls_tokens ids;
    ls_str marks;
    ls_term term;
    bool json;
    int64_t now; /* what templates take for today */
} viewer;

static int64_t count_targets(const viewer *v)
{
    int64_t n = 0;

    for (size_t i = 0; i < v->marks.len; i++)
        n += v->marks.p[i];
    return n;
}

static void show_json(const viewer *v, int64_t line)
{
    ls_str out;
    ls_json j;

    ls_str_init(&out);
    ls_json_begin(&j, &out);
    ls_json_open(&j, '{');
    ls_json_put_int(&j, "line", line);
    ls_json_key(&j, "text");
    ls_json_text(&j, v->text.text.p, v->text.text.len);
    ls_json_key(&j, "answers");
    ls_json_open(&j, '[');
    for (int i = 0; i < v->text.answers.count; i++) {
        const ls_jinja_span *span = &v->text.answers.items[i];
        ls_json_text(&j, v->text.text.p + span->begin, span->end - span->begin);
    }
    ls_json_close(&j);
    ls_json_put_int(&j, "tokens", v->ids.count);
    ls_json_put_int(&j, "targets", count_targets(v));
    ls_json_close(&j);
    puts(ls_str_status(&out) == LS_OK ? out.p : "{}");
    ls_str_release(&out);
}

static void show_text(const viewer *v, int64_t line)
{
    const unsigned char *text = (const unsigned char *)v->text.text.p;
    size_t at = 0;

    printf("%s--- line %lld: %lld tokens, loss on %lld%s\n", ls_term_code(&v->term, LS_TERM_DIM),
           (long long)line, (long long)v->ids.count, (long long)count_targets(v),
           ls_term_code(&v->term, LS_TERM_PLAIN));
    for (int i = 0; i < v->text.answers.count; i++) {
        const ls_jinja_span *span = &v->text.answers.items[i];
        ls_term_text(text + at, span->begin - at, stdout);
        printf("%s%s", ls_term_code(&v->term, LS_TERM_GREEN), open_mark);
        ls_term_text(text + span->begin, span->end - span->begin, stdout);
        printf("%s%s", close_mark, ls_term_code(&v->term, LS_TERM_PLAIN));
        at = span->end;
    }
    ls_term_text(text + at, v->text.text.len - at, stdout);
    if (v->text.text.len && text[v->text.text.len - 1] != '\n')
        putchar('\n');
}

static ls_status show_conversations(viewer *v, ls_source *source, const char *file, int64_t first,
                                    int64_t count)
{
    ls_status st = LS_OK;
    const json_t *object;
    ls_str where;

    ls_str_init(&where);
    for (int64_t shown = 0; shown < count;) {
        LS_TRY(st, ls_source_next_object(source, ls_chat_fields, &object), out);
        int64_t line = ls_source_line(source);
        if (!object) {
            if (shown == 0)
                st = ls_fail(LS_EUSAGE, "\"%s\" has no conversation from line %lld on", file,
                             (long long)first);
            break;
        }
        if (line < first)
            continue;
        ls_str_clear(&where);
        ls_str_printf(&where, "%s:%lld", file, (long long)line);
        LS_TRY(st, ls_str_status(&where), out);
        LS_TRY(st, ls_chat_render(v->chat, object, where.p, v->now, &v->text), out);
        LS_TRY(st, ls_chat_encode(v->chat, &v->text, &v->ids, &v->marks), out);
        v->json ? show_json(v, line) : show_text(v, line);
        if (ls_chat_drops_tools(v->chat, object))
            ls_log(LS_LOG_WARN, "%s: the chat template does not write the tools of this line",
                   where.p);
        shown++;
    }
    if (st == LS_OK && fflush(stdout) != 0)
        st = ls_fail_sys(LS_EIO, "cannot write to standard output");
out:
    ls_str_release(&where);
    return st;
}

static ls_status run_chat(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    ls_source *source = NULL;
    const char *file = args->rest[0];
    int64_t count, first;
    struct stat info;
    viewer v = {.json = ls_args_has(args, "json")};

    (void)out;
    ls_chat_text_init(&v.text);
    ls_tokens_init(&v.ids);
    ls_str_init(&v.marks);
    ls_term_init(&v.term, STDOUT_FILENO, args);
    LS_TRY(st, ls_args_number(args, "count", 1, 1, INT64_MAX, &count), out);
    LS_TRY(st, ls_args_number(args, "line", 1, 1, INT64_MAX, &first), out);
    if (stat(file, &info) != 0) {
        st = ls_fail(LS_EUSAGE, "there is no file \"%s\"", file);
        goto out;
    }
    v.now = info.st_mtime;
    LS_TRY(st, ls_tokenizer_open(&tok, value_or(args, "tokenizer", "bytes")), out);
    LS_TRY(st,
           ls_chat_open(
               &v.chat,
               value_or(args, "template", ls_tokenizer_chat_template(tok) ? "auto" : "chatml"),
               tok),
           out);
    ls_chat_warn_of_spelling(v.chat);
    LS_TRY(st, ls_source_open(&source, &(ls_source_args){.path = file}), out);
    st = show_conversations(&v, source, file, first, count);
out:
    ls_source_close(source);
    ls_chat_close(v.chat);
    ls_tokenizer_free(tok);
    ls_chat_text_release(&v.text);
    ls_tokens_release(&v.ids);
    ls_str_release(&v.marks);
    return st;
}

/* --- building --------------------------------------------------------------------------------- */

static void say_built(const char *path, const ls_chat_built *n, int64_t window, bool json,
                      ls_str *out)
{
    int64_t kept = n->conversations - n->lost;
    ls_json j;

    if (json) {
        ls_json_begin(&j, out);
        ls_json_open(&j, '{');
        ls_json_put_str(&j, "file", path);
        ls_json_put_int(&j, "conversations", n->conversations);
        ls_json_put_int(&j, "cut", n->cut);
        ls_json_put_int(&j, "dropped", n->lost);
        ls_json_put_int(&j, "skipped", n->skipped);
        ls_json_put_int(&j, "windows", n->windows);
        ls_json_put_int(&j, "window", window);
        ls_json_put_int(&j, "tokens", n->tokens);
        ls_json_put_int(&j, "targets", n->targets);
        ls_json_close(&j);
    } else {
        ls_str_printf(
            out,
            "%s: %lld conversation%s in %lld window%s of %lld tokens (%.0f %% full), loss "
            "on %lld of %lld tokens",
            path, (long long)kept, kept == 1 ? "" : "s", (long long)n->windows,
            n->windows == 1 ? "" : "s", (long long)window,
            100.0 * (double)n->tokens / ((double)n->windows * (double)window),
            (long long)n->targets, (long long)n->tokens);
    }
    ls_str_append_char(out, '\n');
}

ls_status ls_cmd_chat_build(const ls_args *args, const ls_cmd_data_files *files, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    ls_chat *chat = NULL;
    ls_chat_built built;
    ls_str name;
    const char *policy = ls_args_value(args, "utf8");
    ls_chat_build_args build = {.out = ls_args_value(args, "out"),
                                .files = files->items,
                                .n_files = files->count,
                                .skip_bad = ls_args_has(args, "skip-bad")};

    ls_str_init(&name);
    if (!ls_args_has(args, "context")) {
        st = ls_fail(LS_EUSAGE, "--context is missing");
        ls_err_hint("Conversations are laid out for one length: give model.context of the run.");
        goto out;
    }
    /* A window is filled to its end, so a length that no run has would fill the disk. */
    int64_t most = (int64_t)ls_option_find("model.context")->most;
    LS_TRY(st, ls_args_number(args, "context", 0, 1, most, &build.window), out);
    if (policy)
        LS_TRY(st, ls_utf8_parse_policy(policy, &build.utf8), out);
    for (int i = 0; i < args->n_rest; i++)
        ls_str_printf(&name, "%s%s", i ? " " : "", args->rest[i]);
    LS_TRY(st, ls_str_status(&name), out);
    build.name = name.p;
    LS_TRY(st, ls_tokenizer_open(&tok, value_or(args, "tokenizer", "bytes")), out);
    LS_TRY(st, ls_chat_open(&chat, ls_args_value(args, "template"), tok), out);
    LS_TRY(st, ls_chat_build(chat, &build, &built), out);
    say_built(build.out, &built, build.window, ls_args_has(args, "json"), out);
out:
    ls_chat_close(chat);
    ls_tokenizer_free(tok);
    ls_str_release(&name);
    return st;
}

static const ls_flag chat_flags[] = {
    {"tokenizer", 't', "NAME", false, "Tokenizer to use; bytes unless given."},
    {"template", 0, "NAME", false,
     "Template: auto (the tokenizer's own), chatml, llama3, qwen, or a .jinja file; auto unless "
     "given, "
     "chatml "
     "where the tokenizer has none."},
    {"count", 'n', "N", false, "How many conversations to show; 1 unless given."},
    {"line", 0, "N", false, "Start at this line of the file."},
    {"json", 'j', NULL, false, "Print one JSON object per conversation instead of text."},
    {NULL, 0, NULL, false, NULL}};
const ls_command ls_cmd_chat = {
    .name = "chat",
    .summary = "show conversations as a model sees them, and what it is trained on",
    .arguments = "FILE.jsonl",
    .about =
        "Writes conversations out with a chat template. What the assistant says, which is what "
        "loss is computed on, stands between white square brackets and is green on a terminal. "
        "A run does the same with data.template.",
    .examples = "lineshaft data chat chat.jsonl --tokenizer models/qwen  # the first one\n"
                "lineshaft data chat chat.jsonl --template chatml -n 3 --line 10  # three more",
    .flags = chat_flags,
    .run = run_chat};
