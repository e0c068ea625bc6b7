/* launcher_env.c -- a table of launchers, one row each, and a few checks.
 *
 * A row counts when its sign is set: a variable that nobody but this launcher sets, and that it
 * sets for every process it starts. RANK alone is no sign of torchrun: batch systems set it for
 * whole containers, so its row asks for LOCAL_RANK as well, and a row at the end takes a plain
 * RANK with WORLD_SIZE.
 *
 * Example: srun starts `lineshaft launch -n 2`, which starts ranks 0 and 1. Their SLURM_PROCID is
 * 0, that of the launcher; LINESHAFT_RANK is nearer. */
#include "cluster/node/launcher_env.h"

#include <errno.h>
#include <inttypes.h>

enum { MOST = 1 << 24, MOST_HOSTS = 1 << 16, LONGEST_NAME = 256 };

typedef struct launcher {
    const char *name, *sign;
    const char *rank, *world, *local_rank, *local_world, *node, *nodes; /* NULL: it sets none */
    const char *addr, *port;
} launcher;

static const launcher launchers[] = {
    {"lineshaft", "LINESHAFT_RANK", "LINESHAFT_RANK", "LINESHAFT_WORLD", "LINESHAFT_LOCAL_RANK",
     "LINESHAFT_LOCAL_WORLD", "LINESHAFT_NODE", "LINESHAFT_NODES", "MASTER_ADDR", "MASTER_PORT"},
    {"torchrun", "LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
     NULL, "MASTER_ADDR", "MASTER_PORT"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL, NULL, NULL},
    {"pmi", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL,
     NULL, NULL},
    {"slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL,
     "SLURM_NODEID", "SLURM_STEP_NUM_NODES", NULL, NULL},
    {"pmix", "PMIX_RANK", "PMIX_RANK", NULL, NULL, NULL, NULL, NULL, NULL, NULL},
    {"torchrun", "RANK", "RANK", "WORLD_SIZE", NULL, NULL, NULL, NULL, "MASTER_ADDR",
     "MASTER_PORT"},
};

/* --- numbers ---------------------------------------------------------------------------------- */

/* A variable's number; -1 when name is NULL or it is not set. */
static ls_status number_of(const char *name, int *number_out)
{
    const char *text = name ? getenv(name) : NULL;
    char *end;

    *number_out = -1;
    if (!text)
        return LS_OK;
    errno = 0;
    long n = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
    if (n < 0 || *end || errno || n > MOST) {
        ls_fail(LS_EUSAGE, "the variable %s holds \"%.60s\", which is no number of a rank", name,
                text);
        ls_err_hint("Launchers set it; unset it if nobody launched this process.");
        return LS_EUSAGE;
    }
    *number_out = (int)n;
    return LS_OK;
}

/* A place without a number of env_out, or the other way round, or one behind the last. */
static ls_status check_pair(const char *place_name, int place, const char *count_name, int count)
{
    if (place >= 0 && count >= 0 && place >= count) {
        ls_fail(LS_EUSAGE, "%s is %d, but %s is %d: they contradict each other", place_name, place,
                count_name, count);
        ls_err_hint("Variables of different launchers may be mixed; start with a clean "
                    "environment.");
        return LS_EUSAGE;
    }
    return LS_OK;
}

/* --- Slurm ------------------------------------------------------------------------------------ */

/* Steps that are no srun: the batch script, the interactive shell and Slurm's own. */
static bool is_no_step(void)
{
    const char *id = getenv("SLURM_STEP_ID");

    return !id || !*id || strtoull(id, NULL, 10) >= 0xfffffff0u || !getenv("SLURM_PROCID");
}

/* "4(x2),3" lists the tasks of each node: 4, 4 and 3. */
static ls_status slurm_local_world(int node, int *local_world_out)
{
    const char *name = "SLURM_STEP_TASKS_PER_NODE", *text = getenv(name), *p = text;

    for (int left = node < 0 ? 0 : node; p && *p >= '0' && *p <= '9';) {
        char *end;
        long tasks = strtol(p, &end, 10), times = 1;
        if (strncmp(end, "(x", 2) == 0) {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')')
                break;
        }
        if (tasks < 1 || tasks > MOST || times < 1)
            break;
        if (left < times) {
            *local_world_out = (int)tasks;
            return LS_OK;
        }
        left -= (int)(times < left ? times : left);
        p = *end == ',' ? end + 1 : end;
    }
    *local_world_out = -1;
    if (!text)
        return LS_OK;
    return ls_fail(LS_EUSAGE,
                   "the variable %s holds \"%.60s\", which does not tell the tasks of "
                   "node %d",
                   name, text, node);
}

static ls_status slurm_rest(ls_launcher_env *p)
{
    ls_status st = LS_OK;
    const char *list = getenv("SLURM_STEP_NODELIST");
    ls_str names;
    int count;

    ls_str_init(&names);
    if (p->world < 0)
        LS_TRY(st, number_of("SLURM_NTASKS", &p->world), out);
    LS_TRY(st, slurm_local_world(p->node, &p->local_world), out);
    if (list && *list) {
        LS_TRY(st, ls_launcher_env_hosts(list, &names, &count), out);
        snprintf(p->master_addr, sizeof p->master_addr, "%s", names.p);
    }
out:
    ls_str_release(&names);
    return st;
}

/* --- hosts ------------------------------------------------------------------------------------ */

typedef struct expansion {
    const char *list; /* for messages */
    ls_str *names;
    int count;
} expansion;

static ls_status bad_list(const expansion *e)
{
    return ls_fail(LS_EDATA, "\"%.80s\" is no list of hosts", e->list);
}

static ls_status add_name(expansion *e, const char *name, size_t len)
{
    if (len == 0)
        return bad_list(e);
    if (++e->count > MOST_HOSTS)
        return ls_fail(LS_EDATA, "a list of more than %d hosts: \"%.80s\"", MOST_HOSTS, e->list);
    ls_str_append_bytes(e->names, name, len);
    ls_str_append_char(e->names, '\0');
    return LS_OK;
}

static ls_status expand(expansion *e, const char *head, size_t head_len, const char *rest,
                        size_t rest_len);

/* One "a-b" or "a" between brackets, put between head and what follows the brackets. */
static ls_status expand_range(expansion *e, const char *head, size_t head_len, const char *range,
                              const char *after, size_t after_len)
{
    ls_status st = LS_OK;
    char name[LONGEST_NAME], *end;

    if (*range < '0' || *range > '9')
        return bad_list(e);
    unsigned long from = strtoul(range, &end, 10), to = from;
    int width = (int)(end - range); /* "007-012" keeps its zeros */
    if (*end == '-' && end[1] >= '0' && end[1] <= '9')
        to = strtoul(end + 1, &end, 10);
    if ((*end != ',' && *end != ']') || to < from || to - from >= MOST_HOSTS || width > 18)
        return bad_list(e);
    for (unsigned long i = from; i <= to; i++) {
        int n = snprintf(name, sizeof name, "%.*s%0*lu", (int)head_len, head, width, i);
        if (n < 0 || n >= (int)sizeof name)
            return bad_list(e);
        LS_TRY(st, expand(e, name, (size_t)n, after, after_len), out);
    }
out:
    return st;
}

/* head is done; rest may hold brackets. Example, "a[1-2]b[07]" from left to right:
 *
 *     expand("", "a[1-2]b[07]")  ->  expand("a1", "b[07]")  ->  expand("a1b07", "")  ->  a1b07
 *                                ->  expand("a2", "b[07]")  ->  expand("a2b07", "")  ->  a2b07 */
static ls_status expand(expansion *e, const char *head, size_t head_len, const char *rest,
                        size_t rest_len)
{
    ls_status st = LS_OK;
    char name[LONGEST_NAME];
    size_t plain = 0;

    while (plain < rest_len && rest[plain] != '[')
        plain++;
    if (head_len + plain >= sizeof name || memchr(rest, ']', plain))
        return bad_list(e);
    if (head_len)
        memmove(name, head, head_len);
    memcpy(name + head_len, rest, plain);
    if (plain == rest_len)
        return add_name(e, name, head_len + plain);
    const char *close = memchr(rest + plain, ']', rest_len - plain);
    if (!close)
        return bad_list(e);
    for (const char *range = rest + plain + 1;; range++) {
        LS_TRY(st,
               expand_range(e, name, head_len + plain, range, close + 1,
                            rest_len - (size_t)(close + 1 - rest)),
               out);
        range += strcspn(range, ",]");
        if (range == close)
            break;
    }
out:
    return st;
}

ls_status ls_launcher_env_hosts(const char *list, ls_str *names_out, int *count_out)
{
    ls_status st = LS_OK;
    expansion e = {.list = list, .names = names_out};

    if (strlen(list) > (1 << 20))
        return ls_fail(LS_EDATA, "a list of hosts of %zu bytes", strlen(list));
    for (const char *p = list;;) {
        size_t len = 0, depth = 0;
        for (; p[len] && (p[len] != ',' || depth); len++)
            depth = p[len] == '[' ? depth + 1 : p[len] == ']' && depth ? depth - 1 : depth;
        LS_TRY(st, expand(&e, "", 0, p, len), out);
        if (!p[len])
            break;
        p += len + 1;
    }
    LS_TRY(st, ls_str_status(names_out), out);
    *count_out = e.count;
out:
    return st;
}

/* --- finding ---------------------------------------------------------------------------------- */

static const launcher *nearest(void)
{
    for (size_t i = 0; i < LS_COUNT(launchers); i++) {
        const launcher *l = &launchers[i];
        /* Both, as LOCAL_RANK alone says nothing. */
        if (!getenv(l->sign) || (l->world && strcmp(l->sign, l->rank) != 0 && !getenv(l->rank)))
            continue;
        if (strcmp(l->name, "slurm") == 0 && is_no_step())
            continue;
        return l;
    }
    return NULL;
}

static ls_status take_master(const launcher *l, ls_launcher_env *p)
{
    ls_status st = LS_OK;
    const char *addr = l->addr ? getenv(l->addr) : NULL;
    int port = -1;

    if (addr && strlen(addr) >= sizeof p->master_addr)
        return ls_fail(LS_EUSAGE, "the variable %s is too long for a host", l->addr);
    if (addr)
        snprintf(p->master_addr, sizeof p->master_addr, "%s", addr);
    LS_TRY(st, number_of(l->port, &port), out);
    if (port > 65535)
        st = ls_fail(LS_EUSAGE, "the variable %s is %d, which is no port", l->port, port);
    p->master_port = port < 0 ? 0 : port;
out:
    return st;
}

static ls_status take_generation(ls_launcher_env *p)
{
    const char *text = getenv("LINESHAFT_GENERATION");
    char *end;

    if (!text)
        return LS_OK;
    errno = 0;
    unsigned long long n = *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    if (*text < '0' || *text > '9' || *end || errno)
        return ls_fail(LS_EUSAGE,
                       "the variable LINESHAFT_GENERATION holds \"%.60s\", which is no "
                       "generation",
                       text);
    p->generation = n;
    return LS_OK;
}

static ls_status check(const launcher *l, const ls_launcher_env *p)
{
    ls_status st = LS_OK;

    if (p->world < 1) {
        if (p->world < 0)
            ls_fail(LS_EUSAGE, "%s is set, but no variable has the number of ranks", l->rank);
        else
            ls_fail(LS_EUSAGE, "%s is 0: there are no ranks", l->world ? l->world : "the world");
        ls_err_hint("Start with `lineshaft launch`, srun, mpirun or torchrun, or unset %s.",
                    l->rank);
        return LS_EUSAGE;
    }
    LS_TRY(st, check_pair(l->rank, p->rank, l->world ? l->world : "the number of ranks", p->world),
           out);
    LS_TRY(st,
           check_pair(l->local_rank, p->local_rank,
                      l->local_world ? l->local_world : "the number of ranks on this node",
                      p->local_world),
           out);
    LS_TRY(st, check_pair(l->node, p->node, l->nodes ? l->nodes : "the number of nodes", p->nodes),
           out);
    if (p->local_world > p->world || p->local_rank > p->rank || p->nodes > p->world)
        st = ls_fail(LS_EUSAGE,
                     "the variables of %s contradict each other: rank %d of %d, on this node %d of "
                     "%d, %d nodes",
                     l->name, p->rank, p->world, p->local_rank, p->local_world, p->nodes);
out:
    return st;
}

static ls_status find(const launcher *l, ls_launcher_env *env_out)
{
    ls_status st = LS_OK;
    ls_launcher_env p = {.launcher = "none", .world = 1, .local_world = 1, .nodes = 1};

    if (!l) {
        *env_out = p;
        return LS_OK;
    }
    p.launcher = l->name;
    p.rank_from = l->rank;
    LS_TRY(st, number_of(l->rank, &p.rank), out);
    LS_TRY(st, number_of(l->world, &p.world), out);
    LS_TRY(st, number_of(l->local_rank, &p.local_rank), out);
    LS_TRY(st, number_of(l->local_world, &p.local_world), out);
    LS_TRY(st, number_of(l->node, &p.node), out);
    LS_TRY(st, number_of(l->nodes, &p.nodes), out);
    LS_TRY(st, take_master(l, &p), out);
    if (strcmp(l->name, "slurm") == 0)
        LS_TRY(st, slurm_rest(&p), out);
    if (strcmp(l->name, "lineshaft") == 0)
        LS_TRY(st, take_generation(&p), out);
    LS_TRY(st, check(l, &p), out);
    *env_out = p;
out:
    return st;
}

ls_status ls_launcher_env_find(ls_launcher_env *env_out)
{
    return find(nearest(), env_out);
}

void ls_launcher_env_task(int *task_out, int *tasks_out)
{
    int task, tasks;

    *task_out = 0;
    *tasks_out = 1;
    if (number_of("LINESHAFT_LOCAL_TASK", &task) != LS_OK ||
        number_of("LINESHAFT_LOCAL_TASKS", &tasks) != LS_OK)
        ls_err_clear();
    else if (task >= 0 && task < tasks) {
        *task_out = task;
        *tasks_out = tasks;
    }
}
