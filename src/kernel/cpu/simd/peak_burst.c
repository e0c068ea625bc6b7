/* peak_burst.c -- nothing but fma, in as many independent chains as the registers hold.
 *
 * Two fma units of four cycles each need eight vectors in flight: 12 of AVX-512, or 5 pairs of AVX2
 * with room for the two constants. */
#include "kernel/cpu/simd/vec.h"
#include "kernel/peak_impl.h"

#if defined(__AVX512F__)
enum { CHAINS = 12 };
#else
enum { CHAINS = 5 };
#endif

int64_t LS_ISA_NAME(ls_peak_burst)(int64_t rounds, float *sink_out)
{
    ls_v16 acc[CHAINS], scale = v_set(0.999f + *sink_out * 0), shift = v_set(0.001f);

    for (int j = 0; j < CHAINS; j++)
        acc[j] = v_set((float)j);
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = v_fma(acc[j], scale, shift);
    for (int j = 1; j < CHAINS; j++)
        acc[0] = v_add(acc[0], acc[j]);
    *sink_out = v_sum(acc[0]);
    return rounds * CHAINS * LS_LANES * 2;
}
