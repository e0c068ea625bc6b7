/* quorum.h -- who may make the next view when the coordinator is lost: the rules, without sockets,
 * files or clocks.
 *
 * Every node of a job has a part in this. It keeps a *promise* on disk: the highest term it has
 * heard of, whom it voted for in it, and the newest view that it has accepted. A *view* here is a
 * generation and its nodes in order: the first is the coordinator that made it, the next ones are
 * its successors. docs/design/failover.pml has the same rules, and spin proves them.
 *
 *   a vote        one a term, kept on disk, and only for a node whose view is not older than one's
 *                 own: by the term in which it was offered, then the generation, then what is
 * granted enough        more than half of the nodes of a view; or exactly half of them with its
 * first one: so of two nodes the coordinator's side goes on coordinator   of a term: has the votes
 * of enough nodes of its view, and of the view before while it is not known that its own holds. It
 * offers its view once more, in its own term a view holds  when enough of its nodes, and of the
 * nodes of the view that it was made from, have accepted it in one term. Only from a view that
 * holds in this term the next is made a grant       the commit token of a manifest: a number that
 * grows; granted when enough nodes of the view have it on disk. So a step is granted in one
 * generation only minority      who has not heard for 3 s that a coordinator has enough nodes
 * behind it stops training, keeps its memory for 60 s to rejoin, then leaves
 *
 *   role      leaves it by
 *   FOLLOWS   look(): nothing was heard of a coordinator -> ASKS
 *   ASKS      would enough nodes vote for it? Changes nobody's term. hear(): yes -> STANDS
 *   STANDS    hear(): enough votes -> LEADS; look(): too late -> ASKS
 *   LEADS     look(): enough nodes were silent for too long -> FOLLOWS
 *   any       hear(): a later term, or the coordinator of this one -> FOLLOWS
 *
 * Whoever calls in gives the time. Promises are kept, and messages sent, through two functions of
 * the caller's; no message goes out before the promise that it depends on was kept, so a node whose
 * disk fails falls silent. A node that lost its journal, or whose journal was damaged, must come
 * back with a new number: it may have voted. One thread. */
#pragma once
#include "base/err.h"
#include "base/str.h"
#include "cluster/member/members.h"

LS_C_BEGIN

/* Beyond so many nodes a job has no successors: every answer is counted by going through all. */
enum { LS_QUORUM_NODES = 1024, LS_QUORUM_ROUNDS = 64 };

typedef struct ls_quorum_view {
    uint64_t generation;
    uint64_t made;   /* the term in which it was offered last */
    int64_t granted; /* the highest commit token; -1: none */
    bool held;       /* known to hold: then base says the same as member */
    int n, n_base;
    uint64_t member[LS_QUORUM_NODES]; /* numbers of nodes, drawn at random when an agent starts */
    uint64_t base[LS_QUORUM_NODES];   /* of the view that it was made from */
} ls_quorum_view;

/* What a node has on disk. */
typedef struct ls_quorum_promise {
    uint64_t self;        /* its number */
    uint64_t term, voted; /* 0: for nobody */
    ls_quorum_view view;
} ls_quorum_promise;

/* As the payload of a journal's record, and back. LS_EDATA: damaged. */
void ls_quorum_encode(const ls_quorum_promise *promise, ls_str *out);
ls_status ls_quorum_decode(ls_quorum_promise *promise, const void *bytes, size_t len);

/* Copies only the nodes that are there. */
void ls_quorum_view_copy(ls_quorum_view *to, const ls_quorum_view *from);

/* Whether a set of nodes, one flag for each of the list, is enough. */
bool ls_quorum_enough(const bool *in, int n);

typedef enum ls_quorum_kind {
    LS_QUORUM_BEAT = 1, /* the coordinator lives; with a view for who does not have it */
    LS_QUORUM_ACK,      /* and the answer: what I have on disk */
    LS_QUORUM_ASK,      /* would you vote for me? */
    LS_QUORUM_VOTE,     /* vote for me */
    LS_QUORUM_ANSWER    /* to these two */
} ls_quorum_kind;

typedef struct ls_quorum_message {
    ls_quorum_kind kind;
    uint64_t from, to;
    uint64_t term;             /* of the sender; of an ASK, the one it would stand in */
    uint64_t made, generation; /* of the sender's view */
    int64_t granted;
    bool held;
    uint64_t round;             /* of a BEAT, and of its ACK */
    int64_t age_ns;             /* of a BEAT: since enough nodes confirmed the coordinator */
    bool yes, trial;            /* of an ANSWER; trial: to an ASK */
    uint64_t leader;            /* whom the sender takes for the coordinator; 0: nobody */
    const ls_quorum_view *view; /* of a BEAT, or NULL; borrowed during the call */
} ls_quorum_message;

/* As the payload of a frame, and back; a view goes to *view, which the message then points at.
 * LS_EDATA: damaged. */
void ls_quorum_encode_message(const ls_quorum_message *message, ls_str *out);
ls_status ls_quorum_decode_message(ls_quorum_message *message, ls_quorum_view *view,
                                   const void *bytes, size_t len);

typedef struct ls_quorum_times {
    int64_t beat_ns;    /* between two beats; 250 ms */
    int64_t suspect_ns; /* silence after which successors ask; 1 s */
    int64_t dead_ns;    /* silence after which a node is left out of the next view; 3 s */
    int64_t stop_ns;    /* without enough nodes: stop training; 3 s */
    int64_t leave_ns;   /* and leave; 60 s */
} ls_quorum_times;
extern const ls_quorum_times ls_quorum_usual;

/* What the rules need of their caller. */
typedef struct ls_quorum_hands {
    bool (*keep)(void *context, const ls_quorum_promise *promise); /* true: it is on the disk */
    void (*send)(void *context, const ls_quorum_message *message); /* may be lost */
    /* On the coordinator: the view holds (its base is still the view before), a step is granted. */
    void (*holds)(void *context, const ls_quorum_view *view);
    void (*granted)(void *context, int64_t step);
    void *context;
} ls_quorum_hands;

typedef enum ls_quorum_role {
    LS_QUORUM_FOLLOWS,
    LS_QUORUM_ASKS,
    LS_QUORUM_STANDS,
    LS_QUORUM_LEADS
} ls_quorum_role;

/* What a node knows of another. */
typedef struct ls_quorum_peer {
    uint64_t id;
    bool in_view, in_base, votes;
    uint64_t made, generation; /* it has this on disk */
    int64_t granted;
    uint64_t round;   /* the latest beat that it has answered */
    int64_t heard_ns; /* its last answer to a beat */
} ls_quorum_peer;

typedef struct ls_quorum {
    ls_quorum_promise promise;
    bool dirty; /* the promise is not on disk as it is here */
    ls_quorum_times times;
    ls_quorum_hands hands;
    ls_quorum_role role;
    uint64_t leader;  /* of this term; 0: not known */
    uint64_t runs;    /* the highest generation that is known to hold */
    int64_t asked;    /* the step that this coordinator was asked to grant; -1: none */
    int64_t chosen;   /* granted, and enough nodes have it */
    uint64_t behind;  /* the generation of a newer view that others told of; 0: none */
    int64_t heard_ns; /* of a coordinator, last */
    int64_t firm_ns;  /* when a coordinator last had enough nodes behind it */
    int64_t next_ns;  /* of the next beat, or try */
    uint64_t round, firm_round, tries;
    int64_t sent_ns[LS_QUORUM_ROUNDS]; /* of the last rounds */
    int n_peers;                       /* the nodes of the view and of its base */
    ls_quorum_peer peer[2 * LS_QUORUM_NODES], before[2 * LS_QUORUM_NODES]; /* and the last list */
} ls_quorum;

/* With a promise: the first one of a job (term 1, voted for the coordinator, a view that is held),
 * an empty one of a newcomer (generation 0), or what the journal had. leads: only in the first
 * case.
 */
void ls_quorum_init(ls_quorum *quorum, const ls_quorum_promise *promise, bool leads,
                    const ls_quorum_hands *hands, const ls_quorum_times *times, int64_t now_ns);

void ls_quorum_hear(ls_quorum *quorum, const ls_quorum_message *message, int64_t now_ns);
void ls_quorum_look(ls_quorum *quorum, int64_t now_ns); /* at the clock: each 50 ms or so */

/* What the caller knows of the coordinator by other means: it lives; its connection has ended. Only
 * when successors ask depends on this. */
void ls_quorum_assure(ls_quorum *quorum, int64_t now_ns);
void ls_quorum_suspect(ls_quorum *quorum, int64_t now_ns);

/* The coordinator: the nodes of the next view, itself first: those who answer, in their order, and
 * who wants to join. False: there is nothing to change, or it may not be changed now: the view does
 * not hold yet, or too few answer. */
bool ls_quorum_plan(const ls_quorum *quorum, const uint64_t *joins, int n_joins, int64_t now_ns,
                    uint64_t *member_out, int *n_out);
/* Offer it. LS_EBUSY: not the coordinator, or the present view does not hold yet. */
ls_status ls_quorum_offer(ls_quorum *quorum, const uint64_t *member, int n, int64_t now_ns);

/* The coordinator: ask for the commit token of a step; hands.granted() tells. LS_EBUSY: not now, or
 * another one is asked for. LS_EUSAGE: that step, or a later one, was granted before. */
ls_status ls_quorum_grant(ls_quorum *quorum, int64_t step, int64_t now_ns);

/* What this node has to do. */
typedef enum ls_quorum_duty { LS_QUORUM_TRAIN, LS_QUORUM_STOP, LS_QUORUM_LEAVE } ls_quorum_duty;
ls_quorum_duty ls_quorum_duty_now(const ls_quorum *quorum, int64_t now_ns);

LS_C_END
