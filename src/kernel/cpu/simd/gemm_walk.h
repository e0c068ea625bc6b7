/* gemm_walk.h -- how a product is cut into blocks of C, and how a block walks over K: the same for
 * products of single values (gemm.c) and of pairs (dot/dot_run.c).
 *
 * A block is mc x nc elements of C, one task. Its partial sums lie in scratch, tile by tile, behind
 * them the sums over k that the row asked for. The tree over leaves (leaves.h) is a stack of such
 * blocks; a leaf of one block of K whose sum would be merged at once is added to the top of the
 * stack instead. */
#pragma once
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/simd/gemm.h"

enum { SUMS_EXTRA = 64 }; /* floats that sums over k may be written beyond their end */

typedef struct gemm_cut {
    int64_t mc, nc;   /* size of a block of C: multiples of `rows` and LS_GEMM_NR */
    int64_t m_blocks; /* blocks from top to bottom; tasks go down first */
    int64_t tasks;
    int64_t leaf_k; /* K of one leaf */
    int levels;     /* of the stack of partial sums */
    bool stored;    /* partial sums are kept in scratch */
} gemm_cut;

/* What the cut depends on. Cycles per k: mc nc / rate for the products, and what packing costs. */
typedef struct gemm_costs {
    int64_t rows; /* of a panel of A */
    double rate, pack_a, pack_b;
    int64_t b_floats; /* of a packed column of B, for one block of K */
    int64_t near;     /* floats of B and of one level of partial sums that should stay near */
    int64_t room;     /* floats that there are for all levels, and for sums over k */
    int64_t nc_most;  /* columns */
} gemm_costs;

/* One task: a block of C. The first member of what the two products know of it. */
typedef struct gemm_walk gemm_walk;
struct gemm_walk {
    const ls_gemm *g;
    const gemm_cut *cut;
    int64_t m0, m1, n0, n1;
    float *c; /* stack of partial sums, `floats` each: tile by tile, then sums over k */
    int64_t tiles, floats;
    /* The products of the block of K at k0, for all tiles; finish them when these were the last. */
    void (*multiply)(const gemm_walk *w, int64_t k0, int64_t kc, float *c, bool add, bool last);
    /* Finish all tiles of c. */
    void (*finish)(const gemm_walk *w);
};

/* --- how C is cut ------------------------------------------------------------------------------
 * The cut decides speed, never bits. Tasks come in waves of as many as there are threads, and part
 * of one task is lost at the end. */
LS_INLINE double gemm_cut_cost(const ls_gemm *g, const gemm_costs *costs, int64_t mc, int64_t nc,
                               int threads)
{
    int64_t tasks = (g->M + mc - 1) / mc * ((g->N + nc - 1) / nc);
    int64_t waves = (tasks + threads - 1) / threads;
    double task = (double)(mc * nc) / costs->rate;

    task += costs->pack_a * (double)mc + costs->pack_b * (double)nc;
    return ((double)waves + (threads > 1 ? 0.1 : 0)) * task;
}

/* Rows of a block at most, for this many columns. */
LS_INLINE int64_t gemm_cut_most(const gemm_cut *cut, const gemm_costs *costs, int64_t M, int64_t nc)
{
    int64_t all = ls_round_up(M, costs->rows), near = costs->near - nc * costs->b_floats;
    int64_t each = (ls_min_i64(near, costs->room / cut->levels) - SUMS_EXTRA) / (nc + 1);

    return cut->stored ? ls_max_i64(costs->rows, ls_min_i64(all, each / costs->rows * costs->rows))
                       : all;
}

static void gemm_cut_choose(gemm_cut *cut, const ls_gemm *g, const gemm_costs *costs, int threads)
{
    int64_t least = (g->N + costs->nc_most - 1) / costs->nc_most;
    double best = 0;

    *cut = (gemm_cut){.leaf_k = g->K / g->leaves};
    cut->stored = g->leaves > 1 || g->K > LS_GEMM_KC || g->a_sums || g->b_sums;
    cut->levels = ls_leaves_depth(g->leaves) - (g->leaves > 1 && cut->leaf_k <= LS_GEMM_KC);
    for (int64_t nb = least; nb <= least + 4 * threads; nb++) {
        int64_t nc = ls_round_up((g->N + nb - 1) / nb, LS_GEMM_NR);
        int64_t most = gemm_cut_most(cut, costs, g->M, nc);
        for (int64_t mb = (g->M + most - 1) / most, i = 0; i < 32; i++, mb++) {
            int64_t mc = ls_round_up((g->M + mb - 1) / mb, costs->rows);
            double cost = gemm_cut_cost(g, costs, mc, nc, threads);
            if (cut->mc && cost >= best)
                continue;
            best = cost;
            cut->mc = mc;
            cut->nc = nc;
        }
    }
    cut->m_blocks = (g->M + cut->mc - 1) / cut->mc;
    cut->tasks = cut->m_blocks * ((g->N + cut->nc - 1) / cut->nc);
}

/* --- one block of C ----------------------------------------------------------------------------
 */

/* Which block task `index` is. rows: of a panel of A. */
LS_INLINE void gemm_walk_begin(gemm_walk *w, int64_t index, int64_t rows)
{
    const ls_gemm *g = w->g;
    const gemm_cut *cut = w->cut;

    w->m0 = index % cut->m_blocks * cut->mc;
    w->n0 = index / cut->m_blocks * cut->nc;
    w->m1 = ls_min_i64(g->M, w->m0 + cut->mc);
    w->n1 = ls_min_i64(g->N, w->n0 + cut->nc);
    w->tiles = ls_round_up(w->m1 - w->m0, rows) * ls_round_up(w->n1 - w->n0, LS_GEMM_NR);
    w->floats = w->tiles;
    /* The blocks at one edge of C see each value of the other operand once: they sum it. */
    if ((g->b_sums && w->m0 == 0) || (g->a_sums && w->n0 == 0))
        w->floats += ls_round_up((g->b_sums ? cut->nc : cut->mc) + SUMS_EXTRA, LS_LANES);
}

/* Where a block of K adds to its sums over k; NULL: not wanted, or another block does. */
LS_INLINE float *gemm_walk_sums(const gemm_walk *w, float *c)
{
    return w->floats > w->tiles ? c + w->tiles : NULL;
}

/* All blocks of K of a leaf; add: to what is in c, which a leaf of one block may be. */
static void gemm_walk_leaf(const gemm_walk *w, int64_t leaf, float *c, bool add, bool last)
{
    int64_t K = w->cut->leaf_k, k = 0;

    do {
        int64_t kc = ls_min_i64(LS_GEMM_KC, K - k);
        w->multiply(w, leaf * K + k, kc, c, add || k > 0, last && k + kc == K);
        k += kc;
    } while (k < K);
}

/* Sum the top of the stack into the one below. */
static void gemm_walk_merge(const gemm_walk *w, int top)
{
    float *into = w->c + (top - 1) * w->floats;
    const float *from = into + w->floats;

    for (int64_t i = 0; i < w->floats; i += LS_LANES)
        v_store(into + i, v_add(v_load(into + i), v_load(from + i)));
}

static void gemm_walk_leaves(const gemm_walk *w)
{
    int64_t leaves = w->g->leaves;
    bool one_block = w->cut->leaf_k <= LS_GEMM_KC;
    int top = -1;

    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        int merges = ls_leaves_merges(leaf, leaves, top + 1);
        if (one_block && merges > 0) {
            gemm_walk_leaf(w, leaf, w->c + top * w->floats, true, false);
            merges--;
        } else {
            gemm_walk_leaf(w, leaf, w->c + ++top * w->floats, false, false);
        }
        for (; merges > 0; merges--)
            gemm_walk_merge(w, top--);
    }
    w->finish(w);
}

/* The whole task. */
static void gemm_walk_run(const gemm_walk *w)
{
    const ls_gemm *g = w->g;
    const float *sums = gemm_walk_sums(w, w->c);
    float *to = g->b_sums ? g->b_sums + w->n0 : g->a_sums ? g->a_sums + w->m0 : NULL;
    int64_t n = g->b_sums ? w->n1 - w->n0 : w->m1 - w->m0;

    if (g->leaves == 1)
        gemm_walk_leaf(w, 0, w->c, false, true);
    else
        gemm_walk_leaves(w);
    for (int64_t i = 0; sums && i < n; i++)
        to[i] = g->accumulate ? to[i] + sums[i] : sums[i];
}
