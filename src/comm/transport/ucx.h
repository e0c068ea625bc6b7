/* ucx.h -- a transport over UCX, for machines with RDMA devices.
 *
 * UCX (libucp.so.0) is opened at run time; the program neither links nor needs it. Opening a
 * transport and exchanging addresses are two steps, because UCX chooses its own ports: every rank
 * opens, sends the bytes of ls_ucx_address() to all others over a way it already has, and calls
 * ls_ucx_connect() with those of all ranks. Links come up when a pair first talks.
 *
 * UCX takes up to a minute to report that a link was cut. So each pair that talks sends small
 * heartbeats, from a thread of the transport while the program makes no calls, and a peer that is
 * silent for `silence_ns` breaks the transport by name. UCX does not authenticate its peers either:
 * frames carry a key derived from the job's secret; frames without it, and frames of another
 * generation, are dropped. The key is sent in the clear: it keeps out strays, not a listener. */
#pragma once
#include "comm/transport/transport.h"

LS_C_BEGIN

enum {
    LS_UCX_ADDRESS_BYTES = 16384,   /* no address is longer */
    LS_UCX_CHUNK_BYTES = 256 << 10, /* four under way, as they are combined, fit into an L2 cache */
};

typedef struct ls_ucx_args {
    int rank, ranks;
    uint64_t generation;
    uint64_t key;        /* the same on all ranks; of the job's secret */
    int64_t silence_ns;  /* 0: one second */
    int64_t first_ns;    /* until the first frame of a peer must come; 0: ten seconds */
    const char *library; /* NULL: LINESHAFT_UCX_LIBRARY in the environment, or libucp.so.0 */
} ls_ucx_args;

/* LS_EUSAGE: built without UCX, or its library is missing or of another version; the message says
 * which. LS_EIO: UCX does not start. */
ls_status ls_ucx_open(const ls_ucx_args *args, ls_transport **transport_out);

/* What the other ranks need, borrowed until the transport is closed; at most
 * LS_UCX_ADDRESS_BYTES. */
void ls_ucx_address(const ls_transport *transport, const void **bytes_out, size_t *len_out);

typedef struct ls_ucx_peer {
    const void *bytes; /* borrowed while connecting */
    size_t len;
} ls_ucx_peer;

/* The addresses of all `ranks` ranks in order, the own one included. Waits for no rank. LS_EDATA:
 * an address is damaged, of another rank or of another generation; nothing was connected. */
ls_status ls_ucx_connect(ls_transport *transport, const ls_ucx_peer *peers);

/* Whether UCX would go through an RDMA device here: one of the machine has an active port, and UCX
 * (with the UCX_TLS and UCX_NET_DEVICES of the environment) lists it. */
bool ls_ucx_has_rdma(void);

/* The first RDMA device below `folder` (/sys/class/infiniband) with an active port. */
bool ls_ucx_find_port(const char *folder, char device_out[64]);

LS_C_END
