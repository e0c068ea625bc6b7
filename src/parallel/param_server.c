/* param_server.c -- opening, and the worker's side: pulls and pushes. The server's is in
 * param_server_thread.c. Three ranks, two of which serve; rank 1 works on step s:
 *
 *   rank 1                         server 0 (rank 0)          server 1 (its own thread)
 *   touch rows 5 9
 *   pull s: rows 5 9   ------->    all pushed s - K? -->      the same, through memory
 *          <------ [w a | rows 5 9]
 *   forward, backward                                         (answers others meanwhile)
 *   push s: [g a | rows 5 9] -->   sum, update w a            update w b
 *
 * A request is a head and what belongs to it, each a message of its own, so that dense elements go
 * straight from the gradients and into the weights. Requests to some servers at a time are under
 * way, in the same order on all workers. So there is no deadlock: a server waits for a worker to take
 * its answer, that worker waits for a server earlier in the order, and the first server waits for
 * none. */
#include "parallel/param_server_impl.h"

#include "base/mem.h"
#include "parallel/shared_pages.h"
#include "base/pool.h"
#include "parallel/blocking.h"

enum {
    WINDOW = 4,   /* servers that are asked at a time */
    MESSAGES = 4, /* of a request, at most; as many of its answer */
    LATER_S = 60, /* a rank that cannot name the one it waits for waits this much longer */
    OPEN_S = 600
};

_Static_assert(sizeof(ls_param_server_head) == 64, "no gaps, whose bytes would be undefined");

/* Messages of this worker that are under way. */
typedef struct flights {
    ls_comm *comm[2 * WINDOW * MESSAGES];
    ls_comm_request request[2 * WINDOW * MESSAGES];
    int n;
} flights;

/* --- layout ------------------------------------------------------------------------------------
 */

ls_range ls_param_server_row(const ls_param_server_args *args, ls_range part, int32_t id)
{
    int64_t first = args->table.first + id * args->table.width;

    return ls_range_common(part, (ls_range){first, args->table.width});
}

ls_param_server_layout ls_param_server_lay_out(const ls_param_server_args *args, ls_range part,
                                               const int32_t *ids, int64_t n)
{
    int64_t first = args->table.first, end = first + args->table.rows * args->table.width;
    ls_param_server_layout l = {.part = part, .dense = {part, {0, 0}}};

    if (!ids || args->table.rows == 0)
        return l;
    l.dense[0] = ls_range_common(part, (ls_range){0, first});
    l.dense[1] = ls_range_common(part, (ls_range){end, args->count - end});
    for (int64_t i = 0; i < n; i++) {
        int64_t elements = ls_param_server_row(args, part, ids[i]).count;
        if (elements == 0)
            continue;
        l.ids = l.n == 0 ? ids + i : l.ids;
        l.n++;
        l.elements += elements;
    }
    return l;
}

/* --- opening -----------------------------------------------------------------------------------
 */

/* Rows on their way: a border between two servers can cut one. */
static int64_t row_words(const ls_param_server_args *a)
{
    return a->table.rows > 0 ? a->table.rows * (1 + a->table.width) + a->mesh.servers : 0;
}

static int64_t part_bytes(const ls_param_server_args *a)
{
    return ls_param_server_part(a, a->mesh.rank).count * (int64_t)sizeof(float);
}

static bool serves(const ls_param_server_args *a)
{
    return a->mesh.rank < a->mesh.servers;
}

int64_t ls_param_server_bytes(const ls_param_server_args *args)
{
    int64_t rows = ls_shared_pages(row_words(args) * (int64_t)sizeof(int32_t));

    return 2 * ls_comm_bytes() + rows +
           (serves(args) ? ls_comm_bytes() + 3 * ls_shared_pages(part_bytes(args)) + rows : 0);
}

static ls_status take(ls_param_server *x, int64_t bytes, const char *what, void *pointer_out)
{
    void *memory = NULL;
    ls_status st = ls_comm_alloc(x->up, ls_max_i64(1, bytes), what, &memory);

    memcpy(pointer_out, &memory, sizeof memory);
    return st;
}

static ls_status open_comms(ls_param_server *x)
{
    const ls_mesh *mesh = &x->args.mesh;
    int64_t deadline = ls_time_now_ns() + OPEN_S * LS_NS_PER_S;
    ls_status st;

    LS_TRY(st, ls_blocking_sub(x->args.comm, 0, 1, mesh->ranks, deadline, &x->up), out);
    LS_TRY(st, ls_blocking_sub(x->args.comm, 0, 1, mesh->ranks, deadline, &x->down), out);
    st = ls_blocking_sub(x->args.comm, 0, 1, serves(&x->args) ? mesh->servers : 0, deadline,
                         &x->servers);
out:
    return st;
}

static ls_status open_server(ls_param_server *x)
{
    int64_t bytes = part_bytes(&x->args);
    ls_status st;

    LS_TRY(st, take(x, bytes, "weights of a server", &x->w), out);
    LS_TRY(st, take(x, bytes, "gradients at a server", &x->sum), out);
    LS_TRY(st, take(x, bytes, "gradients that come to a server", &x->in), out);
    LS_TRY(st,
           take(x, row_words(&x->args) * (int64_t)sizeof(int32_t), "rows that come to a server",
                &x->in_rows),
           out);
out:
    return st;
}

static void open_lock(ls_param_server *x)
{
    pthread_condattr_t by_clock;

    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->held, NULL);
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&x->changed, &by_clock);
    pthread_condattr_destroy(&by_clock);
}

ls_status ls_param_server_open(ls_param_server **ps_out, const ls_param_server_args *args)
{
    size_t n = (size_t)args->mesh.ranks, rows = (size_t)args->table.rows;
    ls_param_server *x = ls_mem_alloc(sizeof *x);
    ls_status st = LS_OK;

    if (!x)
        return LS_ENOMEM;
    *x = (ls_param_server){.args = *args,
                           .rank = args->mesh.rank,
                           .part = ls_param_server_part(args, args->mesh.rank)};
    open_lock(x);
    x->touched = ls_mem_alloc(rows + 1);
    x->ids = ls_mem_array(rows + 1, sizeof *x->ids);
    x->heads = ls_mem_array(n, sizeof *x->heads);
    x->acks = ls_mem_array(n, sizeof *x->acks);
    x->waiting = ls_mem_array(n, sizeof *x->waiting);
    x->workers = ls_mem_array(n, sizeof *x->workers);
    if (!x->touched || !x->ids || !x->heads || !x->acks || !x->waiting || !x->workers) {
        st = ls_fail(LS_ENOMEM, "no memory for the tables of %d ranks and %lld rows",
                     args->mesh.ranks, (long long)args->table.rows);
        goto out;
    }
    LS_TRY(st, open_comms(x), out);
    LS_TRY(st,
           take(x, row_words(args) * (int64_t)sizeof(int32_t), "rows of an embedding", &x->rows),
           out);
    if (serves(args))
        LS_TRY(st, open_server(x), out);
    *ps_out = x;
out:
    if (st != LS_OK)
        ls_param_server_close(x);
    return st;
}

/* The thread has ended, or is made to: ranks that wait for this server must learn of it. */
static void end_thread(ls_param_server *x)
{
    if (!x->started || x->joined)
        return;
    ls_comm_abort(x->up, "its parameter server has ended");
    pthread_mutex_lock(&x->lock);
    x->closing = true;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
    pthread_join(x->thread, NULL);
    x->joined = true;
}

void ls_param_server_close(ls_param_server *x)
{
    if (!x)
        return;
    end_thread(x);
    if (x->up) {
        ls_comm_free(x->up, x->rows);
        ls_comm_free(x->up, x->w);
        ls_comm_free(x->up, x->sum);
        ls_comm_free(x->up, x->in);
        ls_comm_free(x->up, x->in_rows);
    }
    ls_comm_close(x->servers);
    ls_comm_close(x->down);
    ls_comm_close(x->up);
    pthread_cond_destroy(&x->changed);
    pthread_mutex_destroy(&x->lock);
    pthread_mutex_destroy(&x->held);
    ls_mem_free(x->touched);
    ls_mem_free(x->ids);
    ls_mem_free(x->heads);
    ls_mem_free(x->acks);
    ls_mem_free(x->waiting);
    ls_mem_free(x->workers);
    ls_mem_free(x);
}

float *ls_param_server_own(const ls_param_server *ps)
{
    return ps->w;
}

ls_status ls_param_server_start(ls_param_server *x, int64_t steps)
{
    int e;

    for (int r = 0; r < x->args.mesh.ranks; r++)
        x->workers[r].pushed = steps;
    if (!serves(&x->args))
        return LS_OK;
    e = ls_pool_start_apart(&x->thread, ls_param_server_serve, x);
    if (e != 0)
        return ls_pool_start_failed(e, "start the thread of a parameter server");
    x->started = true;
    return LS_OK;
}

/* --- messages ----------------------------------------------------------------------------------
 */

static int64_t deadline_of(const ls_param_server *x)
{
    return ls_time_now_ns() + (x->args.wait_s + LATER_S) * LS_NS_PER_S;
}

static ls_status add(flights *f, ls_comm *comm, const ls_coll *coll)
{
    ls_status st = LS_OK;

    if (coll->count == 0)
        return LS_OK;
    st = ls_comm_start(comm, coll, &f->request[f->n]);
    if (st == LS_OK)
        f->comm[f->n++] = comm;
    return st;
}

static ls_status land(ls_param_server *x, flights *f)
{
    ls_status st = LS_OK;

    for (int i = 0; i < f->n; i++)
        LS_TRY(st, ls_comm_wait(f->comm[i], f->request[i], deadline_of(x)), out);
    f->n = 0;
out:
    return st;
}

static ls_status send_to(ls_param_server *x, flights *f, int server, ls_dtype type,
                         const void *from, int64_t n)
{
    return add(
        f, x->up,
        &(ls_coll){.kind = LS_COLL_SEND, .type = type, .count = n, .in = from, .peer = server});
}

static ls_status receive_from(ls_param_server *x, flights *f, int server, ls_dtype type, void *to,
                              int64_t n)
{
    return add(
        f, x->down,
        &(ls_coll){.kind = LS_COLL_RECV, .type = type, .count = n, .out = to, .peer = server});
}

/* The own server, if this rank has one, is asked through memory. */
static void ask_own(ls_param_server *x, const ls_param_server_own_request *request)
{
    pthread_mutex_lock(&x->lock);
    x->own = *request;
    x->own.asked = true;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
}

static ls_status wait_own(ls_param_server *x)
{
    ls_status st = LS_OK;

    pthread_mutex_lock(&x->lock);
    while (!x->own.done && !x->failed)
        pthread_cond_wait(&x->changed, &x->lock);
    if (!x->own.done)
        st = ls_err_adopt(&x->why);
    x->own.done = false;
    pthread_mutex_unlock(&x->lock);
    return st;
}

/* --- the worker --------------------------------------------------------------------------------
 */

void ls_param_server_touch(ls_param_server *x, const int32_t *ids, int64_t n)
{
    x->n_ids = 0;
    if (x->args.table.rows == 0)
        return;
    memset(x->touched, 0, (size_t)x->args.table.rows);
    for (int64_t i = 0; i < n; i++) {
        LS_BUG_IF(ids[i] < 0 || ids[i] >= x->args.table.rows, "row %d of %lld", (int)ids[i],
                  (long long)x->args.table.rows);
        x->touched[ids[i]] = 1;
    }
    for (int32_t id = 0; id < x->args.table.rows; id++)
        if (x->touched[id])
            x->ids[x->n_ids++] = id;
}

static ls_param_server_layout layout_of(const ls_param_server *x, int server,
                                        ls_param_server_kind kind)
{
    return ls_param_server_lay_out(&x->args, ls_param_server_part(&x->args, server),
                                   kind == LS_PARAM_SERVER_PULL_ALL ? NULL : x->ids, x->n_ids);
}

/* Ask a server of another rank, and be ready for its answer, whose rows come to `rows`. */
static ls_status ask(ls_param_server *x, flights *f, int server, const ls_param_server_layout *l,
                     int32_t *rows, float *w)
{
    ls_param_server_head *head = &x->heads[server];
    ls_status st = LS_OK;

    for (int i = 0; i < 2; i++)
        LS_TRY(st, receive_from(x, f, server, LS_F32, w + l->dense[i].first, l->dense[i].count),
               out);
    LS_TRY(st, receive_from(x, f, server, LS_I32, rows, l->elements), out);
    LS_TRY(st, send_to(x, f, server, LS_U8, head, sizeof *head), out);
    LS_TRY(st, send_to(x, f, server, LS_I32, l->ids, l->n), out);
    x->counts.pull_bytes += (int64_t)sizeof *head + l->n * (int64_t)sizeof *l->ids;
out:
    return st;
}

/* Rows that have come to where they belong. */
static void unpack(const ls_param_server *x, const ls_param_server_layout *l, const int32_t *rows,
                   float *w)
{
    for (int64_t i = 0; i < l->n; i++) {
        ls_range row = ls_param_server_row(&x->args, l->part, l->ids[i]);
        memcpy(w + row.first, rows, (size_t)row.count * sizeof *w);
        rows += row.count;
    }
}

static ls_status pull_window(ls_param_server *x, int first, int end,
                             const ls_param_server_head *head, float *w)
{
    flights f = {.n = 0};
    int32_t *at[WINDOW], *rows = x->rows;
    ls_param_server_layout layouts[WINDOW];
    ls_status st = LS_OK;

    for (int j = first; j < end; j++) {
        ls_param_server_layout *l = &layouts[j - first];
        *l = layout_of(x, j, (ls_param_server_kind)head->kind);
        x->heads[j] = *head;
        x->heads[j].ids = (int32_t)l->n;
        x->heads[j].words = l->n;
        at[j - first] = rows;
        rows += l->elements;
        if (j == x->rank)
            ask_own(x, &(ls_param_server_own_request){.head = x->heads[j], .ids = l->ids, .w = w});
        else
            LS_TRY(st, ask(x, &f, j, l, at[j - first], w), out);
    }
    LS_TRY(st, land(x, &f), out);
    for (int j = first; j < end; j++)
        if (j == x->rank)
            LS_TRY(st, wait_own(x), out);
        else
            unpack(x, &layouts[j - first], at[j - first], w);
out:
    return st;
}

ls_status ls_param_server_pull(ls_param_server *x, int64_t step, bool all, float *w)
{
    const ls_param_server_head head = {
        .kind = all ? LS_PARAM_SERVER_PULL_ALL : LS_PARAM_SERVER_PULL, .step = step};
    int servers = x->args.mesh.servers;
    ls_status st = LS_OK;

    for (int j = 0; j < servers; j += WINDOW)
        LS_TRY(st, pull_window(x, j, (int)ls_min_i64(servers, j + WINDOW), &head, w), out);
    x->counts.pulls++;
out:
    return st;
}

/* Ids and elements of the rows, into memory that others read; returns its end. */
static int32_t *pack(const ls_param_server *x, const ls_param_server_layout *l, const float *grad,
                     int32_t *to)
{
    memcpy(to, l->ids, (size_t)l->n * sizeof *to);
    to += l->n;
    for (int64_t i = 0; i < l->n; i++) {
        ls_range row = ls_param_server_row(&x->args, l->part, l->ids[i]);
        memcpy(to, grad + row.first, (size_t)row.count * sizeof *grad);
        to += row.count;
    }
    return to;
}

static ls_status push_to(ls_param_server *x, flights *f, int server,
                         const ls_param_server_push *push, int32_t **rows)
{
    ls_param_server_layout l = layout_of(x, server, LS_PARAM_SERVER_PUSH);
    ls_param_server_head *head = &x->heads[server];
    int64_t bytes = sizeof *head;
    ls_status st = LS_OK;

    *head = (ls_param_server_head){.kind = LS_PARAM_SERVER_PUSH,
                                   .ids = (int32_t)l.n,
                                   .words = l.n + l.elements,
                                   .step = push->step,
                                   .loss = push->loss,
                                   .share = push->share,
                                   .scale = push->scale,
                                   .bad = push->bad};
    if (server == x->rank) {
        ask_own(x, &(ls_param_server_own_request){.head = *head, .ids = l.ids, .grad = push->grad});
        return LS_OK;
    }
    LS_TRY(st, send_to(x, f, server, LS_U8, head, sizeof *head), out);
    for (int i = 0; i < 2; i++) {
        int64_t n = l.dense[i].count;
        LS_TRY(st, send_to(x, f, server, LS_F32, push->grad + l.dense[i].first, n), out);
        bytes += n * (int64_t)sizeof(float);
    }
    int32_t *from = *rows;
    if (l.n > 0)
        *rows = pack(x, &l, push->grad, from);
    LS_TRY(st, send_to(x, f, server, LS_I32, from, head->words), out);
    x->counts.push_bytes += bytes + head->words * (int64_t)sizeof *from;
out:
    return st;
}

/* Every server acknowledges a step that all workers have made; they say the same. */
static ls_status wait_acks(ls_param_server *x, ls_param_server_result *result_out)
{
    ls_param_server_ack ack = {0};
    ls_status st = LS_OK;

    for (int j = 0; j < x->args.mesh.servers; j++) {
        if (j == x->rank)
            continue;
        LS_TRY(st, ls_comm_wait(x->down, x->waiting[j], deadline_of(x)), out);
        ack = x->acks[j];
    }
    if (x->servers) {
        LS_TRY(st, wait_own(x), out);
        ack = x->own.ack;
    }
    *result_out = (ls_param_server_result){
        .loss = ack.loss, .norm = ack.norm, .finite = ack.finite, .blamed = ack.blamed};
out:
    return st;
}

static ls_status expect_acks(ls_param_server *x)
{
    ls_status st = LS_OK;

    for (int j = 0; j < x->args.mesh.servers && st == LS_OK; j++)
        if (j != x->rank)
            st = ls_comm_start(x->down,
                               &(ls_coll){.kind = LS_COLL_RECV,
                                          .type = LS_U8,
                                          .count = sizeof x->acks[j],
                                          .out = &x->acks[j],
                                          .peer = j},
                               &x->waiting[j]);
    return st;
}

ls_status ls_param_server_push_step(ls_param_server *x, const ls_param_server_push *push,
                                    ls_param_server_result *result_out)
{
    int servers = x->args.mesh.servers;
    bool together = x->args.staleness == 0;
    int32_t *rows = x->rows;
    ls_status st = LS_OK;

    if (together)
        LS_TRY(st, expect_acks(x), out);
    for (int first = 0; first < servers; first += WINDOW) {
        flights f = {.n = 0};
        for (int j = first; j < servers && j < first + WINDOW; j++)
            LS_TRY(st, push_to(x, &f, j, push, &rows), out);
        LS_TRY(st, land(x, &f), out);
    }
    if (together)
        LS_TRY(st, wait_acks(x, result_out), out);
    else if (x->servers)
        LS_TRY(st, wait_own(x), out);
    x->counts.pushes++;
out:
    return st;
}

void ls_param_server_hold(ls_param_server *ps)
{
    pthread_mutex_lock(&ps->held);
}

void ls_param_server_release(ls_param_server *ps)
{
    pthread_mutex_unlock(&ps->held);
}

ls_status ls_param_server_end(ls_param_server *x)
{
    const ls_param_server_head head = {.kind = LS_PARAM_SERVER_END};
    ls_status st = LS_OK;

    for (int j = 0; j < x->args.mesh.servers; j++) {
        flights f = {.n = 0};
        x->heads[j] = head;
        if (j == x->rank)
            ask_own(x, &(ls_param_server_own_request){.head = head});
        else
            LS_TRY(st, send_to(x, &f, j, LS_U8, &x->heads[j], sizeof head), out);
        LS_TRY(st, land(x, &f), out);
    }
    if (!x->started)
        goto out;
    pthread_join(x->thread, NULL);
    x->joined = true;
    if (x->failed)
        st = ls_err_adopt(&x->why);
out:
    return st;
}

ls_status ls_param_server_numbers(ls_param_server *ps, ls_dtype type, void *numbers, int64_t n)
{
    return ls_blocking_reduce(ps->servers, LS_COLL_SUM, type, numbers, n, deadline_of(ps));
}

ls_param_server_counts ls_param_server_counted(ls_param_server *ps)
{
    pthread_mutex_lock(&ps->lock);
    ls_param_server_counts counts = ps->counts;
    pthread_mutex_unlock(&ps->lock);
    return counts;
}
