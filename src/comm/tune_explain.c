/* tune_explain.c -- every way of a collective, with its predicted time and the reason why it is
 * taken or not.
 *
 * The rows come from the functions that make the choice: ls_request_way() decides between memory,
 * levels and schedules, ls_tune_choose() between schedules; cost.h predicts the time of each. A
 * table of an all_reduce over two nodes of two ranks reads like this:
 *
 *     direct    memory     -         needs all ranks on one node
 *     levels    levels     143 ms    no way sends fewer bytes between nodes, and it is the cheapest
 *                                    by the model                                    <- chosen
 *     ring      schedule   215 ms    1.50 times the predicted time of levels
 *     tree2     schedule   ...
 *
 * `lineshaft bench comm --explain` prints it. */
#include "comm/tune.h"

#include <stdio.h>
#include <string.h>
#include "comm/tune_impl.h"

static void add_row(ls_tune_table *t, ls_tune_row row, bool chosen)
{
    if (chosen)
        t->chosen = t->count;
    if (row.refuses) {
        row.predicted_ns = -1;
        row.sent = -1;
    }
    t->rows[t->count++] = row;
}

static void add_direct(const ls_comm *c, const ls_coll *coll, ls_way way, ls_tune_table *t)
{
    const ls_cost_query q = {.kind = coll->kind,
                             .ranks = c->ranks,
                             .peer = coll->peer,
                             .count = coll->count,
                             .size = ls_dtype_bytes(coll->type),
                             .in_place = coll->in == coll->out};
    ls_tune_row row = {.way = "direct", .by = "memory"};

    if (c->one_node)
        row.predicted_ns = ls_cost_memory_time(&c->tune.memory, &q);
    else
        row.refuses = "needs all ranks on one node";
    add_row(t, row, way == LS_WAY_DIRECT);
}

static void add_levels(const ls_comm *c, const ls_coll *coll, ls_way way, ls_tune_table *t)
{
    ls_tune_row row = {
        .way = "levels", .by = "levels", .refuses = ls_hierarchical_refuses(c, coll)};

    if (!row.refuses) {
        const ls_cost_nodes nodes = ls_tune_nodes(c);
        ls_cost_levels levels;
        ls_cost_hierarchy(&nodes, coll, false, &levels);
        row.predicted_ns = levels.time_ns;
        row.sent = levels.wire;
    }
    add_row(t, row, way == LS_WAY_LEVELS);
}

static bool is_cheapest(const ls_tune_table *t, int row)
{
    for (int i = 0; i < t->count; i++)
        if (!t->rows[i].refuses && t->rows[i].predicted_ns < t->rows[row].predicted_ns)
            return false;
    return true;
}

/* Why the chosen row is chosen. */
static void explain_chosen(const ls_comm *c, const ls_tune_table *t, const ls_tune_pick *pick,
                           bool gathers, ls_tune_row *row)
{
    bool cheapest = is_cheapest(t, t->chosen);

    switch (t->why) {
    case LS_TUNE_BY_FORCE:
        snprintf(row->reason, sizeof row->reason, "it was asked for");
        break;
    case LS_TUNE_BY_MEASURE:
    case LS_TUNE_BY_MEMORY:
        snprintf(row->reason, sizeof row->reason, "%.0f us when both were timed, %s %.0f us",
                 pick->way_ns / 1e3, pick->other, pick->other_ns / 1e3);
        break;
    case LS_TUNE_BY_RULE:
        snprintf(row->reason, sizeof row->reason, "%s%s",
                 strcmp(row->by, "memory") == 0 ? "it is taken wherever it can be"
                                                : "no way sends fewer bytes between nodes",
                 cheapest ? ", and it is the cheapest by the model" : "");
        break;
    default:
        if (gathers)
            snprintf(row->reason, sizeof row->reason, "no rank knows the counts of the others");
        else if (cheapest)
            snprintf(row->reason, sizeof row->reason, "the cheapest by the model");
        else
            snprintf(row->reason, sizeof row->reason,
                     "the cheapest schedule; levels begin at %lld bytes",
                     (long long)c->links.levels_bytes);
    }
}

/* A reason for each row: refused, taken (and why), slower when timed, or slower by the model. */
static void give_reasons(const ls_comm *c, const ls_tune_pick *pick, bool gathers, ls_tune_table *t)
{
    for (int i = 0; i < t->count; i++) {
        ls_tune_row *row = &t->rows[i];
        const ls_tune_row *taken = t->chosen < 0 ? NULL : &t->rows[t->chosen];
        if (row->refuses)
            snprintf(row->reason, sizeof row->reason, "%s", row->refuses);
        else if (i == t->chosen)
            explain_chosen(c, t, pick, gathers, row);
        else if (pick && strcmp(row->by, "schedule") == 0 && strcmp(row->way, pick->other) == 0)
            snprintf(row->reason, sizeof row->reason, "%.0f us when both were timed",
                     pick->other_ns / 1e3);
        else if (taken && taken->predicted_ns > 0)
            snprintf(row->reason, sizeof row->reason, "%.2f times the predicted time of %s",
                     row->predicted_ns / taken->predicted_ns, taken->way);
        else
            snprintf(row->reason, sizeof row->reason, "there is nothing to move");
    }
}

void ls_tune_explain(const ls_comm *c, const ls_coll *coll, ls_tune_table *table_out)
{
    ls_way way = ls_request_way(c, coll);
    const ls_tune_pick *pick = NULL;
    ls_tune_table *t = table_out;
    ls_cost_choice choice;

    *t = (ls_tune_table){.chosen = -1};
    t->why = ls_tune_choose(c, coll, false, &choice);
    add_direct(c, coll, way, t);
    add_levels(c, coll, way, t);
    for (int i = 0; i < choice.count; i++) {
        const ls_cost_candidate *row = &choice.rows[i];
        add_row(t,
                (ls_tune_row){.way = row->algo->name,
                              .by = "schedule",
                              .refuses = row->refuses,
                              .predicted_ns = row->time_ns,
                              .sent = row->sent},
                way == LS_WAY_EXEC && i == choice.best);
    }
    if (way == LS_WAY_LEVELS && c->force_levels)
        t->why = LS_TUNE_BY_FORCE;
    else if (way == LS_WAY_LEVELS)
        t->why = is_cheapest(t, t->chosen) ? LS_TUNE_BY_MODEL : LS_TUNE_BY_RULE;
    else if (way == LS_WAY_DIRECT)
        t->why = LS_TUNE_BY_RULE;
    if (t->why == LS_TUNE_BY_MEASURE || t->why == LS_TUNE_BY_MEMORY)
        pick = ls_tune_find_pick(c, coll);
    give_reasons(c, pick, coll->kind == LS_COLL_GATHER, t);
}
