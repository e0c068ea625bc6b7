/* compressed.h -- sums of gradients over links that are slower than the work: what leaves a node is
 * compressed (kernel/codec.h), what stays on it is not.
 *
 * A bucket (mesh.h) of a rank goes these ways, here with two nodes of two ranks and one owner:
 *
 *     a0  a1 | b0  b1       gradients of four ranks
 *      \  /     \  /        inside the node: summed in fp32, each rank gets a range of it (a chunk)
 *       a        b
 *       |   <~~~ b'         each rank to each owner: its chunk of the owner's part; b' is packed
 *     a + b'                the owner adds in fp32: its node first, then the others in rank order
 *       s' ~~~>  s'         spread: the owner packs its sum; all unpack it, the owner too,
 *                           so that every rank has the same bits
 *
 * What packing takes away is the residual: the rank that packed adds it to the same elements in the
 * next step (error feedback). A rank has residuals of what it sends to other nodes, an owner of the
 * sum that it spreads. Inside a node there are none.
 *
 * Residuals are part of the run's state. As a whole they are a vector over all trained elements for
 * each node, and with spread one more, of the owners; these do not depend on ranks or buckets. */
#pragma once
#include "comm/comm.h"
#include "kernel/codec.h"
#include "layout/mesh.h"

LS_C_BEGIN

typedef struct ls_compressed ls_compressed;

typedef struct ls_compressed_args {
    ls_comm *comm; /* borrowed until close */
    ls_mesh mesh;  /* with places; these are borrowed until close */
    ls_codec how;
    int64_t trained;
    bool spread; /* sums go to all ranks; otherwise each owner has its part */
} ls_compressed_args;

/* Bytes that opening takes, of the arguments without a communicator too; how many vectors the
 * residuals are. */
int64_t ls_compressed_bytes(const ls_compressed_args *args);
int ls_compressed_vectors(const ls_compressed_args *args);

/* By all ranks, which meet for it where a node has several. */
ls_status ls_compressed_open(ls_compressed **compressed_out, const ls_compressed_args *args,
                             int64_t deadline_ns);
void ls_compressed_close(ls_compressed *compressed); /* NULL is allowed */

/* A bucket of the gradient is complete: send it on its way; does not wait. All ranks start the same
 * buckets in the same order, each once. The gradient (all trained elements) belongs to the exchange
 * until ls_compressed_end(), which waits for all of it. LS_EDATA: what came is damaged. */
ls_status ls_compressed_start(ls_compressed *compressed, int bucket, float *gradient);
ls_status ls_compressed_end(ls_compressed *compressed, float *gradient, int64_t deadline_ns);

/* Residuals, to and from rank 0's `feedback` (vectors x trained elements; NULL elsewhere). By all
 * ranks, between steps. */
ls_status ls_compressed_collect(ls_compressed *compressed, float *feedback, int64_t deadline_ns);
ls_status ls_compressed_scatter(ls_compressed *compressed, const float *feedback,
                                int64_t deadline_ns);

/* Before dealing residuals of another mesh: elements that a node would have for itself go to the next
 * node, so that the sum over all vectors stays. Leaves residuals of this mesh as they are. */
void ls_compressed_settle(const ls_compressed_args *args, float *feedback);

LS_C_END
