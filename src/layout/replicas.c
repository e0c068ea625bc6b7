/* replicas.c -- see replicas.h. */
#include "layout/replicas.h"

#include <string.h>

bool ls_replicas_divides(const ls_run *run)
{
    return run->mesh.pp > 1 || run->mesh.tp > 1 || run->mesh.ep > 1;
}

int ls_replicas_unit(const ls_run *run)
{
    int64_t pp = ls_max_i64(1, run->mesh.pp), tp = ls_max_i64(1, run->mesh.tp);
    int64_t cp = ls_max_i64(1, run->mesh.cp), ep = ls_max_i64(1, run->mesh.ep), beside = ep;

    while (beside % cp != 0 && beside < LS_MESH_RANKS)
        beside += ep;
    return (int)ls_min_i64(pp * tp * beside, LS_MESH_RANKS);
}

bool ls_replicas_knows(const ls_run *run)
{
    bool groups = run->mesh.shard && strcmp(run->mesh.shard, "world") != 0;

    bool pipelines =
        run->mesh.pp > 1 && run->mesh.ep < 2; /* these divide by indices of the model */

    return !ls_replicas_divides(run) || run->mesh.zero == 0 ||
           (!groups && (run->mesh.zero == 1 || pipelines));
}

/* Ranks of the same post, place and experts. */
static int pipelines_of(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_mp(mesh) / ls_mesh_pp(mesh);
}

static bool divides(const ls_mesh *mesh)
{
    return mesh->zero > 0 && pipelines_of(mesh) > 1;
}

int ls_replicas_parts(const ls_mesh *mesh)
{
    return ls_mesh_pp(mesh) * ls_mesh_mp(mesh) * (divides(mesh) ? pipelines_of(mesh) : 1);
}

int ls_replicas_part(const ls_mesh *mesh, int rank)
{
    int width = ls_mesh_mp(mesh), pipelines = pipelines_of(mesh), mp_group = rank / width;
    int part = mp_group / pipelines * width + rank % width;

    return divides(mesh) ? part * pipelines + mp_group % pipelines : part;
}
