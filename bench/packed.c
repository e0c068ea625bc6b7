/* packed.c -- what a weight gains that is packed once for many products.
 *
 * packed [THREADS [ROWS]]: the weights' products of the 10M and the 124M model, forward and towards
 * the input, in three ways, taken in turn:
 *
 *   own    each task packs the columns that it needs
 *   once   the weight was packed before the clock starts: a call that is not the first
 *   first  the call that packs it: the row and the product
 *
 * ROWS are those of a call; default: of the model's usual batch. Prints for each product GFLOP/s of
 * the median call of each way, their ratio to own, and after how many calls between two changes of
 * the weight packing once is quicker. */
#include <stdio.h>
#include <stdlib.h>
#include "base/time.h"
#include "kernel/kernel.h"

enum { ROUNDS = 31, WAYS = 3 };
static const char *const way_names[WAYS] = {"own", "once", "first"};

typedef struct job {
    ls_stream *stream;
    const ls_kernels *kernels;
    ls_linear_fwd fwd;
    ls_linear_bwd_x back;
    ls_pack pack;
} job;

static int64_t time_way(job *j, int way)
{
    j->fwd.packed = j->back.packed = way ? j->pack.packed : NULL;
    int64_t begin = ls_time_now_ns();
    if (way == 2)
        j->kernels->pack(j->stream, &j->pack);
    if (j->pack.use == LS_PACK_FORWARD)
        j->kernels->linear_fwd(j->stream, &j->fwd);
    else
        j->kernels->linear_bwd_x(j->stream, &j->back);
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

static void show(const char *name, const job *j, int64_t times[WAYS][ROUNDS])
{
    double ns[WAYS], work = 2.0 * (double)(j->fwd.M * j->fwd.N * j->fwd.K);

    printf("%-10s %-3s %5lld %5lld %5lld", name, j->pack.use == LS_PACK_BACK ? "dx" : "fwd",
           (long long)j->fwd.M, (long long)j->fwd.N, (long long)j->fwd.K);
    for (int way = 0; way < WAYS; way++) {
        qsort(times[way], ROUNDS, sizeof times[way][0], by_time);
        ns[way] = (double)times[way][ROUNDS / 2];
        printf("  %s %5.1f", way_names[way], work / ns[way]);
    }
    printf("  once/own %.3f first/own %.3f", ns[0] / ns[1], ns[0] / ns[2]);
    /* first + (n - 1) once < n own */
    if (ns[1] < ns[0])
        printf("  pays from %.1f calls\n", (ns[2] - ns[1]) / (ns[0] - ns[1]));
    else
        printf("  does not pay\n");
    fflush(stdout);
}

static void product(job *j, const char *name, int64_t M, int64_t K, int64_t N, ls_pack_use use)
{
    bool back = use == LS_PACK_BACK;
    float *x = numbers(M * K), *w = numbers(K * N), *y = numbers(M * N), *out = back ? x : y;
    float *first = numbers(back ? M * K : M * N);
    size_t bytes = (size_t)(back ? M * K : M * N) * sizeof *out;
    int64_t times[WAYS][ROUNDS];

    j->fwd = (ls_linear_fwd){.x = x, .w = w, .y = y, .M = M, .N = N, .K = K};
    j->back = (ls_linear_bwd_x){.dy = y, .w = w, .dx = x, .M = M, .N = N, .K = K};
    j->pack = (ls_pack){.w = w, .M = M, .N = N, .K = K, .use = use};
    j->pack.packed = numbers(j->kernels->pack_bytes(&j->pack) / 4);
    for (int r = -1; r < ROUNDS; r++)
        for (int way = 0; way < WAYS; way++) {
            if (r < 0 && way == 1)
                j->kernels->pack(j->stream, &j->pack);
            int64_t ns = time_way(j, way);
            if (r >= 0)
                times[way][r] = ns;
            else if (way == 0)
                memcpy(first, out, bytes);
            else
                LS_BUG_IF(memcmp(first, out, bytes) != 0, "%s differs by way %s", name,
                          way_names[way]);
        }
    show(name, j, times);
    free(x), free(w), free(y), free(first), free(j->pack.packed);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int64_t M, C;
    } models[] = {{"10m", 3072, 384}, {"124m", 1024, 768}};
    int64_t rows = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    ls_device *device;
    job j = {.stream = NULL};

    if (ls_kernel_pick("auto", &j.kernels) != LS_OK ||
        ls_device_open(&device, "cpu", argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2) != LS_OK ||
        ls_stream_create(&j.stream, device) != LS_OK) {
        fprintf(stderr, "packed: %s\n", ls_err_last()->text);
        return 1;
    }
    for (size_t i = 0; i < LS_COUNT(models); i++) {
        int64_t M = rows > 0 ? rows : models[i].M, C = models[i].C;
        const struct {
            const char *name;
            int64_t K, N;
        } layers[] = {{"qkv", C, 3 * C}, {"proj", C, C}, {"fc", C, 4 * C}, {"out", 4 * C, C}};
        for (size_t k = 0; k < LS_COUNT(layers); k++) {
            char name[24];
            snprintf(name, sizeof name, "%s %s", models[i].name, layers[k].name);
            product(&j, name, M, layers[k].K, layers[k].N, LS_PACK_FORWARD);
            product(&j, name, M, layers[k].K, layers[k].N, LS_PACK_BACK);
        }
    }
    ls_stream_free(j.stream);
    ls_device_close(device);
    return 0;
}
