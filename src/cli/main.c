/* main.c -- the entry; everything is in dispatch.c, where tests reach it.
 *
 * What is freed goes back to the system: large blocks are mappings of their own, for good. By
 * itself malloc takes what was large once for small from then on, and keeps it: a process would
 * hold buffers of its start, or of a save, that are in no ledger. */
#include "cli/dispatch.h"

#include <malloc.h>
#include <unistd.h>
#include "cli/process_limits.h"
#include "cli/report.h"

enum { LARGE = 128 << 10 };

int main(int argc, char **argv)
{
    (void)mallopt(M_MMAP_THRESHOLD, LARGE);
    (void)mallopt(M_TRIM_THRESHOLD, 2 * LARGE);
    if (ls_process_limits_begin() != LS_OK) {
        ls_term term;
        ls_term_init(&term, STDERR_FILENO, NULL);
        ls_report_error(ls_err_last(), &term);
        return ls_err_exit_code(ls_err_last()->code);
    }
    return ls_dispatch_main(argc, (const char *const *)argv);
}
