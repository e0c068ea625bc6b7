/* local_sgd.h -- workers that train by themselves and exchange weights now and then (sync: local; DiLoCo,
 * arXiv:2311.08105).
 *
 * Every worker has the last common weights, and its own. Now and then:
 *
 *   begin   common - own, packed (kernel/codec.h), starts on its way to the owners of its parts
 *   poll    moves that on without waiting: an owner that has received all differences makes their
 *           mean, weighted by tokens, packs it again and sends it to all workers
 *   end     waits for the means. All workers unpack the same bytes and take them as the gradient of an
 *           outer step with Nesterov momentum, so that the common weights have the same bits
 *           everywhere. The own weights become these, and keep what they learned since begin.
 *
 * Between begin and end the worker may train on; it makes no other call here than poll. All workers
 * begin and end equally often; a communicator of its own keeps the order of other calls free. */
#pragma once
#include "base/pool.h"
#include "comm/comm.h"
#include "kernel/codec.h"

LS_C_BEGIN

typedef struct ls_local_sgd ls_local_sgd;

typedef struct ls_local_sgd_args {
    ls_comm *comm; /* borrowed while opening */
    ls_pool *pool; /* borrowed until close */
    int ranks;
    int64_t count; /* weights */
    ls_codec codec;
    double lr, momentum; /* of the outer step */
    bool delayed;        /* the rank may change its weights between begin and end */
} ls_local_sgd_args;

/* Bytes that opening takes; of the arguments without a communicator and a pool too. */
int64_t ls_local_sgd_bytes(const ls_local_sgd_args *args);

/* Bytes that a rank sends to others from begin to end. */
int64_t ls_local_sgd_sends(const ls_local_sgd_args *args);

/* By all ranks of the communicator. The common weights and the momentum are zero. */
ls_status ls_local_sgd_open(ls_local_sgd **local_out, const ls_local_sgd_args *args);
void ls_local_sgd_close(ls_local_sgd *local); /* NULL is allowed */

/* `count` elements each. Common weights and momentum are written from outside when a run begins or goes
 * on, on all ranks alike. */
typedef struct ls_local_sgd_arrays {
    float *common, *momentum; /* the last common weights; of the outer step */
    float *spare;             /* with `delayed`: free between end and begin; else NULL */
} ls_local_sgd_arrays;
ls_local_sgd_arrays ls_local_sgd_arrays_of(const ls_local_sgd *local);

/* own: this rank's weights. tokens: what they have learned from since the last exchange. */
ls_status ls_local_sgd_begin(ls_local_sgd *local, const float *own, double tokens);
ls_status ls_local_sgd_poll(ls_local_sgd *local); /* also before begin: a dead worker is noticed */
ls_status ls_local_sgd_end(ls_local_sgd *local, float *own);
bool ls_local_sgd_begun(const ls_local_sgd *local);

LS_C_END
