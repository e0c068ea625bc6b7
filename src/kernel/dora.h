/* dora.h -- DoRA: an adapter beside a weight whose outputs have trained lengths. Host memory.
 *
 * Beside weight w of N outputs and K inputs lie A [rank, K] and B [N, rank], and d [N], trained from 0
 * on. Output j of the layer is
 *
 *     y_j = f_j z_j + bias_j      z_j = v_j x      v_j = w_j + scale b_j A      f_j = (|w_j| + d_j) / |v_j|
 *
 * so that |w_j| + d_j is the length of the weight in use: PEFT's lora_magnitude_vector. Its difference from
 * the base is what is trained, because it needs no base weight to start from. |v_j| counts as a constant
 * in gradients (DoRA, section 4.3): dz = f dy, dd_j = sum over rows of dy_j z_j / |v_j|.
 *
 * Weights and activations are fp32 or bf16; sums over inputs are made in double, those over rows along the
 * tree over leaves. Every machine computes the same bits. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

/* f and 1 / |v| of the outputs of one weight. */
typedef struct ls_dora_lengths {
    ls_dtype type;
    const void *w, *a, *b, *d; /* w by layout; without gaps */
    float scale;
    int64_t N, K, rank;
    ls_layout layout;
    float *factor, *inverse; /* [N] */
} ls_dora_lengths;

void ls_dora_measure(ls_stream *stream, const ls_dora_lengths *a);

/* y = f z + bias + add, over a product of N columns. */
typedef struct ls_dora_fwd {
    ls_dtype type;
    const void *z;          /* [M, N] */
    const float *factor;    /* [N] */
    const void *bias, *add; /* [N], [M, N]; either may be NULL */
    void *y;                /* [M, N] */
    int64_t M, N;
} ls_dora_fwd;

void ls_dora_forward(ls_stream *stream, const ls_dora_fwd *a);

/* dz = f dy over all columns; dd of columns first .. first + n - 1. */
typedef struct ls_dora_bwd {
    ls_dtype type;
    const void *dy, *z; /* [M, N] */
    const float *factor, *inverse;
    void *dz; /* [M, N] */
    int64_t M, N;
} ls_dora_bwd;

void ls_dora_backward(ls_stream *stream, const ls_dora_bwd *a);
void ls_dora_backward_lengths(ls_stream *stream, const ls_dora_bwd *a, int64_t first, int64_t n,
                              int64_t leaves, bool accumulate, float *dd);

LS_C_END
