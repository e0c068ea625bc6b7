/* cmd_plan.c -- `lineshaft plan`: what a run would do, before it is started.
 *
 * `plan schedule` makes the table of a pipeline, proves it, runs it by the clock and shows it.
 * Costs are those of flags, equal for all stages, or those of a run's model, whose layers are then
 * cut into stages by what they cost. */
#include "cli/plan/cmd_plan.h"

#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "cli/cmds.h"
#include "cli/load_run.h"
#include "cli/term.h"
#include "config/runfile.h"
#include "data/tokenizer/tokenizer.h"
#include "layout/stage_plan.h"

/* A link between hosts, as in comm/cost.h's example: until the first byte is there, and what a
 * message takes of a port beside its bytes. */
static const double alpha_ms = 0.03, message_ms = 0.002;

/* What was asked for. */
typedef struct request {
    ls_pp_schedule_kind kind;
    int64_t ranks, micros, chunks, width;
    double forward, backward, transfer; /* without a run */
    double gflops, gbits;               /* with one; 0: not given */
} request;

typedef struct costs {
    double *forward, *backward, *weight; /* owned: forward holds all three */
    ls_pp_schedule_costs all;
} costs;

ls_status ls_plan_number(const ls_args *args, const char *flag, bool zero, double *number)
{
    const char *text = ls_args_value(args, flag);
    char *end;

    if (!text)
        return LS_OK;
    double x = strtod(text, &end);
    bool none = zero && x <= 0 && x >= 0;
    if (end == text || *end || (!none && !(x >= 1e-9 && x <= 1e15)))
        return ls_fail(LS_EUSAGE, "--%s must be a number from 1e-9 to 1e15%s, not \"%.60s\"", flag,
                       zero ? ", or 0" : "", text);
    *number = x;
    return LS_OK;
}

/* Flags that mean something only with a run file, or only without one. */
static ls_status check_flags(const ls_args *args, bool run)
{
    static const char *const only[2][3] = {{"gflops", "gbits", "set"},
                                           {"forward", "backward", "transfer"}};

    for (int i = 0; i < 3; i++) {
        const char *flag = only[run][i];
        if (!ls_args_has(args, flag))
            continue;
        ls_status st = ls_fail(LS_EUSAGE,
                               run ? "--%s is for a table without a run file"
                                   : "--%s is for the model of a run file",
                               flag);
        ls_err_hint(run ? "With RUN the costs of stages come from its model; leave --%s out."
                        : "Name a run file, as in `lineshaft plan schedule run.yaml`, or leave "
                          "--%s out.",
                    flag);
        return st;
    }
    if (ls_args_has(args, "gbits") && !ls_args_has(args, "gflops")) {
        ls_status st = ls_fail(LS_EUSAGE, "--gbits needs --gflops");
        ls_err_hint("Without --gflops the time of a rank's work is not known, so messages cannot "
                    "be compared with it.");
        return st;
    }
    return LS_OK;
}

static ls_status read_request(const ls_args *args, const ls_run *run, request *r)
{
    const char *name = ls_args_value(args, "schedule");
    int64_t dp = run && run->mesh.dp > 0 ? run->mesh.dp : 1;
    int64_t leaves = run ? run->batch.sequences / run->batch.leaf : 8;
    ls_status st;

    *r = (request){
        .kind = run ? ls_stage_plan_kind(run) : LS_PP_SCHEDULE_1F1B, .forward = 1, .backward = 2};
    for (int k = 0; k < LS_PP_SCHEDULE_KINDS && name; k++)
        if (strcmp(name, ls_pp_schedule_names[k]) == 0)
            r->kind = (ls_pp_schedule_kind)k;
    LS_TRY(st, check_flags(args, run != NULL), out);
    LS_TRY(st, ls_args_number(args, "stages", run ? run->mesh.pp : 4, 1, 4096, &r->ranks), out);
    LS_TRY(st,
           ls_args_number(args, "micro-batches", (leaves + dp - 1) / dp, 1, 1 << 16, &r->micros),
           out);
    int64_t chunks = r->kind != LS_PP_SCHEDULE_INTERLEAVED ? 1
                     : run && run->mesh.chunks > 1         ? run->mesh.chunks
                                                           : 2;
    LS_TRY(st, ls_args_number(args, "chunks", chunks, 1, 256, &r->chunks), out);
    LS_TRY(st, ls_args_number(args, "width", 0, 20, 100000, &r->width), out);
    LS_TRY(st, ls_plan_number(args, "forward", false, &r->forward), out);
    LS_TRY(st, ls_plan_number(args, "backward", false, &r->backward), out);
    LS_TRY(st, ls_plan_number(args, "transfer", true, &r->transfer), out);
    LS_TRY(st, ls_plan_number(args, "gflops", false, &r->gflops), out);
    LS_TRY(st, ls_plan_number(args, "gbits", false, &r->gbits), out);
out:
    return st;
}

/* --- costs ------------------------------------------------------------------------------------
 */

static ls_status costs_init(costs *c, size_t stages)
{
    c->forward = ls_mem_array(3 * stages, sizeof *c->forward);
    if (!c->forward)
        return LS_ENOMEM;
    c->backward = c->forward + stages;
    c->weight = c->backward + stages;
    c->all =
        (ls_pp_schedule_costs){.forward = c->forward, .backward = c->backward, .weight = c->weight};
    return LS_OK;
}

/* Equal stages; half of a backward is for weights. */
static ls_status costs_of_flags(const request *r, costs *c, ls_plan_view *v)
{
    size_t stages = (size_t)(r->ranks * r->chunks);
    const ls_pp_schedule_ask ask = {.kind = r->kind,
                                    .ranks = (int)r->ranks,
                                    .micros = (int)r->micros,
                                    .chunks = (int)r->chunks,
                                    .forward = r->forward,
                                    .backward = r->backward,
                                    .weight = r->backward / 2};
    double work = (double)r->micros * (r->forward + r->backward), idle = ls_pp_schedule_idle(&ask);
    ls_status st = costs_init(c, stages);

    for (size_t s = 0; s < stages && st == LS_OK; s++) {
        c->forward[s] = r->forward / (double)r->chunks;
        c->backward[s] = r->backward / (double)r->chunks;
        c->weight[s] = c->backward[s] / 2;
    }
    c->all.link.message_ns = r->transfer;
    v->unit = "";
    v->formula = r->transfer <= 0 && ls_pp_schedule_is_known(&ask) ? idle / (work + idle) : -1;
    return st;
}

static ls_status model_of(const ls_run *run, ls_model *model)
{
    ls_tokenizer *tok = NULL;
    ls_status st;

    LS_TRY(st, ls_tokenizer_open(&tok, run->data.tokenizer), out);
    st = ls_model_init(model, run, ls_tokenizer_vocab(tok));
out:
    ls_tokenizer_free(tok);
    return st;
}

/* The stages of the run's model. 1e9 operations are 1, or what they take, in ms. */
static ls_status costs_of_run(const request *r, const ls_run *run, costs *c, ls_plan_view *v)
{
    size_t n = (size_t)(r->ranks * r->chunks);
    int64_t cp = ls_max_i64(1, run->mesh.cp); /* ranks of a stage that share each sequence */
    double per = (r->gflops > 0 ? 1e3 / (r->gflops * 1e9) : 1e-9) / (double)cp;
    ls_model model = {.params = NULL};
    ls_status st;

    LS_TRY(st, model_of(run, &model), out);
    v->layers = model.shape.L;
    v->stages = ls_mem_array(n, sizeof *v->stages);
    if (!v->stages) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, ls_stage_split_plan(&model, (int)n, run->batch.leaf, model.shape.T, v->stages), out);
    LS_TRY(st, costs_init(c, n), out);
    for (size_t s = 0; s < n; s++) {
        c->forward[s] = v->stages[s].forward * per;
        c->backward[s] = v->stages[s].backward * per;
        c->weight[s] = v->stages[s].weight * per;
    }
    if (r->gbits > 0) {
        c->all.link = (ls_cost_link){
            .alpha_ns = alpha_ms, .message_ns = message_ms, .ns_per_byte = 8e-6 / r->gbits};
        c->all.bytes = run->batch.leaf * (model.shape.T / cp) * model.shape.C *
                       ls_dtype_bytes(ls_run_compute_type(run));
    }
    v->unit = r->gflops > 0 ? "ms" : "Gop";
    v->formula = -1;
out:
    ls_model_release(&model);
    return st;
}

/* --- the command ------------------------------------------------------------------------------
 */

static ls_status show(const ls_args *args, const request *r, const ls_plan_view *v, ls_str *out)
{
    const char *svg = ls_args_value(args, "svg");
    ls_status st = LS_OK;
    ls_term term;

    ls_term_init(&term, STDOUT_FILENO, args);
    if (svg) {
        ls_plan_svg(v, out);
        LS_TRY(st, ls_str_status(out), out);
        LS_TRY(st, ls_file_write_atomic(svg, out->p, out->len), out);
        ls_str_clear(out);
    }
    if (ls_args_has(args, "json")) {
        ls_plan_json(v, out);
    } else {
        ls_plan_draw(v, r->width > 0 ? (int)r->width : term.tty ? term.width : 0, out);
        ls_str_append_char(out, '\n');
        ls_plan_summary(v, out);
    }
out:
    return st;
}

static void view_release(ls_plan_view *v)
{
    ls_pp_schedule_release(&v->table);
    ls_pp_schedule_times_release(&v->times);
    ls_mem_free(v->peaks);
    ls_mem_free(v->stages);
}

static ls_status run_schedule(const ls_args *args, ls_str *out)
{
    const bool with_run = args->n_rest > 0;
    ls_plan_view v = {.unit = ""};
    costs c = {.forward = NULL};
    ls_run run = {.name = NULL};
    request r;
    ls_status st = LS_OK;

    if (with_run)
        LS_TRY(st, ls_load_run_read(&run, args, args->rest[0]), out);
    LS_TRY(st, read_request(args, with_run ? &run : NULL, &r), out);
    LS_TRY(st, ls_pp_schedule_init(&v.table, r.kind, (int)r.ranks, (int)r.micros, (int)r.chunks),
           out);
    v.peaks = ls_mem_array((size_t)r.ranks, sizeof *v.peaks);
    if (!v.peaks) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, ls_pp_schedule_prove(&v.table, v.peaks), out);
    LS_TRY(st, with_run ? costs_of_run(&r, &run, &c, &v) : costs_of_flags(&r, &c, &v), out);
    LS_TRY(st, ls_pp_schedule_simulate(&v.table, &c.all, &v.times), out);
    st = show(args, &r, &v, out);
out:
    view_release(&v);
    ls_mem_free(c.forward);
    if (with_run)
        ls_runfile_release(&run);
    return st;
}

static const ls_flag schedule_flags[] = {
    {"stages", 0, "N", false, "Ranks that share the layers; 4, or mesh.pp of RUN."},
    {"micro-batches", 0, "N", false,
     "Parts of a rank's batch that go through one after the other; 8, or the leaves of RUN."},
    {"schedule", 0, "gpipe|1f1b|interleaved|zero-bubble", false,
     "The schedule of the ranks; 1f1b, or mesh.schedule of RUN."},
    {"chunks", 0, "N", false,
     "Runs of layers on each rank, for interleaved schedules; 2, or mesh.chunks of RUN."},
    {"forward", 0, "TIME", false, "Time of the forward pass of a micro-batch; 1 unless given."},
    {"backward", 0, "TIME", false,
     "Time of its backward pass; 2 unless given. Zero-bubble schedules split it into halves."},
    {"transfer", 0, "TIME", false, "Time of a message between two ranks; 0 unless given."},
    {"gflops", 0, "N", false,
     "With RUN: speed of a rank, in 1e9 operations a second; times are then ms."},
    {"gbits", 0, "N", false, "With RUN and --gflops: speed of the links between ranks, in Gbit/s."},
    LS_LOAD_RUN_SET_FLAG,
    {"svg", 0, "FILE", false, "Write a picture of the table as well."},
    {"width", 0, "N", false,
     "Break the drawing into pieces of this many columns; the terminal's unless given."},
    {"json", 'j', NULL, false, "Print one JSON object, with every operation's start and end."},
    {.name = NULL},
};

static const ls_command schedule = {
    .name = "schedule",
    .summary = "draw what each rank of a pipeline computes when",
    .arguments = "[RUN]",
    .about =
        "Makes the schedule of a pipeline for all ranks, proves that it is complete and cannot "
        "deadlock, and draws it: a line for each rank, with time running to the right. Below it "
        "stand the time of a step, the share of it in which ranks are idle (the bubble), and the "
        "number of micro-batches whose activations each rank keeps at a time.\n\n"
        "Without RUN all stages cost the same (--forward, --backward). With RUN the layers of its "
        "model, embedding and head included, are divided into stages so that the slowest is as "
        "fast as possible; costs are operations (Gop: 1e9 of them) or, with --gflops, ms.\n\n"
        "Training can run each of these schedules (mesh.pp, mesh.schedule).",
    .examples = "lineshaft plan schedule  # 1F1B, 4 stages, 8 micro-batches\n"
                "lineshaft plan schedule --schedule zero-bubble --stages 8 --micro-batches 32 "
                "--svg zb.svg  # a picture\n"
                "lineshaft plan schedule --schedule interleaved --chunks 2 --forward 1 --backward "
                "2  # two runs of layers a rank\n"
                "lineshaft plan schedule run.yaml --stages 2 --gflops 80 --gbits 1  # layers of a "
                "run, in ms",
    .flags = schedule_flags,
    .run = run_schedule,
};

static const ls_command *const subs[] = {&schedule, &ls_cmd_plan_mesh, NULL};
const ls_command ls_cmd_plan = {
    .name = "plan",
    .summary = "see what a run would do before it is started",
    .about = "Predicts what a run would do, without running anything.",
    .examples = "lineshaft plan schedule --stages 4  # what each stage computes when\n"
                "lineshaft plan mesh run.yaml -n 4  # which mesh is best for four processes",
    .subs = subs,
};
