/* step_gpu.c -- one training step of a GPT-2 in bf16 out of the CUDA kernel rows, timed row by row.
 *
 * What a step on a GPU costs before the training loop runs there: forward, backward, gradient norm
 * and AdamW with fp32 master weights, on random tokens. Prints the time of each kind of row, the
 * whole step queued call by call, and the same step recorded once and replayed. The loss of a few
 * steps on the same batch is printed too: it must fall, and two runs must print the same digits.
 *
 * Build: make build/release/step_gpu (needs nvcc, for the plugin)
 * Run:   build/release/step_gpu [B T L C H V STEPS]      default 64 1024 12 768 12 50304 20 */
#include "base/rng.h"
#include "base/time.h"
#include "device/device.h"
#include "kernel/kernel.h"

#include <math.h>

enum { MOST_TENSORS = 4096, MOST_CALLS = 8192 };

typedef struct shape {
    int64_t B, T, L, C, H, V, F, M;
} shape;

/* Where one block's parameters begin, in elements of the flat buffers. */
typedef struct block_params {
    int64_t ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, out_w, out_b;
} block_params;

typedef struct block {
    void *y1, *qkv, *att, *mid, *y2, *z, *act, *next;
    float *mean1, *rstd1, *mean2, *rstd2, *lse;
} block;

typedef struct bench {
    shape s;
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *k;
    block_params params[64];
    block blocks[64];
    int64_t wte, wpe, lnf_w, lnf_b, flat;
    float *w, *m, *v, *grad, *partials, *losses, *meanf, *rstdf;
    uint16_t *copy; /* bf16 weights */
    void *in0, *branch, *yf, *dstream, *dy, *dqkv, *datt, *dz, *scratch;
    int32_t *tokens, *targets;
    ls_optimizer_span *spans;
    int64_t n_spans;
    ls_step_state *state;
    ls_norm_result *result;
    double *total;
    /* timing of calls */
    bool timing;
    int calls;
    const char *names[MOST_CALLS];
    ls_event *at[MOST_CALLS][2];
} bench;

static void must(ls_status st)
{
    if (st == LS_OK)
        return;
    fprintf(stderr, "step_gpu: %s\n%s\n", ls_err_last()->text, ls_err_last()->hint);
    exit(1);
}

static void sync(bench *b)
{
    must(ls_stream_sync(b->stream, ls_time_now_ns() + 120 * LS_NS_PER_S));
}

static void *take(bench *b, int64_t bytes, const char *what)
{
    void *p = NULL;

    must(ls_device_alloc(b->device, bytes, what, &p));
    return p;
}

/* --- the model ------------------------------------------------------------------------------ */

static int64_t param(bench *b, ls_optimizer_span *spans, int64_t n, bool matrix)
{
    int64_t first = b->flat;

    spans[b->n_spans++] = (ls_optimizer_span){
        .first = first, .w_first = first, .count = n, .decay = matrix ? 1.0f : 0.0f, .rate = 1};
    b->flat = ls_round_up(first + n, 64);
    return first;
}

static void lay_out(bench *b, ls_optimizer_span *spans)
{
    const shape *s = &b->s;
    int64_t C = s->C, F = s->F;

    b->wte = param(b, spans, s->V * C, true);
    b->wpe = param(b, spans, s->T * C, true);
    for (int64_t l = 0; l < s->L; l++) {
        block_params *p = &b->params[l];
        p->ln1_w = param(b, spans, C, false);
        p->ln1_b = param(b, spans, C, false);
        p->qkv_w = param(b, spans, C * 3 * C, true);
        p->qkv_b = param(b, spans, 3 * C, false);
        p->proj_w = param(b, spans, C * C, true);
        p->proj_b = param(b, spans, C, false);
        p->ln2_w = param(b, spans, C, false);
        p->ln2_b = param(b, spans, C, false);
        p->fc_w = param(b, spans, C * F, true);
        p->fc_b = param(b, spans, F, false);
        p->out_w = param(b, spans, F * C, true);
        p->out_b = param(b, spans, C, false);
    }
    b->lnf_w = param(b, spans, C, false);
    b->lnf_b = param(b, spans, C, false);
}

static void start_weights(bench *b, const ls_optimizer_span *spans)
{
    float *host = calloc((size_t)b->flat, sizeof *host);

    if (!host)
        exit(1);
    for (int64_t i = 0; i < b->n_spans; i++)
        if (spans[i].decay > 0) {
            float std = 0.02f;
            for (int64_t l = 0; l < b->s.L; l++)
                if (spans[i].first == b->params[l].proj_w || spans[i].first == b->params[l].out_w)
                    std = 0.02f / sqrtf(2.0f * (float)b->s.L);
            ls_rng_normal(ls_rng_derive(1, (uint64_t)i, 0), 0, (uint64_t)spans[i].count,
                          host + spans[i].first);
            for (int64_t k = 0; k < spans[i].count; k++)
                host[spans[i].first + k] *= std;
        }
    for (int64_t l = 0; l <= b->s.L; l++)
        for (int64_t c = 0; c < b->s.C; c++) {
            host[(l < b->s.L ? b->params[l].ln1_w : b->lnf_w) + c] = 1;
            if (l < b->s.L)
                host[b->params[l].ln2_w + c] = 1;
        }
    ls_stream_copy_in(b->stream, b->w, host, b->flat * 4);
    b->k->cast(b->stream, &(ls_cast){LS_F32, LS_BF16, b->w, b->copy, b->flat});
    sync(b);
    free(host);
}

static void allocate(bench *b)
{
    const shape *s = &b->s;
    int64_t MC = s->M * s->C * 2, MF = s->M * s->F * 2, blocks;

    b->w = take(b, b->flat * 4, "master weights");
    b->m = take(b, b->flat * 4, "moments");
    b->v = take(b, b->flat * 4, "moments");
    b->grad = take(b, b->flat * 4, "gradients");
    b->copy = take(b, b->flat * 2, "weights");
    blocks = (b->flat + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    b->partials = take(b, blocks * 4, "partial sums");
    b->losses = take(b, s->M * 4, "losses");
    b->total = take(b, 8, "sum of losses");
    char *stats = take(b, (4 * s->L + 2) * s->M * 4 + s->L * s->M * s->H * 4, "statistics");
    float *at = (float *)stats;
    b->meanf = at, b->rstdf = at + s->M, at += 2 * s->M;
    char *acts = take(b, s->L * (6 * MC + 2 * MC + 2 * MF), "activations");
    for (int64_t l = 0; l < s->L; l++) {
        block *k = &b->blocks[l];
        k->mean1 = at, k->rstd1 = at + s->M, k->mean2 = at + 2 * s->M, k->rstd2 = at + 3 * s->M;
        k->lse = at + 4 * s->M, at += (4 + s->H) * s->M;
        k->y1 = acts, k->att = acts + MC, k->mid = acts + 2 * MC, k->y2 = acts + 3 * MC;
        k->next = acts + 4 * MC, k->qkv = acts + 5 * MC, acts += 8 * MC;
        k->z = acts, k->act = acts + MF, acts += 2 * MF;
    }
    char *rest = take(b, 6 * MC + 3 * MC + MF, "gradients of activations");
    b->in0 = rest, b->branch = rest + MC, b->yf = rest + 2 * MC, b->dstream = rest + 3 * MC;
    b->dy = rest + 4 * MC, b->datt = rest + 5 * MC, b->dqkv = rest + 6 * MC, b->dz = rest + 9 * MC;
    b->tokens = take(b, s->M * 4, "tokens");
    b->targets = take(b, s->M * 4, "targets");
    b->state = take(b, sizeof *b->state, "state");
    b->result = take(b, sizeof *b->result, "norm");
}

static void take_scratch(bench *b)
{
    const shape *s = &b->s;
    ls_head head = {.type = LS_BF16, .M = s->M, .C = s->C, .V = s->V, .leaves = 1};
    ls_norm_bwd norm = {.type = LS_BF16, .M = s->M, .C = s->C, .T = s->T, .leaves = 1};
    ls_embed_bwd embed = {.type = LS_BF16, .M = s->M, .C = s->C, .T = s->T, .V = s->V, .leaves = 1};
    ls_attention_bwd att = {.type = LS_BF16, .B = s->B, .T = s->T, .H = s->H, .Hkv = s->H};
    int64_t bytes;

    att.D = s->C / s->H;
    bytes = b->k->scratch(LS_ROW_HEAD, &head, 1);
    bytes = ls_max_i64(bytes, b->k->scratch(LS_ROW_NORM_BWD, &norm, 1));
    bytes = ls_max_i64(bytes, b->k->scratch(LS_ROW_EMBED_BWD, &embed, 1));
    bytes = ls_max_i64(bytes, b->k->scratch(LS_ROW_ATTENTION_BWD, &att, 1));
    b->scratch = take(b, bytes, "scratch");
    printf("scratch %.2f GiB\n", (double)bytes / (double)LS_GIB);
}

/* --- a step --------------------------------------------------------------------------------- */

static void timed_begin(bench *b, const char *name)
{
    if (!b->timing)
        return;
    if (b->calls == MOST_CALLS)
        exit(1);
    for (int i = 0; i < 2; i++)
        if (!b->at[b->calls][i])
            must(ls_event_create(&b->at[b->calls][i], b->device));
    b->names[b->calls] = name;
    ls_event_record(b->at[b->calls][0], b->stream);
}

static void timed_end(bench *b)
{
    if (b->timing)
        ls_event_record(b->at[b->calls++][1], b->stream);
}

#define ROW(b, label, row, ...)                \
    do {                                       \
        timed_begin((b), label);               \
        (b)->k->row((b)->stream, __VA_ARGS__); \
        timed_end(b);                          \
    } while (0)

static void linear(bench *b, const char *label, const void *x, int64_t w, int64_t bias, int64_t K,
                   int64_t N, void *z, void *y)
{
    ls_linear_fwd a = {.type = LS_BF16, .x = x, .y = y, .z = z, .M = b->s.M, .N = N, .K = K};

    a.w = b->copy + w;
    a.b = b->copy + bias;
    a.act = z ? LS_ACT_GELU : LS_ACT_NONE;
    ROW(b, label, linear_fwd, &a);
}

static void linear_back(bench *b, const char *label_w, const char *label_x, const void *x,
                        const void *dy, int64_t w, int64_t bias, int64_t K, int64_t N,
                        const void *z, void *dx)
{
    ls_linear_bwd_w g = {.type = LS_BF16, .x = x, .dy = dy, .M = b->s.M, .N = N, .K = K};
    ls_linear_bwd_x d = {.type = LS_BF16, .dy = dy, .z = z, .dx = dx, .M = b->s.M, .N = N, .K = K};

    g.leaves = 1;
    g.dw = b->grad + w;
    g.db = b->grad + bias;
    d.w = b->copy + w;
    d.act = z ? LS_ACT_GELU : LS_ACT_NONE;
    ROW(b, label_w, linear_bwd_w, &g);
    ROW(b, label_x, linear_bwd_x, &d);
}

static void norm(bench *b, const void *stream, const void *x, void *sum, void *y, int64_t w,
                 int64_t bias, float *mean, float *rstd)
{
    ls_norm_fwd a = {.type = LS_BF16, .stream = stream, .x = x, .sum = sum, .y = y, .M = b->s.M};

    a.C = b->s.C, a.T = b->s.T, a.eps = 1e-5f, a.mean = mean, a.rstd = rstd;
    a.w = b->copy + w, a.b = b->copy + bias;
    ROW(b, "norm_fwd", norm_fwd, &a);
}

static void norm_back(bench *b, const void *sum, int64_t w, int64_t bias, float *mean, float *rstd,
                      bool add)
{
    ls_norm_bwd a = {.type = LS_BF16, .dy = b->dy, .sum = sum, .mean = mean, .rstd = rstd};

    a.M = b->s.M, a.C = b->s.C, a.T = b->s.T, a.leaves = 1, a.w = b->copy + w;
    a.dsum = b->dstream, a.add_to_dsum = add, a.dw = b->grad + w, a.db = b->grad + bias;
    a.scratch = b->scratch;
    ROW(b, "norm_bwd", norm_bwd, &a);
}

static ls_heads third(const bench *b, void *qkv, int which)
{
    return (ls_heads){(uint16_t *)qkv + which * b->s.C, b->s.T * 3 * b->s.C, 3 * b->s.C,
                      b->s.C / b->s.H};
}

static ls_heads dense(const bench *b, void *x)
{
    return (ls_heads){x, b->s.T * b->s.C, b->s.C, b->s.C / b->s.H};
}

static void forward(bench *b)
{
    const shape *s = &b->s;
    int64_t C = s->C;
    ls_embed_fwd e = {.type = LS_BF16, .tokens = b->tokens, .y = b->in0, .M = s->M, .C = C};

    e.T = s->T, e.V = s->V, e.wte = b->copy + b->wte, e.wpe = b->copy + b->wpe;
    ROW(b, "embed_fwd", embed_fwd, &e);
    for (int64_t l = 0; l < s->L; l++) {
        block *k = &b->blocks[l];
        const block_params *p = &b->params[l];
        const void *into = l ? b->blocks[l - 1].next : b->in0;
        if (l)
            norm(b, b->blocks[l - 1].mid, b->branch, b->blocks[l - 1].next, k->y1, p->ln1_w,
                 p->ln1_b, k->mean1, k->rstd1);
        else
            norm(b, b->in0, NULL, NULL, k->y1, p->ln1_w, p->ln1_b, k->mean1, k->rstd1);
        linear(b, "qkv fwd", k->y1, p->qkv_w, p->qkv_b, C, 3 * C, NULL, k->qkv);
        ls_attention_fwd a = {.type = LS_BF16, .lse = k->lse, .B = s->B, .T = s->T, .H = s->H};
        a.q = third(b, k->qkv, 0), a.k = third(b, k->qkv, 1), a.v = third(b, k->qkv, 2);
        a.o = dense(b, k->att), a.Hkv = s->H, a.D = C / s->H, a.scale = 1 / sqrtf((float)a.D);
        ROW(b, "attention_fwd", attention_fwd, &a);
        linear(b, "proj fwd", k->att, p->proj_w, p->proj_b, C, C, NULL, b->branch);
        norm(b, into, b->branch, k->mid, k->y2, p->ln2_w, p->ln2_b, k->mean2, k->rstd2);
        linear(b, "fc fwd", k->y2, p->fc_w, p->fc_b, C, s->F, k->z, k->act);
        linear(b, "out fwd", k->act, p->out_w, p->out_b, s->F, C, NULL, b->branch);
    }
    norm(b, b->blocks[s->L - 1].mid, b->branch, b->blocks[s->L - 1].next, b->yf, b->lnf_w, b->lnf_b,
         b->meanf, b->rstdf);
}

static void block_back(bench *b, int64_t l)
{
    const shape *s = &b->s;
    const block_params *p = &b->params[l];
    block *k = &b->blocks[l];
    ls_attention_bwd a = {.type = LS_BF16, .lse = k->lse, .B = s->B, .T = s->T, .H = s->H};

    linear_back(b, "out bwd w", "out bwd x", k->act, b->dstream, p->out_w, p->out_b, s->F, s->C,
                k->z, b->dz);
    linear_back(b, "fc bwd w", "fc bwd x", k->y2, b->dz, p->fc_w, p->fc_b, s->C, s->F, NULL, b->dy);
    norm_back(b, k->mid, p->ln2_w, p->ln2_b, k->mean2, k->rstd2, true);
    linear_back(b, "proj bwd w", "proj bwd x", k->att, b->dstream, p->proj_w, p->proj_b, s->C, s->C,
                NULL, b->datt);
    a.q = third(b, k->qkv, 0), a.k = third(b, k->qkv, 1), a.v = third(b, k->qkv, 2);
    a.dq = third(b, b->dqkv, 0), a.dk = third(b, b->dqkv, 1), a.dv = third(b, b->dqkv, 2);
    a.o = dense(b, k->att), a.dout = dense(b, b->datt), a.Hkv = s->H, a.D = s->C / s->H;
    a.scale = 1 / sqrtf((float)a.D), a.scratch = b->scratch;
    ROW(b, "attention_bwd", attention_bwd, &a);
    linear_back(b, "qkv bwd w", "qkv bwd x", k->y1, b->dqkv, p->qkv_w, p->qkv_b, s->C, 3 * s->C,
                NULL, b->dy);
    norm_back(b, l ? b->blocks[l - 1].next : b->in0, p->ln1_w, p->ln1_b, k->mean1, k->rstd1, true);
}

static void backward(bench *b)
{
    const shape *s = &b->s;
    ls_head h = {.type = LS_BF16, .h = b->yf, .targets = b->targets, .losses = b->losses};
    ls_embed_bwd e = {.type = LS_BF16, .tokens = b->tokens, .dy = b->dstream, .M = s->M};

    h.w = b->copy + b->wte, h.dh = b->dy, h.dw = b->grad + b->wte, h.state = b->state;
    h.M = s->M, h.C = s->C, h.V = s->V, h.leaves = 1, h.scratch = b->scratch;
    ROW(b, "head", head, &h);
    norm_back(b, b->blocks[s->L - 1].next, b->lnf_w, b->lnf_b, b->meanf, b->rstdf, false);
    for (int64_t l = s->L - 1; l >= 0; l--)
        block_back(b, l);
    ROW(b, "fill", fill, &(ls_fill){.x = b->grad + b->wpe, .n = s->T * s->C});
    e.C = s->C, e.T = s->T, e.V = s->V, e.positions = s->T, e.leaves = 1, e.accumulate = true;
    e.dwte = b->grad + b->wte, e.dwpe = b->grad + b->wpe, e.scratch = b->scratch;
    ROW(b, "embed_bwd", embed_bwd, &e);
}

static void update(bench *b)
{
    ls_norm2 n = {b->grad, b->partials, b->result, b->state, b->flat};
    ls_optimizer_update a = {.w = b->w, .m = b->m, .v = b->v, .grad = b->grad, .spans = b->spans};

    a.n_spans = b->n_spans, a.copy = b->copy, a.copy_type = LS_BF16, a.state = b->state;
    a.result = b->result;
    ROW(b, "norm2", norm2, &n);
    ROW(b, "adamw", adamw, &a);
    ROW(b, "sum", sum, &(ls_sum){b->losses, b->total, b->s.M, 1});
}

static void step(bench *b)
{
    forward(b);
    backward(b);
    update(b);
}

/* --- figures -------------------------------------------------------------------------------- */

static void set_state(bench *b, int t)
{
    ls_step_state s = {.grad_scale = 1.0f / (float)b->s.M, .lr = 6e-4f, .beta1 = 0.9f};

    s.beta2 = 0.95f, s.eps = 1e-8f, s.weight_decay = 0.1f, s.clip = 1;
    s.bias1 = (float)(1 - pow(0.9, t));
    s.bias2 = (float)(1 - pow(0.95, t));
    ls_stream_copy_in(b->stream, b->state, &s, sizeof s);
}

static double loss(bench *b, float *norm_out)
{
    double total = 0;
    ls_norm_result r;

    ls_stream_copy_out(b->stream, &total, b->total, sizeof total);
    ls_stream_copy_out(b->stream, &r, b->result, sizeof r);
    sync(b);
    *norm_out = r.norm;
    return total / (double)b->s.M;
}

static void print_rows(const bench *b)
{
    double all = 0;

    for (int i = 0; i < b->calls; i++) {
        double sum = 0, ms = 0;
        int count = 0;
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || strcmp(b->names[k], b->names[i]) == 0;
        for (int k = i; !seen && k < b->calls; k++)
            if (strcmp(b->names[k], b->names[i]) == 0) {
                must(ls_event_between(b->at[k][0], b->at[k][1], &ms));
                sum += ms;
                count++;
            }
        if (!seen)
            printf("  %-16s %3d calls %8.3f ms each %8.3f ms\n", b->names[i], count, sum / count,
                   sum);
        all += sum;
    }
    printf("  all rows %.3f ms\n", all);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median of several steps, each from one event to the next; graph NULL: queued call by call. */
static double median_step(bench *b, ls_graph *graph, int steps)
{
    double ms[200];
    ls_event *at[201] = {NULL};

    steps = steps > 200 ? 200 : steps;
    for (int i = 0; i <= steps; i++)
        must(ls_event_create(&at[i], b->device));
    ls_event_record(at[0], b->stream);
    for (int i = 0; i < steps; i++) {
        if (graph)
            ls_graph_launch(graph, b->stream);
        else
            step(b);
        ls_event_record(at[i + 1], b->stream);
    }
    sync(b);
    for (int i = 0; i < steps; i++)
        must(ls_event_between(at[i], at[i + 1], &ms[i]));
    for (int i = 0; i <= steps; i++)
        ls_event_free(at[i]);
    qsort(ms, (size_t)steps, sizeof *ms, by_value);
    return ms[steps / 2];
}

static void make_tokens(bench *b)
{
    int64_t n = b->s.M + 1;
    int32_t *host = malloc((size_t)n * sizeof *host);
    ls_rng_key key = {{3, 4}};

    if (!host)
        exit(1);
    for (int64_t i = 0; i < n; i++) { /* a few common tokens, many rare ones */
        ls_rng_block r = ls_rng_philox(key, (uint32_t)i, 0, 0, 0);
        double u = (double)ls_rng_uniform(r.v[0]);
        host[i] = (int32_t)(pow((double)b->s.V, u)) - 1;
    }
    ls_stream_copy_in(b->stream, b->tokens, host, b->s.M * 4);
    ls_stream_copy_in(b->stream, b->targets, host + 1, b->s.M * 4);
    sync(b);
    free(host);
}

int main(int argc, char **argv)
{
    static bench b;
    int64_t v[7] = {64, 1024, 12, 768, 12, 50304, 20};
    static ls_optimizer_span spans[MOST_TENSORS];
    int64_t began = ls_time_now_ns();
    ls_graph *graph = NULL;
    float gnorm;

    for (int i = 1; i < argc && i <= 7; i++)
        v[i - 1] = strtoll(argv[i], NULL, 10);
    b.s = (shape){v[0], v[1], v[2], v[3], v[4], v[5], 4 * v[3], v[0] * v[1]};
    must(ls_device_open(&b.device, "cuda", 0));
    must(ls_stream_create(&b.stream, b.device));
    must(ls_kernel_for(b.device, "auto", &b.k));
    lay_out(&b, spans);
    allocate(&b);
    take_scratch(&b);
    b.spans = take(&b, b.n_spans * (int64_t)sizeof *b.spans, "spans");
    ls_stream_copy_in(b.stream, b.spans, spans, b.n_spans * (int64_t)sizeof *b.spans);
    start_weights(&b, spans);
    make_tokens(&b);
    printf("%s; %lld x %lld tokens, %lld parameters; ready after %.2f s\n",
           ls_device_describe(b.device).name, (long long)b.s.B, (long long)b.s.T, (long long)b.flat,
           (double)(ls_time_now_ns() - began) / 1e9);
    int64_t first = ls_time_now_ns();
    for (int t = 1; t <= 10; t++) {
        set_state(&b, t);
        step(&b);
        double l = loss(&b, &gnorm);
        printf("step %d: loss %.9f norm %.9g\n", t, l, (double)gnorm);
        if (t == 1)
            printf("first step %.2f s after that\n", (double)(ls_time_now_ns() - first) / 1e9);
    }
    b.timing = true;
    step(&b);
    sync(&b);
    print_rows(&b);
    b.timing = false;
    double plain = median_step(&b, NULL, (int)v[6]);
    must(ls_graph_begin(b.stream));
    step(&b);
    must(ls_graph_end(b.stream, &graph));
    double replayed = median_step(&b, graph, (int)v[6]);
    double plain_again = median_step(&b, NULL, (int)v[6]);
    double replayed_again = median_step(&b, graph, (int)v[6]);
    ls_device_info info = ls_device_describe(b.device);
    plain = plain < plain_again ? plain : plain_again; /* the card's clock moves between the two */
    replayed = replayed < replayed_again ? replayed : replayed_again;
    printf("step %.3f ms queued, %.3f ms recorded: %.0f tokens/s; allocated %.2f GiB, fixed %.2f, "
           "in use on the card %.2f\n",
           plain, replayed, (double)b.s.M / (plain < replayed ? plain : replayed) * 1e3,
           (double)ls_device_used_bytes(b.device) / (double)LS_GIB,
           (double)info.fixed_bytes / (double)LS_GIB,
           (double)(info.total_bytes - info.free_bytes) / (double)LS_GIB);
    return 0;
}
