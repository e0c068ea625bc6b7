/* report.c -- rendering an error record, and how a job ended. */
#include "cli/report.h"

#include <string.h>
#include <unistd.h>

/* Messages quote what is not ours: file names, tokens, what a chat template says. Further lines are
 * set in, so that none of them looks like one of the program. */
static void put_text(ls_str *out, const char *text)
{
    for (;;) {
        size_t n = strcspn(text, "\n");
        ls_str_append_visible(out, text, n);
        ls_str_append_char(out, '\n');
        text += n;
        if (!*text || !*++text)
            break;
        ls_str_append(out, "    ");
    }
}

static void line(ls_str *out, const ls_term *term, const char *label, const char *text)
{
    if (!*text)
        return;
    ls_str_printf(out, "  %s%s:%s ", ls_term_code(term, LS_TERM_DIM), label,
                  ls_term_code(term, LS_TERM_PLAIN));
    put_text(out, text);
}

void ls_report_render(const ls_err_record *record, const ls_term *term, ls_str *out)
{
    /* Stopping on request is no mistake and should not look like one. */
    bool asked = record->code == LS_EINTR || record->code == LS_EUNSAVED;

    ls_str_printf(out, "lineshaft: %s%s%s:%s ", ls_term_code(term, LS_TERM_BOLD),
                  ls_term_code(term, asked ? LS_TERM_YELLOW : LS_TERM_RED),
                  asked ? "stopped" : "error", ls_term_code(term, LS_TERM_PLAIN));
    put_text(out, record->text);
    line(out, term, "while", record->doing);
    line(out, term, "hint", record->hint);
}

void ls_report_error(const ls_err_record *record, const ls_term *term)
{
    ls_str text;

    ls_str_init(&text);
    ls_report_render(record, term, &text);
    /* Out of memory still gets its line: the record itself needs none. */
    fputs(text.failed ? "lineshaft: error: out of memory\n" : text.p, stderr);
    ls_str_release(&text);
}

static void show_lines(const ls_agent_result *result)
{
    fprintf(stderr, "  last lines of [%s]:\n", result->label);
    for (const char *p = result->last_lines; *p;) {
        int len = (int)strcspn(p, "\n");
        fputs("    ", stderr);
        ls_term_text((const unsigned char *)p, (size_t)len, stderr);
        fputc('\n', stderr);
        p += len + (p[len] == '\n');
    }
}

static void show_others(const ls_agent_result *result)
{
    int n = result->others;

    fprintf(stderr, "  and %d other%s that %s", n, n == 1 ? "" : "s",
            !result->stopped ? "failed"
            : n == 1         ? "was stopped"
                             : "were stopped");
    if (result->killed > 0)
        fprintf(stderr, ", %d of them by SIGKILL", result->killed);
    fputc('\n', stderr);
}

ls_status ls_report_job(const ls_agent_result *result, const ls_args *args)
{
    ls_term term;

    if (result->left > 0)
        fprintf(stderr, "lineshaft: warn: %d process%s could not be killed\n", result->left,
                result->left == 1 ? "" : "es");
    if (result->unread)
        exit(result->exit_code);
    if (result->cause.code == LS_OK)
        return LS_OK;
    if ((result->cause.code == LS_EINTR || result->cause.code == LS_EUNSAVED) && result->worker < 0)
        return ls_err_adopt(&result->cause);
    ls_term_init(&term, STDERR_FILENO, args);
    fflush(stdout);
    ls_report_error(&result->cause, &term);
    if (*result->last_lines)
        show_lines(result);
    if (result->others > 0)
        show_others(result);
    if (*result->note)
        fprintf(stderr, "  %s\n", result->note);
    fflush(stderr);
    exit(result->exit_code);
}
