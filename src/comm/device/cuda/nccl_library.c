/* nccl_library.c -- finding and opening NCCL. */
#include "comm/device/cuda/nccl_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define VARIABLE "LINESHAFT_NCCL"

/* Where it lies when the loader does not know it. */
static const char *const places[] = {
    "/usr/local/cuda/lib64/" LIBRARY,
    "/usr/local/cuda*/lib*/" LIBRARY,
    "/usr/local/cuda*/targets/*/lib/" LIBRARY,
    "/usr/local/lib/python3*/*-packages/nvidia/nccl/lib/" LIBRARY,
    "/usr/lib/python3*/*-packages/nvidia/nccl/lib/" LIBRARY,
    "/opt/*/lib/python3*/site-packages/nvidia/nccl/lib/" LIBRARY,
};

typedef struct symbol {
    const char *name;
    size_t at; /* of the pointer in ls_nccl */
} symbol;

#define AT(member) offsetof(ls_nccl, member)
static const symbol symbols[] = {
    {"ncclGetVersion", AT(get_version)},
    {"ncclGetUniqueId", AT(get_id)},
    {"ncclCommInitRankConfig", AT(init)},
    {"ncclCommFinalize", AT(finalize)},
    {"ncclCommDestroy", AT(destroy)},
    {"ncclCommAbort", AT(abort)},
    {"ncclCommGetAsyncError", AT(async_error)},
    {"ncclGetErrorString", AT(error_text)},
    {"ncclGetLastError", AT(last_error)},
    {"ncclGroupStart", AT(group_begin)},
    {"ncclGroupEnd", AT(group_end)},
    {"ncclAllReduce", AT(all_reduce)},
    {"ncclReduce", AT(reduce)},
    {"ncclReduceScatter", AT(reduce_scatter)},
    {"ncclAllGather", AT(all_gather)},
    {"ncclBroadcast", AT(broadcast)},
    {"ncclSend", AT(send)},
    {"ncclRecv", AT(recv)},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_nccl found;

/* Beside an open CUDA library, or in the folder that PyTorch's packages have for NCCL:
 * .../nvidia/cudnn/lib and .../nvidia/nccl/lib. */
static int beside(struct dl_phdr_info *info, size_t size, void *library_out)
{
    static const char *const ends[] = {"/" LIBRARY, "/../../nccl/lib/" LIBRARY};
    const char *slash = strrchr(info->dlpi_name, '/');
    char path[4096];

    (void)size;
    if (!slash || (strncmp(slash, "/libcublas", 10) != 0 && strncmp(slash, "/libcudnn", 9) != 0))
        return 0;
    for (size_t i = 0; i < LS_COUNT(ends); i++) {
        int n = snprintf(path, sizeof path, "%.*s%s", (int)(slash - info->dlpi_name),
                         info->dlpi_name, ends[i]);
        void *library = n < (int)sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
        if (library) {
            *(void **)library_out = library;
            return 1;
        }
    }
    return 0;
}

static void *in_places(void)
{
    void *library = NULL;
    glob_t paths;

    for (size_t i = 0; i < LS_COUNT(places) && !library; i++) {
        if (glob(places[i], 0, NULL, &paths) != 0)
            continue;
        for (size_t k = 0; k < paths.gl_pathc && !library; k++)
            library = dlopen(paths.gl_pathv[k], RTLD_NOW | RTLD_LOCAL);
        globfree(&paths);
    }
    return library;
}

static bool look_up(ls_nccl *n, char why_out[160])
{
    for (size_t i = 0; i < LS_COUNT(symbols); i++) {
        void *p = dlsym(n->library, symbols[i].name);
        if (!p) {
            snprintf(why_out, 160, "\"" LIBRARY "\" lacks %s", symbols[i].name);
            return false;
        }
        memcpy((char *)n + symbols[i].at, &p, sizeof p);
    }
    return true;
}

static bool start(ls_nccl *n, char why_out[160])
{
    const char *given = getenv(VARIABLE);

    if (given && *given) {
        n->library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        snprintf(why_out, 160, "cannot open \"%.90s\", which " VARIABLE " names", given);
    } else {
        n->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (!n->library)
            dl_iterate_phdr(beside, &n->library);
        if (!n->library)
            n->library = in_places();
        snprintf(why_out, 160, "there is no \"" LIBRARY "\"");
    }
    if (!n->library || !look_up(n, why_out))
        return false;
    if (n->get_version(&n->version) != LS_NCCL_OK || n->version < LS_NCCL_LEAST) {
        snprintf(why_out, 160, "its version is %d.%d.%d, and 2.18 is the first that can be stopped",
                 n->version / 10000, n->version / 100 % 100, n->version % 100);
        return false;
    }
    return true;
}

const ls_nccl *ls_nccl_find(char why_out[160])
{
    ls_nccl n = {.library = NULL};
    const ls_nccl *answer = NULL;

    pthread_mutex_lock(&lock);
    if (found.library || start(&n, why_out)) {
        if (!found.library)
            found = n;
        answer = &found;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}
