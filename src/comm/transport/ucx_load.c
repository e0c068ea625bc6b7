/* ucx_load.c -- opens UCX's library, and asks whether it would be of use.
 *
 * UCX behaves as if it owned the process: when its library is opened it takes over the handlers of
 * crash signals, and it prints on the standard output. Both are undone here: the earlier handlers
 * are restored at once, and UCX prints only fatal errors unless UCX_LOG_LEVEL asks for more. The
 * library is never unloaded again (it patches functions of libc for its registration cache), so
 * opening it a second time is cheap. */
#include "comm/transport/ucx_impl.h"

#include <dlfcn.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- ports ---------------------------------------------------------------------------------- */

bool ls_ucx_find_port(const char *folder, char device_out[64])
{
    char pattern[512], state[64] = "";
    bool active = false;
    glob_t found;

    snprintf(pattern, sizeof pattern, "%s/*/ports/*/state", folder);
    if (glob(pattern, 0, NULL, &found) != 0)
        return false;
    for (size_t i = 0; i < found.gl_pathc && !active; i++) {
        FILE *f = fopen(found.gl_pathv[i], "re");
        active = f && fgets(state, sizeof state, f) && strstr(state, "ACTIVE") && /* "4: ACTIVE" */
                 sscanf(found.gl_pathv[i] + strlen(folder), "/%63[^/]/ports", device_out) == 1;
        if (f)
            fclose(f);
    }
    globfree(&found);
    return active;
}

#if LS_UCX_HEADERS

/* --- the library ---------------------------------------------------------------------------- */

enum { SIGNALS = 32 }; /* no library uses the real-time signals above */

static void *open_keeping_signals(const char *library)
{
    struct sigaction before[SIGNALS];
    bool known[SIGNALS] = {false};

    for (int s = 1; s < SIGNALS; s++)
        known[s] = sigaction(s, NULL, &before[s]) == 0;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (int s = 1; s < SIGNALS; s++)
        if (known[s] && s != SIGKILL && s != SIGSTOP)
            sigaction(s, &before[s], NULL);
    return handle;
}

static void find(const ls_ucx_api *api, const char *name, void *function_out)
{
    void *p = dlsym(api->library, name);

    memcpy(function_out, &p, sizeof p);
}

static void make_quiet(const ls_ucx_api *api)
{
    ucs_status_t (*set)(const char *name, const char *value);

    if (getenv("UCX_LOG_LEVEL"))
        return;
    find(api, "ucs_global_opts_set_value", &set); /* not part of its stable interface */
    if (set)
        set("LOG_LEVEL", "fatal");
}

static ls_status find_functions(ls_ucx_api *api, const char *library)
{
#define FIND(name)                \
    find(api, #name, &api->name); \
    if (!api->name)               \
        return ls_fail(LS_EUSAGE, "the UCX library \"%s\" lacks the function %s", library, #name);
    LS_UCX_FUNCTIONS(FIND)
#undef FIND
    return LS_OK;
}

/* UCX promises that programs built for 1.N run with 1.M, M >= N. The version is asked before any
 * other function is looked up: another version may lack some. */
static ls_status check_version(ls_ucx_api *api, const char *library)
{
    unsigned major = 0, minor = 0, release = 0;

    find(api, "ucp_get_version", &api->ucp_get_version);
    if (!api->ucp_get_version)
        return ls_fail(LS_EUSAGE, "\"%s\" is not a UCX library: it has no version", library);
    api->ucp_get_version(&major, &minor, &release);
    if (major == UCP_API_MAJOR && minor >= UCP_API_MINOR)
        return LS_OK;
    ls_fail(LS_EUSAGE,
            "the UCX library \"%s\" is of version %u.%u, this program is built for %d.%d", library,
            major, minor, UCP_API_MAJOR, UCP_API_MINOR);
    ls_err_hint("Install UCX %d.%d or a newer %d.x, or choose the tcp transport.", UCP_API_MAJOR,
                UCP_API_MINOR, UCP_API_MAJOR);
    return LS_EUSAGE;
}

ls_status ls_ucx_load(ls_ucx_api *api, const char *library)
{
    ls_status st = LS_OK;

    *api = (ls_ucx_api){0};
    if (!library)
        library = getenv("LINESHAFT_UCX_LIBRARY");
    if (!library)
        library = "libucp.so.0";
    api->library = open_keeping_signals(library);
    if (!api->library) {
        st = ls_fail(LS_EUSAGE, "cannot open the UCX library \"%s\": %s", library, dlerror());
        ls_err_hint("Install UCX (Debian package libucx0), or choose the tcp transport.");
        goto out;
    }
    LS_TRY(st, check_version(api, library), out);
    LS_TRY(st, find_functions(api, library), out);
    make_quiet(api);
out:
    if (st != LS_OK)
        ls_ucx_unload(api);
    return st;
}

void ls_ucx_unload(ls_ucx_api *api)
{
    if (api->library)
        dlclose(api->library); /* one reference less; RTLD_NODELETE keeps it where it is */
    api->library = NULL;
}

/* UCX has no call that lists its devices, but it prints them: "#  resource 2 : md 1 dev 2 flags --
 * rc_verbs/mlx5_0:1". */
static bool ucx_lists(const char *device)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    ls_ucx_api api;
    ucp_context_h context;
    char *text = NULL, name[80];
    size_t len = 0;
    bool listed = false;
    FILE *f;

    if (ls_ucx_load(&api, NULL) != LS_OK)
        return false;
    if (api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, NULL, &context) == UCS_OK) {
        f = open_memstream(&text, &len);
        if (f) {
            api.ucp_context_print_info(context, f);
            fclose(f);
            snprintf(name, sizeof name, "/%s:", device);
            listed = text && strstr(text, name);
        }
        free(text);
        api.ucp_cleanup(context);
    }
    ls_ucx_unload(&api);
    return listed;
}

bool ls_ucx_has_rdma(void)
{
    ls_err_record before = *ls_err_last();
    char device[64];
    bool has = ls_ucx_find_port("/sys/class/infiniband", device) && ucx_lists(device);

    if (!has)
        ls_err_adopt(&before);
    return has;
}

#else /* no header of UCX when this was built */

static const char without[] = "this program was built without UCX";

ls_status ls_ucx_open(const ls_ucx_args *args LS_UNUSED, ls_transport **transport_out LS_UNUSED)
{
    ls_fail(LS_EUSAGE, "%s", without);
    ls_err_hint("Install UCX's headers (Debian package libucx-dev) and build again, or choose the "
                "tcp transport.");
    return LS_EUSAGE;
}

void ls_ucx_address(const ls_transport *transport LS_UNUSED, const void **bytes_out,
                    size_t *len_out)
{
    *bytes_out = NULL;
    *len_out = 0;
}

ls_status ls_ucx_connect(ls_transport *transport LS_UNUSED, const ls_ucx_peer *peers LS_UNUSED)
{
    return ls_fail(LS_EUSAGE, "%s", without);
}

bool ls_ucx_has_rdma(void)
{
    return false;
}
#endif
