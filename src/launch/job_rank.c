/* job_rank.c -- see job_rank.h.
 *
 * What a rank inherits, as LINESHAFT_FD_<NAME>:
 *
 *   MEMBERS   the list of nodes and ranks (cluster/member/members.h)
 *   MEMORY    the memory of its node (comm/node_memory.h); of a job that heals instead
 *   HEAL      a socket to the agent, which sends that memory and the members of each view
 *   OUT       the user's standard output, for results that no rank's number precedes
 *   LISTEN    with several nodes: its own listening socket
 *   SECRET    with several nodes: what their ranks prove to each other
 *
 * In a job that heals each rank makes a new listening socket for each view, at LINESHAFT_ADDRESS,
 * and reports its port. So a rank that still means an older view finds nobody at that view's
 * port:
 *
 *     view 1   ranks 0 1 2 listen at 40001 40002 40003; rank 1 dies
 *     view 2   ranks 0 1 (before: 2) listen at 40010 40011; a late connection to 40003 is refused
 *
 * The generation of the view stands in every frame as well: one check guards the other. */
#include "launch/job_rank.h"

#include <unistd.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/members.h"
#include "cluster/node/launcher_env.h"
#include "launch/task_rendezvous.h"
#include "net/secret.h"
#include "net/sock.h"

enum { VIEW_S = 80 };

int ls_job_rank_inherited(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long fd = text ? strtol(text, &end, 10) : -1;

    return text && *text && !*end && fd > 2 && fd < 1 << 20 ? (int)fd : -1;
}

bool ls_job_rank_here(void)
{
    return getenv("LINESHAFT_CAUSE_FD") && ls_job_rank_inherited("LINESHAFT_FD_MEMBERS") >= 0;
}

ls_status ls_job_rank_take_output(void)
{
    int fd = ls_job_rank_inherited("LINESHAFT_FD_OUT");

    fflush(stdout);
    return fd < 0 || dup2(fd, STDOUT_FILENO) >= 0
               ? LS_OK
               : ls_fail_sys(LS_EIO, "cannot write to the standard output");
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

/* A variable of the environment that has one of three values, the first unless it is set. */
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

ls_status ls_job_rank_find_movement(ls_job_rank_movement *movement_out)
{
    ls_job_rank_movement *m = movement_out;
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

/* Meet the ranks that the list of members names. args: rank, descriptors and generation (0: as the
 * list says); the rest is found here. */
static ls_status meet(ls_comm_args args, int members_fd, int64_t deadline_ns, ls_comm **comm_out)
{
    int secret_fd = ls_job_rank_inherited("LINESHAFT_FD_SECRET");
    ls_comm_member *list = NULL;
    ls_secret secret = {NULL};
    ls_job_rank_movement how;
    ls_members members;
    ls_status st;

    ls_members_init(&members);
    LS_TRY(st, ls_job_rank_find_movement(&how), out);
    LS_TRY(st, ls_members_from_fd(&members, members_fd), out);
    LS_TRY(st, member_list(&members, &list), out);
    if (secret_fd >= 0 && members.nodes > 1)
        LS_TRY(st, ls_secret_read_fd(&secret, secret_fd), out);
    args.ranks = members.ranks;
    args.generation = args.generation ? args.generation : members.generation;
    args.members = list;
    args.listen_fd = members.nodes > 1 ? args.listen_fd : -1;
    args.secret = secret.bytes;
    args.transport = how.transport;
    args.zerocopy = how.zerocopy;
    st = ls_comm_open(comm_out, &args, deadline_ns);
out:
    ls_secret_release(&secret);
    ls_members_release(&members);
    ls_mem_free(list);
    return st;
}

ls_status ls_job_rank_join(ls_comm **comm_out, int64_t deadline_ns)
{
    ls_comm_args args = {.segment_fd = ls_job_rank_inherited("LINESHAFT_FD_MEMORY"),
                         .listen_fd = ls_job_rank_inherited("LINESHAFT_FD_LISTEN")};
    ls_launcher_env env;
    ls_status st;

    LS_TRY(st, ls_launcher_env_find(&env), out);
    args.rank = env.rank;
    LS_TRY(st, meet(args, ls_job_rank_inherited("LINESHAFT_FD_MEMBERS"), deadline_ns, comm_out),
           out);
    if (env.rank == 0)
        ls_log(LS_LOG_INFO, "carrier between nodes: %s", ls_comm_transport(*comm_out));
out:
    return st;
}

/* A new place to be reached at. */
static ls_status listen_anew(ls_job_rank *rank, int32_t *port_out)
{
    const char *ip = getenv("LINESHAFT_ADDRESS");
    char text[LS_SOCK_TEXT];
    ls_sock_address at;
    ls_status st = LS_OK;

    ls_sock_close(&rank->listen_fd);
    if (!ip)
        return LS_OK;
    snprintf(text, sizeof text, strchr(ip, ':') ? "[%.60s]:0" : "%.60s:0", ip);
    LS_TRY(st, ls_sock_resolve(text, ls_time_now_ns() + LS_NS_PER_S, &at), out);
    LS_TRY(st, ls_sock_listen(&at, &rank->listen_fd), out);
    LS_TRY(st, ls_sock_local(rank->listen_fd, &at), out);
    *port_out = ls_sock_port(&at);
out:
    return st;
}

ls_status ls_job_rank_rejoin(ls_job_rank *rank, const ls_view_report *report,
                             ls_worker_channel_view *view_out, ls_comm **comm)
{
    ls_view_report now = *report;
    ls_worker_channel_fds fds;
    ls_status st;

    do { /* another rank may be lost on the way */
        ls_err_record why = *ls_err_last();
        ls_comm_close(*comm);
        *comm = NULL;
        LS_TRY(st, listen_anew(rank, &now.port), out);
        ls_err_adopt(&why);
        LS_TRY(st, ls_worker_channel_ask(&now, &rank->config_digest, view_out, &fds), out);
        if (view_out->dismissed)
            goto out;
        ls_fault_reach(view_out->plan.base, view_out->plan.generation);
        ls_task_rendezvous_widen(&view_out->local_rank, &view_out->local_ranks);
        st = ls_fault_pass(LS_FAULT_AT_MEET);
        if (st == LS_OK)
            st = meet((ls_comm_args){.rank = view_out->rank,
                                     .generation = view_out->plan.generation,
                                     .segment_fd = fds.segment,
                                     .listen_fd = rank->listen_fd},
                      fds.members, ls_time_now_ns() + VIEW_S * LS_NS_PER_S, comm);
        close(fds.segment);
        close(fds.members);
    } while (st == LS_EPEER || st == LS_EDEADLINE);
out:
    return st;
}
