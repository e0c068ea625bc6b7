/* run_lease.h -- a job's right to write its run, kept in etcd: of several jobs of the same run, one
 * has it, and one that lost it cannot commit any more.
 *
 *   lineshaft/RUN/leader       its holder, under a lease of 5 s that its launcher renews, or the
 *                              machine that has succeeded that one (etcd_leader.h)
 *   lineshaft/RUN/owner        its last holder; stays when the lease has run out
 *   lineshaft/RUN/generation   "NUMBER OWNER": raised by compare-and-swap by the rank that commits
 *   lineshaft/RUN/committed    "STEP NUMBER OWNER": the last commit token
 *
 * A job gets it when there is no leader, and is the owner from then on. When etcd could not be
 * reached for so long that the lease ran out, the owner takes it again, unless somebody else has
 * become the owner: then this job has lost it for good. A commit token is given in one transaction
 * that compares owner and generation, so it does not depend on clocks. While etcd does not answer,
 * training goes on, and commits wait.
 *
 * The launcher holds it (ls_run_lease_open) and hooks its name, a slash and the run to the ranks
 * through the environment (LS_RUN_LEASE_VARIABLE); the first rank claims and commits with it
 * (ls_run_lease_use). */
#pragma once
#include "cluster/elect/etcd.h"

LS_C_BEGIN

#define LS_RUN_LEASE_VARIABLE "LINESHAFT_RUN_LEASE"
enum {
    LS_RUN_LEASE_LEASE_S = 5,
    LS_RUN_LEASE_ID = 160,
    LS_RUN_LEASE_RUN = 256,
    LS_RUN_LEASE_KEY = 400
};

/* The part of keys that names a run: its name, and a hash of where its folder is. */
void ls_run_lease_run(const char *name, const char *out, char run_out[LS_RUN_LEASE_RUN]);

/* The key of one of the things above. */
void ls_run_lease_key(const char *run, const char *leaf, char key_out[LS_RUN_LEASE_KEY]);

/* --- the launcher ------------------------------------------------------------------------------
 */

typedef struct ls_run_lease ls_run_lease;

typedef struct ls_run_lease_args {
    const char *const *urls; /* of etcd; borrowed until it is closed, as is run */
    int n_urls;
    const char *run;
    /* Called once, by a thread of its own, when another job has taken the run over. */
    void (*lost)(void *context, const char *why);
    void *context;
} ls_run_lease_args;

/* Get it, and renew it by a thread until it is closed. A job that died holds it for as long as its
 * lease lasts: until then this waits. LS_EBUSY: a job that lives has it, and which. LS_EDEADLINE:
 * etcd does not answer. */
ls_status ls_run_lease_open(ls_run_lease **run_lease_out, const ls_run_lease_args *args,
                            int64_t deadline_ns);

/* Give it back. NULL is allowed. */
void ls_run_lease_close(ls_run_lease *run_lease);

const char *
ls_run_lease_id(const ls_run_lease *run_lease); /* of this job: random digits, host and pid */

/* --- the writer --------------------------------------------------------------------------------
 */

typedef struct ls_run_lease_use {
    ls_etcd *etcd; /* borrowed */
    const char *run, *id;
    int64_t generation; /* that was claimed; 0: none yet */
} ls_run_lease_use;

/* Become the newest group of writers: a generation above all before, and at least `least`. Who
 * claimed before cannot commit any more. LS_EBUSY: another job is the owner. */
ls_status ls_run_lease_claim(ls_run_lease_use *use, int64_t least, int64_t deadline_ns);

/* The commit token of a step. LS_EBUSY: refused, because another job, or a newer generation of this
 * one, writes now. */
ls_status ls_run_lease_commit(ls_run_lease_use *use, int64_t step, int64_t deadline_ns);

LS_C_END
