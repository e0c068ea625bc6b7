/* term.c -- terminals. */
#include "cli/term.h"

#include <sys/ioctl.h>
#include <unistd.h>

enum { DEFAULT_WIDTH = 80 };

static bool wants_color(bool tty, const ls_args *args)
{
    const char *given = args ? ls_args_value(args, "color") : NULL;
    const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");

    if (given && strcmp(given, "auto") != 0)
        return strcmp(given, "always") == 0;
    return tty && !(no_color && *no_color) && kind && *kind && strcmp(kind, "dumb") != 0;
}

void ls_term_init(ls_term *term, int fd, const ls_args *args)
{
    struct winsize size;

    *term = (ls_term){.fd = fd, .tty = isatty(fd) == 1, .width = DEFAULT_WIDTH};
    term->color = wants_color(term->tty, args);
    if (term->tty && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        term->width = size.ws_col;
}

const char *ls_term_code(const ls_term *term, ls_term_style style)
{
    static const char *const codes[] = {
        [LS_TERM_PLAIN] = "\033[0m", [LS_TERM_BOLD] = "\033[1m",   [LS_TERM_DIM] = "\033[2m",
        [LS_TERM_RED] = "\033[31m",  [LS_TERM_GREEN] = "\033[32m", [LS_TERM_YELLOW] = "\033[33m",
        [LS_TERM_CYAN] = "\033[36m",
    };

    return term->color ? codes[style] : "";
}

ls_status ls_term_print(const ls_str *text)
{
    if (ls_str_status(text) != LS_OK)
        return LS_ENOMEM;
    if (fwrite(text->p, 1, text->len, stdout) != text->len || fflush(stdout) != 0)
        return ls_fail_sys(LS_EIO, "cannot write to standard output");
    return LS_OK;
}
