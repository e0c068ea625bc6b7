/* ps_impl.h -- what ps.c (workers, opening) and ps_server.c (the thread that answers) share. */
#pragma once
#include <pthread.h>
#include "base/time.h"
#include "parallel/ps.h"

LS_C_BEGIN

typedef enum ls_ps_kind { LS_PS_PUSH = 1, LS_PS_PULL, LS_PS_PULL_ALL, LS_PS_END } ls_ps_kind;

/* What goes before every request of a worker; one message of this size. */
typedef struct ls_ps_head {
    int32_t kind;
    int32_t ids;   /* rows of the table that this server has something of */
    int64_t words; /* behind the dense elements: of the ids, and in a push the elements of them */
    int64_t step;
    double loss, share, scale;
    int32_t bad;
    int32_t unused[3];
} ls_ps_head;

/* The answer to a push, where one comes. */
typedef struct ls_ps_ack {
    double loss, norm;
    int32_t finite, blamed;
} ls_ps_ack;

/* Elements first .. end-1 of the weights. */
typedef struct ls_ps_run {
    int64_t first, end;
} ls_ps_run;

/* What a request has of a server's part: two runs of dense elements, before and behind the table,
 * and its rows, which end at the borders of the part. */
typedef struct ls_ps_layout {
    ls_ps_run part, dense[2];
    const int32_t *ids; /* those that the part has something of, in order */
    int64_t n;
    int64_t elements; /* of their rows, as far as they lie in the part */
} ls_ps_layout;

/* What a worker is to this rank's server. */
typedef enum ls_ps_ear { LS_PS_LISTENING, LS_PS_HEARD, LS_PS_GONE } ls_ps_ear;

typedef struct ls_ps_worker {
    ls_ps_ear ear;
    ls_ps_head head; /* LISTENING: where it is received; HEARD: what is asked for */
    ls_comm_request request;
    int64_t pushed;   /* steps */
    int64_t heard_ns; /* when the request that waits had come */
} ls_ps_worker;

/* A request of this rank's own worker: nothing is sent. Guarded by ls_ps.lock. */
typedef struct ls_ps_own_request {
    bool asked, done;
    ls_ps_head head;
    const int32_t *ids;
    const float *grad;
    float *w;
    ls_ps_ack ack;
} ls_ps_own_request;

struct ls_ps {
    ls_ps_args args;
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
    ls_ps_head *heads;
    ls_ps_ack *acks;
    ls_comm_request *waiting; /* for acknowledgements */
    ls_ps_counts counts;      /* answer_bytes and ahead: under lock */

    /* the server */
    ls_ps_run part;
    float *w, *sum, *in;
    int32_t *in_rows; /* of one request, or its answer */
    ls_ps_worker *workers;
    int turn;         /* staleness 0: whose push is next, */
    int64_t begun_ns; /* and when the first of the step was added */
    ls_ps_result result;
    pthread_t thread;
    bool started, joined;

    pthread_mutex_t lock;
    pthread_mutex_t held; /* while an update is made */
    pthread_cond_t word;  /* of the own request: something has changed */
    bool has_lock;
    ls_ps_own_request own;
    bool closing;
    bool failed;       /* the server's thread has ended, */
    ls_err_record why; /* for this reason */
};

static inline int64_t ls_ps_run_count(ls_ps_run run)
{
    return run.end > run.first ? run.end - run.first : 0;
}

static inline ls_ps_run ls_ps_part(const ls_ps_args *args, int server)
{
    ls_mesh_part p = ls_mesh_part_of(&args->mesh, args->count, 0, server);

    return (ls_ps_run){p.first, p.first + p.count};
}

/* Of a request with these ids (rows in rising order; NULL: all of the part is dense). */
ls_ps_layout ls_ps_lay_out(const ls_ps_args *args, ls_ps_run part, const int32_t *ids, int64_t n);

/* The elements of row `id` that lie in a part. */
ls_ps_run ls_ps_row(const ls_ps_args *args, ls_ps_run part, int32_t id);

/* The thread's function. */
void *ls_ps_serve(void *ps);

LS_C_END
