/* algo.c -- the table of algorithms (a row is defined in the file of its name), and what each row
 * may be used for.
 *
 *     ring            large sums of fp32, gathers and broadcasts: least bytes, neighbours only
 *     halving         the same in fewer steps, where peers may change
 *     doubling        small sums
 *     tree, tree2     broadcasts, gathers and sums of any length in few steps
 *     pairwise        16-bit sums, which are rounded once; all_to_all
 *     direct          small messages among few ranks; send and recv
 *     dissemination   barriers
 *
 * A large all-reduce over nodes with several ranks each is hierarchical: ../hierarchical.c uses a
 * row for the part between nodes. No rule says which row is taken: the cost model compares all
 * that do not refuse (cost.h). */
#include "comm/algo/algo.h"

#include <string.h>
#include "comm/algo/algo_impl.h"

const ls_algo *const ls_algos[] = {
    &ls_algo_ring,  &ls_algo_halving,  &ls_algo_doubling, &ls_algo_tree,
    &ls_algo_tree2, &ls_algo_pairwise, &ls_algo_direct,   &ls_algo_dissemination,
};
const int ls_algos_count = (int)LS_COUNT(ls_algos);

const ls_algo *ls_algo_find(const char *name)
{
    for (int i = 0; i < ls_algos_count; i++)
        if (strcmp(ls_algos[i]->name, name) == 0)
            return ls_algos[i];
    return NULL;
}

const char *ls_algo_refuses(const ls_algo *algo, const ls_coll *coll, int ranks, bool once)
{
    bool sums = (coll->kind == LS_COLL_ALL_REDUCE || coll->kind == LS_COLL_REDUCE_SCATTER) &&
                (coll->op == LS_COLL_SUM || coll->op == LS_COLL_MEAN);
    bool short_type = coll->type == LS_BF16 || coll->type == LS_F16;

    if (!ls_algo_does(algo, coll->kind))
        return "does not do this collective";
    if ((coll->in_counts || coll->out_counts) && !algo->uneven)
        return "does not know tables of counts";
    if (!sums || algo->once)
        return NULL;
    if (ranks <= 2 && coll->op == LS_COLL_SUM) /* one addition is rounded once anyway */
        return NULL;
    if (short_type)
        return "adds hop by hop, which rounds 16-bit sums more than once";
    if (once)
        return "adds hop by hop, not in rank order";
    return NULL;
}
