/* job.c -- see job.h.
 *
 *     ls_job_run (this process becomes the agent of its node)
 *       find_nodes      flags, a lab or a launcher's tasks say how nodes meet; or there is one node
 *       ls_launch_nodes_run, on several nodes: all meet, and on_met() is called
 *       on_met / open_heal   make what the ranks of this node inherit (job_rank.c lists it)
 *       ls_agent_run    starts the ranks, and returns when all have ended
 *       write_post_mortem    what each rank was doing, when the job failed
 *
 * Here cluster and comm meet: cluster decides when ranks are started and which view they are in,
 * comm has the memory they share. make_segment() gives each view memory of its own, break_segment()
 * wakes every rank that waits in it.
 *
 * Listening sockets of the ranks are made before the nodes meet, because the list of members has
 * their ports; each rank inherits its own, and this process closes them when the ranks run. */
#include "launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/elect/state_file.h"
#include "cluster/node/launcher_env.h"
#include "comm/comm.h"
#include "launch/job_rank.h"
#include "launch/task_rendezvous.h"
#include "net/secret.h"
#include "net/sock.h"

/* `launch` may start more ranks of any program than comm can join; commands of ours may not. */
_Static_assert((int)LS_COMM_RANKS <= (int)LS_MEMBERS_RANKS, "a job may have more than it can list");
_Static_assert((int)LS_NODE_MEMORY_RANKS <= (int)LS_MEMBER_MESSAGE_WORKERS,
               "more than a view can tell");

enum { WORDS = 256, LAB_PORT = 7077, REJOIN_S = 20 };

/* --- starting them ---------------------------------------------------------------------------- */

typedef struct job {
    int ranks;
    char cmdline[1 << 16];
    const char *words[WORDS];
    ls_agent_fd fds[5];
    int *sockets; /* listening, one per rank; NULL: one node */
    uint16_t *ports;
    ls_launch_nodes *nodes;      /* where there are several */
    ls_task_rendezvous meet;     /* of tasks that another launcher started */
    ls_worker_channel *channel;  /* ranks are replaced; NULL: they are not */
    ls_recover_cluster_args how; /* an agent's: as the first node says */
    char address[LS_MEMBERS_TEXT + 32];
    const char *settings[2];
    int segment_fd, members_fd, secret_fd, out_fd;
    uint64_t generation;
} job;

/* This program once more, with the same words. */
static ls_status take_words(job *j)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC), n = 0;
    ssize_t len = fd < 0 ? -1 : read(fd, j->cmdline, sizeof j->cmdline);

    if (fd >= 0)
        close(fd);
    if (len <= 0 || len == (ssize_t)sizeof j->cmdline)
        return ls_fail(LS_EUSAGE,
                       "the command line is too long for ranks to repeat: more than %zu bytes",
                       sizeof j->cmdline - 1);
    for (char *p = j->cmdline; p < j->cmdline + len; p += strlen(p) + 1) {
        if (n == WORDS - 1)
            return ls_fail(LS_EUSAGE, "the command line has more than %d words", WORDS - 1);
        j->words[n++] = p;
    }
    j->words[0] = LS_AGENT_SELF;
    j->words[n] = NULL;
    return LS_OK;
}

/* The address by which this machine reaches another one. */
static ls_status own_address(const char *other, int64_t deadline_ns, ls_sock_address *own_out)
{
    ls_sock_address to;
    int fd = -1;
    ls_status st;

    LS_TRY(st, ls_sock_resolve(other, deadline_ns, &to), out);
    fd = socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to.storage, to.len) < 0) {
        st = ls_fail_sys(LS_EIO, "this machine has no route to %s", other);
        goto out;
    }
    st = ls_sock_local(fd, own_out); /* a datagram socket sends nothing by connecting */
out:
    ls_sock_close(&fd);
    return st;
}

static ls_status make_sockets(job *j, const ls_launch_nodes *nodes, int64_t deadline_ns)
{
    ls_sock_address own, bound;
    ls_status st;

    if (nodes->join)
        LS_TRY(st, own_address(nodes->join, deadline_ns, &own), out);
    else
        LS_TRY(st, ls_sock_resolve(nodes->listen, deadline_ns, &own), out);
    ls_sock_set_port(&own, 0);
    j->sockets = ls_mem_array((size_t)j->ranks, sizeof *j->sockets);
    for (int i = 0; j->sockets && i < j->ranks; i++)
        j->sockets[i] = -1;
    j->ports = ls_mem_array((size_t)j->ranks, sizeof *j->ports);
    if (!j->sockets || !j->ports)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks", j->ranks);
    for (int i = 0; i < j->ranks; i++) {
        LS_TRY(st, ls_sock_listen(&own, &j->sockets[i]), out);
        LS_TRY(st, ls_sock_local(j->sockets[i], &bound), out);
        j->ports[i] = ls_sock_port(&bound);
    }
out:
    return st;
}

/* The ranks have their sockets. A copy here would make a dead rank look as if it still listened. */
static void on_started(void *context)
{
    job *j = context;

    for (int i = 0; j->sockets && i < j->ranks; i++)
        ls_sock_close(&j->sockets[i]);
}

static ls_status open_heal(job *j, const ls_members *members, int node, const uint8_t *secret,
                           ls_agent_args *agent);

/* All nodes are known: what the ranks of this one inherit. */
static ls_status on_met(void *context, const ls_members *members, int node, const uint8_t *secret,
                        ls_agent_args *agent)
{
    job *j = context;
    int n = 0;
    ls_status st;

    ls_task_rendezvous_close(&j->meet);
    if (members->ranks > LS_COMM_RANKS) {
        ls_fail(LS_EUSAGE, "this job has %d ranks on %d nodes, and can have %d", members->ranks,
                members->nodes, LS_COMM_RANKS);
        ls_err_hint("Use fewer processes on each node (-n), or fewer nodes.");
        return LS_EUSAGE;
    }
    if (j->nodes && j->nodes->recover_cluster)
        return open_heal(j, members, node, secret, agent);
    j->generation = members->generation;
    LS_TRY(st, ls_node_memory_create(members->generation, j->ranks, &j->segment_fd), out);
    LS_TRY(st, ls_members_to_fd(members, &j->members_fd), out);
    j->fds[n++] = (ls_agent_fd){.name = "MEMORY", .fd = j->segment_fd};
    j->fds[n++] = (ls_agent_fd){.name = "MEMBERS", .fd = j->members_fd};
    j->fds[n++] = (ls_agent_fd){.name = "OUT", .fd = j->out_fd};
    if (secret) {
        LS_TRY(st, ls_secret_to_fd(secret, &j->secret_fd), out);
        j->fds[n++] = (ls_agent_fd){.name = "SECRET", .fd = j->secret_fd};
        j->fds[n++] = (ls_agent_fd){.name = "LISTEN", .each = j->sockets};
    }
    agent->fds = j->fds;
    agent->n_fds = n;
out:
    return st;
}

/* --- ranks that are replaced ------------------------------------------------------------------ */

/* The memory of the ranks of a view; that of the view before goes with its last holder. */
static ls_status make_segment(void *context, uint64_t generation, int ranks, int *fd_out)
{
    job *j = context;

    ls_sock_close(&j->segment_fd);
    j->generation = generation;
    ls_status st = ls_node_memory_create(generation, ranks, &j->segment_fd);
    *fd_out = j->segment_fd;
    return st;
}

/* Nobody may wait in it any longer. */
static void break_segment(void *context, const char *why)
{
    const job *j = context;

    if (ls_node_memory_break(j->segment_fd, j->generation, why) != LS_OK)
        ls_log(LS_LOG_WARN, "cannot report it to the ranks: %s", ls_err_last()->text);
}

/* Ranks that are replaced: what they inherit, and their membership. Without a secret this node is
 * the whole job. */
static ls_status open_heal(job *j, const ls_members *members, int node, const uint8_t *secret,
                           ls_agent_args *agent)
{
    const ls_recover_cluster_args *how = secret ? j->nodes->heal : &j->how;
    ls_worker_channel_args args = {.workers = j->ranks,
                                   .patience_ns = how->patience_ns,
                                   .make = make_segment,
                                   .revoke = break_segment,
                                   .context = j,
                                   .rules = how->rules};
    int n = 0;
    ls_status st;

    if (secret) {
        args.say = ls_recover_cluster_say;
        args.say_context = j->nodes->recover_cluster;
        LS_TRY(st, ls_secret_to_fd(secret, &j->secret_fd), out);
        snprintf(j->address, sizeof j->address, "LINESHAFT_ADDRESS=%s", members->node[node].ip);
        j->settings[0] = j->address;
        agent->settings = j->settings;
        j->fds[n++] = (ls_agent_fd){.name = "SECRET", .fd = j->secret_fd};
    }
    LS_TRY(st, ls_worker_channel_open(&j->channel, &args), out);
    LS_TRY(st, ls_members_to_fd(members, &j->members_fd), out);
    j->fds[n++] = (ls_agent_fd){.name = "MEMBERS", .fd = j->members_fd};
    j->fds[n++] = (ls_agent_fd){.name = "OUT", .fd = j->out_fd};
    j->fds[n++] = (ls_agent_fd){.name = "HEAL", .each = ls_worker_channel_ends(j->channel)};
    agent->fds = j->fds;
    agent->n_fds = n;
    agent->channel = j->channel;
    if (secret)
        ls_recover_cluster_bind(j->nodes->recover_cluster, j->channel);
out:
    return st;
}

static ls_status run_one_node(job *j, const ls_recover_cluster_args *heal, ls_agent_args *agent,
                              ls_agent_result *result)
{
    ls_members members;
    char host[64] = "localhost";
    ls_status st;

    ls_members_init(&members);
    gethostname(host, sizeof host - 1);
    members.generation = 1;
    LS_TRY(st, ls_members_add(&members, host, "127.0.0.1", j->ranks, NULL), out);
    if (heal) {
        j->how = *heal;
        LS_TRY(st, open_heal(j, &members, 0, NULL, agent), out);
    } else {
        LS_TRY(st, on_met(j, &members, 0, NULL, agent), out);
    }
    agent->generation = members.generation;
    st = ls_agent_run(agent, result);
out:
    ls_members_release(&members);
    return st;
}

static ls_status on_listening(void *context, const char *address)
{
    job *j = context;

    return j->meet.hosts ? ls_task_rendezvous_tell(&j->meet, address) : LS_OK;
}

/* Where the nodes meet: as the flags say, on the first host of a lab, or with the other tasks that
 * srun, mpirun or torchrun started. */
static ls_status find_nodes(job *j, ls_launch_nodes *nodes, char lab[64])
{
    const char *lab_nodes = getenv("LINESHAFT_LAB_NODES"),
               *list = getenv("LINESHAFT_LAB_ADDRESSES");
    const char *node = getenv("LINESHAFT_LAB_NODE");
    ls_launcher_env env;
    bool launched;

    if (nodes->listen || nodes->join)
        return LS_OK;
    if (!lab_nodes || !list || !node) {
        if (!ls_task_rendezvous_is_task())
            return LS_OK;
        ls_status st = ls_task_rendezvous_launched(&launched, &env);
        return st == LS_OK ? ls_task_rendezvous_open(&j->meet, &env, nodes) : st;
    }
    nodes->nodes = strtoll(lab_nodes, NULL, 10);
    if (nodes->nodes < 2)
        return LS_OK;
    snprintf(lab, 64, "%.*s:%d", (int)strcspn(list, " "), list, LAB_PORT);
    *(strcmp(node, "0") == 0 ? &nodes->listen : &nodes->join) = lab;
    nodes->secret_fd = ls_job_rank_inherited("LINESHAFT_FD_LAB_SECRET");
    nodes->quiet = true;
    return LS_OK;
}

/* A descriptor that is handed to ranks must not be one of the first three: where those are closed,
 * something is opened in their place. */
static ls_status keep_streams(job *j)
{
    int fd = 0;

    j->out_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (j->out_fd < 0)
        return ls_fail_sys(LS_EIO, "cannot write results to the standard output");
    while (fd < 3) {
        fd = open("/dev/null", O_RDWR);
        if (fd < 0)
            return ls_fail_sys(LS_EIO, "cannot open \"/dev/null\"");
    }
    close(fd);
    return LS_OK;
}

/* Whether a rank ended because nobody reads the results any more: no failure to speak of. */
static bool reader_left(const job *j, const ls_agent_result *result)
{
    struct pollfd out = {.fd = j->out_fd};

    return result->exit_code == 128 + SIGPIPE && poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* --- what is left of a job that failed -------------------------------------------------------- */

/* The ranks are gone, and their memory is held here: what each was doing goes to files in the
 * folder that LINESHAFT_BLACKBOX names, unless it is "off". */
static void write_post_mortem(const job *j, ls_agent_result *result)
{
    const char *folder = getenv("LINESHAFT_BLACKBOX");
    ls_node_memory_post_mortem found;

    if (result->cause.code == LS_OK || result->cause.code == LS_EINTR ||
        result->cause.code == LS_EUNSAVED || j->segment_fd < 0 ||
        (folder && strcmp(folder, "off") == 0))
        return;
    ls_err_record before = *ls_err_last();
    folder = folder && *folder ? folder : "lineshaft-blackbox";
    if (ls_node_memory_write(j->segment_fd, j->generation, folder, result->cause.text,
                             result->worker, &found) != LS_OK)
        ls_log(LS_LOG_WARN, "the black boxes are lost: %s", ls_err_last()->text);
    else if (found.written > 0)
        snprintf(result->note, sizeof result->note,
                 "%s%.200s%sblack box%s of %d rank%s: %.200s/rank-N.txt",
                 *found.call ? "its last collective: " : "", found.call, *found.call ? "; " : "",
                 found.written == 1 ? "" : "es", found.written, found.written == 1 ? "" : "s",
                 folder);
    ls_err_adopt(&before);
}

static void release(job *j)
{
    if (!j)
        return;
    for (int i = 0; j->sockets && i < j->ranks; i++)
        ls_sock_close(&j->sockets[i]);
    ls_sock_close(&j->segment_fd);
    ls_sock_close(&j->members_fd);
    ls_sock_close(&j->secret_fd);
    ls_sock_close(&j->out_fd);
    ls_task_rendezvous_close(&j->meet);
    ls_worker_channel_close(j->channel);
    ls_mem_free(j->sockets);
    ls_mem_free(j->ports);
    ls_mem_free(j);
}

/* A job is too large for a stack. */
static ls_status begin(job **job_out)
{
    ls_job_rank_movement how; /* read again by the ranks; here so that a mistake is reported once */
    job *j = ls_mem_alloc(sizeof *j);
    ls_status st;

    if (!j)
        return LS_ENOMEM;
    j->meet.secret_fd = j->segment_fd = j->members_fd = j->secret_fd = j->out_fd = -1;
    LS_TRY(st, keep_streams(j), out);
    LS_TRY(st, ls_job_rank_find_movement(&how), out);
    *job_out = j;
out:
    if (st != LS_OK)
        release(j);
    return st;
}

ls_status ls_job_run(const ls_job_args *args, ls_agent_result *result_out)
{
    job *j = NULL;
    ls_launch_nodes nodes = args->nodes;
    char lab[64];
    ls_status st;

    ls_state_file_sweep();
    LS_TRY(st, begin(&j), out);
    ls_agent_args agent = {.command = j->words,
                           .workers = args->ranks,
                           .grace_ns = args->grace_s * LS_NS_PER_S,
                           .saves = args->grace_s > 0};
    LS_TRY(st, find_nodes(j, &nodes, lab), out);
    LS_TRY(st, take_words(j), out);
    j->ranks = args->ranks;
    LS_TRY(st, ls_agent_check(&agent), out);
    if (!nodes.listen && !nodes.join) {
        LS_TRY(st, run_one_node(j, args->heal, &agent, result_out), out);
    } else {
        int64_t deadline_ns = ls_time_now_ns() + nodes.wait_s * LS_NS_PER_S;
        j->nodes = &nodes;
        nodes.heal = args->heal;
        if (!args->heal)
            LS_TRY(st, make_sockets(j, &nodes, deadline_ns), out);
        nodes.ports = j->ports;
        nodes.met = on_met;
        nodes.started = on_started;
        nodes.listening = on_listening;
        nodes.context = j;
        LS_TRY(st, ls_launch_nodes_run(&nodes, &agent, result_out), out);
    }
    result_out->unread = reader_left(j, result_out);
    if (!result_out->unread)
        write_post_mortem(j, result_out);
out:
    release(j);
    return st;
}

/* --- as an agent ------------------------------------------------------------------------------ */

static ls_recover_cluster_args how_to_heal(const ls_job_spec_heal *heal)
{
    return (ls_recover_cluster_args){.rules = {.restarts = (int)heal->restarts,
                                               .least = (int)heal->least,
                                               .most = LS_COMM_RANKS,
                                               .unit = (int)heal->unit},
                                     .min_nodes = (int)heal->min_nodes,
                                     .max_nodes = (int)heal->max_nodes,
                                     .grow_wait_ns = heal->grow_wait_ms * LS_NS_PER_MS,
                                     .quarantine = (int)heal->quarantine,
                                     .cool_ns = heal->cool_ms * LS_NS_PER_MS,
                                     .patience_ns = heal->patience_ms * LS_NS_PER_MS,
                                     .heartbeat_ns = heal->heartbeat_ms * LS_NS_PER_MS,
                                     .suspect_ns = heal->suspect_ms * LS_NS_PER_MS,
                                     .dead_ns = heal->dead_ms * LS_NS_PER_MS,
                                     .failover = heal->failover != 0,
                                     .program = LS_AGENT_SELF};
}

/* The first machine has said what to run: the same words here, and for ranks that meet what they
 * inherit. */
static ls_status on_told(void *context, const ls_job_spec *work, int64_t deadline_ns,
                         ls_agent_args *agent)
{
    job *j = context;
    ls_status st;

    agent->command = work->words;
    if (agent->workers == 0)
        agent->workers = work->ranks;
    LS_TRY(st, ls_agent_check(agent), out);
    if (!work->meeting)
        goto out;
    if (agent->workers > LS_NODE_MEMORY_RANKS) {
        st = ls_fail(LS_EUSAGE, "--ranks must be a whole number from 1 to %d, not %d",
                     LS_NODE_MEMORY_RANKS, agent->workers);
        goto out;
    }
    j->ranks = agent->workers;
    if (work->heal.patience_ms > 0) {
        j->how = how_to_heal(&work->heal);
        j->nodes->heal = &j->how;
    } else {
        LS_TRY(st, make_sockets(j, j->nodes, deadline_ns), out);
    }
    j->nodes->ports = j->ports;
    j->nodes->met = on_met;
    j->nodes->started = on_started;
out:
    return st;
}

static ls_status run_agent(ls_launch_nodes *nodes, ls_agent_args agent, ls_agent_result *result)
{
    job *j = NULL;
    ls_status st;

    LS_TRY(st, begin(&j), out);
    j->nodes = nodes;
    nodes->told = on_told;
    nodes->context = j;
    nodes->heal = NULL;
    nodes->dropped = false;
    LS_TRY(st, ls_launch_nodes_run(nodes, &agent, result), out);
    write_post_mortem(j, result);
out:
    release(j);
    return st;
}

/* The network may need a while to be there again. */
static ls_status join_again(ls_launch_nodes *nodes, ls_agent_args agent, const char *first,
                            ls_agent_result *result)
{
    char list[sizeof nodes->join_list + 1024];
    int64_t until_ns = ls_time_now_ns() + REJOIN_S * LS_NS_PER_S;
    ls_status st;

    /* Also where another machine may have taken over. */
    snprintf(list, sizeof list, "%s%s%s", first, nodes->join_list[0] ? "," : "", nodes->join_list);
    nodes->wait_s = REJOIN_S;
    nodes->join = list;
    while (((st = run_agent(nodes, agent, result)) == LS_EIO || st == LS_EDEADLINE) &&
           ls_time_now_ns() < until_ns) {
        nodes->join = list;
        nanosleep(&(struct timespec){.tv_nsec = 200 * LS_NS_PER_MS}, NULL);
    }
    return st;
}

/* A machine that was taken for lost, because it was cut off or stopped for a while, is nobody when
 * it is back: it comes as a newcomer. When there is no job any more, its first end counts. */
ls_status ls_job_run_agent(ls_launch_nodes *nodes, const ls_agent_args *agent,
                           ls_agent_result *result_out)
{
    ls_agent_result result = {.worker = -1}, again;
    const char *first = nodes->join;
    ls_state_file_sweep();
    ls_status st = run_agent(nodes, *agent, &result);
    ls_err_record why = *ls_err_last(); /* of a spare */

    while ((st == LS_OK || st == LS_EPEER) && nodes->dropped) {
        ls_log(LS_LOG_WARN, "%s; this machine asks to join again",
               st == LS_OK ? result.cause.text : why.text);
        again = (ls_agent_result){.worker = -1};
        if (join_again(nodes, *agent, first, &again) != LS_OK) {
            ls_log(LS_LOG_INFO, "it is not taken: %s", ls_err_last()->text);
            break;
        }
        st = LS_OK;
        result = again;
    }
    if (st != LS_OK)
        return ls_err_adopt(&why);
    *result_out = result;
    return LS_OK;
}
