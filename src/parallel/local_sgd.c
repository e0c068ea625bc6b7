/* local_sgd.c -- the exchange of weights between workers that train by themselves.
 *
 * Weights are cut into equal parts of whole blocks (LS_CODEC_BLOCK), one for each rank, the last
 * ones shorter. Packed, a part is a run of bytes of one size; before it stands the sender's number of
 * tokens. Three ranks, difference d of each:
 *
 *   rank 0   [d0 a|d0 b|d0 c] --.            .-->  a = mean of a0 a1 a2 --.           .--> [a|b|c]
 *   rank 1   [d1 a|d1 b|d1 c] --+-all_to_all-+-->  b                    --+-all_gather+--> [a|b|c]
 *   rank 2   [d2 a|d2 b|d2 c] --'            '-->  c                    --'           '--> [a|b|c]
 *
 * So a rank sends its packed weights twice, but for its own part, however many ranks there are. The
 * mean is summed in the order of ranks and rounded once more: equal ranks, equal bits.
 *
 * Worked example, one weight, outer lr 1, momentum 0: common 2.0; own 1.7 after 300 tokens and 2.1
 * after 100. Differences 0.3 and -0.1, mean 0.3 * 3/4 - 0.1 * 1/4 = 0.2: the common weight is 1.8.
 *
 *   idle --begin--> sending --poll, end (all has come)--> spreading --end--> idle */
#include "parallel/local_sgd.h"

#include "base/mem.h"
#include "parallel/blocking.h"
#include "parallel/shared_pages.h"
#include "base/time.h"

enum {
    HEAD = 16,        /* bytes before a part: tokens, fp64; parts stay aligned for the collective */
    TASK_BLOCKS = 16, /* blocks of a task for the pool */
    WAIT_S = 24 * 3600, /* a worker may be far behind; one that died is noticed at once */
    OPEN_S = 600
};

typedef enum phase { IDLE, SENDING, SPREADING } phase;

struct ls_local_sgd {
    ls_local_sgd_args args;
    ls_comm *comm; /* owned: all ranks, for this alone */
    int rank;
    int64_t each;  /* elements of a part, but for the last ones */
    float *common; /* owned, as all of these */
    float *momentum;
    float *mark;    /* own weights at begin; NULL: not delayed */
    char *out;      /* what is sent: parts of all ranks, then their means */
    char *in;       /* what comes: all workers' differences of the own part */
    double *shares; /* of the mean, by rank */
    phase phase;
    ls_comm_request request;
};

static int64_t part_elements(const ls_local_sgd_args *a)
{
    int64_t blocks = (a->count + LS_CODEC_BLOCK - 1) / LS_CODEC_BLOCK;

    return (blocks + a->ranks - 1) / a->ranks * LS_CODEC_BLOCK;
}

/* Packed, with what stands before it; a multiple of 16 for every kind of packing. */
static int64_t part_bytes(const ls_local_sgd_args *a)
{
    return HEAD + ls_round_up(ls_codec_bytes(&a->codec, part_elements(a)), 16);
}

int64_t ls_local_sgd_bytes(const ls_local_sgd_args *args)
{
    return (args->delayed ? 3 : 2) * ls_shared_pages(args->count * (int64_t)sizeof(float)) +
           2 * ls_shared_pages(args->ranks * part_bytes(args));
}

int64_t ls_local_sgd_sends(const ls_local_sgd_args *args)
{
    return 2 * (args->ranks - 1) * part_bytes(args);
}

static ls_status take(ls_local_sgd *x, int64_t bytes, const char *what, void *pointer_out)
{
    void *memory = NULL;
    ls_status st = ls_comm_alloc(x->comm, bytes, what, &memory);

    memcpy(pointer_out, &memory, sizeof memory);
    return st;
}

ls_status ls_local_sgd_open(ls_local_sgd **local_out, const ls_local_sgd_args *args)
{
    int64_t bytes = args->count * (int64_t)sizeof(float), packed = args->ranks * part_bytes(args);
    ls_local_sgd *x = ls_mem_alloc(sizeof *x);
    ls_status st = LS_OK;

    if (!x)
        return LS_ENOMEM;
    *x = (ls_local_sgd){.args = *args,
                        .rank = ls_comm_rank(args->comm),
                        .each = part_elements(args),
                        .shares = ls_mem_array((size_t)args->ranks, sizeof *x->shares)};
    LS_TRY(st, x->shares ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st,
           ls_blocking_sub(args->comm, 0, 1, args->ranks, ls_time_now_ns() + OPEN_S * LS_NS_PER_S,
                           &x->comm),
           out);
    LS_TRY(st, take(x, bytes, "common weights", &x->common), out);
    LS_TRY(st, take(x, bytes, "outer momentum", &x->momentum), out);
    if (args->delayed)
        LS_TRY(st, take(x, bytes, "weights of a replica", &x->mark), out);
    LS_TRY(st, take(x, packed, "differences of replicas", &x->out), out);
    LS_TRY(st, take(x, packed, "differences of replicas", &x->in), out);
    *local_out = x;
out:
    if (st != LS_OK)
        ls_local_sgd_close(x);
    return st;
}

void ls_local_sgd_close(ls_local_sgd *x)
{
    if (!x)
        return;
    if (x->comm) {
        ls_comm_free(x->comm, x->common);
        ls_comm_free(x->comm, x->momentum);
        ls_comm_free(x->comm, x->mark);
        ls_comm_free(x->comm, x->out);
        ls_comm_free(x->comm, x->in);
    }
    ls_comm_close(x->comm);
    ls_mem_free(x->shares);
    ls_mem_free(x);
}

ls_local_sgd_arrays ls_local_sgd_arrays_of(const ls_local_sgd *local)
{
    return (ls_local_sgd_arrays){
        .common = local->common, .momentum = local->momentum, .spare = local->mark};
}

bool ls_local_sgd_begun(const ls_local_sgd *local)
{
    return local->phase != IDLE;
}

/* --- work on blocks, shared by the pool --------------------------------------------------------
 */

typedef struct work {
    ls_local_sgd *x;
    const float *read;  /* own weights, */
    float *write;       /* before and after */
    int64_t first, end; /* elements that are worked on; first is a border of blocks */
    void (*block)(const struct work *work, int64_t first, int64_t n);
} work;

static void run_task(void *context, int64_t index, int worker)
{
    const work *w = context;
    int64_t first = w->first + index * TASK_BLOCKS * LS_CODEC_BLOCK;
    int64_t end = ls_min_i64(w->end, first + TASK_BLOCKS * LS_CODEC_BLOCK);

    (void)worker;
    for (int64_t at = first; at < end; at += LS_CODEC_BLOCK)
        w->block(w, at, ls_min_i64(LS_CODEC_BLOCK, end - at));
}

static void run_work(work *w)
{
    int64_t task = TASK_BLOCKS * LS_CODEC_BLOCK;

    ls_pool_run(w->x->args.pool, run_task, w, (w->end - w->first + task - 1) / task);
}

/* Where the packed bytes of the block that begins at an element lie. */
static char *packed_at(const ls_local_sgd *x, int64_t element)
{
    int64_t part = element / x->each;

    return x->out + part * part_bytes(&x->args) + HEAD +
           ls_codec_bytes(&x->args.codec, element - part * x->each);
}

static void pack_difference(const work *w, int64_t first, int64_t n)
{
    const ls_local_sgd *x = w->x;
    float d[LS_CODEC_BLOCK];

    for (int64_t i = 0; i < n; i++)
        d[i] = x->common[first + i] - w->read[first + i];
    ls_codec_pack(&x->args.codec, d, NULL, n, packed_at(x, first));
    if (x->mark)
        memcpy(x->mark + first, w->read + first, (size_t)n * sizeof(float));
}

/* The mean of what all have sent of a block of the own part, packed where it is sent from. No kind
 * that is used here can fail to unpack. */
static void pack_mean(const work *w, int64_t first, int64_t n)
{
    const ls_local_sgd *x = w->x;
    int64_t at = HEAD + ls_codec_bytes(&x->args.codec, first - x->rank * x->each);
    float sum[LS_CODEC_BLOCK] = {0}, d[LS_CODEC_BLOCK];

    for (int r = 0; r < x->args.ranks; r++) {
        float share = (float)x->shares[r];
        (void)ls_codec_unpack(&x->args.codec, x->in + r * part_bytes(&x->args) + at, n, d);
        for (int64_t i = 0; i < n; i++)
            sum[i] += share * d[i];
    }
    ls_codec_pack(&x->args.codec, sum, NULL, n, packed_at(x, first));
}

/* The outer step: SGD with Nesterov momentum, as PyTorch writes it. */
static void local_sgd_step(const work *w, int64_t first, int64_t n)
{
    const ls_local_sgd *x = w->x;
    float lr = (float)x->args.lr, keep = (float)x->args.momentum, g[LS_CODEC_BLOCK];

    (void)ls_codec_unpack(&x->args.codec, packed_at(x, first), n, g);
    for (int64_t i = 0; i < n; i++) {
        float *common = &x->common[first + i], *v = &x->momentum[first + i];
        float *own = &w->write[first + i];
        *v = keep * *v + g[i];
        *common -= lr * (g[i] + keep * *v);
        *own = x->mark ? *common + (*own - x->mark[first + i]) : *common;
    }
}

/* --- the exchange ------------------------------------------------------------------------------
 */

ls_status ls_local_sgd_begin(ls_local_sgd *x, const float *own, double tokens)
{
    int64_t part = part_bytes(&x->args);
    work w = {.x = x, .read = own, .end = x->args.count, .block = pack_difference};
    ls_status st;

    LS_BUG_IF(x->phase != IDLE, "an exchange of replicas begins inside another");
    for (int r = 0; r < x->args.ranks; r++)
        memcpy(x->out + r * part, &tokens, sizeof tokens);
    run_work(&w);
    st = ls_comm_start(
        x->comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_TO_ALL, .type = LS_U8, .count = part, .in = x->out, .out = x->in},
        &x->request);
    if (st == LS_OK)
        x->phase = SENDING;
    return st;
}

/* Each worker's share of the mean; equal shares where no worker has learned from any token. */
static void find_shares(ls_local_sgd *x)
{
    double all = 0;

    for (int r = 0; r < x->args.ranks; r++) {
        memcpy(&x->shares[r], x->in + r * part_bytes(&x->args), sizeof x->shares[r]);
        all += x->shares[r];
    }
    for (int r = 0; r < x->args.ranks; r++)
        x->shares[r] = all > 0 ? x->shares[r] / all : 1.0 / x->args.ranks;
}

/* All differences of the own part are here: send their mean to all. */
static ls_status send_mean(ls_local_sgd *x)
{
    int64_t first = ls_min_i64(x->args.count, x->rank * x->each);
    work w = {.x = x,
              .first = first,
              .end = ls_min_i64(x->args.count, first + x->each),
              .block = pack_mean};
    ls_status st;

    find_shares(x);
    run_work(&w);
    st = ls_comm_start(x->comm,
                       &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                  .type = LS_U8,
                                  .count = x->args.ranks * part_bytes(&x->args),
                                  .in = x->out,
                                  .out = x->out},
                       &x->request);
    if (st == LS_OK)
        x->phase = SPREADING;
    return st;
}

ls_status ls_local_sgd_poll(ls_local_sgd *local)
{
    bool done = false;
    ls_status st = LS_OK;

    if (local->phase != SENDING)
        return ls_comm_check(local->comm);
    LS_TRY(st, ls_comm_test(local->comm, local->request, &done), out);
    if (done)
        st = send_mean(local);
out:
    return st;
}

ls_status ls_local_sgd_end(ls_local_sgd *x, float *own)
{
    int64_t deadline = ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
    work w = {.x = x, .write = own, .end = x->args.count, .block = local_sgd_step};
    ls_status st = LS_OK;

    LS_BUG_IF(x->phase == IDLE, "an exchange of replicas ends that has not begun");
    if (x->phase == SENDING) {
        LS_TRY(st, ls_comm_wait(x->comm, x->request, deadline), out);
        LS_TRY(st, send_mean(x), out);
    }
    LS_TRY(st, ls_comm_wait(x->comm, x->request, deadline), out);
    run_work(&w);
    x->phase = IDLE;
out:
    return st;
}
