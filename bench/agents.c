/* agents.c -- many agents at one coordinator: how long they take to join, how long until all know
 * the view without one that is lost, and what that costs the coordinator.
 *
 *   make build/release/bench-agents && build/release/bench-agents [AGENTS] [silent]
 *
 * tests/cluster/many_agents.h says what is played. The lost agent closes its connection, which is how a
 * dead process looks; "silent": it stays connected and says nothing, which is how a dead machine
 * looks, and is noticed after heal.dead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../tests/cluster/many_agents.h"
#include "base/log.h"
#include "base/time.h"
#include "cluster/member/members.h"

enum { MOST = LS_MEMBERS_NODES - 1, EACH = 2500, WAIT_S = 300 };

/* All agents share the cores of one machine here, and some may have to wait for theirs for longer
 * than a machine of its own may be silent. An agent that hangs up is noticed in any case. */
enum { CALM_S = 60 };

static void drop_line(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 10000;
    bool silent = argc > 2 && strcmp(argv[2], "silent") == 0;
    many_agents_result r;

    if (n < 2 || n > MOST || (argc > 2 && !silent)) {
        fprintf(stderr, "usage: bench-agents [2 to %d agents] [silent]\n", MOST);
        return 2;
    }
    ls_log_set_sink(drop_line, NULL, LS_LOG_ERROR);
    const many_agents_args args = {.agents = n,
                             .processes = n < 2 * EACH ? 2 : (n + EACH - 1) / EACH,
                             .silent = silent,
                             .heartbeat_ns = LS_NS_PER_S / 4, /* as heal.heartbeat, suspect and dead are */
                             .suspect_ns = LS_NS_PER_S,
                             .dead_ns = (silent ? 3 : CALM_S) * LS_NS_PER_S,
                             .wait_ns = WAIT_S * LS_NS_PER_S};
    if (many_agents_run(&args, &r) != LS_OK) {
        fprintf(stderr, "agents: %s\n%s\n", ls_err_last()->text, ls_err_last()->hint);
        return 1;
    }
    printf("agents                        %d in %d processes\n", n, args.processes);
    printf("join, with list of members    %.3f s\n", r.join_s);
    printf("first view known by all       %.3f s later\n", r.first_view_s);
    printf("one lost (%s): next view known by all after %.3f s\n", silent ? "silent" : "hung up",
           r.change_s);
    printf("coordinator's memory          %.1f MB at most, %.1f MB before\n", r.peak_mb,
           r.before_mb);
    printf("coordinator's processor time  %.2f s, %.2f s of them for the change\n", r.cpu_s,
           r.change_cpu_s);
    printf("coordinator sent              %.1f MB until the first view, %.1f MB for the change\n",
           (double)r.joined_bytes / 1e6, (double)r.changed_bytes / 1e6);
    return 0;
}
