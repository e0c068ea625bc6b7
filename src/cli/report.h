/* report.h -- how a failure looks to the user; the only place that renders one. */
#pragma once
#include "cli/term.h"

/* Append
 *   lineshaft: error: text
 *     while: doing
 *     hint: sentence
 * with colour when the terminal has it. */
void ls_report_render(const ls_err_record *record, const ls_term *term, ls_str *out);

/* The same, written to standard error. */
void ls_report_error(const ls_err_record *record, const ls_term *term);
