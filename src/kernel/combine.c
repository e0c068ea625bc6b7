/* combine.c -- picks the loops of cpu/simd/simd_combine.c for this CPU.
 *
 * The choice is made anew at each call: it reads a few words that the compiler's run time filled at
 * start, which costs a few nanoseconds, and needs no state. */
#include "kernel/combine.h"

#include "base/err.h"
#include "kernel/combine_impl.h"

#if defined(__x86_64__)
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

int ls_combine_list(ls_combine_loops list_out[3])
{
    int n = 0;

#if defined(__x86_64__)
    if (has_avx512())
        list_out[n++] = (ls_combine_loops){"avx512", ls_combine_run_avx512};
    if (has_avx2())
        list_out[n++] = (ls_combine_loops){"avx2", ls_combine_run_avx2};
#endif
    list_out[n++] = (ls_combine_loops){"generic", ls_combine_run_generic};
    return n;
}

void ls_combine_run(const ls_combine *combine, int64_t count)
{
    LS_BUG_IF(combine->sources < 1 || combine->targets < 1 || count < 0,
              "combining %lld elements of %d sources into %d targets", (long long)count,
              combine->sources, combine->targets);
#if defined(__x86_64__)
    if (has_avx512()) {
        ls_combine_run_avx512(combine, count);
        return;
    }
    if (has_avx2()) {
        ls_combine_run_avx2(combine, count);
        return;
    }
#endif
    ls_combine_run_generic(combine, count);
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
