/* cmd_version.c -- `lineshaft version`. */
#include "cli/cmds.h"

#include <sys/utsname.h>
#include "base/json.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static ls_status run_version(const ls_args *args, ls_str *out)
{
    struct utsname host;
    ls_json json;

    if (uname(&host) != 0)
        memcpy(host.machine, "unknown", 8);
    if (ls_args_has(args, "json")) {
        ls_json_begin(&json, out);
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "version", LS_VERSION);
        ls_json_put_str(&json, "compiler", COMPILER);
        ls_json_put_str(&json, "machine", host.machine);
        ls_json_close(&json);
        ls_str_append_char(out, '\n');
    } else {
        ls_str_printf(out, "lineshaft %s\ncompiler: %s\nmachine: %s\n", LS_VERSION, COMPILER,
                      host.machine);
    }
    return LS_OK;
}

static const ls_flag flags[] = {
    {"json", 'j', NULL, false, "Print one JSON object."},
    {.name = NULL},
};
const ls_command ls_cmd_version = {
    .name = "version",
    .summary = "show the version and how it was built",
    .about = "Prints the version, the compiler that built it and the machine it runs on.",
    .examples = "lineshaft version  # for a bug report",
    .flags = flags,
    .run = run_version,
};
