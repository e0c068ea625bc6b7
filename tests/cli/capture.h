/* capture.h -- run the program inside a test and keep what it printed. */
#pragma once
#include "base/str.h"

typedef struct ls_capture {
    int code;
    ls_str out, err;
} ls_capture;

/* Run lineshaft with these words (a NULL-terminated list without the program's name). */
void ls_capture_run(ls_capture *capture, const char *const *words);
void ls_capture_release(ls_capture *capture);

/* lineshaft a b c */
#define LS_CAPTURE(capture, ...) ls_capture_run((capture), (const char *const[]){__VA_ARGS__, NULL})

/* Run a shell command, its standard output and error together appended to out; its exit code. */
int ls_capture_shell(const char *command, ls_str *out);
