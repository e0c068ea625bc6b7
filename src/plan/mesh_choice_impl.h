/* mesh_choice_impl.h -- what mesh_choice.c (which meshes there are), mesh_choice_time.c (how long a step takes)
 * and mesh_choice_print.c share. */
#pragma once
#include "plan/mesh_choice.h"

LS_C_BEGIN

/* A mesh that is looked at, as rank 0 of it sees it. */
typedef struct ls_mesh_choice_case {
    const ls_mesh_choice_facts *facts;
    const ls_run *run;
    const ls_model *whole;
    ls_mesh mesh;
    ls_mesh mp_groups; /* the mesh of the tp groups, or the same mesh where there are none */
    ls_mesh replicas;  /* mesh.ep: the mesh of those that have the same experts */
} ls_mesh_choice_case;

/* The times of row, whose recompute is known. */
ls_status ls_mesh_choice_time(const ls_mesh_choice_case *one, ls_mesh_choice_row *row);

LS_C_END
