/* worker_env.h -- the environment that a worker gets: what this process has, without the rank
 * variables of an outer launch, and what the agent adds.
 *
 * Running out of memory is sticky: ls_worker_env_status() says so. */
#pragma once
#include "base/arena.h"

LS_C_BEGIN

typedef struct ls_worker_env {
    ls_arena arena; /* texts that are ours */
    const char *
        *list; /* NAME=VALUE, NULL-terminated; owned list, texts of the arena or of environ */
    int n, cap;
    bool failed;
} ls_worker_env;

/* Variables of this process. The strings are borrowed until somebody changes the environment. */
void ls_worker_env_init(ls_worker_env *env);
void ls_worker_env_release(ls_worker_env *env);

/* NAME=VALUE, in place of what was there. */
void ls_worker_env_set(ls_worker_env *env, const char *name, const char *fmt, ...) LS_PRINTF(3, 4);
void ls_worker_env_set_number(ls_worker_env *env, const char *name, int64_t value);
bool ls_worker_env_has(const ls_worker_env *env, const char *name);

ls_status ls_worker_env_status(const ls_worker_env *env);

LS_C_END
