/* term.c -- terminals. */
#include "cli/term.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "data/tokenizer/utf8.h"

enum { DEFAULT_WIDTH = 80, PRINT_BYTES = 1 << 16 };

static bool wants_color(const ls_term *term, const ls_args *args)
{
    const char *given = args ? ls_args_value(args, "color") : NULL;
    const char *no_color = getenv("NO_COLOR");

    if (given && strcmp(given, "auto") != 0)
        return strcmp(given, "always") == 0;
    return term->cursor && !(no_color && *no_color);
}

void ls_term_measure(ls_term *term)
{
    struct winsize size;

    if (term->tty && ioctl(term->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        term->width = size.ws_col;
}

void ls_term_init(ls_term *term, int fd, const ls_args *args)
{
    const char *kind = getenv("TERM");

    *term = (ls_term){.fd = fd, .tty = isatty(fd) == 1, .width = DEFAULT_WIDTH};
    term->cursor = term->tty && kind && *kind && strcmp(kind, "dumb") != 0;
    term->color = wants_color(term, args);
    ls_term_measure(term);
}

void ls_term_text(const unsigned char *text, size_t len, FILE *to)
{
    for (size_t i = 0; i < len;) {
        int n = ls_utf8_next(text + i, len - i);
        unsigned char c = text[i];
        bool c1 = n == 2 && c == 0xc2 && text[i + 1] < 0xa0; /* U+0080 .. U+009F: control, too */
        bool plain = n > 1 ? !c1 : n == 1 && ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t');

        if (plain)
            fwrite(text + i, 1, (size_t)n, to);
        else
            fputc('.', to);
        i += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : len - i;
    }
}

/* How many bytes of a line fit into this many columns. Bytes that continue a character, and what sets a
 * style, take none. */
static size_t bytes_of_columns(const char *p, size_t len, int columns)
{
    size_t i = 0;

    while (i < len) {
        if (p[i] == '\033') {
            while (i < len && p[i] != 'm')
                i++;
            i += i < len;
            continue;
        }
        bool begins = ((unsigned char)p[i] & 0xc0) != 0x80;
        if (begins && columns-- == 0)
            break;
        i++;
    }
    return i;
}

/* Where to break: before a column of a table, else before the last word that does not fit; len: all
 * fits, or one long word. */
static size_t find_break(const char *p, size_t len, int columns)
{
    size_t fits = bytes_of_columns(p, len, columns), begin = strspn(p, " "), word = 0;

    if (fits == len)
        return len;
    for (size_t at = fits; at > begin; at--)
        if (p[at] == ' ' && p[at - 1] != ' ') {
            word = word ? word : at;
            if (p[at + 1] == ' ')
                return at;
        }
    if (word)
        return word;
    word = begin + strcspn(p + begin, " \n");
    return word < len ? word : len;
}

void ls_term_fold(const ls_term *term, ls_str *text)
{
    enum { FURTHER = 4 };
    ls_str folded;

    if (!term->tty || ls_str_status(text) != LS_OK)
        return;
    ls_str_init(&folded);
    for (const char *p = text->p; *p;) {
        size_t len = strcspn(p, "\n"), at = find_break(p, len, term->width);
        size_t lead = strspn(p, " "), in = (lead < FURTHER ? lead : FURTHER) + FURTHER;
        for (;;) {
            ls_str_append_bytes(&folded, p, at);
            len -= at + strspn(p + at, " ");
            p += at + strspn(p + at, " ");
            if (len == 0)
                break;
            ls_str_printf(&folded, "\n%*s", (int)in, "");
            at = find_break(p, len, term->width - (int)in);
        }
        if (*p == '\n') {
            ls_str_append_char(&folded, '\n');
            p++;
        }
    }
    if (ls_str_status(&folded) == LS_OK) { /* else it is shown as it is */
        ls_str swap = *text;
        *text = folded;
        folded = swap;
    }
    ls_str_release(&folded);
}

void ls_term_fold_stdout(const ls_args *args, ls_str *text)
{
    ls_term term;

    ls_term_init(&term, STDOUT_FILENO, args);
    ls_term_fold(&term, text);
}

static const char *const codes[] = {
    [LS_TERM_PLAIN] = "\033[0m", [LS_TERM_BOLD] = "\033[1m",   [LS_TERM_DIM] = "\033[2m",
    [LS_TERM_RED] = "\033[31m",  [LS_TERM_GREEN] = "\033[32m", [LS_TERM_YELLOW] = "\033[33m",
    [LS_TERM_CYAN] = "\033[36m",
};

const char *ls_term_code(const ls_term *term, ls_term_style style)
{
    return term->color ? codes[style] : "";
}

/* Bytes of what we ourselves put there at the front of text: a style, a line end, a tab. */
static size_t own_bytes(const char *text)
{
    for (size_t i = 0; i < LS_COUNT(codes); i++)
        if (strncmp(text, codes[i], strlen(codes[i])) == 0)
            return strlen(codes[i]);
    return *text == '\n' || *text == '\t';
}

void ls_term_append_visible(ls_str *out, const char *text, size_t len)
{
    for (size_t at = 0, end; at < len; at = end) {
        size_t own = own_bytes(text + at);
        end = at + own;
        while (!own && end < len && !(end > at && own_bytes(text + end)))
            end++;
        if (own)
            ls_str_append_bytes(out, text + at, own);
        else
            ls_str_append_visible(out, text + at, end - at);
    }
}

static ls_status print_bytes(const ls_str *text)
{
    if (fwrite(text->p, 1, text->len, stdout) != text->len || fflush(stdout) != 0)
        return ls_fail_sys(LS_EIO, "cannot write to standard output");
    return LS_OK;
}

ls_status ls_term_print(ls_str *text)
{
    ls_status st = ls_str_status(text);
    ls_str visible;

    ls_str_init(&visible);
    LS_TRY(st, st, out);
    if (isatty(STDOUT_FILENO) == 1) {
        ls_term_append_visible(&visible, text->p, text->len);
        LS_TRY(st, ls_str_status(&visible), out);
        LS_TRY(st, print_bytes(&visible), out);
    } else {
        LS_TRY(st, print_bytes(text), out);
    }
    ls_str_clear(text);
out:
    ls_str_release(&visible);
    return st;
}

ls_status ls_term_print_some(ls_str *text)
{
    return text->len < PRINT_BYTES ? LS_OK : ls_term_print(text);
}
