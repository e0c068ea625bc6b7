/* ucx.c -- links, heartbeats and waiting of the transport over UCX; ucx_chunk.c moves the messages.
 *
 * A link to a peer is an endpoint of UCX with error handling, made when the pair first talks (by
 * either side). On each link a heartbeat is sent when nothing else was for a quarter of the allowed
 * silence. A heartbeat makes the other side link back, so both watch each other:
 *
 *     idle --(post, or a frame comes)--> linked --(silence, UCX's error)--> broken, for good
 *                                          '-----(goodbye, nothing in flight)--> gone
 *
 * idle -> linked: ls_ucx_reach(); linked -> broken: watch(), on_error(), on_sent(); linked -> gone:
 * on_bye(). A message to or from a peer that is gone breaks the transport.
 *
 * Heartbeats must go on while the program computes and makes no calls. The progress thread
 * progresses the worker some times a second for that. It also takes in what arrives, but leaves
 * `done` of finished messages to the caller's own poll, so that a caller reads it without a lock.
 * With the default times the thread looks every 125 ms; a heartbeat leaves when nothing else did
 * for 250 ms; a peer breaks the transport when it has been silent for 1 s, or for 10 s where it has
 * never been heard. One mutex stands before UCX. A process that was stopped does not blame its
 * peers for what it did not hear meanwhile: time in which no thread progressed the worker is not
 * silence. */
#include "comm/transport/ucx_impl.h"

#if LS_UCX_HEADERS
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/time.h"

enum { PROGRESS_AT_ONCE = 64 };
static const uint32_t address_magic = UINT32_C(0x41434c31);

/* In front of UCX's own bytes, which UCX does not check. */
typedef struct address_head {
    uint32_t magic;
    uint32_t crc; /* CRC32C of all behind it */
    uint64_t generation;
    uint32_t rank;
    uint32_t len; /* of UCX's bytes */
} address_head;

static ls_ucx *of(ls_transport *transport)
{
    return (ls_ucx *)transport;
}

/* --- failing -------------------------------------------------------------------------------- */

void ls_ucx_break(ls_ucx *u)
{
    if (u->failed)
        return;
    u->failed = true;
    u->cause = *ls_err_last();
}

void ls_ucx_break_peer(ls_ucx *u, int peer, const char *why)
{
    if (u->failed)
        return;
    ls_fail(LS_EPEER, "rank %d is gone: %s", peer, why);
    ls_ucx_break(u);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ls_ucx *u = arg;

    for (int r = 0; r < u->args.ranks; r++)
        if (u->links[r].ep == ep && !u->links[r].gone)
            ls_ucx_break_peer(u, r, u->api.ucs_status_string(status));
}

/* --- links ---------------------------------------------------------------------------------- */

ls_status ls_ucx_reach(ls_ucx *u, int peer)
{
    ls_ucx_link *link = &u->links[peer];
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = link->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {on_error, u},
    };

    if (link->ep)
        return LS_OK;
    ucs_status_t status = u->api.ucp_ep_create(u->worker, &params, &link->ep);
    if (status != UCS_OK) {
        link->ep = NULL;
        ls_fail(LS_EPEER, "rank %d cannot be reached: %s", peer, u->api.ucs_status_string(status));
        ls_err_hint("Every rank needs a network that UCX can use in common: compare UCX_TLS and "
                    "UCX_NET_DEVICES of both.");
        ls_ucx_break(u);
        return LS_EPEER;
    }
    link->wanted = true;
    link->heard_ns = ls_time_now_ns();
    ls_ucx_say(u, peer, LS_UCX_HEARTBEAT);
    return u->failed ? u->cause.code : LS_OK;
}

static void watch(ls_ucx *u, int peer, int64_t now)
{
    ls_ucx_link *link = &u->links[peer];
    int64_t limit = link->heard ? u->args.silence_ns : u->args.first_ns;
    int64_t silent = now - link->heard_ns;

    if (silent <= limit)
        return;
    ls_fail(LS_EPEER, "rank %d has been silent for %.1f s%s", peer, (double)silent * 1e-9,
            link->heard ? "" : " since it was first called");
    ls_err_hint("Its host is down, the network to it is cut, or its process is stopped.");
    ls_ucx_break(u);
}

/* Heartbeats and silence, when it is time. */
static void tick(ls_ucx *u)
{
    int64_t now = ls_time_now_ns(), away = now - u->tick_ns;

    u->tick_ns = now;
    if (away > u->heartbeat_ns) /* the progress thread looks twice as often, when it gets a core */
        for (int r = 0; r < u->args.ranks; r++)
            u->links[r].heard_ns += away;
    if (now < u->next_heartbeat_ns || !u->connected)
        return;
    u->next_heartbeat_ns = now + u->heartbeat_ns / 2;
    for (int r = 0; r < u->args.ranks && !u->failed; r++) {
        ls_ucx_link *link = &u->links[r];

        if (!link->wanted || link->gone || ls_ucx_reach(u, r) != LS_OK)
            continue;
        if (now - link->spoke_ns >= u->heartbeat_ns && !link->beating)
            ls_ucx_say(u, r, LS_UCX_HEARTBEAT);
        watch(u, r, now);
    }
}

/* --- moving --------------------------------------------------------------------------------- */

static bool move(ls_ucx *u)
{
    bool moved = false;

    for (int i = 0; i < PROGRESS_AT_ONCE && u->api.ucp_worker_progress(u->worker); i++) {
        moved = true;
        ls_ucx_pump(u);
    }
    ls_ucx_pump(u);
    tick(u);
    return moved;
}

static void wake(ls_transport *transport)
{
    uint64_t one = 1;

    while (write(of(transport)->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* The progress thread: it moves data and sends heartbeats while the program makes no calls, and
 * wakes a sleeper when there is something for it. */
static void *progress_main(void *arg)
{
    ls_ucx *u = arg;
    struct pollfd stop = {u->stop_fd, POLLIN, 0};
    int pause_ms = (int)ls_max_i64(1, u->heartbeat_ns / 2 / LS_NS_PER_MS);

    while (poll(&stop, 1, pause_ms) <= 0) {
        bool news;

        pthread_mutex_lock(&u->lock);
        if (!u->failed)
            move(u);
        news = u->failed || u->finished;
        pthread_mutex_unlock(&u->lock);
        if (news)
            wake(&u->base);
    }
    return NULL;
}

/* Every call ends here: with the reason, when the transport is broken. */
static ls_status leave(ls_ucx *u)
{
    ls_status st = u->failed ? ls_err_adopt(&u->cause) : LS_OK;

    pthread_mutex_unlock(&u->lock);
    return st;
}

static ls_status post(ls_ucx *u, ls_message *message,
                      ls_status (*how)(ls_ucx *u, ls_message *message))
{
    LS_BUG_IF(!u->connected || message->peer < 0 || message->peer >= u->args.ranks ||
                  message->peer == u->args.rank || message->bytes < 0,
              "message of %lld bytes with rank %d", (long long)message->bytes, message->peer);
    pthread_mutex_lock(&u->lock);
    message->done = false;
    if (!u->failed && how(u, message) != LS_OK)
        ls_ucx_break(u);
    return leave(u);
}

static ls_status ucx_send(ls_transport *transport, ls_message *message)
{
    return post(of(transport), message, ls_ucx_post_send);
}

static ls_status ucx_receive(ls_transport *transport, ls_message *message)
{
    return post(of(transport), message, ls_ucx_post_receive);
}

/* Progress once, and set `done` of what has finished since. */
static ls_status ucx_poll(ls_transport *transport, bool *moved_out)
{
    ls_ucx *u = of(transport);
    bool moved = false;

    pthread_mutex_lock(&u->lock);
    if (!u->failed)
        moved = move(u);
    while (u->finished) {
        ls_message *m = u->finished;

        u->finished = m->next_;
        m->next_ = NULL;
        m->done = true;
        moved = true;
    }
    *moved_out = moved;
    return leave(u);
}

/* Sleep on the worker's descriptor. UCX must be armed first; it refuses while it has events, and
 * then there is no need to sleep. */
static void ucx_sleep(ls_transport *transport, int64_t until_ns)
{
    ls_ucx *u = of(transport);
    struct pollfd fds[2] = {{u->worker_fd, POLLIN, 0}, {u->wake_fd, POLLIN, 0}};
    int64_t now = ls_time_now_ns(), left;
    uint64_t count;

    pthread_mutex_lock(&u->lock);
    bool news = u->failed || u->finished || u->api.ucp_worker_arm(u->worker) != UCS_OK;
    left = ls_min_i64(until_ns, u->next_heartbeat_ns) - now;
    pthread_mutex_unlock(&u->lock);
    if (news || left <= 0)
        return;
    struct timespec t = {left / LS_NS_PER_S, left % LS_NS_PER_S};
    if (ppoll(fds, 2, &t, NULL) > 0 && fds[1].revents && read(u->wake_fd, &count, sizeof count) < 0)
        return; /* another thread read it: awake all the same */
}

static void ucx_count(const ls_transport *transport, int peer, int64_t *sent_out,
                      int64_t *received_out)
{
    const ls_ucx *u = (const ls_ucx *)transport;

    *sent_out = atomic_load_explicit(&u->links[peer].sent_bytes, memory_order_relaxed);
    *received_out = atomic_load_explicit(&u->links[peer].received_bytes, memory_order_relaxed);
}

/* --- closing -------------------------------------------------------------------------------- */

/* Progress until the request is done or the time has come; frees it. */
static void await(ls_ucx *u, ucs_status_ptr_t request, int64_t until_ns)
{
    if (!request || UCS_PTR_IS_ERR(request))
        return;
    while (u->api.ucp_request_check_status(request) == UCS_INPROGRESS &&
           ls_time_now_ns() < until_ns)
        if (!u->api.ucp_worker_progress(u->worker))
            poll(NULL, 0, 0);
    u->api.ucp_request_free(request);
}

/* Messages that are sent and done still arrive after closing; what is in flight is dropped. */
static void say_goodbye(ls_ucx *u)
{
    ucp_request_param_t none = {0};
    int64_t posts = 0, until_ns;

    for (int r = 0; r < u->args.ranks; r++) {
        posts += u->links[r].posts;
        if (u->links[r].ep && !u->links[r].gone)
            ls_ucx_say(u, r, LS_UCX_BYE);
    }
    until_ns = ls_time_now_ns() + (posts ? 10 * LS_NS_PER_MS : u->args.silence_ns);
    for (int r = 0; r < u->args.ranks && !u->failed; r++)
        if (u->links[r].ep && !u->links[r].gone)
            await(u, u->api.ucp_ep_flush_nbx(u->links[r].ep, &none), until_ns);
}

static void close_links(ls_ucx *u)
{
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};

    if (!u->failed && u->connected)
        say_goodbye(u);
    u->failed = true; /* later callbacks find no transport */
    int64_t until_ns = ls_time_now_ns() + 100 * LS_NS_PER_MS;
    for (int r = 0; r < u->args.ranks; r++)
        if (u->links[r].ep)
            await(u, u->api.ucp_ep_close_nbx(u->links[r].ep, &force), until_ns);
    ls_ucx_drop(u);
}

static void stop_progress(ls_ucx *u)
{
    uint64_t one = 1;

    if (!u->has_thread)
        return;
    while (write(u->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(u->progress_thread, NULL);
    u->has_thread = false;
}

/* In the reverse order of opening: the thread, links, worker, context, memory, library. */
static void ucx_close(ls_transport *transport)
{
    ls_ucx *u = of(transport);

    if (!transport)
        return;
    stop_progress(u);
    if (u->worker && u->links)
        close_links(u);
    if (u->worker)
        u->api.ucp_worker_destroy(u->worker);
    if (u->context)
        u->api.ucp_cleanup(u->context);
    for (int r = 0; u->links && r < u->args.ranks; r++)
        ls_mem_free(u->links[r].address);
    if (u->wake_fd >= 0)
        close(u->wake_fd);
    if (u->stop_fd >= 0)
        close(u->stop_fd);
    if (u->locked)
        pthread_mutex_destroy(&u->lock);
    ls_ucx_free_memory(u);
    ls_mem_free(u->links);
    ls_mem_free(u->address);
    ls_ucx_unload(&u->api);
    ls_mem_free(u);
}

/* --- opening -------------------------------------------------------------------------------- */

static ls_status refused(const ls_ucx *u, const char *what, ucs_status_t status)
{
    ls_fail(LS_EIO, "UCX cannot %s: %s", what, u->api.ucs_status_string(status));
    ls_err_hint(
        "\"ucx_info -d\" lists what UCX finds; UCX_TLS and UCX_NET_DEVICES narrow it down.");
    return LS_EIO;
}

/* A context and a worker that can be slept on, with one handler for all active messages. */
static ls_status start_worker(ls_ucx *u)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = LS_UCX_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = ls_ucx_on_chunk,
        .arg = u,
    };
    ucs_status_t s =
        u->api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, NULL, &u->context);

    if (s != UCS_OK) {
        u->context = NULL;
        return refused(u, "start", s);
    }
    s = u->api.ucp_worker_create(u->context, &worker, &u->worker);
    if (s != UCS_OK) {
        u->worker = NULL;
        return refused(u, "make a worker", s);
    }
    s = u->api.ucp_worker_set_am_recv_handler(u->worker, &handler);
    if (s == UCS_OK)
        s = u->api.ucp_worker_get_efd(u->worker, &u->worker_fd);
    return s == UCS_OK ? LS_OK : refused(u, "be waited for", s);
}

/* UCX's address behind our own head, which has a checksum, the generation and the rank. */
static ls_status make_address(ls_ucx *u)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS |
                                            UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS |
                                            UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER,
                              .address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY};
    ucs_status_t s = u->api.ucp_worker_query(u->worker, &attr);
    address_head head = {address_magic, 0, u->args.generation, (uint32_t)u->args.rank, 0};
    ls_status st = LS_OK;

    if (s != UCS_OK)
        return refused(u, "say its address", s);
    head.len = (uint32_t)attr.address_length;
    u->address_len = sizeof head + attr.address_length;
    if (u->address_len > LS_UCX_ADDRESS_BYTES || attr.max_am_header < sizeof(ls_ucx_frame)) {
        st = ls_fail(LS_EIO, "UCX's address has %zu bytes, its headers may have %zu: unusable",
                     attr.address_length, attr.max_am_header);
        ls_err_hint("Narrow down the networks it uses with UCX_NET_DEVICES.");
        goto out;
    }
    u->address = ls_mem_alloc(u->address_len);
    if (!u->address) {
        st = LS_ENOMEM;
        goto out;
    }
    memcpy((char *)u->address + sizeof head, attr.address, attr.address_length);
    memcpy(u->address, &head, sizeof head);
    head.crc = ls_hash_crc32c(0, (char *)u->address + 8, u->address_len - 8);
    memcpy(u->address, &head, sizeof head);
out:
    u->api.ucp_worker_release_address(u->worker, attr.address);
    return st;
}

/* The lock and the thread; from here on every call of UCX holds the lock. */
static ls_status start_progress(ls_ucx *u)
{
    sigset_t all, before;

    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    u->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->wake_fd < 0 || u->stop_fd < 0)
        return ls_fail_sys(LS_EIO, "cannot make an event descriptor for UCX");
    if (pthread_mutex_init(&u->lock, NULL) != 0)
        return ls_fail(LS_ENOMEM, "cannot make a mutex for UCX");
    u->locked = true;
    u->tick_ns = ls_time_now_ns();
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(&u->progress_thread, NULL, progress_main, u);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (e != 0)
        return ls_fail(LS_EIO, "cannot start a thread for UCX: %s", strerror(e));
    u->has_thread = true;
    return LS_OK;
}

static const ls_transport_table table = {
    .name = "ucx",
    .send = ucx_send,
    .receive = ucx_receive,
    .poll = ucx_poll,
    .sleep = ucx_sleep,
    .wake = wake,
    .count = ucx_count,
    .close = ucx_close,
};

ls_status ls_ucx_open(const ls_ucx_args *args, ls_transport **transport_out)
{
    ls_ucx *u = ls_mem_alloc(sizeof *u);
    ls_status st = LS_OK;

    if (!u)
        return LS_ENOMEM;
    u->base.table = &table;
    u->args = *args;
    u->args.silence_ns = args->silence_ns ? args->silence_ns : LS_NS_PER_S;
    u->args.first_ns = args->first_ns ? args->first_ns : 10 * LS_NS_PER_S;
    u->heartbeat_ns = u->args.silence_ns / 4;
    u->wake_fd = u->stop_fd = -1;
    LS_TRY(st, ls_ucx_load(&u->api, args->library), out);
    u->links = ls_mem_array((size_t)args->ranks, sizeof *u->links);
    if (!u->links) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, start_worker(u), out);
    LS_TRY(st, make_address(u), out);
    LS_TRY(st, start_progress(u), out);
    *transport_out = &u->base;
out:
    if (st != LS_OK)
        ucx_close(&u->base);
    return st;
}

void ls_ucx_address(const ls_transport *transport, const void **bytes_out, size_t *len_out)
{
    const ls_ucx *u = (const ls_ucx *)transport;

    *bytes_out = u->address;
    *len_out = u->address_len;
}

/* --- connecting ----------------------------------------------------------------------------- */

/* An address is whole, of this generation and of the expected rank. */
static ls_status check_address(const ls_ucx *u, int rank, const ls_ucx_peer *peer)
{
    address_head head;

    if (!peer->bytes || peer->len <= sizeof head || peer->len > LS_UCX_ADDRESS_BYTES)
        return ls_fail(LS_EDATA, "the UCX address of rank %d has %zu bytes: it is damaged", rank,
                       peer->len);
    memcpy(&head, peer->bytes, sizeof head);
    if (head.magic != address_magic || head.len != peer->len - sizeof head ||
        head.crc != ls_hash_crc32c(0, (const char *)peer->bytes + 8, peer->len - 8))
        return ls_fail(LS_EDATA, "the UCX address of rank %d is damaged", rank);
    if (head.generation != u->args.generation)
        return ls_fail(LS_EDATA, "the UCX address of rank %d is of generation %llu, this is %llu",
                       rank, (unsigned long long)head.generation,
                       (unsigned long long)u->args.generation);
    if (head.rank != (uint32_t)rank)
        return ls_fail(LS_EDATA, "the UCX address of rank %d is that of rank %u", rank, head.rank);
    return LS_OK;
}

ls_status ls_ucx_connect(ls_transport *transport, const ls_ucx_peer *peers)
{
    ls_ucx *u = of(transport);
    ls_status st = LS_OK;

    pthread_mutex_lock(&u->lock);
    LS_BUG_IF(u->connected, "connected twice");
    for (int r = 0; r < u->args.ranks; r++)
        LS_TRY(st, check_address(u, r, &peers[r]), out);
    for (int r = 0; r < u->args.ranks; r++) {
        size_t len = peers[r].len - sizeof(address_head);

        ls_mem_free(u->links[r].address); /* of an attempt that failed for memory */
        u->links[r].address = ls_mem_alloc(len);
        if (!u->links[r].address) {
            st = LS_ENOMEM;
            goto out;
        }
        memcpy(u->links[r].address, (const char *)peers[r].bytes + sizeof(address_head), len);
    }
    u->connected = true;
out:
    pthread_mutex_unlock(&u->lock);
    return st;
}
#endif
