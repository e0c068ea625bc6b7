/* cmd_launch.c -- `lineshaft launch`: somebody's program as many processes.
 *
 * The agent does the work; here its result becomes text and an exit code. The code of the first
 * failure is passed on as it is, whatever classes of our own say, because scripts of that program
 * know its codes: so this command ends the process itself. */
#include "cli/cmd_launch.h"

#include <signal.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "cli/cmds.h"
#include "cli/report.h"
#include "cluster/join/rendezvous.h"
#include "net/secret.h"

static void show_lines(const ls_agent_result *result)
{
    fprintf(stderr, "  last lines of [%s]:\n", result->label);
    for (const char *p = result->last_lines; *p;) {
        int len = (int)strcspn(p, "\n");
        fputs("    ", stderr);
        ls_term_text((const unsigned char *)p, (size_t)len, stderr);
        fputc('\n', stderr);
        p += len + (p[len] == '\n');
    }
}

static void show_others(const ls_agent_result *result)
{
    int n = result->others;

    fprintf(stderr, "  and %d other%s that %s", n, n == 1 ? "" : "s",
            !result->stopped ? "failed"
            : n == 1         ? "was stopped"
                             : "were stopped");
    if (result->killed > 0)
        fprintf(stderr, ", %d of them by SIGKILL", result->killed);
    fputc('\n', stderr);
}

ls_status ls_launch_end(const ls_agent_result *result, const ls_args *args)
{
    ls_term term;

    if (result->left > 0)
        fprintf(stderr, "lineshaft: warn: %d process%s could not be killed\n", result->left,
                result->left == 1 ? "" : "es");
    if (result->cause.code == LS_OK)
        return LS_OK;
    if ((result->cause.code == LS_EINTR || result->cause.code == LS_EUNSAVED) && result->worker < 0)
        return ls_err_adopt(&result->cause);
    ls_term_init(&term, STDERR_FILENO, args);
    fflush(stdout);
    ls_report_error(&result->cause, &term);
    if (*result->last_lines)
        show_lines(result);
    if (result->others > 0)
        show_others(result);
    if (*result->note)
        fprintf(stderr, "  %s\n", result->note);
    fflush(stderr);
    exit(result->exit_code);
}

ls_status ls_launch_number(const ls_args *args, const char *flag, int64_t fallback, int64_t least,
                           int64_t most, int64_t *number_out)
{
    const char *text = ls_args_value(args, flag);
    char *end;

    *number_out = fallback;
    if (!text)
        return LS_OK;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || *text == ' ' || n < least || n > most)
        return ls_fail(LS_EUSAGE, "--%s must be a whole number from %lld to %lld, not \"%.60s\"",
                       flag, (long long)least, (long long)most, text);
    *number_out = n;
    return LS_OK;
}

/* --- several nodes ---------------------------------------------------------------------------- */

enum { TRY_S = 2 }; /* for each of several addresses */

typedef struct stage {
    ls_rendezvous *r;
    const ls_launch_nodes *nodes;
} stage;

/* What happens here must be known everywhere. A rank that failed because of a peer tells nobody:
 * the peer's own node does. Where ranks heal, the coordinator decides what a failure means. */
static void on_event(void *context, const ls_agent_event *event)
{
    const stage *s = context;

    if (event->kind == LS_AGENT_STARTED && s->nodes->started) {
        s->nodes->started(s->nodes->context);
    } else if (event->kind == LS_AGENT_ENDED && event->code != 0 && event->why->code != LS_EPEER &&
               !s->nodes->recover_cluster) {
        ls_rendezvous_fail(s->r, event->code, event->why);
    } else if (event->kind == LS_AGENT_ASKED) {
        char host[64] = "?";
        gethostname(host, sizeof host - 1);
        ls_fail(LS_EINTR, "stopped on request on %s", host);
        ls_rendezvous_fail(s->r, ls_err_exit_code(LS_EINTR), ls_err_last());
    }
}

static ls_status on_attend(void *context)
{
    return ls_rendezvous_attend(((const stage *)context)->r);
}

/* The first node makes the secret when there is none yet. */
static ls_status read_secret(const char *path, bool hosts, ls_secret *secret)
{
    ls_status st = LS_OK;

    if (!path) {
        ls_fail(LS_EUSAGE, "several nodes need --secret FILE");
        ls_err_hint("The first node makes the file when it is missing; copy it to the others.");
        return LS_EUSAGE;
    }
    if (hosts && !ls_file_exists(path)) {
        LS_TRY(st, ls_secret_make(path), out);
        fprintf(stderr, "lineshaft: made the secret \"%s\"; the other nodes need a copy\n", path);
    }
    st = ls_secret_read(secret, path);
out:
    return st;
}

static ls_status run_job(ls_rendezvous *r, const ls_launch_nodes *nodes, ls_agent_args job,
                         ls_agent_result *result)
{
    stage s = {r, nodes};
    const ls_members *m = ls_rendezvous_members(r);
    int node = ls_rendezvous_node(r), code = 0;

    job.node = node;
    job.nodes = m->nodes;
    job.first_rank = m->node[node].first_rank;
    job.world = m->ranks;
    job.generation = m->generation;
    job.master_addr = m->node[0].ip;
    job.master_port = m->master_port;
    job.hook = on_event;
    job.attend = on_attend;
    job.watch_fd = ls_rendezvous_fd(r);
    job.context = &s;
    ls_status st = ls_agent_run(&job, result);
    ls_err_record own = *ls_err_last();
    int here = st == LS_OK ? result->exit_code : ls_err_exit_code(st);
    if (ls_rendezvous_end(r, here, &code) != LS_OK)
        code = here ? here : ls_err_exit_code(LS_EPEER);
    if (st != LS_OK)
        return ls_err_adopt(&own);
    if (result->cause.code != LS_EUNSAVED) /* which only this node may know */
        result->exit_code = code;
    if (code == 0 && nodes->recover_cluster) /* a node that the job has done without */
        result->cause.code = LS_OK;
    bool blames = result->cause.code == LS_EPEER;
    if (code != 0 && (result->cause.code == LS_OK || blames)) { /* it went wrong elsewhere */
        bool known = ls_rendezvous_attend(r) != LS_OK;
        if (!known && !blames)
            ls_fail(LS_EPEER, "the job ended with exit code %d on another node", code);
        if (known || !blames)
            result->cause = *ls_err_last();
    }
    return LS_OK;
}

ls_status ls_launch_find_nodes(const ls_args *args, ls_launch_nodes *nodes)
{
    ls_status st = LS_OK;

    *nodes = (ls_launch_nodes){.listen = ls_args_value(args, "listen"),
                               .join = ls_args_value(args, "join"),
                               .secret = ls_args_value(args, "secret"),
                               .secret_fd = -1,
                               .quiet = ls_args_has(args, "quiet")};
    bool several = nodes->secret || ls_args_has(args, "nodes");

    if (nodes->listen && nodes->join)
        return ls_fail(LS_EUSAGE, "--listen is for the first node, --join for the others");
    if (nodes->join && ls_args_has(args, "nodes"))
        return ls_fail(LS_EUSAGE, "--nodes goes with --listen: the first node decides");
    if (several && !nodes->join && !nodes->listen)
        return ls_fail(LS_EUSAGE, "--nodes and --secret go with --listen or --join");
    LS_TRY(st, ls_launch_number(args, "nodes", 2, 1, LS_MEMBERS_NODES, &nodes->nodes), out);
    LS_TRY(st, ls_launch_number(args, "wait", 300, 1, 86400, &nodes->wait_s), out);
out:
    return st;
}

/* What agents that join must know. */
static ls_status describe_work(const ls_launch_nodes *nodes, const ls_agent_args *job, ls_str *out)
{
    const ls_recover_cluster_args *h = nodes->heal;
    ls_job_spec_heal heal = {.patience_ms = 0};

    if (h)
        heal = (ls_job_spec_heal){.patience_ms = (uint32_t)(h->patience_ns / LS_NS_PER_MS),
                                  .heartbeat_ms = (uint32_t)(h->heartbeat_ns / LS_NS_PER_MS),
                                  .suspect_ms = (uint32_t)(h->suspect_ns / LS_NS_PER_MS),
                                  .dead_ms = (uint32_t)(h->dead_ns / LS_NS_PER_MS),
                                  .failover = h->failover,
                                  .restarts = (uint32_t)h->rules.restarts,
                                  .least = (uint32_t)h->rules.least,
                                  .unit = (uint32_t)h->rules.unit,
                                  .min_nodes = (uint32_t)h->min_nodes,
                                  .max_nodes = (uint32_t)h->max_nodes,
                                  .grow_wait_ms = (uint32_t)(h->grow_wait_ns / LS_NS_PER_MS),
                                  .quarantine = (uint32_t)h->quarantine,
                                  .cool_ms = (uint32_t)(h->cool_ns / LS_NS_PER_MS)};
    return ls_job_spec_encode(job->command, job->workers, nodes->met != NULL, h ? &heal : NULL,
                              out);
}

/* Of several addresses the first where somebody answers. */
static ls_status open_any(ls_rendezvous **r, ls_rendezvous_args how, ls_launch_nodes *nodes,
                          int64_t deadline_ns)
{
    const char *list = how.address;

    if (!nodes->join || !strchr(list, ','))
        return ls_rendezvous_open(r, &how, deadline_ns);
    ls_status st = ls_fail(LS_EDEADLINE, "there was no time to join %s", list);
    do {
        for (size_t len; *list && ls_time_now_ns() < deadline_ns;
             list += len + (list[len] == ',')) {
            len = strcspn(list, ",");
            snprintf(nodes->at, sizeof nodes->at, "%.*s", (int)len, list);
            how.address = nodes->at;
            st = ls_rendezvous_open(
                r, &how, ls_min_i64(deadline_ns, ls_time_now_ns() + TRY_S * LS_NS_PER_S));
            if (st != LS_EIO && st != LS_EDEADLINE) {
                nodes->join = nodes->at;
                return st;
            }
        }
        list = nodes->join;
    } while (ls_time_now_ns() < deadline_ns);
    return st;
}

/* Join the others, and learn who they are. */
static ls_status meet(ls_rendezvous *r, ls_launch_nodes *nodes, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    if (nodes->heal)
        LS_TRY(st, ls_recover_cluster_open(&nodes->recover_cluster, nodes->heal, !nodes->join, r),
               out);
    LS_TRY(st, ls_rendezvous_meet(r, deadline_ns), out);
    LS_TRY(st, ls_rendezvous_members(r) ? LS_OK : LS_ENOMEM, out);
    if (nodes->recover_cluster)
        st = ls_recover_cluster_begin(nodes->recover_cluster);
out:
    return st;
}

/* *without_out: the others began without this node, which is no failure of it. */
static ls_status meet_all(ls_rendezvous *r, ls_launch_nodes *nodes, int64_t deadline_ns,
                          bool *without_out)
{
    ls_status st = meet(r, nodes, deadline_ns);

    if (st == LS_EDEADLINE && !nodes->join && nodes->launcher)
        ls_err_hint("See whether all %lld tasks of %s run this command and can reach %s; --wait "
                    "gives them more time than %lld s.",
                    (long long)nodes->nodes, nodes->launcher, ls_rendezvous_address(r),
                    (long long)nodes->wait_s);
    *without_out = st != LS_OK && ls_rendezvous_did_without(r);
    if (!*without_out)
        return st;
    ls_log(LS_LOG_INFO, "%s", ls_err_last()->text);
    return LS_OK;
}

ls_status ls_launch_run_nodes(ls_launch_nodes *nodes, ls_agent_args *job, ls_agent_result *result)
{
    ls_status st = LS_OK;
    const char *join = nodes->join;
    ls_rendezvous *r = NULL;
    ls_secret secret = {NULL};
    bool without = false;
    ls_job_spec work;
    ls_str told;

    ls_job_spec_init(&work);
    ls_str_init(&told);
    if (nodes->secret_fd >= 0)
        LS_TRY(st, ls_secret_read_fd(&secret, nodes->secret_fd), out);
    else
        LS_TRY(st, read_secret(nodes->secret, !join, &secret), out);
    int64_t deadline_ns = ls_time_now_ns() + nodes->wait_s * LS_NS_PER_S;
    if (!nodes->told && (st = describe_work(nodes, job, &told)) != LS_OK)
        ls_log(LS_LOG_INFO, "no agent can join: %s", ls_err_last()->text);
    const ls_rendezvous_args how = {.hosts = !join,
                                    .address = join ? join : nodes->listen,
                                    .nodes = (int)nodes->nodes,
                                    .secret = secret.bytes,
                                    .ranks = nodes->told ? 0 : job->workers,
                                    .ports = nodes->ports,
                                    .generation = join ? 0 : 1,
                                    .work = st == LS_OK ? &told : NULL,
                                    .grace_ns = job->grace_ns};
    LS_TRY(st, open_any(&r, how, nodes, deadline_ns), out);
    if (!join && nodes->listening)
        LS_TRY(st, nodes->listening(nodes->context, ls_rendezvous_address(r)), out);
    if (!join && !nodes->quiet)
        fprintf(stderr, "lineshaft: waiting for nodes that join %s\n", ls_rendezvous_address(r));
    if (nodes->told) {
        LS_TRY(st, ls_rendezvous_ask(r, &work, deadline_ns), out);
        LS_TRY(st, nodes->told(nodes->context, &work, deadline_ns, job), out);
        LS_TRY(st, ls_rendezvous_bring(r, job->workers, nodes->ports), out);
    }
    LS_TRY(st, meet_all(r, nodes, deadline_ns, &without), out);
    if (without)
        goto out;
    if (nodes->met)
        LS_TRY(st,
               nodes->met(nodes->context, ls_rendezvous_members(r), ls_rendezvous_node(r),
                          secret.bytes, job),
               out);
    st = run_job(r, nodes, *job, result);
out:
    nodes->dropped = nodes->recover_cluster && ls_rendezvous_was_dropped(r);
    if (nodes->recover_cluster)
        ls_recover_cluster_refuges(nodes->recover_cluster, nodes->refuges, sizeof nodes->refuges);
    ls_recover_cluster_close(nodes->recover_cluster);
    nodes->recover_cluster = NULL;
    ls_rendezvous_close(r);
    ls_secret_release(&secret);
    ls_job_spec_release(&work);
    ls_str_release(&told);
    return st;
}

/* --- the command ------------------------------------------------------------------------------ */

ls_status ls_launch_find_job(const ls_args *args, int64_t fallback_ranks, ls_agent_args *job)
{
    int64_t n, grace;
    ls_status st;

    LS_TRY(st, ls_launch_number(args, "ranks", fallback_ranks, 0, 1 << 20, &n), out);
    LS_TRY(st, ls_launch_number(args, "grace", LS_AGENT_GRACE_S, 1, 86400, &grace), out);
    job->workers = (int)n;
    job->log_dir = ls_args_value(args, "log-dir");
    job->grace_ns = grace * LS_NS_PER_S;
out:
    return st;
}

/* --- started again --- */

/* How an attempt ended, as far as the next one may end so too. */
typedef struct attempt {
    int code;
    char said[256]; /* the last line of who failed first */
} attempt;

static attempt describe(const ls_agent_result *result)
{
    attempt a = {.code = result->exit_code};
    const char *end = result->last_lines + strlen(result->last_lines);

    while (end > result->last_lines && end[-1] == '\n')
        end--;
    const char *from = end;
    while (from > result->last_lines && from[-1] != '\n')
        from--;
    snprintf(a.said, sizeof a.said, "%.*s", (int)(end - from), from);
    return a;
}

/* Twice the same is a mistake of the program; what kills from outside may be gone the next time. */
static bool is_same(const attempt *a, const attempt *b)
{
    static const int outside[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP};

    for (size_t i = 0; i < LS_COUNT(outside); i++)
        if (a->code == 128 + outside[i])
            return false;
    return a->code == b->code && strcmp(a->said, b->said) == 0;
}

/* Run the job, and again when it fails, at most so often. The programs hear how often that was, in
 * our own variable and in those that torchrun sets. */
static ls_status run_again(ls_agent_args *job, int64_t restarts, ls_agent_result *result)
{
    attempt before = {.code = 0}, now;
    char text[3][64];
    const char *settings[] = {text[0], text[1], text[2], NULL};
    ls_status st = LS_OK;

    job->settings = settings;
    snprintf(text[2], sizeof text[2], "TORCHELASTIC_MAX_RESTARTS=%lld", (long long)restarts);
    for (int64_t n = 0;; n++, before = now) {
        snprintf(text[0], sizeof text[0], "LINESHAFT_RESTARTS=%lld", (long long)n);
        snprintf(text[1], sizeof text[1], "TORCHELASTIC_RESTART_COUNT=%lld", (long long)n);
        *result = (ls_agent_result){.worker = -1};
        LS_TRY(st, ls_agent_run(job, result), out);
        now = describe(result);
        if (result->cause.code == LS_OK || result->cause.code == LS_EINTR || restarts == 0)
            break;
        if (n > 0 && is_same(&now, &before)) {
            result->exit_code = ls_err_exit_code(LS_ENORETRY);
            snprintf(result->note, sizeof result->note,
                     "the same error came twice in a row: not started again");
            break;
        }
        if (n == restarts) {
            snprintf(result->note, sizeof result->note, "it was started again %lld time%s",
                     (long long)n, n == 1 ? "" : "s");
            break;
        }
        ls_log(LS_LOG_WARN, "%s: started again (%lld of %lld)", result->cause.text,
               (long long)n + 1, (long long)restarts);
    }
out:
    job->settings = NULL;
    return st;
}

static ls_status run_launch(const ls_args *args)
{
    ls_status st = LS_OK;
    ls_agent_result result = {.worker = -1};
    ls_agent_args job = {.command = args->rest};
    ls_launch_nodes nodes;
    int64_t restarts;

    LS_TRY(st, ls_launch_find_job(args, 1, &job), out);
    LS_TRY(st, ls_launch_number(args, "restarts", 0, 0, 1000000, &restarts), out);
    LS_TRY(st, ls_agent_check(&job), out);
    LS_TRY(st, ls_launch_find_nodes(args, &nodes), out);
    bool several = nodes.listen || nodes.join;
    if (several && restarts > 0) {
        st = ls_fail(LS_EUSAGE, "--restarts is for one machine");
        ls_err_hint("Where several take part, let the scheduler start all of them again.");
        goto out;
    }
    if (several)
        LS_TRY(st, ls_launch_run_nodes(&nodes, &job, &result), out);
    else
        LS_TRY(st, run_again(&job, restarts, &result), out);
    st = ls_launch_end(&result, args);
out:
    return st;
}

static const ls_flag flags[] = {
    {"ranks", 'n', "N", false, "How many processes to start on this machine; 1 unless given."},
    {"log-dir", 0, "DIR", false, "Write what each rank prints to DIR/rank-N.log as well."},
    {"grace", 0, "SECONDS", false,
     "How long ranks may take to end after another one failed, before they are killed; 10."},
    {"restarts", 0, "N", false,
     "On one machine: start all ranks again when one fails, at most so often; 0."},
    {"nodes", 0, "N", false, "On the first of several machines: how many there are; 2."},
    {"listen", 0, "ADDRESS:PORT", false, "On the first machine: where the others join."},
    {"join", 0, "ADDRESS:PORT", false, "On the other machines: the first one's address."},
    {"secret", 0, "FILE", false,
     "With several machines: 32 bytes that all of them have in this file, and nobody else."},
    {"wait", 0, "SECONDS", false, "How long machines wait for each other at the start; 300."},
    {.name = NULL},
};
const ls_command ls_cmd_launch = {
    .name = "launch",
    .summary = "run a program as many processes, and see them to their end",
    .arguments = "-- COMMAND [ARGUMENT ...]",
    .least = 1,
    .most = -1,
    .about =
        "Starts N copies of a command. Each finds its place in RANK, WORLD_SIZE, LOCAL_RANK, "
        "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and has its own share of the cores. What "
        "they print appears line by line behind the number of the rank.\n\n"
        "When a rank fails, the others are stopped, its last lines are shown, and its exit code "
        "becomes that of launch (128 + n for signal n). Ctrl-C and SIGTERM are passed on once; the "
        "second time everything is killed. Nothing that the ranks have started is left behind, "
        "also when launch itself is killed.\n\n"
        "With --restarts N a job that fails is started again as a whole, at most N times; "
        "TORCHELASTIC_RESTART_COUNT and LINESHAFT_RESTARTS tell the program how often that was. "
        "The same exit code with the same last line twice in a row ends it with exit code 10: it "
        "would fail again, so do not requeue it.\n\n"
        "On several machines the first is given --listen, and on the others `lineshaft agent` "
        "joins it; or the same command is given there with --join. They prove to each other that "
        "they know the secret, agree on the numbers of the ranks, and end together with one exit "
        "code.",
    .examples =
        "lineshaft launch -n 4 -- python3 train.py --lr 0.1  # 4 ranks\n"
        "lineshaft launch -n 2 --log-dir logs -- ./program   # and keep what they say\n"
        "lineshaft launch -n 4 --restarts 3 -- python3 train.py  # again, when a rank fails\n"
        "lineshaft launch -n 8 --nodes 2 --listen 10.0.0.1:7000 --secret job.secret -- ./x  "
        "# the first of two machines\n"
        "lineshaft launch -n 8 --join 10.0.0.1:7000 --secret job.secret -- ./x  # the other",
    .flags = flags,
    .run = run_launch,
};
