/* cmd_bench_comm.c -- `lineshaft bench comm`: how long collectives take.
 *
 * A call is timed from a barrier until its slowest rank has the result, as the programs under
 * bench/peers do it: each rank notes its own time of every call, and the largest one of each call
 * counts. The median over the calls is what is shown. Buffers lie in the memory of the node, as
 * gradients do.
 *
 * Before a row is timed, two ways that the model finds nearly equal are settled (comm/tune.h). With
 * --explain every way that can do the collective is forced in turn and timed like a row.
 *
 * Bus bandwidth is what each link must have carried at least, so that it compares with the link's
 * speed whatever the number of ranks: bytes / time * 2 (n - 1) / n for all_reduce. */
#include "cli/bench/cmd_bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "cli/bench/cmd_bench_comm_device.h"
#include "cli/bench/cmd_bench_explain.h"
#include "cli/bench/cmd_bench_peer.h"
#include "cli/job_flags.h"
#include "cli/report.h"
#include "comm/algo/algo.h"
#include "comm/bound.h"
#include "comm/tune.h"
#include "launch/job_rank.h"

enum { MOST_SIZES = 64, MOST_CALLS = 4000, LEAST_CALLS = 5, WARM_CALLS = 3, LIMIT_S = 120 };

static const char *const default_sizes = "1K,16K,64K,1M,16M,64M";

typedef struct plan {
    int64_t bytes[MOST_SIZES];
    int sizes;
    ls_coll_kind ops[LS_COLL_KINDS];
    int n_ops;
    ls_dtype type;
    const char *algo; /* NULL: what is cheapest */
    bool json, explain;
    double seconds; /* for each row */
} plan;

typedef struct rank_bench {
    ls_comm *comm;
    const plan *p;
    char *in, *out;
    int64_t *times;        /* MOST_CALLS */
    ls_cpus_place *places; /* of all ranks; to explain */
    FILE *to;              /* where rank 0 writes; NULL elsewhere */
} rank_bench;

/* --- reading the flags ------------------------------------------------------------------------*/

static ls_status read_size(const char *text, size_t len, int64_t *bytes_out)
{
    char *end;
    double n = strtod(text, &end);
    int64_t unit = 1;

    if (end < text + len) {
        const char *units = "KMG", *u = strchr(units, *end & ~0x20);
        for (int64_t i = 0; u && *end && i <= u - units; i++)
            unit <<= 10;
        end += u && *end;
    }
    if (end != text + len || end == text || !(n * (double)unit >= 0) || n * (double)unit > 0x1p40)
        return ls_fail(LS_EUSAGE, "\"%.*s\" is not a size (1K, 64K, 1M, 1G)", (int)len, text);
    *bytes_out = (int64_t)(n * (double)unit);
    return LS_OK;
}

static ls_status read_sizes(const char *text, plan *p)
{
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        if (p->sizes == MOST_SIZES)
            return ls_fail(LS_EUSAGE, "more than %d sizes", MOST_SIZES);
        ls_status st = read_size(at, len, &p->bytes[p->sizes]);
        if (st != LS_OK)
            return st;
        p->sizes++;
        at += len;
        if (!*at)
            return LS_OK;
    }
}

static bool timed(int kind)
{
    return kind != LS_COLL_SEND && kind != LS_COLL_RECV;
}

static ls_status read_ops(const char *text, plan *p)
{
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        int kind = 0;
        while (kind < LS_COLL_KINDS &&
               !(timed(kind) && strlen(ls_coll_kind_name((ls_coll_kind)kind)) == len &&
                 strncmp(ls_coll_kind_name((ls_coll_kind)kind), at, len) == 0))
            kind++;
        if (kind == LS_COLL_KINDS || p->n_ops == LS_COLL_KINDS) {
            ls_fail(LS_EUSAGE, "there is no collective \"%.*s\" to measure", (int)len, at);
            ls_err_hint("There are all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, "
                        "gather and barrier.");
            return LS_EUSAGE;
        }
        p->ops[p->n_ops++] = (ls_coll_kind)kind;
        at += len;
        if (!*at)
            return LS_OK;
    }
}

static ls_status read_type(const char *text, plan *p)
{
    static const struct {
        const char *name;
        ls_dtype type;
    } types[] = {{"f32", LS_F32}, {"bf16", LS_BF16}, {"f16", LS_F16}, {"f64", LS_F64},
                 {"i8", LS_I8},   {"i32", LS_I32},   {"i64", LS_I64}};

    for (size_t i = 0; i < LS_COUNT(types); i++)
        if (!text || strcmp(text, types[i].name) == 0) {
            p->type = types[i].type;
            return LS_OK;
        }
    return ls_fail(LS_EUSAGE, "--type \"%s\" is none of f32, bf16, f16, f64, i8, i32, i64", text);
}

static ls_status read_plan(const ls_args *args, plan *p)
{
    const char *ops = ls_args_value(args, "op"), *sizes = ls_args_value(args, "sizes");
    int64_t tenths;
    ls_status st;

    *p = (plan){.algo = ls_args_value(args, "algo"),
                .json = ls_args_has(args, "json"),
                .explain = ls_args_has(args, "explain")};
    LS_TRY(st, read_sizes(sizes ? sizes : default_sizes, p), out);
    LS_TRY(st, read_ops(ops ? ops : "all_reduce", p), out);
    LS_TRY(st, read_type(ls_args_value(args, "type"), p), out);
    LS_TRY(st, ls_args_number(args, "tenths", 3, 1, 6000, &tenths), out);
    p->seconds = (double)tenths / 10;
    if (p->algo && !ls_algo_find(p->algo) && strcmp(p->algo, "levels") != 0) {
        st = ls_fail(LS_EUSAGE, "there is no algorithm \"%s\"", p->algo);
        ls_err_hint("There are ring, halving, doubling, tree, tree2, pairwise, direct, "
                    "dissemination and levels; without --algo the cheapest is taken.");
    }
out:
    return st;
}

/* --- one row ----------------------------------------------------------------------------------*/

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static ls_status barrier(rank_bench *b, int64_t deadline_ns)
{
    return ls_comm_run(b->comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8}, deadline_ns);
}

static ls_status time_call(rank_bench *b, const ls_coll *coll, int64_t *ns_out)
{
    int64_t deadline_ns = ls_time_now_ns() + LIMIT_S * LS_NS_PER_S;
    ls_status st;

    LS_TRY(st, barrier(b, deadline_ns), out);
    int64_t begin = ls_time_now_ns();
    LS_TRY(st, ls_comm_run(b->comm, coll, deadline_ns), out);
    *ns_out = ls_time_now_ns() - begin;
out:
    return st;
}

/* How many calls fit into the time of a row: rank 0 decides for all. */
static ls_status count_calls(rank_bench *b, const ls_coll *coll, double seconds, int64_t *calls_out)
{
    int64_t ns = 0, best = INT64_MAX, worst = 0, n;
    ls_status st = LS_OK;

    for (int i = 0; i < WARM_CALLS; i++) {
        LS_TRY(st, time_call(b, coll, &ns), out);
        best = ls_min_i64(best, ns);
        worst = ls_max_i64(worst, ns);
    }
    n = (int64_t)(seconds * 1e9 / (double)ls_max_i64(best, 1) / 2);
    n = ls_max_i64(LEAST_CALLS, ls_min_i64(MOST_CALLS, n));
    LS_TRY(
        st,
        ls_comm_run(
            b->comm,
            &(ls_coll){.kind = LS_COLL_BROADCAST, .type = LS_I64, .count = 1, .in = &n, .out = &n},
            ls_time_now_ns() + LIMIT_S * LS_NS_PER_S),
        out);
    *calls_out = n;
out:
    return st;
}

/* Bytes of a call that left the node which sent most, headers included: what sent_before is less
 * than now on each rank, of this many calls. -1: there is one node. */
static ls_status count_wire(rank_bench *b, int64_t sent_before, int64_t calls, int64_t *wire_out)
{
    int ranks = ls_comm_ranks(b->comm), nodes = ls_comm_node(b->comm, ranks - 1) + 1;
    int64_t *all = ls_mem_array((size_t)nodes, sizeof *all), sent, received, most = 0;
    ls_status st = LS_OK;

    *wire_out = -1;
    if (!all)
        return ls_fail(LS_ENOMEM, "no memory for the traffic of %d nodes", nodes);
    if (nodes == 1)
        goto out;
    ls_comm_traffic(b->comm, &sent, &received);
    memset(all, 0, (size_t)nodes * sizeof *all);
    all[ls_comm_node(b->comm, ls_comm_rank(b->comm))] = sent - sent_before;
    LS_TRY(st,
           ls_comm_run(b->comm,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_SUM,
                                  .type = LS_I64,
                                  .count = nodes,
                                  .in = all,
                                  .out = all},
                       ls_time_now_ns() + LIMIT_S * LS_NS_PER_S),
           out);
    for (int i = 0; i < nodes; i++)
        most = ls_max_i64(most, all[i]);
    *wire_out = most / calls;
out:
    ls_mem_free(all);
    return st;
}

typedef struct row_facts {
    int64_t bytes, calls;
    int64_t wire;    /* as count_wire() says */
    double bound_ns; /* 0: none */
} row_facts;

static void show(rank_bench *b, const ls_coll *coll, const row_facts *row)
{
    int64_t bytes = row->bytes, calls = row->calls;
    double bound_ns = row->bound_ns;
    int n = ls_comm_ranks(b->comm);
    double us = (double)b->times[calls / 2] / 1e3, best = (double)b->times[0] / 1e3;
    double gbs = us > 0 ? (double)bytes / us / 1e3 : 0, bus = gbs * ls_bound_share(coll->kind, n);
    const char *algo = ls_comm_way(b->comm, coll), *op = ls_coll_kind_name(coll->kind);

    char over[32] = "-", bound[32] = "null", wire[32] = "null";

    if (row->wire >= 0)
        snprintf(wire, sizeof wire, "%" PRId64, row->wire);
    if (bound_ns > 0) {
        snprintf(over, sizeof over, "%.2f", us * 1e3 / bound_ns);
        snprintf(bound, sizeof bound, "%.3f", bound_ns / 1e3);
    }
    if (b->p->json)
        fprintf(b->to,
                "{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%" PRId64
                ",\"us\":%.3f,\"best_us\":%.3f,\"algo\":\"%s\",\"alg_gbs\":%.3f,\"bus_gbs\":%.3f,"
                "\"bound_us\":%s,\"wire_bytes\":%s,\"calls\":%" PRId64 "}\n",
                op, n, bytes, us, best, algo, gbs, bus, bound, wire, calls);
    else
        fprintf(b->to, "%-14s %12" PRId64 " %12.2f %12.2f  %-12s %9.2f %9.2f %8s %6" PRId64 "\n",
                op, bytes, us, best, algo, gbs, bus, over, calls);
    fflush(b->to);
}

/* b->times: of each call the slowest rank's, sorted, the same on all ranks. */
static ls_status time_way(rank_bench *b, const ls_coll *coll, double seconds, int64_t *calls_out)
{
    int64_t calls = 0;
    ls_status st;

    LS_TRY(st, count_calls(b, coll, seconds, &calls), out);
    for (int64_t i = 0; i < calls; i++)
        LS_TRY(st, time_call(b, coll, &b->times[i]), out);
    LS_TRY(st,
           ls_comm_run(b->comm,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_MAX,
                                  .type = LS_I64,
                                  .count = calls,
                                  .in = b->times,
                                  .out = b->times},
                       ls_time_now_ns() + LIMIT_S * LS_NS_PER_S),
           out);
    qsort(b->times, (size_t)calls, sizeof *b->times, by_time);
    *calls_out = calls;
out:
    return st;
}

/* --- all ways of a row ------------------------------------------------------------------------*/

/* All ranks have the same table, so all of them time the same ways. */
static ls_status time_ways(rank_bench *b, const ls_coll *coll, ls_bench_ways *e)
{
    double share = b->p->seconds / 3;
    ls_status st = LS_OK;

    ls_tune_explain(b->comm, coll, &e->table);
    for (int i = 0; i < e->table.count; i++) {
        const ls_tune_row *row = &e->table.rows[i];
        bool memory = strcmp(row->by, "memory") == 0;
        int64_t calls;
        e->measured_us[i] = -1;
        if (row->refuses)
            continue;
        LS_TRY(st, ls_comm_force(b->comm, memory ? NULL : row->way), out);
        LS_TRY(st, time_way(b, coll, share, &calls), out);
        e->measured_us[i] = (double)b->times[calls / 2] / 1e3;
    }
    LS_TRY(st, ls_comm_force(b->comm, b->p->algo), out);
out:
    return st;
}

static ls_status explain_row(rank_bench *b, const ls_coll *coll, int64_t bytes)
{
    ls_bench_ways ways = {.places = b->places};
    ls_status st;

    LS_TRY(st, time_ways(b, coll, &ways), out);
    if (!b->to)
        goto out;
    if (b->p->json)
        st = ls_bench_explain_json(b->to, b->comm, coll, bytes, &ways);
    else
        ls_bench_explain_show(b->to, coll, bytes, &ways);
out:
    return st;
}

static ls_status bench_row(rank_bench *b, ls_coll_kind kind, int64_t bytes)
{
    int n = ls_comm_ranks(b->comm);
    int64_t size = ls_dtype_bytes(b->p->type);
    bool parts = kind == LS_COLL_ALL_TO_ALL || kind == LS_COLL_GATHER;
    ls_coll coll = {.kind = kind,
                    .op = LS_COLL_SUM,
                    .type = b->p->type,
                    .count = kind == LS_COLL_BARRIER ? 0 : bytes / size / (parts ? n : 1),
                    .in = kind == LS_COLL_ALL_REDUCE || kind == LS_COLL_BROADCAST ? b->out : b->in,
                    .out = b->out};
    row_facts row = {.bytes = bytes};
    int64_t sent, received;
    ls_status st;

    LS_TRY(st, ls_tune_settle(b->comm, &coll, NULL, NULL, ls_time_now_ns() + LIMIT_S * LS_NS_PER_S),
           out);
    if (b->p->explain)
        return explain_row(b, &coll, bytes);
    LS_TRY(st,
           ls_bound_find(b->comm, kind, bytes, b->in, b->out,
                         ls_time_now_ns() + LIMIT_S * LS_NS_PER_S, &row.bound_ns),
           out);
    ls_comm_traffic(b->comm, &sent, &received);
    LS_TRY(st, time_way(b, &coll, b->p->seconds, &row.calls), out);
    LS_TRY(st, count_wire(b, sent, row.calls + WARM_CALLS, &row.wire), out);
    if (b->to)
        show(b, &coll, &row);
out:
    return st;
}

/* --- all rows ---------------------------------------------------------------------------------*/

static void show_head(rank_bench *b)
{
    fprintf(b->to, "%d rank%s\n", ls_comm_ranks(b->comm), ls_comm_ranks(b->comm) == 1 ? "" : "s");
    if (!b->p->explain) {
        fprintf(b->to, "%-14s %12s %12s %12s  %-12s %9s %9s %8s %6s\n", "op", "bytes", "us",
                "best us", "way", "alg GB/s", "bus GB/s", "x bound", "calls");
        return;
    }
    ls_bench_explain_head(b->to, b->comm, b->places);
}

static void show_foot(rank_bench *b)
{
    const ls_tune *tune = ls_tune_of(b->comm);

    fprintf(b->to, "%slink numbers: ", b->p->explain ? "\n" : "");
    if (tune->off)
        fprintf(b->to, "assumed (LINESHAFT_TUNE=off)\n");
    else if (tune->source == LS_TUNE_ASSUMED)
        fprintf(b->to, "none needed, all ranks are on one node\n");
    else if (tune->source == LS_TUNE_REMEMBERED)
        fprintf(b->to, "remembered in %s\n", tune->path);
    else
        fprintf(b->to, "measured in %.0f ms%s%s\n", (double)tune->took_ns / 1e6,
                ls_file_exists(tune->path) ? ", kept in " : ", not kept",
                ls_file_exists(tune->path) ? tune->path : "");
}

static ls_status bench_rows(rank_bench *b)
{
    ls_status st = LS_OK;

    if (b->to && !b->p->json)
        show_head(b);
    for (int o = 0; o < b->p->n_ops; o++)
        for (int i = 0; i < b->p->sizes; i++) {
            if (b->p->ops[o] == LS_COLL_BARRIER && i > 0)
                continue;
            LS_TRY(st,
                   bench_row(b, b->p->ops[o], b->p->ops[o] == LS_COLL_BARRIER ? 0 : b->p->bytes[i]),
                   out);
        }
    if (b->to && !b->p->json)
        show_foot(b);
out:
    return st;
}

static ls_status open_out(FILE **to_out)
{
    const char *fd = getenv("LINESHAFT_FD_OUT");
    int copy = fd ? dup((int)strtol(fd, NULL, 10)) : -1;

    *to_out = copy < 0 ? stdout : fdopen(copy, "w");
    return *to_out ? LS_OK : ls_fail_sys(LS_EIO, "cannot write the results");
}

static ls_status find_places(rank_bench *b)
{
    int n = ls_comm_ranks(b->comm);

    b->places = ls_mem_array((size_t)n, sizeof *b->places);
    return b->places ? ls_tune_places(b->comm, ls_time_now_ns() + LIMIT_S * LS_NS_PER_S, b->places)
                     : ls_fail(LS_ENOMEM, "no memory for the places of %d ranks", n);
}

static ls_status run_rank(const plan *p)
{
    rank_bench b = {.p = p};
    int64_t most = 64;
    ls_status st;

    for (int i = 0; i < p->sizes; i++)
        most = ls_max_i64(most, p->bytes[i]);
    LS_TRY(st, ls_job_rank_join(&b.comm, ls_time_now_ns() + 60 * LS_NS_PER_S), out);
    /* One node takes no numbers to choose by; they are for the table. */
    if (p->explain && ls_tune_of(b.comm)->source == LS_TUNE_ASSUMED)
        LS_TRY(st, ls_tune_open(b.comm, ls_time_now_ns() + 60 * LS_NS_PER_S), out);
    if (p->explain)
        LS_TRY(st, find_places(&b), out);
    LS_TRY(st, ls_comm_force(b.comm, p->algo), out);
    LS_TRY(st, ls_comm_alloc(b.comm, most, "bench buffer", (void **)&b.in), out);
    LS_TRY(st, ls_comm_alloc(b.comm, most, "bench buffer", (void **)&b.out), out);
    LS_TRY(st,
           ls_comm_alloc(b.comm, MOST_CALLS * (int64_t)sizeof *b.times, "times", (void **)&b.times),
           out);
    if (ls_comm_rank(b.comm) == 0)
        LS_TRY(st, open_out(&b.to), out);
    LS_TRY(st, bench_rows(&b), out);
    if (b.to && (fflush(b.to) != 0 || ferror(b.to))) {
        st = ls_fail_sys(LS_EIO, "cannot write the results");
        goto out;
    }
    st = barrier(&b, ls_time_now_ns() + LIMIT_S * LS_NS_PER_S);
out:
    if (b.to && b.to != stdout)
        fclose(b.to);
    if (b.comm) {
        ls_comm_free(b.comm, b.in);
        ls_comm_free(b.comm, b.out);
        ls_comm_free(b.comm, b.times);
    }
    ls_comm_close(b.comm);
    ls_mem_free(b.places);
    return st;
}

/* The same of device memory. */
static ls_status run_device(const ls_args *args, const plan *p)
{
    const char *provider = ls_args_value(args, "provider");
    ls_bench_device_args device = {.device = ls_args_value(args, "device"),
                                   .provider = provider ? provider : "nccl",
                                   .bytes = p->bytes,
                                   .sizes = p->sizes,
                                   .ops = p->ops,
                                   .n_ops = p->n_ops,
                                   .type = p->type,
                                   .seconds = p->seconds,
                                   .json = p->json};
    ls_status st;

    LS_TRY(st, ls_job_rank_join(&device.comm, ls_time_now_ns() + 60 * LS_NS_PER_S), out);
    if (ls_comm_rank(device.comm) == 0)
        LS_TRY(st, open_out(&device.to), out);
    LS_TRY(st, ls_bench_comm_device(&device), out);
    if (device.to && (fflush(device.to) != 0 || ferror(device.to)))
        st = ls_fail_sys(LS_EIO, "cannot write the results");
out:
    if (device.to && device.to != stdout)
        fclose(device.to);
    ls_comm_close(device.comm);
    return st;
}

/* What the peers' programs can do: f32, on this machine, as each library chooses. */
static ls_status run_peers(const ls_args *args, const plan *p)
{
    static const char *const alone[] = {"listen", "join", "explain", "algo", "type"};
    const char *ops[LS_COLL_KINDS];
    int64_t n;
    ls_status st;

    for (size_t i = 0; i < LS_COUNT(alone); i++)
        if (ls_args_has(args, alone[i]))
            return ls_fail(LS_EUSAGE, "--peer does not go with --%s", alone[i]);
    for (int i = 0; i < p->n_ops; i++) {
        ops[i] = ls_coll_kind_name(p->ops[i]);
        if (p->ops[i] == LS_COLL_GATHER || p->ops[i] == LS_COLL_BARRIER)
            return ls_fail(LS_EUSAGE, "--peer does not measure %s", ops[i]);
    }
    LS_TRY(st, ls_args_number(args, "ranks", 1, 1, LS_NODE_MEMORY_RANKS, &n), out);
    st = ls_bench_peer_run(&(ls_bench_peer_args){.ranks = (int)n,
                                                 .ops = ops,
                                                 .n_ops = p->n_ops,
                                                 .bytes = p->bytes,
                                                 .sizes = p->sizes,
                                                 .seconds = p->seconds,
                                                 .json = p->json});
out:
    return st;
}

/* Start this command once more as each rank. */
static ls_status run_ranks(const ls_args *args)
{
    ls_agent_result result = {.worker = -1};
    ls_job_args job = {.grace_s = 0};
    ls_status st;

    LS_TRY(st, ls_job_flags_read(args, 1, &job), out);
    LS_TRY(st, ls_job_run(&job, &result), out);
    st = ls_report_job(&result, args);
out:
    return st;
}

static ls_status run_comm(const ls_args *args, ls_str *out)
{
    plan p;
    ls_status st = read_plan(args, &p);

    (void)out;
    if (st != LS_OK)
        return st;
    if (ls_args_has(args, "peer"))
        return run_peers(args, &p);
    if (ls_args_has(args, "device") && ls_job_rank_here())
        return run_device(args, &p);
    return ls_job_rank_here() ? run_rank(&p) : run_ranks(args);
}

static const ls_flag flags[] = {
    LS_JOB_FLAGS,
    {"op", 0, "NAME,...", false,
     "Collectives to measure: all_reduce (default), reduce_scatter, all_gather, broadcast, "
     "all_to_all, gather, barrier."},
    {"sizes", 0, "BYTES,...", false,
     "Sizes of a rank's buffer: 1K,16K,64K,1M,16M,64M unless given."},
    {"type", 0, "NAME", false,
     "Type of the elements: f32 (default), bf16, f16, f64, i8, i32, i64."},
    {"algo", 0, "NAME", false,
     "Take this algorithm: ring, halving, doubling, tree, tree2, pairwise, direct, dissemination "
     "or "
     "levels; without it, the cheapest way."},
    {"device", 0, "KIND", false,
     "Of device memory: cuda. Calls are queued behind each other, and bandwidths are those of "
     "nccl-tests."},
    {"provider", 0, "NAME", false,
     "With --device, what moves the data: nccl (unless given), host, or auto."},
    {"tenths", 0, "N", false, "Time for each row, in tenths of a second; 3 unless given."},
    {"explain", 0, NULL, false,
     "Show every way to do each collective: what the model predicts, what it takes, what it sends, "
     "which one is taken and why; the numbers of the links and of each pair of hosts, and what the "
     "ranks of a host share."},
    {"peer", 0, NULL, false,
     "On this machine: also measure OpenMPI, MPICH and Gloo, where they are installed, and show "
     "ratios."},
    {"json", 'j', NULL, false, "Print one JSON object a line."},
    {.name = NULL},
};

const ls_command ls_bench_comm = {
    .name = "comm",
    .summary = "time collectives between ranks",
    .about =
        "Starts ranks on this machine (and, with --listen and --join, on others) and times "
        "collectives between them. A call lasts from a barrier until its slowest rank is done; the "
        "median and the best of many calls are shown. Bytes are those of one rank's buffer. Bus "
        "bandwidth is what each link carried at least: 2 (n - 1) / n of the buffer for all_reduce. "
        "The column \"x bound\" is the median divided by the least possible time: that of those "
        "bytes at the measured speed of the link between machines, or on one machine at the speed "
        "at which all its ranks copy memory.\n\n"
        "LINESHAFT_CARRIER=tcp or ucx chooses what moves the data between machines; without it UCX "
        "is taken where every rank has an RDMA device. LINESHAFT_ZEROCOPY=on or off: whether TCP "
        "sends large messages without copying them; without it, where the kernel can.\n\n"
        "In a lab (`lineshaft lab --nodes 2 --link 1gbit -- lineshaft bench comm -n 1`) the hosts "
        "find each other automatically.\n\n"
        "The way is chosen by a model of the links, which are measured when a job starts on "
        "several hosts. The numbers are kept under $XDG_CACHE_HOME or ~/.cache, in lineshaft/tune, "
        "for the next job on the same hosts. LINESHAFT_TUNE=off: nothing is measured or kept, and "
        "links of 1 Gbit/s are assumed.",
    .examples =
        "lineshaft bench comm -n 2  # all_reduce between two ranks of this machine\n"
        "lineshaft bench comm -n 4 --op all_reduce,broadcast --sizes 1K,256M --json  # two kinds\n"
        "lineshaft bench comm -n 2 --algo ring  # one algorithm\n"
        "lineshaft bench comm -n 2 --sizes 64K --explain  # why this way, and what others take\n"
        "lineshaft bench comm -n 8 --device cuda --op all_reduce --sizes 1M,1G  # between GPUs\n"
        "lineshaft bench comm -n 2 --peer  # compared with the MPI libraries and Gloo\n",
    .flags = flags,
    .run = run_comm,
};
