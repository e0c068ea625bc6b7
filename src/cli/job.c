/* job.c -- see job.h.
 *
 * What a rank inherits: LINESHAFT_FD_MEMBERS (who is there), _SEGMENT (memory of the node) or, where
 * ranks are replaced, _HEAL (a socket over which it gets that of each view), _OUT (the
 * standard output, for results that are not prefixed with a rank), and with
 * several nodes _LISTEN (its own socket) and _SECRET. The sockets are made here, before the nodes
 * meet, because the list of members tells their ports; each rank gets its own, and this process
 * lets go of them when the ranks run. Ranks that heal make their own for each view, at
 * LINESHAFT_ADDRESS, and report its port: so nobody who means an older view finds one that listens.
 */
#include "cli/job.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cli/task_rendezvous.h"
#include "cluster/member/members.h"
#include "cluster/node/launcher_env.h"
#include "comm/node/shm_segment.h"
#include "comm/node/flight_recorder.h"
#include "net/secret.h"
#include "net/sock.h"

enum { WORDS = 256, LAB_PORT = 7077, VIEW_S = 80, REJOIN_S = 20 };

/* --- what a rank inherits ---------------------------------------------------------------------*/

static int inherited(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long fd = text ? strtol(text, &end, 10) : -1;

    return text && *text && !*end && fd > 2 && fd < 1 << 20 ? (int)fd : -1;
}

bool ls_job_is_task(void)
{
    static bool told;
    ls_launcher_env places;
    bool launched;

    if (ls_job_is_rank())
        return false;
    if (ls_task_rendezvous_launched(&launched, &places) == LS_OK)
        return launched;
    /* They may mean something else to somebody else. */
    if (!told)
        ls_log(LS_LOG_WARN, "%s; this process does not take it for a task of a launcher",
               ls_err_last()->text);
    told = true;
    ls_err_clear();
    return false;
}

int ls_job_local_tasks(void)
{
    ls_launcher_env places;

    return ls_launcher_env_find_outer(&places) == LS_OK && places.world > 1 &&
                   places.local_world > 1
               ? places.local_world
               : 1;
}

int ls_job_local_task(void)
{
    ls_launcher_env places;

    return ls_launcher_env_find_outer(&places) == LS_OK && places.world > 1
               ? (int)ls_max_i64(0, places.local_rank)
               : 0;
}

bool ls_job_is_rank(void)
{
    return getenv("LINESHAFT_CAUSE_FD") && inherited("LINESHAFT_FD_MEMBERS") >= 0;
}

static ls_status member_list(const ls_members *m, ls_comm_member **list_out)
{
    ls_comm_member *list = ls_mem_array((size_t)m->ranks, sizeof *list);

    if (!list)
        return ls_fail(LS_ENOMEM, "no memory for the list of %d ranks", m->ranks);
    for (int r = 0; r < m->ranks; r++) {
        int node = ls_members_node_of(m, r);
        list[r] = (ls_comm_member){.node = node};
        snprintf(list[r].host, sizeof list[r].host, "%s", m->node[node].host);
        if (m->nodes > 1)
            ls_members_address(m, r, list[r].address, sizeof list[r].address);
    }
    *list_out = list;
    return LS_OK;
}

/* A word of the environment: one of three, the first unless it is set. */
static ls_status find_word(const char *name, const char *const known[3], const char **word_out)
{
    const char *text = getenv(name);

    for (int i = 0; i < 3; i++)
        if (!text || !*text || strcmp(text, known[i]) == 0) {
            *word_out = known[i];
            return LS_OK;
        }
    return ls_fail(LS_EUSAGE, "%s is \"%.40s\", which is none of %s, %s, %s", name, text, known[0],
                   known[1], known[2]);
}

/* How data moves between nodes: LINESHAFT_TRANSPORT and LINESHAFT_ZEROCOPY, or what fits. */
typedef struct movement {
    const char *transport, *zerocopy;
} movement;

static ls_status find_movement(movement *m)
{
    static const char *const transports[] = {"auto", "tcp", "ucx"};
    static const char *const zerocopies[] = {"auto", "on", "off"};
    ls_status st = find_word("LINESHAFT_CARRIER", transports, &m->transport);

    if (st != LS_OK) {
        ls_err_hint("Without it, UCX moves the data where every machine has an RDMA device, else "
                    "TCP.");
        return st;
    }
    st = find_word("LINESHAFT_ZEROCOPY", zerocopies, &m->zerocopy);
    if (st != LS_OK)
        ls_err_hint("Without it, TCP sends large messages without a copy where the kernel can.");
    return st;
}

ls_status ls_job_join(ls_comm **comm_out, int64_t deadline_ns)
{
    int secret_fd = inherited("LINESHAFT_FD_SECRET");
    ls_comm_member *list = NULL;
    movement how;
    ls_secret secret = {NULL};
    ls_members members;
    ls_launcher_env places;
    ls_status st;

    ls_members_init(&members);
    LS_TRY(st, find_movement(&how), out);
    LS_TRY(st, ls_launcher_env_find(&places), out);
    LS_TRY(st, ls_members_from_fd(&members, inherited("LINESHAFT_FD_MEMBERS")), out);
    LS_TRY(st, member_list(&members, &list), out);
    if (secret_fd >= 0)
        LS_TRY(st, ls_secret_read_fd(&secret, secret_fd), out);
    LS_TRY(st,
           ls_comm_open(comm_out,
                        &(ls_comm_args){.rank = places.rank,
                                        .ranks = members.ranks,
                                        .generation = members.generation,
                                        .members = list,
                                        .segment_fd = inherited("LINESHAFT_FD_BOARD"),
                                        .listen_fd = inherited("LINESHAFT_FD_LISTEN"),
                                        .secret = secret.bytes,
                                        .transport = how.transport,
                                        .zerocopy = how.zerocopy},
                        deadline_ns),
           out);
    if (places.rank == 0)
        ls_log(LS_LOG_INFO, "carrier between nodes: %s", ls_comm_transport(*comm_out));
out:
    ls_secret_release(&secret);
    ls_members_release(&members);
    ls_mem_free(list);
    return st;
}

/* Meet the ranks of a view. */
static ls_status open_view(const ls_heal_view *view, const ls_heal_fds *fds,
                           const ls_job_seat *seat, ls_comm **comm_out)
{
    int secret_fd = inherited("LINESHAFT_FD_SECRET");
    ls_comm_member *list = NULL;
    ls_secret secret = {NULL};
    movement how;
    ls_members members;
    ls_status st;

    ls_members_init(&members);
    LS_TRY(st, find_movement(&how), out);
    LS_TRY(st, ls_members_from_fd(&members, fds->members), out);
    LS_TRY(st, member_list(&members, &list), out);
    if (secret_fd >= 0 && members.nodes > 1)
        LS_TRY(st, ls_secret_read_fd(&secret, secret_fd), out);
    st = ls_comm_open(comm_out,
                      &(ls_comm_args){.rank = view->rank,
                                      .ranks = members.ranks,
                                      .generation = view->plan.generation,
                                      .members = list,
                                      .segment_fd = fds->segment,
                                      .listen_fd = members.nodes > 1 ? seat->listen_fd : -1,
                                      .secret = secret.bytes,
                                      .transport = how.transport,
                                      .zerocopy = how.zerocopy},
                      ls_time_now_ns() + VIEW_S * LS_NS_PER_S);
out:
    ls_secret_release(&secret);
    ls_members_release(&members);
    ls_mem_free(list);
    return st;
}

static uint16_t port_of(const ls_sock_address *address)
{
    return ntohs(address->storage.ss_family == AF_INET6
                     ? ((const struct sockaddr_in6 *)&address->storage)->sin6_port
                     : ((const struct sockaddr_in *)&address->storage)->sin_port);
}

/* A new place to be reached at. */
static ls_status listen_anew(ls_job_seat *seat, int32_t *port_out)
{
    const char *ip = getenv("LINESHAFT_ADDRESS");
    char text[LS_SOCK_TEXT];
    ls_sock_address at;
    ls_status st = LS_OK;

    ls_sock_close(&seat->listen_fd);
    if (!ip)
        return LS_OK;
    snprintf(text, sizeof text, strchr(ip, ':') ? "[%.60s]:0" : "%.60s:0", ip);
    LS_TRY(st, ls_sock_resolve(text, ls_time_now_ns() + LS_NS_PER_S, &at), out);
    LS_TRY(st, ls_sock_listen(&at, &seat->listen_fd), out);
    LS_TRY(st, ls_sock_local(seat->listen_fd, &at), out);
    *port_out = port_of(&at);
out:
    return st;
}

ls_status ls_job_rejoin(ls_job_seat *seat, const ls_view_report *report, ls_heal_view *view_out,
                        ls_comm **comm)
{
    ls_view_report now = *report;
    ls_heal_fds fds;
    ls_status st;

    do { /* another rank may be lost on the way */
        ls_err_record why = *ls_err_last();
        ls_comm_close(*comm);
        *comm = NULL;
        LS_TRY(st, listen_anew(seat, &now.port), out);
        ls_err_adopt(&why);
        LS_TRY(st, ls_heal_ask(&now, &seat->config_digest, view_out, &fds), out);
        if (view_out->dismissed)
            goto out;
        ls_fault_reach(view_out->plan.base, view_out->plan.generation);
        view_out->local_rank += ls_job_local_task() * view_out->local_ranks;
        view_out->local_ranks *= ls_job_local_tasks();
        st = ls_fault_pass(LS_FAULT_AT_MEET);
        if (st == LS_OK)
            st = open_view(view_out, &fds, seat, comm);
        close(fds.segment);
        close(fds.members);
    } while (st == LS_EPEER || st == LS_EDEADLINE);
out:
    return st;
}

/* --- starting them ----------------------------------------------------------------------------*/

typedef struct job {
    const ls_args *args;
    int ranks;
    char cmdline[1 << 16];
    const char *words[WORDS];
    ls_agent_fd fds[5];
    int *sockets; /* listening, one per rank; NULL: one node */
    uint16_t *ports;
    ls_launch_nodes *nodes;      /* where there are several */
    ls_task_rendezvous meet;     /* of tasks that another launcher started */
    ls_heal *heal;               /* ranks are replaced; NULL: they are not */
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
    if (fd >= 0)
        close(fd);
    return st;
}

static void set_port(ls_sock_address *address, uint16_t port)
{
    if (address->storage.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->storage)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&address->storage)->sin_port = htons(port);
}

static ls_status make_sockets(job *j, const ls_launch_nodes *nodes, int64_t deadline_ns)
{
    ls_sock_address own, bound;
    ls_status st;

    if (nodes->join)
        LS_TRY(st, own_address(nodes->join, deadline_ns, &own), out);
    else
        LS_TRY(st, ls_sock_resolve(nodes->listen, deadline_ns, &own), out);
    set_port(&own, 0);
    j->sockets = ls_mem_array((size_t)j->ranks, sizeof *j->sockets);
    for (int i = 0; j->sockets && i < j->ranks; i++)
        j->sockets[i] = -1;
    j->ports = ls_mem_array((size_t)j->ranks, sizeof *j->ports);
    if (!j->sockets || !j->ports)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks", j->ranks);
    for (int i = 0; i < j->ranks; i++) {
        LS_TRY(st, ls_sock_listen(&own, &j->sockets[i]), out);
        LS_TRY(st, ls_sock_local(j->sockets[i], &bound), out);
        j->ports[i] = port_of(&bound);
    }
out:
    return st;
}

/* The secret for the ranks, as a file that has no name. */
static ls_status pass_secret(job *j, const uint8_t *bytes)
{
    j->secret_fd = memfd_create("secret", MFD_CLOEXEC);
    if (j->secret_fd < 0 || write(j->secret_fd, bytes, LS_SECRET_BYTES) != LS_SECRET_BYTES)
        return ls_fail_sys(LS_EIO, "cannot hand the secret to the ranks");
    return LS_OK;
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
    if (j->nodes && j->nodes->recover_cluster)
        return open_heal(j, members, node, secret, agent);
    j->generation = members->generation;
    LS_TRY(st,
           ls_shm_segment_create(
               &(ls_shm_segment_args){.generation = members->generation, .ranks = j->ranks},
               &j->segment_fd),
           out);
    LS_TRY(st, ls_members_to_fd(members, &j->members_fd), out);
    j->fds[n++] = (ls_agent_fd){.name = "BOARD", .fd = j->segment_fd};
    j->fds[n++] = (ls_agent_fd){.name = "MEMBERS", .fd = j->members_fd};
    j->fds[n++] = (ls_agent_fd){.name = "OUT", .fd = j->out_fd};
    if (secret) {
        LS_TRY(st, pass_secret(j, secret), out);
        j->fds[n++] = (ls_agent_fd){.name = "SECRET", .fd = j->secret_fd};
        j->fds[n++] = (ls_agent_fd){.name = "LISTEN", .each = j->sockets};
    }
    agent->fds = j->fds;
    agent->n_fds = n;
out:
    return st;
}

/* --- ranks that are replaced ------------------------------------------------------------------*/

/* The memory of the ranks of a view; that of the view before goes with its last holder. */
static ls_status make_segment(void *context, uint64_t generation, int ranks, int *fd_out)
{
    job *j = context;

    ls_sock_close(&j->segment_fd);
    j->generation = generation;
    ls_status st = ls_shm_segment_create(
        &(ls_shm_segment_args){.generation = generation, .ranks = ranks}, &j->segment_fd);
    *fd_out = j->segment_fd;
    return st;
}

/* Nobody may wait in it any longer. */
static void break_segment(void *context, const char *why)
{
    const job *j = context;
    ls_shm_segment *segment = NULL;

    if (ls_shm_segment_open(&segment, j->segment_fd, j->generation) == LS_OK)
        ls_shm_segment_abort(segment, LS_SHM_SEGMENT_AGENT, LS_EPEER, "%s", why);
    else
        ls_log(LS_LOG_WARN, "cannot tell the ranks: %s", ls_err_last()->text);
    ls_shm_segment_close(segment);
}

/* Ranks that are replaced: what they inherit, and their membership. Without a secret this node is
 * the whole job. */
static ls_status open_heal(job *j, const ls_members *members, int node, const uint8_t *secret,
                           ls_agent_args *agent)
{
    const ls_recover_cluster_args *how = secret ? j->nodes->heal : &j->how;
    ls_heal_args args = {.workers = j->ranks,
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
        LS_TRY(st, pass_secret(j, secret), out);
        snprintf(j->address, sizeof j->address, "LINESHAFT_ADDRESS=%s", members->node[node].ip);
        j->settings[0] = j->address;
        agent->settings = j->settings;
        j->fds[n++] = (ls_agent_fd){.name = "SECRET", .fd = j->secret_fd};
    }
    LS_TRY(st, ls_heal_open(&j->heal, &args), out);
    LS_TRY(st, ls_members_to_fd(members, &j->members_fd), out);
    j->fds[n++] = (ls_agent_fd){.name = "MEMBERS", .fd = j->members_fd};
    j->fds[n++] = (ls_agent_fd){.name = "OUT", .fd = j->out_fd};
    j->fds[n++] = (ls_agent_fd){.name = "HEAL", .each = ls_heal_ends(j->heal)};
    agent->fds = j->fds;
    agent->n_fds = n;
    agent->heal = j->heal;
    if (secret)
        ls_recover_cluster_bind(j->nodes->recover_cluster, j->heal);
out:
    return st;
}

static ls_status run_alone(job *j, const ls_recover_cluster_args *heal, ls_agent_args *agent,
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
static ls_status find_nodes(const ls_args *args, job *j, ls_launch_nodes *nodes, char lab[64])
{
    const char *lab_nodes = getenv("LINESHAFT_LAB_NODES"),
               *list = getenv("LINESHAFT_LAB_ADDRESSES");
    const char *node = getenv("LINESHAFT_LAB_NODE");
    ls_status st = ls_launch_find_nodes(args, nodes);
    ls_launcher_env places;
    bool launched;

    if (st != LS_OK || nodes->listen || nodes->join)
        return st;
    if (!lab_nodes || !list || !node) {
        if (!ls_job_is_task())
            return LS_OK;
        st = ls_task_rendezvous_launched(&launched, &places);
        return st == LS_OK ? ls_task_rendezvous_open(&j->meet, &places, nodes) : st;
    }
    nodes->nodes = strtoll(lab_nodes, NULL, 10);
    if (nodes->nodes < 2)
        return LS_OK;
    snprintf(lab, 64, "%.*s:%d", (int)strcspn(list, " "), list, LAB_PORT);
    *(strcmp(node, "0") == 0 ? &nodes->listen : &nodes->join) = lab;
    nodes->secret_fd = inherited("LINESHAFT_FD_LAB_SECRET");
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

/* --- what is left of a job that failed --------------------------------------------------------*/

/* The ranks are gone, however that went; their memory is held here. */
static ls_status write_boxes(const ls_shm_segment *segment, const char *dir,
                             ls_agent_result *result)
{
    char path[PATH_MAX], where[LS_FLIGHT_RECORDER_TEXT] = "";
    int written = 0;
    ls_flight_recorder_record r;
    ls_status st = LS_OK;

    for (int i = 0; i < ls_shm_segment_ranks(segment); i++) {
        if (!ls_flight_recorder_used(segment, i))
            continue;
        LS_TRY(st, ls_file_make_dirs(dir), out);
        snprintf(path, sizeof path, "%s/rank-%d.txt", dir, ls_shm_segment_rank(segment, i));
        LS_TRY(st, ls_flight_recorder_write(segment, i, result->cause.text, path), out);
        written++;
    }
    if (result->worker >= 0 && result->worker < ls_shm_segment_ranks(segment) &&
        ls_flight_recorder_find(segment, result->worker, -1, &r))
        ls_flight_recorder_call(&r, where);
    if (written)
        snprintf(result->note, sizeof result->note,
                 "%s%.200s%sblack box%s of %d rank%s: %.200s/rank-N.txt",
                 *where ? "its last collective: " : "", where, *where ? "; " : "",
                 written == 1 ? "" : "es", written, written == 1 ? "" : "s", dir);
out:
    return st;
}

/* LINESHAFT_BLACKBOX: a folder, or "off". */
static void keep_boxes(const job *j, ls_agent_result *result)
{
    const char *dir = getenv("LINESHAFT_BLACKBOX");
    ls_shm_segment *segment = NULL;
    ls_status st;

    if (result->cause.code == LS_OK || result->cause.code == LS_EINTR ||
        result->cause.code == LS_EUNSAVED || j->segment_fd < 0 || (dir && strcmp(dir, "off") == 0))
        return;
    ls_err_record before = *ls_err_last();
    LS_TRY(st, ls_shm_segment_open(&segment, j->segment_fd, j->generation), out);
    st = write_boxes(segment, dir && *dir ? dir : "lineshaft-blackbox", result);
out:
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "the black boxes are lost: %s", ls_err_last()->text);
    ls_shm_segment_close(segment);
    ls_err_adopt(&before);
}

static void release(job *j)
{
    for (int i = 0; j->sockets && i < j->ranks; i++)
        ls_sock_close(&j->sockets[i]);
    ls_sock_close(&j->segment_fd);
    ls_sock_close(&j->members_fd);
    ls_sock_close(&j->secret_fd);
    ls_sock_close(&j->out_fd);
    ls_task_rendezvous_close(&j->meet);
    ls_heal_close(j->heal);
    ls_mem_free(j->sockets);
    ls_mem_free(j->ports);
}

ls_status ls_job_take_output(void)
{
    int fd = inherited("LINESHAFT_FD_OUT");

    fflush(stdout);
    return fd < 0 || dup2(fd, STDOUT_FILENO) >= 0
               ? LS_OK
               : ls_fail_sys(LS_EIO, "cannot write to the standard output");
}

static job the_job; /* of the one command of this process; too large for a stack */

static ls_status begin(const ls_args *args, job *j)
{
    movement how; /* the ranks read it again; here, so that a mistake is said once */
    ls_status st;

    *j = (job){.args = args,
               .meet = {.secret_fd = -1},
               .segment_fd = -1,
               .members_fd = -1,
               .secret_fd = -1,
               .out_fd = -1};
    LS_TRY(st, keep_streams(j), out);
    st = find_movement(&how);
out:
    return st;
}

ls_status ls_job_run(const ls_args *args, int ranks, int64_t grace_s,
                     const ls_recover_cluster_args *heal)
{
    job *j = &the_job;
    ls_agent_result result = {.worker = -1};
    ls_agent_args agent = {
        .command = j->words, .grace_ns = grace_s * LS_NS_PER_S, .saves = grace_s > 0};
    ls_launch_nodes nodes;
    char lab[64];
    int64_t n;
    ls_status st;

    LS_TRY(st, begin(args, j), out);
    LS_TRY(st, ls_launch_number(args, "ranks", ranks, 1, LS_SHM_SEGMENT_RANKS, &n), out);
    LS_TRY(st, find_nodes(args, j, &nodes, lab), out);
    LS_TRY(st, take_words(j), out);
    j->ranks = agent.workers = (int)n;
    LS_TRY(st, ls_agent_check(&agent), out);
    if (!nodes.listen && !nodes.join) {
        LS_TRY(st, run_alone(j, heal, &agent, &result), out);
    } else {
        int64_t deadline_ns = ls_time_now_ns() + nodes.wait_s * LS_NS_PER_S;
        j->nodes = &nodes;
        nodes.heal = heal;
        if (!heal)
            LS_TRY(st, make_sockets(j, &nodes, deadline_ns), out);
        nodes.ports = j->ports;
        nodes.met = on_met;
        nodes.started = on_started;
        nodes.listening = on_listening;
        nodes.context = j;
        LS_TRY(st, ls_launch_run_nodes(&nodes, &agent, &result), out);
    }
    if (reader_left(j, &result))
        exit(result.exit_code);
    keep_boxes(j, &result);
    st = ls_launch_end(&result, args);
out:
    release(j);
    return st;
}

/* --- as an agent ------------------------------------------------------------------------------*/

static ls_recover_cluster_args how_to_heal(const ls_job_spec_heal *heal)
{
    return (ls_recover_cluster_args){.rules = {.restarts = (int)heal->restarts,
                                               .least = (int)heal->least,
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
    if (agent->workers > LS_SHM_SEGMENT_RANKS) {
        st = ls_fail(LS_EUSAGE, "--ranks must be a whole number from 1 to %d, not %d",
                     LS_SHM_SEGMENT_RANKS, agent->workers);
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

static ls_status run_agent(const ls_args *args, ls_launch_nodes *nodes, ls_agent_args agent,
                           ls_agent_result *result)
{
    job *j = &the_job;
    ls_status st;

    LS_TRY(st, begin(args, j), out);
    j->nodes = nodes;
    nodes->told = on_told;
    nodes->context = j;
    nodes->heal = NULL;
    nodes->dropped = false;
    LS_TRY(st, ls_launch_run_nodes(nodes, &agent, result), out);
    keep_boxes(j, result);
out:
    release(j);
    return st;
}

/* The network may need a while to be there again. */
static ls_status join_again(const ls_args *args, ls_launch_nodes *nodes, ls_agent_args agent,
                            const char *first, ls_agent_result *result)
{
    static char list[sizeof nodes->refuges + 1024];
    int64_t until_ns = ls_time_now_ns() + REJOIN_S * LS_NS_PER_S;
    ls_status st;

    /* Also where another machine may have taken over. */
    snprintf(list, sizeof list, "%s%s%s", first, nodes->refuges[0] ? "," : "", nodes->refuges);
    nodes->wait_s = REJOIN_S;
    nodes->join = list;
    while (((st = run_agent(args, nodes, agent, result)) == LS_EIO || st == LS_EDEADLINE) &&
           ls_time_now_ns() < until_ns) {
        nodes->join = list;
        nanosleep(&(struct timespec){.tv_nsec = 200 * LS_NS_PER_MS}, NULL);
    }
    return st;
}

/* A machine that was taken for lost, because it was cut off or stopped for a while, is nobody when
 * it is back: it comes as a newcomer. When there is no job any more, its first end counts. */
ls_status ls_job_run_agent(const ls_args *args, ls_launch_nodes *nodes, ls_agent_args *agent)
{
    ls_agent_result result = {.worker = -1}, again;
    const char *first = nodes->join;
    ls_status st = run_agent(args, nodes, *agent, &result);
    ls_err_record why = *ls_err_last(); /* of a spare */

    while ((st == LS_OK || st == LS_EPEER) && nodes->dropped) {
        ls_log(LS_LOG_WARN, "%s; this machine asks to join again",
               st == LS_OK ? result.cause.text : why.text);
        again = (ls_agent_result){.worker = -1};
        if (join_again(args, nodes, *agent, first, &again) != LS_OK) {
            ls_log(LS_LOG_INFO, "it is not taken: %s", ls_err_last()->text);
            break;
        }
        st = LS_OK;
        result = again;
    }
    return st == LS_OK ? ls_launch_end(&result, args) : ls_err_adopt(&why);
}
