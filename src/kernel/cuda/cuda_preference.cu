/* cuda_preference.cu -- the preference row: a block for each sequence. Its threads add up the losses
 * of their tokens in double, always the same ones; the first makes the outcome of the sums, and all
 * write the weights. */
#include "kernel/cuda/common.cuh"

enum { THREADS = 256, SUMS = 6 };

/* sum[i] of all threads, to all of them, along a fixed tree. */
__device__ inline void join_sums(double (&sum)[SUMS], double (*part)[THREADS])
{
    for (int i = 0; i < SUMS; i++)
        part[i][threadIdx.x] = sum[i];
    for (int k = THREADS / 2; k > 0; k /= 2) {
        __syncthreads();
        for (int i = 0; i < SUMS && (int)threadIdx.x < k; i++)
            part[i][threadIdx.x] += part[i][threadIdx.x + k];
    }
    __syncthreads();
    for (int i = 0; i < SUMS; i++)
        sum[i] = part[i][0];
}

__global__ void __launch_bounds__(THREADS) preference_kernel(ls_preference a)
{
    __shared__ double part[SUMS][THREADS];
    __shared__ unsigned long long prompt;
    __shared__ ls_preference_outcome out;
    int64_t b = blockIdx.x, T = a.T;
    const float *losses = a.losses + b * T;
    const int32_t *targets = a.targets + b * T, *start = a.start + b * T;
    double sum[SUMS] = {0}; /* of both answers: losses, tokens; of the first document */

    if (threadIdx.x == 0)
        prompt = ~0ull;
    __syncthreads();
    for (int64_t t = threadIdx.x; t < T; t += THREADS)
        if (start[t] > 0 && targets[t] >= 0) {
            atomicMin(&prompt, (unsigned long long)(t - start[t]));
            break;
        }
    __syncthreads();
    int64_t first = prompt == ~0ull ? 0 : (int64_t)prompt;
    for (int64_t t = threadIdx.x; t < T; t += THREADS) {
        int which = start[t] > 0;
        if (targets[t] < 0)
            continue;
        if (which || t >= first) {
            sum[2 * which] -= (double)losses[t];
            sum[2 * which + 1] += 1;
        }
        if (!which) {
            sum[4] -= (double)losses[t];
            sum[5] += 1;
        }
    }
    join_sums(sum, part);
    if (threadIdx.x == 0) {
        const ls_preference_reference none = {{0, 0}, 0};
        const ls_preference_answers answers = {{sum[0], sum[2]}, {sum[1], sum[3]}, sum[4], sum[5]};
        out = ls_preference_of(&a.objective, &answers, a.references ? &a.references[b] : &none,
                               a.state ? (double)a.state->kl : 0);
        for (int i = 0; i < LS_PREFERENCE_NUMBERS; i++)
            a.numbers[i * a.stride + b] = (float)out.numbers[i];
    }
    __syncthreads();
    for (int64_t t = threadIdx.x; t < T; t += THREADS) {
        int which = start[t] > 0;
        double answer = which || t >= first ? out.weight[which] : 0;
        a.weights[b * T + t] = targets[t] < 0 ? 0.0f : (float)(answer + (which ? 0 : out.all));
    }
}

void ls_cuda_preference(ls_stream *stream, const ls_preference *a)
{
    ls_cuda_row row(stream, LS_ROW_PREFERENCE);

    if (row.on && a->B > 0)
        preference_kernel<<<(unsigned)a->B, THREADS, 0, row.queue()>>>(*a);
}
