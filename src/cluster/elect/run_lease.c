/* run_lease.c -- transactions of a run's owner.
 *
 * Every value holds the job's own name with random digits, so that a transaction whose answer was
 * lost is not mistaken for somebody else's: when a comparison fails, the value is read, and if it
 * is what was to be written, it was written. */
#include "cluster/elect/run_lease.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/node/background.h"

enum {
    KEY = LS_RUN_LEASE_KEY,
    VALUE = LS_RUN_LEASE_ID + 64,
    RENEW_MS = LS_RUN_LEASE_LEASE_S * 1000 / 3,
    LOOK_MS = 200
};

struct ls_run_lease {
    ls_run_lease_args args;
    char id[LS_RUN_LEASE_ID];
    ls_etcd *etcd; /* of the caller until the thread runs, then of the thread */
    int64_t lease;
    ls_background background; /* renews it */
};

void ls_run_lease_key(const char *run, const char *leaf, char key_out[LS_RUN_LEASE_KEY])
{
    snprintf(key_out, LS_RUN_LEASE_KEY, "lineshaft/%s/%s", run, leaf);
}

/* The path as the system has it, even of a folder that is yet to be made. */
static void real_path(const char *out, ls_str *path)
{
    char head[PATH_MAX], *real = NULL;
    const char *tail = "";

    snprintf(head, sizeof head, "%s", *out ? out : ".");
    while (!(real = realpath(head, NULL))) {
        char *slash = strrchr(head, '/');
        tail = out + (slash ? slash + 1 - head : 0);
        if (!slash)
            memcpy(head, ".", 2);
        else
            slash[slash == head] = '\0';
        if (strcmp(head, "/") == 0 || strcmp(head, ".") == 0) {
            real = realpath(head, NULL);
            break;
        }
    }
    ls_str_printf(path, "%s/%s", real ? real : "", tail);
    while (path->len > 1 && path->p[path->len - 1] == '/')
        path->p[--path->len] = '\0';
    free(real);
}

void ls_run_lease_run(const char *name, const char *out, char run_out[LS_RUN_LEASE_RUN])
{
    char hex[LS_HASH_HEX];
    ls_str path;

    ls_str_init(&path);
    real_path(out, &path);
    ls_hash_hex(ls_hash_bytes(path.p, path.len), hex);
    snprintf(run_out, LS_RUN_LEASE_RUN, "%.200s-%.8s", name, hex);
    ls_str_release(&path);
}

static ls_status draw_id(char id[LS_RUN_LEASE_ID])
{
    uint64_t random[2];
    char host[64] = "";

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return ls_fail_sys(LS_EIO, "cannot draw random numbers");
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "?");
    snprintf(id, LS_RUN_LEASE_ID, "%016" PRIx64 "%016" PRIx64 " on %s, pid %d", random[0],
             random[1], host, (int)getpid());
    return LS_OK;
}

/* "on h1, pid 7" of an id, for messages. */
static const char *owner_name(const char *id)
{
    const char *space = strchr(id, ' ');

    return space ? space + 1 : id;
}

/* --- the launcher ----------------------------------------------------------------------------- */

/* Try once. again: only as the owner that it was. Without success there is no lease. */
static ls_status take_lead(ls_run_lease *t, bool again, int64_t deadline_ns, bool *done_out)
{
    char leader[KEY], owner[KEY];
    int64_t lease = 0;
    bool found = false;
    ls_str value;
    ls_status st;

    ls_str_init(&value);
    *done_out = false;
    t->lease = 0;
    ls_run_lease_key(t->args.run, "leader", leader);
    ls_run_lease_key(t->args.run, "owner", owner);
    LS_TRY(st, ls_etcd_lease(t->etcd, LS_RUN_LEASE_LEASE_S, deadline_ns, &lease), out);
    const ls_etcd_if conditions[] = {{.key = leader}, {.key = owner, .value = t->id}};
    const ls_etcd_put puts[] = {{.key = leader, .value = t->id, .lease = lease},
                                {.key = owner, .value = t->id}};
    LS_TRY(st, ls_etcd_swap(t->etcd, conditions, again ? 2 : 1, puts, 2, deadline_ns, done_out),
           out);
    if (!*done_out) {
        LS_TRY(st, ls_etcd_get(t->etcd, leader, deadline_ns, &value, &found), out);
        *done_out = found && strcmp(value.p, t->id) == 0; /* done before: an answer was lost */
    }
    if (*done_out) {
        t->lease = lease;
    } else {
        (void)ls_etcd_end_lease(t->etcd, lease, deadline_ns); /* it ends by itself, too */
        ls_fail(LS_EBUSY, "run \"%s\" is being written by another job (%s)", t->args.run,
                found ? owner_name(value.p) : "which is just ending");
    }
out:
    ls_str_release(&value);
    return st;
}

/* The lease has run out: take it again. LS_EBUSY: somebody else has become the owner, and it is
 * lost for good. */
static ls_status take_again(ls_run_lease *t)
{
    int64_t deadline_ns = ls_time_now_ns() + RENEW_MS * LS_NS_PER_MS;
    char owner[KEY], why[400];
    bool done, found;
    ls_str value;
    ls_status st;

    ls_str_init(&value);
    LS_TRY(st, take_lead(t, true, deadline_ns, &done), out);
    if (done)
        goto out;
    ls_run_lease_key(t->args.run, "owner", owner);
    LS_TRY(st, ls_etcd_get(t->etcd, owner, deadline_ns, &value, &found), out);
    if (found && strcmp(value.p, t->id) != 0) {
        snprintf(why, sizeof why, "another job (%.120s) has taken over run \"%.200s\"",
                 owner_name(value.p), t->args.run);
        t->args.lost(t->args.context, why);
        st = LS_EBUSY;
    }
out:
    ls_str_release(&value);
    return st;
}

static bool wait_until_due(ls_run_lease *t)
{
    pthread_mutex_lock(&t->background.guard);
    ls_background_wait(&t->background, RENEW_MS);
    bool stop = t->background.stop;
    pthread_mutex_unlock(&t->background.guard);
    return !stop;
}

static void *renew(void *context)
{
    ls_run_lease *t = context;
    bool silent = false;

    while (wait_until_due(t)) {
        ls_status st = LS_EPEER;
        if (t->lease)
            st = ls_etcd_renew(t->etcd, t->lease, ls_time_now_ns() + RENEW_MS * LS_NS_PER_MS);
        if (st == LS_EPEER)
            st = take_again(t);
        if (st == LS_EBUSY)
            break;
        if (st != LS_OK && !silent)
            ls_log(LS_LOG_WARN, "%s; training goes on, checkpoints wait for it",
                   ls_err_last()->text);
        if (st == LS_OK && silent)
            ls_log(LS_LOG_WARN, "etcd answers again");
        silent = st != LS_OK;
    }
    return NULL;
}

ls_status ls_run_lease_open(ls_run_lease **run_lease_out, const ls_run_lease_args *args,
                            int64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * LS_NS_PER_MS};
    int64_t patience_ns = ls_time_now_ns() + (LS_RUN_LEASE_LEASE_S + 2) * LS_NS_PER_S;
    ls_run_lease *t = ls_mem_alloc(sizeof *t);
    bool done = false;
    ls_status st;

    if (!t)
        return LS_ENOMEM;
    t->args = *args;
    ls_background_init(&t->background);
    LS_TRY(st, draw_id(t->id), out);
    LS_TRY(st, ls_etcd_open(&t->etcd, args->urls, args->n_urls), out);
    for (;;) {
        LS_TRY(st, take_lead(t, false, deadline_ns, &done), out);
        if (done || ls_time_now_ns() > ls_min_i64(patience_ns, deadline_ns))
            break;
        nanosleep(&pause, NULL);
    }
    if (!done) {
        ls_err_hint("Stop that job, or give this one another name or out folder.");
        st = LS_EBUSY;
        goto out;
    }
    LS_TRY(st, ls_background_start(&t->background, renew, t, "that renews a lease"), out);
    *run_lease_out = t;
out:
    if (st != LS_OK)
        ls_run_lease_close(t);
    return st;
}

void ls_run_lease_close(ls_run_lease *run_lease)
{
    ls_run_lease *t = run_lease;

    if (!t)
        return;
    ls_err_record before = *ls_err_last();
    if (ls_background_end(&t->background) &&
        t->lease) /* if etcd cannot be reached, it runs out by itself */
        (void)ls_etcd_end_lease(t->etcd, t->lease, ls_time_now_ns() + 2 * LS_NS_PER_S);
    ls_err_adopt(&before);
    ls_etcd_close(t->etcd);
    ls_background_release(&t->background);
    ls_mem_free(t);
}

const char *ls_run_lease_id(const ls_run_lease *run_lease)
{
    return run_lease->id;
}

/* --- the rank that commits -------------------------------------------------------------------- */

/* LS_EBUSY: the owner is another job, and which. */
static ls_status check_owner(const ls_run_lease_use *u, int64_t deadline_ns)
{
    char key[KEY];
    ls_str value;
    bool found;
    ls_status st;

    ls_str_init(&value);
    ls_run_lease_key(u->run, "owner", key);
    LS_TRY(st, ls_etcd_get(u->etcd, key, deadline_ns, &value, &found), out);
    if (!found || strcmp(value.p, u->id) != 0) {
        st = ls_fail(LS_EBUSY, "another job (%s) has taken over run \"%s\"",
                     found ? owner_name(value.p) : "of which etcd has forgotten the name", u->run);
        ls_err_hint("This one must stop: what it has trained since then cannot be saved.");
    }
out:
    ls_str_release(&value);
    return st;
}

/* Two processes of one job may claim at once; each ends with a number of its own:
 *
 *     A reads 6    B reads 6    A writes 7 if it is 6: done    B writes 7 if it is 6: refused
 *     B reads 7    B writes 8 if it is 7: done                 A's commits compare "7": refused */
ls_status ls_run_lease_claim(ls_run_lease_use *use, int64_t least, int64_t deadline_ns)
{
    char key[KEY], owner[KEY], value[VALUE];
    ls_run_lease_use *u = use;
    ls_str before;
    bool found, done = false;
    ls_status st = LS_OK;

    ls_str_init(&before);
    ls_run_lease_key(u->run, "generation", key);
    ls_run_lease_key(u->run, "owner", owner);
    while (!done) {
        LS_TRY(st, ls_etcd_get(u->etcd, key, deadline_ns, &before, &found), out);
        int64_t last = found ? strtoll(before.p, NULL, 10) : 0;
        u->generation = ls_max_i64(last + 1, least);
        snprintf(value, sizeof value, "%" PRId64 " %s", u->generation, u->id);
        const ls_etcd_if conditions[] = {{.key = owner, .value = u->id},
                                         {.key = key, .value = found ? before.p : NULL}};
        const ls_etcd_put put = {.key = key, .value = value};
        LS_TRY(st, ls_etcd_swap(u->etcd, conditions, 2, &put, 1, deadline_ns, &done), out);
        if (!done) /* somebody was quicker, or an answer was lost: the next number will do */
            LS_TRY(st, check_owner(u, deadline_ns), out);
    }
out:
    ls_str_release(&before);
    return st;
}

ls_status ls_run_lease_commit(ls_run_lease_use *use, int64_t step, int64_t deadline_ns)
{
    char key[KEY], owner[KEY], committed[KEY], mine[VALUE], value[VALUE + 32];
    bool done = false;
    ls_status st;

    ls_run_lease_key(use->run, "generation", key);
    ls_run_lease_key(use->run, "owner", owner);
    ls_run_lease_key(use->run, "committed", committed);
    snprintf(mine, sizeof mine, "%" PRId64 " %s", use->generation, use->id);
    snprintf(value, sizeof value, "%" PRId64 " %s", step, mine);
    const ls_etcd_if conditions[] = {{.key = owner, .value = use->id}, {.key = key, .value = mine}};
    const ls_etcd_put put = {.key = committed, .value = value};
    LS_TRY(st, ls_etcd_swap(use->etcd, conditions, 2, &put, 1, deadline_ns, &done), out);
    if (done)
        goto out;
    LS_TRY(st, check_owner(use, deadline_ns), out);
    st = ls_fail(LS_EBUSY,
                 "step %" PRId64 " of generation %" PRId64
                 " is not saved: a newer one writes run \"%s\" now",
                 step, use->generation, use->run);
out:
    return st;
}
