/* test_term.c -- colour by terminal, NO_COLOR and TERM, on a pseudo-terminal. */
#include "harness.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "cli/args.h"
#include "cli/term.h"

static int open_terminal(int *master)
{
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    if (*master < 0 || grantpt(*master) != 0 || unlockpt(*master) != 0)
        ls_test_skip("no pseudo-terminal can be opened here");
    int fd = open(ptsname(*master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        ls_test_skip("no pseudo-terminal can be opened here");
    return fd;
}

static void check_fold(int width, bool tty, const char *text, const char *want)
{
    const ls_term term = {.tty = tty, .width = width};
    ls_str s;

    ls_str_init(&s);
    ls_str_append(&s, text);
    ls_term_fold(&term, &s);
    LS_CHECK_STR(s.p, want);
    ls_str_release(&s);
}

LS_TEST(term_breaks_wide_lines_between_words)
{
    const char *const table = "step  saved  size\n  12  today  9.7 MiB\n";

    check_fold(40, true, table, table);
    check_fold(18, true, table,
               "step  saved  size\n  12  today\n      9.7 MiB\n"); /* whole columns */
    check_fold(9, true, "no columns here\n", "no\n    columns\n    here\n");
    check_fold(12, true, table, "step  saved\n    size\n  12  today\n      9.7\n      MiB\n");
    check_fold(12, false, table, table);
    check_fold(8, true, "averylongname x\n\nb", "averylongname\n    x\n\nb"); /* no word is cut */
    check_fold(5, true, "\xc3\xa4\xc3\xb6\xc3\xbc \xc3\x9f\n",
               "\xc3\xa4\xc3\xb6\xc3\xbc \xc3\x9f\n");
    check_fold(5, true, "\033[31mred\033[0m ab\n", "\033[31mred\033[0m\n    ab\n");
    check_fold(40, true, "", "");
}

LS_TEST(term_asks_the_terminal)
{
    struct winsize size = {.ws_col = 123, .ws_row = 40};
    int master, fd = open_terminal(&master);
    ls_term term;

    setenv("TERM", "xterm-256color", 1);
    unsetenv("NO_COLOR");
    LS_CHECK_EQ(ioctl(fd, TIOCSWINSZ, &size), 0);
    ls_term_init(&term, fd, NULL);
    LS_CHECK(term.tty && term.color);
    LS_CHECK_EQ(term.width, 123);
    LS_CHECK_STR(ls_term_code(&term, LS_TERM_RED), "\033[31m");
    setenv("NO_COLOR", "1", 1);
    ls_term_init(&term, fd, NULL);
    LS_CHECK(term.tty && !term.color);
    LS_CHECK_STR(ls_term_code(&term, LS_TERM_RED), "");
    setenv("NO_COLOR", "", 1); /* set but empty counts as not set */
    ls_term_init(&term, fd, NULL);
    LS_CHECK(term.color);
    setenv("TERM", "dumb", 1);
    ls_term_init(&term, fd, NULL);
    LS_CHECK(!term.color);
    unsetenv("TERM");
    ls_term_init(&term, fd, NULL);
    LS_CHECK(!term.color);
    close(fd);
    close(master);
}

LS_TEST(term_flag_goes_before_everything)
{
    int master, fd = open_terminal(&master);
    ls_args args;
    ls_term term;

    setenv("TERM", "dumb", 1);
    setenv("NO_COLOR", "1", 1);
    LS_CHECK_OK(
        ls_args_parse(&args, ls_commands, 2, (const char *const[]){"lineshaft", "--color=always"}));
    ls_term_init(&term, fd, &args);
    LS_CHECK(term.color);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    LS_CHECK_OK(
        ls_args_parse(&args, ls_commands, 2, (const char *const[]){"lineshaft", "--color=never"}));
    ls_term_init(&term, fd, &args);
    LS_CHECK(!term.color);
    close(fd);
    close(master);
}

LS_TEST(term_shows_text_of_others)
{
    static const char text[] = "\033[1mname\033[0m\t\033[8mhidden\nnext\033[2J \r\033[31mred";
    ls_str out;

    ls_str_init(&out);
    ls_term_append_visible(&out, text, sizeof text - 1);
    LS_CHECK_STR(out.p, "\033[1mname\033[0m\t\\x1b[8mhidden\nnext\\x1b[2J \\x0d\033[31mred");
    ls_str_release(&out);
}

LS_TEST(term_print_filters_for_a_terminal_only)
{
    int master, fd = open_terminal(&master), before = dup(STDOUT_FILENO), ends[2];
    char got[64];
    ls_str text;

    ls_str_init(&text);
    ls_str_append(&text, "a\033[2Jb");
    LS_CHECK_EQ(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
    LS_CHECK_OK(ls_term_print(&text));
    ssize_t n = read(master, got, sizeof got);
    LS_CHECK_EQ(n, 9);
    LS_CHECK(memcmp(got, "a\\x1b[2Jb", 9) == 0);
    LS_CHECK_EQ(text.len, 0);

    ls_str_append(&text, "a\033[2Jb");
    LS_CHECK_EQ(pipe(ends), 0);
    LS_CHECK_EQ(dup2(ends[1], STDOUT_FILENO), STDOUT_FILENO);
    LS_CHECK_OK(ls_term_print(&text));
    n = read(ends[0], got, sizeof got);
    LS_CHECK_EQ(n, 6);
    LS_CHECK(memcmp(got, "a\033[2Jb", 6) == 0);
    dup2(before, STDOUT_FILENO);
    close(before);
    close(ends[0]);
    close(ends[1]);
    close(fd);
    close(master);
    ls_str_release(&text);
}
