/* isa.h -- which of the instruction sets that cpu/simd is compiled for this CPU has.
 *
 * The test is the compiler's own, which also sees whether the operating system saves the wide
 * registers. It reads a few words that the compiler's run time filled at start, which costs a few
 * nanoseconds, so a choice may be made anew at each call and needs no state. */
#pragma once
#include "base/base.h"

#if defined(__x86_64__)
/* What the CPU lacks for them, or NULL. */
static inline const char *ls_isa_lacks_avx2(void)
{
    if (!__builtin_cpu_supports("avx2"))
        return "avx2";
    return __builtin_cpu_supports("fma") ? NULL : "fma";
}

static inline const char *ls_isa_lacks_avx512(void)
{
    if (!__builtin_cpu_supports("avx512f"))
        return "avx512f";
    if (!__builtin_cpu_supports("avx512bw"))
        return "avx512bw";
    if (!__builtin_cpu_supports("avx512vl"))
        return "avx512vl";
    return __builtin_cpu_supports("avx512dq") ? NULL : "avx512dq";
}

/* The fastest version of a function that this CPU can run. */
#define LS_ISA_BEST(name) \
    (!ls_isa_lacks_avx512() ? name##_avx512 : !ls_isa_lacks_avx2() ? name##_avx2 : name##_generic)
#else
#define LS_ISA_BEST(name) name##_generic
#endif
