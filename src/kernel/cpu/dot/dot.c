/* dot.c -- which way products of bf16 go: what the variable asks for, what CPU, system and build
 * can do.
 *
 * The way taken is the one thing beside base/ that a process remembers: the permission to use AMX
 * belongs to the process too, and a table of kernels is constant. It changes only when kernels are
 * picked, before products run. */
#include "kernel/cpu/dot/dot.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "kernel/cpu/dot/dot_impl.h"
#include "kernel/cpu/isa.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static atomic_int chosen = LS_DOT_OFF;

static const char *const names[LS_DOTS] = {
    [LS_DOT_OFF] = "off",
    [LS_DOT_AVX512] = "avx512",
    [LS_DOT_AMX] = "amx",
    [LS_DOT_EMULATE_AVX512] = "emulate-avx512",
    [LS_DOT_EMULATE_AMX] = "emulate-amx",
};

const char *ls_dot_name(ls_dot dot)
{
    return names[dot];
}

ls_dot ls_dot_chosen(void)
{
    return (ls_dot)atomic_load_explicit(&chosen, memory_order_relaxed);
}

#if defined(__x86_64__)
static bool cpu_has_avx512(void)
{
    return !ls_isa_lacks_avx512();
}

static bool cpu_has_avx512_bf16(void)
{
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1)
        return false;
    __get_cpuid_count(7, 1, &a, &b, &c, &d);
    return a >> 5 & 1;
}

/* AMX_TILE and AMX_BF16. */
static bool cpu_has_amx(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

/* The system saves the tile registers (XCR0, bits 17 and 18) and lets this process use them: that
 * has to be asked for, since they make each thread's saved state 8 KiB larger. */
static bool system_allows_amx(void)
{
    enum { ASK = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM; headers may be too old for it */
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1))
        return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a >> 17 & 3) == 3 && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}
#else
static bool cpu_has_avx512(void)
{
    return false;
}
static bool cpu_has_avx512_bf16(void)
{
    return false;
}
static bool cpu_has_amx(void)
{
    return false;
}
static bool system_allows_amx(void)
{
    return false;
}
#endif

const char *ls_dot_obstacle(ls_dot dot)
{
    if (dot == LS_DOT_OFF)
        return NULL;
    if (!cpu_has_avx512())
        return "this CPU lacks AVX-512";
    if (dot == LS_DOT_AVX512 && !cpu_has_avx512_bf16())
        return "this CPU lacks AVX512_BF16";
    if (dot == LS_DOT_AMX && !cpu_has_amx())
        return "this CPU lacks AMX_BF16";
    if (dot == LS_DOT_AMX && !system_allows_amx())
        return "the system does not let this process use AMX";
    if ((dot == LS_DOT_AVX512 && !ls_dot_kernel_avx512()) ||
        (dot == LS_DOT_AMX && !ls_dot_kernel_amx()))
        return "the compiler of this build does not know these instructions";
    return NULL;
}

/* The way that a name means. LS_EUSAGE: none. */
static ls_status find(const char *name, ls_dot *dot_out)
{
    static const ls_dot best[] = {LS_DOT_AMX, LS_DOT_AVX512, LS_DOT_OFF};
    ls_status st;

    for (size_t i = 0; strcmp(name, "auto") == 0 && i < LS_COUNT(best); i++)
        if (!ls_dot_obstacle(best[i])) {
            *dot_out = best[i];
            return LS_OK;
        }
    for (int i = 0; i < LS_DOTS; i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        const char *obstacle = ls_dot_obstacle((ls_dot)i);
        *dot_out = (ls_dot)i;
        if (!obstacle)
            return LS_OK;
        st = ls_fail(LS_EUSAGE, LS_DOT_VARIABLE ": cannot multiply bf16 by \"%s\": %s", name,
                     obstacle);
        ls_err_hint("Unset " LS_DOT_VARIABLE " to take the fastest way that works here.");
        return st;
    }
    st = ls_fail(LS_EUSAGE, LS_DOT_VARIABLE ": there is no \"%.40s\"", name);
    ls_err_hint("It may be auto, off, avx512, amx, emulate-avx512 or emulate-amx.");
    return st;
}

ls_status ls_dot_choose(void)
{
    const char *asked = getenv(LS_DOT_VARIABLE);
    ls_dot dot;
    ls_status st = find(asked && *asked ? asked : "auto", &dot);

    if (st == LS_OK)
        atomic_store_explicit(&chosen, dot, memory_order_relaxed);
    return st;
}
