/* param_server_thread.c -- the server's side: the thread that keeps a part of the weights.
 *
 * It listens to all workers at a time, and does one thing at a time: no other thread touches the part,
 * and an answer has left before the next update changes it. A worker is, to this server,
 *
 *   listening --poll_workers--> requested --handle (when it may be)--> listening
 *                                 '----handle (it has ended)----> ended
 *
 * A request may have to wait: a pull until no other worker is too far behind, a push of a step
 * that all make together until those of lower ranks were added. A server that has waited too long
 * names the worker that it waits for, and ends the run.
 *
 * Worked example, staleness 1: a pull for step s needs s - 1 pushes of every worker. Worker 0 has
 * pushed steps 0 and 1, workers 1 and 2 have pushed step 0. Worker 0's pull for step 2 needs one push
 * of each, and is answered. It pushes step 2 and pulls for step 3: that needs two pushes of each, and
 * waits for workers 1 and 2. */
#include "parallel/param_server_impl.h"

#include "kernel/combine.h"

static const int64_t NAP_NS = 200000;
enum { MESSAGE_S = 600 }; /* for something that its sender has begun to send */

static bool together(const ls_param_server *x)
{
    return x->args.staleness == 0;
}

static int64_t message_deadline(void)
{
    return ls_time_now_ns() + MESSAGE_S * LS_NS_PER_S;
}

/* --- listening ---------------------------------------------------------------------------------
 */

static ls_status listen_to(ls_param_server *x, int r)
{
    ls_param_server_worker *worker = &x->workers[r];

    worker->state = LS_PARAM_SERVER_LISTENING;
    if (r == x->rank)
        return LS_OK;
    return ls_comm_start(x->up,
                         &(ls_coll){.kind = LS_COLL_RECV,
                                    .type = LS_U8,
                                    .count = sizeof worker->head,
                                    .out = &worker->head,
                                    .peer = r},
                         &worker->request);
}

static void note_request(ls_param_server_worker *worker)
{
    worker->state = LS_PARAM_SERVER_REQUESTED;
    worker->requested_ns = ls_time_now_ns();
}

static bool look_at_own(ls_param_server *x)
{
    ls_param_server_worker *own = &x->workers[x->rank];
    bool asked;

    pthread_mutex_lock(&x->lock);
    asked = x->own.asked && own->state == LS_PARAM_SERVER_LISTENING;
    if (asked) {
        x->own.asked = false;
        own->head = x->own.head;
    }
    pthread_mutex_unlock(&x->lock);
    if (asked)
        note_request(own);
    return asked;
}

/* Requests that have come; *more_out: there were some. */
static ls_status poll_workers(ls_param_server *x, bool *more_out)
{
    ls_comm_request requests[LS_MESH_WORKERS];
    int ranks[LS_MESH_WORKERS], n = 0, which;
    ls_status st = LS_OK;

    *more_out = look_at_own(x);
    for (int r = 0; r < x->args.mesh.ranks; r++)
        if (r != x->rank && x->workers[r].state == LS_PARAM_SERVER_LISTENING) {
            requests[n] = x->workers[r].request;
            ranks[n++] = r;
        }
    do {
        LS_TRY(st, ls_comm_test_any(x->up, requests, n, &which), out);
        if (which < 0)
            break;
        note_request(&x->workers[ranks[which]]);
        requests[which] = requests[--n];
        ranks[which] = ranks[n];
        *more_out = true;
    } while (n > 0);
out:
    return st;
}

/* --- messages ----------------------------------------------------------------------------------
 */

static ls_status pass(ls_comm *comm, const ls_coll *message)
{
    ls_comm_request request;
    ls_status st = ls_comm_start(comm, message, &request);

    return st == LS_OK ? ls_comm_wait(comm, request, message_deadline()) : st;
}

static ls_status send_to(ls_param_server *x, int r, ls_dtype type, const void *from, int64_t n)
{
    if (n == 0)
        return LS_OK;
    pthread_mutex_lock(&x->lock); /* the rank that gets the answer may ask how much was sent */
    x->counts.answer_bytes += n * ls_dtype_bytes(type);
    pthread_mutex_unlock(&x->lock);
    return pass(x->down,
                &(ls_coll){.kind = LS_COLL_SEND, .type = type, .count = n, .in = from, .peer = r});
}

static ls_status receive_from(ls_param_server *x, int r, ls_dtype type, void *to, int64_t n)
{
    return n == 0 ? LS_OK
                  : pass(x->up,
                         &(ls_coll){
                             .kind = LS_COLL_RECV, .type = type, .count = n, .out = to, .peer = r});
}

static void own_is_done(ls_param_server *x, const ls_param_server_ack *ack)
{
    pthread_mutex_lock(&x->lock);
    x->own.done = true;
    if (ack)
        x->own.ack = *ack;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
}

/* A head that no worker sends would make this rank read beyond its memory. */
static ls_status check_head(const ls_param_server *x, int r, const ls_param_server_head *head)
{
    bool push = head->kind == LS_PARAM_SERVER_PUSH;
    int64_t least = head->ids, most = head->ids * (1 + (push ? x->args.table.width : 0));

    if (head->kind >= LS_PARAM_SERVER_PUSH && head->kind <= LS_PARAM_SERVER_END && head->ids >= 0 &&
        head->ids <= x->args.table.rows && head->words >= least && head->words <= most &&
        (!push || head->step == x->workers[r].pushed))
        return LS_OK;
    return ls_fail(LS_EDATA,
                   "rank %d sent request %d of step %lld with %d rows, which no worker makes", r,
                   (int)head->kind, (long long)head->step, (int)head->ids);
}

static ls_status check_ids(const ls_param_server *x, int r, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < (i > 0 ? ids[i - 1] + 1 : 0) || ids[i] >= x->args.table.rows)
            return ls_fail(LS_EDATA, "rank %d sent row %d of %lld", r, (int)ids[i],
                           (long long)x->args.table.rows);
    return LS_OK;
}

static ls_status fits(const ls_param_server_head *head, const ls_param_server_layout *l, int r,
                      int64_t words)
{
    return l->n == head->ids && words == head->words
               ? LS_OK
               : ls_fail(LS_EDATA, "rank %d sent %lld words for %d rows", r, (long long)head->words,
                         (int)head->ids);
}

/* --- pushes ------------------------------------------------------------------------------------
 */

static void add_run(ls_param_server *x, ls_range run, const float *from)
{
    float *sum = x->sum + (run.first - x->part.first);

    if (run.count > 0)
        ls_combine_two(LS_F32, sum, from, sum, run.count);
}

/* The own worker's gradient, where it lies. */
static void add_own(ls_param_server *x, const ls_param_server_head *head)
{
    const float *grad = x->own.grad;
    ls_param_server_layout l =
        ls_param_server_lay_out(&x->args, x->part, x->own.ids ? x->own.ids : x->in_rows, head->ids);

    for (int i = 0; i < 2; i++)
        add_run(x, l.dense[i], grad + l.dense[i].first);
    for (int64_t i = 0; i < l.n; i++) {
        ls_range row = ls_param_server_row(&x->args, x->part, l.ids[i]);
        add_run(x, row, grad + row.first);
    }
}

/* What a worker of another rank has sent after its head. */
static ls_status add_sent(ls_param_server *x, int r, const ls_param_server_head *head)
{
    ls_param_server_layout l = ls_param_server_lay_out(&x->args, x->part, x->in_rows, 0);
    const float *from;
    ls_status st = LS_OK;

    for (int i = 0; i < 2; i++) {
        float *in = x->in + (l.dense[i].first - x->part.first);
        int64_t n = l.dense[i].count;
        LS_TRY(st, receive_from(x, r, LS_F32, in, n), out);
        add_run(x, l.dense[i], in);
    }
    LS_TRY(st, receive_from(x, r, LS_I32, x->in_rows, head->words), out);
    LS_TRY(st, check_ids(x, r, x->in_rows, head->ids), out);
    l = ls_param_server_lay_out(&x->args, x->part, x->in_rows, head->ids);
    LS_TRY(st, fits(head, &l, r, l.n + l.elements), out);
    from = (const float *)(const void *)(x->in_rows + l.n);
    for (int64_t i = 0; i < l.n; i++) {
        ls_range row = ls_param_server_row(&x->args, x->part, l.ids[i]);
        add_run(x, row, from);
        from += row.count;
    }
out:
    return st;
}

static ls_status make_update(ls_param_server *x, const ls_param_server_head *head, int worker)
{
    ls_status st = LS_OK;

    pthread_mutex_lock(&x->held);
    if (!x->result.blamed)
        st = x->args.update(x->args.context,
                            &(ls_param_server_update){.step = head->step,
                                                      .worker = worker,
                                                      .share = worker < 0 ? 1 : head->share,
                                                      .scale = worker < 0 ? 1 : head->scale,
                                                      .grad = x->sum,
                                                      .w = x->w},
                            &x->result);
    pthread_mutex_unlock(&x->held);
    return st;
}

/* All workers have pushed a step: update, and send the result to all. */
static ls_status finish_step(ls_param_server *x, const ls_param_server_head *head)
{
    ls_status st;

    x->result.finite = !x->result.blamed;
    LS_TRY(st, make_update(x, head, -1), out);
    const ls_param_server_ack ack = {.loss = x->result.loss,
                                     .norm = x->result.norm,
                                     .finite = x->result.finite,
                                     .blamed = x->result.blamed};
    for (int r = 0; r < x->args.mesh.ranks; r++)
        if (r == x->rank)
            own_is_done(x, &ack);
        else
            LS_TRY(st, send_to(x, r, LS_U8, &ack, sizeof ack), out);
    x->turn = 0;
out:
    return st;
}

static ls_status take_push(ls_param_server *x, int r)
{
    const ls_param_server_head head = x->workers[r].head;
    bool first = !together(x) || x->turn == 0;
    ls_status st = LS_OK;

    if (first) {
        memset(x->sum, 0, (size_t)x->part.count * sizeof *x->sum);
        x->result = (ls_param_server_result){.loss = 0};
        x->begun_ns = ls_time_now_ns();
    }
    if (r == x->rank)
        add_own(x, &head);
    else
        LS_TRY(st, add_sent(x, r, &head), out);
    x->result.loss += head.loss;
    x->result.blamed |= head.bad != 0;
    x->workers[r].pushed++;
    if (!together(x)) {
        LS_TRY(st, make_update(x, &head, r), out);
        if (r == x->rank)
            own_is_done(x, NULL);
    } else if (++x->turn == x->args.mesh.ranks) {
        LS_TRY(st, finish_step(x, &head), out);
    }
    st = listen_to(x, r);
out:
    return st;
}

/* --- pulls -------------------------------------------------------------------------------------
 */

/* The worker that has made the fewest steps. */
static int slowest(const ls_param_server *x)
{
    int who = 0;

    for (int r = 1; r < x->args.mesh.ranks; r++)
        if (x->workers[r].pushed < x->workers[who].pushed)
            who = r;
    return who;
}

static bool may_pull(const ls_param_server *x, const ls_param_server_head *head)
{
    int64_t ahead = head->step - x->workers[slowest(x)].pushed;

    return ahead <= 0 || (head->kind == LS_PARAM_SERVER_PULL &&
                          (x->args.staleness < 0 || ahead <= x->args.staleness));
}

/* Rows into memory that others read, behind their ids. */
static const int32_t *pack(const ls_param_server *x, const ls_param_server_layout *l)
{
    int32_t *to = x->in_rows + l->n;

    for (int64_t i = 0; i < l->n; i++) {
        ls_range row = ls_param_server_row(&x->args, x->part, l->ids[i]);
        memcpy(to, x->w + (row.first - x->part.first), (size_t)row.count * sizeof *x->w);
        to += row.count;
    }
    return x->in_rows + l->n;
}

static void copy_run(const ls_param_server *x, ls_range run, float *w)
{
    if (run.count > 0)
        memcpy(w + run.first, x->w + (run.first - x->part.first), (size_t)run.count * sizeof *w);
}

static void answer_own(ls_param_server *x, const ls_param_server_head *head)
{
    bool all = head->kind == LS_PARAM_SERVER_PULL_ALL;
    const int32_t *ids = x->own.ids ? x->own.ids : x->in_rows;
    ls_param_server_layout l =
        ls_param_server_lay_out(&x->args, x->part, all ? NULL : ids, head->ids);

    for (int i = 0; i < 2; i++)
        copy_run(x, l.dense[i], x->own.w);
    for (int64_t i = 0; i < l.n; i++)
        copy_run(x, ls_param_server_row(&x->args, x->part, l.ids[i]), x->own.w);
    own_is_done(x, NULL);
}

static ls_status answer(ls_param_server *x, int r, const ls_param_server_head *head)
{
    bool all = head->kind == LS_PARAM_SERVER_PULL_ALL;
    ls_status st = LS_OK;

    LS_TRY(st, receive_from(x, r, LS_I32, x->in_rows, head->words), out);
    LS_TRY(st, check_ids(x, r, x->in_rows, head->ids), out);
    ls_param_server_layout l =
        ls_param_server_lay_out(&x->args, x->part, all ? NULL : x->in_rows, head->ids);
    LS_TRY(st, fits(head, &l, r, l.n), out);
    for (int i = 0; i < 2; i++)
        LS_TRY(st,
               send_to(x, r, LS_F32, x->w + (l.dense[i].first - x->part.first), l.dense[i].count),
               out);
    if (l.n > 0)
        LS_TRY(st, send_to(x, r, LS_I32, pack(x, &l), l.elements), out);
out:
    return st;
}

static ls_status take_pull(ls_param_server *x, int r)
{
    const ls_param_server_head head = x->workers[r].head;
    int64_t ahead = head.step - x->workers[slowest(x)].pushed;
    ls_status st = LS_OK;

    pthread_mutex_lock(&x->lock);
    x->counts.ahead = ls_max_i64(x->counts.ahead, ahead);
    pthread_mutex_unlock(&x->lock);
    if (r == x->rank)
        answer_own(x, &head);
    else
        LS_TRY(st, answer(x, r, &head), out);
    st = listen_to(x, r);
out:
    return st;
}

/* --- the thread --------------------------------------------------------------------------------
 */

/* Whether a worker's push is overdue: another one has waited for it for too long. */
static ls_status overdue(const ls_param_server *x, int64_t since_ns, int worker)
{
    if (ls_time_now_ns() - since_ns < x->args.wait_s * LS_NS_PER_S)
        return LS_OK;
    return ls_fail(LS_EDEADLINE, "rank %d has not pushed step %lld, which others waited %lld s for",
                   worker, (long long)x->workers[worker].pushed + 1, (long long)x->args.wait_s);
}

/* What a worker asks for, if it may be done now; *more_out: it was. */
static ls_status handle(ls_param_server *x, int r, bool *more_out)
{
    ls_param_server_worker *worker = &x->workers[r];
    ls_status st = LS_OK;

    LS_TRY(st, check_head(x, r, &worker->head), out);
    if (worker->head.kind == LS_PARAM_SERVER_PUSH && together(x) && r != x->turn)
        return overdue(x, worker->requested_ns, x->turn);
    if (worker->head.kind != LS_PARAM_SERVER_PUSH && worker->head.kind != LS_PARAM_SERVER_END &&
        !may_pull(x, &worker->head))
        return overdue(x, worker->requested_ns, slowest(x));
    *more_out = true;
    if (worker->head.kind == LS_PARAM_SERVER_PUSH)
        st = take_push(x, r);
    else if (worker->head.kind != LS_PARAM_SERVER_END)
        st = take_pull(x, r);
    else
        worker->state = LS_PARAM_SERVER_ENDED;
out:
    return st;
}

/* Until the own worker asks, or it is time to look at the others again. */
static void nap(ls_param_server *x)
{
    int64_t until = ls_time_now_ns() + NAP_NS;
    const struct timespec at = {.tv_sec = until / LS_NS_PER_S, .tv_nsec = until % LS_NS_PER_S};

    pthread_mutex_lock(&x->lock);
    if (!x->own.asked && !x->closing)
        pthread_cond_timedwait(&x->changed, &x->lock, &at);
    pthread_mutex_unlock(&x->lock);
}

static bool is_closing(ls_param_server *x)
{
    pthread_mutex_lock(&x->lock);
    bool closing = x->closing;
    pthread_mutex_unlock(&x->lock);
    return closing;
}

static int still_here(const ls_param_server *x)
{
    int n = 0;

    for (int r = 0; r < x->args.mesh.ranks; r++)
        n += x->workers[r].state != LS_PARAM_SERVER_ENDED;
    return n;
}

static ls_status serve(ls_param_server *x)
{
    ls_status st = LS_OK;

    for (int r = 0; r < x->args.mesh.ranks; r++)
        LS_TRY(st, listen_to(x, r), out);
    while (still_here(x) > 0 && !is_closing(x)) {
        bool more = false;
        LS_TRY(st, poll_workers(x, &more), out);
        for (int r = 0; r < x->args.mesh.ranks; r++)
            if (x->workers[r].state == LS_PARAM_SERVER_REQUESTED)
                LS_TRY(st, handle(x, r, &more), out);
        if (more)
            continue;
        if (x->turn > 0)
            LS_TRY(st, overdue(x, x->begun_ns, x->turn), out);
        nap(x);
    }
out:
    return st;
}

void *ls_param_server_serve(void *ps)
{
    ls_param_server *x = ps;
    ls_status st = serve(x);

    if (st != LS_OK)
        ls_comm_abort(x->up, ls_err_last()->text);
    pthread_mutex_lock(&x->lock);
    x->failed = st != LS_OK || x->closing;
    if (st != LS_OK)
        x->why = *ls_err_last();
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
    return NULL;
}
