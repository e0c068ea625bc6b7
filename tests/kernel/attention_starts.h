/* attention_starts.h -- what the tests of attention share. */
#pragma once
#include "kernel/kernel_check.h"

/* Where the document of each of B x T tokens begins; one begins at a token with probability 1/n. */
static inline int32_t *ls_attention_starts(ls_check *c, int64_t B, int64_t T, int32_t n)
{
    int32_t *begins = ls_check_ints(c, "begins", B * T, n);
    int32_t *start = ls_check_ints(c, "start", B * T, 1);

    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 1; t < T; t++)
            start[b * T + t] = begins[b * T + t] == 0 ? (int32_t)t : start[b * T + t - 1];
    return start;
}

/* The gradient of a call; dout, dq, dk, dv and the scratch memory are the caller's. */
static inline ls_attention_bwd ls_attention_back(const ls_attention_fwd *a)
{
    return (ls_attention_bwd){.type = a->type,
                              .q = a->q,
                              .k = a->k,
                              .v = a->v,
                              .o = a->o,
                              .lse = a->lse,
                              .start = a->start,
                              .B = a->B,
                              .T = a->T,
                              .H = a->H,
                              .Hkv = a->Hkv,
                              .D = a->D,
                              .window = a->window,
                              .scale = a->scale,
                              .drop = a->drop};
}
