/* tree2.c -- two binary trees at once, in which no rank is an inner node twice: chunks alternate
 * between them, so every link is used both ways, in log2(n) steps.
 *
 *     n = 8                first tree             second tree: rank r at place n-1-r
 *
 *                    0                                  7
 *                    |                                  |
 *                    4                                  3
 *                 /     \                            /     \
 *                2       6                          5       1
 *               / \     / \                        / \     / \
 *              1   3   5   7                      6   4   2   0
 *
 * The place of a rank is its number; odd places are leaves. The parent of place v is v with its
 * lowest bit cleared and the next one set, or only cleared where that is beyond n. Even n: the
 * second tree is the first one mirrored, odd n: turned by one, so that leaves and inner ranks
 * change roles.
 *
 * Worked example, n = 3, two chunks x and y: x goes 1 -> 2 -> 0 up the first tree (place = rank:
 * 2's parent is 0, 1's parent is 2) and back down. y has rank r at place r - 1: 2 -> 0 -> 1 up, and
 * down. Rank 1 is a leaf for x and the root for y.
 *
 * A sum is added hop by hop on the way up: own value, left child, right child. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

typedef struct node {
    int parent, child[2]; /* ranks, -1: none */
} node;

static int rank_at(int n, int tree, int place)
{
    if (tree == 0 || place < 0)
        return place;
    return n % 2 == 0 ? n - 1 - place : (place + 1) % n;
}

static int place_of(int n, int tree, int rank)
{
    if (tree == 0)
        return rank;
    return n % 2 == 0 ? n - 1 - rank : (rank + n - 1) % n;
}

/* The nearest place at v + bit, v + bit/2, ... that exists, or -1. */
static int right_child(int v, int bit, int n)
{
    while (bit && v + bit >= n)
        bit /= 2;
    return bit ? v + bit : -1;
}

/* Parent and children of a rank in one of the two trees. */
static node node_of(int n, int rank, int tree)
{
    int v = place_of(n, tree, rank), low = v & -v;
    node t = {-1, {-1, -1}};

    if (v == 0) {
        int top = ls_algo_power(n);
        t.child[0] = top < n ? top : top / 2;
    } else {
        int up = (v ^ low) | (low << 1);
        t.parent = up < n ? up : v ^ low;
        t.child[0] = low > 1 ? v - low / 2 : -1;
        t.child[1] = right_child(v, low / 2, n);
    }
    t.parent = rank_at(n, tree, t.parent);
    for (int i = 0; i < 2; i++)
        t.child[i] = rank_at(n, tree, t.child[i]);
    return t;
}

int ls_algo_tree2_sends(int ranks, int rank, int tree)
{
    node t = node_of(ranks, rank, tree);

    return (t.parent >= 0) + (t.child[0] >= 0) + (t.child[1] >= 0);
}

/* One chunk up its tree (reduce) and back down (broadcast). */
static void draft_piece(ls_algo_draft *d, const node *t, ls_algo_range c)
{
    ls_algo_place held = ls_algo_in(d, c.first), out = ls_algo_at(LS_SCHED_OUT, c.first);
    int32_t ready = -1;

    for (int i = 0; i < 2; i++)
        if (t->child[i] >= 0) {
            ready = ls_algo_recv_add(d, t->child[i], out, held, c.len, ready);
            held = out;
        }
    if (t->parent < 0) {
        ls_algo_last(d, ready);
    } else {
        ready = ls_algo_send(d, t->parent, held, c.len, ready);
        ready = ls_algo_recv(d, t->parent, out, c.len, ready);
    }
    for (int i = 0; i < 2; i++)
        if (t->child[i] >= 0)
            ls_algo_send(d, t->child[i], out, c.len, ready);
}

/* At least two pieces, or one tree would stand idle. */
static void draft_tree2(ls_algo_draft *d)
{
    int64_t count = d->args->count, half = ls_round_up((count + 1) / 2, 16);
    int64_t chunk = d->args->chunk > 0 ? ls_min_i64(d->args->chunk, half) : half;
    node tree[2] = {node_of(d->args->ranks, d->args->rank, 0),
                    node_of(d->args->ranks, d->args->rank, 1)};

    for (int64_t i = 0; i * chunk < count; i++)
        draft_piece(d, &tree[i % 2],
                    (ls_algo_range){i * chunk, ls_min_i64(chunk, count - i * chunk)});
}

const ls_algo ls_algo_tree2 = {
    .name = "tree2",
    .what = "two binary trees, chunks alternate; log2(n) steps, all links both ways",
    .cuts = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_tree2},
    .time_ns = ls_cost_time_tree2,
    .sent = ls_cost_sent_tree2,
};
