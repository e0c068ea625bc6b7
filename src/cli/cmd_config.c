/* cmd_config.c -- `lineshaft config`: look at a run file without running it. */
#include "cli/cmds.h"

#include "cli/load_run.h"
#include "cli/term.h"
#include "config/explain.h"
#include "config/runfile.h"
#include "config/check.h"
#include "config/schema.h"

/* --- check ------------------------------------------------------------------------------------ */

static void summarise(const ls_run *run, ls_str *out)
{
    const ls_option *family = ls_option_find("model.family");
    int64_t steps = ls_check_horizon(run);

    ls_str_printf(out, "%s is valid: %s, %lld layer%s of width %lld, %lld x %lld tokens a step, ",
                  run->path, family->names[run->model.family], (long long)run->model.layers,
                  run->model.layers == 1 ? "" : "s", (long long)run->model.width,
                  (long long)run->batch.sequences, (long long)run->model.context);
    if (steps)
        ls_str_printf(out, "%lld step%s", (long long)steps, steps == 1 ? "" : "s");
    else if (run->train.epochs > 0)
        ls_str_printf(out, "%g epoch%s", run->train.epochs, run->train.epochs > 1 ? "s" : "");
    else
        ls_str_append(out, "no fixed number of steps");
    ls_str_printf(out, ", into %s\n", run->out);
}

static ls_status run_check(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_run run;

    LS_TRY(st, ls_load_run_read(&run, args, args->rest[0]), out);
    st = ls_load_run_prove(&run);
    if (st == LS_OK && !ls_args_has(args, "quiet"))
        summarise(&run, out);
    ls_runfile_release(&run);
out:
    return st;
}

static const ls_flag check_flags[] = {LS_LOAD_RUN_SET_FLAG, {.name = NULL}};
static const ls_command check = {
    .name = "check",
    .summary = "check whether a run file is valid",
    .arguments = "RUN",
    .about =
        "Reads the run file exactly as `lineshaft train` would, with variables and --set, and "
        "checks every value, contradictions between values, that the files it names exist, and "
        "that tokenizer, template, frozen parameters and LoRA targets fit the model. "
        "Nothing is created. The exit code is 0 when the file is valid and 2 when it is not; "
        "the message then says where and why.",
    .examples = "lineshaft config check run.yaml  # is this file right?\n"
                "lineshaft config check run.yaml --set batch.leaf=4  # and with this change?",
    .flags = check_flags,
    .run = run_check,
};

/* --- explain ---------------------------------------------------------------------------------- */

static ls_status run_explain(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    const char *const *keys = args->rest + 1;
    int n = args->n_rest - 1;
    ls_run run;

    if (ls_args_has(args, "json") && ls_args_has(args, "yaml")) {
        st = ls_fail(LS_EUSAGE, "--json and --yaml cannot both be given");
        goto out;
    }
    if (ls_args_has(args, "yaml") && n > 0) {
        st = ls_fail(LS_EUSAGE, "--yaml prints the whole run file and takes no keys");
        goto out;
    }
    LS_TRY(st, ls_load_run_read(&run, args, args->rest[0]), out);
    if (ls_args_has(args, "yaml"))
        ls_explain_yaml(&run, out);
    else if (ls_args_has(args, "json"))
        st = ls_explain_json(&run, keys, n, out);
    else
        st = ls_explain_table(&run, keys, n, out);
    if (!ls_args_has(args, "json") && !ls_args_has(args, "yaml"))
        ls_term_fold_stdout(args, out);
    ls_runfile_release(&run);
out:
    return st;
}

static const ls_flag explain_flags[] = {
    LS_LOAD_RUN_SET_FLAG,
    {"json", 'j', NULL, false, "Print one JSON object."},
    {"yaml", 'y', NULL, false, "Print a complete run file with every value worked out."},
    {.name = NULL},
};
static const ls_command explain = {
    .name = "explain",
    .summary = "show every setting with its value and origin",
    .arguments = "RUN [KEY ...]",
    .about = "Shows the final value of each key of the run file and where it came from: the "
             "default, a line of the file, a variable, or --set; for auto also how it was worked "
             "out. KEY is a key such as train.lr or a section such as batch.",
    .examples = "lineshaft config explain run.yaml  # every setting\n"
                "lineshaft config explain run.yaml batch train.lr  # some of them\n"
                "lineshaft config explain run.yaml --yaml  # the run file in full",
    .flags = explain_flags,
    .run = run_explain,
};

/* --- schema and reference --------------------------------------------------------------------- */

static ls_status run_schema(const ls_args *args, ls_str *out)
{
    ls_run run;

    if (args->n_rest > 0) {
        ls_status st = ls_load_run_read(&run, args, args->rest[0]);
        if (st != LS_OK)
            return st;
        ls_runfile_release(&run);
    }
    return ls_schema_json(out);
}

static const ls_command schema = {
    .name = "schema",
    .summary = "print a JSON Schema of the run file",
    .arguments = "[RUN]",
    .flags = check_flags,
    .about = "Prints a JSON Schema (draft 2020-12) for editors, which then complete keys and mark "
             "mistakes while you type. In an editor with the YAML language server, begin the run "
             "file with the line\n\n"
             "  # yaml-language-server: $schema=lineshaft.schema.json\n\n"
             "With RUN, that file is checked first; the schema is printed only if it is valid.",
    .examples = "lineshaft config schema > lineshaft.schema.json  # save it beside the run file",
    .run = run_schema,
};

static ls_status run_reference(const ls_args *args, ls_str *out)
{

    (void)args;
    return ls_schema_markdown(out);
}

static const ls_command reference = {
    .name = "reference",
    .summary = "print the reference of the run file",
    .about = "Prints every key with its values, default and meaning as a Markdown page. It is the "
             "page docs/reference/run-file.md.",
    .examples = "lineshaft config reference > docs/reference/run-file.md  # renew the page",
    .run = run_reference,
};

static const ls_command *const subs[] = {&check, &explain, &schema, &reference, NULL};
const ls_command ls_cmd_config = {
    .name = "config",
    .summary = "check and explain a run file",
    .about = "Looks at a run file without running it.",
    .examples = "lineshaft config check run.yaml  # is this file right?\n"
                "lineshaft config explain run.yaml  # every setting and its origin",
    .subs = subs,
};
