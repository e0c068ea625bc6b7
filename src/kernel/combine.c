/* combine.c -- picks the loops of cpu/simd/simd_combine.c for this CPU. */
#include "kernel/combine.h"

#include "base/err.h"
#include "kernel/combine_impl.h"
#include "kernel/cpu/isa.h"

void ls_combine_run(const ls_combine *combine, int64_t count)
{
    LS_BUG_IF(combine->sources < 1 || combine->targets < 1 || count < 0,
              "combining %lld elements of %d sources into %d targets", (long long)count,
              combine->sources, combine->targets);
    LS_ISA_BEST(ls_combine_run)(combine, count);
}

void ls_combine_two(ls_dtype type, const void *left, const void *right, void *to, int64_t count)
{
    const void *const from[2] = {left, right};

    if (count > 0)
        ls_combine_run(&(ls_combine){.type = type,
                                     .op = LS_COMBINE_SUM,
                                     .from = from,
                                     .sources = 2,
                                     .to = &to,
                                     .targets = 1,
                                     .scale = 1},
                       count);
}
