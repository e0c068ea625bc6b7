/* cuda_sgd.cu -- the row of SGD: m = momentum m + g, w -= lr m, or lr (g + momentum m) with Nesterov's
 * look ahead; g has the weight decay in it. */
#include "kernel/cuda/optimizer_update.cuh"

namespace
{
struct sgd_rule {
    static constexpr bool two = false;
    float momentum, gain, decay;
    bool nesterov;

    __device__ sgd_rule(const ls_step_state *s, float span_decay)
        : momentum(s->momentum), gain(s->gain), decay(s->weight_decay * span_decay),
          nesterov(s->nesterov)
    {
    }

    __device__ float step(float w, float grad, float &m, float &) const
    {
        float g = gain * fmaf(decay, w, grad);

        m = ls_dust(fmaf(momentum, m, g));
        return nesterov ? fmaf(momentum, m, g) : m;
    }
};
} // namespace

void ls_cuda_sgd(ls_stream *stream, const ls_optimizer_update *a)
{
    ls_cuda_elements<sgd_rule>(stream, LS_ROW_SGD, a);
}
