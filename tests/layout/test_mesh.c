/* test_mesh.c -- every leaf and every parameter has one rank; what a mesh cannot be. */
#include "config/runfile.h"
#include "harness.h"
#include "kernel/kernel.h"
#include "layout/mesh.h"

static ls_mesh mesh_of(int ranks, int rank)
{
    return (ls_mesh){.ranks = ranks, .rank = rank, .local = ranks};
}

LS_TEST(mesh_gives_every_leaf_to_one_rank_in_nearly_equal_runs)
{
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int64_t leaves = 0; leaves <= 40; leaves++) {
            ls_mesh m = mesh_of(ranks, 0);
            int64_t next = 0;
            for (int r = 0; r < ranks; r++) {
                ls_ordered_run run = ls_mesh_leaves(&m, leaves, r);
                LS_CHECK_EQ(run.first, next);
                LS_CHECK(run.count == leaves / ranks || run.count == leaves / ranks + 1);
                next += run.count;
            }
            LS_CHECK_EQ(next, leaves);
        }
    LS_CHECK_EQ(ls_mesh_leaves(NULL, 12, 0).count, 12);
}

/* The ranks of a cp group have equally many pieces, side by side, and together the group's leaves. */
LS_TEST(mesh_gives_a_cp_pieces_of_the_same_leaves)
{
    for (int cp = 2; cp <= 4; cp++)
        for (int cp_groups = 1; cp_groups <= 3; cp_groups++)
            for (int64_t leaves = 0; leaves <= 12; leaves++) {
                ls_mesh m = mesh_of(cp * cp_groups, 0);
                int64_t next = 0, whole = 0;
                m.cp = cp;
                for (int r = 0; r < m.ranks; r++) {
                    ls_ordered_run run = ls_mesh_leaves(&m, leaves * cp, r);
                    ls_ordered_run cp_group = ls_mesh_cp_leaves(&m, r, run);
                    LS_CHECK_EQ(run.first, next);
                    LS_CHECK_EQ(cp_group.first, whole);
                    LS_CHECK_EQ(cp_group.count, run.count);
                    next += run.count;
                    whole += r % cp == cp - 1 ? run.count : 0;
                }
                LS_CHECK_EQ(next, leaves * cp);
                LS_CHECK_EQ(whole, leaves);
            }
}

/* The picture of mesh.h: mesh.tp within mesh.cp within dp within mesh.pp. */
LS_TEST(mesh_of_all_axes_keeps_close_what_meets_often)
{
    for (int rank = 0; rank < 16; rank++) {
        const ls_mesh world = {.ranks = 16, .rank = rank, .pp = 2, .cp = 2, .tp = 2};
        ls_mesh mp_groups = ls_mesh_slice(&world), pp_rank = ls_mesh_stage(&mp_groups);
        int c = rank / 2 % 2, d = rank / 4 % 2;
        LS_CHECK_EQ(mp_groups.ranks, 8);
        LS_CHECK_EQ(ls_mesh_cp(&mp_groups), 2);
        LS_CHECK_EQ(ls_mesh_pipelines(&mp_groups), 4);
        LS_CHECK_EQ(ls_mesh_pp_rank(&mp_groups, mp_groups.rank), rank / 8);
        LS_CHECK_EQ(pp_rank.ranks, 4);
        LS_CHECK_EQ(pp_rank.rank, 2 * d + c);
        LS_CHECK_EQ(ls_mesh_cp(&pp_rank), 2);
        for (int i = 0; i < 2; i++)
            LS_CHECK_EQ(ls_mesh_cp_peer(&world, rank, i), rank - 2 * c + 2 * i);
        /* 3 leaves: two for the first cp group, in pieces, on every stage */
        ls_ordered_run own = ls_mesh_leaves(&mp_groups, 6, mp_groups.rank);
        ls_ordered_run cp_group = ls_mesh_cp_leaves(&mp_groups, mp_groups.rank, own);
        LS_CHECK_EQ(own.count, d == 0 ? 2 : 1);
        LS_CHECK_EQ(own.first, d == 0 ? 2 * c : 4 + c);
        LS_CHECK_EQ(cp_group.first, d == 0 ? 0 : 2);
        LS_CHECK_EQ(ls_mesh_leaves(&pp_rank, 6, pp_rank.rank).first, own.first);
    }
}

/* When the last rank of a split ends. */
static double ends(const ls_mesh *m, const ls_ordered_run *runs)
{
    double last = 0;

    for (int r = 0; r < m->ranks; r++) {
        double t = (double)runs[r].count / m->weights[r];
        last = t > last ? t : last;
    }
    return last;
}

/* The earliest end of any split of n leaves over ranks from `rank` on, by trying all. */
static double best_end(const ls_mesh *m, int rank, int64_t leaves, int64_t least, int64_t most)
{
    double best = 1e300;

    if (rank == m->ranks - 1)
        return leaves < least || leaves > most ? best : (double)leaves / m->weights[rank];
    for (int64_t n = least; n <= most && n <= leaves; n++) {
        double here = (double)n / m->weights[rank];
        double rest = best_end(m, rank + 1, leaves - n, least, most);
        double end = here > rest ? here : rest;
        best = end < best ? end : best;
    }
    return best;
}

LS_TEST(mesh_weights_end_as_early_as_any_split_can)
{
    static const double weights[][4] = {
        {1, 1, 1, 1}, {1, 0.5, 1, 1}, {3, 1, 2, 0.1}, {1e6, 1e-6, 1, 1}, {7, 5, 3, 2}};
    ls_ordered_run runs[4];

    for (size_t k = 0; k < LS_COUNT(weights); k++)
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int64_t leaves = 0; leaves <= 20; leaves++)
                for (int balance = 0; balance < 2; balance++) {
                    ls_mesh m = mesh_of(ranks, 0);
                    m.weights = weights[k];
                    m.balance = balance;
                    int64_t next = 0, share = (leaves + ranks - 1) / ranks;
                    int64_t least = balance && leaves >= ranks;
                    int64_t most = balance ? ls_min_i64(leaves, 2 * share) : leaves;
                    ls_mesh_split(&m, leaves, runs);
                    for (int r = 0; r < ranks; r++) {
                        LS_CHECK_EQ(runs[r].first, next);
                        LS_CHECK(runs[r].count >= least && runs[r].count <= most);
                        LS_CHECK(runs[r].count <= ls_mesh_most(&m, leaves, r));
                        LS_CHECK_EQ(ls_mesh_leaves(&m, leaves, r).count, runs[r].count);
                        next += runs[r].count;
                    }
                    LS_CHECK_EQ(next, leaves);
                    LS_CHECK(ends(&m, runs) <= best_end(&m, 0, leaves, least, most) * (1 + 1e-12));
                }
    /* The example of the header; and equal weights are no weights. */
    static const double three[] = {1, 1, 0.5};
    ls_mesh m = mesh_of(3, 0);
    m.weights = three;
    ls_mesh_split(&m, 24, runs);
    LS_CHECK(runs[0].count == 10 && runs[1].count == 10 && runs[2].count == 4);
    for (int64_t leaves = 0; leaves < 40; leaves++) {
        ls_mesh plain = mesh_of(4, 0), equal = plain;
        equal.weights = weights[0];
        for (int r = 0; r < 4; r++)
            LS_CHECK_EQ(ls_mesh_leaves(&plain, leaves, r).count,
                        ls_mesh_leaves(&equal, leaves, r).count);
    }
}

/* Buckets follow each other, parts follow each other in them, what a rank has is packed. */
static void check_parts(int ranks, int64_t bucket, int64_t trained)
{
    ls_mesh m = mesh_of(ranks, 0);
    int64_t next = 0, packed[9] = {0};

    m.bucket = bucket;
    int n = ls_mesh_buckets(&m, trained);
    LS_CHECK(n >= 1 && n <= LS_MESH_BUCKETS);
    for (int b = 0; b < n; b++) {
        ls_mesh_part whole = ls_mesh_bucket(&m, trained, b);
        LS_CHECK_EQ(whole.first, next);
        /* Padding must not reach into the next bucket. */
        LS_CHECK(b == n - 1 || whole.each * ranks == whole.count);
        for (int r = 0; r < ranks; r++) {
            ls_mesh_part part = ls_mesh_part_of(&m, trained, b, r);
            LS_CHECK_EQ(part.first, next);
            LS_CHECK(part.count == 0 || part.first % LS_NORM_BLOCK == 0);
            LS_CHECK(part.count == 0 || part.first == whole.first + r * part.each);
            LS_CHECK(part.count >= 0 && part.count <= part.each);
            LS_CHECK(ranks == 1 || part.each % LS_NORM_BLOCK == 0);
            LS_CHECK_EQ(part.each, whole.each);
            LS_CHECK_EQ(part.packed, packed[r]);
            next += part.count;
            packed[r] += part.count;
        }
        LS_CHECK_EQ(next, whole.first + whole.count);
    }
    LS_CHECK_EQ(next, trained);
    for (int r = 0; r < ranks; r++)
        LS_CHECK_EQ(ls_mesh_own(&m, trained, r), packed[r]);
}

/* Groups divide what a mesh of a group's ranks would, replicas own the same, and pieces are the parts
 * of a mesh without groups, in turns. */
static void check_groups(int groups, int size, int64_t bucket, int64_t trained)
{
    ls_mesh m = mesh_of(groups * size, 0), plain = m;

    m.zero = 1;
    m.shard = size;
    m.bucket = plain.bucket = bucket;
    int n = ls_mesh_buckets(&m, trained);
    LS_CHECK_EQ(n, ls_mesh_buckets(&plain, trained));
    LS_CHECK(ls_mesh_shard_ranks(&m) == size && ls_mesh_shard_groups(&m) == groups);
    for (int b = 0; b < n; b++) {
        ls_mesh_part whole = ls_mesh_bucket(&m, trained, b);
        int64_t next = whole.first;
        LS_CHECK_EQ(whole.first, ls_mesh_bucket(&plain, trained, b).first);
        LS_CHECK(b == n - 1 || whole.each * size == whole.count);
        for (int seat = 0; seat < size; seat++) {
            ls_mesh_part part = ls_mesh_part_of(&m, trained, b, seat);
            LS_CHECK_EQ(part.first, next);
            for (int g = 0; g < groups; g++) {
                int r = g * size + seat;
                ls_mesh_part shard_replica = ls_mesh_part_of(&m, trained, b, r);
                ls_mesh_part piece = ls_mesh_piece_of(&m, trained, b, r);
                ls_mesh_part turn = ls_mesh_part_of(&plain, trained, b, seat * groups + g);
                LS_CHECK(ls_mesh_shard_rank(&m, r) == seat && ls_mesh_shard_group(&m, r) == g);
                LS_CHECK(shard_replica.first == part.first && shard_replica.count == part.count);
                LS_CHECK_EQ(shard_replica.packed, part.packed);
                LS_CHECK(piece.first == turn.first && piece.count == turn.count);
                LS_CHECK_EQ(piece.first, next);
                LS_CHECK_EQ(piece.each * groups, part.each);
                next += piece.count;
            }
        }
        LS_CHECK_EQ(next, whole.first + whole.count);
    }
}

LS_TEST(mesh_groups_divide_among_themselves_and_have_copies_of_each_other)
{
    for (int groups = 1; groups <= 4; groups++)
        for (int size = 2; size <= 4; size++)
            for (int64_t bucket = 0; bucket <= 3; bucket++) {
                check_groups(groups, size, bucket, 1);
                check_groups(groups, size, bucket, 7 * LS_NORM_BLOCK + 700);
                check_groups(groups, size, bucket, 100 * LS_NORM_BLOCK);
            }
}

/* Ranks on nodes: 0 1 0 1 are two nodes whose ranks take turns. */
LS_TEST(mesh_takes_groups_that_are_nodes_or_runs_of_ranks_and_refuses_others)
{
    static const struct {
        const char *shard, *why, *hint;
        int nodes[6], ranks, size, group_of_last;
    } cases[] = {
        {"world", NULL, NULL, {0}, 6, 6, 0},
        {"2", NULL, NULL, {0}, 6, 2, 2},
        {"node", NULL, NULL, {0, 1, 0, 1}, 4, 2, 1},
        {"node", NULL, NULL, {0, 0, 0}, 3, 3, 0},
        {"3", NULL, NULL, {0, 1, 2}, 3, 3, 0},
        {"node",
         "nodes have 1 to 2 ranks",
         "With 3 ranks mesh.shard: world works.",
         {0, 0, 1},
         3,
         0,
         0},
        {"node",
         "each node has one rank",
         "With 2 ranks mesh.shard: world works.",
         {0, 1},
         2,
         0,
         0},
        {"4", "6 ranks cannot be grouped by 4", "mesh.shard: 3 works", {0}, 6, 0, 0},
        {"1", "a rank alone has nobody", "mesh.shard: 2 works", {0}, 6, 0, 0},
        {"0", "a rank alone has nobody", "mesh.shard: 2 works", {0}, 4, 0, 0},
        {"9", "6 ranks cannot be grouped by 9", "mesh.shard: 3 works", {0}, 6, 0, 0},
        {"3", "4 ranks cannot be grouped by 3", "mesh.shard: 2 works", {0}, 4, 0, 0},
    };

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        ls_mesh_place places[6];
        ls_run run = {.mesh.shard = cases[i].shard};
        ls_mesh m = mesh_of(cases[i].ranks, 0);
        for (int r = 0; r < cases[i].ranks; r++)
            places[r].node = cases[i].nodes[r];
        m.zero = 1;
        m.nodes = ls_mesh_places(places, m.ranks);
        m.places = places;
        ls_status st = ls_mesh_set_shard(&m, &run);
        if (cases[i].why) {
            LS_CHECK_EQ(st, LS_EUSAGE);
            LS_CHECK(strstr(ls_err_last()->text, cases[i].why));
            LS_CHECK(strstr(ls_err_last()->hint, cases[i].hint));
            continue;
        }
        LS_CHECK_OK(st);
        LS_CHECK_EQ(ls_mesh_shard_ranks(&m), cases[i].size);
        LS_CHECK_EQ(ls_mesh_shard_group(&m, m.ranks - 1), cases[i].group_of_last);
        LS_CHECK(ls_mesh_shard_group(&m, 0) == 0 && ls_mesh_shard_rank(&m, 0) == 0);
    }
}

LS_TEST(mesh_gives_every_parameter_to_one_rank_at_borders_of_norm_blocks)
{
    static const int64_t sizes[] = {0,
                                    1,
                                    LS_NORM_BLOCK - 1,
                                    LS_NORM_BLOCK,
                                    LS_NORM_BLOCK + 1,
                                    7 * LS_NORM_BLOCK,
                                    40 * LS_NORM_BLOCK - 5,
                                    1000 * LS_NORM_BLOCK + 64};

    for (int ranks = 1; ranks <= 9; ranks++)
        for (size_t i = 0; i < LS_COUNT(sizes); i++)
            for (int64_t bucket = 0; bucket <= 5; bucket++)
                check_parts(ranks, bucket, sizes[i]);
    /* The examples of the header. */
    ls_mesh m = mesh_of(3, 0);
    LS_CHECK_EQ(ls_mesh_part_of(&m, 40 * LS_NORM_BLOCK, 0, 0).count, 14 * LS_NORM_BLOCK);
    LS_CHECK_EQ(ls_mesh_part_of(&m, 40 * LS_NORM_BLOCK, 0, 2).count, 12 * LS_NORM_BLOCK);
    m = mesh_of(2, 0);
    m.bucket = 2;
    LS_CHECK_EQ(ls_mesh_buckets(&m, 8 * LS_NORM_BLOCK), 2);
    LS_CHECK_EQ(ls_mesh_part_of(&m, 8 * LS_NORM_BLOCK, 1, 1).first, 6 * LS_NORM_BLOCK);
    LS_CHECK_EQ(ls_mesh_part_of(&m, 8 * LS_NORM_BLOCK, 1, 1).packed, 2 * LS_NORM_BLOCK);
    /* Servers have all of it, the others nothing. */
    m = (ls_mesh){.ranks = 5, .servers = 3};
    LS_CHECK_EQ(ls_mesh_part_of(&m, 40 * LS_NORM_BLOCK, 0, 1).count, 14 * LS_NORM_BLOCK);
    LS_CHECK_EQ(ls_mesh_part_of(&m, 40 * LS_NORM_BLOCK, 0, 2).count, 12 * LS_NORM_BLOCK);
    LS_CHECK_EQ(ls_mesh_own(&m, 40 * LS_NORM_BLOCK, 3), 0);
    LS_CHECK_EQ(ls_mesh_own(&m, 40 * LS_NORM_BLOCK, 4), 0);
    LS_CHECK(ls_mesh_divides(&m) && ls_mesh_owners(&m) == 3);
    m = mesh_of(2, 0);
    LS_CHECK(!ls_mesh_divides(&m) && ls_mesh_owners(&m) == 2);
    /* Bytes become whole blocks of every rank. */
    LS_CHECK_EQ(ls_mesh_bucket_blocks(&m, 65536), 1);
    LS_CHECK_EQ(ls_mesh_bucket_blocks(&m, 131073), 2);
}

static void load(ls_run *run, const char *rest)
{
    char text[400];

    snprintf(text, sizeof text,
             "model: {layers: 4, width: 16, heads: 4, context: 16}\n"
             "data: {text: builtin:stories}\n%s",
             rest);
    LS_CHECK_OK(ls_runfile_load(run, &(ls_runfile_source){.text = text,
                                                          .len = strlen(text),
                                                          .text_name = "run.yaml",
                                                          .no_environment = true,
                                                          .no_files = true}));
}

static const char *hint_of(const char *rest, int lora, int ranks, const char *message)
{
    ls_mesh m = {.ranks = -1};
    ls_run run;

    load(&run, rest);
    run.lora.rank = lora; /* in a run file it needs a model to start from */
    LS_CHECK_FAILS(ls_mesh_init(&m, &run, ranks, 0), LS_EUSAGE, message);
    LS_CHECK_EQ(m.ranks, -1);
    ls_runfile_release(&run);
    return ls_err_last()->hint;
}

LS_TEST(mesh_refuses_what_cannot_work_and_says_what_can)
{
    LS_CHECK_STR(hint_of("mesh: {dp: 4}\n", 0, 2, "mesh.dp is 4, but the run has 2 ranks"),
                 "Give -n 4, or leave mesh.dp at auto.");
    hint_of("mesh: {dp: 2}\n", 0, 1, "mesh.dp is 2, but the run has 1 rank");
    LS_CHECK_STR(hint_of("mesh: {tp: 2}\n", 0, 3,
                         "mesh.tp is 2, but the run has 3 ranks, which cannot be grouped so"),
                 "Give -n 2 or -n 4, or another mesh.tp.");
    LS_CHECK_STR(hint_of("mesh: {tp: 4}\n", 0, 1,
                         "mesh.tp is 4, but the run has 1 rank, which cannot be grouped so"),
                 "Give -n 4 or -n 8, or another mesh.tp.");
    LS_CHECK_STR(hint_of("mesh: {tp: 2, dp: 3}\n", 0, 4,
                         "mesh.tp is 2 and mesh.dp 3, but the run has 4 ranks: it needs 6"),
                 "Give -n 6, or leave mesh.dp at auto.");
    LS_CHECK_STR(hint_of("device: {kind: cuda, graphs: on}\nmesh: {zero: 2}\n", 0, 2,
                         "device.graphs cannot be on with mesh.zero: 2: ranks exchange gradients"),
                 "Leave device.graphs out.");
    LS_CHECK_STR(hint_of("device: {kind: cuda}\nmesh: {zero: 3}\neval: {sample: Once}\n", 0, 2,
                         "eval.sample cannot be used with mesh.zero: 3 and device.kind: cuda"),
                 "Leave eval.sample out; lineshaft generate writes text from the checkpoints.");
    LS_CHECK_STR(
        hint_of("device: {kind: cuda}\nmesh: {zero: 2, pp: 2}\n", 0, 4,
                "mesh.zero cannot be 2 with mesh.pp and device.kind: cuda: pipelines"),
        "mesh.zero: 1 divides the moments of a stage, on GPUs too; without mesh.pp 2 and 3 "
        "work there.");
    LS_CHECK_STR(hint_of("device: {kind: cuda}\nsync: local\n", 0, 2,
                         "sync cannot be local with device.kind: cuda"),
                 "sync: allreduce works on GPUs; device.kind: cpu trains replicas.");
    LS_CHECK_STR(hint_of("mesh: {zero: 1}\n", 4, 2,
                         "mesh.zero cannot be 1: lora.rank leaves few parameters"),
                 "mesh.zero: 0 works on any number of ranks.");
    LS_CHECK_STR(hint_of("sync: local\n", 0, 1, "sync is local, but the run has 1 rank"),
                 "Give -n 2 or more, or set sync: allreduce.");
    LS_CHECK_STR(hint_of("sync: local\nbatch: {sequences: 6, leaf: 2}\n", 0, 4,
                         "4 ranks cannot each have one of 3 leaves"),
                 "Take at most 3 ranks, or lower batch.leaf.");
    LS_CHECK_STR(hint_of("sync: local\ntrain: {reduce: fast}\nbatch: {sequences: 6}\n", 0, 7,
                         "7 ranks cannot each have one of 6 sequences"),
                 "Take at most 6 ranks.");
    LS_CHECK_STR(hint_of("sync: ps\ntrain: {reduce: fast}\n", 0, 1,
                         "sync is ps, but the run has 1 rank: there is nobody to serve"),
                 "Give -n 2 or more, or set sync: allreduce.");
    LS_CHECK_STR(hint_of("sync: ps\ntrain: {reduce: fast}\nbatch: {sequences: 6}\n", 0, 7,
                         "sync is ps, but 7 ranks cannot each have one of 6 sequences"),
                 "Take at most 6 ranks.");
    LS_CHECK_STR(hint_of("sync: ps\ntrain: {reduce: fast}\nbatch: {sequences: 99}\n", 0, 65,
                         "65 ranks are more than the 64 that a server listens to"),
                 "Take fewer ranks, or set sync: allreduce.");
    LS_CHECK_STR(hint_of("sync: ps\ntrain: {reduce: fast}\nps: {servers: 4}\n", 0, 3,
                         "ps.servers is 4, but the run has 3 ranks"),
                 "Servers are ranks: give -n 4 or more, or leave ps.servers at auto.");
    hint_of("mesh: {zero: 1}\ntrain: {freeze: [wte]}\n", 0, 3,
            "mesh.zero cannot be 1: train.freeze leaves");
    LS_CHECK_STR(hint_of("mesh: {weights: [1, 2]}\n", 0, 3,
                         "mesh.weights has 2 numbers, but the run has 3 ranks"),
                 "Give one weight per rank, or leave mesh.weights out.");
    hint_of("mesh: {weights: [1, 2]}\n", 0, 1,
            "mesh.weights has 2 numbers, but the run has 1 rank");
    hint_of("", 0, 5000, "5000 ranks are more than 4096");
    LS_CHECK_STR(hint_of("mesh: {pp: 3}\n", 0, 4,
                         "mesh.pp is 3, but the run has 4 ranks, which cannot be grouped so"),
                 "Give -n 3 or -n 6, or another mesh.pp.");
    LS_CHECK_STR(hint_of("mesh: {pp: 2, dp: 2}\n", 0, 2,
                         "mesh.pp is 2 and mesh.dp 2, but the run has 2 ranks: it needs 4"),
                 "Give -n 4, or leave mesh.dp at auto.");
}

LS_TEST(mesh_pipelines_share_a_batch_and_their_pp_ranks_take_the_same_leaves)
{
    for (int pp_ranks = 2; pp_ranks <= 4; pp_ranks++)
        for (int pipelines = 1; pipelines <= 3; pipelines++) {
            ls_mesh m = mesh_of(pp_ranks * pipelines, 0), flat = mesh_of(pipelines, 0);
            m.pp = pp_ranks;
            LS_CHECK_EQ(ls_mesh_pipelines(&m), pipelines);
            LS_CHECK(ls_mesh_divides(&m) && ls_mesh_parts_weights(&m));
            for (int r = 0; r < m.ranks; r++) {
                int pipeline = ls_mesh_pipeline(&m, r), pp_rank = ls_mesh_pp_rank(&m, r);
                LS_CHECK_EQ(pp_rank * pipelines + pipeline, r);
                for (int64_t leaves = 0; leaves < 9; leaves++) {
                    ls_ordered_run got = ls_mesh_leaves(&m, leaves, r);
                    ls_ordered_run want = ls_mesh_leaves(&flat, leaves, pipeline);
                    LS_CHECK(got.first == want.first && got.count == want.count);
                }
                m.rank = r;
                ls_mesh of_pp_rank = ls_mesh_stage(&m);
                LS_CHECK(of_pp_rank.ranks == pipelines && of_pp_rank.rank == pipeline &&
                         of_pp_rank.pp == 0);
            }
        }
}

LS_TEST(mesh_is_as_wide_as_there_are_ranks)
{
    ls_mesh m;
    ls_run run;

    load(&run, "mesh: {zero: 1}\n");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 3, 2));
    LS_CHECK(m.ranks == 3 && m.rank == 2 && m.zero == 1 && m.local == 3);
    /* Alone there is nothing to divide. */
    LS_CHECK_OK(ls_mesh_init(&m, &run, 1, 0));
    LS_CHECK(m.ranks == 1 && m.rank == 0 && m.zero == 0);
    ls_runfile_release(&run);
    load(&run, "mesh: {dp: 3}\n");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 3, 1));
    LS_CHECK_EQ(m.ranks, 3);
    ls_runfile_release(&run);
    load(&run, "sync: local\nbatch: {sequences: 6, leaf: 2}\n");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 3, 1));
    LS_CHECK(m.independent && m.ranks == 3 && m.zero == 0);
    run.train.reduce = LS_REDUCE_FAST; /* sequences count, not leaves */
    LS_CHECK_OK(ls_mesh_init(&m, &run, 6, 0));
    ls_runfile_release(&run);
    load(&run, "sync: ps\ntrain: {reduce: fast}\n");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 3, 1));
    LS_CHECK(m.independent && m.servers == 3 && m.zero == 0);
    run.ps.servers = 2;
    LS_CHECK_OK(ls_mesh_init(&m, &run, 3, 1));
    LS_CHECK_EQ(m.servers, 2);
    ls_runfile_release(&run);
    LS_CHECK_EQ(ls_mesh_ranks(NULL), 1);
    LS_CHECK_EQ(ls_mesh_ranks(&(ls_mesh){.ranks = 0}), 1);
}

LS_TEST(mesh_of_mp_groups_is_that_of_their_models)
{
    for (int ranks = 2; ranks <= 12; ranks++)
        for (int tp = 2; tp <= ranks; tp++)
            for (int rank = 0; rank < ranks && ranks % tp == 0; rank++) {
                ls_mesh m = mesh_of(ranks, rank);
                m.tp = tp;
                ls_mesh mp_groups = ls_mesh_slice(&m);
                LS_CHECK_EQ(ls_mesh_tp_groups(&m), ranks / tp);
                LS_CHECK_EQ(mp_groups.ranks, ranks / tp);
                LS_CHECK_EQ(mp_groups.rank, rank / tp);
                LS_CHECK(ls_mesh_divides(&m) && ls_mesh_parts_weights(&m));
                LS_CHECK(!ls_mesh_divides(&mp_groups) && !ls_mesh_parts_weights(&mp_groups));
            }
}

LS_TEST(mesh_divides_experts_among_ranks_that_share_the_batch)
{
    ls_mesh m;
    ls_run run;

    load(&run, "");
    run.mesh.ep = 2; /* in a run file it needs experts */
    LS_CHECK_FAILS(ls_mesh_init(&m, &run, 3, 0), LS_EUSAGE,
                   "mesh.ep is 2, but the run has 3 data-parallel ranks");
    LS_CHECK_STR(ls_err_last()->hint, "Give -n 2 or -n 4, or another mesh.ep.");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 6, 3));
    ls_mesh mp_groups = ls_mesh_slice(&m), replicas = ls_mesh_of_replicas(&m);
    LS_CHECK(m.ep == 2 && ls_mesh_mp(&m) == 2 && !ls_mesh_whole(&m));
    LS_CHECK(ls_mesh_divides(&m) && ls_mesh_parts_weights(&m));
    LS_CHECK(mp_groups.ranks == 6 && mp_groups.rank == 3 && mp_groups.ep == 2);
    LS_CHECK(replicas.ranks == 3 && replicas.rank == 1 && ls_mesh_whole(&replicas));
    LS_CHECK(ls_mesh_tp_groups(&m) == 6 && ls_mesh_leaves(&m, 12, 3).first == 6);
    run.mesh.cp = 3; /* cp groups 0 1 2 and 3 4 5; experts of 0 1, 2 3, 4 5 */
    LS_CHECK_FAILS(ls_mesh_init(&m, &run, 9, 0), LS_EUSAGE,
                   "mesh.ep is 2, but the run has 9 data-parallel ranks");
    LS_CHECK_STR(ls_err_last()->hint, "Give -n 6 or -n 12, or another mesh.ep.");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 6, 3));
    replicas = ls_mesh_of_replicas(&m);
    LS_CHECK(ls_mesh_slice(&m).cp == 3 && ls_mesh_cp_peer(&m, 3, 0) == 3);
    LS_CHECK(replicas.ranks == 3 && replicas.rank == 1 && ls_mesh_cp(&replicas) == 1);
    ls_runfile_release(&run);
}

/* Ranks that divide experts are neighbours of one stage and place; replicas have the same stage,
 * place and experts, and together with these everything is there once. */
LS_TEST(mesh_of_replicas_has_one_of_each_part)
{
    enum { RANKS = 24 };

    for (int pp = 1; pp <= 3; pp++)
        for (int tp = 1; tp <= 2; tp++)
            for (int ep = 1; ep <= 4; ep *= 2) {
                int pipelines = RANKS / pp / tp, seen[RANKS] = {0};
                for (int rank = 0; rank < RANKS && pipelines % ep == 0; rank++) {
                    ls_mesh m = mesh_of(RANKS, rank);
                    m.pp = pp;
                    m.tp = tp;
                    m.ep = ep;
                    m.zero = 1;
                    ls_mesh mp_groups = ls_mesh_slice(&m), replicas = ls_mesh_of_replicas(&m);
                    LS_CHECK(ls_mesh_mp(&m) == tp * ep && mp_groups.ranks == RANKS / tp);
                    LS_CHECK_EQ(replicas.ranks, RANKS / tp / ep);
                    LS_CHECK_EQ(replicas.zero, pipelines / ep > 1);
                    LS_CHECK_EQ(ls_mesh_pp_rank(&replicas, replicas.rank),
                                ls_mesh_pp_rank(&mp_groups, mp_groups.rank));
                    LS_CHECK_EQ(ls_mesh_pipeline(&replicas, replicas.rank),
                                ls_mesh_pipeline(&mp_groups, mp_groups.rank) / ep);
                    seen[replicas.rank * tp * ep + rank % (tp * ep)]++;
                }
                for (int i = 0; i < RANKS && pipelines % ep == 0; i++)
                    LS_CHECK_EQ(seen[i], 1);
            }
}

LS_TEST(mesh_counts_pipelines_and_mp_groups_where_experts_are_divided)
{
    ls_mesh m;
    ls_run run;

    load(&run, "");
    run.mesh.ep = 4;
    run.mesh.pp = 2;
    LS_CHECK_FAILS(
        ls_mesh_init(&m, &run, 12, 0), LS_EUSAGE,
        "mesh.ep is 4, but the run has 6 data-parallel pipelines, which cannot be grouped");
    LS_CHECK_STR(ls_err_last()->hint, "Give -n 8 or -n 16, or another mesh.ep.");
    run.mesh.pp = 1;
    run.mesh.tp = 3;
    LS_CHECK_FAILS(ls_mesh_init(&m, &run, 6, 0), LS_EUSAGE,
                   "the run has 2 data-parallel tensor-parallel groups");
    LS_CHECK_STR(ls_err_last()->hint, "Give -n 12 or -n 24, or another mesh.ep.");
    LS_CHECK_OK(ls_mesh_init(&m, &run, 12, 0));
    ls_runfile_release(&run);
}
