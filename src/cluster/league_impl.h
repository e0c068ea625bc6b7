/* league_impl.h -- what league.c and succession.c share. */
#pragma once
#include "cluster/league.h"
#include "cluster/office.h"
#include "cluster/regent.h"
#include "cluster/synod.h"

LS_C_BEGIN

struct ls_league {
    ls_league_args args;
    ls_rendezvous *rendezvous; /* borrowed */
    ls_rendezvous_door door;
    ls_office *office; /* owned: the coordinator; NULL: it is on another node */
    ls_roster roster;  /* the names that it has told */
    ls_heal *heal;     /* borrowed; NULL: no workers */
    int self;          /* the coordinator's own number */

    /* --- succession.c --- */
    ls_synod *synod;      /* owned; NULL: the job ends with its coordinator */
    ls_regent *regent;    /* owned; NULL: nodes vote */
    ls_regent_args reign; /* then: what etcd knows the job by */
    bool founded;         /* and whether a view was made */
    ls_synod_seat *seats; /* owned; the coordinator's: of all nodes that are here */
    int n_seats, seats_room;
    bool told;           /* all know of them */
    uint64_t floor;      /* generations up to this one are of a coordinator before */
    int64_t patience_ns; /* the new coordinator: until then nodes may come back */
    int64_t wants_ns; /* the coordinator: since when it waits for a view to hold; 0: it does not */
    uint64_t leader, term; /* others: whom they have joined, in which term; 0: not known yet */
    bool on_trial;         /* they came back to it, and have heard nothing yet */
    bool refused;          /* it did not know them */
    int64_t orphan_ns;     /* since when they have nobody; 0: they have */
    int64_t silent_ns;     /* how long it had been silent then */
    char why[300];         /* and why it is gone */
    ls_str memory;         /* what the coordinator has learned (parish.h), as it told last */
    bool over;             /* this node has given up */
};

/* The coordinator is here, as this node; and, when the nodes have met, it is listened to. */
ls_status ls_league_open_office(ls_league *league, int self);
ls_status ls_league_watch_office(ls_league *league);

/* All of these do nothing where nobody can succeed the coordinator. */
ls_status ls_succession_open(ls_league *league);
void ls_succession_close(ls_league *league);
ls_status ls_succession_begin(ls_league *league); /* the nodes have met */
void ls_succession_looks(ls_league *league);      /* at messages and the clock */
/* Bytes from another node; false: they are a word (word.h). */
bool ls_succession_hears(ls_league *league, int node, const uint8_t *bytes, size_t len);
/* The coordinator: a newcomer (LS_EUSAGE: there are too many), a node that is lost, and who must
 * agree to the next view (parish.h). */
ls_status ls_succession_joins(ls_league *league, int node, const ls_members_node *about);
void ls_succession_loses(ls_league *league, int node);
uint64_t ls_succession_agrees(void *league, const int *nodes, int n, uint64_t above);
/* The coordinator has learned something that a successor must know. */
void ls_succession_remembers(void *league, const void *bytes, size_t len);

LS_C_END
