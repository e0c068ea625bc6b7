/* test_replicas.c -- who has the same part of a model. */
#include "harness.h"
#include "layout/replicas.h"

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

/* Rings are of ranks that have the same; experts lie between the places of teams. */
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

/* Kin are those with whom a rank sums all of its gradients. */
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

/* Equals that divide moments have no kin, and one alone divides nothing. */
LS_TEST(same_shard_are_none_where_replicas_divide)
{
    check_parts((ls_mesh){.ranks = 4, .pp = 2, .zero = 1}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 2, .pp = 2, .zero = 1}, 2, (const int[]){0, 1});
    check_parts((ls_mesh){.ranks = 4, .tp = 2, .zero = 1}, 4, (const int[]){0, 2, 1, 3});
    check_parts((ls_mesh){.ranks = 4, .ep = 2, .zero = 1}, 4, (const int[]){0, 2, 1, 3});
    check_parts((ls_mesh){.ranks = 2, .ep = 2, .zero = 1}, 2, (const int[]){0, 1});
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
    run.mesh.ep = 2; /* of a ring, or of two that lie side by side */
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
    LS_CHECK(ls_replicas_knows(&run) && !ls_replicas_divides(&run)); /* rings have hoards */
    run.mesh.zero = 3;
    LS_CHECK(ls_replicas_knows(&run));
    run.mesh.tp = 2;
    LS_CHECK(!ls_replicas_knows(&run));
    run = (ls_run){.mesh = {.pp = 2, .tp = 2, .cp = 1, .ep = 1, .zero = 2}};
    LS_CHECK(ls_replicas_knows(&run)); /* lines divide gradients, */
    run.mesh.zero = 3;
    LS_CHECK(ls_replicas_knows(&run)); /* and weights */
    run.mesh.ep = 2;
    LS_CHECK(!ls_replicas_knows(&run));
    run = (ls_run){.mesh = {.pp = 1, .tp = 2, .cp = 1, .ep = 1, .zero = 1, .shard = "2"}};
    LS_CHECK(!ls_replicas_knows(&run)); /* groups */
}
