/* golden.c -- comparing with files under the project's root. */
#include "golden/golden.h"

#include <limits.h>
#include "harness.h"
#include "base/file.h"

static void place(const char *path, char out[PATH_MAX])
{
    LS_CHECK(snprintf(out, PATH_MAX, "%s/%s", ls_test_root(), path) < PATH_MAX);
}

void ls_golden_read(const char *path, ls_str *text_out)
{
    char full[PATH_MAX];

    place(path, full);
    if (ls_file_exists(full))
        LS_CHECK_OK(ls_file_read(full, LS_MIB, text_out));
}

void ls_golden_check(const char *path, const ls_str *got, const char *how)
{
    char full[PATH_MAX];
    const char *mode = getenv("LINESHAFT_GOLDEN");
    ls_str want;

    LS_CHECK_OK(ls_str_status(got));
    if (mode && strcmp(mode, "write") == 0) {
        place(path, full);
        LS_CHECK_OK(ls_file_write_atomic(full, got->p, got->len));
        return;
    }
    ls_str_init(&want);
    ls_golden_read(path, &want);
    const char *a = got->p, *b = want.p;
    for (int line = 1; *a || *b; line++) {
        int na = (int)strcspn(a, "\n"), nb = (int)strcspn(b, "\n");
        if (na != nb || memcmp(a, b, (size_t)na) != 0)
            ls_test_fail(path, line, "is \"%.*s\", expected \"%.*s\"; renew with %s", na, a, nb, b,
                         how);
        a += na + (a[na] == '\n');
        b += nb + (b[nb] == '\n');
    }
    LS_CHECK_EQ(got->len, want.len);
    ls_str_release(&want);
}
