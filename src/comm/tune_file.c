/* tune_file.c -- reads and writes the tuner's file:
 *
 *   {"format": "lineshaft-tune", "topology": "lineshaft 0.1, tcp, lab0 x1, lab1 x1",
 *    "between": {"alpha_ns": 41000, "message_ns": 2500, "ns_per_byte": 8.6}, "inside": null,
 *    "memory": {"meet_ns": 180, "cached_ns_per_byte": 0.06, "ns_per_byte": 0.11, "crowded": false},
 *    "pairs": [{"from": 0, "to": 1, "alpha_ns": 40500, "message_ns": 2500, "ns_per_byte": 8.6}],
 *    "picks": [{"op": "all_reduce", "ranks": 2, "size": 4, "bytes": 65536,
 *               "way": "halving", "way_ns": 712000, "other": "ring", "other_ns": 733000}]}
 *
 * "from" and "to" count the hosts of the topology text. In a job where lab1 came first and is node
 * 0, the pair from lab0 to lab1 is 1 -> 0 in memory and 0 -> 1 on disk (ls_tune_file_number).
 *
 * "memory" and "pairs" may be missing. A writer of this file can make collectives slow, nothing
 * else: every number is checked, and a way must be an algorithm of this program that can do the
 * collective. */
#include "comm/tune_file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "comm/comm_impl.h"

#define FORMAT "lineshaft-tune"
enum { MOST_BYTES = 256 << 10 };

/* --- names ------------------------------------------------------------------------------------*/

typedef struct host {
    char text[96];
    int32_t first, node; /* rank; the node's number in this job */
} host;

static int by_text(const void *a, const void *b)
{
    const host *x = a, *y = b;
    int order = strcmp(x->text, y->text);

    return order ? order : (x->first > y->first) - (x->first < y->first);
}

/* Hosts in order of their names. *hosts_out is the caller's. */
static ls_status list_hosts(const ls_comm *comm, host **hosts_out, int *count_out)
{
    const ls_fabric *f = comm->fabric;
    host *hosts = ls_mem_array((size_t)comm->ranks, sizeof *hosts);
    int nodes = 0;

    if (!hosts)
        return ls_fail(LS_ENOMEM, "no memory for the names of %d ranks", comm->ranks);
    for (int r = 0, n; r < comm->ranks; r += n) {
        const ls_comm_member *m = &f->members[comm->world[r]];
        for (n = 1; r + n < comm->ranks && f->members[comm->world[r + n]].node == m->node; n++)
            ;
        hosts[nodes] = (host){.first = r, .node = m->node};
        snprintf(hosts[nodes++].text, sizeof hosts->text, ", %s x%d", m->host, n);
    }
    qsort(hosts, (size_t)nodes, sizeof *hosts, by_text);
    *hosts_out = hosts;
    *count_out = nodes;
    return LS_OK;
}

/* The other number of a node, or -1. */
static int renumber(const host *hosts, int count, int number, ls_tune_numbers to)
{
    if (to == LS_TUNE_NODES)
        return number < count ? hosts[number].node : -1;
    for (int i = 0; i < count; i++)
        if (hosts[i].node == number)
            return i;
    return -1;
}

ls_status ls_tune_file_number(const ls_comm *comm, ls_tune *tune, ls_tune_numbers to)
{
    host *hosts;
    int count, kept = 0;
    ls_status st;

    LS_TRY(st, list_hosts(comm, &hosts, &count), out);
    for (int i = 0; i < tune->pairs; i++) {
        ls_tune_pair p = tune->pair[i];
        p.from = renumber(hosts, count, p.from, to);
        p.to = renumber(hosts, count, p.to, to);
        if (p.from >= 0 && p.to >= 0 && p.from != p.to)
            tune->pair[kept++] = p;
    }
    tune->pairs = kept;
    ls_mem_free(hosts);
out:
    return st;
}

ls_status ls_tune_file_topology(const ls_comm *comm, char topology_out[LS_TUNE_TOPOLOGY])
{
    const ls_fabric *f = comm->fabric;
    char hex[LS_HASH_HEX];
    int nodes, named = 0;
    host *hosts;
    ls_status st;

    LS_TRY(st, list_hosts(comm, &hosts, &nodes), out);
    int at = snprintf(topology_out, LS_TUNE_TOPOLOGY, "lineshaft %s, %s", LS_VERSION,
                      comm->one_node ? "shm" : f->network->table->name);
    while (named < nodes && at < LS_TUNE_TOPOLOGY - 200)
        at +=
            snprintf(topology_out + at, (size_t)(LS_TUNE_TOPOLOGY - at), "%s", hosts[named++].text);
    if (named < nodes) { /* too many hosts to name: a hash of all of them */
        for (int i = 0; i < nodes; i++)
            hosts[i].first = hosts[i].node = 0;
        ls_hash_hex(ls_hash_bytes(hosts, (size_t)nodes * sizeof *hosts), hex);
        snprintf(topology_out + at, (size_t)(LS_TUNE_TOPOLOGY - at), ", %d more, %s", nodes - named,
                 hex);
    }
    ls_mem_free(hosts);
out:
    return st;
}

void ls_tune_file_path(const char *topology, char path_out[LS_TUNE_PATH])
{
    static const char ending[] = ".json";

    ls_file_cache_path("tune", topology, 16, path_out, LS_TUNE_PATH - sizeof ending);
    if (*path_out)
        memcpy(path_out + strlen(path_out), ending, sizeof ending);
}

/* --- reading ----------------------------------------------------------------------------------*/

static bool take_number(const json_t *object, const char *key, double most, double *number_out)
{
    const json_t *v = json_object_get(object, key);
    double d = json_number_value(v);

    if (!json_is_number(v) || !(d >= 0 && d <= most))
        return false;
    *number_out = d;
    return true;
}

/* The numbers of a link, and of a node's memory, as the file names them. */
typedef struct number {
    const char *key;
    size_t offset; /* of a double */
    double most;
} number;
#define OF_LINK(name, most)                       \
    {                                             \
#name, offsetof(ls_cost_link, name), most \
    }
#define OF_MEMORY(name, most)                       \
    {                                               \
#name, offsetof(ls_cost_memory, name), most \
    }
static const number link_numbers[] = {
    OF_LINK(alpha_ns, 1e11), OF_LINK(message_ns, 1e11), OF_LINK(ns_per_byte, 1e9), {NULL, 0, 0}};
static const number memory_numbers[] = {OF_MEMORY(meet_ns, 1e11),
                                        OF_MEMORY(cached_ns_per_byte, 1e9),
                                        OF_MEMORY(ns_per_byte, 1e9),
                                        {NULL, 0, 0}};

static bool take_numbers(const json_t *object, const number *numbers, void *struct_out)
{
    for (const number *n = numbers; n->key; n++)
        if (!take_number(object, n->key, n->most,
                         (double *)(void *)((char *)struct_out + n->offset)))
            return false;
    return true;
}

static bool take_link(const json_t *root, const char *key, bool *has_out, ls_cost_link *link_out)
{
    const json_t *v = json_object_get(root, key);

    if (json_is_null(v))
        return true;
    *has_out = take_numbers(v, link_numbers, link_out);
    return *has_out;
}

static bool take_memory(const json_t *root, ls_tune *t)
{
    const json_t *v = json_object_get(root, "memory"), *crowded = json_object_get(v, "crowded");

    if (!v || json_is_null(v))
        return true;
    t->memory.crowded = json_is_true(crowded);
    t->has_memory = take_numbers(v, memory_numbers, &t->memory) && json_is_boolean(crowded);
    return t->has_memory;
}

/* The list of measured pairs; false: one of its numbers is impossible. */
static bool take_pairs(const json_t *root, ls_tune *t)
{
    const json_t *list = json_object_get(root, "pairs"), *row;
    size_t i;

    if (list && (!json_is_array(list) || json_array_size(list) > LS_TUNE_PAIRS))
        return false;
    t->pairs = 0;
    json_array_foreach(list, i, row)
    {
        ls_tune_pair *p = &t->pair[t->pairs++];
        double from, to;
        if (!take_number(row, "from", LS_COMM_RANKS, &from) ||
            !take_number(row, "to", LS_COMM_RANKS, &to) ||
            !take_numbers(row, link_numbers, &p->link))
            return false;
        p->from = (int)from;
        p->to = (int)to;
    }
    return true;
}

static bool take_way(const json_t *row, const char *key, int kind, char name_out[LS_TUNE_NAME])
{
    const char *text = json_string_value(json_object_get(row, key));
    const ls_algo *algo = text ? ls_algo_find(text) : NULL;

    if (!algo || !ls_algo_does(algo, (ls_coll_kind)kind))
        return false;
    snprintf(name_out, LS_TUNE_NAME, "%s", algo->name);
    return true;
}

/* One settled choice; false: it names a kind, an algorithm or a number that cannot be. */
static bool take_pick(const json_t *row, ls_tune_pick *pick_out)
{
    const char *op = json_string_value(json_object_get(row, "op"));
    ls_tune_pick p = {.remembered = true};
    double ranks, size, bytes;

    while (op && p.kind < LS_COLL_KINDS && strcmp(op, ls_coll_kind_name((ls_coll_kind)p.kind)) != 0)
        p.kind++;
    if (!op || p.kind == LS_COLL_KINDS || !take_way(row, "way", p.kind, p.way) ||
        !take_way(row, "other", p.kind, p.other) ||
        !take_number(row, "ranks", LS_COMM_RANKS, &ranks) || !take_number(row, "size", 16, &size) ||
        !take_number(row, "bytes", 0x1p52, &bytes) ||
        !take_number(row, "way_ns", 1e15, &p.way_ns) ||
        !take_number(row, "other_ns", 1e15, &p.other_ns))
        return false;
    p.ranks = (int)ranks;
    p.size = (int)size;
    p.bytes = (int64_t)bytes;
    *pick_out = p;
    return true;
}

/* What is wrong with it, or NULL. */
static const char *take_all(const json_t *root, const char *topology, ls_tune *t)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *of = json_string_value(json_object_get(root, "topology"));
    const json_t *picks = json_object_get(root, "picks");

    if (!format || strcmp(format, FORMAT) != 0)
        return "it is not a file of link numbers";
    if (!of || strcmp(of, topology) != 0)
        return "it is of another topology";
    if (!take_link(root, "between", &t->has_between, &t->between) ||
        !take_link(root, "inside", &t->has_inside, &t->inside))
        return "a link has no sensible numbers";
    if (!take_memory(root, t))
        return "the memory has no sensible numbers";
    if (!take_pairs(root, t))
        return "a pair of nodes has no sensible numbers";
    if (!json_is_array(picks) || json_array_size(picks) > LS_TUNE_PICKS)
        return "it has no list of picks, or a very long one";
    t->picks = (int)json_array_size(picks);
    for (int i = 0; i < t->picks; i++)
        if (!take_pick(json_array_get(picks, (size_t)i), &t->pick[i]))
            return "a pick makes no sense";
    return NULL;
}

ls_status ls_tune_file_read(const char *path, const char *topology, ls_tune *tune)
{
    ls_tune t = *tune;
    json_t *root = NULL;
    json_error_t error;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, ls_file_read(path, MOST_BYTES, &text), out);
    root = json_loadb(text.p, text.len, JSON_REJECT_DUPLICATES, &error);
    const char *wrong = root ? take_all(root, topology, &t) : "it is not JSON";
    if (wrong) {
        st = ls_fail(LS_EDATA, "link numbers in \"%s\": %s", path, wrong);
        goto out;
    }
    t.source = LS_TUNE_REMEMBERED;
    *tune = t;
out:
    json_decref(root);
    ls_str_release(&text);
    return st;
}

/* --- writing ----------------------------------------------------------------------------------*/

static void put_numbers(ls_json *json, const number *numbers, const void *from)
{
    for (const number *n = numbers; n->key; n++)
        ls_json_put_num(json, n->key,
                        *(const double *)(const void *)((const char *)from + n->offset));
}

/* An object, closed by the caller; or null, and false. */
static bool open_or_null(ls_json *json, const char *key, bool has)
{
    ls_json_key(json, key);
    if (has)
        ls_json_open(json, '{');
    else
        ls_json_str(json, NULL);
    return has;
}

static void put_link(ls_json *json, const char *key, bool has, const ls_cost_link *link)
{
    if (!open_or_null(json, key, has))
        return;
    put_numbers(json, link_numbers, link);
    ls_json_close(json);
}

static void put_memory(ls_json *json, const ls_tune *tune)
{
    if (!open_or_null(json, "memory", tune->has_memory))
        return;
    put_numbers(json, memory_numbers, &tune->memory);
    ls_json_put_bool(json, "crowded", tune->memory.crowded);
    ls_json_close(json);
}

static void put_pairs(ls_json *json, const ls_tune *tune)
{
    ls_json_key(json, "pairs");
    ls_json_open(json, '[');
    for (int i = 0; i < tune->pairs; i++) {
        ls_json_open(json, '{');
        ls_json_put_int(json, "from", tune->pair[i].from);
        ls_json_put_int(json, "to", tune->pair[i].to);
        put_numbers(json, link_numbers, &tune->pair[i].link);
        ls_json_close(json);
    }
    ls_json_close(json);
}

static void put_pick(ls_json *json, const ls_tune_pick *p)
{
    ls_json_open(json, '{');
    ls_json_put_str(json, "op", ls_coll_kind_name((ls_coll_kind)p->kind));
    ls_json_put_int(json, "ranks", p->ranks);
    ls_json_put_int(json, "size", p->size);
    ls_json_put_int(json, "bytes", p->bytes);
    ls_json_put_str(json, "way", p->way);
    ls_json_put_num(json, "way_ns", p->way_ns);
    ls_json_put_str(json, "other", p->other);
    ls_json_put_num(json, "other_ns", p->other_ns);
    ls_json_close(json);
}

ls_status ls_tune_file_write(const char *path, const char *topology, const ls_tune *tune)
{
    char folder[LS_TUNE_PATH];
    ls_json json;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder) {
        *slash = '\0';
        LS_TRY(st, ls_file_make_dirs(folder), out);
    }
    ls_json_begin_lines(&json, &text, 2);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "format", FORMAT);
    ls_json_put_str(&json, "topology", topology);
    put_link(&json, "between", tune->has_between, &tune->between);
    put_link(&json, "inside", tune->has_inside, &tune->inside);
    put_memory(&json, tune);
    put_pairs(&json, tune);
    ls_json_key(&json, "picks");
    ls_json_open(&json, '[');
    for (int i = 0; i < tune->picks; i++)
        put_pick(&json, &tune->pick[i]);
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(&text, '\n');
    LS_TRY(st, ls_str_status(&text), out);
    st = ls_file_write_atomic(path, text.p, text.len);
out:
    ls_str_release(&text);
    return st;
}
