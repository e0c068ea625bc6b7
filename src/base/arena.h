/* arena.h -- memory that lives and dies together.
 *
 * A run's small objects (names, tables, paths) come from one arena and are released in one call. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_arena {
    struct ls_arena_chunk *chunks; /* newest first, owned */
} ls_arena;

void ls_arena_init(ls_arena *arena);
void ls_arena_release(ls_arena *arena); /* leaves it empty and usable */

/* bytes, zeroed, aligned for any type; NULL with an LS_ENOMEM record. */
void *ls_arena_alloc(ls_arena *arena, size_t bytes);
char *ls_arena_strdup(ls_arena *arena, const char *text);
/* Also NULL, with an LS_EFAIL record, when fmt cannot be filled (a character the locale lacks). */
char *ls_arena_printf(ls_arena *arena, const char *fmt, ...) LS_PRINTF(2, 3);

LS_C_END
