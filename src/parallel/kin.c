/* kin.c -- see kin.h. */
#include "parallel/kin.h"

#include <string.h>

bool ls_kin_divides(const ls_run *run)
{
    return run->mesh.pp > 1 || run->mesh.tp > 1 || run->mesh.ep > 1;
}

int ls_kin_unit(const ls_run *run)
{
    int64_t pp = ls_max_i64(1, run->mesh.pp), tp = ls_max_i64(1, run->mesh.tp);
    int64_t cp = ls_max_i64(1, run->mesh.cp), ep = ls_max_i64(1, run->mesh.ep), beside = ep;

    while (beside % cp != 0 && beside < LS_MESH_RANKS)
        beside += ep;
    return (int)ls_min_i64(pp * tp * beside, LS_MESH_RANKS);
}

bool ls_kin_knows(const ls_run *run)
{
    bool groups = run->mesh.shard && strcmp(run->mesh.shard, "world") != 0;

    bool lines = run->mesh.pp > 1 && run->mesh.ep < 2; /* these divide by indices of the model */

    return !ls_kin_divides(run) || run->mesh.zero == 0 ||
           (!groups && (run->mesh.zero == 1 || lines));
}

/* Ranks of the same post, place and experts. */
static int lines_of(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_team(mesh) / ls_mesh_posts(mesh);
}

static bool divides(const ls_mesh *mesh)
{
    return mesh->zero > 0 && lines_of(mesh) > 1;
}

int ls_kin_parts(const ls_mesh *mesh)
{
    return ls_mesh_posts(mesh) * ls_mesh_team(mesh) * (divides(mesh) ? lines_of(mesh) : 1);
}

int ls_kin_part(const ls_mesh *mesh, int rank)
{
    int width = ls_mesh_team(mesh), lines = lines_of(mesh), team = rank / width;
    int part = team / lines * width + rank % width;

    return divides(mesh) ? part * lines + team % lines : part;
}
