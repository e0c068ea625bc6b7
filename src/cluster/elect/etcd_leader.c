/* etcd_leader.c -- one thread, one loop: renew the lease that it has, write the view that is
 * wanted, look for a leader. A caller gets a copy of what the thread found last, under a lock.
 *
 *     seek()  -> the leader's key is free, this node is in the last view
 *                -> take_lead(): lease, then in one transaction: still free, same owner -> mine
 *     agree() -> make_view(): in one transaction: I lead, the view is the one that I read -> the next
 *     renew() -> the lease has run out -> seek()
 *
 * Example: h0 leads generation 4 of (h0 h1 h2) and is cut off. After 5 s its lease is gone; h1 and h2
 * both try, and etcd gives one transaction to h2. h0's transaction for generation 5 then compares its
 * own name with "h2", and is refused. */
#include "cluster/elect/etcd_leader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/node/background.h"
#include "cluster/elect/etcd.h"
#include "cluster/elect/run_lease.h"

enum {
    LEADER = LS_RUN_LEASE_ID + 24,
    LOOK_MS = 150,
    ASK_MS = 2000,
    RENEW_MS = LS_RUN_LEASE_LEASE_S * 1000 / 3
};

struct ls_etcd_leader {
    ls_etcd_leader_args args;
    char id[LS_RUN_LEASE_ID], mine[LEADER];
    char leader_key[LS_RUN_LEASE_KEY], owner_key[LS_RUN_LEASE_KEY], view_key[LS_RUN_LEASE_KEY];
    char urls_text[LS_ETCD_LEADER_TEXT];
    const char *urls[LS_ETCD_URLS];
    int n_urls;
    int fd;
    ls_background background;
    bool seeks, wants;   /* from here: under its guard */
    ls_quorum_view want; /* its generation: above this one */
    uint64_t agreed;     /* of that; 0: not yet */
    uint64_t leader, turn;
    ls_quorum_view view;
    ls_quorum_view shown, next; /* the caller's copy; the thread's own */
    ls_etcd *etcd;              /* from here: the thread's */
    int64_t lease, renewed_ns;
    ls_str text, found; /* the view as it stands there; what was read last */
    bool silent;
};

/* --- what stands there ------------------------------------------------------------------------ */

/* "GENERATION ID NODE ...". False: of another job, or damaged. */
static bool read_view(const ls_etcd_leader *r, const char *text, ls_quorum_view *view_out)
{
    char *at;
    size_t len = strlen(r->id);

    view_out->generation = strtoull(text, &at, 10);
    view_out->n = 0;
    if (*at != ' ' || strncmp(at + 1, r->id, len) != 0)
        return false;
    at += 1 + len;
    while (*at == ' ' && view_out->n < LS_QUORUM_NODES)
        view_out->member[view_out->n++] = strtoull(at + 1, &at, 16);
    return *at == '\0' && view_out->n > 0;
}

static void write_view(const ls_etcd_leader *r, const ls_quorum_view *view, ls_str *out)
{
    ls_str_clear(out);
    ls_str_printf(out, "%" PRIu64 " %s", view->generation, r->id);
    for (int i = 0; i < view->n; i++)
        ls_str_printf(out, " %016" PRIx64, view->member[i]);
}

static void tell(ls_etcd_leader *r)
{
    (void)eventfd_write(r->fd, 1);
}

static void set_leader(ls_etcd_leader *r, uint64_t leader)
{
    pthread_mutex_lock(&r->background.guard);
    if (leader != r->leader) {
        r->leader = leader;
        r->turn++;
    }
    pthread_mutex_unlock(&r->background.guard);
    tell(r);
}

static int64_t ask_deadline(void)
{
    return ls_time_now_ns() + ASK_MS * LS_NS_PER_MS;
}

/* Read the view; none, or one of another job, is generation 0. */
static ls_status fetch_view(ls_etcd_leader *r)
{
    bool found;
    ls_status st = ls_etcd_get(r->etcd, r->view_key, ask_deadline(), &r->text, &found);

    if (st != LS_OK)
        return st;
    if (!found)
        ls_str_clear(&r->text);
    if (!found || !read_view(r, r->text.p, &r->next)) {
        r->next.generation = 0;
        r->next.n = 0;
    }
    pthread_mutex_lock(&r->background.guard);
    ls_quorum_view_copy(&r->view, &r->next);
    pthread_mutex_unlock(&r->background.guard);
    return LS_OK;
}

/* The leader by what stands there. NODE of the job; 0: the launcher, or nobody. *free_out: nobody.
 */
static ls_status fetch_leader(ls_etcd_leader *r, uint64_t *leader_out, bool *free_out)
{
    size_t len = strlen(r->id);
    bool found;
    ls_status st = ls_etcd_get(r->etcd, r->leader_key, ask_deadline(), &r->found, &found);

    *leader_out = 0;
    *free_out = st == LS_OK && !found;
    if (st == LS_OK && found && strncmp(r->found.p, r->id, len) == 0 && r->found.p[len] == '#')
        *leader_out = strtoull(r->found.p + len + 1, NULL, 16);
    return st;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* The view that is wanted, if this node leads and nobody has made another one. */
static ls_status make_view(ls_etcd_leader *r)
{
    uint64_t leader;
    bool done = false, none;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, fetch_view(r), out);
    uint64_t before = r->next.generation;
    pthread_mutex_lock(&r->background.guard);
    ls_quorum_view_copy(&r->next, &r->want);
    pthread_mutex_unlock(&r->background.guard);
    r->next.generation = (before > r->next.generation ? before : r->next.generation) + 1;
    write_view(r, &r->next, &text);
    LS_TRY(st, ls_str_status(&text), out);
    const ls_etcd_if conditions[] = {{.key = r->leader_key, .value = r->mine},
                                     {.key = r->view_key, .value = r->text.len ? r->text.p : NULL}};
    const ls_etcd_put put = {.key = r->view_key, .value = text.p};
    LS_TRY(st, ls_etcd_swap(r->etcd, conditions, 2, &put, 1, ask_deadline(), &done), out);
    if (!done) { /* its lease ran out, or somebody else leads */
        LS_TRY(st, fetch_leader(r, &leader, &none), out);
        if (leader != 0 && leader != r->args.self)
            set_leader(r, leader);
        goto out;
    }
    pthread_mutex_lock(&r->background.guard);
    if (r->wants && r->want.n == r->next.n &&
        memcmp(r->want.member, r->next.member, (size_t)r->next.n * sizeof *r->next.member) == 0) {
        r->agreed = r->next.generation;
        r->wants = false;
    }
    ls_quorum_view_copy(&r->view, &r->next);
    pthread_mutex_unlock(&r->background.guard);
    tell(r);
out:
    ls_str_release(&text);
    return st;
}

/* A node that has no part in the last view does not know the job. */
static bool may_lead(const ls_etcd_leader *r)
{
    for (int i = 0; i < r->next.n; i++)
        if (r->next.member[i] == r->args.self)
            return true;
    return false;
}

static ls_status take_lead(ls_etcd_leader *r)
{
    bool done = false;
    int64_t lease = 0;
    ls_status st;

    LS_TRY(st, fetch_view(r), out);
    if (!may_lead(r))
        goto out;
    LS_TRY(st, ls_etcd_lease(r->etcd, LS_RUN_LEASE_LEASE_S, ask_deadline(), &lease), out);
    const ls_etcd_if conditions[] = {{.key = r->leader_key}, {.key = r->owner_key, .value = r->id}};
    const ls_etcd_put put = {.key = r->leader_key, .value = r->mine, .lease = lease};
    LS_TRY(st, ls_etcd_swap(r->etcd, conditions, 2, &put, 1, ask_deadline(), &done), out);
    if (!done) {
        (void)ls_etcd_end_lease(r->etcd, lease, ask_deadline());
        goto out;
    }
    LS_TRY(st, fetch_view(r), out); /* nobody else changes it any more */
    r->lease = lease;
    r->renewed_ns = ls_time_now_ns();
    set_leader(r, r->args.self);
out:
    return st;
}

static ls_status seek(ls_etcd_leader *r)
{
    uint64_t leader;
    bool none;
    ls_status st = fetch_leader(r, &leader, &none);

    if (st != LS_OK)
        return st;
    if (leader != 0 && leader != r->args.self)
        set_leader(r, leader);
    return none ? take_lead(r) : LS_OK;
}

/* One that has run out is taken again, unless somebody has taken it. */
static ls_status renew(ls_etcd_leader *r)
{
    if (r->lease == 0 || ls_time_now_ns() - r->renewed_ns < RENEW_MS * LS_NS_PER_MS)
        return LS_OK;
    ls_status st = ls_etcd_renew(r->etcd, r->lease, ask_deadline());
    if (st == LS_EPEER) {
        r->lease = 0;
        st = seek(r);
    }
    if (st == LS_OK)
        r->renewed_ns = ls_time_now_ns();
    return st;
}

static void *work(void *context)
{
    ls_etcd_leader *r = context;

    pthread_mutex_lock(&r->background.guard);
    while (!r->background.stop) {
        bool wants = r->wants, seeks = r->seeks;
        pthread_mutex_unlock(&r->background.guard);
        ls_status st = renew(r);
        if (st == LS_OK && wants)
            st = make_view(r);
        if (st == LS_OK && seeks && r->lease == 0)
            st = seek(r);
        if (st != LS_OK && !r->silent)
            ls_log(LS_LOG_WARN, "%s; until then no other node can become the coordinator",
                   ls_err_last()->text);
        r->silent = st != LS_OK;
        pthread_mutex_lock(&r->background.guard);
        if (!r->wants || st != LS_OK || wants)
            ls_background_wait(&r->background, LOOK_MS);
    }
    pthread_mutex_unlock(&r->background.guard);
    return NULL;
}

/* --- the caller ------------------------------------------------------------------------------- */

/* "ID/RUN", and URLs with blanks in between. */
static ls_status take_names(ls_etcd_leader *r)
{
    const char *slash = strchr(r->args.run_lease, '/');
    char *save = NULL;

    if (!slash || slash - r->args.run_lease >= LS_RUN_LEASE_ID ||
        strlen(slash + 1) >= LS_RUN_LEASE_RUN)
        return ls_fail(LS_EDATA, "\"%.80s\" names no run in etcd", r->args.run_lease);
    snprintf(r->id, sizeof r->id, "%.*s", (int)(slash - r->args.run_lease), r->args.run_lease);
    snprintf(r->mine, sizeof r->mine, "%s", r->id);
    if (!r->args.first)
        snprintf(r->mine, sizeof r->mine, "%s#%016" PRIx64, r->id, r->args.self);
    ls_run_lease_key(slash + 1, "leader", r->leader_key);
    ls_run_lease_key(slash + 1, "owner", r->owner_key);
    ls_run_lease_key(slash + 1, "view", r->view_key);
    snprintf(r->urls_text, sizeof r->urls_text, "%s", r->args.etcd);
    for (char *url = strtok_r(r->urls_text, " ", &save); url && r->n_urls < LS_ETCD_URLS;
         url = strtok_r(NULL, " ", &save))
        r->urls[r->n_urls++] = url;
    return LS_OK;
}

ls_status ls_etcd_leader_open(ls_etcd_leader **etcd_leader_out, const ls_etcd_leader_args *args)
{
    ls_etcd_leader *r = ls_mem_alloc(sizeof *r);
    ls_status st;

    if (!r)
        return LS_ENOMEM;
    r->args = *args;
    r->leader = args->first ? args->self : 0;
    ls_str_init(&r->text);
    ls_str_init(&r->found);
    ls_background_init(&r->background);
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make a descriptor for news of etcd");
        goto out;
    }
    LS_TRY(st, take_names(r), out);
    LS_TRY(st, ls_etcd_open(&r->etcd, r->urls, r->n_urls), out);
    LS_TRY(st, ls_background_start(&r->background, work, r, "that asks etcd"), out);
    *etcd_leader_out = r;
out:
    if (st != LS_OK)
        ls_etcd_leader_close(r);
    return st;
}

void ls_etcd_leader_close(ls_etcd_leader *etcd_leader)
{
    ls_etcd_leader *r = etcd_leader;

    if (!r)
        return;
    ls_err_record before = *ls_err_last();
    if (ls_background_end(&r->background) &&
        r->lease) /* if etcd cannot be reached, it runs out by itself */
        (void)ls_etcd_end_lease(r->etcd, r->lease, ask_deadline());
    ls_etcd_close(r->etcd);
    if (r->fd >= 0)
        close(r->fd);
    ls_str_release(&r->text);
    ls_str_release(&r->found);
    ls_background_release(&r->background);
    ls_mem_free(r);
    ls_err_adopt(&before);
}

int ls_etcd_leader_fd(const ls_etcd_leader *etcd_leader)
{
    return etcd_leader->fd;
}

uint64_t ls_etcd_leader_agree(ls_etcd_leader *etcd_leader, const uint64_t *member, int n,
                              uint64_t above)
{
    ls_etcd_leader *r = etcd_leader;
    size_t bytes = (size_t)n * sizeof *member;
    uint64_t agreed = 0;

    pthread_mutex_lock(&r->background.guard);
    bool same = r->want.n == n && memcmp(r->want.member, member, bytes) == 0;
    if (same && r->agreed > above) {
        agreed = r->agreed;
        r->agreed = 0;
    } else if (!r->wants || !same || r->want.generation != above) {
        r->want.n = n;
        memcpy(r->want.member, member, bytes);
        r->want.generation = above;
        r->agreed = 0;
        r->wants = true;
        ls_background_wake(&r->background);
    }
    pthread_mutex_unlock(&r->background.guard);
    return agreed;
}

void ls_etcd_leader_seek(ls_etcd_leader *etcd_leader, bool seeks)
{
    pthread_mutex_lock(&etcd_leader->background.guard);
    if (seeks && !etcd_leader->seeks)
        ls_background_wake(&etcd_leader->background);
    etcd_leader->seeks = seeks;
    pthread_mutex_unlock(&etcd_leader->background.guard);
}

uint64_t ls_etcd_leader_leader(ls_etcd_leader *etcd_leader, uint64_t *turn_out)
{
    eventfd_t news;

    (void)eventfd_read(etcd_leader->fd, &news);
    pthread_mutex_lock(&etcd_leader->background.guard);
    uint64_t leader = etcd_leader->leader;
    *turn_out = etcd_leader->turn;
    pthread_mutex_unlock(&etcd_leader->background.guard);
    return leader;
}

const ls_quorum_view *ls_etcd_leader_view(ls_etcd_leader *etcd_leader)
{
    pthread_mutex_lock(&etcd_leader->background.guard);
    ls_quorum_view_copy(&etcd_leader->shown, &etcd_leader->view);
    pthread_mutex_unlock(&etcd_leader->background.guard);
    return &etcd_leader->shown;
}
