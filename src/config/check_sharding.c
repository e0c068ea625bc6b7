/* check_sharding.c -- whether the model can be divided as the mesh says: heads by mesh.tp, layers
 * by mesh.pp.
 *
 *     8 heads, mesh.tp: 3     an error that names the nearest widths that work: 2 and 4
 *     2 key/value heads, mesh.tp: 4     each of them is held by two ranks
 *
 *
 * The shape is known here, also that of an imported model, so such a mistake is found before any
 * process is started, and by `lineshaft config check`. What the tokenizer decides (fewer tokens
 * than ranks) is found when the model is made. */
#include "config/check_impl.h"

#include <stdio.h>

/* Whether this many ranks can divide the heads: each gets the same number; a key/value head is held
 * by one rank or by several. */
static bool divides(const ls_run_model *m, int64_t tp)
{
    return m->heads % tp == 0 && (m->kv_heads % tp == 0 || tp % m->kv_heads == 0);
}

/* The widths next to the one that was asked for. */
static void hint_heads(const ls_run_model *m, int64_t tp)
{
    int64_t below = tp, above = tp;

    while (below > 1 && !divides(m, below))
        below--;
    while (above < m->heads && !divides(m, above))
        above++;
    if (below > 1 && above > tp)
        ls_err_hint("mesh.tp: %lld or %lld works.", (long long)below, (long long)above);
    else if (below > 1 || above > tp)
        ls_err_hint("mesh.tp: %lld works.", (long long)(below > 1 ? below : above));
    else
        ls_err_hint("Leave mesh.tp out: heads are what it divides.");
}

static ls_status check_heads(const ls_run *run)
{
    const ls_run_model *m = &run->model;
    int64_t tp = run->mesh.tp;
    bool uneven = m->heads % tp != 0;
    char why[96];
    ls_status st;

    if (divides(m, tp))
        return LS_OK;
    snprintf(why, sizeof why,
             uneven ? "heads cannot be divided evenly among %lld ranks"
                    : "key/value heads can be neither divided nor copied evenly among %lld ranks",
             (long long)tp);
    st = ls_check_clash(run, "mesh.tp", uneven ? "model.heads" : "model.kv_heads", why);
    hint_heads(m, tp);
    return st;
}

static ls_status check_layers(const ls_run *run)
{
    int64_t L = run->model.layers, pp = run->mesh.pp, chunks = run->mesh.chunks;
    char why[96];
    ls_status st;

    if (pp < 2 || L >= pp * chunks)
        return LS_OK;
    snprintf(why, sizeof why, "%lld layer%s cannot be cut into %lld stages", (long long)L,
             L == 1 ? "" : "s", (long long)(pp * chunks));
    st = ls_check_clash(run, "mesh.pp", "model.layers", why);
    if (L >= pp)
        ls_err_hint("mesh.chunks: %lld works%s.", (long long)(L / pp),
                    L / pp == 1 ? ", with mesh.schedule: 1f1b or zero-bubble" : "");
    else if (L > 1)
        ls_err_hint("mesh.pp: %lld works%s.", (long long)L,
                    chunks > 1 ? ", with mesh.schedule: 1f1b or zero-bubble" : "");
    else
        ls_err_hint("Leave mesh.pp out: layers are what it divides.");
    return st;
}

ls_status ls_check_sharding(const ls_run *run)
{
    ls_status st = check_heads(run);

    return st == LS_OK ? check_layers(run) : st;
}
