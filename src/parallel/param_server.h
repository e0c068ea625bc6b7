/* param_server.h -- weights that live at servers (sync: ps; the parameter server, Li et al., OSDI 2014).
 *
 * Every rank is a worker; the first mesh.servers of them also serve: each keeps a part of the
 * weights and whatever the optimizer needs for it, and has a thread that answers the workers. So
 * no worker waits for another one's computation, unless it ran too far ahead of it.
 *
 *   touch   which rows of the table (an embedding that only its tokens read) the worker's batch has
 *   pull    weights from all servers, of the table only the rows that were touched, or everything.
 *           A server answers a pull for step s when every worker has pushed s - staleness steps
 *   push    the gradient to all servers, of the table only the rows that were touched
 *
 * With staleness 0 a server adds up the pushes of a step, in the order of ranks, makes one update
 * when it has all of them, and sends the result to all: the same bits in every run with as many
 * ranks. Otherwise each push is an update of its own, in the order of arrival.
 *
 * What an update does is the caller's (ls_param_server_args.update), in the thread of the server. A rank that
 * died breaks the communicator, and every call says so; one that is alive and does not push is
 * named by the server that has waited for it for too long. */
#pragma once
#include "comm/comm.h"
#include "layout/mesh.h"

LS_C_BEGIN

typedef struct ls_param_server ls_param_server;

/* An update of the own part of the weights. */
typedef struct ls_param_server_update {
    int64_t step;      /* of the worker that pushed, from 0 */
    int worker;        /* that pushed; -1: all of them, and the gradient is their sum */
    double share;      /* of the step's targets that the gradient comes from */
    double scale;      /* that the gradient is to be multiplied by; 1 of all workers */
    const float *grad; /* of the part, without a gap */
    float *w;
} ls_param_server_update;

typedef struct ls_param_server_result {
    double loss; /* sum of all workers' */
    double norm; /* of the sum of gradients, as ls_param_server_args.update found it */
    bool finite; /* false: no update was made */
    bool blamed; /* because a worker had said so */
} ls_param_server_result;

/* Fills norm and finite. */
typedef ls_status (*ls_param_server_updating)(void *context, const ls_param_server_update *update,
                                              ls_param_server_result *result_out);

typedef struct ls_param_server_args {
    ls_comm *comm;     /* borrowed while opening */
    ls_mesh mesh;      /* with servers, without buckets */
    int64_t count;     /* weights */
    int64_t staleness; /* steps that a worker may be ahead of another; -1: any */
    struct {
        int64_t first, rows, width; /* elements first .. first + rows * width - 1; 0 rows: none */
    } table;
    int64_t wait_s; /* a worker that does not push for this long ends the run */
    ls_param_server_updating update;
    void *context;
} ls_param_server_args;

/* Bytes that opening takes; of the arguments without a communicator too. */
int64_t ls_param_server_bytes(const ls_param_server_args *args);

/* By all ranks of the communicator. */
ls_status ls_param_server_open(ls_param_server **ps_out, const ls_param_server_args *args);
void ls_param_server_close(
    ls_param_server
        *ps); /* NULL is allowed; breaks the run where ls_param_server_end() was not called */

/* The weights of the own part (ls_mesh_part_of), to be filled before the server starts. */
float *ls_param_server_own(const ls_param_server *ps);

/* All workers have made `steps` steps. The server's thread begins to answer. */
ls_status ls_param_server_start(ls_param_server *ps, int64_t steps);

/* The ids are rows of the table; they hold for the pulls and the push that follow. */
void ls_param_server_touch(ls_param_server *ps, const int32_t *ids, int64_t n);

/* What step `step` needs into w, the whole array of weights; all: everything, when every worker has
 * pushed all steps before it. */
ls_status ls_param_server_pull(ls_param_server *ps, int64_t step, bool all, float *w);

typedef struct ls_param_server_push {
    int64_t step;
    const float *grad; /* the whole */
    double loss;
    double share,
        scale; /* as in ls_param_server_update; of one among all workers scale is not used */
    bool bad;  /* it is not finite: it counts as a step, and changes nothing */
} ls_param_server_push;

/* Until the servers have it; with staleness 0 until the update of the step is made, whose result
 * is that of all workers. Otherwise result_out is left alone. */
ls_status ls_param_server_push_step(ls_param_server *ps, const ls_param_server_push *push,
                                    ls_param_server_result *result_out);

/* Between the two no update is made here: a caller may read what updates change. */
void ls_param_server_hold(ls_param_server *ps);
void ls_param_server_release(ls_param_server *ps);

/* This worker asks for nothing more; its server goes on until no worker does. */
ls_status ls_param_server_end(ls_param_server *ps);

/* For update(): numbers of all servers, summed; by all of their threads. fp32 or fp64. */
ls_status ls_param_server_numbers(ls_param_server *ps, ls_dtype type, void *numbers, int64_t n);

/* What this rank has sent to others so far, as a worker and as a server, and the most steps that a
 * worker was ahead of another when this server answered it. */
typedef struct ls_param_server_counts {
    int64_t pushes, push_bytes; /* as a worker */
    int64_t pulls, pull_bytes;
    int64_t answer_bytes; /* as a server */
    int64_t ahead;
} ls_param_server_counts;
ls_param_server_counts ls_param_server_counted(ls_param_server *ps);

LS_C_END
