/* quorum.h -- which node may make the next view when the coordinator is lost: the rules, without
 * sockets, files or clocks.
 *
 * Every node of a job has a part in this. It keeps a *promise* on disk: the highest term it has
 * heard of, its vote in it, and the newest view that it has accepted. A *view* here is a
 * generation and its nodes in order: the first is the coordinator that made it, the next ones are
 * its successors. docs/design/failover.pml has the same rules, and spin proves them.
 *
 *   a vote          One in each term, kept on disk, and only for a node whose view is not older
 *                   than one's own: by the term in which it was offered, then by its generation.
 *   enough          More than half of the nodes of a view; or exactly half of them with its first
 *                   one. So of two nodes the coordinator's side goes on.
 *   coordinator     Of a term: the node with the votes of enough nodes of its view, and of the view
 *                   before while it is not known that its own holds. It offers its view once more,
 *                   in its own term.
 *   a view holds    When enough of its nodes, and of the nodes of the view that it was made from,
 *                   have accepted it in one term. The next view is made only from a view that holds
 *                   in this term.
 *
 *   role      leaves it by
 *   FOLLOWS   look(): nothing was heard of a coordinator -> ASKS
 *   ASKS      would enough nodes vote for it? Changes nobody's term. hear(): yes -> STANDS
 *   STANDS    hear(): enough votes -> LEADS; look(): too late -> ASKS
 *   LEADS     look(): enough nodes were silent for too long -> FOLLOWS
 *   any       hear(): a later term, or the coordinator of this one -> FOLLOWS
 *
 * The caller gives the time. Promises are kept, and messages sent, through two functions of
 * the caller's; no message goes out before the promise that it depends on was kept, so a node whose
 * disk fails falls silent. A node that lost its journal, or whose journal was damaged, must come
 * back with a new number: it may have voted. One thread. */
#pragma once
#include "base/err.h"
#include "base/str.h"
#include "cluster/member/members.h"

LS_C_BEGIN

/* A job of more nodes has no successors: every answer is counted by going through all of them. */
enum { LS_QUORUM_NODES = 1024, LS_QUORUM_ROUNDS = 64 };

typedef struct ls_quorum_view {
    uint64_t generation;
    uint64_t made; /* the term in which it was offered last */
    bool held;     /* known to hold: then base says the same as member */
    int n, n_base;
    uint64_t member[LS_QUORUM_NODES]; /* numbers of nodes, drawn at random when an agent starts */
    uint64_t base[LS_QUORUM_NODES];   /* of the view that it was made from */
} ls_quorum_view;

/* What a node has on disk. */
typedef struct ls_quorum_promise {
    uint64_t self;        /* its number */
    uint64_t term, voted; /* 0: for no node */
    ls_quorum_view view;
} ls_quorum_promise;

/* As the payload of a journal's record, and back. LS_EDATA: damaged. */
void ls_quorum_encode(const ls_quorum_promise *promise, ls_str *out);
ls_status ls_quorum_decode(ls_quorum_promise *promise, const void *bytes, size_t len);

/* Copies only the nodes that are there. */
void ls_quorum_view_copy(ls_quorum_view *to, const ls_quorum_view *from);

/* Whether `count` nodes of a view of n are enough; first: its first node is one of them.
 *
 *     n = 5    3 are enough, 2 are not
 *     n = 4    3 are enough; so are the first and another one, but not two others
 *     n = 2    the first alone is enough, the other one is not */
bool ls_quorum_enough(int count, int n, bool first);

typedef enum ls_quorum_kind {
    LS_QUORUM_BEAT = 1, /* the coordinator lives; with a view for a node that lacks it */
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
    bool held;
    uint64_t round;             /* of a BEAT, and of its ACK */
    int64_t age_ns;             /* of a BEAT: since enough nodes confirmed the coordinator */
    bool yes, trial;            /* of an ANSWER; trial: to an ASK */
    uint64_t leader;            /* the coordinator, as far as the sender knows; 0: none */
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
    int64_t stop_ns;    /* without enough nodes for this long a coordinator gives up; 3 s */
} ls_quorum_times;

/* What the rules need of their caller. */
typedef struct ls_quorum_hooks {
    bool (*keep)(void *context, const ls_quorum_promise *promise); /* true: it is on the disk */
    void (*send)(void *context, const ls_quorum_message *message); /* may be lost */
    /* On the coordinator: the view holds; its base is still the view before. NULL: not wanted. */
    void (*holds)(void *context, const ls_quorum_view *view);
    void *context;
} ls_quorum_hooks;

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
    uint64_t round;            /* the latest beat that it has answered */
    int64_t heard_ns;          /* its last answer to a beat */
} ls_quorum_peer;

typedef struct ls_quorum {
    ls_quorum_promise promise;
    bool dirty; /* the promise is not on disk as it is here */
    ls_quorum_times times;
    ls_quorum_hooks hooks;
    ls_quorum_role role;
    uint64_t leader;  /* of this term; 0: not known */
    uint64_t runs;    /* the highest generation that is known to hold */
    uint64_t behind;  /* the generation of a newer view that others reported; 0: none */
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
                    const ls_quorum_hooks *hooks, const ls_quorum_times *times, int64_t now_ns);

void ls_quorum_hear(ls_quorum *quorum, const ls_quorum_message *message, int64_t now_ns);
void ls_quorum_look(ls_quorum *quorum, int64_t now_ns); /* at the clock: each 50 ms or so */

/* What the caller knows of the coordinator by other means: it lives; its connection has ended. Only
 * when successors ask depends on this. */
void ls_quorum_assure(ls_quorum *quorum, int64_t now_ns);
void ls_quorum_suspect(ls_quorum *quorum, int64_t now_ns);

/* Offer the next view, of these nodes, the coordinator first. LS_EBUSY: not the coordinator, or the
 * present view does not hold yet. */
ls_status ls_quorum_offer(ls_quorum *quorum, const uint64_t *member, int n, int64_t now_ns);

LS_C_END
