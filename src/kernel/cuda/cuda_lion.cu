/* cuda_lion.cu -- the row of Lion: w -= lr (sign(b1 m + (1 - b1) g) + decay w), m = b2 m + (1 - b2) g. */
#include "kernel/cuda/optimizer_update.cuh"

namespace
{
struct lion_rule {
    static constexpr bool two = false;
    float beta1, beta2, decay;

    __device__ lion_rule(const ls_step_state *s, float span_decay)
        : beta1(s->beta1), beta2(s->beta2), decay(s->weight_decay * span_decay)
    {
    }

    __device__ float step(float w, float g, float &m, float &) const
    {
        float mean = fmaf(beta1, m, (1.0f - beta1) * g);
        float sign = mean > 0 ? 1.0f : mean < 0 ? -1.0f : 0.0f;

        m = ls_dust(fmaf(beta2, m, (1.0f - beta2) * g));
        return fmaf(decay, w, sign);
    }
};
} // namespace

void ls_cuda_lion(ls_stream *stream, const ls_optimizer_update *a)
{
    ls_cuda_elements<lion_rule>(stream, LS_ROW_LION, a);
}
