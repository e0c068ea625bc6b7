/* cmd_drill.c -- `lineshaft drill`: break a run on purpose, and see that it does not matter. */
#include "cli/drill/drill.h"

#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "cli/cmds.h"
#include "cli/load_run.h"
#include "cli/term.h"
#include "cluster/node/lab.h"
#include "config/runfile.h"
#include "hf/base_run.h"
#include "layout/calls.h"

enum { RANKS = 3, STEPS = 16, COUNT = 3, LAB_S = 30, FORCED = 5 };

static const char tiny[] =
    "name: drill\n"
    "model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}\n"
    "data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}\n"
    "batch: {sequences: 6, leaf: 2, group: 1}\n"
    "train: {lr: 3e-3, schedule: cosine, clip: 1.0, seed: 3}\n";

typedef struct count {
    int passed, failed, skipped;
} count;

/* What one row came to. */
typedef struct verdict {
    const ls_drill_row *row;
    int number;
    const char *word;              /* pass, fail, skip */
    const char *why;               /* "": nothing to say */
    const ls_drill_report *report; /* NULL: skipped */
} verdict;

/* --- which rows --- */

/* "kill" means all of kill.*, "kill.losses" that one. */
static bool is_named(const ls_drill_row *row, const char *word, size_t n)
{
    size_t group = strcspn(row->name, ".");

    return strncmp(row->name, word, n) == 0 && (n == group || n == strlen(row->name));
}

static ls_status check_only(const char *only)
{
    ls_str list;

    for (const char *p = only; p && *p; p += strcspn(p, ",")) {
        p += *p == ',';
        size_t n = strcspn(p, ",");
        bool found = false;
        for (int i = 0; i < ls_drill_row_count; i++)
            found |= is_named(&ls_drill_rows[i], p, n);
        if (found)
            continue;
        ls_str_init(&list);
        for (int i = 0; i < ls_drill_row_count; i++)
            ls_str_printf(&list, "%s%s", i ? ", " : "", ls_drill_rows[i].name);
        ls_fail(LS_EUSAGE, "--only names \"%.*s\", which is not a fault; there are: %s", (int)n, p,
                ls_str_status(&list) == LS_OK ? list.p : "");
        ls_err_hint("The part before the dot means all of them, as in --only kill,save.");
        ls_str_release(&list);
        return LS_EUSAGE;
    }
    return LS_OK;
}

static bool is_wanted(const ls_drill_row *row, const char *only)
{
    bool wanted = !only;

    for (const char *p = only; p && *p && !wanted; p += strcspn(p, ",")) {
        p += *p == ',';
        wanted = is_named(row, p, strcspn(p, ","));
    }
    return wanted;
}

/* Whether hosts can be made here; asked once. */
static const char *no_hosts(void)
{
    static char why[200];
    static bool asked;
    const ls_lab_args args = {.nodes = 2, .link = "none", .burst = "auto"};
    ls_lab *lab = NULL;

    if (!asked && ls_lab_open(&lab, &args, ls_time_now_ns() + LAB_S * LS_NS_PER_S) != LS_OK)
        snprintf(why, sizeof why, "no hosts can be made here: %.160s", ls_err_last()->text);
    if (!asked)
        ls_err_clear();
    ls_lab_close(lab);
    asked = true;
    return *why ? why : NULL;
}

/* Whether a rank has only a part of the model. */
static bool divides(const ls_run *run)
{
    return run->mesh.zero > 0 || run->mesh.tp > 1 || run->mesh.pp > 1 || run->mesh.cp > 1 ||
           run->mesh.ep > 1;
}

/* Why this fault cannot be had here; NULL: it can. */
static const char *obstacle(const ls_drill *d, const ls_drill_row *row)
{
    if (row->kind == LS_DRILL_HOST && (!d->heals || d->run.heal.quorum != LS_HEAL_EMBEDDED))
        return "nobody replaces the first machine (heal.mode, heal.quorum, sync)";
    if (ls_drill_on_hosts(row))
        return no_hosts();
    if (!row->alone && d->ranks < 2)
        return "needs two ranks or more (-n)";
    if (!row->alone && !d->heals)
        return "nobody watches over the ranks of this run (heal.mode, sync)";
    if (row->whole && (divides(&d->run) || !d->exact))
        return "no two ranks have the same bits of a whole model (mesh, train.reduce)";
    return NULL;
}

/* --- what is shown --- */

static double detected_ms(const ls_drill_report *t)
{
    if (t->struck_ns == 0 || (t->lost == 0 && t->starts == 1))
        return (double)NAN;
    if (t->lost > 0)
        return ls_max_i64(0, t->incident_ns - t->struck_ns) / 1e6 - t->recovered_ms;
    return (double)(t->ended_ns - t->struck_ns) / 1e6;
}

static void put_ms(double ms, int width, ls_str *text)
{
    if (isnan(ms))
        ls_str_printf(text, "%*s", width, "-");
    else
        ls_str_printf(text, "%*.0f ms", width - 3, ms < 0 ? 0 : ms);
}

static void put_row(const verdict *v, ls_str *text)
{
    const ls_drill_report *t = v->report;

    ls_str_printf(text, "%-15s %-7s", v->row->name, v->word);
    if (t) {
        put_ms(detected_ms(t), 11, text);
        put_ms(t->recovered_ms, 11, text);
        ls_str_printf(text, "%8lld  %-10s", (long long)t->redone, *t->source ? t->source : "-");
    } else {
        ls_str_printf(text, "%42s", "");
    }
    ls_str_printf(text, "  %s", v->why);
    while (text->len > 0 && text->p[text->len - 1] == ' ')
        text->p[--text->len] = '\0';
    ls_str_append_char(text, '\n');
}

static void put_json_row(const verdict *v, ls_str *text)
{
    const ls_drill_report *t = v->report;
    ls_json j;

    ls_json_begin(&j, text);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "event", "fault");
    ls_json_put_str(&j, "name", v->row->name);
    ls_json_put_int(&j, "number", v->number);
    ls_json_put_str(&j, "verdict", v->word);
    ls_json_put_str(&j, "reason", v->why);
    if (t) {
        ls_json_put_num(&j, "detected_ms", detected_ms(t));
        ls_json_put_num(&j, "recovered_ms", t->recovered_ms);
        ls_json_put_int(&j, "redone", t->redone);
        ls_json_put_str(&j, "source", t->source);
        ls_json_put_int(&j, "incidents", t->lost + t->unsaved);
        ls_json_put_int(&j, "starts", t->starts);
        ls_json_put_int(&j, "exit_code", t->code);
        ls_json_put_str(&j, "weights_hash", t->hash);
    }
    ls_json_close(&j);
    ls_str_append_char(text, '\n');
}

static ls_status show(const verdict *v, bool json)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    (json ? put_json_row : put_row)(v, &text);
    st = ls_term_print(&text);
    ls_str_release(&text);
    return st;
}

static void list_rows(const ls_drill *d, const char *only, ls_str *out)
{
    for (int i = 0; i < ls_drill_row_count; i++) {
        const ls_drill_row *row = &ls_drill_rows[i];
        if (!is_wanted(row, only))
            continue;
        const char *why = obstacle(d, row);
        ls_str_printf(out, "%-15s %s%s%s%s\n", row->name, row->what, why ? " [skipped: " : "",
                      why ? why : "", why ? "]" : "");
    }
}

/* --- the drill --- */

static ls_status make_dir(const ls_args *args, ls_drill *d)
{
    const char *given = ls_args_value(args, "dir"), *base = getenv("TMPDIR");
    char before[600];
    int n;

    if (given) {
        n = snprintf(d->dir, sizeof d->dir, "%s", given);
        if (n >= (int)sizeof d->dir)
            return ls_fail(LS_EUSAGE, "--dir is too long");
        snprintf(before, sizeof before, "%s/undisturbed", given);
        if (ls_file_exists(before))
            return ls_fail(LS_EUSAGE, "\"%s\" has the runs of another drill", given);
        return ls_file_make_dirs(given);
    }
    n = snprintf(d->dir, sizeof d->dir, "%s/lineshaft-drill-XXXXXX", base && *base ? base : "/tmp");
    if (n >= (int)sizeof d->dir || !mkdtemp(d->dir)) {
        ls_fail_sys(LS_EIO, "cannot make a folder like \"%.200s\"", d->dir);
        d->dir[0] = '\0';
        return LS_EIO;
    }
    return LS_OK;
}

/* Settings of the drill, then the user's own, which win. */
static ls_status load(const ls_args *args, ls_drill *d, char forced[FORCED][64])
{
    ls_runfile_source source = {
        .path = args->n_rest ? args->rest[0] : NULL, .sets = d->sets, .base = ls_base_run_read};
    int64_t steps, ranks;
    const char *set;
    ls_status st;

    LS_TRY(st, ls_args_number(args, "steps", STEPS, 8, LS_DRILL_STEPS, &steps), out);
    LS_TRY(st, ls_args_number(args, "ranks", RANKS, 1, 256, &ranks), out);
    snprintf(forced[0], sizeof forced[0], "train.steps=%lld", (long long)steps);
    snprintf(forced[1], sizeof forced[1], "checkpoint.every=%lld", (long long)steps / 4);
    snprintf(forced[2], sizeof forced[2], "checkpoint.keep=3");
    snprintf(forced[3], sizeof forced[3], "eval.every=0");
    snprintf(forced[4], sizeof forced[4], "train.warmup=0"); /* it must end before the run does */
    for (int i = 0; i < FORCED; i++)
        d->sets[d->n_sets++] = forced[i];
    for (int i = 0; (set = ls_args_nth(args, "set", i)); i++) {
        if (d->n_sets == LS_DRILL_SETS)
            return ls_fail(LS_EUSAGE, "more than %d --set", LS_DRILL_SETS - FORCED);
        d->sets[d->n_sets++] = set;
    }
    source.n_sets = d->n_sets;
    if (!source.path) {
        source.text = tiny;
        source.len = strlen(tiny);
        source.text_name = "<drill>";
    }
    LS_TRY(st, ls_runfile_load(&d->run, &source), out);
    d->ranks = (int)ranks;
    d->steps = d->run.train.steps;
    d->every = d->run.checkpoint.every;
    d->exact = ls_calls_ordered(&d->run);
    d->heals = d->run.heal.mode == LS_HEAL_ON && d->run.sync == LS_SYNC_ALLREDUCE;
    if (d->steps < 8 || d->steps > LS_DRILL_STEPS || d->every < 1 || d->every > d->steps / 2) {
        st = ls_fail(LS_EUSAGE,
                     "a drill needs at least 8 steps and a checkpoint in each half of "
                     "them, not %lld steps and one every %lld",
                     (long long)d->steps, (long long)d->every);
        ls_err_hint("Leave train.steps and checkpoint.every to --steps.");
    }
out:
    return st;
}

/* The run file where ranks can read it. */
static ls_status place_run(const ls_args *args, ls_drill *d, char path[600])
{
    d->run_path = args->n_rest ? args->rest[0] : path;
    if (args->n_rest)
        return LS_OK;
    snprintf(path, 600, "%s/run.yaml", d->dir);
    return ls_file_write_atomic(path, tiny, strlen(tiny));
}

/* Without a fault: what all others are compared with. */
static ls_status play_undisturbed(ls_drill *d)
{
    char out[700];
    ls_drill_report report = {.losses = NULL};
    ls_status st;

    snprintf(out, sizeof out, "%s/undisturbed", d->dir);
    LS_TRY(st, ls_drill_play(d, NULL, 0, out, &report), out);
    if (report.code != 0 || !*report.hash) {
        st = ls_fail(LS_EFAIL, "the run fails without any fault: exit code %d", report.code);
        ls_err_hint("See \"%s.err\".", out);
        goto out;
    }
    if (report.lost > 0) {
        st = ls_fail(LS_EFAIL, "the run loses ranks without any fault");
        ls_err_hint("See \"%s.err\".", out);
        goto out;
    }
    snprintf(d->hash, sizeof d->hash, "%s", report.hash);
    d->loss = report.loss;
    d->seconds = report.seconds;
    d->losses = report.losses;
    report.losses = NULL;
out:
    ls_drill_report_release(&report);
    return st;
}

static ls_status play_row(const ls_drill *d, const ls_drill_row *row, int number, bool json,
                          count *n)
{
    char out[700];
    ls_drill_report report = {.losses = NULL};
    verdict v = {.row = row, .number = number, .word = "skip", .why = obstacle(d, row)};
    ls_str why;
    ls_status st = LS_OK;

    if (v.why) {
        n->skipped++;
        return show(&v, json);
    }
    ls_str_init(&why);
    snprintf(out, sizeof out, "%s/%s-%d", d->dir, row->name, number);
    LS_TRY(st, ls_drill_play(d, row, number, out, &report), out);
    ls_drill_judge(d, row, &report, out, &why);
    LS_TRY(st, ls_str_status(&why), out);
    bool failed = why.len > 0;
    if (!failed && row->repeats && report.lost == 0 && report.starts == 1)
        ls_str_append(&why, "came too late to matter");
    v.report = &report;
    v.word = failed ? "FAIL" : "pass";
    v.why = why.p ? why.p : "";
    *(failed ? &n->failed : &n->passed) += 1;
    st = show(&v, json);
    if (!failed)
        ls_drill_remove(out);
out:
    ls_drill_report_release(&report);
    ls_str_release(&why);
    return st;
}

static ls_status conclude(const ls_drill *d, const count *n, bool json, ls_str *out)
{
    ls_json j;
    ls_status st;

    if (json) {
        ls_json_begin(&j, out);
        ls_json_open(&j, '{');
        ls_json_put_str(&j, "event", "drill");
        ls_json_put_int(&j, "passed", n->passed);
        ls_json_put_int(&j, "failed", n->failed);
        ls_json_put_int(&j, "skipped", n->skipped);
        ls_json_put_str(&j, "weights_hash", d->hash);
        ls_json_close(&j);
        ls_str_append_char(out, '\n');
    } else {
        ls_str_printf(
            out, "%d passed, %d failed, %d skipped: %s\n", n->passed, n->failed, n->skipped,
            d->exact ? "pass means the same weights, bit for bit"
                     : "pass means the same loss within 1 % (train.reduce is not ordered)");
    }
    LS_TRY(st, ls_term_print(out), out);
    if (n->failed > 0) {
        st = ls_fail(LS_EFAIL, "%d of %d faults were not survived", n->failed,
                     n->failed + n->passed);
        ls_err_hint("The output of the runs is in \"%s\".", d->dir);
    }
out:
    return st;
}

static ls_status play_all(const ls_args *args, ls_drill *d, count *n, ls_str *out)
{
    const char *only = ls_args_value(args, "only");
    bool json = ls_args_has(args, "json");
    int64_t times;
    ls_status st;

    LS_TRY(st, ls_args_number(args, "count", COUNT, 1, 100000, &times), out);
    LS_TRY(st, play_undisturbed(d), out);
    if (!json)
        printf("undisturbed: %lld steps on %d rank%s in %.1f s, weights %s\n\n%-15s %-7s%11s%11s%8s"
               "  %s\n",
               (long long)d->steps, d->ranks, d->ranks == 1 ? "" : "s", d->seconds, d->hash,
               "fault", "", "detected", "recovered", "redone", "state from");
    for (int i = 0; i < ls_drill_row_count; i++)
        for (int k = 0; k < (ls_drill_rows[i].repeats ? times : 1); k++)
            if (is_wanted(&ls_drill_rows[i], only))
                LS_TRY(st, play_row(d, &ls_drill_rows[i], k, json, n), out);
    st = conclude(d, n, json, out);
out:
    return st;
}

static ls_status run_drill(const ls_args *args, ls_str *out)
{
    ls_drill d = {.losses = NULL};
    char forced[FORCED][64], run_path[600];
    count n = {.passed = 0};
    int64_t seed;
    ls_status st;

    LS_TRY(st, check_only(ls_args_value(args, "only")), out);
    LS_TRY(st, ls_args_number(args, "seed", 1, 0, INT32_MAX, &seed), out);
    d.key = ls_rng_derive((uint64_t)seed, 0xd1, 0);
    LS_TRY(st, load(args, &d, forced), out);
    if (ls_args_has(args, "list")) {
        list_rows(&d, ls_args_value(args, "only"), out);
        goto out;
    }
    LS_TRY(st, make_dir(args, &d), out);
    LS_TRY(st, place_run(args, &d, run_path), out);
    st = play_all(args, &d, &n, out);
    if (st == LS_OK && !ls_args_has(args, "dir"))
        ls_drill_remove(d.dir);
out:
    ls_mem_free(d.losses);
    ls_runfile_release(&d.run);
    return st;
}

static const ls_flag flags[] = {
    LS_LOAD_RUN_SET_FLAG,
    {"ranks", 'n', "N", false, "Ranks of the run; 3 unless given."},
    {"steps", 0, "N", false,
     "Steps of the run, with a checkpoint after each quarter; 16 unless given."},
    {"only", 0, "LIST", false, "Only these faults, or groups of them: kill,save.torn."},
    {"list", 0, NULL, false, "List the faults, and which of them cannot happen here; run nothing."},
    {"count", 0, "N", false, "How often faults at random instants are tried; 3 unless given."},
    {"seed", 0, "N", false, "Seed of the random instants; 1 unless given."},
    {"dir", 0, "DIR", false,
     "Folder for the runs, which is kept; otherwise a temporary one, kept only when a fault was "
     "not survived."},
    {.name = "json", .letter = 'j', .doc = "Print one JSON object per fault instead of a table."},
    {.name = NULL},
};

const ls_command ls_cmd_drill = {
    .name = "drill",
    .summary = "break a run on purpose and check that it recovers",
    .arguments = "[RUN]",
    .about =
        "Trains RUN for a few steps undisturbed, then once for each fault of a catalogue: ranks "
        "that are killed or stopped at named points of a step, saves that break off, a full disk, "
        "bits that flip in memory and on disk, links that are slow or cut, SIGTERM. A run that a "
        "fault ends is started again, as a scheduler would. Without RUN a tiny model is "
        "trained.\n\n"
        "A fault is survived when the final weights equal those of the undisturbed run, bit for "
        "bit (with train.reduce: fast: the loss within 1 %), every step reported its loss, the "
        "newest two checkpoints verify, an incident report says what happened, and no process and "
        "no temporary file is left. The exit code is 0 when all were. What cannot be made to "
        "happen on this machine is skipped, with the reason: links need hosts (`lineshaft lab`), "
        "and so root.\n\n"
        "The run itself is not touched: each fault has a folder of its own, and out: is not used.",
    .examples =
        "lineshaft drill  # a tiny model, all faults, in a minute or two\n"
        "lineshaft drill run.yaml -n 4 --steps 20  # your own run\n"
        "lineshaft drill --only kill --count 50  # 50 kills at random instants, and all others\n"
        "lineshaft drill --list  # the faults that there are\n"
        "lineshaft drill run.yaml --only save,disk --json  # for programs",
    .flags = flags,
    .run = run_drill,
};
