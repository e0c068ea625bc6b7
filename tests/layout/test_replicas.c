/* test_replicas.c -- which rank has which part, and which rank holds a copy of it. */
#include "harness.h"
#include "layout/replicas.h"
#include "model/tiny.h"

static void check_parts(ls_mesh mesh, int parts, const int *want)
{
    LS_CHECK_EQ(ls_replicas_parts(&mesh), parts);
    for (int r = 0; r < mesh.ranks; r++)
        LS_CHECK_EQ(ls_replicas_part(&mesh, r), want[r]);
}

LS_TEST(same_shard_are_of_the_same_pp_rank_and_place)
{
    check_parts((ls_mesh){.ranks = 3}, 1, (const int[]){0, 0, 0});
    check_parts((ls_mesh){.ranks = 6, .pp = 3}, 3, (const int[]){0, 0, 1, 1, 2, 2});
    check_parts((ls_mesh){.ranks = 4, .pp = 4}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 6, .tp = 2}, 2, (const int[]){0, 1, 0, 1, 0, 1});
    check_parts((ls_mesh){.ranks = 8, .pp = 2, .tp = 2}, 4, (const int[]){0, 1, 0, 1, 2, 3, 2, 3});
}

/* Experts and everything else; ranks that share sequences have all of it. */
LS_TEST(same_shard_have_the_same_experts)
{
    check_parts((ls_mesh){.ranks = 6, .ep = 2}, 2, (const int[]){0, 1, 0, 1, 0, 1});
    check_parts((ls_mesh){.ranks = 4, .ep = 4}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 4, .cp = 2}, 1, (const int[]){0, 0, 0, 0});
}

/* Ranks of a cp group have the same; experts lie between the places of tp groups. */
LS_TEST(same_shard_are_known_in_products_of_axes)
{
    check_parts((ls_mesh){.ranks = 8, .cp = 2, .tp = 2}, 2, (const int[]){0, 1, 0, 1, 0, 1, 0, 1});
    check_parts((ls_mesh){.ranks = 4, .cp = 2, .pp = 2}, 2, (const int[]){0, 0, 1, 1});
    check_parts((ls_mesh){.ranks = 8, .cp = 2, .pp = 2, .tp = 2}, 4,
                (const int[]){0, 1, 0, 1, 2, 3, 2, 3});
    check_parts((ls_mesh){.ranks = 8, .ep = 2, .tp = 2}, 4, (const int[]){0, 1, 2, 3, 0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 8, .ep = 2, .pp = 2}, 4, (const int[]){0, 1, 0, 1, 2, 3, 2, 3});
    check_parts((ls_mesh){.ranks = 4, .ep = 2, .cp = 2}, 2, (const int[]){0, 1, 0, 1});
    check_parts((ls_mesh){.ranks = 8, .ep = 2, .pp = 2, .tp = 2}, 8,
                (const int[]){0, 1, 2, 3, 4, 5, 6, 7});
}

/* Replicas are the ranks with which a rank sums all of its gradients. */
LS_TEST(same_shard_are_replicas)
{
    for (int i = 0; i < 16; i++) {
        ls_mesh mesh = {.ranks = 16,
                        .pp = i & 1 ? 2 : 0,
                        .tp = i & 2 ? 2 : 0,
                        .cp = i & 4 ? 2 : 0,
                        .ep = i & 8 ? 2 : 0};
        int parts = ls_replicas_parts(&mesh);
        for (int r = 0; r < mesh.ranks; r++) {
            int same_shard = 0;
            for (int q = 0; q < mesh.ranks; q++)
                same_shard += ls_replicas_part(&mesh, q) == ls_replicas_part(&mesh, r);
            mesh.rank = r;
            ls_mesh replicas = ls_mesh_of_replicas(&mesh);
            LS_CHECK_EQ(same_shard, ls_mesh_pipelines(&replicas));
            LS_CHECK_EQ(same_shard * parts, mesh.ranks);
        }
    }
}

/* Ranks that divide moments are no replicas, and one alone divides nothing. */
LS_TEST(same_shard_are_none_where_replicas_divide)
{
    check_parts((ls_mesh){.ranks = 4, .pp = 2, .zero = 1}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 2, .pp = 2, .zero = 1}, 2, (const int[]){0, 1});
    check_parts((ls_mesh){.ranks = 4, .tp = 2, .zero = 1}, 4, (const int[]){0, 2, 1, 3});
    check_parts((ls_mesh){.ranks = 4, .ep = 2, .zero = 1}, 4, (const int[]){0, 2, 1, 3});
    check_parts((ls_mesh){.ranks = 2, .ep = 2, .zero = 1}, 2, (const int[]){0, 1});
    check_parts((ls_mesh){.ranks = 4, .zero = 1}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 4, .zero = 3, .shard = 2}, 2, (const int[]){0, 1, 0, 1});
}

LS_TEST(same_shard_unit_is_a_whole_model)
{
    ls_run run = {.mesh = {.pp = 1, .tp = 1}};

    LS_CHECK_EQ(ls_replicas_unit(&run), 1);
    run.mesh.pp = 3;
    LS_CHECK_EQ(ls_replicas_unit(&run), 3);
    run.mesh.tp = 2;
    LS_CHECK_EQ(ls_replicas_unit(&run), 6);
    run.mesh.cp = 2;
    LS_CHECK_EQ(ls_replicas_unit(&run), 12);
    run.mesh.ep = 2; /* of a cp group, or of two that lie side by side */
    LS_CHECK_EQ(ls_replicas_unit(&run), 12);
    run.mesh.cp = 3;
    LS_CHECK_EQ(ls_replicas_unit(&run), 36);
    run = (ls_run){.mesh = {.pp = 1, .tp = 1, .cp = 1, .ep = 64}};
    LS_CHECK_EQ(ls_replicas_unit(&run), 64);
}

/* All of them together with ZeRO 1; what is divided further, in pipelines only. */
LS_TEST(same_shard_are_known_up_to_divided_moments)
{
    ls_run run = {.mesh = {.pp = 2, .tp = 2, .cp = 2, .ep = 2, .zero = 1}};

    LS_CHECK(ls_replicas_knows(&run) && ls_replicas_divides(&run));
    run.mesh.zero = 2;
    LS_CHECK(!ls_replicas_knows(&run));
    run.mesh.pp = run.mesh.tp = 1;
    LS_CHECK(!ls_replicas_knows(&run) && ls_replicas_divides(&run)); /* experts */
    run.mesh.ep = 1;
    LS_CHECK(ls_replicas_knows(&run) &&
             !ls_replicas_divides(&run)); /* cp groups have whole models */
    run.mesh.zero = 3;
    LS_CHECK(ls_replicas_knows(&run));
    run.mesh.tp = 2;
    LS_CHECK(!ls_replicas_knows(&run));
    run = (ls_run){.mesh = {.pp = 2, .tp = 2, .cp = 1, .ep = 1, .zero = 2}};
    LS_CHECK(ls_replicas_knows(&run)); /* pipelines divide gradients, */
    run.mesh.zero = 3;
    LS_CHECK(ls_replicas_knows(&run)); /* and weights */
    run.mesh.ep = 2;
    LS_CHECK(!ls_replicas_knows(&run));
    run = (ls_run){.mesh = {.pp = 1, .tp = 2, .cp = 1, .ep = 1, .zero = 1, .shard = "2"}};
    LS_CHECK(!ls_replicas_knows(&run)); /* groups */
}

/* --- copies -------------------------------------------------------------------------------------- */

LS_TEST(copies_are_on_another_node_where_there_is_one)
{
    static const struct {
        int ranks, nodes[6], holders[6];
    } rows[] = {{4, {0, 0, 0, 0}, {1, 2, 3, 0}},
                {4, {0, 0, 1, 1}, {2, 3, 0, 1}},
                {6, {0, 0, 1, 1, 2, 2}, {2, 3, 4, 5, 0, 1}},
                {3, {0, 0, 1}, {1, 2, 0}}};
    ls_mesh_place places[6];

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        ls_mesh mesh = {.ranks = rows[i].ranks, .zero = 1, .places = places, .buddies = true};
        for (int r = 0; r < rows[i].ranks; r++)
            places[r].node = rows[i].nodes[r];
        for (int r = 0; r < rows[i].ranks; r++) {
            LS_CHECK_EQ(ls_replicas_holder(&mesh, r), rows[i].holders[r]);
            LS_CHECK_EQ(ls_replicas_owner(&mesh, rows[i].holders[r]), r);
        }
    }
}

LS_TEST(copies_are_made_where_they_serve)
{
    ls_run run = {.mesh = {.zero = 1}};
    ls_mesh mesh = {.ranks = 4, .zero = 1};

    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, true));
    LS_CHECK(mesh.buddies && ls_replicas_sends(&mesh));
    mesh.shard = 2; /* the other group has the same parts */
    LS_CHECK(!ls_replicas_sends(&mesh));
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, false));
    LS_CHECK(!mesh.buddies);
    run.train.optimizer = LS_OPTIMIZER_LAMB;
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, true));
    LS_CHECK(mesh.buddies);
    run.mesh.pp = 2; /* pipelines keep the moments of AdamW only */
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, true));
    LS_CHECK(!mesh.buddies);
    run.mesh.pp = 1;
    run.train.optimizer = LS_OPTIMIZER_ADAMW;
    run.mesh.tp = run.mesh.ep = 2; /* so do slices */
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, true));
    LS_CHECK(mesh.buddies);
    run.mesh.zero = 2;
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, true));
    LS_CHECK(!mesh.buddies);
    run.mesh.zero = run.mesh.tp = run.mesh.ep = 1;
    run.heal.buddies = LS_REPLICA_PEERS_OFF;
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, true));
    LS_CHECK(!mesh.buddies);
    run.heal.buddies = LS_REPLICA_PEERS_ON;
    LS_CHECK_FAILS(ls_replicas_choose(&mesh, &run, false), LS_EUSAGE, "nobody replaces ranks");
    mesh.zero = 0; /* one rank */
    LS_CHECK_OK(ls_replicas_choose(&mesh, &run, false));
}

/* Without places: another machine, if there are several with as many ranks side by side. */
LS_TEST(copies_are_half_of_the_ranks_away)
{
    for (int machines = 2; machines <= 4; machines++)
        for (int each = 1; each <= 3; each++) {
            const ls_mesh replicas = {.ranks = machines * each};
            for (int r = 0; r < replicas.ranks; r++) {
                LS_CHECK(ls_replicas_owner(&replicas, r) / each != r / each);
                LS_CHECK_EQ(ls_replicas_holder(&replicas, ls_replicas_owner(&replicas, r)), r);
            }
        }
}

LS_TEST(copies_lie_in_moments_of_divided_slices)
{
    const ls_model part = {.split = {.ranks = 2}}, experts = {.split = {.ep_ranks = 2}};
    const ls_model whole = {.split = {.ranks = 1}};
    ls_mesh replicas = {.ranks = 2, .zero = 1, .buddies = true};

    LS_CHECK(ls_replicas_in_moments(&part, &replicas) &&
             ls_replicas_in_moments(&experts, &replicas));
    LS_CHECK(!ls_replicas_in_moments(&whole, &replicas) && !ls_replicas_in_moments(&part, NULL));
    replicas.pp = 2;
    LS_CHECK(!ls_replicas_in_moments(&part, &replicas));
    replicas.pp = 0;
    replicas.zero = 2;
    LS_CHECK(!ls_replicas_in_moments(&part, &replicas));
    replicas.zero = 1;
    replicas.ranks = 1;
    LS_CHECK(!ls_replicas_in_moments(&part, &replicas));
    replicas.ranks = 2;
    replicas.buddies = false;
    LS_CHECK(!ls_replicas_in_moments(&part, &replicas));
}

/* As much room as the largest copy takes. */
LS_TEST(copies_have_room_behind_the_own_pieces)
{
    ls_run run = ls_tiny_run();

    run.model.width = 144;
    run.model.heads = run.model.kv_heads = 4;
    run.model.head_size = 36;
    run.mesh.tp = 2;
    run.mesh.zero = 1;
    for (int place = 0; place < 2; place++)
        for (int bucket = 0; bucket <= 1; bucket++) {
            ls_model model;
            LS_CHECK_OK(
                ls_model_init_split(&model, &run, 67, (ls_model_split){.rank = place, .ranks = 2}));
            for (int r = 0; r < 3; r++) {
                ls_mesh replicas = {
                    .ranks = 3, .rank = r, .zero = 1, .bucket = bucket, .buddies = true};
                ls_mesh_part parts[LS_MESH_BUCKETS];
                int owner = ls_replicas_owner(&replicas, r);
                int n = ls_replicas_pieces(&run, &model, &replicas, owner, parts);
                int64_t own = ls_mesh_own(&replicas, model.trained, r);
                int64_t all = ls_replicas_moments(&run, &model, &replicas, own);
                LS_CHECK_EQ(n, ls_mesh_buckets(&replicas, model.trained));
                LS_CHECK(ls_replicas_place(own) >= own);
                LS_CHECK(ls_replicas_place(own) + parts[n - 1].packed + parts[n - 1].count <= all);
                replicas.buddies = false;
                LS_CHECK_EQ(ls_replicas_moments(&run, &model, &replicas, own), own);
            }
            ls_model_release(&model);
        }
}
