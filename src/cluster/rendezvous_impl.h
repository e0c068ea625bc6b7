/* rendezvous_impl.h -- what rendezvous.c and door.c share. */
#pragma once
#include "cluster/pulse.h"
#include "cluster/rendezvous.h"
#include "net/frame.h"
#include "net/gate.h"
#include "net/sock.h"

LS_C_BEGIN

enum {
    PROTOCOL = 1,
    LIMIT = 2 * LS_WORK_BYTES,
    VERSION = 96,
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
    WORD,
    PULSE,
    HOLD,
    LEAVE,
    BACK
};

typedef enum ls_rendezvous_phase { WAITED, JOINED, GONE_WELL, LOST } ls_rendezvous_phase;

typedef struct ls_rendezvous_peer {
    ls_frame_link link;
    ls_rendezvous_phase phase;
    bool linked;
    ls_sock_address from;
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    int ranks, node;
    uint16_t *ports; /* owned */
    ls_pulse pulse;  /* of a job that heals */
} ls_rendezvous_peer;

struct ls_rendezvous {
    ls_rendezvous_args args;
    char version[VERSION];
    ls_sock_address address; /* of the coordinator */
    char ip[LS_MEMBERS_TEXT];
    ls_members members;
    int node;
    bool met;
    int epoll_fd;
    int listen_fd;
    ls_gate *gate;
    ls_rendezvous_peer *peers; /* owned; the host's others, or the one coordinator */
    int n_peers;
    const ls_rendezvous_door *door; /* borrowed; NULL: the first failure ends the job */
    int pulse_fd;                   /* readable when signs of life are due; -1: never */
    int64_t beat_ns;                /* when they were last given */
    int next_node;                  /* number of the next newcomer */
    ls_rendezvous_peer
        late[LATE]; /* came when all were there; are heard, so that they can be told */
    int next_late;
    bool failed, told; /* a failure is known; the caller knows it, too */
    int code;          /* of the job: that of the first failure */
    ls_err_record why;
    bool ended;     /* who joined has heard END */
    bool dropped;   /* who joined: the coordinator is gone, or has given this node up */
    bool suspected; /* the host: a node failed because of another one, which did not say why yet */
    bool suspect_told; /* the caller knows it already */
    ls_str work;       /* who joined: what it was told to run */
    int suspect_code;
    ls_err_record suspect_why;
    int64_t suspect_ns; /* until then */
    int timer_fd;       /* readable at that time */
};

ls_status ls_rendezvous_watch(ls_rendezvous *rendezvous, int fd);
void ls_rendezvous_drop(ls_rendezvous_peer *peer);
void ls_rendezvous_send_text(ls_rendezvous_peer *peer, uint16_t type, const char *text);
void ls_rendezvous_refuse(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, const char *why);

/* The first failure of the job, wherever it was; told: the caller of attend() knows it. And that a
 * peer went away is it. */
void ls_rendezvous_decide(ls_rendezvous *rendezvous, int code, const ls_err_record *why, bool told);
void ls_rendezvous_decide_lost(ls_rendezvous *rendezvous, const ls_rendezvous_peer *peer);

/* To all who have joined. */
void ls_rendezvous_send_record(ls_rendezvous *rendezvous, uint16_t type, int code,
                               const ls_err_record *why);

/* "10.0.0.1:40001" without its port. */
void ls_rendezvous_ip(const ls_sock_address *address, char *ip, size_t cap);

/* Who joined: connect to r->address, and prove the secret. */
ls_status ls_rendezvous_connect(ls_rendezvous *rendezvous, int64_t deadline_ns);

/* The host: a gate at listen_fd. */
ls_status ls_rendezvous_open_gate(ls_rendezvous *rendezvous);

/* --- heir.c --- */

/* The host: a member comes back to it. */
void ls_rendezvous_take_back(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer,
                             const ls_frame *frame);

/* --- door.c --- */

/* A peer went away, or was silent for so long: the thread's last record says why. */
void ls_rendezvous_lose(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer, int64_t silent_ns);

/* Give signs of life, and look for those of others, when it is time. */
void ls_rendezvous_beat(ls_rendezvous *rendezvous);

/* A place for somebody who comes when the job runs; NULL: there is none. Who has joined then. */
ls_rendezvous_peer *ls_rendezvous_new_peer(ls_rendezvous *rendezvous);
void ls_rendezvous_admit(ls_rendezvous *rendezvous, ls_rendezvous_peer *peer);

/* Nodes that have no part in the job need not be waited for when it is over. */
void ls_rendezvous_dismiss(ls_rendezvous *rendezvous);

LS_C_END
