/* rendezvous_impl.h -- what rendezvous.c, first_join.c, late_join.c, heartbeat_watch.c,
 * rendezvous_failover.c and probe_messages.c share. */
#pragma once
#include "cluster/member/wire_codec.h"
#include "cluster/join/probe.h"
#include "cluster/member/heartbeat.h"
#include "cluster/join/rendezvous.h"
#include "cluster/member/witness.h"
#include "net/frame.h"
#include "net/acceptor.h"
#include "net/sock.h"

LS_C_BEGIN

enum {
    PROTOCOL = 3, /* 2: lists in pieces, views by numbers of a roster, witnesses; 3: successors */
    LIMIT = LS_MEMBERS_BYTES, /* of a message; the queue of a peer grows only with what waits */
    PIECE = 16 << 10,         /* of a list of members */
    LIST_S = 30,              /* without any progress in sending lists */
    VERSION = LS_RENDEZVOUS_VERSION,
    JOB = 64,
    BYE_S = 5,
    CAUSE_S = 1,
    ALIVE_S = 4,
    LATE = 4
};
enum {
    JOIN = 1,
    VIEW,
    REFUSED,
    FAILED,
    STOP,
    DONE,
    END,
    ASK,
    WORK,
    MESSAGE,
    HEARTBEAT,
    HOLD,
    LEAVE,
    LIST,
    REACH,
    PROBE,
    PROBED,
    BACK
};

/* What an epoll event is of, besides a peer, which is its place in the list. Of a election's
 * nothing is done here: hooks->looks() attends to it. */
enum {
    OF_LATE = 1 << 30,
    OF_ACCEPTOR = OF_LATE + LATE,
    OF_TIMER,
    OF_HEARTBEAT,
    OF_PROBE,
    OF_ELECTION
};

typedef enum ls_rendezvous_phase { WAITED, JOINED, GONE_WELL, LOST } ls_rendezvous_phase;

typedef struct ls_rendezvous_peer {
    ls_frame_link link;
    ls_rendezvous_phase phase; /* changed by ls_rendezvous_enter() only */
    bool linked;
    bool flushes;   /* watched for room to send */
    size_t list_at; /* bytes of the list of members that were sent */
    ls_sock_address from;
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    uint16_t probe_port; /* where it answers probes; 0: nowhere */
    int ranks, node;
    uint16_t *ports;        /* owned */
    ls_heartbeat heartbeat; /* of a job that heals */
    ls_witness witness;     /* and what others say when it is silent */
} ls_rendezvous_peer;

struct ls_rendezvous {
    ls_rendezvous_args args;
    char version[VERSION];
    ls_sock_address address; /* of the coordinator */
    char ip[LS_MEMBERS_TEXT];
    ls_members members;  /* on a node that joined: made of the list when first asked for */
    ls_str list;         /* its bytes, as they are sent to everybody */
    ls_wire_codec names; /* on a node that joined: the names in it */
    int node;
    bool met;
    int epoll_fd;
    int listen_fd;
    ls_acceptor *acceptor;
    ls_rendezvous_peer *peers; /* owned; the host's others, or the one coordinator */
    int n_peers, peers_room;
    int n_joined, n_ranks; /* peers that are JOINED, and their ranks */
    int free_from;         /* no peer before this place is free */
    int *place_of;         /* owned: the place of a node's peer, by its number; -1: none */
    int n_places;
    const ls_rendezvous_hooks *hooks; /* borrowed; NULL: the first failure ends the job */
    int heartbeat_fd;                 /* readable when heartbeats are due; -1: never */
    int64_t heartbeat_ns;             /* how often: longer where there are many peers */
    int slices, slice;                /* turns in which peers are looked at; the present one */
    int rarely, round;                /* the host sends a heartbeat every rarely rounds */
    int64_t beat_ns;                  /* when they were last given */
    ls_probe *probe;                  /* owned; NULL: none */
    int next_node;                    /* number of the next newcomer */
    ls_rendezvous_peer
        late[LATE]; /* came when all were there; kept, so that they hear why they are refused */
    int next_late;
    bool failed, told; /* a failure is known; the caller knows it, too */
    int code;          /* of the job: that of the first failure */
    ls_err_record why;
    bool ended;     /* on a node that joined: it has heard END */
    bool dropped;   /* on a node that joined: the host is gone, or has given it up */
    bool suspected; /* the host: a node failed because of another one, which did not say why yet */
    bool suspect_told; /* the caller knows it already */
    ls_str work;       /* on a node that joined: what to run */
    int suspect_code;
    ls_err_record suspect_why;
    int64_t suspect_ns; /* until then */
    int timer_fd;       /* readable at that time */
};

/* Events of fd come with this token: a place in the list of peers, or one of the OF_... */
ls_status ls_rendezvous_watch(ls_rendezvous *rendezvous, int fd, int token);
void ls_rendezvous_drop(ls_rendezvous_peer *peer);

/* A peer's phase, and the numbers that are kept of all. */
void ls_rendezvous_enter(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer,
                         ls_rendezvous_phase phase);

/* Queue a message. One that cannot be sent now goes when there is room; that a peer is lost is seen
 * when it is read from. */
void ls_rendezvous_send(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, uint16_t type,
                        const void *bytes, size_t len);
void ls_rendezvous_send_text(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, uint16_t type,
                             const char *text);
void ls_rendezvous_flush(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer);

/* The number of a peer's node is known: find it by that. */
ls_status ls_rendezvous_place(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, int node);
ls_rendezvous_peer *ls_rendezvous_find(ls_rendezvous *rendezvous, int node);

/* Until something has come, or the deadline, or for a second. */
void ls_rendezvous_wait(ls_rendezvous *rendezvous, int64_t deadline_ns);
void ls_rendezvous_refuse(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, const char *why);

/* Keep the first failure of the job, on whichever node it was; told: the caller of attend() knows
 * it. _lost: the failure is that this peer went away. */
void ls_rendezvous_decide(ls_rendezvous *rendezvous, int code, const ls_err_record *why, bool told);
void ls_rendezvous_decide_lost(ls_rendezvous *rendezvous, const ls_rendezvous_peer *peer);

/* To all peers that have joined. */
void ls_rendezvous_send_record(ls_rendezvous *rendezvous, uint16_t type, int code,
                               const ls_err_record *why);

/* The host: accept at listen_fd, and what a host of about this many nodes needs besides. */
ls_status ls_rendezvous_open_acceptor(ls_rendezvous *rendezvous, int nodes);

/* --- first_join.c ----------------------------------------------------------------------------- */

/* A node that joins: connect to r->address, prove the secret, name itself. */
ls_status ls_rendezvous_connect(ls_rendezvous *rendezvous, int64_t deadline_ns);
ls_status ls_rendezvous_call_in(ls_rendezvous *rendezvous, int64_t deadline_ns);
ls_status ls_rendezvous_check_ranks(int ranks);
void ls_rendezvous_set_ip(ls_rendezvous *rendezvous, const ls_sock_address *local);

/* The host: everybody has come. Make the list and send it to all, as fast as each of them takes it;
 * a peer that does not take it is disconnected, and counts as lost. And to one, behind whatever it was sent before.
 */
ls_status ls_rendezvous_spread(ls_rendezvous *rendezvous);
ls_status ls_rendezvous_send_list(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, int node);
ls_status ls_rendezvous_meet_join(ls_rendezvous *rendezvous, int64_t deadline_ns);

/* --- rendezvous_failover.c -------------------------------------------------------------------- */

/* Listen at a port of this node's address; 0: any that is free. */
ls_status ls_rendezvous_listen(const ls_rendezvous *rendezvous, uint16_t port, int *fd_out);

/* The host: a member comes back to it. */
void ls_rendezvous_take_back(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer,
                             const ls_frame *frame);

/* --- heartbeat_watch.c ------------------------------------------------------------------------ */

/* How often heartbeats are sent in a job of this many nodes. */
void ls_rendezvous_pace(ls_rendezvous *rendezvous, int nodes);

/* Send heartbeats, and look for those of others, when it is time. */
void ls_rendezvous_beat(ls_rendezvous *rendezvous);

/* --- late_join.c ------------------------------------------------------------------------------ */

/* A peer went away, or was silent for too long: the thread's last record says why. */
void ls_rendezvous_lose(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, int64_t silent_ns);

/* A place for a node that comes while the job runs; NULL: there is none. The peers that came so. */
ls_rendezvous_peer *ls_rendezvous_new_peer(ls_rendezvous *rendezvous);
void ls_rendezvous_admit(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer);

/* Nodes that have no part in the job need not be waited for when it is over. */
void ls_rendezvous_dismiss(ls_rendezvous *rendezvous);

/* --- probe_messages.c ------------------------------------------------------------------------- */

/* A peer has given a sign of life. */
void ls_rendezvous_heard(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer);

/* Where this node answers probes. It goes on without, where it cannot. */
void ls_rendezvous_open_probe(ls_rendezvous *rendezvous);

/* Tell the coordinator where that is. */
void ls_rendezvous_say_probe(ls_rendezvous *rendezvous);

/* The host: a peer is silent; ask others about it, when it is time to. */
void ls_rendezvous_ask_about(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, int64_t now);

/* Where somebody answers, a question at who joined, an answer at the host; and datagrams of other
 * nodes. */
void ls_rendezvous_take_probe(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer,
                              const ls_frame *frame);
void ls_rendezvous_attend_probe(ls_rendezvous *rendezvous);

LS_C_END
