/* test_dp.c -- what data-parallel ranks exchange: sums with the bits of one process, parts and
 * wholes, numbers; and the memory that is taken for it. */
#include <sys/stat.h>
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "parallel/dp.h"

enum { TRAINED = 3 * LS_NORM_BLOCK + 700, MANY = 7 * LS_NORM_BLOCK + 700, LEAVES = 7 };

/* Ranks on nodes, and how many of them make a shard group; 0: all. */
static const struct {
    const char *nodes;
    int shard;
} shapes[] = {{"1", 0},   {"2", 0},   {"3", 0},   {"5", 0},  {"1+1", 0},
              {"2+1", 0}, {"2+2", 0}, {"2+2", 2}, {"3+3", 3}};

static int shard; /* of the world that runs */

static void each_shape(void (*body)(ls_world *, ls_comm *))
{
    for (size_t i = 0; i < LS_COUNT(shapes); i += (size_t)ls_test_stride(2)) {
        shard = shapes[i].shard;
        ls_world_run(shapes[i].nodes, NULL, body);
    }
}

/* tied: the second gradient reaches over the border between two ranks' parts. */
static const struct {
    bool ordered;
    int64_t leaves, trained, tied_first, tied_count;
    int64_t bucket; /* as in ls_mesh */
    int zero;
} cases[] = {
    {true, LEAVES, TRAINED, LS_NORM_BLOCK / 2, LS_NORM_BLOCK + 9, 0, 1},
    {true, LEAVES, TRAINED, 0, 0, 0, 0},
    {true, 2, 500, 10, 300, 0, 1}, /* ranks without leaves, and without parameters */
    {false, LEAVES, TRAINED, 0, 0, 0, 1},
    {false, 2, 500, 0, 0, 0, 0},
    /* Buckets. */
    {true, LEAVES, MANY, LS_NORM_BLOCK / 2, 4 * LS_NORM_BLOCK, 1, 0},
    {true, LEAVES, MANY, LS_NORM_BLOCK / 2, 4 * LS_NORM_BLOCK, 1, 1},
    {true, 5, MANY, 0, 0, 2, 1},
    {false, LEAVES, MANY, 0, 0, 1, 0},
    {false, LEAVES, MANY, 0, 0, 1, 1},
};

/* Groups divide nothing in a case without ZeRO. */
static bool repeats(size_t c)
{
    return shard && cases[c].zero == 0;
}

static ls_dp_args args_of(size_t i, ls_comm *comm, int ranks, int rank)
{
    return (ls_dp_args){.comm = comm,
                        .mesh = {.ranks = ranks,
                                 .rank = rank,
                                 .local = ranks,
                                 .zero = cases[i].zero,
                                 .shard = cases[i].zero ? shard : 0,
                                 .bucket = cases[i].bucket},
                        .ordered = cases[i].ordered,
                        .leaves = cases[i].leaves,
                        .trained = cases[i].trained,
                        .tied_first = cases[i].tied_first,
                        .tied_count = cases[i].tied_count};
}

static void meet(ls_comm *comm)
{
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

/* Of different sizes, so that another order of sums has other bits. */
static float value(int64_t leaf, int64_t element)
{
    float x = (float)((leaf * 104729 + element * 7919) % 10007 - 5000);

    return (leaf + element) % 3 ? x * 1e-3F : x;
}

/* A node of the tree of sums (comm/ordered.h). */
static float node(int level, int64_t index, int64_t leaves, int64_t element)
{
    int64_t right = (2 * index + 1) << (level - (level > 0));
    float left;

    if (level == 0)
        return value(index, element);
    left = node(level - 1, 2 * index, leaves, element);
    return right < leaves ? left + node(level - 1, 2 * index + 1, leaves, element) : left;
}

static float whole(const ls_dp_args *a, int64_t element)
{
    int level = 0;

    while (INT64_C(1) << level < a->leaves)
        level++;
    return node(level, 0, a->leaves, element);
}

/* The gradient that one process would have. */
static float want(const ls_dp_args *a, int64_t i)
{
    int64_t second = i - a->tied_first;
    float sum = 0;

    if (a->ordered) {
        sum = whole(a, i);
        return second >= 0 && second < a->tied_count ? sum + whole(a, a->trained + second) : sum;
    }
    for (int r = 0; r < a->mesh.ranks; r++)
        sum += (float)((i + r) % 64); /* exact in any order */
    return sum;
}

static void check_range(const ls_dp_args *a, const float *x, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++) {
        float w = want(a, i);
        if (memcmp(&x[i], &w, sizeof w) != 0)
            ls_test_fail(__FILE__, __LINE__, "rank %d of %d, element %lld: %.9g, expected %.9g",
                         a->mesh.rank, a->mesh.ranks, (long long)i, (double)x[i], (double)w);
    }
}

/* The same, of numbers that are known. */
static void check_bits(const ls_dp_args *a, const float *x, const float *wanted, int64_t first,
                       int64_t count)
{
    if (count > 0 && memcmp(x + first, wanted + first, (size_t)count * sizeof *x) != 0)
        check_range(a, x, first, count); /* which says where */
}

static void fill(const ls_dp_args *a, float **buffers, int *n_out)
{
    ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, a->mesh.rank);
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    int64_t n = a->trained + a->tied_count;
    int roots = a->ordered ? ls_ordered_roots(run, a->leaves, nodes) : 0;

    for (int k = 0; k < roots; k++)
        for (int64_t i = 0; i < n; i++)
            buffers[k][i] = node(nodes[k].level, nodes[k].index, a->leaves, i);
    for (int64_t i = 0; i < n && !a->ordered; i++)
        buffers[0][i] = (float)((i + a->mesh.rank) % 64);
    *n_out = roots;
}

/* At once, or as backward tells it. */
static void sum(ls_dp *dp, float *const *buffers, int round)
{
    int64_t from = ls_dp_args_of(dp)->trained;

    for (; from > 0 && round > 0; from -= LS_NORM_BLOCK * 2 / 3)
        LS_CHECK_OK(ls_dp_sum_from(dp, buffers, from));
    LS_CHECK_OK(ls_dp_sum_from(dp, buffers, 0));
    LS_CHECK_OK(ls_dp_sum_end(dp, buffers));
}

/* Ranks share the leaves by these weights from now on. */
static void split(ls_dp *dp, ls_dp_args *a, const double *weights)
{
    ls_ordered_run runs[LS_WORLD_RANKS];

    a->mesh.weights = weights;
    ls_mesh_split(&a->mesh, a->leaves, runs);
    LS_CHECK_OK(ls_dp_split(dp, runs, a->leaves));
}

static void sums(ls_world *w, ls_comm *comm)
{
    static const double weights[LS_WORLD_RANKS] = {1, 3, 0.5, 2, 1, 1, 1, 1};

    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        if (repeats(c))
            continue;
        ls_dp_args a = args_of(c, comm, ls_comm_ranks(comm), ls_comm_rank(comm));
        float *buffers[LEAVES], *wanted = ls_mem_array((size_t)a.trained, sizeof *wanted);
        ls_dp *dp;
        int roots;

        LS_CHECK(wanted);
        a.roots = LEAVES;
        LS_CHECK_OK(ls_dp_open(&dp, &a));
        for (int k = 0; k < LEAVES; k++) {
            void *memory;
            LS_CHECK_OK(
                ls_comm_alloc(comm, ls_dp_elements(&a) * (int64_t)sizeof(float), "g", &memory));
            buffers[k] = memory;
        }
        for (int round = 0; round < 4; round++) {
            if (round == 2) /* uneven slices, */
                split(dp, &a, weights);
            if (round == 3) { /* and of a smaller batch */
                a.leaves = (a.leaves + 1) / 2;
                split(dp, &a, weights);
            }
            fill(&a, buffers, &roots);
            LS_CHECK(roots <= LEAVES);
            for (int64_t i = 0; i < a.trained && round % 3 == 0; i++) /* else they are the same */
                wanted[i] = want(&a, i);
            sum(dp, buffers, round);
            for (int b = 0; b < ls_dp_buckets(dp); b++)
                check_bits(&a, buffers[0], wanted, ls_dp_own(dp, b).first, ls_dp_own(dp, b).count);
            if (a.mesh.zero > 0)
                LS_CHECK_OK(ls_dp_gather(dp, buffers[0]));
            check_bits(&a, buffers[0], wanted, 0, a.trained);
            meet(comm);
        }
        for (int k = 0; k < LEAVES; k++)
            ls_comm_free(comm, buffers[k]);
        ls_dp_close(dp);
        ls_mem_free(wanted);
    }
}

LS_TEST_SECONDS(dp_sums_have_the_bits_of_one_process_and_reach_all, 240)
{
    each_shape(sums);
}

/* --- nobody keeps a whole gradient -------------------------------------------------------------
 */

/* Each leaf is a call. */
static void table_of(const ls_dp_args *a, int *merges, int *rounds_out)
{
    int n = a->mesh.ranks, rounds = 1;

    for (int r = 0; r < n; r++) {
        ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, r);
        rounds = run.count > rounds ? (int)run.count : rounds;
    }
    for (int k = 0; k < rounds; k++)
        for (int r = 0; r < n; r++) {
            ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, r);
            merges[k * n + r] =
                k < run.count ? ls_ordered_merges(run.first + k, run.first, a->leaves) : -1;
        }
    *rounds_out = rounds;
}

/* One round: a leaf of this rank into the window, if it has one, told piece by piece. */
static void feed(ls_dp *dp, ls_window *window, float *own, int round)
{
    const ls_dp_args *a = ls_dp_args_of(dp);
    ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, a->mesh.rank);
    float *x = (float *)(void *)window->base, *buffers[1] = {x};
    int64_t step = LS_NORM_BLOCK * 2 / 3, n = a->trained + (a->ordered ? a->tied_count : 0);
    bool has = round < run.count;

    ls_dp_round(dp, round, window, own);
    for (int64_t i = a->trained; i < n && has; i++)
        x[i] = value(run.first + round, i);
    for (int64_t end = a->trained; end > 0; end -= step) {
        int64_t from = ls_max_i64(0, end - step);
        for (int64_t i = from; i < end && has; i++)
            x[i] = a->ordered ? value(run.first + round, i) : (float)((i + run.first + round) % 64);
        LS_CHECK_OK(ls_dp_sum_from(dp, buffers, from));
        /* What is there: buckets on their way, the one that is begun, what was just written, the
         * second gradient, pages at borders. */
        int64_t bucket =
            ls_mesh_bucket(&a->mesh, a->trained, 0).each * ls_mesh_shard_ranks(&a->mesh);
        int64_t most = ls_dp_ahead_elements(a) + bucket + step + (n - a->trained);
        LS_CHECK(ls_window_held(window) <= most * (int64_t)sizeof(float) + 4 * LS_WINDOW_PAGE);
    }
    LS_CHECK_OK(ls_dp_sum_end(dp, buffers));
}

static void check_own(const ls_dp *dp, const float *own)
{
    const ls_dp_args *a = ls_dp_args_of(dp);

    for (int b = 0; b < ls_dp_buckets(dp); b++) {
        ls_mesh_part part = ls_dp_own(dp, b);
        for (int64_t i = 0; i < part.count; i++) {
            float sum = 0, w = a->ordered ? want(a, part.first + i) : 0;
            for (int64_t leaf = 0; leaf < a->leaves && !a->ordered; leaf++)
                sum += (float)((part.first + i + leaf) % 64);
            if (own[part.packed + i] != (a->ordered ? w : sum))
                ls_test_fail(__FILE__, __LINE__, "rank %d, element %lld: %.9g", a->mesh.rank,
                             (long long)(part.first + i), (double)own[part.packed + i]);
        }
    }
}

/* Weights go the other way: every bucket from its owners. */
static void check_fetch(ls_dp *dp, ls_window *window, ls_dtype type)
{
    const ls_dp_args *a = ls_dp_args_of(dp);
    int64_t size = ls_dtype_bytes(type), n = ls_dp_own_elements(a);
    void *memory;

    LS_CHECK_OK(ls_comm_alloc(a->comm, n * size, "own", &memory));
    for (int b = 0; b < ls_dp_buckets(dp); b++) {
        ls_mesh_part part = ls_dp_own(dp, b);
        for (int64_t i = 0; i < part.count; i++)
            if (type == LS_F32)
                ((float *)memory)[part.packed + i] = (float)(part.first + i);
            else
                ((uint16_t *)memory)[part.packed + i] = (uint16_t)(part.first + i);
    }
    for (int b = 0; b < ls_dp_buckets(dp); b++)
        LS_CHECK_OK(ls_dp_fetch(dp, b, type, memory, window->base));
    for (int b = 0; b < ls_dp_buckets(dp); b++)
        LS_CHECK_OK(ls_dp_fetched(dp, b));
    for (int64_t i = 0; i < a->trained; i++)
        if (type == LS_F32)
            LS_CHECK_EQ(((float *)(void *)window->base)[i], i);
        else
            LS_CHECK_EQ(((uint16_t *)(void *)window->base)[i], (uint16_t)i);
    meet(a->comm);
    ls_comm_free(a->comm, memory);
}

static void parted(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        if (repeats(c))
            continue;
        ls_dp_args a = args_of(c, comm, ls_comm_ranks(comm), ls_comm_rank(comm));
        int merges[LEAVES * LS_WORLD_RANKS];
        ls_window window;
        ls_dp *dp;

        a.mesh.zero = 3;
        a.mesh.shard = shard;
        table_of(&a, merges, &a.rounds);
        a.merges = merges;
        LS_CHECK_OK(ls_dp_open(&dp, &a));
        LS_CHECK_OK(ls_window_open(&window, ls_dp_elements(&a) * (int64_t)sizeof(float), "g"));
        float *own = ls_mem_array((size_t)ls_dp_own_elements(&a), sizeof *own);
        LS_CHECK(own);
        for (int again = 0; again < 2; again++) {
            for (int round = 0; round < a.rounds; round++)
                feed(dp, &window, own, round);
            check_own(dp, own);
        }
        check_fetch(dp, &window, c % 2 ? LS_F32 : LS_BF16);
        ls_mem_free(own);
        ls_window_close(&window);
        ls_dp_close(dp);
        meet(comm);
    }
}

LS_TEST_SECONDS(dp_sums_own_parts_call_by_call_with_the_same_bits, 240)
{
    each_shape(parted);
}

/* --- parts, numbers, words ---------------------------------------------------------------------
 */

/* Own elements, packed: their place in the whole is put in, or checked to have grown by `more`. */
static void each_own(const ls_dp *dp, float *part, int more)
{
    for (int b = 0; b < ls_dp_buckets(dp); b++) {
        ls_mesh_part own = ls_dp_own(dp, b);
        for (int64_t i = 0; i < own.count; i++) {
            float *x = &part[own.packed + i];
            if (more)
                LS_CHECK_EQ(*x, own.first + i + more);
            else
                *x = (float)(own.first + i);
        }
    }
}

static void parts(ls_dp *dp)
{
    const ls_dp_args *a = ls_dp_args_of(dp);
    int64_t own = ls_mesh_own(&a->mesh, a->trained, a->mesh.rank);
    bool first = a->mesh.rank == 0;
    float *part = ls_mem_array((size_t)own + 1, sizeof *part);
    float *all = first ? ls_mem_array((size_t)a->trained + 1, sizeof *all) : NULL;

    LS_CHECK(part && (all || !first));
    each_own(dp, part, 0);
    part[own] = -1;
    if (first)
        all[a->trained] = -1;
    LS_CHECK_OK(ls_dp_collect(dp, part, all));
    for (int64_t i = 0; i < a->trained && first; i++)
        LS_CHECK_EQ(all[i], i);
    for (int64_t i = 0; i < a->trained && first; i++)
        all[i] += 5;
    LS_CHECK_OK(ls_dp_scatter(dp, all, part));
    each_own(dp, part, 5);
    LS_CHECK_EQ(part[own], -1);
    LS_CHECK(!first || all[a->trained] == -1);
    ls_mem_free(part);
    ls_mem_free(all);
}

static void rest(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);

    (void)w;
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        if (repeats(c))
            continue;
        ls_dp_args a = args_of(c, comm, n, me);
        double wide[3] = {me, 1, 0.5};
        float narrow[2] = {(float)me, 2};
        char word[6] = "?????";
        ls_dp *dp;

        LS_CHECK_OK(ls_dp_open(&dp, &a));
        parts(dp);
        LS_CHECK_OK(ls_dp_sum_numbers(dp, LS_F64, wide, 3));
        LS_CHECK(wide[0] == n * (n - 1) / 2 && wide[1] == n && wide[2] == 0.5 * n);
        LS_CHECK_OK(ls_dp_sum_numbers(dp, LS_F32, narrow, 2));
        LS_CHECK(narrow[0] == (float)(n * (n - 1) / 2) && narrow[1] == (float)(2 * n));
        int size = ls_mesh_shard_ranks(&a.mesh), seat = ls_mesh_shard_rank(&a.mesh, me);
        float known[LS_WORLD_RANKS] = {0}; /* by one of each group */
        known[seat] = (float)(10 + seat);
        LS_CHECK_OK(ls_dp_sum_in_group(dp, known, size));
        for (int i = 0; i < size; i++)
            LS_CHECK_EQ(known[i], 10 + i);
        for (int from = 0; from < n; from++) {
            char want_word[6] = "hello";
            want_word[4] = (char)('a' + from);
            if (me == from)
                memcpy(word, want_word, sizeof word);
            LS_CHECK_OK(ls_dp_broadcast(dp, from, word, sizeof word));
            LS_CHECK_STR(word, want_word);
        }
        ls_dp_close(dp);
        meet(comm);
    }
}

LS_TEST_SECONDS(dp_gathers_scatters_adds_and_broadcasts, 120)
{
    each_shape(rest);
}

/* --- memory ------------------------------------------------------------------------------------
 */

/* Bytes of the node's memory file that are there. */
static int64_t there(const ls_world *w)
{
    struct stat st;

    LS_CHECK_EQ(fstat(w->segment_fd[0], &st), 0);
    return (int64_t)st.st_blocks * 512;
}

/* Places that nodes wait on: a node needs one unless it is added to what waits at once, or comes in
 * the last round. */
static int64_t slots_of(const int *merges, int ranks, int rounds)
{
    int64_t slots = 0;

    for (int r = 0; r < ranks; r++) {
        int height = 0, most = 0;
        for (int k = 0; k < rounds - 1; k++) {
            int m = merges[k * ranks + r];
            if (m < 0)
                continue;
            most = m == 0 && height + 1 > most ? height + 1 : most;
            height += 1 - m;
        }
        slots += most;
    }
    return slots;
}

/* Of groups, of replicas, and in ordered mode one of all. */
static int communicators_of(const ls_dp_args *a)
{
    return ls_mesh_shard_groups(&a->mesh) + ls_mesh_shard_ranks(&a->mesh) + a->ordered;
}

/* What a communicator keeps for itself: a fast sum takes nothing else. */
static int64_t bytes_of_a_communicator(ls_world *w, ls_comm *comm)
{
    ls_dp_args a = args_of(3, comm, ls_comm_ranks(comm), ls_comm_rank(comm));
    int64_t before = there(w), bytes;
    ls_dp *dp;

    LS_CHECK(!a.ordered && a.mesh.zero == 1);
    meet(comm);
    LS_CHECK_OK(ls_dp_open(&dp, &a));
    meet(comm);
    bytes = (there(w) - before) / communicators_of(&a);
    meet(comm);
    ls_dp_close(dp);
    meet(comm);
    return bytes;
}

static void counted(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);

    for (int i = 0; i < 3; i++)
        meet(comm); /* what barriers need is there */
    int64_t each = bytes_of_a_communicator(w, comm);
    for (size_t c = 0; c < 2 * LS_COUNT(cases); c++) {
        if (repeats(c / 2))
            continue;
        ls_dp_args a = args_of(c / 2, comm, n, me);
        int64_t before = there(w), want_bytes = 0;
        int merges[LEAVES * LS_WORLD_RANKS];
        ls_dp *dp;

        a.roots = c % 4 == 2 ? LEAVES : 0; /* room for other splits, or not */
        if (c % 2) {
            a.mesh.zero = 2;
            a.mesh.shard = shard;
            table_of(&a, merges, &a.rounds);
            a.merges = merges;
            a.slots = slots_of(merges, n, a.rounds);
        }
        for (int r = 0; r < n; r++) {
            ls_dp_args other = a;
            other.mesh.rank = r;
            want_bytes += ls_dp_bytes(&other);
        }
        if (a.mesh.shard)
            want_bytes += each * communicators_of(&a);
        meet(comm);
        LS_CHECK_OK(ls_dp_open(&dp, &a));
        meet(comm);
        LS_CHECK_EQ(there(w) - before, want_bytes);
        meet(comm);
        ls_dp_close(dp);
        meet(comm);
        LS_CHECK_EQ(there(w), before);
        meet(comm);
    }
}

LS_TEST_SECONDS(dp_takes_the_bytes_that_it_says, 180)
{
    ls_world_run("2", NULL, counted);
    ls_world_run("3", NULL, counted);
    ls_world_run("5", NULL, counted);
    shard = 2;
    ls_world_run("4", NULL, counted);
}

/* --- bytes between nodes -----------------------------------------------------------------------
 */

static int64_t sent_by(ls_comm *comm)
{
    int64_t sent, received;

    meet(comm); /* nothing is on its way */
    ls_comm_traffic(comm, &sent, &received);
    return sent;
}

/* What docs/guide/parallel/zero.md says, and headers. */
static void check_sent(int64_t sent, int64_t want_bytes)
{
    LS_CHECK(sent >= want_bytes);
    LS_CHECK_NEAR(sent, want_bytes, (double)want_bytes * 0.02 + 8192);
}

static int64_t tied_of(const ls_dp_args *a, ls_mesh_part part)
{
    int64_t n = 0;

    for (int64_t i = part.first; i < part.first + part.count; i++)
        n += i >= a->tied_first && i < a->tied_first + a->tied_count;
    return n;
}

/* What a rank sends of a step: to those who sum pieces, for each root or call; in its group, for a
 * sum or a gather; to its replicas. */
typedef struct ways {
    int64_t others, group, shard_replicas;
} ways;

static ways ways_of(const ls_dp *dp)
{
    const ls_dp_args *a = ls_dp_args_of(dp);
    int64_t size = sizeof(float), groups = ls_mesh_shard_groups(&a->mesh);
    ways w = {.others = 0};

    for (int b = 0; b < ls_dp_buckets(dp); b++) {
        ls_mesh_part own = ls_dp_own(dp, b), whole = ls_mesh_bucket(&a->mesh, a->trained, b);
        ls_mesh_part piece = ls_mesh_piece_of(&a->mesh, a->trained, b, a->mesh.rank);
        w.others += (whole.count - piece.count + tied_of(a, whole) - tied_of(a, piece)) * size;
        w.group += (ls_mesh_shard_ranks(&a->mesh) - 1) * own.each * size;
        if (own.count > 0)
            w.shard_replicas += a->ordered ? (groups - 1) * piece.each * size
                                           : 2 * (groups - 1) * own.count / groups * size;
    }
    return w;
}

static void traffic(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    const int64_t size = sizeof(float);

    (void)w;
    LS_CHECK_OK(ls_comm_force(comm, "ring")); /* for sums and gathers */
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        if (repeats(c))
            continue;
        ls_dp_args a = args_of(c, comm, n, me);
        int64_t elements = ls_dp_elements(&a);
        float *memory = ls_mem_array((size_t)(LEAVES * elements), sizeof *memory);
        float *buffers[LEAVES];
        int roots;
        ls_dp *dp;

        LS_CHECK(memory);
        for (int k = 0; k < LEAVES; k++)
            buffers[k] = memory + k * elements;
        LS_CHECK_OK(ls_dp_open(&dp, &a));
        fill(&a, buffers, &roots);
        int64_t before = sent_by(comm);
        ways by = ways_of(dp);
        sum(dp, buffers, 1);
        int64_t summed = sent_by(comm);
        if (a.ordered)
            check_sent(summed - before,
                       roots * by.others + by.shard_replicas + (a.mesh.zero == 0) * by.group);
        else if (a.mesh.zero > 0)
            check_sent(summed - before, by.group + by.shard_replicas);
        else /* nothing is padded where all get all */
            check_sent(summed - before, 2 * (n - 1) * (a.trained / n) * size);
        LS_CHECK_OK(ls_dp_gather(dp, buffers[0]));
        check_sent(sent_by(comm) - summed, by.group);
        ls_dp_close(dp);
        ls_mem_free(memory);
    }
}

/* Zero 3: each call of a rank once to the owners (ordered), a reduce-scatter in each round (fast);
 * to replicas once. */
static void parted_traffic(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    const int64_t size = sizeof(float);

    (void)w;
    LS_CHECK_OK(ls_comm_force(comm, "ring"));
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        if (repeats(c))
            continue;
        ls_dp_args a = args_of(c, comm, n, me);
        int merges[LEAVES * LS_WORLD_RANKS];
        ls_window window;
        ls_dp *dp;

        a.mesh.zero = 3;
        a.mesh.shard = shard;
        table_of(&a, merges, &a.rounds);
        a.merges = merges;
        LS_CHECK_OK(ls_dp_open(&dp, &a));
        LS_CHECK_OK(ls_window_open(&window, ls_dp_elements(&a) * size, "g"));
        float *own = ls_mem_array((size_t)ls_dp_own_elements(&a), sizeof *own);
        ways by = ways_of(dp);
        int64_t calls = ls_mesh_leaves(&a.mesh, a.leaves, me).count, before = sent_by(comm);
        for (int round = 0; round < a.rounds; round++)
            feed(dp, &window, own, round);
        int64_t summed = sent_by(comm);
        check_sent(summed - before,
                   by.shard_replicas + (a.ordered ? calls * by.others : a.rounds * by.group));
        for (int b = 0; b < ls_dp_buckets(dp); b++) {
            LS_CHECK_OK(ls_dp_fetch(dp, b, LS_F32, own, window.base));
            LS_CHECK_OK(ls_dp_fetched(dp, b));
        }
        check_sent(sent_by(comm) - summed, by.group);
        ls_mem_free(own);
        ls_window_close(&window);
        ls_dp_close(dp);
    }
}

LS_TEST_SECONDS(dp_sends_the_bytes_of_the_formula, 180)
{
    ls_world_run("1+1", NULL, traffic);
    ls_world_run("1+1+1", NULL, traffic);
    ls_world_run("1+1", NULL, parted_traffic);
    ls_world_run("1+1+1", NULL, parted_traffic);
    shard = 2; /* each alone on its node, so that all of it is counted */
    ls_world_run("1+1+1+1", NULL, traffic);
    ls_world_run("1+1+1+1", NULL, parted_traffic);
}

/* What HSDP is for: with groups that are nodes, gathers stay inside of them. */
static void gathers_inside(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    ls_dp_args a = args_of(LS_COUNT(cases) - 1, comm, n, me);
    float *x = ls_mem_array((size_t)ls_dp_elements(&a), sizeof *x);
    ls_dp *dp;

    (void)w;
    LS_CHECK(x);
    LS_CHECK_OK(ls_dp_open(&dp, &a));
    int64_t before = sent_by(comm);
    LS_CHECK_OK(ls_dp_gather(dp, x));
    LS_CHECK(sent_by(comm) - before < 8192);
    ls_mem_free(x);
    ls_dp_close(dp);
    meet(comm);
}

LS_TEST(dp_gathers_inside_of_nodes_that_are_shard_groups)
{
    shard = 2;
    ls_world_run("2+2", NULL, gathers_inside);
}
