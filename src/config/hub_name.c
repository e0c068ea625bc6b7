/* hub_name.c -- lineshaft reads folders, and downloads nothing. Who brings a command from another program writes the name on
 * the hub; a path that was mistyped looks the same, so the answer says "if". */
#include "config/hub_name.h"

#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/file.h"

static bool is_part(const char *p, size_t n)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

    return n > 0 && *p != '.' && *p != '-' && strspn(p, allowed) >= n;
}

bool ls_hub_name_hint(const char *path, const char *kind)
{
    char org[128];
    const char *slash = strchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;

    if (!slash || n >= sizeof org || !is_part(path, n) || !is_part(slash + 1, strlen(slash + 1)))
        return false;
    snprintf(org, sizeof org, "%.*s", (int)n, path);
    if (ls_file_exists(org))
        return false;
    ls_err_hint("If it is a %s of the Hugging Face hub, download it first: `hf download %s%s "
                "--local-dir %s`; then name what "
                "lies there.",
                kind, strcmp(kind, "model") == 0 ? "" : "--repo-type dataset ", path, slash + 1);
    return true;
}
