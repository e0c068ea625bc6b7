/* rng.h -- counter-based random numbers: Philox 4x32 with 10 rounds.
 *
 * There is no state. A value is a function of a key and a counter, so initial weights, dropout and
 * data order depend on (seed, step, global index) and never on rank, thread or device. The same
 * inline code compiles for CUDA. Constants: Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011; checked against Random123 in tests/base/test_rng.c. */
#pragma once
#include "base/base.h"

#ifdef __CUDACC__
#define LS_RNG_FN __host__ __device__ static inline
#else
#define LS_RNG_FN static inline
#endif

typedef struct ls_rng_key {
    uint32_t k[2];
} ls_rng_key;

typedef struct ls_rng_block {
    uint32_t v[4];
} ls_rng_block;

LS_RNG_FN ls_rng_block ls_rng_philox(ls_rng_key key, uint32_t c0, uint32_t c1, uint32_t c2,
                                     uint32_t c3)
{
    uint32_t k0 = key.k[0], k1 = key.k[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ls_rng_block out;
    out.v[0] = c0;
    out.v[1] = c1;
    out.v[2] = c2;
    out.v[3] = c3;
    return out;
}

/* A key for one purpose, made of the run's seed and two numbers that name the purpose (a tensor's
 * name hash, a step, an epoch). Different inputs give unrelated keys. */
LS_RNG_FN ls_rng_key ls_rng_derive(uint64_t seed, uint64_t a, uint64_t b)
{
    uint64_t z = seed + 0x9E3779B97F4A7C15ull;
    uint64_t words[2];

    words[0] = a;
    words[1] = b;
    for (int i = 0; i < 2; i++) { /* the finaliser of splitmix64 between the words */
        z ^= words[i] + 0x9E3779B97F4A7C15ull + (z << 6) + (z >> 2);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
    }
    ls_rng_key key;
    key.k[0] = (uint32_t)z;
    key.k[1] = (uint32_t)(z >> 32);
    return key;
}

/* In [0, 1), 24 bits. */
LS_RNG_FN float ls_rng_uniform(uint32_t bits)
{
    return (float)(bits >> 8) * (1.0f / 16777216.0f);
}

LS_C_BEGIN

/* Standard normal values number first .. first+count-1 of the stream that key names. The result
 * uses only IEEE operations that are exact to the last bit on every machine. */
void ls_rng_normal(ls_rng_key key, uint64_t first, uint64_t count, float *values_out);

LS_C_END
