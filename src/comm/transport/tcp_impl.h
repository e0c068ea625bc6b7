/* tcp_impl.h -- the parts of the TCP transport.
 *
 * A transport has a link to each rank, a link has channels (sockets): channel 0 for small messages
 * and control, the others for chunks of large ones, so that a small message never waits behind
 * megabytes. Each channel counts its frames and keeps what it sent until the other side confirmed
 * it.
 *
 * Inside the transport a failure is sticky: ls_tcp_fail() keeps the record, and the functions of
 * the table return it. Only the calling thread touches anything here, but for wake_fd. */
#pragma once
#include <sys/uio.h>
#include "base/err.h"
#include "comm/transport/transport.h"
#include "comm/transport/tcp.h"
#include "comm/transport/tcp_flaps.h"
#include "comm/transport/tcp_wire.h"
#include "net/acceptor.h"
#include "net/secret.h"
#include "net/sock.h"

typedef struct ls_tcp ls_tcp;
typedef struct ls_tcp_link ls_tcp_link;
typedef struct ls_tcp_channel ls_tcp_channel;
typedef struct ls_tcp_posted ls_tcp_posted;
typedef struct ls_tcp_frame ls_tcp_frame;
typedef struct ls_tcp_block ls_tcp_block;

enum {
    LS_TCP_KEEP = 32,            /* unconfirmed chunks of a channel */
    LS_TCP_POOL = 1 << 20,       /* bytes of small messages a rank keeps for a peer before they are
                                    asked for: the credit of that peer */
    LS_TCP_DAMAGES = 5,          /* times that the same frame may arrive damaged */
    LS_TCP_SIZES = 5,            /* classes of blocks: 256 B to 64 KiB */
    LS_TCP_BUCKETS = 64,         /* of an empty map */
    LS_TCP_IN_BYTES = 16 * 1024, /* read ahead on channel 0 */
    LS_TCP_IN_BULK = 1024        /* and on the others */
};

/* Memory of a small message: a copy that may have to be sent again, or one that came too early. */
struct ls_tcp_block {
    _Alignas(16) int size; /* class; while the block is free, its list uses the first bytes */
    _Alignas(16) uint8_t bytes[];
};

/* What a tag stands for at a link; kind and tag are the key of the link's map. */
typedef enum ls_tcp_post_kind {
    LS_TCP_RECEIVE, /* a posted receive */
    LS_TCP_SEND,    /* a posted large send, until it is confirmed */
    LS_TCP_EARLY,   /* a small message that came before its receive */
    LS_TCP_CLEARED, /* READY came before its send */
    LS_TCP_TOLD,    /* ANNOUNCE came before its receive */
    LS_TCP_SWALLOW  /* ANNOUNCE still to come for a message that is complete */
} ls_tcp_post_kind;

struct ls_tcp_posted {
    ls_tcp_posted *chain; /* of the map */
    ls_tcp_posted *prev,
        *next; /* of the link's list of waiting sends, or (next) of its bulk queue */
    ls_tcp_post_kind kind;
    uint64_t tag;
    int64_t bytes, left; /* of the message; not yet received or not yet confirmed */
    int64_t coming;      /* receive: bytes that channels are reading for it now */
    int64_t cut;         /* send: where the next chunk begins */
    int64_t since_ns;    /* send: posted */
    ls_message *message;
    ls_tcp_block *block; /* early: the message */
    bool announced;      /* send: ANNOUNCE sent; receive: ANNOUNCE came */
    bool ready;          /* receive: READY sent */
};

/* A counted frame, from the moment it is made until it is confirmed. */
struct ls_tcp_frame {
    ls_tcp_frame *next;
    ls_tcp_wire wire;
    uint8_t header[LS_TCP_WIRE_BYTES];
    const uint8_t *payload;
    ls_tcp_block *block; /* small message: the copy */
    ls_tcp_posted *post; /* chunk: of this send */
    ls_message *message; /* small message: done when written, then NULL */
    bool summed;         /* the payload's checksum is in wire */
};

typedef enum ls_tcp_state {
    LS_TCP_IDLE,       /* not wanted yet */
    LS_TCP_WAITING,    /* for the next try, or for the other side to connect */
    LS_TCP_CONNECTING, /* this side connects */
    LS_TCP_HELLO,      /* connected; handshake under way */
    LS_TCP_RESUMING,   /* handshake passed; RESUME sent, the other's awaited */
    LS_TCP_OPEN,
    LS_TCP_OVER /* the other side has said BYE */
} ls_tcp_state;

struct ls_tcp_channel {
    ls_tcp_link *link;
    int index;
    ls_tcp_state state;
    int fd;                  /* -1: none */
    uint32_t watched;        /* epoll events asked for */
    ls_handshake *handshake; /* owned while this side connects */

    /* Going out: notes are single headers, not counted; one is under way at a time. */
    ls_tcp_frame *first, *last, *unsent; /* kept frames; the first that is not fully written */
    size_t sent_of;                      /* bytes written of `unsent` */
    int kept;
    uint64_t counted, written, confirmed; /* last sequence number given, fully written, confirmed */
    uint8_t note[LS_TCP_WIRE_BYTES];
    size_t note_left;
    bool note_wanted;
    bool lends;   /* large writes are not copied (tcp_zerocopy.c) */
    int64_t lent; /* writes whose pages the kernel has not given back */

    /* Coming in. */
    uint64_t received, told; /* last sequence number received; last one we confirmed */
    uint8_t *in;             /* owned, LS_TCP_IN_...; made at first use */
    size_t in_at, in_len, in_cap;
    bool in_payload;
    ls_tcp_wire head;    /* of the payload that is being read */
    uint8_t *to;         /* where it goes */
    size_t got;          /* of head.length */
    uint32_t crc;        /* of what came */
    ls_tcp_posted *post; /* the receive it belongs to, or NULL */
    ls_tcp_block *block; /* or its own memory */
    uint8_t *staging;    /* owned, chunk_bytes: chunks that are added; made at first use */

    /* Trouble. */
    int64_t broken_ns; /* since when it should be open and is not; 0: no trouble */
    int64_t retry_ns;  /* when this side tries again */
    int64_t pause_ns;  /* the wait before the next try */
    int refusals;      /* connections refused since it broke */
    bool answers;      /* the other kernel took a connection since it broke */
    int damages;       /* frames damaged since the last good one */
    char why[96];      /* what broke it */
};

struct ls_tcp_link {
    ls_tcp *tcp;
    int peer;
    char name[160]; /* "rank 2 (node1, 10.0.0.2:40001)" */
    ls_sock_address address;
    bool reached;             /* has an address */
    bool held, urgent;        /* has an entry in tcp->held; it leaves with the next poll */
    bool used;                /* has an entry in tcp->used */
    bool leaving;             /* it said BYE on a channel */
    bool bye;                 /* and all that it sent before is read */
    bool known;               /* instance is valid */
    uint64_t instance;        /* the other process */
    ls_tcp_channel *channels; /* owned, tcp->channels of them */
    int64_t heard_ns, said_ns;
    int64_t quiet_ns; /* since when even its kernel does not answer; 0: it does */
    int64_t sent_bytes, received_bytes;
    ls_tcp_flaps flaps;

    ls_tcp_posted **buckets;                     /* owned map, made at first use */
    int bucket_count, records, foreign, posted;  /* in the map; made by the peer; by this side */
    int small;                                   /* posted receives that come on channel 0 */
    ls_tcp_posted *waiting_first, *waiting_last; /* sends that wait for READY, oldest first */
    ls_tcp_posted *bulk_first, *bulk_last;       /* sends whose chunks may go */

    uint32_t credit_used, credit_back; /* small bytes sent; of them consumed by the peer */
    uint32_t consumed, consumed_told;  /* small bytes taken here; the count we last sent */

    int probe_fd;                    /* the accepting side's probe of the other; -1: none */
    int64_t probe_ns, probe_late_ns; /* not before; given up at */
    bool probe_done;
};

struct ls_tcp {
    ls_transport transport; /* first */
    ls_tcp_args args;       /* pointers in it are not kept */
    ls_secret secret;
    ls_acceptor *acceptor;
    int epoll_fd, wake_fd;
    int channels; /* per link: args.sockets + 1 */
    uint64_t instance;
    ls_tcp_link *links; /* owned, args.ranks */
    int *used;          /* owned: ranks whose link was wanted at some time */
    int used_count;
    int *held; /* owned: ranks with frames on channel 0 that no write was tried for */
    int held_count;
    unsigned polls;    /* so far */
    int64_t looked_ns; /* the last of them */
    bool opening;
    bool moved;   /* since the last poll began */
    bool no_spin; /* the last sleep brought nothing, and nothing was begun since: do not spin */
    int troubled; /* channels with broken_ns */
    int64_t tick_ns;
    ls_err_record failure;                                      /* code LS_OK: none */
    void *free_frames, *free_posts, *free_blocks[LS_TCP_SIZES]; /* owned lists (tcp_post.c) */
    ls_tcp_stats stats;
};

/* Credit that a small message uses: its header, and its bytes rounded up. Both sides count like
 * this. */
static inline uint32_t ls_tcp_credit(int64_t bytes)
{
    return (uint32_t)(LS_TCP_WIRE_BYTES + ls_round_up(bytes, 64));
}

/* tcp.c */
/* Everything but the connections; fuzz_frame feeds frames to one made this way. */
ls_status ls_tcp_make(ls_tcp **tcp_out, const ls_tcp_args *args, int64_t deadline_ns);
void ls_tcp_fail(ls_tcp *tcp);                    /* the thread's last record becomes the failure */
void ls_tcp_fail_as(ls_tcp *tcp, int said_first); /* likewise; another rank has reported it first */
bool ls_tcp_failed(const ls_tcp *tcp);

/* tcp_post.c: the map of a link and memory that is used again */
ls_tcp_posted *ls_tcp_find(const ls_tcp_link *link, ls_tcp_post_kind kind, uint64_t tag);
ls_tcp_posted *ls_tcp_insert(ls_tcp_link *link, ls_tcp_post_kind kind, uint64_t tag, int64_t bytes);
void ls_tcp_remove(ls_tcp_link *link, ls_tcp_posted *post); /* out of the map; not freed */
void ls_tcp_free_post(ls_tcp *tcp, ls_tcp_posted *post);
ls_tcp_frame *ls_tcp_new_frame(ls_tcp *tcp);
void ls_tcp_free_frame(ls_tcp *tcp, ls_tcp_frame *frame);
ls_tcp_block *ls_tcp_new_block(ls_tcp *tcp, size_t bytes);
void ls_tcp_free_block(ls_tcp *tcp, ls_tcp_block *block); /* NULL is allowed */
void ls_tcp_free_all(ls_tcp *tcp);

/* tcp_send.c */
ls_status ls_tcp_send(ls_tcp_link *link, ls_message *message);
/* LS_EDATA: the other side's receive has another length. */
ls_status ls_tcp_check_send(const ls_tcp_link *link, uint64_t tag, int64_t sent, int64_t expected);
void ls_tcp_say(ls_tcp_link *link, ls_tcp_wire_kind kind, uint64_t tag, int64_t bytes);
void ls_tcp_answer(ls_tcp_link *link, int about, const uint8_t *bytes, int len);
void ls_tcp_note(ls_tcp_channel *channel, ls_tcp_wire_kind kind, uint64_t tag, uint64_t offset);
void ls_tcp_pump(ls_tcp_channel *channel);
void ls_tcp_pump_held(ls_tcp *tcp, bool all); /* what is held back; all: also what rides */
void ls_tcp_pump_bulk(ls_tcp_link *link);
void ls_tcp_confirm(ls_tcp_channel *channel, uint64_t ack); /* frames up to ack have arrived */
void ls_tcp_start_bulk(ls_tcp_link *link, ls_tcp_posted *post);
void ls_tcp_announce_old(ls_tcp_link *link, int64_t now_ns);
/* At once or not at all: the last frame of a channel. */
void ls_tcp_last_words(ls_tcp_channel *channel, ls_tcp_wire_kind kind, int said_first,
                       const char *text);

/* tcp_zerocopy.c */
void ls_tcp_zerocopy_begin(ls_tcp_channel *channel); /* it has a new socket */
/* MSG_ZEROCOPY, or 0: this write is copied. */
int ls_tcp_zerocopy_flag(const ls_tcp_channel *channel, const struct iovec *vectors, size_t count);
void ls_tcp_zerocopy_lent(ls_tcp_channel *channel);    /* such a write was taken */
void ls_tcp_zerocopy_refused(ls_tcp_channel *channel); /* or not: too many pages are lent */
void ls_tcp_zerocopy_reap(ls_tcp_channel *channel);    /* the kernel's notices about them */

/* tcp_receive.c */
ls_status ls_tcp_receive(ls_tcp_link *link, ls_message *message);
void ls_tcp_read(ls_tcp_channel *channel);
void ls_tcp_reset_input(ls_tcp_channel *channel);

/* tcp_link.c */
void ls_tcp_want(ls_tcp_link *link, bool bulk); /* open what is not open yet */
void ls_tcp_break(ls_tcp_channel *channel, const char *why);
void ls_tcp_damage(ls_tcp_channel *channel, const char *why);
void ls_tcp_resume(ls_tcp_channel *channel, const ls_tcp_wire *wire);
void ls_tcp_adopt(ls_tcp_channel *channel, int fd); /* a socket whose handshake has passed */
void ls_tcp_event(ls_tcp_channel *channel, uint32_t events);
void ls_tcp_probe_event(ls_tcp_link *link);
void ls_tcp_admit(ls_tcp *tcp); /* callers at the acceptor */
void ls_tcp_tick_link(ls_tcp_link *link, int64_t now_ns);
void ls_tcp_forgive(ls_tcp *tcp, int64_t away_ns); /* time in which this side did not look */
void ls_tcp_watch(ls_tcp_channel *channel, uint32_t events);
void ls_tcp_bye(ls_tcp_channel *channel);
bool ls_tcp_is_neighbour(int a, int b, int ranks);
