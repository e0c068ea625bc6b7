/* test_quorum.c -- which node follows a coordinator that is lost: cuts and crashes by hand, and thousands
 * of random ones (quorum_sim.h). */
#include "harness.h"
#include <string.h>
#include "base/time.h"
#include "cluster/quorum_sim.h"

static bool trains(int node)
{
    return sim_duty_at(node, sim_now_ns()) == SIM_TRAIN;
}

static uint64_t generation(int node)
{
    return sim_node(node)->runs;
}

static int members(int node)
{
    return sim_node(node)->promise.view.n;
}

static void begin(int n)
{
    sim_begin(n);
    sim_run(1000);
    LS_CHECK_EQ(sim_leader(), 0);
    for (int i = 0; i < n; i++)
        LS_CHECK(trains(i) && generation(i) == 1);
}

LS_TEST(quorum_half_is_enough_with_the_first)
{
    LS_CHECK(!ls_quorum_enough(0, 3, false));
    LS_CHECK(ls_quorum_enough(2, 3, false) && !ls_quorum_enough(1, 3, true));
    LS_CHECK(ls_quorum_enough(1, 2, true) && !ls_quorum_enough(1, 2, false));
    LS_CHECK(ls_quorum_enough(2, 4, true) && !ls_quorum_enough(2, 4, false));
}

/* Any two sets that are enough have a node in common: the tie-break changes nothing in that. */
LS_TEST(quorum_two_sets_that_are_enough_always_meet)
{
    for (int n = 1; n <= 7; n++)
        for (unsigned a = 0; a < 1u << n; a++)
            for (unsigned b = 0; b < 1u << n; b++) {
                bool enough_a = ls_quorum_enough(__builtin_popcount(a), n, a & 1);
                bool enough_b = ls_quorum_enough(__builtin_popcount(b), n, b & 1);
                LS_CHECK(!enough_a || !enough_b || (a & b));
            }
}

LS_TEST(quorum_majority_goes_on_and_a_cut_off_node_stops)
{
    begin(4);
    sim_cut(1u << 3);
    sim_run(2000);
    LS_CHECK(trains(3) && generation(0) == 1); /* suspected only */
    sim_run(2500);
    LS_CHECK(!trains(3) && generation(0) == 2 && members(0) == 3);
    LS_CHECK(trains(0) && trains(1) && trains(2) && generation(2) == 2);
    LS_CHECK_EQ(sim_leader(), 0);
    sim_run(20000);
    LS_CHECK_EQ(sim_duty_at(3, sim_now_ns()), SIM_STOP);
    sim_cut(0); /* it is back in time, and is taken in */
    sim_run(8000);
    LS_CHECK(trains(3) && generation(3) == 3 && members(0) == 4);
    LS_CHECK_EQ(sim_leader(), 0); /* nobody was disturbed by it */
    LS_CHECK_EQ(sim_node(0)->promise.term, 1);
    LS_CHECK(!sim_broken());
}

LS_TEST(quorum_cut_off_node_leaves_after_a_minute)
{
    begin(3);
    sim_cut(1u << 2);
    sim_run(59000);
    LS_CHECK_EQ(sim_duty_at(2, sim_now_ns()), SIM_STOP);
    int64_t later_ns = sim_now_ns() + 3 * LS_NS_PER_S;
    LS_CHECK_EQ(sim_duty_at(2, later_ns), SIM_LEAVE);
}

LS_TEST(quorum_coordinator_in_the_minority_is_followed)
{
    begin(5);
    sim_cut(3); /* it and another one */
    sim_run(5000);
    int leader = sim_leader();
    LS_CHECK(leader >= 2 && leader < 5); /* the old one has given up, and nobody beside */
    LS_CHECK(!trains(0) && !trains(1));
    sim_run(2000);
    LS_CHECK(generation(leader) == 2 && members(leader) == 3);
    LS_CHECK_EQ(leader, 2); /* the first successor that is there */
    for (int i = 2; i < 5; i++)
        LS_CHECK(trains(i) && generation(i) == 2);
    sim_cut(0);
    sim_run(8000);
    for (int i = 0; i < 5; i++)
        LS_CHECK(trains(i) && generation(i) == generation(2) && members(i) == 5);
    LS_CHECK(!sim_broken());
}

LS_TEST(quorum_successor_comes_within_five_seconds)
{
    for (int n = 3; n <= 7; n++) {
        begin(n);
        sim_crash(0, 1000000);
        sim_run(3000);
        int leader = sim_leader();
        LS_CHECK(leader > 0);
        for (int i = 1; i < n; i++) /* the step loop does not wait for a coordinator */
            LS_CHECK(trains(i) && generation(i) == 1);
        sim_run(2500);
        LS_CHECK(generation(leader) == 2 && members(leader) == n - 1 && trains(leader));
        LS_CHECK(!sim_broken());
    }
}

LS_TEST(quorum_coordinator_that_comes_back_costs_no_generation)
{
    begin(3);
    sim_crash(0, 300); /* its process is started again, and has its journal */
    sim_run(6000);
    LS_CHECK(sim_leader() >= 0);
    for (int i = 0; i < 3; i++)
        LS_CHECK(trains(i) && generation(i) == 1 && members(i) == 3);
    LS_CHECK(sim_node(0)->promise.term > 1); /* votes were given */
}

LS_TEST(quorum_of_two_the_coordinators_side_goes_on)
{
    begin(2);
    sim_cut(1);
    sim_run(5000);
    LS_CHECK(trains(0) && generation(0) == 2 && members(0) == 1);
    LS_CHECK(!trains(1) && generation(1) == 1);
    sim_run(10000);
    LS_CHECK_EQ(sim_leader(), 0);
    begin(2);
    sim_crash(0, 10000); /* alone the other one does nothing; with it they go on */
    sim_run(9000);
    LS_CHECK(!trains(1) && sim_leader() == -1);
    sim_run(6000);
    LS_CHECK(trains(0) && trains(1) && !sim_broken());
}

LS_TEST(quorum_of_four_cut_in_halves_one_goes_on)
{
    begin(4);
    sim_cut(3);
    sim_run(6000);
    LS_CHECK(trains(0) && trains(1) && generation(0) == 2 && members(0) == 2);
    LS_CHECK(!trains(2) && !trains(3) && sim_leader() == 0);
    LS_CHECK(!sim_broken());
}

LS_TEST(quorum_one_way_silence_makes_one_generation)
{
    begin(4);
    sim_silence(0, 3); /* 3 does not hear the coordinator; all others do */
    sim_run(10000);
    LS_CHECK_EQ(sim_leader(), 0);
    LS_CHECK_EQ(sim_node(0)->promise.term, 1); /* nobody votes while the coordinator is heard */
    LS_CHECK(!trains(3) && generation(0) == 2);
    begin(4);
    sim_silence(3, 0); /* and the other way round */
    sim_run(5000);
    LS_CHECK(sim_leader() == 0 && members(0) == 3 && generation(0) == 2);
    LS_CHECK(!sim_broken());
}

LS_TEST(quorum_only_the_coordinator_offers_a_view)
{
    begin(3);
    ls_quorum *q = sim_node(0);

    LS_CHECK_FAILS(ls_quorum_offer(sim_node(1), &(uint64_t){2}, 1, sim_now_ns()), LS_EBUSY,
                   "this node is not the coordinator");
    sim_cut(1);
    sim_run(6500);
    LS_CHECK(sim_leader() > 0);
    LS_CHECK_FAILS(ls_quorum_offer(q, &(uint64_t){1}, 1, sim_now_ns()), LS_EBUSY,
                   "this node is not the coordinator");
    LS_CHECK(!sim_broken());
}

LS_TEST(quorum_promises_travel_and_damage_is_seen)
{
    static ls_quorum_promise p, got;
    ls_str bytes, again;

    p = (ls_quorum_promise){.self = 7, .term = 1ull << 40, .voted = 9};
    p.view = (ls_quorum_view){.generation = 3, .made = 5, .held = true, .n = 2};
    p.view.n_base = 3;
    p.view.member[1] = UINT64_MAX;
    p.view.base[2] = 11;
    ls_str_init(&bytes);
    ls_str_init(&again);
    ls_quorum_encode(&p, &bytes);
    LS_CHECK_OK(ls_quorum_decode(&got, bytes.p, bytes.len));
    ls_quorum_encode(&got, &again);
    LS_CHECK(bytes.len == again.len && memcmp(bytes.p, again.p, bytes.len) == 0);
    LS_CHECK(got.view.member[1] == UINT64_MAX && got.view.base[2] == 11);
    for (size_t n = 0; n < bytes.len; n++)
        LS_CHECK_EQ(ls_quorum_decode(&got, bytes.p, n), LS_EDATA);
    ls_str_append_char(&bytes, 0);
    LS_CHECK_EQ(ls_quorum_decode(&got, bytes.p, bytes.len), LS_EDATA);
    ls_str_release(&bytes);
    ls_str_release(&again);
}

LS_TEST(quorum_messages_travel_and_damage_is_seen)
{
    static ls_quorum_view view, got_view;
    ls_quorum_message m = {.kind = LS_QUORUM_BEAT,
                           .from = 1,
                           .to = UINT64_MAX,
                           .term = 4,
                           .made = 3,
                           .generation = 2,

                           .held = true,
                           .round = 77,
                           .age_ns = 5,
                           .yes = true,
                           .trial = true,
                           .leader = 9};
    ls_quorum_message got;
    ls_str bytes;

    view = (ls_quorum_view){.generation = 2, .made = 3, .n = 1, .n_base = 1};
    view.member[0] = 12;
    view.base[0] = 13;
    ls_str_init(&bytes);
    for (int with = 0; with < 2; with++) {
        m.view = with ? &view : NULL;
        ls_str_clear(&bytes);
        ls_quorum_encode_message(&m, &bytes);
        LS_CHECK_OK(ls_quorum_decode_message(&got, &got_view, bytes.p, bytes.len));
        LS_CHECK(got.kind == m.kind && got.from == 1 && got.to == UINT64_MAX && got.term == 4);
        LS_CHECK(got.made == 3 && got.generation == 2 && got.held);
        LS_CHECK(got.round == 77 && got.age_ns == 5 && got.yes && got.trial && got.leader == 9);
        LS_CHECK(!with == !got.view);
        if (with)
            LS_CHECK(got.view->member[0] == 12 && got.view->base[0] == 13);
        for (size_t n = 0; n < bytes.len; n++)
            LS_CHECK_EQ(ls_quorum_decode_message(&got, &got_view, bytes.p, n), LS_EDATA);
    }
    bytes.p[0] = 6; /* no such kind */
    LS_CHECK_EQ(ls_quorum_decode_message(&got, &got_view, bytes.p, bytes.len), LS_EDATA);
    ls_str_release(&bytes);
}

/* LINESHAFT_SIM_SEEDS: how many; the first is LINESHAFT_SIM_FIRST. */
static uint64_t number_of(const char *name, uint64_t preset)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 10) : preset;
}

LS_TEST_SECONDS(sim_holds_for_every_seed, 900)
{
    uint64_t first = number_of("LINESHAFT_SIM_FIRST", 1);
    uint64_t seeds = number_of("LINESHAFT_SIM_SEEDS", (uint64_t)ls_test_times(10000));
    sim_result sum = {0}, r;

    for (uint64_t seed = first; seed < first + seeds; seed++) {
        const char *broken = sim_play(seed, false, &r);
        if (broken)
            ls_test_fail(__FILE__, __LINE__, "seed %llu: %s", (unsigned long long)seed, broken);
        sum.leaders += r.leaders;
        sum.views += r.views;
        sum.crashes += r.crashes;
        sum.cuts += r.cuts;
    }
    /* Something must have happened: otherwise nothing was tested. */
    LS_CHECK(sum.crashes > (int)seeds && sum.cuts > (int)seeds);
    LS_CHECK(sum.leaders > 2 * (int)seeds && sum.views > 2 * (int)seeds);
    if (getenv("LINESHAFT_SIM_SEEDS"))
        printf("%llu seeds: %d coordinators, %d views, %d crashes, %d cuts\n",
               (unsigned long long)seeds, sum.leaders, sum.views, sum.crashes, sum.cuts);
}

LS_TEST_SECONDS(sim_finds_promises_that_are_forgotten, 300)
{
    sim_result r;
    int found = 0;

    for (uint64_t seed = 1; seed <= 5000 && !found; seed++) {
        const char *broken = sim_play(seed, true, &r);
        found += broken && strstr(broken, "two ");
    }
    LS_CHECK(found > 0);
}
