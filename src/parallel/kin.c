/* kin.c -- see kin.h. */
#include "parallel/kin.h"

int ls_kin_unit(const ls_run *run)
{
    int64_t pp = ls_max_i64(1, run->mesh.pp), tp = ls_max_i64(1, run->mesh.tp);

    return (int)ls_min_i64(pp * tp, LS_MESH_RANKS);
}

/* Ranks of the same post and place. */
static int lines_of(const ls_mesh *mesh)
{
    return ls_mesh_teams(mesh) / ls_mesh_posts(mesh);
}

static bool divides(const ls_mesh *mesh)
{
    return mesh->zero > 0 && lines_of(mesh) > 1;
}

int ls_kin_parts(const ls_mesh *mesh)
{
    return ls_mesh_posts(mesh) * ls_mesh_tp(mesh) * (divides(mesh) ? lines_of(mesh) : 1);
}

int ls_kin_part(const ls_mesh *mesh, int rank)
{
    int tp = ls_mesh_tp(mesh), lines = lines_of(mesh), team = rank / tp;
    int part = team / lines * tp + rank % tp;

    return divides(mesh) ? part * lines + team % lines : part;
}
