/* qkv.c -- splitting the packed product into heads, with rotation, sixteen pairs at a time.
 *
 * Tasks are runs of tokens. The angles of a position lie as (cosine, sine) pairs; they are parted
 * once per token and then serve all its heads. Turning back (the gradient) is turning with the sine
 * negated. Each element is read before its place may be written, so a view of the packed tensor
 * itself is a valid target. */
#include "kernel/cpu/rows_attention.h"
#include "kernel/cpu/simd/vec.h"

enum { RUN = 16 }; /* tokens of one task */

typedef struct job {
    ls_stream *stream;
    const ls_qkv *a;
    bool forward;
} job;

/* cosines[i], sines[i] and minus[i] = -sines[i] of one position. */
typedef struct angles {
    float *cosines, *sines, *minus;
} angles;

static void part_angles(const float *rope, int64_t pairs, float sign, angles *w)
{
    for (int64_t i = 0; i < pairs; i++) {
        w->cosines[i] = rope[2 * i];
        w->sines[i] = sign * rope[2 * i + 1];
        w->minus[i] = -w->sines[i];
    }
}

static void turn(const float *x, float *y, const angles *w, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i += LS_LANES) {
        int64_t n = pairs - i;
        ls_v16 c = v_load_most(w->cosines + i, n), s = v_load_most(w->sines + i, n);
        ls_v16 minus = v_load_most(w->minus + i, n);
        ls_v16 first = v_load_most(x + i, n), second = v_load_most(x + pairs + i, n);
        v_store_most(y + i, n, v_fma(first, c, v_mul(second, minus)));
        v_store_most(y + pairs + i, n, v_fma(second, c, v_mul(first, s)));
    }
}

static void one_token(const job *j, int64_t b, int64_t t, angles *w)
{
    const ls_qkv *a = j->a;
    int64_t heads = a->H + 2 * a->Hkv, pairs = a->D / 2;
    float *row = (float *)a->packed + (b * a->T + t) * heads * a->D;

    if (a->rope)
        part_angles(a->rope + t * pairs * 2, pairs, j->forward ? 1.0f : -1.0f, w);
    for (int64_t n = 0; n < heads; n++, row += a->D) {
        float *head = n < a->H            ? ls_heads_at(&a->q, b, t, n)
                      : n < a->H + a->Hkv ? ls_heads_at(&a->k, b, t, n - a->H)
                                          : ls_heads_at(&a->v, b, t, n - a->H - a->Hkv);
        const float *from = j->forward ? row : head;
        float *to = j->forward ? head : row;
        if (a->rope && n < a->H + a->Hkv)
            turn(from, to, w, pairs);
        else if (from != to)
            memcpy(to, from, (size_t)a->D * sizeof *to);
    }
}

static void run_tokens(void *context, int64_t index, int worker)
{
    const job *j = context;
    int64_t T = j->a->T, end = ls_min_i64(j->a->B * T, (index + 1) * RUN), pairs = j->a->D / 2;
    float *memory = ls_stream_thread_scratch(j->stream, worker);
    angles w = {memory, memory + pairs, memory + 2 * pairs};

    for (int64_t row = index * RUN; row < end; row++)
        one_token(j, row / T, row % T, &w);
}

static void run_row(ls_stream *stream, const ls_qkv *a, bool forward)
{
    job j = {stream, a, forward};

    LS_BUG_IF(a->type != LS_F32, "qkv rows of type %d", (int)a->type);
    LS_BUG_IF(a->rope && a->D % 2, "rope turns pairs, but D is %lld", (long long)a->D);
    LS_BUG_IF(a->D / 2 * 3 * 4 > LS_STREAM_THREAD_BYTES, "D is %lld", (long long)a->D);
    ls_pool_run(ls_stream_pool(stream), run_tokens, &j, (a->B * a->T + RUN - 1) / RUN);
}

void LS_ISA_NAME(ls_qkv_fwd_row)(ls_stream *stream, const ls_qkv *a)
{
    run_row(stream, a, true);
}

void LS_ISA_NAME(ls_qkv_bwd_row)(ls_stream *stream, const ls_qkv *a)
{
    run_row(stream, a, false);
}
