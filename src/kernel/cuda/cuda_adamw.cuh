/* cuda_adamw.cuh -- the rule of AdamW (optimizer_update.cuh), which LAMB's direction follows too. */
#pragma once
#include "kernel/cuda/optimizer_update.cuh"

struct ls_adamw_rule {
    static constexpr bool two = true;
    float beta1, beta2, unbias1, unbias2, eps, decay;

    __device__ ls_adamw_rule(const ls_step_state *s, float span_decay)
        : beta1(s->beta1), beta2(s->beta2), unbias1(1.0f / s->bias1),
          unbias2(1.0f / sqrtf(s->bias2)), eps(s->eps), decay(s->weight_decay * span_decay)
    {
    }

    /* The direction of the step, decay included. */
    __device__ float step(float w, float g, float &m, float &v) const
    {
        m = ls_dust(fmaf(beta1, m, (1.0f - beta1) * g));
        v = fmaf(beta2, v, (1.0f - beta2) * g * g);
        float step = m * unbias1 / fmaf(sqrtf(v), unbias2, eps);
        return fmaf(decay, w, step);
    }
};
