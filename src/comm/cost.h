/* cost.h -- how long a collective takes: the alpha-beta model, as pure functions.
 *
 * The model: a rank has one port out and one port in, which work at the same time. A message of m
 * bytes keeps the sender's port out and the receiver's port in busy for
 *
 *     P(m) = message_ns + m * ns_per_byte
 *
 * and has arrived alpha_ns later: L(m) = alpha_ns + P(m). Adding m arrived bytes to m bytes in
 * memory takes C(m) = m * combine_ns_per_byte of the receiver, beside its ports. Copies inside a
 * rank are left out. tests/comm/test_cost.c runs the schedules themselves under the same rules and
 * compares.
 *
 * Worked example, ring all-reduce of 64 MiB fp32 among 4 hosts at 1 Gbit/s (8.5 ns per byte with
 * headers, alpha 30 us, message 2 us), in chunks of 256 KiB: ranges of 16 MiB, 64 chunks each; P =
 * 2 us + 262144 * 8.5 ns = 2.23 ms, 6 steps of 64 P = 856 ms; bytes on the wire for each rank: 2 *
 * 3/4 * 64 MiB = 96 MiB. */
#pragma once
#include "comm/algo/algo.h"

LS_C_BEGIN

typedef struct ls_cost_link {
    double alpha_ns;    /* until the first byte is there, when nothing is in the way */
    double message_ns;  /* of a port for each message, whatever its length */
    double ns_per_byte; /* of a port; 1 / bandwidth in one direction */
} ls_cost_link;

struct ls_cost_query {
    ls_coll_kind kind;
    int ranks;
    int rank, peer; /* for bytes sent: whose, and the root */
    int64_t count;  /* elements, as in ls_coll */
    int64_t chunk;  /* elements, as in ls_sched_args */
    int64_t size;   /* bytes of an element */
    ls_cost_link link;
    double combine_ns_per_byte;
    const int64_t *in_counts; /* all_to_all, uneven: for bytes sent only */
    bool has_around;          /* a choice: the link of algorithms in which each rank sends to the */
    ls_cost_link around;      /* next one only: the slowest of that circle; else as all others */
    bool in_place;            /* for memory: in is out */
};

/* Predicted time from the moment when all ranks have arrived until the last one is done. */
double ls_cost_time(const ls_algo *algo, const ls_cost_query *query);

/* Bytes that query->rank sends; exact. */
int64_t ls_cost_sent(const ls_algo *algo, const ls_cost_query *query);

/* --- choice ----------------------------------------------------------------------------------- */

enum { LS_COST_CANDIDATES = 16 };

typedef struct ls_cost_candidate {
    const ls_algo *algo;
    const char *refuses; /* why it cannot be taken, or NULL; then: */
    int64_t chunk;       /* its best one, elements; 0: not cut */
    double time_ns;
    int64_t sent; /* bytes of rank 0 */
} ls_cost_candidate;

typedef struct ls_cost_choice {
    ls_cost_candidate rows[LS_COST_CANDIDATES]; /* in the order of ls_algos */
    int count;
    int best; /* of rows; -1: none can do it */
} ls_cost_choice;

/* All algorithms for a collective; query->kind, count and size are taken from it. `once`: sums must
 * be made in rank order. */
void ls_cost_choose(const ls_cost_query *query, const ls_coll *coll, bool once,
                    ls_cost_choice *choice_out);

/* --- memory -------------------------------------------------------------------------------------
 * Ranks of one node that reach each other's buffers (node/shm_coll.h) send no messages. They meet:
 * each says how far it is and waits until all others have said so; in between each reads and writes
 * memory, all of them at once. Buffers lie in the memory of the node. */

typedef struct ls_cost_memory {
    double meet_ns;            /* of one meeting, with as many ranks as the node has */
    double cached_ns_per_byte; /* that a rank reads or writes, of buffers up to LS_COST_CACHED */
    double ns_per_byte;        /* of buffers from LS_COST_UNCACHED on; in between, in between */
    bool crowded;              /* more ranks than CPUs: meetings are avoided for longer */
} ls_cost_memory;

enum { LS_COST_CACHED = 64 << 10, LS_COST_UNCACHED = 8 << 20 };

/* What query->rank does, exactly. */
typedef struct ls_cost_moves {
    int64_t meets, read, written; /* the last two in bytes */
} ls_cost_moves;

/* Tables of counts are not looked at. */
void ls_cost_memory_moves(const ls_cost_memory *memory, const ls_cost_query *query,
                          ls_cost_moves *moves_out);

/* Until the last rank is done: query->rank does not count. */
double ls_cost_memory_time(const ls_cost_memory *memory, const ls_cost_query *query);

/* --- nodes ------------------------------------------------------------------------------------ */

typedef struct ls_cost_nodes {
    int nodes, per_node;
    ls_cost_memory memory; /* of a node */
    ls_cost_link between;  /* of two nodes; ns_per_byte is that of a node's wire, which all its
                              ranks share */
    ls_cost_link around;   /* the slowest link from each node to the next one */
    double combine_ns_per_byte;
} ls_cost_nodes;

/* All-reduce in three parts: reduce-scatter inside the node, all-reduce between the ranks of the
 * same place of all nodes, all-gather inside; a large buffer in pieces, one of which is between
 * nodes while others are inside. Flat: one schedule over all ranks. */
typedef struct ls_cost_levels {
    int pieces;
    double scatter_ns, between_ns, gather_ns; /* of one piece */
    double time_ns;
    double flat_ns;
    int64_t wire;           /* bytes that leave the first node: about 2 (N - 1) / N of the buffer */
    ls_cost_choice between; /* what was chosen between the nodes */
} ls_cost_levels;

enum { LS_COST_PIECES = 8 };

/* How many pieces a buffer goes in. */
int ls_cost_pieces(int64_t bytes);

void ls_cost_hierarchy(const ls_cost_nodes *nodes, const ls_coll *coll, bool once,
                       ls_cost_levels *levels_out);

/* Links and ranks of a query that looks at schedules over all ranks of all nodes, or (across)
 * between the ranks of one place of each node. */
void ls_cost_over_nodes(const ls_cost_nodes *nodes, bool across, ls_cost_query *query);

LS_C_END
