/* arena.c -- chunks of doubling size, bump allocation. */
#include "base/arena.h"

#include <stdarg.h>
#include "base/mem.h"

struct ls_arena_chunk {
    struct ls_arena_chunk *next;
    size_t used, cap;
    _Alignas(max_align_t) unsigned char bytes[];
};

void ls_arena_init(ls_arena *arena)
{
    arena->chunks = NULL;
}

void ls_arena_release(ls_arena *arena)
{
    while (arena->chunks) {
        struct ls_arena_chunk *c = arena->chunks;
        arena->chunks = c->next;
        ls_mem_free(c);
    }
}

void *ls_arena_alloc(ls_arena *arena, size_t bytes)
{
    struct ls_arena_chunk *c = arena->chunks;

    if (bytes > PTRDIFF_MAX - sizeof *c - _Alignof(max_align_t)) { /* the sums below would wrap */
        ls_fail(LS_ENOMEM, "cannot allocate %zu bytes", bytes);
        return NULL;
    }
    size_t need = (size_t)ls_round_up((int64_t)(bytes ? bytes : 1), _Alignof(max_align_t));

    if (!c || c->cap - c->used < need) {
        size_t cap = c ? c->cap * 2 : 4096;
        cap = cap < need ? need : cap;
        c = ls_mem_alloc(sizeof *c + cap);
        if (!c)
            return NULL;
        c->cap = cap;
        c->next = arena->chunks;
        arena->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += need;
    return p;
}

char *ls_arena_strdup(ls_arena *arena, const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = ls_arena_alloc(arena, n);

    if (copy)
        memcpy(copy, text, n);
    return copy;
}

char *ls_arena_printf(ls_arena *arena, const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        ls_fail(LS_EFAIL, "cannot format \"%s\"", fmt);
    char *text = n < 0 ? NULL : ls_arena_alloc(arena, (size_t)n + 1);
    if (text)
        vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}
