/* test_many_agents.c -- some hundreds of agents at one coordinator, over real sockets: they join, get a
 * view, lose one, and get the next. Figures of thousands are bench/agents.c's. */
#include "harness.h"
#include <string.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/many_agents.h"
#include "cluster/jobs.h"
#include "cluster/elect/quorum.h"

enum { AGENTS = 300 };

static many_agents_args how(int agents)
{
    return (many_agents_args){.agents = agents,
                              .processes = 2,
                              .heartbeat_ns = 250 * LS_NS_PER_MS,
                              .suspect_ns =
                                  ls_test_ms(20000), /* a busy machine makes nobody a suspect */
                              .dead_ns = ls_test_ms(60000),
                              .wait_ns = ls_test_ms(50000)};
}

/* A view costs two bytes for each rank to each agent, and no names. */
LS_TEST_SECONDS(many_agents_join_and_change_their_view, 120)
{
    int files = jobs_files(), n = ls_test_times(AGENTS);
    many_agents_args args = how(n);
    many_agents_result r;

    LS_CHECK_OK(many_agents_run(&args, &r));
    LS_CHECK(r.join_s > 0 && r.first_view_s > 0 && r.change_s > 0);
    LS_CHECK(r.joined_bytes < (uint64_t)n * ((uint64_t)n * 14 + 4000));
    LS_CHECK(r.changed_bytes < (uint64_t)n * ((uint64_t)n * 2 + 2000));
    LS_CHECK_EQ(jobs_files(), files);
}

/* More than can vote for a successor do without. */
LS_TEST_SECONDS(many_agents_are_too_many_for_successors, 120)
{
    many_agents_args args = how(LS_QUORUM_NODES);
    many_agents_result r;

    args.failover = true;
    LS_CHECK_OK(many_agents_run(&args, &r));
    LS_CHECK(r.change_s > 0);
}

static char lost[400];

static void keep_lost(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)context;
    if (strstr(line, "was lost"))
        snprintf(lost, sizeof lost, "%s", line);
}

/* One that hangs, with its connection open: others are asked, do not reach it, and it is given
 * up. */
LS_TEST_SECONDS(many_agents_lose_one_that_is_silent, 120)
{
    many_agents_args args = how(20);
    many_agents_result r;

    args.silent = true;
    args.heartbeat_ns = 20 * LS_NS_PER_MS;
    args.suspect_ns = ls_test_ms(500);
    args.dead_ns = ls_test_ms(3000);
    ls_log_set_sink(keep_lost, NULL, LS_LOG_INFO);
    LS_CHECK_OK(many_agents_run(&args, &r));
    LS_CHECK(strstr(lost, "no sign of life for"));
    LS_CHECK(strstr(lost, "do not reach it either"));
    LS_CHECK(r.change_s >= (double)args.dead_ns / 1e9 / 2);
}
