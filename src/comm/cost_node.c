/* cost_node.c -- the model of cost.h for ranks of one node that reach each other's memory, and for
 * nodes of several ranks.
 *
 * Memory. n ranks, B bytes of the buffer, b of a rank's own range. What a rank does is what
 * node/shm_coll_move.c does with buffers in the memory of the node:
 *
 *                            meets   reads               writes
 *   all_reduce, short          1     B + n B             B + B        copy into the slot, add all
 *   all_reduce                 2     n b                 n b          own range, for all ranks
 *   reduce_scatter             2     n b                 b
 *   all_gather                 2     B - b               B - b        in place; else also its own b
 *   broadcast                  2     B                   B            all but the root
 *   all_to_all (B for each)    2     n B                 n B
 *   gather (B from each)       2     n B                 n B          the root
 *   barrier                    1     0                   0
 *
 * What a rank gives is copied into its slot when it fits: its bytes once more, but one meeting less
 * when that is so for all. The time is meets * meet_ns + (read + written) * ns_per_byte of the rank
 * that does most. Example, all_reduce of 1 MiB between 2 ranks, 0.1 ns a byte, 200 ns a meeting:
 * 2 x 512 KiB read, as much written, 2 MiB: 210 us + 0.4 us.
 *
 * Nodes. With N nodes of g ranks each rank owns B / g after the first part; the g all-reduces
 * between nodes run side by side and share the wire, so each sees g times its ns_per_byte. Example:
 * 2 nodes of 2 ranks at 1 Gbit/s, 16 MiB: inside nearly nothing, between 2 x 1/2 x 8 MiB for each
 * rank at 17 ns a byte = 143 ms: 16 MiB leave each node. A flat ring of 4 sends 24 MiB over every
 * link. p pieces that take S to scatter, W between nodes and G to gather, where one core scatters
 * and gathers, take S + W + G + (p - 1) max(W, S + G). */
#include "comm/cost.h"

#include "comm/node/shm_coll_impl.h"

enum { PIECE_BYTES = 4 << 20 };

/* --- memory ----------------------------------------------------------------------------------- */

static void copy(ls_cost_moves *m, int64_t bytes)
{
    m->read += bytes;
    m->written += bytes;
}

/* What a rank gives goes into its slot, if that holds it. */
static void give(ls_cost_moves *m, int64_t bytes)
{
    if (bytes <= LS_SHM_SEGMENT_SMALL_BYTES)
        copy(m, bytes);
}

static int64_t meets_for(int64_t longest)
{
    return longest > LS_SHM_SEGMENT_SMALL_BYTES ? 2 : 1;
}

static void all_reduce(const ls_cost_memory *memory, const ls_cost_query *q, ls_cost_moves *m)
{
    int64_t bytes = q->count * q->size,
            own = ls_coll_range_len(q->count, q->ranks, q->rank) * q->size;
    bool small =
        bytes <= (memory->crowded ? LS_SHM_COLL_SHORT_CROWDED_BYTES : LS_SHM_COLL_SHORT_BYTES);

    m->meets = small ? 1 : 2;
    if (small)
        copy(m, bytes);
    m->read += q->ranks * (small ? bytes : own);
    m->written += small ? bytes : q->ranks * own;
}

/* In place all ranks write where others still have to read: the data goes over a stage, in
 * windows. */
static void all_to_all(const ls_cost_query *q, ls_cost_moves *m)
{
    int64_t piece = q->count * q->size, all = q->ranks * piece;
    int64_t window = LS_SHM_COLL_STAGE_BYTES / q->size / q->ranks;

    m->meets = meets_for(all);
    give(m, all);
    if (q->in_place && m->meets > 1) {
        m->meets = 2 * ls_max_i64(1, (q->count + window - 1) / window);
        copy(m, all);
    }
    copy(m, q->in_place ? all - piece : all);
}

void ls_cost_memory_moves(const ls_cost_memory *memory, const ls_cost_query *q,
                          ls_cost_moves *moves_out)
{
    int64_t bytes = q->count * q->size,
            own = ls_coll_range_len(q->count, q->ranks, q->rank) * q->size;
    bool root = q->rank == q->peer;
    ls_cost_moves m = {.meets = 1};

    switch (q->kind) {
    case LS_COLL_ALL_REDUCE:
        all_reduce(memory, q, &m);
        break;
    case LS_COLL_REDUCE_SCATTER:
        m.meets = meets_for(bytes);
        give(&m, bytes);
        m.read += q->ranks * own;
        m.written += own;
        break;
    case LS_COLL_ALL_GATHER:
        m.meets = meets_for(ls_coll_range_len(q->count, q->ranks, 0) * q->size);
        give(&m, own);
        copy(&m, q->in_place ? bytes - own : bytes);
        break;
    case LS_COLL_BROADCAST:
        m.meets = meets_for(bytes);
        if (root)
            give(&m, bytes);
        copy(&m, root && q->in_place ? 0 : bytes);
        break;
    case LS_COLL_GATHER:
        m.meets = meets_for(bytes);
        if (root)
            copy(&m, (q->ranks - q->in_place) * bytes);
        else
            give(&m, bytes);
        break;
    case LS_COLL_ALL_TO_ALL:
        all_to_all(q, &m);
        break;
    default:
        break;
    }
    *moves_out = m;
}

/* ns per byte for a buffer of this length, by the number of doublings. Not by a logarithm: its last
 * bit may differ between machines, and all ranks must predict the same. */
static double pace(const ls_cost_memory *memory, double bytes)
{
    double at = LS_COST_CACHED, doublings = 0, all = 0;

    for (double b = LS_COST_CACHED; b < LS_COST_UNCACHED; b *= 2)
        all++;
    while (doublings < all && bytes >= 2 * at) {
        at *= 2;
        doublings++;
    }
    if (doublings < all && bytes > at)
        doublings += (bytes - at) / at;
    return memory->cached_ns_per_byte +
           doublings / all * (memory->ns_per_byte - memory->cached_ns_per_byte);
}

/* The slowest of three ranks that can differ: rank 0 (the longest range), the root, and any other
 * one. */
double ls_cost_memory_time(const ls_cost_memory *memory, const ls_cost_query *query)
{
    ls_cost_query q = *query;
    bool parts = q.kind == LS_COLL_ALL_TO_ALL || q.kind == LS_COLL_GATHER;
    double bytes = (double)(q.count * q.size * (parts ? q.ranks : 1)), most = 0;
    const int ranks[] = {0, q.peer, q.peer ? 0 : 1}; /* the longest range, the root, another one */

    if (q.ranks == 1)
        return 0;
    for (int i = 0; i < 3; i++) {
        ls_cost_moves m;
        q.rank = ranks[i];
        ls_cost_memory_moves(memory, &q, &m);
        double t = (double)m.meets * memory->meet_ns;
        t += bytes > 0 ? (double)(m.read + m.written) * pace(memory, bytes) : 0;
        most = t > most ? t : most;
    }
    return most;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static double chosen(const ls_cost_choice *choice)
{
    return choice->best >= 0 ? choice->rows[choice->best].time_ns : 0;
}

int ls_cost_pieces(int64_t bytes)
{
    return (int)ls_max_i64(1, ls_min_i64(LS_COST_PIECES, bytes / PIECE_BYTES));
}

/* In a circle of all ranks one rank of a node sends to the next node. Otherwise all g of its ranks
 * send to others at once, of which n - g of n - 1 are elsewhere. */
void ls_cost_over_nodes(const ls_cost_nodes *nodes, bool across, ls_cost_query *query)
{
    int g = nodes->per_node, n = nodes->nodes * g;

    query->ranks = across ? nodes->nodes : n;
    query->link = nodes->between;
    query->around = nodes->around;
    query->has_around = true;
    query->combine_ns_per_byte = nodes->combine_ns_per_byte;
    if (across)
        query->around.ns_per_byte *= g;
    query->link.ns_per_byte *= across ? g : n > 1 ? (double)(g * (n - g)) / (n - 1) : 1;
}

/* What the ranks of the first node send to others. */
static int64_t leaves_node(const ls_cost_nodes *nodes, const ls_coll *coll, bool once, int pieces)
{
    ls_coll part = *coll;
    int64_t sum = 0;

    for (int i = 0; i < pieces; i++)
        for (int place = 0; place < nodes->per_node; place++) {
            ls_cost_query q = {.kind = coll->kind, .size = ls_dtype_bytes(coll->type)};
            ls_cost_choice choice;
            part.count = ls_coll_range_len(ls_coll_range_len(coll->count, pieces, i),
                                           nodes->per_node, place);
            ls_cost_over_nodes(nodes, true, &q);
            ls_cost_choose(&q, &part, once, &choice);
            if (choice.best >= 0)
                sum += choice.rows[choice.best].sent;
        }
    return sum;
}

void ls_cost_hierarchy(const ls_cost_nodes *nodes, const ls_coll *coll, bool once,
                       ls_cost_levels *levels_out)
{
    int64_t size = ls_dtype_bytes(coll->type);
    ls_cost_levels l = {.pieces = ls_cost_pieces(coll->count * size)};
    int64_t piece = ls_coll_range_len(coll->count, l.pieces, 0);
    ls_cost_query q = {.kind = LS_COLL_REDUCE_SCATTER,
                       .ranks = nodes->per_node,
                       .count = piece,
                       .size = size,
                       .in_place = coll->in == coll->out};
    ls_cost_choice flat;
    ls_coll part = *coll;

    l.scatter_ns = ls_cost_memory_time(&nodes->memory, &q);
    q.kind = LS_COLL_ALL_GATHER;
    q.in_place = true;
    l.gather_ns = ls_cost_memory_time(&nodes->memory, &q);
    q = (ls_cost_query){.kind = LS_COLL_ALL_REDUCE, .size = size};
    ls_cost_over_nodes(nodes, false, &q);
    ls_cost_choose(&q, coll, once, &flat);
    ls_cost_over_nodes(nodes, true, &q);
    part.count = ls_coll_range_len(piece, nodes->per_node, 0);
    ls_cost_choose(&q, &part, once, &l.between);
    l.between_ns = chosen(&l.between);
    double inside = l.scatter_ns + l.gather_ns;
    l.time_ns =
        inside + l.between_ns + (l.pieces - 1) * (inside > l.between_ns ? inside : l.between_ns);
    l.flat_ns = chosen(&flat);
    l.wire = leaves_node(nodes, coll, once, l.pieces);
    *levels_out = l;
}
