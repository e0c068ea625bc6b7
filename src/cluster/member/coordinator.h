/* coordinator.h -- the coordinator's knowledge of a job that heals: its nodes, and the view over
 * their workers. No sockets, no clocks: what happens comes in by calls, with its time; what follows
 * goes out by calls back.
 *
 *   state   of a node                               leaves it
 *   SPARE   has come, and waits to be called        do_due -> CALLED; lose_node -> GONE
 *   CALLED  its workers run, in the view or on      lose_node, handle_message (another crash) -> GONE
 *           their way
 *   GONE    is lost, refused or in quarantine       (a host that comes back is a new node)
 *
 * The nodes that a job begins with are CALLED from the start, and its first view waits for all
 * their workers. A node that comes later is a spare first, and called when there are fewer nodes
 * than max_nodes. Its workers are joiners (view.h): when all of them have reported, and the last
 * view is old enough, the ranks are asked to meet anew at the end of a step.
 *
 * What it knows follows from the calls and their times alone: a coordinator whose log has them is
 * the same again after its death (coordinator_log.h). */
#pragma once
#include "cluster/member/member_message.h"

LS_C_BEGIN

typedef struct ls_coordinator_args {
    ls_view_rules rules;
    int min_nodes;        /* to go on with */
    int max_nodes;        /* to train on; 0: all that come */
    int64_t grow_wait_ns; /* from one view to the next that only takes joiners in */
    int quarantine;       /* crashes of a node within a day that exclude it; 0: none do */
    int64_t cool_ns;      /* for how long; longer each time */
    int self;             /* the coordinator's own node */
    /* Before a view is made: the generation of one of these nodes that all accept, above that of
     * the last; 0: not yet, ask again. NULL: no node needs to be asked. */
    uint64_t (*agree)(void *context, const int *nodes, int n, uint64_t above);
    void (*tell)(void *context, int node, const ls_member_message *message);
    void (*call)(void *context, int node); /* a spare: start its workers */
    void (*expel)(void *context, int node, const char *why);
    /* The job must end. node: of the worker that failed, as its verdict says; -1: none. */
    void (*stop)(void *context, int node, int code, const ls_err_record *why);
    /* Before a view is announced, when there is something new that ls_coordinator_remember() gives.
     * NULL: not wanted. */
    void (*remember)(void *context);
    void *context;
} ls_coordinator_args;

typedef struct ls_coordinator ls_coordinator;

ls_status ls_coordinator_open(ls_coordinator **coordinator_out, const ls_coordinator_args *args);
void ls_coordinator_close(ls_coordinator *coordinator); /* NULL is allowed */

/* A node has come, under a number that no other had before. begins: the job begins with it.
 * LS_EUSAGE: it cannot be taken, and why. */
ls_status ls_coordinator_joins(ls_coordinator *coordinator, int node, const char *host,
                               const char *ip, int workers, bool begins);

/* The nodes that are here know all names so far: they have the list of the rendezvous. Otherwise
 * the first view names them. */
void ls_coordinator_has_named(ls_coordinator *coordinator);

/* Whether a host is kept out at this time; why says for how long. */
bool ls_coordinator_excludes(const ls_coordinator *coordinator, const char *host, int64_t now,
                             char *why, size_t cap);

/* Do what a message of a node asks for; one that does not fit its state is dropped. */
void ls_coordinator_handle_message(ls_coordinator *coordinator, int node,
                                   const ls_member_message *message, int64_t now);

/* A node is gone. noticed_ns: for how long it had been gone then. */
void ls_coordinator_lose_node(ls_coordinator *coordinator, int node, const char *why,
                              int64_t noticed_ns, int64_t now);

/* A new coordinator takes a job over, of which it knows the last view: after the nodes of that view
 * have joined (begins). The view is given up, and why; its ranks report once more. Each node says
 * how its workers stood (RESUME) when it has come back. */
void ls_coordinator_resume(ls_coordinator *coordinator, const ls_view_past *past, const char *why,
                           int64_t noticed_ns, int64_t now);

/* A node that has joined can be reached from now on: send it what it has missed. */
void ls_coordinator_send_missed(ls_coordinator *coordinator, int node);

/* Do what is due: a view, a call, a meeting. After every other call, and every half second. */
void ls_coordinator_do_due(ls_coordinator *coordinator, int64_t now);

/* How long until it must look at the clock: 0: now; -1: not before something else happens. asked:
 * whether a view is accepted is being asked. */
int64_t ls_coordinator_due_in(const ls_coordinator *coordinator, bool asked, int64_t now);

/* What a coordinator has learned and its successor must not forget, as bytes: crashes and
 * quarantine of hosts, how often each worker was started again, the last error, views without a
 * step. The successor takes it when the nodes of the last view have joined. LS_EDATA: damaged. */
void ls_coordinator_remember(const ls_coordinator *coordinator, int64_t now, ls_str *out);
ls_status ls_coordinator_recall(ls_coordinator *coordinator, const void *bytes, size_t len,
                                int64_t now);

/* All that it knows, for the same program with the same arguments on the same machine, and back.
 * LS_EDATA: damaged. */
void ls_coordinator_save(const ls_coordinator *coordinator, ls_str *out);
ls_status ls_coordinator_load(ls_coordinator *coordinator, const void *bytes, size_t len);

/* What it has decided so far; for tests. */
const ls_view *ls_coordinator_view(const ls_coordinator *coordinator);

/* The job is over, and this node has no part in it. */
bool ls_coordinator_is_idle(ls_coordinator *coordinator, int node);

LS_C_END
