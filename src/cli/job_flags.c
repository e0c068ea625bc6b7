/* job_flags.c -- parsing only: what comes out is launch/job.h's. */
#include "cli/job_flags.h"

#include "base/time.h"

void ls_job_flags_notice(const char *text)
{
    fprintf(stderr, "lineshaft: %s\n", text);
}

ls_status ls_job_flags_nodes(const ls_args *args, ls_launch_nodes *nodes_out)
{
    ls_status st = LS_OK;
    bool several = ls_args_has(args, "secret") || ls_args_has(args, "nodes");
    ls_launch_nodes nodes = {.listen = ls_args_value(args, "listen"),
                             .join = ls_args_value(args, "join"),
                             .secret = ls_args_value(args, "secret"),
                             .secret_fd = -1,
                             .quiet = ls_args_has(args, "quiet"),
                             .notice = ls_job_flags_notice};

    if (nodes.listen && nodes.join)
        return ls_fail(LS_EUSAGE, "--listen is for the first node, --join for the others");
    if (nodes.join && ls_args_has(args, "nodes"))
        return ls_fail(LS_EUSAGE, "--nodes goes with --listen: the first node decides");
    if (several && !nodes.join && !nodes.listen)
        return ls_fail(LS_EUSAGE, "--nodes and --secret go with --listen or --join");
    LS_TRY(st, ls_args_number(args, "nodes", 2, 1, LS_MEMBERS_NODES, &nodes.nodes), out);
    LS_TRY(st, ls_args_number(args, "wait", 300, 1, 86400, &nodes.wait_s), out);
    *nodes_out = nodes;
out:
    return st;
}

ls_status ls_job_flags_read(const ls_args *args, int ranks, ls_job_args *job_out)
{
    ls_status st;
    int64_t n;

    LS_TRY(st, ls_args_number(args, "ranks", ranks, 1, LS_NODE_MEMORY_RANKS, &n), out);
    LS_TRY(st, ls_job_flags_nodes(args, &job_out->nodes), out);
    job_out->ranks = (int)n;
out:
    return st;
}

ls_status ls_job_flags_agent(const ls_args *args, int64_t ranks, ls_agent_args *agent)
{
    int64_t n, grace;
    ls_status st;

    LS_TRY(st, ls_args_number(args, "ranks", ranks, 0, 1 << 20, &n), out);
    LS_TRY(st, ls_args_number(args, "grace", LS_AGENT_GRACE_S, 1, 86400, &grace), out);
    agent->workers = (int)n;
    agent->log_dir = ls_args_value(args, "log-dir");
    agent->grace_ns = grace * LS_NS_PER_S;
out:
    return st;
}
