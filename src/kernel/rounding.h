/* rounding.h -- how a weight that is kept in fp32 becomes the one in bf16 that rows read.
 *
 * To nearest, or stochastic: a weight between two values of bf16 becomes the upper one as often as
 * it is near to it, so that steps which are smaller than half of the distance between them still
 * move the mean. What it becomes is a function of the key (the run's seed), of the element's number
 * in the model and of the weight itself: rounding it again, after a restart, on another rank or on
 * another device, has the same bits, and no number of a step needs to be known.
 *
 * The mix of the three is a chain of odd multiplications and shifts; tests/kernel/test_rounding.c
 * looks at its mean, its spread and its neighbours. The same code compiles for CUDA. */
#pragma once
#include "base/rng.h"

typedef struct ls_rounding {
    bool stochastic;
    uint32_t key[2];
    int64_t gap; /* number in the model of what is at place 0 of the copy */
} ls_rounding;

/* 16 random bits. */
LS_RNG_FN uint32_t ls_rounding_bits(const uint32_t key[2], int64_t element, uint32_t x)
{
    uint32_t h = (x ^ key[0]) * 0x9E3779B1u;

    h = (h ^ h >> 15) + (uint32_t)element * 0x85EBCA77u;
    h = (h ^ h >> 13 ^ key[1]) * 0xC2B2AE3Du;
    h = (h ^ h >> 16) + (uint32_t)((uint64_t)element >> 32) * 0x27D4EB2Fu;
    h = (h ^ h >> 15) * 0x9E3779B1u;
    return h >> 16;
}

/* x: the bits of a float. What is not finite is rounded as always. */
LS_RNG_FN uint16_t ls_rounding_bf16(const ls_rounding *r, int64_t place, uint32_t x)
{
    uint32_t up = ls_rounding_bits(r->key, place + r->gap, x);
    uint32_t odd = (x & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0;

    return (uint16_t)(((x & 0x7f800000u) == 0x7f800000u ? x | odd : x + up) >> 16);
}

/* n weights from `place` of the copy on. */
static inline void ls_rounding_piece(const ls_rounding *r, const float *w, uint16_t *copy,
                                     int64_t place, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        union {
            float f;
            uint32_t u;
        } bits = {.f = w[i]};
        copy[i] = ls_rounding_bf16(r, place + i, bits.u);
    }
}
