/* param_server_impl.h -- what param_server.c (workers, opening) and param_server_thread.c (servers) share.
 *
 * A request is a head and up to three more messages, each from where its elements lie:
 *
 *     push     head | dense elements | ids of rows, their elements      answer: ack, with staleness 0
 *     pull     head | ids of rows                                       answer: dense, elements of rows
 *     end      head
 *
 * Of a part of the weights the elements before and behind the table are dense; the table's rows are sent
 * by id. A part may begin or end in the middle of a row: then two servers have a piece of it each. */
#pragma once
#include <pthread.h>
#include "base/time.h"
#include "layout/range.h"
#include "parallel/param_server.h"

LS_C_BEGIN

typedef enum ls_param_server_kind {
    LS_PARAM_SERVER_PUSH = 1,
    LS_PARAM_SERVER_PULL,
    LS_PARAM_SERVER_PULL_ALL,
    LS_PARAM_SERVER_END
} ls_param_server_kind;

/* What goes before every request of a worker; one message of this size. */
typedef struct ls_param_server_head {
    int32_t kind;
    int32_t ids;   /* rows of the table that this server has something of */
    int64_t words; /* behind the dense elements: of the ids, and in a push the elements of them */
    int64_t step;
    double loss, share, scale;
    int32_t bad;
    int32_t unused[3];
} ls_param_server_head;

/* The answer to a push, where one comes. */
typedef struct ls_param_server_ack {
    double loss, norm;
    int32_t finite, blamed;
} ls_param_server_ack;

/* What a request has of a server's part: two runs of dense elements, before and behind the table,
 * and its rows, which end at the borders of the part. */
typedef struct ls_param_server_layout {
    ls_range part, dense[2];
    const int32_t *ids; /* those that the part has something of, in order */
    int64_t n;
    int64_t elements; /* of their rows, as far as they lie in the part */
} ls_param_server_layout;

/* What a worker is to this rank's server. */
typedef enum ls_param_server_state {
    LS_PARAM_SERVER_LISTENING,
    LS_PARAM_SERVER_REQUESTED,
    LS_PARAM_SERVER_ENDED
} ls_param_server_state;

typedef struct ls_param_server_worker {
    ls_param_server_state state;
    ls_param_server_head head; /* LISTENING: where it is received; HEARD: what is asked for */
    ls_comm_request request;
    int64_t pushed;       /* steps */
    int64_t requested_ns; /* when the request that waits had come */
} ls_param_server_worker;

/* A request of this rank's own worker: nothing is sent. Guarded by ls_param_server.lock. */
typedef struct ls_param_server_own_request {
    bool asked, done;
    ls_param_server_head head;
    const int32_t *ids;
    const float *grad;
    float *w;
    ls_param_server_ack ack;
} ls_param_server_own_request;

struct ls_param_server {
    ls_param_server_args args;
    int rank;
    /* Requests go one way over one communicator, answers the other way over the other: each pair of
     * ranks then has one sender and one receiver in each direction. */
    ls_comm *up, *down; /* owned, as all of these */
    ls_comm *servers;   /* NULL: this rank does not serve */

    /* the worker */
    unsigned char *touched; /* by row */
    int32_t *ids;
    int64_t n_ids;
    int32_t *rows; /* on their way: ids and elements of one request to a window of servers */
    ls_param_server_head *heads;
    ls_param_server_ack *acks;
    ls_comm_request *waiting;      /* for acknowledgements */
    ls_param_server_counts counts; /* answer_bytes and ahead: under lock */

    /* the server */
    ls_range part;
    float *w, *sum, *in;
    int32_t *in_rows; /* of one request, or its answer */
    ls_param_server_worker *workers;
    int turn;         /* staleness 0: whose push is next, */
    int64_t begun_ns; /* and when the first of the step was added */
    ls_param_server_result result;
    pthread_t thread;
    bool started, joined;

    pthread_mutex_t lock;
    pthread_mutex_t held;   /* while an update is made */
    pthread_cond_t changed; /* the own request, or the thread, has changed */
    bool has_lock;
    ls_param_server_own_request own;
    bool closing;
    bool failed;       /* the server's thread has ended, */
    ls_err_record why; /* for this reason */
};

static inline ls_range ls_param_server_part(const ls_param_server_args *args, int server)
{
    ls_mesh_part p = ls_mesh_part_of(&args->mesh, args->count, 0, server);

    return (ls_range){p.first, p.count};
}

/* Of a request with these ids (rows in rising order; NULL: all of the part is dense). */
ls_param_server_layout ls_param_server_lay_out(const ls_param_server_args *args, ls_range part,
                                               const int32_t *ids, int64_t n);

/* The elements of row `id` that lie in a part. */
ls_range ls_param_server_row(const ls_param_server_args *args, ls_range part, int32_t id);

/* The thread's function. */
void *ls_param_server_serve(void *ps);

LS_C_END
