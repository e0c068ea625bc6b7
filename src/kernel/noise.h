/* noise.h -- the noise of NEFTune on embeddings (Jain et al., 2023), element by element.
 *
 * An element gets scale times a uniform value of [-1, 1), where scale is alpha / sqrt(L d). The value is
 * drawn as dropout's are: Philox with the step's key, and a counter that the element has in the global
 * batch, so it depends on no rank. Example: alpha 5, 512 tokens of width 1024, scale 5 / sqrt(524288) =
 * 0.0069. The inline code is the same for CPU and CUDA. */
#pragma once
#include "base/rng.h"

enum { LS_NOISE_SITE = 0xffff }; /* no dropout has it: those of block l are 3 l + 1 to 3 l + 3 */

/* The words of columns 4 (column / 4) and the three behind it. */
LS_RNG_FN ls_rng_block ls_noise_words(const uint32_t key[2], int64_t column, int64_t position,
                                      uint32_t sequence)
{
    ls_rng_key k;

    k.k[0] = key[0];
    k.k[1] = key[1];
    return ls_rng_philox(k, (uint32_t)(column / 4), (uint32_t)position, sequence,
                         (uint32_t)LS_NOISE_SITE << 16);
}

/* What is added for one of them: the product is rounded by itself, not joined with the sum. */
LS_RNG_FN float ls_noise_of(uint32_t word, float scale)
{
    float value = 2.0f * ls_rng_uniform(word) - 1.0f; /* exact */

#ifdef __CUDA_ARCH__
    return __fmul_rn(scale, value);
#else
    return scale * value;
#endif
}
