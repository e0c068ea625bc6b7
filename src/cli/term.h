/* term.h -- what a stream can show: is it a terminal, how wide, with colour or not.
 *
 * A value made once per stream; nothing global. Colour is used on a terminal unless NO_COLOR is set
 * or TERM is "dumb"; --color=always and --color=never decide otherwise. */
#pragma once
#include "cli/command.h"

typedef enum ls_term_style {
    LS_TERM_PLAIN, /* back to normal */
    LS_TERM_BOLD,
    LS_TERM_DIM,
    LS_TERM_RED,
    LS_TERM_GREEN,
    LS_TERM_YELLOW,
    LS_TERM_CYAN
} ls_term_style;

typedef struct ls_term {
    int fd;
    bool tty;
    bool cursor; /* a line can be drawn over: a terminal, and TERM is not "dumb" */
    bool color;
    int width; /* columns; 80 when it is no terminal */
} ls_term;

/* args may be NULL: no --color given. */
void ls_term_init(ls_term *term, int fd, const ls_args *args);

/* Ask for the width again; a window may change its size at any time. */
void ls_term_measure(ls_term *term);

/* Text of unknown origin as a terminal may get it: what is not UTF-8, or could move the cursor or
 * change colours, is shown as a dot; line ends stay. */
void ls_term_text(const unsigned char *text, size_t len, FILE *to);

/* Lines that are wider than a terminal are broken between words, and go on further in; what goes to a
 * pipe or file stays as it is. For tables and other text of lines, not for JSON or scripts. */
void ls_term_fold(const ls_term *term, ls_str *text);
/* The same for standard output; args may be NULL. */
void ls_term_fold_stdout(const ls_args *args, ls_str *text);

/* Lines that hold text of others (names of tensors and files, tokens) as a terminal may get them: of
 * control characters only line ends, tabs and the codes of ls_term_code() stay, others are shown as
 * \x1b. */
void ls_term_append_visible(ls_str *out, const char *text, size_t len);

/* The escape sequence of a style, "" without colour. */
const char *ls_term_code(const ls_term *term, ls_term_style style);

/* Write text to standard output and empty it; a terminal gets what ls_term_append_visible() makes of
 * it, a file or a pipe every byte. LS_EIO when it cannot be written (a full disk). */
ls_status ls_term_print(ls_str *text);
/* The same once enough has gathered. */
ls_status ls_term_print_some(ls_str *text);
