/* ucx_impl.h -- UCX's functions by pointer, for the files of this transport only.
 *
 * The types are those of UCX's own header. Without that header the program builds all the same and
 * says that it was built without UCX. */
#pragma once
#include "comm/transport/ucx.h"

#ifndef LS_UCX_HEADERS
#if __has_include(<ucp/api/ucp.h>)
#define LS_UCX_HEADERS 1
#else
#define LS_UCX_HEADERS 0
#endif
#endif

#if LS_UCX_HEADERS
#include <pthread.h>
#include <stdatomic.h>
#include <ucp/api/ucp.h>

#define LS_UCX_FUNCTIONS(X)           \
    X(ucp_get_version)                \
    X(ucp_init_version)               \
    X(ucp_cleanup)                    \
    X(ucp_context_print_info)         \
    X(ucp_worker_create)              \
    X(ucp_worker_destroy)             \
    X(ucp_worker_query)               \
    X(ucp_worker_release_address)     \
    X(ucp_worker_get_efd)             \
    X(ucp_worker_arm)                 \
    X(ucp_worker_progress)            \
    X(ucp_worker_set_am_recv_handler) \
    X(ucp_ep_create)                  \
    X(ucp_ep_flush_nbx)               \
    X(ucp_ep_close_nbx)               \
    X(ucp_am_send_nbx)                \
    X(ucp_am_recv_data_nbx)           \
    X(ucp_am_data_release)            \
    X(ucp_request_check_status)       \
    X(ucp_request_free)               \
    X(ucs_status_string)

typedef struct ls_ucx_api {
    void *library;
#define LS_UCX_MEMBER(name) __typeof__(name) *name;
    LS_UCX_FUNCTIONS(LS_UCX_MEMBER)
#undef LS_UCX_MEMBER
} ls_ucx_api;

/* Open the library (NULL: the usual one) and find every function. LS_EUSAGE says what is missing.
 */
ls_status ls_ucx_load(ls_ucx_api *api, const char *library);
void ls_ucx_unload(ls_ucx_api *api); /* safe on one that is not loaded */

/* --- the transport, shared by ucx.c (links, waiting) and ucx_chunk.c (messages) ------------------
 */

enum {
    LS_UCX_AM_ID = 1,              /* of all our active messages */
    LS_UCX_EAGER_BYTES = 16 << 10, /* shorter chunks travel at once, longer ones when asked for */
    LS_UCX_WINDOW = 4,             /* chunks of one message that are under way */
    LS_UCX_STAGES = 8,             /* chunks that wait to be combined */
    LS_UCX_BUCKETS = 1024,
    LS_UCX_UNCLAIMED = 1 << 16, /* chunks that came before their receive was posted */
};

typedef enum ls_ucx_kind { LS_UCX_CHUNK = 1, LS_UCX_HEARTBEAT, LS_UCX_BYE } ls_ucx_kind;

/* Travels in front of every chunk. Both ends are of the same byte order, or the magic differs. */
typedef struct ls_ucx_frame {
    uint32_t magic;
    uint32_t kind;
    uint32_t from; /* rank */
    uint32_t crc;  /* CRC32C of the chunk */
    uint64_t key, generation, tag;
    int64_t bytes;  /* of the message */
    int64_t offset; /* of the chunk in it */
    int64_t len;    /* of the chunk */
} ls_ucx_frame;
_Static_assert(sizeof(ls_ucx_frame) == 64, "frames have no holes");

/* A message that was posted and is not done. */
typedef struct ls_ucx_post {
    struct ls_ucx_post *next, *all;
    ls_message *message;
    int64_t begun;   /* sending: bytes given to UCX */
    int64_t settled; /* receiving: bytes in place */
    int64_t places;  /* receiving: sum of the chunks' places, from 1; finds one that came twice */
    int64_t chunks;  /* sending: still to begin */
    int transfers;   /* chunks under way */
    bool queued;     /* sending: stands in `ready` */
} ls_ucx_post;

/* A chunk in flight: its frame, and the message it belongs to. */
typedef struct ls_ucx_transfer {
    struct ls_ucx_transfer *next, *all;
    struct ls_ucx *transport;
    ls_ucx_post *post; /* NULL: a heartbeat, or a chunk that no receive has claimed yet */
    int peer;
    ls_ucx_frame frame;
    void *data; /* came, not fetched: UCX's descriptor, or a copy of ours */
    bool fetch; /* data is where to fetch from, not the bytes */
    bool own;   /* data is ours */
    char *stage;
} ls_ucx_transfer;

typedef struct ls_ucx_queue {
    ls_ucx_transfer *first, **last;
} ls_ucx_queue;

typedef struct ls_ucx_link {
    ucp_ep_h ep; /* NULL until the pair talks */
    void *address;
    bool wanted;  /* one of us has sent to the other */
    bool heard;   /* it has sent something */
    bool gone;    /* it said goodbye */
    bool beating; /* a heartbeat is still on its way out */
    int64_t heard_ns, spoke_ns;
    int64_t posts; /* messages with it that are not done */
    int64_t unclaimed;
    _Atomic int64_t sent_bytes, received_bytes; /* written under the lock, read without it */
} ls_ucx_link;

typedef struct ls_ucx {
    ls_transport base; /* first */
    ls_ucx_api api;
    ls_ucx_args args;
    ucp_context_h context;
    ucp_worker_h worker;
    int worker_fd, wake_fd, stop_fd; /* worker_fd belongs to UCX */
    void *address;                   /* ours, owned */
    size_t address_len;
    bool connected;

    pthread_mutex_t lock; /* all below, and every call of UCX */
    pthread_t progress_thread;
    bool locked, has_thread; /* the lock and the thread exist */
    ls_ucx_link *links;
    ls_ucx_post *posted[LS_UCX_BUCKETS];        /* receives, by rank and tag */
    ls_ucx_transfer *unclaimed[LS_UCX_BUCKETS]; /* chunks, likewise */
    ls_ucx_post *ready;                         /* sends with room in their window */
    ls_ucx_queue fetches;                       /* chunks to fetch */
    ls_ucx_queue staged;                        /* chunks to fetch when a stage is free */
    char *stages[LS_UCX_STAGES];                /* free ones */
    int stage_count;
    char *stage_memory;
    ls_message *finished; /* done is set by the caller's own poll */
    int64_t tick_ns, heartbeat_ns, next_heartbeat_ns;
    bool failed;
    ls_err_record cause;
    ls_ucx_post *free_posts, *all_posts;
    ls_ucx_transfer *free_transfers, *all_transfers;
} ls_ucx;

/* ucx.c: the endpoint of a peer, made when it is first needed. LS_EPEER, and the transport
 * fails. */
ls_status ls_ucx_reach(ls_ucx *u, int peer);
/* ucx.c: the first failure stays the cause. What ls_fail() just recorded, or of a peer. */
void ls_ucx_break(ls_ucx *u);
void ls_ucx_break_peer(ls_ucx *u, int peer, const char *why);

/* ucx_chunk.c */
ls_status ls_ucx_post_send(ls_ucx *u, ls_message *message);
ls_status ls_ucx_post_receive(ls_ucx *u, ls_message *message);
void ls_ucx_say(ls_ucx *u, int peer, ls_ucx_kind kind);
void ls_ucx_pump(ls_ucx *u); /* begin what can begin */
ucs_status_t ls_ucx_on_chunk(void *transport, const void *header, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param);
void ls_ucx_drop(ls_ucx *u);        /* give back what UCX lent; while the worker lives */
void ls_ucx_free_memory(ls_ucx *u); /* after it */
#endif
