/* tcp_world.h -- ranks on loopback for the tests of the TCP transport, and a proxy that misbehaves.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "comm/transport/tcp.h"

enum { WORLD_RANKS = 80 };

typedef struct world {
    int ranks;
    int listen_fd[WORLD_RANKS];
    char address[WORLD_RANKS][64];
    const char *addresses[WORLD_RANKS];
    uint8_t secret[32];
    int messages;     /* of world_traffic(), in each direction */
    ls_tcp_args args; /* rank, listen_fd and addresses are set for each rank */
} world;

void world_init(world *w, int ranks);
void world_release(world *w);
ls_status world_open(world *w, int rank, ls_transport **transport_out);

/* Poll and sleep until all of messages are done or the time is up. */
ls_status world_wait(ls_transport *transport, ls_message *const *messages, int count,
                     int64_t wait_ns);
#define WORLD_SOON ls_test_ms(30000) /* for what comes for sure */

/* Run one function per rank, each in a thread of its own with an open transport, then close. */
typedef void (*world_rank)(world *w, int rank, ls_transport *transport);
void world_run(world *w, world_rank run);

/* What a message with this tag holds; the same on both sides. */
const uint8_t *world_bytes(uint64_t tag);
enum { WORLD_MOST = 8 << 20 }; /* longest message */

/* Messages of 0 B to 8 MiB both ways between two ranks, posted in different orders; checks them. */
void world_traffic(world *w, int rank, ls_transport *transport);
int64_t world_size(uint64_t tag);

int world_open_fds(void);

/* Forwards connections to `target`; every now and then it cuts one or flips a bit. */
typedef struct proxy {
    int listen_fd;
    char address[64];
    char target[64];
    atomic_long cut_after;  /* about so many bytes between cuts of a connection; 0: never */
    atomic_long flip_after; /* about so many bytes between flipped bits; 0: never */
    atomic_bool frozen;     /* pass nothing on: a link that was cut silently */
    atomic_bool stop;
    atomic_int cuts, flips;
    pthread_t thread;
} proxy;
void proxy_start(proxy *p, const char *target);
void proxy_stop(proxy *p);
