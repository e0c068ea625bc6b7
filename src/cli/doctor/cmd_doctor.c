/* cmd_doctor.c -- `lineshaft doctor`: what this machine is, what lineshaft makes of it, and why.
 *
 * The parts look and note what they find; here the list is made and shown. A run file that cannot
 * be read is a finding like any other, so that the rest is still said. */
#include "cli/doctor/cmd_doctor.h"

#include "base/json.h"
#include "base/mem.h"
#include "cli/cmds.h"
#include "cli/help.h"
#include "cli/load_run.h"
#include "cli/term.h"
#include "config/runfile.h"

static const char *const mark_names[] = {
    [LS_DOCTOR_OK] = "ok",
    [LS_DOCTOR_NOTE] = "note",
    [LS_DOCTOR_PROBLEM] = "problem",
    [LS_DOCTOR_UNKNOWN] = "unknown",
};

/* --- the list --------------------------------------------------------------------------------- */

void ls_doctor_say(ls_doctor *d, const char *section, const char *name, ls_doctor_mark mark,
                   const char *fmt, ...)
{
    va_list ap;

    LS_BUG_IF(d->count == (int)LS_COUNT(d->findings), "the doctor finds too much");
    ls_doctor_finding *f = &d->findings[d->count++];
    *f = (ls_doctor_finding){.section = section, .name = name, .mark = mark};
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

void ls_doctor_value(ls_doctor *d, double value)
{
    d->findings[d->count - 1].value = value;
    d->findings[d->count - 1].has_value = true;
}

void ls_doctor_say_error(ls_doctor *d, const char *section, const char *name, ls_doctor_mark mark)
{
    ls_doctor_say(d, section, name, mark, "%s", ls_err_last()->text);
    snprintf(d->findings[d->count - 1].hint, sizeof d->findings[0].hint, "%s", ls_err_last()->hint);
    ls_err_clear();
}

static int count_of(const ls_doctor *d, ls_doctor_mark mark)
{
    int n = 0;

    for (int i = 0; i < d->count; i++)
        n += d->findings[i].mark == mark;
    return n;
}

/* --- showing it ------------------------------------------------------------------------------- */

/* A sentence in lines of the width of the terminal, the first of which already has its mark. */
static void put_text(const char *text, const ls_term *term, ls_str *out)
{
    enum { INDENT = 11, LEAST = 40, MOST = 100 };
    int width = term->width < LEAST ? LEAST : term->width > MOST ? MOST : term->width;
    ls_str flowed;

    ls_str_init(&flowed);
    ls_help_flow(text, INDENT, width, &flowed);
    ls_str_append(out, flowed.len > INDENT ? flowed.p + INDENT : "\n");
    ls_str_release(&flowed);
}

void ls_doctor_text(const ls_doctor *d, const ls_term *term, ls_str *out)
{
    static const ls_term_style styles[] = {LS_TERM_GREEN, LS_TERM_YELLOW, LS_TERM_RED, LS_TERM_DIM};
    const char *plain = ls_term_code(term, LS_TERM_PLAIN), *section = "";
    int problems = count_of(d, LS_DOCTOR_PROBLEM), notes = count_of(d, LS_DOCTOR_NOTE);

    for (int i = 0; i < d->count; i++) {
        const ls_doctor_finding *f = &d->findings[i];
        if (strcmp(section, f->section) != 0)
            ls_str_printf(out, "%s%s%s\n", ls_term_code(term, LS_TERM_BOLD), f->section, plain);
        section = f->section;
        ls_str_printf(out, "  %s%-7s%s  ", ls_term_code(term, styles[f->mark]), mark_names[f->mark],
                      plain);
        put_text(f->text, term, out);
        if (*f->hint) {
            ls_str_append(out, "           ");
            put_text(f->hint, term, out);
        }
    }
    ls_str_printf(out, "\n%d problem%s, %d note%s\n", problems, problems == 1 ? "" : "s", notes,
                  notes == 1 ? "" : "s");
}

void ls_doctor_json(const ls_doctor *d, ls_str *out)
{
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "version", LS_VERSION);
    ls_json_put_int(&json, "problems", count_of(d, LS_DOCTOR_PROBLEM));
    ls_json_put_int(&json, "notes", count_of(d, LS_DOCTOR_NOTE));
    ls_json_key(&json, "findings");
    ls_json_open(&json, '[');
    for (int i = 0; i < d->count; i++) {
        const ls_doctor_finding *f = &d->findings[i];
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "section", f->section);
        ls_json_put_str(&json, "name", f->name);
        ls_json_put_str(&json, "mark", mark_names[f->mark]);
        ls_json_put_str(&json, "text", f->text);
        if (*f->hint)
            ls_json_put_str(&json, "hint", f->hint);
        if (f->has_value)
            ls_json_put_num(&json, "value", f->value);
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}

/* --- the command ------------------------------------------------------------------------------ */

/* What the machine's parts are judged by: the run's own settings, or what auto means. */
static void open_device(ls_doctor *d)
{
    ls_device_args args = {.kind = "cpu"};

    if (d->run && d->run->device.threads != LS_RUN_AUTO)
        args.threads = (int)d->run->device.threads;
    args.pinned = d->run && d->run->device.pin == LS_PIN_ON;
    args.unpinned = d->run && d->run->device.pin == LS_PIN_OFF;
    if (ls_device_open_with(&d->device, &args) != LS_OK)
        ls_doctor_say_error(d, "cores", "device", LS_DOCTOR_PROBLEM);
}

static ls_status examine(ls_doctor *d, const ls_args *args)
{
    ls_err_record bad_run = {.code = LS_OK};
    ls_status st = ls_cpus_init(&d->cpus);
    ls_run run;

    if (st != LS_OK)
        return st;
    if (args->n_rest > 0) {
        if (ls_load_run_read(&run, args, args->rest[0]) == LS_OK)
            d->run = &run;
        else
            bad_run = *ls_err_last();
        ls_err_clear();
    }
    ls_doctor_cpu(d);
    open_device(d);
    ls_doctor_cores(d);
    ls_doctor_memory(d);
    ls_doctor_speed(d);
    ls_doctor_gpu(d);
    ls_doctor_build(d);
    ls_doctor_disk(d);
    if (bad_run.code != LS_OK) {
        ls_err_adopt(&bad_run);
        ls_doctor_say_error(d, "run", "valid", LS_DOCTOR_PROBLEM);
    }
    if (d->run)
        ls_doctor_run(d);
    if (d->run)
        ls_runfile_release(&run);
    d->run = NULL;
    ls_device_close(d->device);
    ls_cpus_release(&d->cpus);
    return LS_OK;
}

static ls_status run_doctor(const ls_args *args, ls_str *out)
{
    ls_doctor *d = ls_mem_alloc(sizeof *d);
    ls_status st = d ? LS_OK : LS_ENOMEM;
    ls_term term;

    if (st != LS_OK)
        return st;
    d->measure = !ls_args_has(args, "no-measure");
    LS_TRY(st, examine(d, args), out);
    ls_term_init(&term, 1, args);
    if (ls_args_has(args, "json"))
        ls_doctor_json(d, out);
    else
        ls_doctor_text(d, &term, out);
    if (!ls_args_has(args, "json"))
        ls_term_fold(&term, out);
    LS_TRY(st, ls_term_print(out), out);
    int problems = count_of(d, LS_DOCTOR_PROBLEM);
    if (problems)
        st = ls_fail(LS_EFAIL, "%d problem%s found", problems, problems == 1 ? " was" : "s were");
out:
    ls_mem_free(d);
    return st;
}

static const ls_flag flags[] = {
    {"json", 'j', NULL, false, "Print one JSON object."},
    {"no-measure", 0, NULL, false, "Do not measure speeds, which takes about a second."},
    LS_LOAD_RUN_SET_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_doctor = {
    .name = "doctor",
    .summary = "report what this machine can do, and what is wrong",
    .arguments = "[RUN]",
    .about = "Looks at the processor, its cores and their other users, memory, GPUs, the libraries "
             "of this build and disk space, and reports what lineshaft makes of each and why: "
             "which kernels, how many threads, pinned or not. With RUN, also whether that run file "
             "is valid and what the run needs against what is there.\n\n"
             "Each line is marked ok, note (works, but worth knowing), problem or unknown. Nothing "
             "is changed. The exit code is 1 when there is a problem, otherwise 0.",
    .examples = "lineshaft doctor  # this machine\n"
                "lineshaft doctor run.yaml  # and whether this run fits on it\n"
                "lineshaft doctor --json --no-measure  # for programs, at once",
    .flags = flags,
    .run = run_doctor,
};
