/* products.c -- speed of one library at every matrix product of nanoGPT's small model, the 10M and
 * the 124M one.
 *
 * products WHO LIBRARY THREADS [MODEL]: WHO is ours, cblas, dnnl or xsmm, LIBRARY the shared object
 * to open ("-" for ours), MODEL nano, 10m or 124m (default: all). One library per process, because
 * each brings threads that spin for a while after a product and would disturb the next one;
 * products.py takes processes in turn. Prints for each product
 *
 *     MODEL NAME PASS m n k GFLOP/s PEAK
 *
 * where m, n, k are those of the plain product and PEAK is the fma peak in GFLOP/s, the smaller of
 * two taken right before and right after; when it is lower than ever before, again. GFLOP/s is of
 * the median call over about 0.15 s, or of the fastest with BEST in the environment: all that a
 * busy machine can tell, on one thread.
 *
 * Our rows do what the model asks of them (bias, sums of columns, trees over leaves); the libraries
 * do the plain product. Rows named +gelu, which only we have, compute the activation too. Each
 * result is checked at a few elements. */
#include <dlfcn.h>
#include <math.h>
#include "base/mem.h"
#include "base/time.h"
#include "device/device.h"
#include "kernel/kernel.h"
#include "kernel/peak.h"

/* --- products -----------------------------------------------------------------------------------
 */

typedef enum which { FWD, DX, DW } which;
static const char *const which_names[] = {"fwd", "dx", "dw"};

/* A layer of M rows, K inputs and N outputs. */
typedef struct layer {
    const char *model, *name;
    int64_t M, K, N, leaves;
    ls_layout layout;
    bool bias;
    ls_act act, below; /* on the way forward; of the layer that made the input */
    unsigned passes;   /* bits 1 << which */
} layer;

enum { ALL = 1 << FWD | 1 << DX | 1 << DW, TRIES = 20 };

#define LAYER(model, name, M, K, N, leaves, layout, bias, act, below, passes) \
    {                                                                         \
        model, name, M, K, N, leaves, layout, bias, act, below, passes        \
    }
#define WEIGHT(model, name, M, K, N, leaves) \
    LAYER(model, name, M, K, N, leaves, LS_LAYOUT_KN, true, LS_ACT_NONE, LS_ACT_NONE, ALL)
/* With the activation of the layer, which only our rows do. */
#define BLOCK(model, M, C, leaves)                                                                 \
    WEIGHT(model, "qkv", M, C, 3 * C, leaves), WEIGHT(model, "proj", M, C, C, leaves),             \
        WEIGHT(model, "fc", M, C, 4 * C, leaves), WEIGHT(model, "out", M, 4 * C, C, leaves),       \
        LAYER(model, "fc+gelu", M, C, 4 * C, leaves, LS_LAYOUT_KN, true, LS_ACT_GELU, LS_ACT_NONE, \
              1 << FWD),                                                                           \
        LAYER(model, "out+gelu", M, 4 * C, C, leaves, LS_LAYOUT_KN, true, LS_ACT_NONE,             \
              LS_ACT_GELU, 1 << DX)
#define PLAIN(model, name, M, K, N, leaves, layout, passes) \
    LAYER(model, name, M, K, N, leaves, layout, false, LS_ACT_NONE, LS_ACT_NONE, passes)

/* Attention is one head of 256 positions: q k^T, p v, and p^T do of the gradient. */
static const layer layers[] = {
    BLOCK("nano", 768, 128, 3),
    PLAIN("nano", "head", 768, 128, 256, 3, LS_LAYOUT_NK, ALL),
    BLOCK("10m", 3072, 384, 12),
    PLAIN("10m", "head", 3072, 384, 256, 12, LS_LAYOUT_NK, ALL),
    BLOCK("124m", 1024, 768, 4),
    PLAIN("124m", "head", 1024, 768, 50304, 4, LS_LAYOUT_NK, ALL),
    PLAIN("124m", "qk", 256, 64, 256, 1, LS_LAYOUT_NK, 1 << FWD),
    PLAIN("124m", "pv", 256, 256, 64, 1, LS_LAYOUT_KN, 1 << FWD | 1 << DW),
};

/* The same as a plain row-major product c[m, n] = op(a) op(b) over k. */
typedef struct plain {
    bool ta, tb;
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t lda, ldb;
} plain;

typedef struct operands {
    float *x, *w, *y, *z, *bias; /* x: M K, w: K N, y: M N; z: the larger of x and y */
} operands;

static plain plain_of(const layer *l, which pass, const operands *o)
{
    bool nk = l->layout == LS_LAYOUT_NK;
    int64_t ldw = nk ? l->K : l->N;

    if (pass == FWD)
        return (plain){false, nk, l->M, l->N, l->K, o->x, o->w, o->y, l->K, ldw};
    if (pass == DX)
        return (plain){false, !nk, l->M, l->K, l->N, o->y, o->w, o->x, l->N, ldw};
    if (nk)
        return (plain){true, false, l->N, l->K, l->M, o->y, o->x, o->w, l->N, l->K};
    return (plain){true, false, l->K, l->N, l->M, o->x, o->y, o->w, l->K, l->N};
}

/* --- who computes -------------------------------------------------------------------------------
 */

typedef void (*cblas_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
typedef int (*dnnl_fn)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                       float *c, int64_t ldc);
/* Column-major, everything by address, as Fortran has it; precision 1 is float. */
typedef void (*xsmm_fn)(int iprec, int oprec, const char *ta, const char *tb, const int *m,
                        const int *n, const int *k, const float *alpha, const float *a,
                        const int *lda, const float *b, const int *ldb, const float *beta, float *c,
                        const int *ldc);

typedef struct who {
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *kernels;
    cblas_fn cblas;
    dnnl_fn dnnl;
    xsmm_fn xsmm;
} who;

static void by_rows(const who *w, const layer *l, which pass, const operands *o)
{
    if (pass == FWD)
        w->kernels->linear_fwd(w->stream, &(ls_linear_fwd){.x = o->x,
                                                           .w = o->w,
                                                           .b = l->bias ? o->bias : NULL,
                                                           .y = o->y,
                                                           .z = l->act ? o->z : NULL,
                                                           .M = l->M,
                                                           .N = l->N,
                                                           .K = l->K,
                                                           .layout = l->layout,
                                                           .act = l->act});
    else if (pass == DX)
        w->kernels->linear_bwd_x(w->stream, &(ls_linear_bwd_x){.dy = o->y,
                                                               .w = o->w,
                                                               .z = l->below ? o->z : NULL,
                                                               .dx = o->x,
                                                               .M = l->M,
                                                               .N = l->N,
                                                               .K = l->K,
                                                               .layout = l->layout,
                                                               .act = l->below});
    else
        w->kernels->linear_bwd_w(w->stream, &(ls_linear_bwd_w){.x = o->x,
                                                               .dy = o->y,
                                                               .dw = o->w,
                                                               .db = l->bias ? o->bias : NULL,
                                                               .M = l->M,
                                                               .N = l->N,
                                                               .K = l->K,
                                                               .layout = l->layout,
                                                               .leaves = l->leaves});
}

static void by_xsmm(xsmm_fn call, const plain *p)
{
    const int m = (int)p->n, n = (int)p->m, k = (int)p->k; /* the transposed product */
    const int lda = (int)p->ldb, ldb = (int)p->lda, ldc = (int)p->n;
    const float one = 1, zero = 0;

    call(1, 1, p->tb ? "T" : "N", p->ta ? "T" : "N", &m, &n, &k, &one, p->b, &lda, p->a, &ldb,
         &zero, p->c, &ldc);
}

static void compute(const who *w, const layer *l, which pass, const operands *o)
{
    plain p = plain_of(l, pass, o);

    if (w->cblas)
        w->cblas(101, p.ta ? 112 : 111, p.tb ? 112 : 111, (int)p.m, (int)p.n, (int)p.k, 1, p.a,
                 (int)p.lda, p.b, (int)p.ldb, 0, p.c, (int)p.n);
    else if (w->dnnl)
        w->dnnl(p.ta ? 'T' : 'N', p.tb ? 'T' : 'N', p.m, p.n, p.k, 1, p.a, p.lda, p.b, p.ldb, 0,
                p.c, p.n);
    else if (w->xsmm)
        by_xsmm(w->xsmm, &p);
    else
        by_rows(w, l, pass, o);
}

/* --- measuring ----------------------------------------------------------------------------------
 */

static void fill(float *p, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
}

/* A few elements against the sum in double. Ours with an activation is not the plain product;
 * the tests of the rows look after those. */
static bool is_right(const plain *p)
{
    for (int64_t i = 0; i < 7; i++) {
        int64_t row = i * (p->m - 1) / 6, column = (6 - i) * (p->n - 1) / 6;
        double sum = 0;
        for (int64_t j = 0; j < p->k; j++)
            sum += (double)(p->ta ? p->a[j * p->lda + row] : p->a[row * p->lda + j]) *
                   (double)(p->tb ? p->b[column * p->ldb + j] : p->b[j * p->ldb + column]);
        if (!(fabs(sum - (double)p->c[row * p->n + column]) < 1e-2))
            return false;
    }
    return true;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static double seconds_of(const who *w, const layer *l, which pass, const operands *o)
{
    enum { MOST = 4000 };
    double *times = ls_mem_array(MOST, sizeof *times), spent = 0;
    int n = 0;

    if (!times)
        return 0;
    for (int i = -1; i < MOST - 1 && (n < 3 || spent < 0.15); i++) {
        int64_t begin = ls_time_now_ns();
        compute(w, l, pass, o);
        double s = (double)(ls_time_now_ns() - begin) / 1e9;
        if (i >= 0)
            times[n++] = s, spent += s;
    }
    qsort(times, (size_t)n, sizeof *times, compare);
    double seconds = times[getenv("BEST") ? 0 : n / 2];
    ls_mem_free(times);
    return seconds;
}

static ls_status measure(const who *w, const layer *l, which pass, const operands *o)
{
    bool plain_result = (pass == FWD && !l->act) || (pass == DX && !l->below) || pass == DW;
    plain p = plain_of(l, pass, o);
    const char *isa = "auto";

    fill(o->x, l->M * l->K, 1);
    fill(o->w, l->K * l->N, 2);
    fill(o->y, l->M * l->N, 3);
    memset(o->bias, 0, (size_t)l->N * sizeof *o->bias);
    /* The host of a virtual machine may take half of it away for seconds: again, until the peak is
     * the same before and after, and the highest seen. */
    static double highest;
    double seconds = 0, peak = 0;
    for (int i = 0; i < TRIES && peak < 0.95 * highest + 1; i++) {
        double before = ls_peak_flops(w->device, isa), now = seconds_of(w, l, pass, o);
        double after = ls_peak_flops(w->device, isa), least = before < after ? before : after;
        highest = highest < before ? before : highest;
        highest = highest < after ? after : highest;
        if (least > peak)
            seconds = now, peak = least;
    }
    if (ls_stream_failed(w->stream))
        return ls_stream_sync(w->stream, 0);
    if (plain_result && !is_right(&p))
        return ls_fail(LS_EFAIL, "%s %s %s: the result is wrong", l->model, l->name,
                       which_names[pass]);
    printf("%s %s %s %lld %lld %lld %.2f %.2f\n", l->model, l->name, which_names[pass],
           (long long)p.m, (long long)p.n, (long long)p.k,
           2e-9 * (double)l->M * (double)l->N * (double)l->K / seconds, peak / 1e9);
    fflush(stdout);
    return LS_OK;
}

static ls_status measure_layer(const who *w, const layer *l)
{
    const int64_t counts[] = {l->M * l->K, l->K * l->N, l->M * l->N, l->M * ls_max_i64(l->K, l->N),
                              l->N};
    void *memory[LS_COUNT(counts)] = {0};
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(counts) && st == LS_OK; i++)
        st = ls_device_alloc(w->device, counts[i] * (int64_t)sizeof(float), "operand", &memory[i]);
    const operands o = {memory[0], memory[1], memory[2], memory[3], memory[4]};
    for (int pass = FWD; pass <= DW && st == LS_OK; pass++)
        if (l->passes & 1u << pass)
            st = measure(w, l, (which)pass, &o);
    for (size_t i = 0; i < LS_COUNT(counts); i++)
        ls_device_free(w->device, memory[i]);
    return st;
}

/* --- start --------------------------------------------------------------------------------------
 */

static ls_status open_library(who *w, const char *name, const char *path)
{
    static const struct {
        const char *name, *symbol;
    } known[] = {{"cblas", "cblas_sgemm"}, {"dnnl", "dnnl_sgemm"}, {"xsmm", "libxsmm_xgemm_omp"}};
    void *library = NULL, *call = NULL;

    if (strcmp(name, "ours") == 0)
        return LS_OK;
    for (size_t i = 0; i < LS_COUNT(known); i++)
        if (strcmp(name, known[i].name) == 0) {
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            call = library ? dlsym(library, known[i].symbol) : NULL;
            if (!call)
                return ls_fail(LS_EFAIL, "%s", dlerror());
        }
    if (!call)
        return ls_fail(LS_EUSAGE, "\"%s\" is not ours, cblas, dnnl or xsmm", name);
    if (name[0] == 'c')
        memcpy(&w->cblas, &call, sizeof call); /* C has no cast from data to function pointer */
    else if (name[0] == 'd')
        memcpy(&w->dnnl, &call, sizeof call);
    else
        memcpy(&w->xsmm, &call, sizeof call);
    return LS_OK;
}

int main(int argc, char **argv)
{
    who w = {0};
    ls_status st = LS_OK;

    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: products ours|cblas|dnnl|xsmm LIBRARY THREADS [nano|10m|124m]\n");
        return 2;
    }
    LS_TRY(st, open_library(&w, argv[1], argv[2]), out);
    LS_TRY(st, ls_kernel_pick("auto", &w.kernels), out);
    /* A library's threads may be made by a later call, and stay where this one is. */
    LS_TRY(
        st,
        ls_device_open_with(&w.device, &(ls_device_args){.kind = "cpu",
                                                         .threads = (int)strtol(argv[3], NULL, 10),
                                                         .unpinned = strcmp(argv[1], "ours") != 0}),
        out);
    LS_TRY(st, ls_stream_create(&w.stream, w.device), out);
    for (size_t i = 0; i < LS_COUNT(layers) && st == LS_OK; i++)
        if ((argc < 5 || strcmp(argv[4], layers[i].model) == 0) &&
            (strcmp(argv[1], "ours") == 0 || (!layers[i].act && !layers[i].below)))
            st = measure_layer(&w, &layers[i]);
out:
    if (st != LS_OK)
        fprintf(stderr, "products: %s\n", ls_err_last()->text);
    ls_stream_free(w.stream);
    ls_device_close(w.device);
    return st == LS_OK ? 0 : 1;
}
