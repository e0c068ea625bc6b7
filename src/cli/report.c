/* report.c -- rendering an error record. */
#include "cli/report.h"

static void line(ls_str *out, const ls_term *term, const char *label, const char *text)
{
    if (*text)
        ls_str_printf(out, "  %s%s:%s %s\n", ls_term_code(term, LS_TERM_DIM), label,
                      ls_term_code(term, LS_TERM_PLAIN), text);
}

void ls_report_render(const ls_err_record *record, const ls_term *term, ls_str *out)
{
    /* Stopping on request is no mistake and should not look like one. */
    bool asked = record->code == LS_EINTR || record->code == LS_EUNSAVED;

    ls_str_printf(out, "lineshaft: %s%s%s:%s %s\n", ls_term_code(term, LS_TERM_BOLD),
                  ls_term_code(term, asked ? LS_TERM_YELLOW : LS_TERM_RED),
                  asked ? "stopped" : "error", ls_term_code(term, LS_TERM_PLAIN), record->text);
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
