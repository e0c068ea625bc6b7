/* test_compressed.c -- compressed sums between nodes: nothing is lost, all ranks have the same bits,
 * residuals can be taken up by the same mesh exactly and by another one in sum, and the bytes are those
 * of the formula. */
#include <math.h>
#include <sys/stat.h>
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "parallel/compressed.h"

enum { STEPS = 4 };

static const char *const shapes[] = {"1+1", "2+1", "1+1+1", "2+2", "1+2+1", "1+1+1+1+1+1+1+1"};
static const int64_t sizes[] = {3 * LS_NORM_BLOCK + 700, 501, 9 * LS_NORM_BLOCK + 1};

static const struct {
    ls_codec_kind kind;
    double fraction;
    bool spread;
    int bucket;
} cases[] = {{.kind = LS_CODEC_BF16, .spread = true, .bucket = 1},
             {.kind = LS_CODEC_INT8, .spread = true},
             {.kind = LS_CODEC_TOPK, .fraction = 0.05, .spread = true, .bucket = 1},
             {.kind = LS_CODEC_INT8, .spread = false, .bucket = 2},
             {.kind = LS_CODEC_TOPK, .fraction = 0.01, .spread = false}};

/* A rank of a world, with its places and a gradient. */
typedef struct bench {
    ls_mesh_place places[LS_WORLD_RANKS];
    ls_compressed_args args;
    float *gradient; /* trained elements */
} bench;

static void meet(ls_comm *comm)
{
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

static void bench_init(bench *b, ls_comm *comm, size_t c, int64_t trained)
{
    int n = ls_comm_ranks(comm);

    *b = (bench){.args = {.comm = comm,
                          .how = ls_codec_of(cases[c].kind, cases[c].fraction),
                          .trained = trained,
                          .spread = cases[c].spread}};
    for (int r = 0; r < n; r++)
        b->places[r].node = ls_comm_node(comm, r);
    b->args.mesh = (ls_mesh){.ranks = n,
                             .rank = ls_comm_rank(comm),
                             .zero = !cases[c].spread,
                             .local = n,
                             .bucket = cases[c].bucket,
                             .places = b->places};
    b->args.mesh.nodes = ls_mesh_places(b->places, n);
    b->gradient = ls_mem_array((size_t)trained, sizeof *b->gradient);
    LS_CHECK(b->gradient);
}

static float value(int rank, int step, int64_t i)
{
    uint32_t u = (uint32_t)(rank * 7919 + step * 104729 + i * 31337) * 2654435761u;

    return ldexpf((float)(int32_t)u, -31 - (int)(i % 5));
}

/* Buckets from the last to the first, as backward completes them. */
static void exchange(bench *b, ls_compressed *narrow)
{
    for (int k = ls_mesh_buckets(&b->args.mesh, b->args.trained) - 1; k >= 0; k--)
        LS_CHECK_OK(ls_compressed_start(narrow, k, b->gradient));
    LS_CHECK_OK(ls_compressed_end(narrow, b->gradient, ls_ranks_in_ms(30000)));
}

static void step(bench *b, ls_compressed *narrow, int number)
{
    for (int64_t i = 0; i < b->args.trained; i++)
        b->gradient[i] = value(b->args.mesh.rank, number, i);
    exchange(b, narrow);
}

/* Whether this rank has the sum of an element after a step. */
static bool has(const bench *b, int64_t i)
{
    bool mine = b->args.spread;

    for (int k = 0; k < ls_mesh_buckets(&b->args.mesh, b->args.trained) && !mine; k++) {
        ls_mesh_part own = ls_mesh_part_of(&b->args.mesh, b->args.trained, k, b->args.mesh.rank);
        mine = i >= own.first && i < own.first + own.count;
    }
    return mine;
}

static void check_same_on_all(bench *b)
{
    int64_t n = b->args.trained;
    float *first = ls_mem_array((size_t)n, sizeof *first);

    LS_CHECK(first);
    memcpy(first, b->gradient, (size_t)n * sizeof *first);
    LS_CHECK_OK(ls_comm_run(
        b->args.comm,
        &(ls_coll){
            .kind = LS_COLL_BROADCAST, .type = LS_F32, .count = n, .in = first, .out = first},
        ls_ranks_in_ms(20000)));
    LS_CHECK(memcmp(first, b->gradient, (size_t)n * sizeof *first) == 0);
    ls_mem_free(first);
}

static float *feedback_of(bench *b, ls_compressed *narrow)
{
    int64_t n = ls_compressed_vectors(&b->args) * b->args.trained;
    bool first = b->args.mesh.rank == 0;
    float *feedback = first ? ls_mem_array((size_t)n, sizeof *feedback) : NULL;

    LS_CHECK(feedback || !first);
    LS_CHECK_OK(ls_compressed_collect(narrow, feedback, ls_ranks_in_ms(30000)));
    return feedback;
}

static double residual_in_all(const bench *b, const float *feedback, int64_t i)
{
    double sum = 0;

    for (int v = 0; v < ls_compressed_vectors(&b->args); v++)
        sum += (double)feedback[v * b->args.trained + i];
    return sum;
}

/* --- nothing is lost ----------------------------------------------------------------------------
 */

/* What arrived in all steps, added up over owners on rank 0. */
static void check_total(bench *b, ls_compressed *narrow, double *arrived)
{
    const ls_compressed_args *a = &b->args;
    float *feedback = feedback_of(b, narrow);

    if (!a->spread)
        LS_CHECK_OK(ls_comm_run(a->comm,
                                &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                           .type = LS_F64,
                                           .count = a->trained,
                                           .in = arrived,
                                           .out = arrived},
                                ls_ranks_in_ms(20000)));
    for (int64_t i = 0; i < a->trained && feedback; i++) {
        double given = 0;
        for (int s = 0; s < STEPS; s++)
            for (int r = 0; r < a->mesh.ranks; r++)
                given += (double)value(r, s, i);
        LS_CHECK_NEAR(arrived[i] + residual_in_all(b, feedback, i), given, 2e-5);
    }
    ls_mem_free(feedback);
}

static void totals(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++)
        for (size_t k = 0; k < LS_COUNT(sizes); k += (size_t)ls_test_stride(2)) {
            bench b;
            ls_compressed *narrow;
            double *arrived;
            bool *here;

            bench_init(&b, comm, c, sizes[k]);
            arrived = ls_mem_array((size_t)sizes[k], sizeof *arrived);
            here = ls_mem_array((size_t)sizes[k], sizeof *here);
            LS_CHECK(arrived && here);
            memset(arrived, 0, (size_t)sizes[k] * sizeof *arrived);
            for (int64_t i = 0; i < sizes[k]; i++)
                here[i] = has(&b, i);
            LS_CHECK_OK(ls_compressed_open(&narrow, &b.args, ls_ranks_in_ms(20000)));
            for (int s = 0; s < STEPS; s++) {
                step(&b, narrow, s);
                for (int64_t i = 0; i < sizes[k]; i++)
                    arrived[i] += here[i] ? (double)b.gradient[i] : 0;
                if (b.args.spread)
                    check_same_on_all(&b);
            }
            check_total(&b, narrow, arrived);
            meet(comm);
            ls_compressed_close(narrow);
            ls_mem_free(arrived);
            ls_mem_free(here);
            ls_mem_free(b.gradient);
        }
}

LS_TEST_SECONDS(narrow_sums_lose_nothing_and_are_the_same_on_all, 120)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i += (size_t)ls_test_stride(2))
        ls_world_run(shapes[i], NULL, totals);
}

/* --- residuals ---------------------------------------------------------------------------------- */

/* A step after taking up what was collected has the bits of one that went straight on. */
static void resumes(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        ls_compressed *straight, *later;
        float *feedback, *want;
        bench b;

        bench_init(&b, comm, c, sizes[0]);
        want = ls_mem_array((size_t)sizes[0], sizeof *want);
        LS_CHECK(want);
        LS_CHECK_OK(ls_compressed_open(&straight, &b.args, ls_ranks_in_ms(20000)));
        LS_CHECK_OK(ls_compressed_open(&later, &b.args, ls_ranks_in_ms(20000)));
        for (int s = 0; s < 3; s++)
            step(&b, straight, s);
        feedback = feedback_of(&b, straight);
        if (feedback)
            ls_compressed_settle(&b.args, feedback);
        LS_CHECK_OK(ls_compressed_scatter(later, feedback, ls_ranks_in_ms(20000)));
        step(&b, straight, 3);
        memcpy(want, b.gradient, (size_t)sizes[0] * sizeof *want);
        step(&b, later, 3);
        for (int64_t i = 0; i < sizes[0]; i++)
            LS_CHECK(!has(&b, i) || memcmp(&want[i], &b.gradient[i], sizeof *want) == 0);
        meet(comm);
        ls_compressed_close(straight);
        ls_compressed_close(later);
        ls_mem_free(feedback);
        ls_mem_free(want);
        ls_mem_free(b.gradient);
    }
}

LS_TEST_SECONDS(narrow_feedbacks_are_taken_up_exactly, 60)
{
    ls_world_run("1+1+1", NULL, resumes);
    ls_world_run("2+1", NULL, resumes);
    ls_world_run("2+2", NULL, resumes);
}

/* Residuals of any origin, collected and dealt out, come back as the same sum. */
static void settles(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        ls_compressed *narrow;
        float *feedback = NULL, *back;
        bench b;

        bench_init(&b, comm, c, sizes[0]);
        LS_CHECK_OK(ls_compressed_open(&narrow, &b.args, ls_ranks_in_ms(20000)));
        if (b.args.mesh.rank == 0) {
            int64_t n = ls_compressed_vectors(&b.args) * sizes[0];
            feedback = ls_mem_array((size_t)n, sizeof *feedback);
            LS_CHECK(feedback);
            for (int64_t i = 0; i < n; i++) /* small integers: sums of them are exact */
                feedback[i] = (float)(i * 37 % 101 - 50);
            memcpy(b.gradient, feedback, (size_t)sizes[0] * sizeof *feedback);
            for (int64_t i = 0; i < sizes[0]; i++)
                b.gradient[i] = (float)residual_in_all(&b, feedback, i);
            ls_compressed_settle(&b.args, feedback);
        }
        LS_CHECK_OK(ls_compressed_scatter(narrow, feedback, ls_ranks_in_ms(20000)));
        back = feedback_of(&b, narrow);
        for (int64_t i = 0; i < sizes[0] && back; i++)
            LS_CHECK_NEAR(residual_in_all(&b, back, i), b.gradient[i], 0);
        meet(comm);
        ls_compressed_close(narrow);
        ls_mem_free(feedback);
        ls_mem_free(back);
        ls_mem_free(b.gradient);
    }
}

LS_TEST_SECONDS(narrow_feedbacks_of_another_mesh_keep_their_sum, 60)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, settles);
}

/* --- what is not finite -------------------------------------------------------------------------
 */

static void nonfinite(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        const int64_t at = sizes[0] / 2;
        ls_compressed *narrow;
        double bad = 0;
        bench b;

        bench_init(&b, comm, c, sizes[0]);
        LS_CHECK_OK(ls_compressed_open(&narrow, &b.args, ls_ranks_in_ms(20000)));
        step(&b, narrow, 0);
        for (int64_t i = 0; i < sizes[0]; i++)
            b.gradient[i] = value(b.args.mesh.rank, 1, i);
        if (b.args.mesh.rank == b.args.mesh.ranks - 1)
            b.gradient[at] = c % 2 ? NAN : INFINITY;
        exchange(&b, narrow);
        bad = has(&b, at) && !isfinite(b.gradient[at]);
        LS_CHECK_OK(ls_comm_run(
            comm,
            &(ls_coll){
                .kind = LS_COLL_ALL_REDUCE, .type = LS_F64, .count = 1, .in = &bad, .out = &bad},
            ls_ranks_in_ms(20000)));
        LS_CHECK_EQ(bad, b.args.spread ? b.args.mesh.ranks : 1);
        step(&b, narrow, 2); /* and it does not last */
        for (int64_t i = 0; i < sizes[0]; i++)
            LS_CHECK(!has(&b, i) || isfinite(b.gradient[i]));
        meet(comm);
        ls_compressed_close(narrow);
        ls_mem_free(b.gradient);
    }
}

LS_TEST_SECONDS(narrow_sums_pass_on_what_is_not_finite, 60)
{
    ls_world_run("1+1", NULL, nonfinite);
    ls_world_run("2+1", NULL, nonfinite);
}

/* --- memory and bytes ---------------------------------------------------------------------------
 */

static int64_t there(const ls_world *w, int node)
{
    struct stat st;

    LS_CHECK_EQ(fstat(w->segment_fd[node], &st), 0);
    return (int64_t)st.st_blocks * 512;
}

/* What an exchange takes of the node's memory, as said and as it is; a communicator of the node is
 * counted in the second. */
static void weigh(const ls_world *w, ls_comm *comm, size_t c, int64_t trained, int64_t *said,
                  int64_t *is)
{
    ls_compressed *narrow;
    bench b;

    bench_init(&b, comm, c, trained);
    int node = w->members[b.args.mesh.rank].node;
    *said = 0;
    for (int r = 0; r < b.args.mesh.ranks; r++) {
        ls_compressed_args other = b.args;
        other.mesh.rank = r;
        *said += w->members[r].node == node ? ls_compressed_bytes(&other) : 0;
    }
    LS_CHECK_OK(ls_compressed_open(&narrow, &b.args, ls_ranks_in_ms(20000)));
    meet(comm);
    *is = there(w, node);
    meet(comm);
    ls_compressed_close(narrow);
    meet(comm);
    *is -= there(w, node);
    meet(comm);
    ls_mem_free(b.gradient);
}

static void counted(ls_world *w, ls_comm *comm)
{
    for (int i = 0; i < 3; i++)
        meet(comm); /* what barriers need is there */
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        int64_t said[2], is[2];
        weigh(w, comm, c, sizes[0], &said[0], &is[0]);
        weigh(w, comm, c, sizes[2], &said[1], &is[1]);
        LS_CHECK(said[0] < is[0] && said[1] > said[0]);
        LS_CHECK_EQ(is[1] - is[0], said[1] - said[0]);
    }
}

LS_TEST(narrow_takes_the_bytes_that_it_says)
{
    ls_world_run("2+2", NULL, counted);
    ls_world_run("3+2", NULL, counted);
}

/* Bytes that this rank gives the transport for other nodes in a step, without headers: its chunks of
 * their parts, packed, and what it spreads by a ring, in slots that any part fits in. */
static int64_t formula_sent(const ls_compressed_args *a)
{
    const ls_mesh_place *places = a->mesh.places, *me = &places[a->mesh.rank];
    int next = (a->mesh.rank + 1) % a->mesh.ranks;
    int64_t bytes = 0;

    for (int b = 0; b < ls_mesh_buckets(&a->mesh, a->trained); b++) {
        ls_mesh_part all = ls_mesh_bucket(&a->mesh, a->trained, b);
        int64_t first, count, slot = 0;
        ls_coll_range(all.count, me->ranks, me->seat, &first, &count);
        first += all.first;
        for (int r = 0; r < a->mesh.ranks; r++) {
            ls_mesh_part part = ls_mesh_part_of(&a->mesh, a->trained, b, r);
            int64_t from = ls_max_i64(first, part.first);
            int64_t to = ls_min_i64(first + count, part.first + part.count);
            slot = ls_max_i64(slot, ls_round_up(ls_codec_bytes(&a->how, part.count), 16));
            if (places[r].node != me->node)
                bytes += ls_codec_bytes(&a->how, ls_max_i64(0, to - from));
        }
        if (a->spread && places[next].node != me->node)
            bytes += (a->mesh.ranks - 1) * slot;
    }
    return bytes;
}

static int64_t sent_by(ls_comm *comm)
{
    int64_t sent, received;

    meet(comm); /* nothing is on its way */
    ls_comm_traffic(comm, &sent, &received);
    return sent;
}

static void traffic(ls_world *w, ls_comm *comm)
{
    (void)w;
    LS_CHECK_OK(ls_comm_force(comm, "ring")); /* for what is spread */
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        ls_compressed *narrow;
        bench b;

        bench_init(&b, comm, c, sizes[2]);
        LS_CHECK_OK(ls_compressed_open(&narrow, &b.args, ls_ranks_in_ms(20000)));
        int64_t before = sent_by(comm);
        step(&b, narrow, 0);
        int64_t sent = sent_by(comm) - before, want = formula_sent(&b.args);
        LS_CHECK(sent >= want);
        LS_CHECK_NEAR(sent, want, (double)want * 0.02 + 8192);
        LS_CHECK(want < 2 * sizes[2] * (int64_t)sizeof(float) * 9 / 16); /* bf16: half, and slots */
        meet(comm);
        ls_compressed_close(narrow);
        ls_mem_free(b.gradient);
    }
}

LS_TEST_SECONDS(narrow_sends_the_bytes_of_the_formula, 60)
{
    ls_world_run("1+1", NULL, traffic);
    ls_world_run("1+1+1", NULL, traffic);
    ls_world_run("2+2", NULL, traffic);
}

LS_TEST(mesh_places_number_nodes_and_seats)
{
    ls_mesh_place p[5] = {{.node = 7}, {.node = 3}, {.node = 7}, {.node = 0}, {.node = 3}};
    static const ls_mesh_place want[5] = {{0, 0, 2}, {1, 0, 2}, {0, 1, 2}, {2, 0, 1}, {1, 1, 2}};

    LS_CHECK_EQ(ls_mesh_places(p, 5), 3);
    LS_CHECK(memcmp(p, want, sizeof p) == 0);
}
