/* transport.h -- moves messages between two ranks: shared memory, TCP, UCX, or a wrapper that
 * injects faults.
 *
 * A transport knows messages, not collectives. A message has a peer and a tag; a send and the
 * receive of the same tag meet, whichever was posted first. A tag is used once for each pair and
 * direction while a transport lives (the caller builds it from communicator, sequence number and
 * step). Messages of one pair may complete in any order.
 *
 * A sent message leaves with the next poll at the latest: messages to one peer that were sent
 * between two polls may leave together. No call waits, except `sleep`, which takes a time. One
 * thread at a time calls a transport; only `wake` may be called from others. Memory of a posted
 * message belongs to the transport until it is done. After a failure every later call fails with
 * the same reason: a transport does not recover by itself (a TCP link that was reset and resumed
 * within its time never failed). */
#pragma once
#include "base/err.h"
#include "kernel/combine.h"

LS_C_BEGIN

typedef struct ls_transport ls_transport;
typedef struct ls_message ls_message;

struct ls_message {
    int peer; /* rank in the list the transport was opened with */
    uint64_t tag;
    void *data;    /* sent from, or received into; never written when sending */
    int64_t bytes; /* must be equal on both sides; else LS_EDATA names both */
    bool add;      /* receive: data = op(data, what arrives) instead of what arrives */
    bool rides;    /* send: may wait for another one to this peer, or for the next sleep */
    ls_combine_op op;
    ls_dtype type;
    bool done;         /* set by the transport */
    ls_message *next_; /* the transport's own, while posted */
};

typedef struct ls_transport_table {
    const char *name; /* "shm", "tcp", "ucx", "wrap" */
    ls_status (*send)(ls_transport *transport, ls_message *message);
    ls_status (*receive)(ls_transport *transport, ls_message *message);
    /* Move what can be moved now. *moved_out: whether anything did. */
    ls_status (*poll)(ls_transport *transport, bool *moved_out);
    /* Until something can be moved, or `wake`, or until_ns. Returns early for no reason sometimes.
     */
    void (*sleep)(ls_transport *transport, int64_t until_ns);
    void (*wake)(ls_transport *transport);
    /* Bytes sent to and received from a peer so far, headers included. */
    void (*count)(const ls_transport *transport, int peer, int64_t *sent_out,
                  int64_t *received_out);
    void (*close)(ls_transport *transport); /* drops what is in flight; peers see it as a failure */
} ls_transport_table;

/* The first member of every transport. */
struct ls_transport {
    const ls_transport_table *table;
};

/* For transports: `bytes` bytes of a received message go to their place, `at` bytes from its
 * beginning; combined with what is there where the message says so. */
static inline void ls_message_put(const ls_message *message, int64_t at, const void *from,
                                  int64_t bytes)
{
    void *to = (char *)message->data + at;
    const void *const both[] = {to, from};
    const ls_combine two = {message->type, message->op, both, 2, &to, 1, 1};

    if (message->add && bytes > 0)
        ls_combine_run(&two, bytes / ls_dtype_bytes(message->type));
    else if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static inline void ls_transport_close(ls_transport *transport) /* NULL is allowed */
{
    if (transport)
        transport->table->close(transport);
}

LS_C_END
