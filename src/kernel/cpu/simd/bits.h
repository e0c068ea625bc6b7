/* bits.h -- floats as their bits, and a choice without a branch: behind one, the compiler may not
 * make vectors of a loop. */
#pragma once
#include "kernel/cpu/simd/vec.h"

LS_INLINE float from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

LS_INLINE uint32_t to_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

LS_INLINE uint32_t pick(bool yes, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)yes;

    return (a & mask) | (b & ~mask);
}
