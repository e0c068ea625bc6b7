/* cmd_plan.h -- what the parts of `plan schedule` share: a schedule with its times, to be shown. */
#pragma once
#include "cli/command.h"
#include "layout/pp_schedule.h"
#include "layout/stage_split.h"

/* A number that costs can be made of, from a flag that may be left out; zero: none may be said too.
 */
ls_status ls_plan_number(const ls_args *args, const char *flag, bool zero, double *number);

extern const ls_command ls_cmd_plan_mesh;

typedef struct ls_plan_view {
    ls_pp_schedule table;       /* owned */
    ls_pp_schedule_times times; /* owned */
    int *peaks;                 /* owned; [ranks] */
    ls_stage *stages;           /* owned; of a run's model, [ranks * chunks]; else NULL */
    int64_t layers;             /* of that model */
    const char *unit;           /* of all times: "ms", "Gop", or "" */
    double formula;             /* share of a step that ranks idle by the formula; -1: not known */
} ls_plan_view;

/* The table for people: time runs to the right, a line for each rank, in pieces of this many
 * columns (0: one piece). */
void ls_plan_draw(const ls_plan_view *view, int width, ls_str *out);

/* The totals: the step, its bubble, and for each rank its layers, work and memory. */
void ls_plan_summary(const ls_plan_view *view, ls_str *out);

void ls_plan_svg(const ls_plan_view *view, ls_str *out);
void ls_plan_json(const ls_plan_view *view, ls_str *out);
