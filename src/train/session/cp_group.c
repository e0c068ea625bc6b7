/* cp_group.c -- which ranks form the groups of cp_group.h.
 *
 *   6 ranks, mesh.cp: 3      cp group   0       1        keys and values, in every layer
 *                            ranks     0 1 2   3 4 5     gradients of all six: once in a step
 *
 * With mesh.tp a cp group is made of ranks of the same place in their tp groups, each with a piece of
 * the sequence and all with the same heads; with a pipeline, of ranks of the same stage:
 *
 *   12 ranks, mesh.pp: 2, mesh.cp: 3, mesh.tp: 2      stage 0      0 1   2 3   4 5
 *                                                     stage 1      6 7   8 9  10 11
 *   cp groups: 0 2 4, 1 3 5, 6 8 10, 7 9 11 */
#include "train/session/cp_group.h"

#include "base/log.h"
#include "parallel/blocking.h"
#include "train/session/session_impl.h"

/* A cp group may span machines, but every layer waits for its slowest link. */
static void warn_of_nodes(const ls_session *s)
{
    bool spans = false;

    for (int r = 0; r < s->mesh.ranks && s->mesh.places; r++)
        spans |= s->mesh.places[r].node != s->mesh.places[ls_mesh_cp_peer(&s->mesh, r, 0)].node;
    if (spans && ls_session_is_first(s))
        ls_log(LS_LOG_WARN,
               "ranks that share sequences (mesh.cp) are on several nodes: every layer "
               "sends keys and values over the network between them");
}

ls_status ls_cp_group_open(ls_session *s)
{
    int cp = ls_mesh_cp(&s->mesh);
    ls_status st = LS_OK;

    if (cp == 1)
        return LS_OK;
    warn_of_nodes(s);
    LS_TRY(st,
           ls_blocking_sub(s->args.comm, ls_mesh_cp_peer(&s->mesh, s->mesh.rank, 0),
                           ls_mesh_tp(&s->mesh), cp, ls_session_deadline(), &s->groups.cp_comm),
           out);
    LS_TRY(st, ls_mp_group_open(&s->groups.cp, s->groups.cp_comm, 1), out);
out:
    return st;
}

void ls_cp_group_close(ls_session *session)
{
    ls_mp_group_close(session->groups.cp);
    ls_comm_close(session->groups.cp_comm);
    session->groups.cp = NULL;
    session->groups.cp_comm = NULL;
}
