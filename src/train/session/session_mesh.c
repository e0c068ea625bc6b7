/* session_mesh.c -- how the ranks of a view are spread: from the run file and the machines.
 *
 * In a view that follows a loss the run file's numbers may not fit the ranks that are left. The axes
 * that cut the model stay (the view has as many ranks as they need); the width of data parallelism,
 * weights of ranks and groups by node are found anew.
 *
 *     view 1   8 ranks, mesh.pp: 2, mesh.tp: 2         2 pipelines, each of 2 x 2 ranks
 *     rank 5 dies and is not replaced; a model needs 4 ranks, so 3 of the 7 wait as spares
 *     view 2   4 ranks, mesh.pp: 2, mesh.tp: 2         1 pipeline; mesh.dp of the run file counts no more */
#include "train/session/session_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "layout/replicas.h"
#include "train/session/model_groups.h"

/* Which ranks share a machine, and so their memory. */
static ls_status open_places(ls_session *s)
{
    int n = s->mesh.ranks;

    if (!s->args.comm || n < 2)
        return LS_OK;
    s->places =
        ls_mem_array(2 * (size_t)n, sizeof *s->places); /* then of replicas (place_replicas) */
    if (!s->places)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int r = 0; r < n; r++)
        s->places[r].node = ls_comm_node(s->args.comm, r);
    s->mesh.nodes = ls_mesh_places(s->places, n);
    s->mesh.places = s->places;
    return LS_OK;
}

/* The mesh that the run asks for was that of the first view; its width, and the weights of its
 * ranks, mean nothing when some of them are gone. */
static void free_mesh(ls_session *s)
{
    const ls_run *run = s->args.run;
    int ranks = s->args.comm ? ls_comm_ranks(s->args.comm) : 1;

    if (s->args.view.plan.generation < 2)
        return;
    s->fitted = *run;
    s->fitted.mesh.dp = LS_RUN_AUTO;
    if (run->mesh.weights.count != ranks)
        s->fitted.mesh.weights.count = 0;
    if (s->auto_mesh.choice.count > 0)
        ls_mesh_choice_apply(&s->auto_mesh.choice, 0, &s->fitted);
    s->run = &s->fitted;
}

/* The machines of this rank's replicas. The ranks of one model must be on one machine each, so that all
 * replicas are grouped equally. */
static ls_status place_replicas(ls_session *s)
{
    int mp_group = ls_mesh_mp(&s->mesh), first = s->mesh.rank % mp_group;

    if (strcmp(s->run->mesh.shard, "node") != 0 || !s->places)
        return LS_OK;
    for (int r = 0; r < s->mesh.ranks; r++)
        if (s->places[r].node != s->places[r / mp_group * mp_group].node) {
            ls_fail(LS_EUSAGE, "mesh.shard cannot be node: ranks that share one model "
                               "(mesh.tp, mesh.ep) are on several nodes");
            ls_err_hint("Start them so that they share a machine, or set mesh.shard: world.");
            return LS_EUSAGE;
        }
    ls_mesh_place *places = s->places + s->mesh.ranks;
    for (int r = 0; r < s->groups.replicas.ranks; r++)
        places[r].node = s->places[r * mp_group + first].node;
    s->groups.replicas.nodes = ls_mesh_places(places, s->groups.replicas.ranks);
    s->groups.replicas.places = places;
    return LS_OK;
}

/* After a loss the ranks that are left may not form the shard groups that the run asks for: then all
 * divide. */
static ls_status open_groups(ls_session *s)
{
    bool mp_groups = ls_mesh_mp(&s->mesh) > 1;
    ls_mesh *mesh = mp_groups ? &s->groups.replicas : &s->mesh;
    ls_status st = mp_groups ? place_replicas(s) : LS_OK;

    if (st == LS_OK)
        st = ls_mesh_set_shard(mesh, s->run);
    if (st == LS_OK || s->args.view.plan.generation < 2)
        return st;
    ls_log(LS_LOG_INFO, "%s: %d ranks divide among all of them", ls_err_last()->text, mesh->ranks);
    ls_err_clear();
    mesh->shard = 0;
    mesh->by_node = false;
    return LS_OK;
}

/* "pp=2 dp=2 tp=2 zero=1": what is not there is left out, but for dp. */
static void describe_mesh(ls_session *s)
{
    const struct {
        const char *name;
        int width;
    } axes[] = {{"pp", s->mesh.pp},
                {"dp", ls_mesh_pipelines(&s->groups.tp_slice) / ls_mesh_cp(&s->mesh)},
                {"cp", s->mesh.cp},
                {"tp", s->mesh.tp},
                {"ep", s->mesh.ep},
                {"zero", s->mesh.zero},
                {"shard", ls_model_groups_replicas(s)->shard}};
    size_t used = 0;

    s->mesh_text[0] = '\0';
    for (size_t i = 0; i < LS_COUNT(axes) && used < sizeof s->mesh_text; i++)
        if (axes[i].width > 0)
            used += (size_t)snprintf(s->mesh_text + used, sizeof s->mesh_text - used, "%s%s=%d",
                                     used ? " " : "", axes[i].name, axes[i].width);
}

ls_status ls_session_open_mesh(ls_session *s)
{
    ls_comm *comm = s->args.comm;
    free_mesh(s);
    ls_status st = ls_mesh_init(&s->mesh, s->run, comm ? ls_comm_ranks(comm) : 1,
                                comm ? ls_comm_rank(comm) : 0);

    if (st == LS_OK && s->args.local_ranks > 0)
        s->mesh.local = s->args.local_ranks;
    if (st == LS_OK)
        st = open_places(s);
    if (st == LS_OK)
        s->groups.replicas = ls_mesh_of_replicas(&s->mesh);
    if (st == LS_OK && s->mesh.zero > 0)
        st = open_groups(s);
    if (st == LS_OK)
        st = ls_replicas_choose(&s->mesh, s->run, s->args.rejoin != NULL);
    s->groups.replicas.buddies = s->mesh.buddies;
    if (st == LS_OK)
        s->groups.tp_slice = ls_mesh_slice(&s->mesh);
    describe_mesh(s);
    if (st == LS_OK && s->mesh.rank > 0)
        s->args.profile_steps = 0; /* the first rank's profile is the one that is written */
    return st;
}
