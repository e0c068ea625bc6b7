/* packed.c -- would products be faster if a weight were packed once, for all tasks or for a step?
 *
 * packed [THREADS]: the weights' products of the 10M and the 124M model, forward and towards the
 * input, in three ways, taken in turn:
 *
 *   own    each task packs the columns that it needs, as the kernels do
 *   call   all threads pack the whole weight first, then every task reads it
 *   ready  the weight was packed before the clock starts: the most that packing once a step could
 *          give, if a step had no other cost for it
 *
 * Prints for each product GFLOP/s of the median call of each way and their ratio to own. The
 * kernels' own file is compiled in here with another source of B, so everything else is the same.
 * Needs AVX-512. */
#define GEMM_BLOCK_OF_B packed_or_own
struct block;
static const float *packed_or_own(const struct block *x, long k0, long kc, float *sums,
                                  _Bool add);
#include "../src/kernel/cpu/simd/gemm.c"

#include <stdio.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"

enum { ROUNDS = 31, WAYS = 3 };
static const char *const way_names[WAYS] = {"own", "call", "ready"};

static float *packed; /* the whole of B: blocks of K, in each panel after panel; NULL: own */

void LS_ISA_NAME(ls_gemm_run_few)(ls_stream *stream, const ls_gemm *g)
{
    (void)stream;
    LS_BUG_IF(true, "%lld rows are too few for this bench", (long long)g->M);
}

static int64_t padded(const ls_gemm *g)
{
    return ls_round_up(g->N, NR);
}

static const float *packed_or_own(const block *x, int64_t k0, int64_t kc, float *sums, bool add)
{
    if (!packed)
        return block_of_b(x, k0, kc, sums, add);
    return packed + k0 * padded(x->p->g) + x->w.n0 * kc;
}

/* Panel number `index` of all blocks of K. */
static void pack_panel(void *context, int64_t index, int worker)
{
    const ls_gemm *g = context;
    _Alignas(64) static _Thread_local float wide[B_PANEL];
    int64_t n = index * NR, cols = ls_min_i64(NR, g->N - n);

    (void)worker;
    for (int64_t k0 = 0; k0 < g->K; k0 += KC) {
        int64_t kc = ls_min_i64(KC, g->K - k0);
        pack_b(g, n, cols, k0, kc, packed + k0 * padded(g) + n * kc, wide);
    }
}

static void pack_whole(ls_stream *stream, const ls_gemm *g)
{
    ls_gemm copy = *g;

    ls_pool_run(ls_stream_pool(stream), pack_panel, &copy, padded(g) / NR);
}

static int64_t time_way(ls_stream *stream, const ls_gemm *g, int way, float *room)
{
    packed = way ? room : NULL;
    if (way == 2)
        pack_whole(stream, g);
    int64_t begin = ls_time_now_ns();
    if (way == 1)
        pack_whole(stream, g);
    LS_ISA_NAME(ls_gemm_run)(stream, g);
    return ls_time_now_ns() - begin;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static float *numbers(int64_t n)
{
    float *x = aligned_alloc(64, (size_t)ls_round_up(n * 4, 64));

    LS_BUG_IF(!x, "no memory for %lld numbers", (long long)n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 7) - 3;
    return x;
}

static void product(ls_stream *stream, const char *name, int64_t M, int64_t K, int64_t N, bool back)
{
    float *a = numbers(M * K), *b = numbers(K * N), *c = numbers(M * N);
    float *room = numbers(K * ls_round_up(N, NR)), *first = numbers(M * N);
    const ls_gemm g = {.a = a,
                       .a_m = K,
                       .a_k = 1,
                       .b = b,
                       .b_k = back ? 1 : N,
                       .b_n = back ? K : 1,
                       .M = M,
                       .N = N,
                       .K = K,
                       .leaves = 1,
                       .finish = LS_ISA_NAME(ls_gemm_store),
                       .out = c,
                       .ld = N};
    int64_t times[WAYS][ROUNDS];
    double rate[WAYS];

    for (int r = -1; r < ROUNDS; r++)
        for (int way = 0; way < WAYS; way++) {
            int64_t ns = time_way(stream, &g, way, room);
            if (r >= 0)
                times[way][r] = ns;
            else if (way == 0)
                memcpy(first, c, (size_t)(M * N) * sizeof *c);
            else
                LS_BUG_IF(memcmp(first, c, (size_t)(M * N) * sizeof *c) != 0,
                          "%s differs when packed by %s", name, way_names[way]);
        }
    printf("%-10s %-3s %5lld %5lld %5lld", name, back ? "dx" : "fwd", (long long)M, (long long)N,
           (long long)K);
    for (int way = 0; way < WAYS; way++) {
        qsort(times[way], ROUNDS, sizeof times[way][0], by_time);
        rate[way] = 2.0 * (double)(M * N * K) / (double)times[way][ROUNDS / 2];
        printf("  %s %5.1f", way_names[way], rate[way]);
    }
    printf("  call/own %.3f ready/own %.3f\n", rate[1] / rate[0], rate[2] / rate[0]);
    fflush(stdout);
    free(a), free(b), free(c), free(room), free(first);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int64_t M, C;
    } models[] = {{"10m", 3072, 384}, {"124m", 1024, 768}};
    ls_device *device;
    ls_stream *stream;

    if (!__builtin_cpu_supports("avx512f")) {
        fprintf(stderr, "packed: this CPU lacks AVX-512\n");
        return 77;
    }
    if (ls_device_open(&device, "cpu", argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2) != LS_OK ||
        ls_stream_create(&stream, device) != LS_OK) {
        fprintf(stderr, "packed: %s\n", ls_err_last()->text);
        return 1;
    }
    for (size_t i = 0; i < LS_COUNT(models); i++) {
        int64_t M = models[i].M, C = models[i].C;
        const struct {
            const char *name;
            int64_t K, N;
        } layers[] = {{"qkv", C, 3 * C}, {"proj", C, C}, {"fc", C, 4 * C}, {"out", 4 * C, C}};
        for (size_t k = 0; k < LS_COUNT(layers); k++) {
            char name[24];
            snprintf(name, sizeof name, "%s %s", models[i].name, layers[k].name);
            product(stream, name, M, layers[k].K, layers[k].N, false);
            product(stream, name, M, layers[k].N, layers[k].K, true);
        }
    }
    ls_stream_free(stream);
    ls_device_close(device);
    return 0;
}
