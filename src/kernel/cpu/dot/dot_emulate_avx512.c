/* dot_emulate_avx512.c -- products by vdpbf16ps, emulated. */
#include "kernel/cpu/dot/dot_emulate_impl.h"

#if defined(__AVX512F__)
/* Sixteen lanes; of each pair the upper product is added first, then the lower. */
static __attribute__((noinline)) ls_v16 emulate_pairs(ls_v16 sum, __m512i a, __m512i b)
{
    _Alignas(64) uint32_t left[LS_LANES], right[LS_LANES];
    _Alignas(64) float out[LS_LANES];

    _mm512_store_si512(left, a);
    _mm512_store_si512(right, b);
    v_store(out, sum);
    for (int i = 0; i < LS_LANES; i++) {
        out[i] = dot_fma(dot_high(left[i]), dot_high(right[i]), dot_flush(out[i]));
        out[i] = dot_fma(dot_low(left[i]), dot_low(right[i]), out[i]);
    }
    return v_load(out);
}

#define DOT_PAIRS(sum, a, b) emulate_pairs((sum), (a), (b))
#include "kernel/cpu/dot/dot_avx512_impl.h"

const ls_dot_kernel *ls_dot_kernel_emulate_avx512(void)
{
    return &dot_kernel;
}
#else
const ls_dot_kernel *ls_dot_kernel_emulate_avx512(void)
{
    return NULL;
}
#endif
