/* test_view.c -- the rules of membership and recovery, played through without a process. */
#include "harness.h"
#include <signal.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "cluster/member/recovery_policy.h"

static const ls_view_end killed = {.signal = SIGKILL};

static ls_view_end error_of(ls_status code, const char *text, ls_err_record *record)
{
    *record = (ls_err_record){.code = code};
    snprintf(record->text, sizeof record->text, "%s", text);
    return (ls_view_end){.error = record};
}

static void report(ls_view *v, int worker, int64_t have, int64_t reached)
{
    ls_view_reports(v, worker, &(ls_view_report){.have = have, .reached = reached, .met = have});
}

/* The numbers that are kept are those that can be counted. */
static void check_counts(const ls_view *v)
{
    int count[LS_VIEW_STATES] = {0}, joiners = 0;

    for (int i = 0; i < v->workers; i++) {
        count[v->member[i].state]++;
        joiners += v->member[i].state == LS_VIEW_WAITS && v->member[i].joiner;
    }
    for (int i = 0; i < LS_VIEW_STATES; i++)
        LS_CHECK_EQ(v->count[i], count[i]);
    LS_CHECK_EQ(v->waiting_joiners, joiners);
}

/* A job of so many workers that has begun to train. */
static void begin(ls_view *v, int workers, ls_view_rules rules)
{
    ls_view_plan plan;

    ls_view_release(v); /* of the one before */
    LS_CHECK_OK(ls_view_init(v, workers, rules));
    for (int i = 0; i < workers; i++) {
        LS_CHECK(!ls_view_complete(v));
        report(v, i, -1, -1);
    }
    LS_CHECK(ls_view_complete(v));
    LS_CHECK_OK(ls_recovery_policy_next_view(v, &plan));
    LS_CHECK_EQ(plan.generation, 1);
    LS_CHECK_EQ(plan.ranks, workers);
    LS_CHECK_EQ(plan.base, -1);
    LS_CHECK_EQ(plan.source, -1);
    LS_CHECK(!plan.first_new);
    ls_view_set_ready(v, 0);
    LS_CHECK(v->begun);
}

LS_TEST(view_restarts_once_then_goes_on_without)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 4, (ls_view_rules){.restarts = 1, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 2, &killed), LS_VIEW_RESTART);
    report(&v, 0, 7, 7);
    report(&v, 1, 8, 8);
    report(&v, 3, 7, 7);
    LS_CHECK(!ls_view_complete(&v)); /* the new one has not come */
    report(&v, 2, -1, -1);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.generation, 2);
    LS_CHECK_EQ(plan.base, 8); /* the highest, nobody rolls back */
    LS_CHECK_EQ(plan.source, 1);
    LS_CHECK(plan.spread);
    LS_CHECK_EQ(plan.met, 7);
    LS_CHECK_EQ(plan.restarted, 1);
    LS_CHECK_EQ(plan.lost, 0);
    LS_CHECK(!plan.first_new);

    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 2, &killed), LS_VIEW_DROP);
    for (int i = 0; i < 4; i++)
        if (i != 2)
            report(&v, i, 9, 9);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 3);
    LS_CHECK_EQ(v.member[3].rank, 2); /* they are numbered anew */
    LS_CHECK_EQ(v.member[2].rank, -1);
    LS_CHECK(!plan.spread); /* all have the step */
    LS_CHECK_EQ(plan.met, 9);
    ls_view_release(&v);
}

LS_TEST(view_does_again_what_a_lost_first_rank_may_not_have_done)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 3, (ls_view_rules){.restarts = 0, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_DROP);
    report(&v, 1, 5, 5);
    report(&v, 2, 5, 5);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK(plan.first_new);
    LS_CHECK_EQ(plan.met, 4);
    LS_CHECK_EQ(v.member[1].rank, 0);
    LS_CHECK_EQ(plan.source, 0);
    ls_view_release(&v);
}

/* A first rank that never came to train does not know what the one before it told. */
LS_TEST(view_remembers_a_lost_first_rank_until_another_is_ready)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 3, (ls_view_rules){.restarts = 1, .least = 1});
    ls_view_set_ready(&v, 0);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_RESTART);
    for (int generation = 2; generation < 4; generation++) { /* 2 comes to nothing */
        if (generation == 3)
            LS_CHECK_EQ(ls_recovery_policy_decide(&v, 2, &killed), LS_VIEW_RESTART);
        report(&v, 0, -1, -1);
        report(&v, 1, 5, 5);
        report(&v, 2, generation == 3 ? -1 : 5, generation == 3 ? -1 : 5);
        LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
        LS_CHECK(plan.first_new);
        LS_CHECK_EQ(plan.met, 4);
    }
    ls_view_set_ready(&v, 0);
    for (int i = 0; i < 3; i++)
        report(&v, i, 6, 6);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK(!plan.first_new);
    LS_CHECK_EQ(plan.met, 6);
    ls_view_release(&v);
}

LS_TEST(view_survives_losses_while_it_is_made)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 4, (ls_view_rules){.restarts = 1, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed), LS_VIEW_RESTART);
    report(&v, 0, 3, 3);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed),
                LS_VIEW_RESTART); /* one that had reported */
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed), LS_VIEW_DROP); /* the new one */
    report(&v, 2, -1, 3);
    report(&v, 3, 2, 3);
    report(&v, 0, -1, -1);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.generation, 2);
    LS_CHECK_EQ(plan.ranks, 3);
    LS_CHECK_EQ(plan.base, 2); /* of those who are alive */
    LS_CHECK_EQ(plan.source, 2);
    LS_CHECK_EQ(plan.reached, 3);
    LS_CHECK(plan.first_new);
    LS_CHECK_EQ(plan.restarted, 2);
    LS_CHECK_EQ(plan.lost, 1);
    ls_view_release(&v);
}

LS_TEST(view_stops_at_too_few_ranks)
{
    ls_view v = {.workers = 0};

    begin(&v, 3, (ls_view_rules){.restarts = 0, .least = 2});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_DROP);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed), LS_VIEW_STOP);
    begin(&v, 1, (ls_view_rules){.restarts = 0, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_STOP);
    ls_view_release(&v);
}

/* --- ranks that hold one model between them --------------------------------------------------- */

static void report_part(ls_view *v, int worker, int part)
{
    ls_view_reports(
        v, worker,
        &(ls_view_report){.have = -1, .reached = 5 + (int64_t)v->generation, .part = part});
}

/* Two models of two parts; one of a part is lost for good: the other one of it must be in. */
LS_TEST(view_keeps_a_rank_of_each_part)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 4, (ls_view_rules){.restarts = 0, .least = 1, .unit = 2});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 2, &killed), LS_VIEW_DROP);
    report_part(&v, 0, 1);
    report_part(&v, 1, 1);
    LS_CHECK(!ls_view_complete(&v));
    report_part(&v, 3, 2);
    LS_CHECK(ls_view_complete(&v));
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 2);
    LS_CHECK_EQ(v.member[0].rank, 0);
    LS_CHECK_EQ(v.member[1].rank, -1); /* a spare */
    LS_CHECK_EQ(v.member[1].state, LS_VIEW_WAITS);
    LS_CHECK_EQ(v.member[3].rank, 1);
    LS_CHECK(!ls_view_complete(&v));
    /* The spare takes the place of the next one. */
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_DROP);
    report_part(&v, 3, 2);
    LS_CHECK(ls_view_complete(&v));
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 2);
    LS_CHECK_EQ(v.member[1].rank, 0);
    LS_CHECK_EQ(v.member[3].rank, 1);
    /* And there are not enough for a model then. */
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed), LS_VIEW_STOP);
    ls_view_release(&v);
}

/* Ranks that share sequences have whole states: those that have come farthest are in. */
LS_TEST(view_keeps_the_ranks_that_came_farthest)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 4, (ls_view_rules){.restarts = 1, .least = 1, .unit = 2});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_RESTART);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_DROP);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed), LS_VIEW_RESTART);
    report(&v, 1, -1, -1);
    report(&v, 2, 7, 7);
    report(&v, 3, 8, 8);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 2);
    LS_CHECK_EQ(plan.base, 8);
    LS_CHECK_EQ(plan.source, 1);
    LS_CHECK_EQ(v.member[1].rank, 0); /* then in order */
    LS_CHECK_EQ(v.member[2].rank, -1);
    LS_CHECK_EQ(v.member[3].rank, 1);
    /* Before the others train the spare's state is as good as ever; then it is behind. */
    LS_CHECK_EQ(v.member[2].report.have, 7);
    ls_view_set_ready(&v, 3);
    LS_CHECK_EQ(v.member[2].report.have, 7);
    ls_view_set_ready(&v, 1);
    LS_CHECK_EQ(v.member[2].report.have, -1);
    ls_view_release(&v);
}

/* Where ranks choose their mesh, reports tell how many of them belong together. */
LS_TEST(view_hears_how_many_belong_together)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 4, (ls_view_rules){.restarts = 0, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 3, &killed), LS_VIEW_DROP);
    for (int i = 0; i < 3; i++)
        ls_view_reports(&v, i, &(ls_view_report){.have = 5, .reached = 5, .met = 5, .unit = 2});
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 2);
    LS_CHECK_EQ(ls_view_least(&v), 2);
    ls_view_release(&v);

    begin(&v, 2, (ls_view_rules){.restarts = 0, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed),
                LS_VIEW_DROP); /* nobody has said so yet */
    ls_view_reports(&v, 0, &(ls_view_report){.have = 5, .reached = 5, .met = 5, .unit = 2});
    LS_CHECK_FAILS(ls_recovery_policy_next_view(&v, &plan), LS_EFAIL,
                   "1 rank is left, but one replica of the model needs 2");
    ls_view_release(&v);
}

LS_TEST(view_lets_spares_be_when_the_work_is_done)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 3, (ls_view_rules){.restarts = 0, .least = 1, .unit = 2}); /* refused by the ranks */
    for (int i = 0; i < 3; i++)
        report_part(&v, i, i < 2 ? i + 1 : 0);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 2);
    ls_view_set_left(&v, 0);
    ls_view_set_left(&v, 1);
    LS_CHECK(!ls_view_complete(&v));
    ls_view_release(&v);
}

/* Joiners are called in when they make another whole model, with spares or without. */
LS_TEST(view_takes_guests_in_by_whole_models)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 2, (ls_view_rules){.restarts = 0, .least = 1, .unit = 2});
    int first = ls_view_add(&v, 1, false);
    report(&v, first, -1, -1);
    LS_CHECK(!ls_view_has_guests(&v));
    int second = ls_view_add(&v, 1, false);
    report(&v, second, -1, -1);
    LS_CHECK(ls_view_has_guests(&v));
    report_part(&v, 0, 1);
    report_part(&v, 1, 2);
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    LS_CHECK_EQ(plan.ranks, 4);
    LS_CHECK_EQ(plan.joined, 2);
    ls_view_release(&v);
}

LS_TEST(view_does_not_restart_when_asked_to_stop)
{
    const ls_view_end asked = {.signal = SIGKILL, .asked = true};
    ls_view v = {.workers = 0};

    begin(&v, 2, (ls_view_rules){.restarts = 5, .least = 2});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &asked),
                LS_VIEW_DROP); /* the other one can still save */
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &asked), LS_VIEW_STOP);
    ls_view_release(&v);
}

LS_TEST(view_knows_what_cannot_heal)
{
    static const struct {
        ls_status code;
        bool begun;
        ls_view_verdict verdict;
    } cases[] = {
        {LS_EUSAGE, true, LS_VIEW_STOP},       {LS_EDATA, true, LS_VIEW_STOP},
        {LS_ENUMERIC, true, LS_VIEW_STOP},     {LS_EBUSY, true, LS_VIEW_STOP},
        {LS_EPEER, true, LS_VIEW_STOP},        {LS_EIO, true, LS_VIEW_RESTART},
        {LS_ENOMEM, true, LS_VIEW_RESTART},    {LS_EFAIL, true, LS_VIEW_RESTART},
        {LS_EIO, false, LS_VIEW_STOP},         {LS_ENOMEM, false, LS_VIEW_STOP},
        {LS_EDEADLINE, true, LS_VIEW_RESTART},
    };
    ls_err_record record;
    ls_view v = {.workers = 0};

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        begin(&v, 2, (ls_view_rules){.restarts = 1, .least = 1});
        v.begun = cases[i].begun;
        ls_view_end how = error_of(cases[i].code, "it broke", &record);
        LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &how), cases[i].verdict);
    }
    begin(&v, 2, (ls_view_rules){.restarts = 1, .least = 1});
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &(ls_view_end){.signal = SIGPIPE}), LS_VIEW_STOP);
    begin(&v, 2, (ls_view_rules){.restarts = 1, .least = 1});
    ls_view_set_left(&v, 1);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &killed), LS_VIEW_DROP); /* the work was done */
    begin(&v, 2, (ls_view_rules){.restarts = 1, .least = 1});
    ls_view_set_left(&v, 1);
    ls_view_end end = error_of(LS_EIO, "it broke", &record);
    LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &end), LS_VIEW_STOP);
    ls_view_release(&v);
}

LS_TEST(view_gives_up_what_fails_twice_in_the_same_place)
{
    ls_err_record record;
    ls_view_end end = error_of(LS_EIO, "the disk is full", &record);
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    for (int progress = 0; progress < 2; progress++) {
        begin(&v, 2, (ls_view_rules){.restarts = 9, .least = 1});
        LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &end), LS_VIEW_RESTART);
        report(&v, 0, -1, -1);
        report(&v, 1, 4, 4);
        LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
        LS_CHECK_EQ(ls_recovery_policy_decide(&v, 0, &end), LS_VIEW_RESTART);
        report(&v, 0, -1, -1);
        report(&v, 1, 4 + progress, 4 + progress);
        LS_CHECK_EQ(ls_recovery_policy_next_view(&v, &plan), progress ? LS_OK : LS_ENORETRY);
        LS_CHECK(progress || strstr(ls_err_last()->text, "twice after step 4: the disk is full"));
    }
    ls_view_release(&v);
}

LS_TEST(view_gives_up_after_three_without_a_step)
{
    ls_view_plan plan;
    ls_view v = {.workers = 0};

    begin(&v, 2, (ls_view_rules){.restarts = 9, .least = 1});
    for (int i = 0; i < 4; i++) {
        LS_CHECK_EQ(ls_recovery_policy_decide(&v, 1, &killed), LS_VIEW_RESTART);
        report(&v, 0, 6, 6);
        report(&v, 1, -1, -1);
        LS_CHECK_EQ(ls_recovery_policy_next_view(&v, &plan), i < 3 ? LS_OK : LS_ENORETRY);
    }
    LS_CHECK(strstr(ls_err_last()->text, "step 7 was never done"));
    ls_view_release(&v);
}

/* Random ends and reports in any order: a view has all who are alive, once each, generations grow
 * by one, and the base is the highest that a member has. */
LS_TEST(view_holds_its_promises_in_any_order)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        ls_view_rules rules = {.restarts = (int)(seed % 4), .least = 1 + (int)(seed % 2)};
        uint64_t generation = 0;
        uint32_t at = 0;
        int64_t step = 0;
        int n = 1 + (int)(seed % 7);
        ls_view v;

        LS_CHECK_OK(ls_view_init(&v, n, rules));
        for (int event = 0; event < 60; event++) {
            ls_rng_block dice = ls_rng_philox((ls_rng_key){{(uint32_t)seed, 1}}, at++, 0, 0, 0);
            int w = (int)(dice.v[0] % (uint32_t)n);
            ls_view_state state = v.member[w].state;
            if (state == LS_VIEW_OUT)
                continue;
            if (dice.v[1] % 8 && (state == LS_VIEW_AWAY || state == LS_VIEW_IN)) {
                report(&v, w, state == LS_VIEW_AWAY ? -1 : step, step);
                step++;
            } else if (ls_recovery_policy_decide(&v, w, &killed) == LS_VIEW_STOP) {
                break;
            }
            if (!ls_view_complete(&v))
                continue;
            ls_view_plan plan;
            int64_t best = -1;
            int ranks = 0;
            if (ls_recovery_policy_next_view(&v, &plan) != LS_OK)
                break;
            LS_CHECK_EQ(plan.generation, ++generation);
            for (int i = 0; i < n; i++) {
                bool in = v.member[i].state == LS_VIEW_IN;
                LS_CHECK(in || v.member[i].state == LS_VIEW_OUT);
                LS_CHECK_EQ(v.member[i].rank, in ? ranks : -1);
                ranks += in;
                if (in && v.member[i].report.have > best)
                    best = v.member[i].report.have;
            }
            LS_CHECK_EQ(plan.ranks, ranks);
            LS_CHECK_EQ(plan.base, best);
            LS_CHECK_EQ(plan.source >= 0, best >= 0);
            check_counts(&v);
        }
        ls_view_release(&v);
    }
}

LS_TEST(view_grows_and_loses_many_nodes)
{
    enum { NODES = 3000, EACH = 4 };
    ls_view_plan plan;
    ls_view v;

    LS_CHECK_OK(ls_view_init(&v, 0, (ls_view_rules){.least = 1}));
    for (int i = 0; i < NODES; i++) {
        LS_CHECK_OK(ls_view_reserve(&v, v.workers + EACH));
        LS_CHECK_EQ(ls_view_add(&v, EACH, i % 2 == 0), i * EACH);
        if (i % 5)
            report(&v, i * EACH, 3, 3);
    }
    check_counts(&v);
    LS_CHECK(!ls_view_complete(&v));
    for (int i = 0; i < NODES / 2; i++) { /* half of the nodes are gone */
        LS_CHECK_EQ(v.workers, (NODES - i) * EACH);
        ls_view_remove(&v, (NODES / 2 - 1 - i) * EACH, EACH);
    }
    check_counts(&v);
    for (int i = 0; i < v.workers; i++)
        report(&v, i, 3, 3);
    check_counts(&v);
    LS_CHECK(ls_view_complete(&v));
    LS_CHECK_OK(ls_recovery_policy_next_view(&v, &plan));
    check_counts(&v);
    LS_CHECK_EQ(plan.ranks, NODES / 2 * EACH);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_view_reserve(&v, LS_VIEW_WORKERS), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_EQ(v.workers, NODES / 2 * EACH); /* as it was */
    ls_view_release(&v);
}
