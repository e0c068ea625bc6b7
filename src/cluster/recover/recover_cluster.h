/* recover_cluster.h -- a job of several nodes that heals, as each of its agents sees it.
 *
 * Puts three things together that know nothing of each other: the connections between agents
 * (rendezvous.h), the coordinator (coordinator_process.h; on one node only), and the workers of
 * this node (worker_channel.h).
 *
 *     the coordinator's node            any other node
 *     workers                           workers
 *        |  sockets                        |  sockets
 *     worker_channel.c                  worker_channel.c
 *        |  messages                       |  messages
 *     recover_cluster.c <== frames ==>  recover_cluster.c
 *        |  frames
 *     coordinator_process.c -- ls-coordinator: coordinator.c, recovery_policy.c
 *
 * What happens after a rank's death is decided there, by recovery_policy.c; this room carries it out.
 * When the coordinator's node is lost, another one starts a coordinator, and the others join it
 * (failover.c). One thread. */
#pragma once
#include "cluster/member/worker_channel.h"
#include "cluster/join/rendezvous.h"

LS_C_BEGIN

/* How a job heals. */
typedef struct ls_recover_cluster_args {
    ls_view_rules rules; /* this and the next five: of the coordinator */
    int min_nodes, max_nodes;
    int64_t grow_wait_ns;
    int quarantine;
    int64_t cool_ns;
    int64_t patience_ns; /* see worker_channel.h */
    int64_t heartbeat_ns, suspect_ns, dead_ns;
    bool failover; /* another node takes over when the coordinator is lost (election.h) */
    /* The first node's, where etcd decides which one coordinates (etcd_leader.h): "ID/RUN", and
     * URLs separated by blanks. NULL: the nodes vote. */
    const char *run_lease, *etcd;
    /* That can be a coordinator (coordinator_process.h); NULL: it is a part of the agent. */
    const char *program;
} ls_recover_cluster_args;

typedef struct ls_recover_cluster ls_recover_cluster;

/* Before the nodes meet. hosts: this is the first node. */
ls_status ls_recover_cluster_open(ls_recover_cluster **recover_cluster_out,
                                  const ls_recover_cluster_args *args, bool hosts,
                                  ls_rendezvous *rendezvous);
void ls_recover_cluster_close(ls_recover_cluster *recover_cluster); /* NULL is allowed */

/* The nodes have met. */
ls_status ls_recover_cluster_begin(ls_recover_cluster *recover_cluster);

/* What the workers of this node say goes to the coordinator: `say` of ls_worker_channel_args. */
void ls_recover_cluster_say(void *recover_cluster, const ls_member_message *message);

/* Where this node may look for the job when its coordinator is gone: "10.0.0.2:7000,10.0.0.3:7000",
 * as many as fit; "" when none is known. */
void ls_recover_cluster_join_list(const ls_recover_cluster *recover_cluster, char *text_out,
                                  size_t cap);

/* And its messages go to them; NULL: they are gone. */
void ls_recover_cluster_bind(ls_recover_cluster *recover_cluster, ls_worker_channel *channel);

LS_C_END
