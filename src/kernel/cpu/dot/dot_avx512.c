/* dot_avx512.c -- products by the instruction vdpbf16ps. */
#include "kernel/cpu/dot/dot_impl.h"

#if defined(__AVX512BF16__)
#define DOT_PAIRS(sum, a, b) _mm512_dpbf16_ps((sum), (__m512bh)(a), (__m512bh)(b))
#include "kernel/cpu/dot/dot_avx512_impl.h"

const ls_dot_kernel *ls_dot_kernel_avx512(void)
{
    return &dot_kernel;
}
#else
const ls_dot_kernel *ls_dot_kernel_avx512(void)
{
    return NULL;
}
#endif
