/* bench.h -- the time of each row of the kernel table, for `lineshaft bench kernels`.
 *
 * The caller chooses shapes and device and prints (cli/bench/cmd_bench.c); bench_measure.c times a
 * row and compares it with its ceiling; bench_prepare.c knows how each row is prepared and called. */
#pragma once
#include "device/device.h"
#include "kernel/kernel.h"
#include "kernel/peak.h"

typedef struct ls_bench_dims {
    const char *name;
    int64_t B, T, C, F, V, H;
    int64_t n;      /* elements of flat rows: add, cast, adamw, ... */
    int64_t leaves; /* of rows that sum over tokens, as ordered mode calls them */
} ls_bench_dims;

/* A product of a block: M rows of K inputs and N outputs. */
typedef struct ls_bench_product {
    const char *name;
    int64_t K, N;
    ls_act act;   /* rides on the product forward */
    ls_act below; /* made its input: rides on the gradient of the input */
} ls_bench_product;

enum { LS_BENCH_PRODUCTS = 4, LS_BENCH_BUFFERS = 24 };

typedef struct ls_bench {
    ls_device *device; /* owned */
    ls_stream *stream; /* owned */
    const ls_kernels *kernels;
    const ls_bench_dims *d;
    bool gpu;
    ls_dtype type;                   /* of activations and weights */
    ls_peak_gpu peak;                /* of a GPU */
    ls_event *begin, *end;           /* of a GPU; owned */
    ls_bench_product product;        /* of the linear row in hand */
    double best_flops;               /* per second: the largest fma peak so far; 0: not measured */
    int n_shown, n_busy;             /* rows, and those during which the machine was busy */
    ls_status st;                    /* sticky: the first allocation that failed */
    void *buffers[LS_BENCH_BUFFERS]; /* of the row in hand */
    int n_buffers;
    int64_t buffer_bytes;
    union {
        ls_dtype type; /* the first member of all that have one */
        ls_linear_fwd linear_fwd;
        ls_linear_bwd_x linear_bwd_x;
        ls_linear_bwd_w linear_bwd_w;
        ls_qkv qkv;
        ls_attention_fwd attention_fwd;
        ls_attention_bwd attention_bwd;
        ls_norm_fwd norm_fwd;
        ls_norm_bwd norm_bwd;
        ls_act_args act;
        ls_embed_fwd embed_fwd;
        ls_embed_bwd embed_bwd;
        ls_head head;
        ls_preference preference;
        ls_sum sum;
        ls_add add;
        ls_scale scale;
        ls_cast cast;
        ls_fill fill;
        ls_norm2 norm2;
        ls_optimizer_update optimizer_update;
        ls_lamb lamb;
        ls_momentum momentum;
        ls_muon muon;
        ls_pack pack;
    } args;
} ls_bench;

typedef struct ls_bench_figure {
    ls_row row;
    const char *product; /* of a linear row; otherwise NULL */
    double seconds, flops, bytes;
    int64_t working_bytes; /* what a row that is not a product works on */
    double ceiling;        /* operations or bytes per second; 0 when it could not be measured */
    double share;          /* of the ceiling */
    bool busy;             /* something else ran on the machine */
} ls_bench_figure;

/* bench_prepare.c */

/* Rows that are shown for each product. */
bool ls_bench_is_linear(ls_row row);

/* Buffers and arguments of a row, or of one product of it; b->st says whether there was memory. */
void ls_bench_prepare(ls_bench *b, ls_row row, int which);
/* Call it once, on the stream. */
void ls_bench_run(ls_bench *b, ls_row row);
/* Free its buffers. */
void ls_bench_drop(ls_bench *b);

/* bench_measure.c */

/* Prepare, measure and free one row, or one product of it. */
ls_status ls_bench_measure(ls_bench *b, ls_row row, int which, ls_bench_figure *figure_out);
/* Where a row's ceiling comes from, for people. */
const char *ls_bench_level(const ls_bench *b, const ls_bench_figure *f);
