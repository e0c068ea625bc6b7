/* peak_burst.c -- nothing but fma, or nothing but loads and stores.
 *
 * Fma: as many independent chains as the registers hold. Two fma units of four cycles each need
 * eight vectors in flight: 12 of AVX-512, or 5 pairs of AVX2 with room for the two constants.
 * Bytes: four vectors a turn, so that the loop itself costs nothing; sums in four chains. */
#include "kernel/cpu/simd/vec.h"
#include "kernel/peak_impl.h"

#if defined(__AVX512F__)
enum { CHAINS = 12 };
#else
enum { CHAINS = 5 };
#endif
enum { TURN = 4 * LS_LANES };

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

int64_t LS_ISA_NAME(ls_peak_add)(float *a, float *b, int64_t n, float *sink_out)
{
    for (int64_t i = 0; i < n; i += TURN)
        for (int j = 0; j < TURN; j += LS_LANES)
            v_store(a + i + j, v_add(v_load(a + i + j), v_load(b + i + j)));
    *sink_out = a[0];
    return 3 * n * (int64_t)sizeof *a;
}

int64_t LS_ISA_NAME(ls_peak_read)(float *a, float *b, int64_t n, float *sink_out)
{
    ls_v16 sum[4] = {v_set(0), v_set(0), v_set(0), v_set(0)};
    const float *const both[] = {a, b};

    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i += TURN)
            for (int j = 0; j < 4; j++)
                sum[j] = v_add(sum[j], v_load(both[k] + i + j * LS_LANES));
    *sink_out = v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
    return 2 * n * (int64_t)sizeof *a;
}

int64_t LS_ISA_NAME(ls_peak_write)(float *a, float *b, int64_t n, float *sink_out)
{
    ls_v16 value = v_set(*sink_out * 0);
    float *const both[] = {a, b};

    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i += TURN)
            for (int j = 0; j < TURN; j += LS_LANES)
                v_store(both[k] + i + j, value);
    *sink_out = b[n - 1];
    return 2 * n * (int64_t)sizeof *a;
}

int64_t LS_ISA_NAME(ls_peak_update)(float *a, float *b, int64_t n, float *sink_out)
{
    ls_v16 value = v_set(*sink_out * 0 + 1);
    float *const both[] = {a, b};

    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i += TURN)
            for (int j = 0; j < TURN; j += LS_LANES)
                v_store(both[k] + i + j, v_mul(v_load(both[k] + i + j), value));
    *sink_out = b[n - 1];
    return 4 * n * (int64_t)sizeof *a;
}

int64_t LS_ISA_NAME(ls_peak_copy)(float *a, float *b, int64_t n, float *sink_out)
{
    for (int64_t i = 0; i < n; i += TURN)
        for (int j = 0; j < TURN; j += LS_LANES)
            v_store(a + i + j, v_load(b + i + j));
    *sink_out = a[0];
    return 2 * n * (int64_t)sizeof *a;
}
