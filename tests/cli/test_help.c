/* test_help.c -- help pages as reviewed, and a table that cannot lie. */
#include "harness.h"
#include <ctype.h>
#include "cli/args.h"
#include "cli/capture.h"
#include "cli/help.h"
#include "golden/golden.h"

/* --- the table -------------------------------------------------------------------------------- */

static void check_flags(const ls_command *c)
{
    for (const ls_flag *f = c->flags; f && f->name; f++) {
        size_t n = strlen(f->doc);
        LS_CHECK(isupper((unsigned char)f->doc[0]) && f->doc[n - 1] == '.');
        LS_CHECK(f->name[0] && f->name[0] != '-');
        for (const ls_flag *other = c->flags; other < f; other++)
            LS_CHECK(strcmp(other->name, f->name) != 0 &&
                     (!f->letter || other->letter != f->letter));
        for (const ls_flag *g = ls_args_globals; g->name; g++)
            LS_CHECK(strcmp(g->name, f->name) != 0 && (!f->letter || g->letter != f->letter));
    }
}

/* The words of an example up to a pipe or redirection, cut at spaces outside quotes. */
static int split_words(char *line, const char **words, int most)
{
    int n = 0;
    char *p = line;

    while (*p) {
        char *to = p, quote = 0;
        words[n++] = p;
        LS_CHECK(n < most);
        for (; *p && (quote || *p != ' '); p++) {
            if ((*p == '\'' || *p == '"') && (!quote || quote == *p))
                quote = quote ? 0 : *p;
            else
                *to++ = *p;
        }
        bool more = *p == ' ';
        *to = '\0';
        p += more;
        while (*p == ' ')
            p++;
        if (words[n - 1][0] == '|' || words[n - 1][0] == '>' || words[n - 1][0] == '&')
            return n - 1;
    }
    return n;
}

/* Every example is accepted by the parser, and shows the command that it stands under. */
static void check_examples(const ls_command *c)
{
    const char *text = c->examples;

    LS_CHECK(text && *text);
    while (*text) {
        const char *doc, *words[40];
        char line[256];
        size_t doc_len, n = strcspn(text, "\n");
        size_t len = ls_help_split_example(text, &doc, &doc_len);
        ls_args args;

        LS_CHECK(doc_len > 0 && len < sizeof line);
        memcpy(line, text, len);
        line[len] = '\0';
        int argc = split_words(line, words, 40);
        bool ours = strcmp(words[0], "lineshaft") == 0;
        if (ours && ls_args_parse(&args, ls_commands, argc, words) != LS_OK)
            ls_test_fail(__FILE__, __LINE__, "the example \"%.*s\" of \"%s\": %s", (int)len, text,
                         c->name, ls_err_last()->text);
        bool below = false;
        for (const ls_command *const *s = c->subs; s && *s; s++)
            below |= ours && args.command == *s;
        if (ours && args.command != c && !below)
            ls_test_fail(__FILE__, __LINE__, "the example \"%.*s\" of \"%s\" is of another command",
                         (int)len, text, c->name);
        text += n + (text[n] == '\n');
    }
}

static void check_command(const ls_command *c)
{
    size_t n = strlen(c->summary);

    LS_CHECK(islower((unsigned char)c->summary[0]) && c->summary[n - 1] != '.');
    LS_CHECK(c->about && *c->about);
    LS_CHECK_EQ(c->run == NULL, c->subs != NULL); /* a leaf runs, a group does not */
    check_flags(c);
    check_examples(c);
    for (const ls_command *const *s = c->subs; s && *s; s++)
        check_command(*s);
}

LS_TEST(help_table_is_complete)
{
    int n = 0;

    for (const ls_command *const *c = ls_commands; *c; c++, n++) {
        LS_CHECK(ls_args_find_command(ls_commands, (*c)->name) == *c);
        check_command(*c);
    }
    LS_CHECK(n >= 5);
}

/* --- pages ------------------------------------------------------------------------------------ */

LS_TEST(help_pages_are_as_reviewed)
{
    static const char *const pages[][5] = {
        {"--help"},
        {"help", "config"},
        {"config", "check", "--help"},
        {"help", "help"},
        {"help", "train.lr"},
        {"help", "batch"},
        {"help", "exit-codes"},
        {"help", "environment"},
    };
    ls_str text;

    ls_str_init(&text);
    for (size_t i = 0; i < LS_COUNT(pages); i++) {
        ls_capture c;
        ls_capture_run(&c, pages[i]);
        LS_CHECK_EQ(c.code, 0);
        LS_CHECK_STR(c.err.p, "");
        ls_str_append(&text, "$ lineshaft");
        for (int k = 0; pages[i][k]; k++)
            ls_str_printf(&text, " %s", pages[i][k]);
        ls_str_printf(&text, "\n%s\n", c.out.p);
        ls_capture_release(&c);
    }
    ls_golden_check("tests/golden/help.txt", &text, "LINESHAFT_GOLDEN=write");
    ls_str_release(&text);
}

LS_TEST(help_topics_that_do_not_exist)
{
    static const struct {
        const char *words[3], *part;
    } cases[] = {
        {{"help", "confg"}, "Did you mean \"lineshaft config\"?"},
        {{"help", "train.sted"}, "Did you mean \"train.seed\"?"},
        {{"help", "config"}, NULL},
    };

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        ls_capture c;
        ls_capture_run(&c, cases[i].words);
        LS_CHECK_EQ(c.code, cases[i].part ? 2 : 0);
        if (cases[i].part)
            LS_CHECK(strstr(c.err.p, cases[i].part) && c.out.len == 0);
        ls_capture_release(&c);
    }
}

LS_TEST(help_pages_in_docs_are_fresh)
{
    ls_str text;

    ls_str_init(&text);
    ls_help_commands_markdown(&text);
    ls_golden_check("docs/reference/commands.md", &text,
                    "lineshaft help --markdown > docs/reference/commands.md");
    ls_str_clear(&text);
    ls_help_exit_codes_markdown(&text);
    ls_golden_check("docs/reference/exit-codes.md", &text,
                    "lineshaft help exit-codes --markdown > docs/reference/exit-codes.md");
    ls_str_release(&text);
}

LS_TEST(help_flows_paragraphs_and_keeps_indented_lines)
{
    ls_str out;

    ls_str_init(&out);
    ls_help_flow("one two three\nfour five\n\n  kept   as is, however long it may be\nlast", 2, 16,
                 &out);
    LS_CHECK_STR(out.p, "  one two three\n  four five\n\n    kept   as is, however long it may be\n"
                        "  last\n");
    ls_str_clear(&out);
    ls_help_flow("averyveryverylongword b", 0, 8, &out);
    LS_CHECK_STR(out.p, "averyveryverylongword\nb\n");
    ls_str_release(&out);
}

LS_TEST(help_exit_codes_cover_every_class)
{
    LS_CHECK_EQ(ls_help_exit_count, LS_EINTR + 1);
    for (int i = 0; i < ls_help_exit_count; i++)
        LS_CHECK_EQ(ls_help_exits[i].status, i);
}
