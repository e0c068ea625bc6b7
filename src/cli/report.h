/* report.h -- how a failure looks to the user; the only place that renders one. */
#pragma once
#include "cli/term.h"
#include "cluster/node/agent.h"

/* Append
 *   lineshaft: error: text
 *     while: doing
 *     hint: sentence
 * with colour when the terminal has it. */
void ls_report_render(const ls_err_record *record, const ls_term *term, ls_str *out);

/* The same, written to standard error. */
void ls_report_error(const ls_err_record *record, const ls_term *term);

/* Show how a job ended: the first cause, the last lines of the worker that failed, and the others in
 * one line. Then end this process with the job's exit code, which scripts of a program that was
 * launched know, or return LS_OK when all went well. */
ls_status ls_report_job(const ls_agent_result *result, const ls_args *args);
