/* recover_cluster_impl.h -- what recover_cluster.c and failover.c share. */
#pragma once
#include "cluster/recover/recover_cluster.h"
#include "cluster/recover/coordinator_process.h"
#include "cluster/elect/etcd_leader.h"
#include "cluster/elect/election.h"

LS_C_BEGIN

struct ls_recover_cluster {
    ls_recover_cluster_args args;
    ls_rendezvous *rendezvous; /* borrowed */
    ls_rendezvous_hooks hooks;
    ls_coordinator_process
        *coordinator_process;   /* owned: the coordinator; NULL: it is on another node */
    ls_roster roster;           /* the names that it has sent */
    ls_worker_channel *channel; /* borrowed; NULL: no workers */
    int self;                   /* the coordinator's own number */

    /* --- failover.c --- */
    ls_election *election;           /* owned; NULL: the job ends with its coordinator */
    ls_etcd_leader *etcd_leader;     /* owned; NULL: nodes vote */
    ls_etcd_leader_args etcd_args;   /* then: what etcd knows the job by */
    bool founded;                    /* and whether a view was made */
    ls_election_endpoint *endpoints; /* owned; the coordinator's: of all nodes that are here */
    int n_endpoints, endpoints_room;
    bool told;           /* all know of them */
    uint64_t floor;      /* generations up to this one are of a coordinator before */
    int64_t patience_ns; /* the new coordinator: until then nodes may come back */
    int64_t wants_ns; /* the coordinator: since when it waits for a view to hold; 0: it does not */
    uint64_t leader, term; /* others: whom they have joined, in which term; 0: not known yet */
    bool unconfirmed;      /* they came back to it, and have heard nothing yet */
    bool refused;          /* it did not know them */
    int64_t orphan_ns;     /* since when they have no coordinator; 0: they have one */
    int64_t silent_ns;     /* how long it had been silent then */
    char why[300];         /* and why it is gone */
    ls_str memory;         /* what the coordinator has learned (coordinator.h), as it sent last */
    bool over;             /* this node has given up */
};

/* The coordinator is here, as this node; and, when the nodes have met, it is listened to. */
ls_status ls_recover_cluster_open_coordinator_process(ls_recover_cluster *recover_cluster,
                                                      int self);
ls_status ls_recover_cluster_watch_coordinator_process(ls_recover_cluster *recover_cluster);

/* The coordinator here: a node has come; a node is lost, also to failover. */
ls_status ls_recover_cluster_joins(ls_recover_cluster *recover_cluster, int node,
                                   const ls_members_node *about, bool begins);
void ls_recover_cluster_lose_node(ls_recover_cluster *recover_cluster, int node, const char *why,
                                  int64_t noticed_ns);

/* All of these do nothing where no node can succeed the coordinator. */
ls_status ls_failover_open(ls_recover_cluster *recover_cluster);
void ls_failover_close(ls_recover_cluster *recover_cluster);
ls_status ls_failover_begin(ls_recover_cluster *recover_cluster); /* the nodes have met */
void ls_failover_looks(ls_recover_cluster *recover_cluster);      /* at messages and the clock */
/* Bytes from another node; false: they are a word (member_message.h). */
bool ls_failover_hears(ls_recover_cluster *recover_cluster, int node, const uint8_t *bytes,
                       size_t len);
/* The coordinator: a newcomer (LS_EUSAGE: there are too many), a node that is lost, and which must
 * agree to the next view (coordinator.h). */
ls_status ls_failover_joins(ls_recover_cluster *recover_cluster, int node,
                            const ls_members_node *about);
void ls_failover_lose_node(ls_recover_cluster *recover_cluster, int node);
uint64_t ls_failover_agrees(void *recover_cluster, const int *nodes, int n, uint64_t above);
/* The coordinator has learned something that a successor must know. */
void ls_failover_remembers(ls_recover_cluster *recover_cluster, const void *bytes, size_t len);

LS_C_END
