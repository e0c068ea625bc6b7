/* test_kin.c -- who has the same part of a model. */
#include "harness.h"
#include "parallel/kin.h"

static void check_parts(ls_mesh mesh, int parts, const int *want)
{
    LS_CHECK_EQ(ls_kin_parts(&mesh), parts);
    for (int r = 0; r < mesh.ranks; r++)
        LS_CHECK_EQ(ls_kin_part(&mesh, r), want[r]);
}

LS_TEST(kin_are_of_the_same_post_and_place)
{
    check_parts((ls_mesh){.ranks = 3}, 1, (const int[]){0, 0, 0});
    check_parts((ls_mesh){.ranks = 6, .pp = 3}, 3, (const int[]){0, 0, 1, 1, 2, 2});
    check_parts((ls_mesh){.ranks = 4, .pp = 4}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 6, .tp = 2}, 2, (const int[]){0, 1, 0, 1, 0, 1});
    check_parts((ls_mesh){.ranks = 8, .pp = 2, .tp = 2}, 4, (const int[]){0, 1, 0, 1, 2, 3, 2, 3});
}

/* Experts and everything else; ranks that share sequences have all of it. */
LS_TEST(kin_have_the_same_experts)
{
    check_parts((ls_mesh){.ranks = 6, .ep = 2}, 2, (const int[]){0, 1, 0, 1, 0, 1});
    check_parts((ls_mesh){.ranks = 4, .ep = 4}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 4, .cp = 2}, 1, (const int[]){0, 0, 0, 0});
}

/* Lines that divide moments have no kin, and one line divides nothing. */
LS_TEST(kin_are_none_where_lines_divide)
{
    check_parts((ls_mesh){.ranks = 4, .pp = 2, .zero = 1}, 4, (const int[]){0, 1, 2, 3});
    check_parts((ls_mesh){.ranks = 2, .pp = 2, .zero = 1}, 2, (const int[]){0, 1});
}

LS_TEST(kin_unit_is_a_whole_model)
{
    ls_run run = {.mesh = {.pp = 1, .tp = 1}};

    LS_CHECK_EQ(ls_kin_unit(&run), 1);
    run.mesh.pp = 3;
    LS_CHECK_EQ(ls_kin_unit(&run), 3);
    run.mesh.tp = 2;
    LS_CHECK_EQ(ls_kin_unit(&run), 6);
    run.mesh.cp = 2;
    LS_CHECK_EQ(ls_kin_unit(&run), 12);
    run.mesh.ep = 2;
    LS_CHECK_EQ(ls_kin_unit(&run), 24);
    run = (ls_run){.mesh = {.pp = 1, .tp = 1, .cp = 1, .ep = 64}};
    LS_CHECK_EQ(ls_kin_unit(&run), 64);
}

/* What lies inside of what where ranks do several of these things is not known here. */
LS_TEST(kin_are_known_of_one_kind_at_a_time)
{
    ls_run run = {.mesh = {.pp = 2, .tp = 2, .cp = 1, .ep = 1, .zero = 1}};

    LS_CHECK(ls_kin_knows(&run) && ls_kin_divides(&run));
    run.mesh.cp = 2;
    LS_CHECK(!ls_kin_knows(&run));
    run.mesh.pp = run.mesh.tp = 1;
    LS_CHECK(ls_kin_knows(&run) && !ls_kin_divides(&run));
    run.mesh.ep = 2;
    LS_CHECK(!ls_kin_knows(&run) && ls_kin_divides(&run));
    run.mesh.cp = 1;
    LS_CHECK(!ls_kin_knows(&run)); /* zero */
    run.mesh.zero = 0;
    LS_CHECK(ls_kin_knows(&run));
    run = (ls_run){.mesh = {.pp = 2, .tp = 1, .cp = 1, .ep = 1, .zero = 2}};
    LS_CHECK(!ls_kin_knows(&run)); /* lines divide gradients */
    run.mesh.pp = 1;
    LS_CHECK(ls_kin_knows(&run));
}
