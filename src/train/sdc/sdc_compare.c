/* sdc_compare.c -- hashes of the state, and which rank's differ.
 *
 * A rank has up to three hashes: of what all ranks have (COMMON), of its own part (OWN), of the copy
 * of another part that it holds (COPY, train/replica). They are gathered, so all ranks judge by the
 * same table. Example, 3 ranks with mesh.zero: 1, where rank 1 holds the copy of rank 0, rank 2 that
 * of rank 1 and rank 0 that of rank 2; a bit flips in the moments of rank 2:
 *
 *              COMMON   OWN   COPY
 *     rank 0   w        a     c
 *     rank 1   w        b     a
 *     rank 2   w        C     b         C is not c: of these two ranks one is corrupt
 *
 * A part and its copy are two, so there is no majority, and no rank is named. Had the bit been one of
 * the weights, COMMON would be w w W, and rank 2 would be named. */
#include "train/sdc/sdc_compare.h"

#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "optim/optim.h"
#include "parallel/blocking.h"
#include "train/replica/replica_impl.h"

enum { COMMON, OWN, COPY, KINDS, CHUNK = 1 << 20, WAIT_S = 600 };

typedef struct hash_row {
    ls_hash hashes[KINDS]; /* zeros: it has no such thing */
} hash_row;
_Static_assert(sizeof(hash_row) % 16 == 0, "all-gathers cut at 16 bytes");

struct ls_sdc_compare {
    int ranks;
    hash_row *now; /* owned: of all ranks */
    bool *odd;     /* owned: which of them are wrong */
    float *host;   /* owned, where the device has its own memory: what is hashed */
    struct {
        hash_row *rows; /* owned; NULL: nothing is remembered */
        int ranks;
        int64_t step;
    } before; /* when ranks last disagreed without a majority */
};

ls_status ls_sdc_compare_open(ls_session *s)
{
    struct ls_sdc_compare *v = s->sdc.compare;
    size_t n = (size_t)ls_mesh_ranks(&s->mesh);

    if (s->mesh.ranks < 2 || s->mesh.independent || !ls_mesh_whole(&s->mesh))
        return LS_OK;
    if (!v)
        v = s->sdc.compare = ls_mem_alloc(sizeof *v);
    if (!v)
        return LS_ENOMEM;
    ls_mem_free(v->now);
    ls_mem_free(v->odd);
    v->ranks = s->mesh.ranks;
    v->now = ls_mem_array(n, sizeof *v->now);
    v->odd = ls_mem_array(n, sizeof *v->odd);
    if (s->discrete && !v->host)
        v->host = ls_mem_array(CHUNK, sizeof *v->host);
    return v->now && v->odd && (v->host || !s->discrete) ? LS_OK : LS_ENOMEM;
}

void ls_sdc_compare_close(ls_session *session)
{
    struct ls_sdc_compare *v = session->sdc.compare;

    if (!v)
        return;
    ls_mem_free(v->now);
    ls_mem_free(v->odd);
    ls_mem_free(v->host);
    ls_mem_free(v->before.rows);
    ls_mem_free(v);
    session->sdc.compare = NULL;
}

/* --- hashes ----------------------------------------------------------------------------------- */

/* Memory of the device, piece by piece where the host cannot read it. */
static ls_status add(const ls_session *s, ls_hash_stream *stream, const float *x, int64_t n)
{
    ls_status st = LS_OK;

    if (!s->discrete) {
        ls_hash_add(stream, x, (size_t)n * sizeof *x);
        return LS_OK;
    }
    for (int64_t at = 0; at < n && st == LS_OK; at += CHUNK) {
        int64_t some = ls_min_i64(CHUNK, n - at);
        ls_stream_copy_out(s->stream, s->sdc.compare->host, x + at, some * (int64_t)sizeof *x);
        st = ls_stream_sync(s->stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S);
        ls_hash_add(stream, s->sdc.compare->host, (size_t)some * sizeof *x);
    }
    return st;
}

static ls_status hash_arrays(const ls_session *s, const float *const *arrays, const int64_t *counts,
                             int n, ls_hash *out)
{
    ls_hash_stream stream;
    ls_status st = LS_OK;

    ls_hash_begin(&stream);
    for (int i = 0; i < n; i++)
        LS_TRY(st, add(s, &stream, arrays[i], counts[i]), out);
    *out = ls_hash_end(&stream);
out:
    return st;
}

/* What this rank has of each kind. Moments that were offloaded are not compared. */
static ls_status hash_own(const ls_session *s, hash_row *own)
{
    ls_step_arrays live = ls_step_state_arrays(s->step);
    int64_t trained = s->model.trained, flat = s->model.flat;
    int64_t part = ls_mesh_own(&s->mesh, trained, s->mesh.rank);
    bool moments = s->offload == LS_OFFLOAD_NONE;
    int kinds = moments ? ls_optim_kinds(s->run) : 1, first = s->mesh.zero == 3 ? 0 : 1;
    ls_status st = LS_OK;

    *own = (hash_row){.hashes = {{.hi = 0}}};
    LS_TRY(st, ls_step_settle(s->step), out);
    if (s->mesh.zero == 0)
        return hash_arrays(s, (const float *const[]){live.w, live.m, live.v},
                           (const int64_t[]){flat, trained, ls_optim_seconds(s->run, &s->model)},
                           kinds, &own->hashes[COMMON]);
    if (s->mesh.zero < 3)
        LS_TRY(st, hash_arrays(s, (const float *const[]){live.w}, &flat, 1, &own->hashes[COMMON]),
               out);
    const float *const parts[] = {live.w, live.m, live.v};
    if (moments)
        LS_TRY(st,
               hash_arrays(s, parts + first, (const int64_t[]){part, part, part}, kinds - first,
                           &own->hashes[OWN]),
               out);
    const struct ls_replica_send *r = s->step->replica;
    if (!r || !r->sends)
        goto out;
    float *const *old = r->again.old; /* LAMB, Muon: the copy is of before the last update, too */
    if (r->again.on && moments)
        LS_TRY(st,
               hash_arrays(s, (const float *const[]){old[LS_REPLICA_M], old[LS_REPLICA_V]},
                           (const int64_t[]){part, part}, 2, &own->hashes[OWN]),
               out);
    float *const *c = r->copy;
    const float *const copies[] = {c[LS_REPLICA_W], c[LS_REPLICA_M], c[LS_REPLICA_V]};
    part = ls_mesh_own(&s->mesh, trained, r->from);
    st = hash_arrays(s, copies + first, (const int64_t[]){part, part, part},
                     ls_optim_kinds(s->run) - first, &own->hashes[COPY]);
out:
    return st;
}

/* --- judging ---------------------------------------------------------------------------------- */

/* Whether two ranks should have the same of a kind: all ranks, or those with the same part. */
static bool comparable(const ls_session *s, int kind, int a, int b)
{
    return kind == COMMON
               ? s->mesh.zero < 3
               : kind == OWN && ls_mesh_shard_rank(&s->mesh, a) == ls_mesh_shard_rank(&s->mesh, b);
}

/* A rank that differs from the majority of those it is comparable with is odd. False: a rank differs,
 * and there is no majority. */
static bool judge(const ls_session *s, int kind, bool *odd, bool *equal)
{
    const struct ls_sdc_compare *v = s->sdc.compare;
    bool clear = true;

    for (int r = 0; r < v->ranks; r++) {
        int all = 0, same = 0, most = 0;
        for (int q = 0; q < v->ranks; q++) {
            if (!comparable(s, kind, r, q))
                continue;
            int agree = 0;
            for (int k = 0; k < v->ranks; k++)
                agree += comparable(s, kind, r, k) &&
                         ls_hash_equal(v->now[q].hashes[kind], v->now[k].hashes[kind]);
            all++;
            same += ls_hash_equal(v->now[q].hashes[kind], v->now[r].hashes[kind]);
            most = agree > most ? agree : most;
        }
        if (same == all)
            continue;
        *equal = false;
        clear = clear && 2 * most > all;
        odd[r] |= 2 * most > all && 2 * same < all;
    }
    return clear;
}

/* A part and its copy are two: which one is right is not known. */
static bool judge_copies(const ls_session *s, bool *equal)
{
    const struct ls_sdc_compare *v = s->sdc.compare;
    bool clear = true;

    for (int r = 0; r < v->ranks && ls_replicas_sends(&s->mesh); r++)
        clear = clear && ls_hash_equal(v->now[r].hashes[OWN],
                                       v->now[ls_replicas_holder(&s->mesh, r)].hashes[COPY]);
    *equal = *equal && clear;
    return clear;
}

/* Ranks now agree on a step that they had disagreed on: a rank that had another result then was
 * wrong. Returns how many were; 0 even when all were, because earlier steps were spoiled for all. */
static int look_back(const ls_session *s)
{
    struct ls_sdc_compare *v = s->sdc.compare;
    int n = 0;

    memset(v->odd, 0, (size_t)v->ranks * sizeof *v->odd);
    if (!v->before.rows || v->before.step != s->step_number)
        return 0;
    for (int r = 0; r < v->ranks && v->before.ranks == v->ranks; r++) {
        v->odd[r] = memcmp(&v->before.rows[r], &v->now[r], sizeof *v->now) != 0;
        n += v->odd[r];
    }
    if (v->before.ranks == v->ranks && n == v->ranks && s->mesh.rank == 0)
        ls_log(LS_LOG_WARN,
               "step %lld, on which ranks had disagreed, is done again: all had something else, so "
               "the rank with the faulty memory or processor cannot be found",
               (long long)s->step_number);
    ls_mem_free(v->before.rows);
    v->before.rows = NULL;
    return n == v->ranks ? 0 : n;
}

static void remember(const ls_session *s)
{
    struct ls_sdc_compare *v = s->sdc.compare;
    size_t n = (size_t)v->ranks;

    ls_mem_free(v->before.rows);
    v->before.rows = ls_mem_array(n, sizeof *v->before.rows);
    v->before.ranks = v->ranks;
    v->before.step = s->step_number;
    if (v->before.rows) /* without it no rank is named later */
        memcpy(v->before.rows, v->now, n * sizeof *v->now);
}

static const char undecided[] = "no majority shows which rank is right";

bool ls_sdc_compare_caused(const char *why)
{
    return strstr(why, LS_SDC_COMPARE_MARK) || strstr(why, undecided);
}

ls_status ls_sdc_compare_accuse(const ls_session *s, int rank, const char *why)
{
    bool leaves = rank == s->mesh.rank || !s->args.rejoin;
    ls_status st =
        ls_fail(leaves ? LS_EFAIL : LS_EPEER, "rank %d" LS_SDC_COMPARE_MARK "%s", rank, why);

    ls_err_hint("Its memory or processor is faulty: look at that machine, and run lineshaft doctor "
                "there.");
    return st;
}

static ls_status accuse_odd(const ls_session *s, const char *why)
{
    const struct ls_sdc_compare *v = s->sdc.compare;
    int rank = 0;

    if (v->odd[s->mesh.rank])
        return ls_sdc_compare_accuse(s, s->mesh.rank, why);
    while (!v->odd[rank])
        rank++;
    return ls_sdc_compare_accuse(s, rank, why);
}

/* No rank can be named: all go back to what they had agreed on. */
static ls_status doubt(ls_session *s)
{
    ls_status st = ls_fail(s->args.rejoin ? LS_EPEER : LS_EFAIL,
                           "ranks have different weights or moments after step %lld, and %s",
                           (long long)s->step_number, undecided);

    ls_err_hint("Memory or a processor is faulty. Start again to go on from the newest "
                "checkpoint.");
    if (s->run->train.reduce == LS_REDUCE_ORDERED)
        remember(s);
    return st;
}

ls_status ls_sdc_compare_run(ls_session *s)
{
    struct ls_sdc_compare *v = s->sdc.compare;
    bool equal = true, clear = true;
    char why[160];
    ls_status st;

    if (!v || s->mesh.ranks < 2)
        return LS_OK;
    LS_TRY(st, hash_own(s, &v->now[s->mesh.rank]), out);
    LS_TRY(st,
           ls_blocking_all_gather(s->args.comm, LS_U8, v->now, v->ranks * (int64_t)sizeof *v->now,
                                  ls_time_now_ns() + WAIT_S * LS_NS_PER_S),
           out);
    memset(v->odd, 0, (size_t)v->ranks * sizeof *v->odd);
    clear = judge(s, COMMON, v->odd, &equal) && clear;
    clear = judge(s, OWN, v->odd, &equal) && clear;
    clear = judge_copies(s, &equal) && clear;
    if (!equal) {
        s->sdc.distrusted = true;
        snprintf(why, sizeof why,
                 "its weights or moments are not those of the others after step "
                 "%lld",
                 (long long)s->step_number);
        return clear ? accuse_odd(s, why) : doubt(s);
    }
    if (look_back(s) > 0) {
        snprintf(why, sizeof why,
                 "step %lld, done again, gives what the others had when they disagreed",
                 (long long)s->step_number);
        return accuse_odd(s, why);
    }
out:
    return st;
}

/* --- for tests -------------------------------------------------------------------------------- */

/* An upper bit of the mantissa of the first element; NULL: there is no such array. */
static void flip(const ls_session *s, const char *what, float *x)
{
    if (x && ls_step_test_point(what, s->mesh.rank, s->step_number) &&
        ls_step_settle(s->step) == LS_OK)
        ((unsigned char *)x)[2] ^= 0x40;
}

void ls_sdc_compare_inject(ls_session *s)
{
    ls_step_arrays live = ls_step_state_arrays(s->step);

    if (s->discrete)
        return;
    flip(s, "flip.weight", live.w);
    flip(s, "flip.moment", live.m);
    flip(s, "flip.copy", s->step->replica ? s->step->replica->copy[LS_REPLICA_M] : NULL);
}
