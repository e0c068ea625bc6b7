/* test_replica_moments.c -- what equals keep for each other. */
#include "harness.h"
#include "model/tiny.h"
#include "layout/replica_moments.h"

/* On another machine, if there are two or more with as many ranks side by side. */
LS_TEST(ward_is_on_another_machine)
{
    for (int machines = 2; machines <= 4; machines++)
        for (int each = 1; each <= 3; each++) {
            const ls_mesh replicas = {.ranks = machines * each};
            for (int r = 0; r < replicas.ranks; r++) {
                LS_CHECK(ls_replica_moments_of(&replicas, r) / each != r / each);
                LS_CHECK_EQ(
                    ls_replica_moments_buddy(&replicas, ls_replica_moments_of(&replicas, r)), r);
            }
        }
}

LS_TEST(ward_is_kept_where_moments_of_parts_are_divided)
{
    const ls_model part = {.split = {.ranks = 2}}, experts = {.split = {.ep_ranks = 2}};
    const ls_model whole = {.split = {.ranks = 1}};
    ls_mesh replicas = {.ranks = 2, .zero = 1, .buddies = true};

    LS_CHECK(ls_replica_moments_serves(&part, &replicas) &&
             ls_replica_moments_serves(&experts, &replicas));
    LS_CHECK(!ls_replica_moments_serves(&whole, &replicas) &&
             !ls_replica_moments_serves(&part, NULL));
    replicas.pp = 2;
    LS_CHECK(!ls_replica_moments_serves(&part, &replicas));
    replicas.pp = 0;
    replicas.zero = 2;
    LS_CHECK(!ls_replica_moments_serves(&part, &replicas));
    replicas.zero = 1;
    replicas.ranks = 1;
    LS_CHECK(!ls_replica_moments_serves(&part, &replicas));
    replicas.ranks = 2;
    replicas.buddies = false;
    LS_CHECK(!ls_replica_moments_serves(&part, &replicas));
}

/* Behind the own parts, in as much room as the largest ward takes. */
LS_TEST(ward_has_room_behind_the_own_parts)
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
                int ward = ls_replica_moments_of(&replicas, r);
                int n = ls_replica_moments_parts(&run, &model, &replicas, ward, parts);
                int64_t own = ls_mesh_own(&replicas, model.trained, r);
                int64_t all = ls_replica_moments_moments(&run, &model, &replicas, own);
                LS_CHECK_EQ(n, ls_mesh_buckets(&replicas, model.trained));
                LS_CHECK(ls_replica_moments_place(own) >= own);
                LS_CHECK(ls_replica_moments_place(own) + parts[n - 1].packed + parts[n - 1].count <=
                         all);
                replicas.buddies = false;
                LS_CHECK_EQ(ls_replica_moments_moments(&run, &model, &replicas, own), own);
            }
            ls_model_release(&model);
        }
}
