/* dot_emulate_impl.h -- the arithmetic of vdpbf16ps and tdpbf16ps in plain C, as Intel's manual
 * (volume 2) defines it: fma to nearest even, denormal operands are zeros, denormal results become
 * zeros. */
#pragma once
#include "kernel/cpu/dot/dot_impl.h"

static inline float dot_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static inline float dot_low(uint32_t word)
{
    uint32_t bits = word << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return dot_flush(x);
}

static inline float dot_high(uint32_t word)
{
    return dot_low(word >> 16);
}

/* Is |a b + c| below what rounds to the smallest normal number when exponents have no limit? A
 * result is denormal when it is small after rounding, not before; rounded as a denormal it may have
 * become the smallest normal one already. p is exact; s + rest is exactly p + c. */
static inline bool dot_is_small(float a, float b, float c)
{
    const double least = 0x1p-126 - 0x1p-151; /* half way: to even, which is 2^-126 */
    double p = (double)a * (double)b, s = p + (double)c, part = s - p;
    double rest = (p - (s - part)) + ((double)c - part);

    return fabs(s) < least || (fabs(s) == least && (s > 0 ? rest < 0 : rest > 0));
}

/* Operands are no denormals. */
static inline float dot_fma(float a, float b, float c)
{
    float r = fmaf(a, b, c);

    if (fabsf(r) > 0x1p-126f || r == 0 || isnan(r))
        return r;
    return dot_is_small(a, b, c) ? copysignf(0, r) : r;
}
