/* cmd_bench.c -- `lineshaft bench kernels`: every row of the kernel table at the shapes of a model.
 *
 * This file has the command: which shapes, which device, and the figures as people and programs
 * read them. How a row is timed and judged stands in kernel/bench_measure.c, how it is prepared
 * and called in kernel/bench_prepare.c. */
#include "cli/bench/cmd_bench.h"

#include "base/json.h"
#include "kernel/bench.h"
#include <inttypes.h>

static const ls_bench_dims all_dims[] = {
    {"small", 12, 64, 128, 512, 256, 4, 1 << 20, 2}, /* nanoGPT's small task */
    {"10m", 12, 256, 384, 1536, 256, 6, 10 << 20, 2},
    {"124m", 4, 256, 768, 3072, 50304, 12, 16 << 20, 1}, /* flat rows: a part of the parameters */
    {"gpt2", 64, 1024, 768, 3072, 50304, 12, 124 << 20, 1}, /* the same, a batch for a GPU */
};

static void show_head(ls_bench *b)
{
    ls_device_info info = ls_device_describe(b->device);

    printf("%s, %s kernels\nshape %s (B %" PRId64 ", T %" PRId64 ", C %" PRId64 ", F %" PRId64
           ", V %" PRId64 ", H %" PRId64 ")\n",
           info.name, b->kernels->name, b->d->name, b->d->B, b->d->T, b->d->C, b->d->F, b->d->V,
           b->d->H);
    if (b->gpu) {
        printf(
            "measured peaks: %.1f TFLOP/s in bf16 (%.1f for a while), %.1f in fp32, %.2f TB/s\n\n",
            b->peak.bf16_flops / 1e12, b->peak.bf16_held / 1e12, b->peak.f32_flops / 1e12,
            b->peak.bytes / 1e12);
    } else {
        b->best_flops = ls_peak_flops(b->device, b->kernels->name);
        printf("measured peaks: %.1f GFLOP/s, %.1f GB/s from memory\n\n", b->best_flops / 1e9,
               ls_peak_bandwidth(b->device) / 1e9);
    }
    printf("%-14s %-5s %10s %15s %8s %16s  %s\n", "row", "", "ms", "rate", "share", "of ceiling",
           "formula");
}

static void show_figure(const ls_bench *b, const ls_bench_figure *f)
{
    char rate[32], ceiling[32];

    double unit = b->gpu ? 1e12 : 1e9;

    snprintf(rate, sizeof rate, "%.*f %c%s", b->gpu && f->flops <= 0 ? 2 : 1,
             (f->flops + f->bytes) / f->seconds / unit, b->gpu ? 'T' : 'G',
             f->flops > 0 ? "FLOP/s" : "B/s");
    snprintf(ceiling, sizeof ceiling, "%.1f %s", f->ceiling / unit, ls_bench_level(b, f));
    printf("%-14s %-5s %10.3f %15s %5.0f %%%s %16s  %s\n", ls_kernel_rows[f->row].name,
           f->product ? f->product : "", f->seconds * 1e3, rate, f->share * 100,
           f->busy ? "*" : " ", ceiling, ls_kernel_rows[f->row].formula);
    fflush(stdout);
}

static void show_foot(const ls_bench *b)
{
    if (b->n_busy > 0)
        printf("\n* the machine was busy: the ceiling moved while %d of %d rows were measured; "
               "their figures are too low\n",
               b->n_busy, b->n_shown);
}

static ls_status show_json(const ls_bench *b, const ls_bench_figure *f)
{
    ls_status st;
    ls_json json;
    ls_str line;

    ls_str_init(&line);
    ls_json_begin(&json, &line);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "event", "bench");
    ls_json_put_str(&json, "row", ls_kernel_rows[f->row].name);
    if (f->product)
        ls_json_put_str(&json, "product", f->product);
    ls_json_put_str(&json, "kernels", b->kernels->name);
    ls_json_put_int(&json, "threads", ls_device_describe(b->device).threads);
    ls_json_put_str(&json, "shape", b->d->name);
    ls_json_put_num(&json, "ms", f->seconds * 1e3);
    if (f->flops > 0)
        ls_json_put_num(&json, "flops_per_s", f->flops / f->seconds);
    else
        ls_json_put_num(&json, "bytes_per_s", f->bytes / f->seconds);
    ls_json_put_num(&json, "peak", f->ceiling);
    ls_json_put_str(&json, "level", ls_bench_level(b, f));
    if (f->flops <= 0)
        ls_json_put_int(&json, "working_bytes", f->working_bytes);
    ls_json_put_num(&json, "share", f->share);
    ls_json_put_bool(&json, "busy", f->busy);
    ls_json_close(&json);
    st = ls_str_status(&line);
    if (st == LS_OK) {
        puts(line.p);
        fflush(stdout);
    }
    ls_str_release(&line);
    return st;
}

static ls_status find_dims(const char *name, const ls_bench_dims **dims_out)
{
    for (size_t i = 0; i < LS_COUNT(all_dims); i++)
        if (strcmp(all_dims[i].name, name) == 0) {
            *dims_out = &all_dims[i];
            return LS_OK;
        }
    ls_status st = ls_fail(LS_EUSAGE, "there is no shape named \"%s\"", name);
    ls_err_hint("The shapes are small, 10m, 124m and gpt2.");
    return st;
}

/* LS_ROWS stands for all rows. */
static ls_status find_row(const char *name, ls_row *row_out)
{
    int near = 0;

    if (!name) {
        *row_out = LS_ROWS;
        return LS_OK;
    }
    for (int i = 0; i < LS_ROWS; i++) {
        if (strcmp(ls_kernel_rows[i].name, name) == 0) {
            *row_out = (ls_row)i;
            return LS_OK;
        }
        if (ls_str_distance(name, ls_kernel_rows[i].name) <
            ls_str_distance(name, ls_kernel_rows[near].name))
            near = i;
    }
    ls_status st = ls_fail(LS_EUSAGE, "there is no kernel row named \"%s\"", name);
    ls_err_hint("The nearest name is \"%s\"; without --row all are shown.",
                ls_kernel_rows[near].name);
    return st;
}

static ls_status find_threads(const char *text, int *threads_out)
{
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;

    if (text && (end == text || *end || n < 1 || n > 1024)) {
        ls_status st = ls_fail(LS_EUSAGE, "--threads is \"%s\", not a number from 1 to 1024", text);
        ls_err_hint("Leave it out to use every core that this process may use.");
        return st;
    }
    *threads_out = (int)n;
    return LS_OK;
}

/* The device, its kernels and the type of the numbers; on a GPU what it can do. */
static ls_status open_device(ls_bench *b, const ls_args *args, int threads)
{
    const char *kind = ls_args_value(args, "device"), *isa = ls_args_value(args, "isa");
    const char *precision = ls_args_value(args, "precision");
    ls_status st = LS_OK;

    b->gpu = kind && strcmp(kind, "cuda") == 0;
    b->type = b->gpu ? LS_BF16 : LS_F32;
    if (precision) {
        b->type = strcmp(precision, "bf16") == 0 ? LS_BF16 : LS_F32;
        if (b->type == LS_F32 && strcmp(precision, "fp32") != 0)
            return ls_fail(LS_EUSAGE, "--precision is \"%s\", not fp32 or bf16", precision);
        if (b->type == LS_BF16 && !b->gpu) {
            st = ls_fail(LS_EUSAGE, "--precision bf16 is for a GPU");
            ls_err_hint("Add --device cuda.");
            return st;
        }
    }
    LS_TRY(st, ls_device_open(&b->device, kind ? kind : "cpu", threads), out);
    LS_TRY(st, ls_kernel_for(b->device, isa ? isa : "auto", &b->kernels), out);
    LS_TRY(st, ls_stream_create(&b->stream, b->device), out);
    if (!b->gpu)
        return LS_OK;
    LS_TRY(st, ls_event_create(&b->begin, b->device), out);
    LS_TRY(st, ls_event_create(&b->end, b->device), out);
    b->peak = ls_peak_gpu_of(b->device, b->kernels);
out:
    return st;
}

static ls_status bench_rows(ls_bench *b, ls_row only, bool json)
{
    ls_status st = LS_OK;

    if (!json)
        show_head(b);
    for (int row = 0; row < LS_ROWS && st == LS_OK; row++) {
        int n = ls_bench_is_linear((ls_row)row) ? LS_BENCH_PRODUCTS : 1;
        if (only != LS_ROWS && row != (int)only)
            continue;
        if (row == LS_ROW_PACK && !b->kernels->pack) {
            if (only == LS_ROW_PACK)
                st = ls_fail(LS_EUSAGE,
                             "the \"%s\" kernels have no pack row: they read weights "
                             "as they are",
                             b->kernels->name);
            continue;
        }
        for (int i = 0; i < n && st == LS_OK; i++) {
            ls_bench_figure f;
            st = ls_bench_measure(b, (ls_row)row, i, &f);
            if (st == LS_OK && json)
                st = show_json(b, &f);
            else if (st == LS_OK)
                show_figure(b, &f);
        }
    }
    if (st == LS_OK && !json)
        show_foot(b);
    return st;
}

static ls_status run_kernels(const ls_args *args, ls_str *out)
{
    const char *shape = ls_args_value(args, "shape"), *kind = ls_args_value(args, "device");
    bool gpu = kind && strcmp(kind, "cuda") == 0;
    ls_bench b = {.st = LS_OK};
    ls_row only = LS_ROWS;
    int threads = 0;
    ls_status st;

    (void)out;
    LS_TRY(st, find_row(ls_args_value(args, "row"), &only), out);
    LS_TRY(st, find_dims(shape ? shape : gpu ? "gpt2" : "10m", &b.d), out);
    LS_TRY(st, find_threads(ls_args_value(args, "threads"), &threads), out);
    LS_TRY(st, open_device(&b, args, threads), out);
    LS_TRY(st, bench_rows(&b, only, ls_args_has(args, "json")), out);
out:
    ls_event_free(b.begin);
    ls_event_free(b.end);
    ls_stream_free(b.stream);
    ls_device_close(b.device);
    return st;
}

static const ls_flag kernel_flags[] = {
    {"device", 0, "NAME", false, "Where to measure: cpu (default) or cuda."},
    {"precision", 0, "NAME", false,
     "On a GPU, the type of activations and weights: bf16 (default) or fp32."},
    {"isa", 0, "NAME", false,
     "Kernels to measure: auto (default), avx512, avx2, generic or reference."},
    {"threads", 0, "N", false, "Threads to use; default: every core this process may use."},
    {"row", 0, "NAME", false, "Measure this row only, for example norm_fwd."},
    {"shape", 0, "NAME", false,
     "Model shape: small, 10m (default), 124m, which needs about 500 MB, or gpt2 (default on a "
     "GPU): the same model with 64 sequences of 1024."},
    {"json", 'j', NULL, false, "Print one JSON object a line."},
    {0},
};

static const ls_command bench_kernels = {
    .name = "kernels",
    .summary = "time every kernel row at the shapes of a model",
    .about =
        "Times each row of the kernel table for about 0.2 s. Times are medians. The linear rows "
        "are "
        "shown for each product of a block: qkv, proj, fc and out.\n\n"
        "Products are given in GFLOP/s and as a share of the fma peak of the same instructions. "
        "Other rows are given in GB/s and as a share of the bandwidth that a plain loop reaches "
        "over as much memory as the row works on; the level (L1, L2, L3, memory) says where that "
        "lies. Each ceiling is measured before and after its row. A star marks rows during which "
        "it moved because the machine was busy.\n\n"
        "On a GPU (--device cuda) rows are timed by its events and shown in TFLOP/s and TB/s, as a "
        "share of a large product of the same type and of a copy on the card. These ceilings are "
        "measured once for each kind of card and driver, in less than a second, and remembered.",
    .examples =
        "lineshaft bench kernels  # all rows, 10M model, best kernels, all cores\n"
        "lineshaft bench kernels --shape 124m --row head  # one row of a larger model\n"
        "lineshaft bench kernels --isa avx2 --threads 1  # other instructions, one core\n"
        "lineshaft bench kernels --device cuda  # on the GPU, a batch of 64 x 1024 in bf16\n"
        "lineshaft bench kernels --json > kernels.jsonl  # for programs\n",
    .flags = kernel_flags,
    .run = run_kernels,
};

static const ls_command *const bench_subs[] = {&bench_kernels, &ls_bench_comm, NULL};

const ls_command ls_cmd_bench = {
    .name = "bench",
    .summary = "measure what this machine can do",
    .about = "Measures parts of lineshaft on this machine, beside the peaks of the machine itself.",
    .examples = "lineshaft bench kernels  # every row of the kernel table\n"
                "lineshaft bench comm -n 2  # collectives between two ranks\n",
    .subs = bench_subs,
};
