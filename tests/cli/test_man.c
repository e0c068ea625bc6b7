/* test_man.c -- the manual page is clean man(7) and holds everything. */
#include "harness.h"
#include "base/file.h"
#include "cli/capture.h"
#include "cli/man.h"
#include "config/option.h"

LS_TEST(man_page_names_every_command_and_option)
{
    ls_str page;

    ls_str_init(&page);
    ls_man_page(&page);
    LS_CHECK_OK(ls_str_status(&page));
    for (int i = 0; i < ls_option_count; i++) {
        char entry[96];
        snprintf(entry, sizeof entry, ".TP\n\\fB%s\\fR: ", ls_options[i].key);
        LS_CHECK(strstr(page.p, entry));
    }
    for (const char *p = page.p; *p; p += strcspn(p, "\n") + 1) /* only the requests we mean */
        LS_CHECK(*p != '\'' && (*p != '.' || strchr("TSPBIE", p[1])));
    ls_str_release(&page);
}

LS_TEST(man_page_formats_without_warnings)
{
    ls_str out;
    ls_capture c;

    ls_str_init(&out);
    if (ls_capture_shell("command -v groff || command -v man", &out) != 0)
        ls_test_skip("neither groff nor man is installed");
    LS_CAPTURE(&c, "man");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_OK(ls_file_write_atomic("lineshaft.1", c.out.p, c.out.len));
    ls_capture_release(&c);
    ls_str_clear(&out);
    LS_CHECK_EQ(
        ls_capture_shell("if command -v groff; then groff -ww -man -Tutf8 lineshaft.1; else "
                         "man -l --warnings lineshaft.1; fi >/dev/null",
                         &out),
        0);
    LS_CHECK_STR(out.p, "");
    ls_str_release(&out);
}
