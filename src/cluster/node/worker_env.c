/* worker_env.c -- a copied list of variables; only what is added takes memory.
 *
 * Descriptors and places of an outer job are left out: a worker that starts a job of its own would
 * hand them to processes that do not have them. */
#include "cluster/node/worker_env.h"

#include <inttypes.h>
#include <stdarg.h>
#include <unistd.h>
#include "cluster/member/growing_array.h"

static bool is_of(const char *entry, const char *name)
{
    size_t n = strlen(name);

    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

/* Of a launch around this one. */
static bool is_stale(const char *entry)
{
    static const char *const names[] = {
        "LINESHAFT_RANK",     "LINESHAFT_WORLD",   "LINESHAFT_LOCAL_RANK", "LINESHAFT_LOCAL_WORLD",
        "LINESHAFT_NODE",     "LINESHAFT_NODES",   "LINESHAFT_GENERATION", "LINESHAFT_JOB",
        "LINESHAFT_CAUSE_FD", "LINESHAFT_THREADS", "LINESHAFT_LOCAL_TASK", "LINESHAFT_LOCAL_TASKS",
    };

    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (is_of(entry, names[i]))
            return true;
    return strncmp(entry, "LINESHAFT_FD_", 13) == 0;
}

/* Room for one more and the final NULL. */
static bool grow(ls_worker_env *env)
{
    env->failed |=
        !ls_growing_array_add((void **)&env->list, env->n + 1, &env->cap, sizeof *env->list);
    return !env->failed;
}

void ls_worker_env_init(ls_worker_env *env)
{
    *env = (ls_worker_env){.list = NULL};
    ls_arena_init(&env->arena);
    for (char **e = environ; e && *e; e++)
        if (!is_stale(*e) && grow(env))
            env->list[env->n++] = *e;
    if (grow(env))
        env->list[env->n] = NULL;
}

void ls_worker_env_release(ls_worker_env *env)
{
    ls_arena_release(&env->arena);
    ls_mem_free(env->list);
    *env = (ls_worker_env){.list = NULL};
}

/* The value is formatted twice: once for its length, once into the arena. A name that is there already
 * keeps its place, so that no program sees two values. */
void ls_worker_env_set(ls_worker_env *env, const char *name, const char *fmt, ...)
{
    va_list ap, again;
    int at = 0;

    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    size_t head = strlen(name) + 1;
    char *text = n < 0 ? NULL : ls_arena_alloc(&env->arena, head + (size_t)n + 1);
    if (text && grow(env)) {
        snprintf(text, head + 1, "%s=", name);
        vsnprintf(text + head, (size_t)n + 1, fmt, again);
        while (at < env->n && !is_of(env->list[at], name))
            at++;
        env->list[at] = text;
        env->n += at == env->n;
        env->list[env->n] = NULL;
    } else {
        env->failed = true;
    }
    va_end(again);
}

void ls_worker_env_set_number(ls_worker_env *env, const char *name, int64_t value)
{
    ls_worker_env_set(env, name, "%" PRId64, value);
}

bool ls_worker_env_has(const ls_worker_env *env, const char *name)
{
    for (int i = 0; i < env->n; i++)
        if (is_of(env->list[i], name))
            return true;
    return false;
}

ls_status ls_worker_env_status(const ls_worker_env *env)
{
    return env->failed ? ls_fail(LS_ENOMEM, "out of memory for a worker's environment") : LS_OK;
}
