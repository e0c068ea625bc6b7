/* nccl_provider.c -- device collectives by NCCL.
 *
 * Communicators do not block: a call that needs time (meeting the others, the first use of a link)
 * answers "in progress", and this file asks again until it is done, the deadline has passed or the
 * host communicator has broken. A communicator that was aborted is used no more.
 *
 *     trainer   call: in progress   asks ... asks ... done   call: does not return ...  fails
 *     `use`     held                held     held            held, held, held, held
 *     thread               polls         polls      a rank died: waits 1 s for `use`, aborts
 *
 * Two threads call: the trainer, and the thread of device_comm.c, which polls and aborts. `use`
 * keeps them apart. The trainer holds it during a call, not while it waits between two questions. A
 * call that does not return (a full queue of a device that waits for a dead rank) is what abort is
 * for, so abort waits for `use` a second and then goes without it. */
#include "comm/device/cuda/nccl_library.h"

#include <time.h>
#include "base/mem.h"
#include "comm/device/device_comm_impl.h"

enum { ASK_NS = 20000, ASK_AT_ONCE = 200, CLOSE_S = 5, QUEUE_S = 120, ABORT_S = 1 };

typedef struct nccl_comm {
    const ls_nccl *n;
    void *comm;
    pthread_mutex_t use;
    bool aborted;
} nccl_comm;

static const char *nccl_unusable(ls_device *device, int *version_out, char text_out[160])
{
    ls_device_info info = ls_device_describe(device);
    const ls_nccl *n;

    if (info.host_memory) {
        snprintf(text_out, 160, "it needs an NVIDIA GPU, not \"%.80s\"", info.name);
        return text_out;
    }
    n = ls_nccl_find(text_out);
    *version_out = n ? n->version : 0;
    return n ? NULL : text_out;
}

static ls_status failed(const ls_device_comm *dc, const nccl_comm *c, int result, const char *what)
{
    const char *more = c->comm && !c->aborted ? c->n->last_error(c->comm) : "";

    return ls_fail(LS_EFAIL, "rank %d: NCCL cannot %s: %s%s%.300s", dc->rank, what,
                   c->n->error_text(result), more && *more ? ": " : "", more ? more : "");
}

/* Ask until what was begun is done. */
static ls_status settle(ls_device_comm *dc, nccl_comm *c, int result, const char *what,
                        int64_t deadline_ns)
{
    ls_status st = LS_OK;

    for (int64_t i = 0; result == LS_NCCL_IN_PROGRESS; i++) {
        if (i >= ASK_AT_ONCE)
            nanosleep(&(struct timespec){.tv_nsec = ASK_NS}, NULL);
        pthread_mutex_lock(&c->use);
        int asked = c->aborted ? LS_NCCL_OK : c->n->async_error(c->comm, &result);
        bool aborted = c->aborted;
        pthread_mutex_unlock(&c->use);
        if (aborted)
            return ls_device_comm_check(dc) != LS_OK ? ls_err_last()->code
                                                     : ls_fail(LS_EFAIL, "NCCL was stopped");
        result = asked != LS_NCCL_OK ? asked : result;
        if (result == LS_NCCL_IN_PROGRESS && i % 50 == 49)
            LS_TRY(st, ls_device_comm_still(dc, deadline_ns, what), out);
    }
    return result == LS_NCCL_OK ? LS_OK : failed(dc, c, result, what);
out:
    return st;
}

/* --- opening ------------------------------------------------------------------------------------ */

static ls_status nccl_make_id(void *id_out)
{
    char why[160] = "";
    const ls_nccl *n = ls_nccl_find(why);
    int result;

    if (!n)
        return ls_fail(LS_EUSAGE, "cannot use NCCL: %s", why);
    result = n->get_id(id_out);
    return result == LS_NCCL_OK ? LS_OK
                                : ls_fail(LS_EFAIL, "NCCL cannot begin: %s: %.300s",
                                          n->error_text(result), n->last_error(NULL));
}

static ls_status nccl_open(ls_device_comm *dc, const void *id, int64_t deadline_ns)
{
    nccl_comm *c = ls_mem_alloc(sizeof *c);
    ls_nccl_config config = {.size = sizeof config,
                             .magic = LS_NCCL_CONFIG_MAGIC,
                             .version = LS_NCCL_CONFIG_VERSION,
                             .blocking = 0,
                             .cluster = LS_NCCL_UNSET,
                             .least_blocks = LS_NCCL_UNSET,
                             .most_blocks = LS_NCCL_UNSET,
                             .share = LS_NCCL_UNSET};
    char why[160] = "";
    ls_nccl_id own;

    if (!c)
        return ls_fail(LS_ENOMEM, "no memory for a communicator");
    *c = (nccl_comm){.n = ls_nccl_find(why)};
    pthread_mutex_init(&c->use, NULL);
    dc->native = c;
    if (!c->n)
        return ls_fail(LS_EUSAGE, "cannot use NCCL: %s", why);
    memcpy(&own, id, sizeof own);
    int result = c->n->init(&c->comm, dc->ranks, own, dc->rank, &config);
    return settle(dc, c, result, "meet the other ranks", deadline_ns);
}

static void nccl_abort(ls_device_comm *dc)
{
    nccl_comm *c = dc->native;
    int64_t until_ns = ls_time_now_ns() + ABORT_S * LS_NS_PER_S;
    bool held = pthread_mutex_trylock(&c->use) == 0;

    while (!held && ls_time_now_ns() < until_ns) {
        nanosleep(&(struct timespec){.tv_nsec = ASK_NS}, NULL);
        held = pthread_mutex_trylock(&c->use) == 0;
    }
    if (c->comm && !c->aborted) {
        c->aborted = true;
        c->n->abort(c->comm);
    }
    if (held)
        pthread_mutex_unlock(&c->use);
}

/* What others still read is sent before the communicator goes, as long as all of them live. */
static void nccl_close(ls_device_comm *dc)
{
    nccl_comm *c = dc->native;
    ls_err_record before = *ls_err_last();

    if (!c)
        return;
    if (c->comm && !c->aborted && ls_device_comm_check(dc) == LS_OK &&
        settle(dc, c, c->n->finalize(c->comm), "end", ls_time_now_ns() + CLOSE_S * LS_NS_PER_S) ==
            LS_OK)
        c->n->destroy(c->comm);
    else
        nccl_abort(dc);
    pthread_mutex_destroy(&c->use);
    ls_mem_free(c);
    dc->native = NULL;
    ls_err_clear();
    if (before.code != LS_OK)
        (void)ls_err_adopt(&before);
}

/* --- calls -------------------------------------------------------------------------------------- */

static ls_nccl_type type_of(ls_dtype type)
{
    static const ls_nccl_type types[] = {
        [LS_F32] = LS_NCCL_F32, [LS_BF16] = LS_NCCL_BF16, [LS_F16] = LS_NCCL_F16,
        [LS_F64] = LS_NCCL_F64, [LS_I32] = LS_NCCL_I32,   [LS_I64] = LS_NCCL_I64,
        [LS_U8] = LS_NCCL_U8,   [LS_I8] = LS_NCCL_I8};

    return types[type];
}

static ls_nccl_op op_of(ls_coll_op op)
{
    static const ls_nccl_op ops[] = {[LS_COLL_SUM] = LS_NCCL_SUM,
                                     [LS_COLL_MAX] = LS_NCCL_MAX,
                                     [LS_COLL_MIN] = LS_NCCL_MIN,
                                     [LS_COLL_MEAN] = LS_NCCL_AVERAGE};

    return ops[op];
}

/* What a call is made with. */
typedef struct call {
    const ls_nccl *n;
    void *comm, *stream;
    int ranks, rank;
    ls_nccl_type type;
    ls_nccl_op op;
    int64_t size; /* of an element */
    const ls_coll *coll;
} call;

/* Parts of equal length are one call, others a call for each rank. */
static bool equal_parts(const call *x)
{
    return x->coll->count % (16 * (int64_t)x->ranks) == 0;
}

static int reduce_scatter(const call *x)
{
    const ls_coll *c = x->coll;
    const char *in = c->in;
    int64_t first, own;
    int result = LS_NCCL_OK;

    ls_coll_range(c->count, x->ranks, x->rank, &first, &own);
    char *out = (char *)c->out + (c->in == c->out ? first * x->size : 0);
    if (equal_parts(x))
        return x->n->reduce_scatter(in, out, (size_t)own, x->type, x->op, x->comm, x->stream);
    for (int r = 0; r < x->ranks && result == LS_NCCL_OK; r++) {
        ls_coll_range(c->count, x->ranks, r, &first, &own);
        if (own > 0)
            result = x->n->reduce(in + first * x->size, r == x->rank ? out : NULL, (size_t)own,
                                  x->type, x->op, r, x->comm, x->stream);
    }
    return result;
}

static int all_gather(const call *x)
{
    const ls_coll *c = x->coll;
    char *out = c->out;
    int64_t first, own;
    int result = LS_NCCL_OK;

    ls_coll_range(c->count, x->ranks, x->rank, &first, &own);
    const char *in = (const char *)c->in + (c->in == c->out ? first * x->size : 0);
    if (equal_parts(x))
        return x->n->all_gather(in, out, (size_t)own, x->type, x->comm, x->stream);
    for (int r = 0; r < x->ranks && result == LS_NCCL_OK; r++) {
        ls_coll_range(c->count, x->ranks, r, &first, &own);
        if (own > 0)
            result =
                x->n->broadcast(r == x->rank ? in : out + first * x->size, out + first * x->size,
                                (size_t)own, x->type, r, x->comm, x->stream);
    }
    return result;
}

static int all_to_all(const call *x)
{
    const ls_coll *c = x->coll;
    const char *in = c->in;
    char *out = c->out;
    int result = LS_NCCL_OK;

    for (int r = 0; r < x->ranks && result == LS_NCCL_OK; r++) {
        int64_t to = c->in_counts ? c->in_counts[r] : c->count;
        int64_t from = c->out_counts ? c->out_counts[r] : c->count;
        if (to > 0)
            result = x->n->send(in, (size_t)to, x->type, r, x->comm, x->stream);
        if (from > 0 && result == LS_NCCL_OK)
            result = x->n->recv(out, (size_t)from, x->type, r, x->comm, x->stream);
        in += to * x->size;
        out += from * x->size;
    }
    return result;
}

/* The root's own part is sent too, unless it lies where it belongs. */
static int gather(const call *x)
{
    const ls_coll *c = x->coll;
    bool root = c->peer == x->rank, in_place = c->in == c->out;
    int64_t own = root && c->out_counts ? c->out_counts[x->rank] : c->count;
    char *out = c->out;
    int result = LS_NCCL_OK;

    if (own > 0 && !(root && in_place))
        result = x->n->send(c->in, (size_t)own, x->type, c->peer, x->comm, x->stream);
    for (int r = 0; root && r < x->ranks && result == LS_NCCL_OK; r++) {
        int64_t from = c->out_counts ? c->out_counts[r] : c->count;
        if (from > 0 && !(in_place && r == x->rank))
            result = x->n->recv(out, (size_t)from, x->type, r, x->comm, x->stream);
        out += from * x->size;
    }
    return result;
}

static int make(const call *x)
{
    const ls_coll *c = x->coll;
    size_t count = (size_t)c->count;
    void *out = c->out ? c->out : (void *)(uintptr_t)c->in; /* a root may have no other place */

    switch (c->kind) {
    case LS_COLL_ALL_REDUCE:
        return x->n->all_reduce(c->in, c->out, count, x->type, x->op, x->comm, x->stream);
    case LS_COLL_REDUCE_SCATTER:
        return reduce_scatter(x);
    case LS_COLL_ALL_GATHER:
        return all_gather(x);
    case LS_COLL_BROADCAST:
        return x->n->broadcast(c->peer == x->rank ? c->in : out, out, count, x->type, c->peer,
                               x->comm, x->stream);
    case LS_COLL_ALL_TO_ALL:
        return all_to_all(x);
    case LS_COLL_GATHER:
        return gather(x);
    case LS_COLL_SEND:
        return x->n->send(c->in, count, x->type, c->peer, x->comm, x->stream);
    case LS_COLL_RECV:
        return x->n->recv(c->out, count, x->type, c->peer, x->comm, x->stream);
    default:
        return LS_NCCL_OK;
    }
}

/* The thread is kept from aborting between begin and end. */
static ls_status nccl_begin(ls_device_comm *dc)
{
    nccl_comm *c = dc->native;

    pthread_mutex_lock(&c->use);
    if (c->aborted) {
        pthread_mutex_unlock(&c->use);
        return ls_device_comm_check(dc) != LS_OK ? ls_err_last()->code
                                                 : ls_fail(LS_EFAIL, "NCCL was stopped");
    }
    int result = c->n->group_begin();
    if (result == LS_NCCL_OK)
        return LS_OK;
    pthread_mutex_unlock(&c->use);
    return failed(dc, c, result, "begin a group of calls");
}

static ls_status nccl_queue(ls_device_comm *dc, ls_stream *stream, const ls_coll *coll)
{
    nccl_comm *c = dc->native;
    const call x = {.n = c->n,
                    .comm = c->comm,
                    .stream = ls_stream_handle(stream),
                    .ranks = dc->ranks,
                    .rank = dc->rank,
                    .type = type_of(coll->type),
                    .op = op_of(coll->op),
                    .size = ls_dtype_bytes(coll->type),
                    .coll = coll};
    int result;

    if (coll->count == 0 && !coll->in_counts && !coll->out_counts)
        return LS_OK;
    result = make(&x);
    if (result == LS_NCCL_OK || result == LS_NCCL_IN_PROGRESS)
        return LS_OK;
    return failed(dc, c, result, ls_coll_kind_name(coll->kind));
}

static ls_status nccl_end(ls_device_comm *dc)
{
    nccl_comm *c = dc->native;
    int result = c->n->group_end();

    pthread_mutex_unlock(&c->use);
    return settle(dc, c, result, "queue a collective", ls_time_now_ns() + QUEUE_S * LS_NS_PER_S);
}

/* --- the thread's ------------------------------------------------------------------------------- */

static ls_status nccl_poll(ls_device_comm *dc)
{
    nccl_comm *c = dc->native;
    int result = LS_NCCL_OK;

    if (pthread_mutex_trylock(&c->use) != 0)
        return LS_OK; /* the trainer calls: it sees its own errors */
    int asked = c->aborted ? LS_NCCL_OK : c->n->async_error(c->comm, &result);
    pthread_mutex_unlock(&c->use);
    result = asked != LS_NCCL_OK ? asked : result;
    return result == LS_NCCL_OK || result == LS_NCCL_IN_PROGRESS ? LS_OK
                                                                 : failed(dc, c, result, "go on");
}

const ls_device_provider ls_device_comm_nccl = {.name = "nccl",
                                                .watched = true,
                                                .unusable = nccl_unusable,
                                                .id_bytes = LS_NCCL_ID_BYTES,
                                                .make_id = nccl_make_id,
                                                .open = nccl_open,
                                                .close = nccl_close,
                                                .begin = nccl_begin,
                                                .queue = nccl_queue,
                                                .end = nccl_end,
                                                .poll = nccl_poll,
                                                .abort = nccl_abort};
