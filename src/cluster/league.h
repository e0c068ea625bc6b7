/* league.h -- the agents of several nodes that heal together.
 *
 * Puts three things together that know nothing of each other: the connections between agents
 * (rendezvous.h), the coordinator (office.h; started by the first node only), and the workers of
 * this node (heal.h).
 *
 *     workers <-> heal --- words ---> league ----------> office          the first node
 *                      <------------         <----------
 *     workers <-> heal --- words ---> league == frames ==> league        any other
 *
 * When the first node is lost, another one starts a coordinator, and the others are joined to it
 * (succession.c). One thread. */
#pragma once
#include "cluster/heal.h"
#include "cluster/rendezvous.h"

LS_C_BEGIN

/* How a job heals. */
typedef struct ls_league_args {
    ls_view_rules rules; /* this and the next five: of the coordinator */
    int min_nodes, max_nodes;
    int64_t grow_wait_ns;
    int quarantine;
    int64_t cool_ns;
    int64_t patience_ns; /* see heal.h */
    int64_t pulse_ns, suspect_ns, dead_ns;
    bool succession;           /* another node takes over when the coordinator is lost (synod.h) */
    const char *tenure, *etcd; /* the first node's, where etcd decides who does (regent.h): "ID/RUN"
                                * and URLs, separated by blanks; NULL: the nodes vote */
    const char *program; /* that can be a coordinator (office.h); NULL: it is a part of the agent */
} ls_league_args;

typedef struct ls_league ls_league;

/* Before the nodes meet. hosts: this is the first node. */
ls_status ls_league_open(ls_league **league_out, const ls_league_args *args, bool hosts,
                         ls_rendezvous *rendezvous);
void ls_league_close(ls_league *league); /* NULL is allowed */

/* The nodes have met. */
ls_status ls_league_begin(ls_league *league);

/* What the workers of this node say goes to the coordinator: `say` of ls_heal_args. */
void ls_league_say(void *league, const ls_word *word);

/* Where this node may look for the job when its coordinator is gone: "10.0.0.2:7000,10.0.0.3:7000",
 * as many as fit; "" when none is known. */
void ls_league_refuges(const ls_league *league, char *text_out, size_t cap);

/* And its words go to them; NULL: they are gone. */
void ls_league_bind(ls_league *league, ls_heal *heal);

LS_C_END
