/* cmd_plan_mesh.c -- `lineshaft plan mesh`: what mesh: auto would choose, without running anything.
 */
#include "cli/plan/cmd_plan.h"

#include <unistd.h>
#include "base/json.h"
#include "cli/load_run.h"
#include "cli/term.h"
#include "comm/tune.h"
#include "config/runfile.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/mesh_choice.h"

/* What the ranks would find: the flags, and for what they do not say this machine. */
static ls_status read_facts(const ls_args *args, const ls_run *run, ls_mesh_choice_facts *facts,
                            int64_t *rows)
{
    ls_device_info here = {.threads = 1};
    int64_t ranks = 0, nodes = 1, threads;
    double gib = 0, gbits = 0;
    ls_device *device = NULL;
    ls_tune tune;
    ls_status st;

    LS_TRY(st, ls_args_number(args, "ranks", 2, 1, LS_MESH_RANKS, &ranks), out);
    LS_TRY(st, ls_args_number(args, "nodes", 1, 1, ranks, &nodes), out);
    LS_TRY(st, ls_args_number(args, "rows", 8, 1, 100000, rows), out);
    LS_TRY(st, ls_plan_number(args, "memory", false, &gib), out);
    LS_TRY(st, ls_plan_number(args, "gbits", false, &gbits), out);
    if (ranks % nodes != 0) {
        st = ls_fail(LS_EUSAGE, "%lld ranks cannot be spread evenly over %lld nodes",
                     (long long)ranks, (long long)nodes);
        ls_err_hint("Give a multiple of %lld to -n.", (long long)nodes);
        goto out;
    }
    LS_TRY(st, ls_device_open(&device, "cpu", 0), out);
    here = ls_device_describe(device);
    threads =
        run->device.threads == LS_RUN_AUTO ? here.threads / (ranks / nodes) : run->device.threads;
    LS_TRY(st, ls_kernel_for(device, "auto", &facts->kernels), out);
    ls_tune_init(&tune);
    facts->ranks = (int)ranks;
    facts->per_node = (int)(ranks / nodes);
    facts->threads = (int)ls_max_i64(1, threads);
    facts->free_bytes =
        gib > 0 ? (int64_t)(gib * 1024 * (double)LS_MIB) : here.free_bytes / (ranks / nodes);
    facts->program_bytes = ls_ledger_resident_bytes();
    facts->gflops = ls_mesh_choice_gflops(facts->kernels, facts->threads);
    facts->inside = tune.inside;
    facts->between = tune.between;
    facts->combine_ns_per_byte = tune.combine_ns_per_byte;
    facts->heals = run->heal.mode == LS_HEAL_ON && run->sync == LS_SYNC_ALLREDUCE && ranks > 1;
    if (gbits > 0)
        facts->between.ns_per_byte = 8 / gbits;
    LS_TRY(st, ls_plan_number(args, "gflops", false, &facts->gflops), out);
out:
    ls_device_close(device);
    return st;
}

static void show(const ls_args *args, const ls_mesh_choice *choice, int64_t rows, ls_str *out)
{
    ls_json json;

    if (ls_args_has(args, "json")) {
        ls_json_begin(&json, out);
        ls_json_open(&json, '{');
        ls_mesh_choice_json(choice, &json);
        ls_json_close(&json);
        ls_str_append_char(out, '\n');
    } else {
        ls_mesh_choice_tell(choice, (int)rows, out);
    }
}

static ls_status run_mesh(const ls_args *args, ls_str *out)
{
    ls_mesh_choice_facts facts = {.ranks = 1};
    ls_mesh_choice choice = {.count = 0};
    ls_tokenizer *tok = NULL;
    int64_t rows = 0;
    ls_run run;
    ls_status st = ls_load_run_read(&run, args, args->rest[0]);

    if (st != LS_OK)
        return st;
    run.mesh.automatic = true;
    LS_TRY(st, read_facts(args, &run, &facts, &rows), out);
    LS_TRY(st, ls_tokenizer_open(&tok, run.data.tokenizer), out);
    facts.vocab = ls_tokenizer_vocab(tok);
    st = ls_mesh_choice_make(&run, &facts, &choice);
    if (choice.count > 0) { /* where none works, too: what refuses each */
        show(args, &choice, rows, out);
        if (!ls_args_has(args, "json"))
            ls_term_fold_stdout(args, out);
        ls_status shown = ls_term_print(out);
        st = st == LS_OK ? shown : st;
    }
out:
    ls_mesh_choice_release(&choice);
    ls_tokenizer_free(tok);
    ls_runfile_release(&run);
    return st;
}

static const ls_flag flags[] = {
    LS_LOAD_RUN_SET_FLAG,
    {"ranks", 'n', "N", false, "Processes of the run on all machines; 2 unless given."},
    {"nodes", 0, "N", false, "Machines, with the same number of processes each; 1 unless given."},
    {"memory", 0, "GIB", false,
     "Memory for each process, in GiB; its share of what is free on this machine unless given."},
    {"gflops", 0, "N", false,
     "Speed of a process, in 1e9 operations a second; estimated from kernels and threads unless "
     "given."},
    {"gbits", 0, "N", false, "Speed of the links between machines, in Gbit/s; 0.94 unless given."},
    {"rows", 0, "N", false, "How many of the meshes that work are shown; 8 unless given."},
    {"json", 'j', NULL, false, "Print one JSON object, with every mesh."},
    {.name = NULL},
};

const ls_command ls_cmd_plan_mesh = {
    .name = "mesh",
    .summary = "show which mesh fits and is quickest, and what refuses the others",
    .arguments = "RUN",
    .about = "Goes through all meshes of this many processes (mesh.tp, pp, cp, ep, zero and "
             "schedule, unless the run file sets them; ep where the model has experts). The checks "
             "of the run and the memory ledger say which of them work; the time of a step is "
             "predicted from the schedule, the links and the speed of a process. `mesh: auto` "
             "takes the first mesh. The times serve to compare meshes; nothing is measured.",
    .examples = "lineshaft plan mesh run.yaml -n 4  # four processes on this machine\n"
                "lineshaft plan mesh run.yaml -n 8 --nodes 4 --gbits 1 --memory 2  # four "
                "machines, slow links\n"
                "lineshaft plan mesh run.yaml -n 4 --set mesh.tp=1 --json  # without tensor "
                "parallelism, for programs",
    .flags = flags,
    .run = run_mesh,
};
