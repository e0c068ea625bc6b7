/* cmd_bench_explain.c -- `lineshaft bench comm --explain`: all ways of a collective, and the link
 * numbers behind them.
 *
 * Matrices are for people: up to MOST_NODES nodes, and MOST_RANKS ranks of the first one. JSON has
 * all measured pairs. */
#include "cli/bench/cmd_bench_explain.h"

#include <inttypes.h>
#include <string.h>
#include "base/json.h"

enum { MOST_NODES = 8, MOST_RANKS = 16 };

/* --- links ------------------------------------------------------------------------------------*/

static void show_link(FILE *to, const char *name, const ls_cost_link *link, bool measured)
{
    fprintf(to, "  %-14s alpha %9.2f us  message %7.2f us  %8.3f ns/byte (%.2f Gbit/s)%s\n", name,
            link->alpha_ns / 1e3, link->message_ns / 1e3, link->ns_per_byte, 8 / link->ns_per_byte,
            measured ? "" : "  assumed");
}

static void show_memory(FILE *to, const ls_tune *tune)
{
    const ls_cost_memory *m = &tune->memory;

    fprintf(to, "  %-14s meet  %9.2f us  %.3f ns/byte up to 64K, %.3f from 8M%s\n", "memory of one",
            m->meet_ns / 1e3, m->cached_ns_per_byte, m->ns_per_byte,
            tune->has_memory ? "" : "  assumed");
}

/* First ranks of the nodes that are shown; how many, or 0: too many, or one. */
static int list_nodes(const ls_comm *comm, int firsts[MOST_NODES])
{
    int n = 0;

    for (int r = 0; r < ls_comm_ranks(comm); r++) {
        bool known = false;
        for (int i = 0; i < n; i++)
            known |= ls_comm_node(comm, firsts[i]) == ls_comm_node(comm, r);
        if (known)
            continue;
        if (n == MOST_NODES)
            return 0;
        firsts[n++] = r;
    }
    return n > 1 ? n : 0;
}

static void show_pairs(FILE *to, const ls_comm *comm)
{
    int firsts[MOST_NODES], n = list_nodes(comm, firsts);

    if (n == 0 || ls_tune_of(comm)->pairs == 0)
        return;
    fprintf(to, "\n  %-12.12s", "us | Gbit/s");
    for (int i = 0; i < n; i++)
        fprintf(to, " %15.15s", ls_comm_host(comm, firsts[i]));
    for (int i = 0; i < n; i++) {
        fprintf(to, "\n  %-12.12s", ls_comm_host(comm, firsts[i]));
        for (int k = 0; k < n; k++) {
            const ls_cost_link *link =
                ls_tune_between(comm, ls_comm_node(comm, firsts[i]), ls_comm_node(comm, firsts[k]));
            if (link)
                fprintf(to, " %8.1f | %4.*f", link->alpha_ns / 1e3, link->ns_per_byte > 0.8 ? 2 : 1,
                        8 / link->ns_per_byte);
            else
                fprintf(to, " %15s", i == k ? "-" : "?");
        }
    }
    fprintf(to, "\n");
}

/* Ranks of the first node, and what each two of them share. */
static void show_places(FILE *to, const ls_comm *comm, const ls_cpus_place *places)
{
    int n = 0;

    while (n < ls_comm_ranks(comm) && ls_comm_node(comm, n) == ls_comm_node(comm, 0))
        n++;
    if (n < 2 || n > MOST_RANKS)
        return;
    fprintf(to, "\n  %-12.12s", "both share");
    for (int i = 0; i < n; i++)
        fprintf(to, "%*s%d", i < 10 ? 8 : 7, "rank ", i);
    for (int i = 0; i < n; i++) {
        fprintf(to, "\n  rank %-7d", i);
        for (int k = 0; k < n; k++)
            fprintf(to, " %8s",
                    i == k ? "-" : ls_cpus_distance_name(ls_cpus_between(&places[i], &places[k])));
    }
    fprintf(to, "\n");
}

void ls_bench_explain_head(FILE *to, const ls_comm *comm, const ls_cpus_place *places)
{
    const ls_tune *tune = ls_tune_of(comm);

    show_link(to, "between nodes", &tune->between, tune->has_between);
    show_link(to, "inside a node", &tune->inside, tune->has_inside);
    show_memory(to, tune);
    show_pairs(to, comm);
    show_places(to, comm, places);
}

/* --- ways -------------------------------------------------------------------------------------*/

static void put_cell(FILE *to, double us)
{
    if (us < 0)
        fprintf(to, " %13s", "-");
    else
        fprintf(to, " %13.2f", us);
}

void ls_bench_explain_show(FILE *to, const ls_coll *coll, int64_t bytes, const ls_bench_ways *ways)
{
    const ls_tune_table *t = &ways->table;

    fprintf(to, "\n%s of %" PRId64 " bytes: %s, %s\n", ls_coll_kind_name(coll->kind), bytes,
            t->chosen < 0 ? "none" : t->rows[t->chosen].way,
            t->chosen < 0 ? "nothing can do it" : t->rows[t->chosen].reason);
    fprintf(to, "  %-14s %-9s %13s %13s %13s  %s\n", "way", "by", "predicted us", "measured us",
            "bytes sent", "why, or why not");
    for (int i = 0; i < t->count; i++) {
        const ls_tune_row *row = &t->rows[i];
        fprintf(to, "%c %-14s %-9s", i == t->chosen ? '*' : ' ', row->way, row->by);
        put_cell(to, row->predicted_ns / 1e3);
        put_cell(to, ways->measured_us[i]);
        if (row->sent < 0)
            fprintf(to, " %13s", "-");
        else
            fprintf(to, " %13" PRId64, row->sent);
        fprintf(to, "  %s\n", row->reason);
    }
    fflush(to);
}

/* --- JSON -------------------------------------------------------------------------------------*/

static void put_number(ls_json *json, const char *key, double value)
{
    ls_json_key(json, key);
    if (value < 0)
        ls_json_str(json, NULL);
    else
        ls_json_num(json, value);
}

static void put_three(ls_json *json, const ls_cost_link *link)
{
    ls_json_put_num(json, "alpha_ns", link->alpha_ns);
    ls_json_put_num(json, "message_ns", link->message_ns);
    ls_json_put_num(json, "ns_per_byte", link->ns_per_byte);
}

static void put_link(ls_json *json, const char *key, const ls_cost_link *link, bool measured)
{
    ls_json_key(json, key);
    ls_json_open(json, '{');
    put_three(json, link);
    ls_json_put_bool(json, "assumed", !measured);
    ls_json_close(json);
}

static void put_memory(ls_json *json, const ls_tune *tune)
{
    ls_json_key(json, "memory");
    ls_json_open(json, '{');
    ls_json_put_num(json, "meet_ns", tune->memory.meet_ns);
    ls_json_put_num(json, "cached_ns_per_byte", tune->memory.cached_ns_per_byte);
    ls_json_put_num(json, "ns_per_byte", tune->memory.ns_per_byte);
    ls_json_put_bool(json, "assumed", !tune->has_memory);
    ls_json_close(json);
}

static const char *host_of(const ls_comm *comm, int node)
{
    for (int r = 0; r < ls_comm_ranks(comm); r++)
        if (ls_comm_node(comm, r) == node)
            return ls_comm_host(comm, r);
    return NULL;
}

static void put_pairs(ls_json *json, const ls_comm *comm)
{
    const ls_tune *tune = ls_tune_of(comm);

    ls_json_key(json, "pairs");
    ls_json_open(json, '[');
    for (int i = 0; i < tune->pairs; i++) {
        ls_json_open(json, '{');
        ls_json_put_str(json, "from", host_of(comm, tune->pair[i].from));
        ls_json_put_str(json, "to", host_of(comm, tune->pair[i].to));
        put_three(json, &tune->pair[i].link);
        ls_json_close(json);
    }
    ls_json_close(json);
}

/* Of each rank what it shares with the first one of its node. */
static void put_places(ls_json *json, const ls_comm *comm, const ls_cpus_place *places)
{
    int first = 0;

    ls_json_key(json, "shares");
    ls_json_open(json, '[');
    for (int r = 0; r < ls_comm_ranks(comm); r++) {
        if (ls_comm_node(comm, r) != ls_comm_node(comm, first))
            first = r;
        ls_json_str(json, r == first
                              ? NULL
                              : ls_cpus_distance_name(ls_cpus_between(&places[first], &places[r])));
    }
    ls_json_close(json);
}

static void put_ways(ls_json *json, const ls_bench_ways *ways)
{
    ls_json_key(json, "ways");
    ls_json_open(json, '[');
    for (int i = 0; i < ways->table.count; i++) {
        const ls_tune_row *row = &ways->table.rows[i];
        ls_json_open(json, '{');
        ls_json_put_str(json, "way", row->way);
        ls_json_put_str(json, "by", row->by);
        put_number(json, "predicted_us", row->predicted_ns < 0 ? -1 : row->predicted_ns / 1e3);
        put_number(json, "measured_us", ways->measured_us[i]);
        put_number(json, "sent", (double)row->sent);
        ls_json_put_str(json, "refuses", row->refuses);
        ls_json_put_str(json, "reason", row->reason);
        ls_json_put_bool(json, "chosen", i == ways->table.chosen);
        ls_json_close(json);
    }
    ls_json_close(json);
}

ls_status ls_bench_explain_json(FILE *to, const ls_comm *comm, const ls_coll *coll, int64_t bytes,
                                const ls_bench_ways *ways)
{
    static const char *const sources[] = {"assumed", "measured", "remembered"};
    const ls_tune *tune = ls_tune_of(comm);
    int chosen = ways->table.chosen;
    ls_json json;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    ls_json_begin(&json, &text);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "op", ls_coll_kind_name(coll->kind));
    ls_json_put_int(&json, "ranks", ls_comm_ranks(comm));
    ls_json_put_int(&json, "bytes", bytes);
    ls_json_put_str(&json, "way", chosen < 0 ? NULL : ways->table.rows[chosen].way);
    ls_json_put_str(&json, "why", ls_tune_why_name(ways->table.why));
    ls_json_put_str(&json, "numbers", sources[tune->source]);
    put_link(&json, "between", &tune->between, tune->has_between);
    put_link(&json, "inside", &tune->inside, tune->has_inside);
    put_memory(&json, tune);
    put_pairs(&json, comm);
    put_places(&json, comm, ways->places);
    put_ways(&json, ways);
    ls_json_close(&json);
    LS_TRY(st, ls_str_status(&text), out);
    fprintf(to, "%s\n", text.p);
    fflush(to);
out:
    ls_str_release(&text);
    return st;
}
