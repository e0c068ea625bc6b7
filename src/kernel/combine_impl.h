/* combine_impl.h -- the loops behind combine.h, one set per instruction set, and the list of them
 * for tests that compare their bits. */
#pragma once
#include "kernel/combine.h"

#define LS_COMBINE_DECLARE(isa) void ls_combine_run_##isa(const ls_combine *combine, int64_t count);
LS_COMBINE_DECLARE(generic)
LS_COMBINE_DECLARE(avx2)
LS_COMBINE_DECLARE(avx512)
#undef LS_COMBINE_DECLARE

typedef struct ls_combine_loops {
    const char *name;
    void (*run)(const ls_combine *combine, int64_t count);
} ls_combine_loops;

/* Those that this CPU can run, best first; returns how many (at most 3, at least 1). */
int ls_combine_list(ls_combine_loops list_out[3]);
