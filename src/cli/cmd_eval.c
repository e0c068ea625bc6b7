/* cmd_eval.c -- lineshaft eval: how well a model predicts a text and answers questions. */
#include "cli/command.h"

#include <math.h>
#include "base/file.h"
#include "base/json.h"
#include "cli/args.h"
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmd_data.h"
#include "cli/cmds.h"
#include "eval/eval_choices.h"
#include "eval/eval_text.h"

static const int64_t largest_file = LS_GIB;

/* What the flags ask for, and where the results go. */
typedef struct job {
    const ls_args *args;
    ls_scorer *scorer;
    ls_cmd_data_watch watch;
    bool as_json;
    ls_json json;
    ls_str *out;
} job;

static void show(void *context, int64_t done, int64_t all)
{
    job *j = context;

    if (ls_cmd_data_watch_due(&j->watch))
        fprintf(stderr, "\rscored %lld of %lld", (long long)done, (long long)all);
}

static ls_status read_file(const char *path, ls_str *text)
{
    ls_status st = ls_cmd_data_need_file(path);

    return st == LS_OK ? ls_file_read(path, largest_file, text) : st;
}

/* --- a text ----------------------------------------------------------------------------------- */

static void say_text(job *j, const char *path, int64_t stride, const ls_eval_text *r)
{
    double tokens = exp(-r->log_p / (double)r->tokens), words = exp(-r->log_p / (double)r->words);
    double bits = -r->log_p / (double)r->bytes / log(2);

    ls_str_printf(j->out, "text         %s: ", path);
    ls_cmd_data_put_count(j->out, r->tokens);
    ls_str_append(j->out, " tokens, ");
    ls_cmd_data_put_count(j->out, r->words);
    ls_str_append(j->out, " words, ");
    ls_cmd_data_put_count(j->out, r->bytes);
    ls_str_printf(j->out, " bytes\nwindows      %lld of %lld tokens, each predicts %lld\n",
                  (long long)r->windows, (long long)ls_scorer_context(j->scorer),
                  (long long)stride);
    ls_str_printf(
        j->out, "perplexity   %.4f by token (loss %.4f), %.4g by word, %.4f by byte (%.4f bits)\n",
        tokens, -r->log_p / (double)r->tokens, words, exp(-r->log_p / (double)r->bytes), bits);
}

static void put_text(job *j, const char *path, int64_t stride, const ls_eval_text *r)
{
    ls_json *json = &j->json;

    ls_json_open(json, '{');
    ls_json_put_str(json, "file", path);
    ls_json_put_int(json, "tokens", r->tokens);
    ls_json_put_int(json, "words", r->words);
    ls_json_put_int(json, "bytes", r->bytes);
    ls_json_put_int(json, "windows", r->windows);
    ls_json_put_int(json, "stride", stride);
    ls_json_put_num(json, "log_p", r->log_p);
    ls_json_put_num(json, "loss", -r->log_p / (double)r->tokens);
    ls_json_put_num(json, "perplexity", exp(-r->log_p / (double)r->tokens));
    ls_json_put_num(json, "word_perplexity", exp(-r->log_p / (double)r->words));
    ls_json_put_num(json, "byte_perplexity", exp(-r->log_p / (double)r->bytes));
    ls_json_put_num(json, "bits_per_byte", -r->log_p / (double)r->bytes / log(2));
    ls_json_close(json);
}

static ls_status run_texts(job *j, int64_t stride)
{
    const char *path;
    ls_eval_text r;
    ls_str text;
    ls_status st = LS_OK;

    ls_str_init(&text);
    if (j->as_json) {
        ls_json_key(&j->json, "texts");
        ls_json_open(&j->json, '[');
    }
    for (int i = 0; (path = ls_args_nth(j->args, "text", i)); i++) {
        ls_str_clear(&text);
        ls_err_doing("reading \"%s\"", path);
        LS_TRY(st, read_file(path, &text), out);
        LS_TRY(st, ls_eval_text_run(j->scorer, text.p, text.len, stride, &r), out);
        ls_err_done();
        (j->as_json ? put_text : say_text)(j, path, stride, &r);
    }
    if (j->as_json)
        ls_json_close(&j->json);
out:
    ls_str_release(&text);
    return st;
}

/* --- questions -------------------------------------------------------------------------------- */

static void say_choices(job *j, const char *path, const ls_eval_choices *r)
{
    ls_str_printf(j->out, "questions    %s: ", path);
    ls_cmd_data_put_count(j->out, r->questions);
    ls_str_append(j->out, " with ");
    ls_cmd_data_put_count(j->out, r->choices);
    ls_str_printf(j->out, " choices\nacc          %.4f +- %.4f\nacc_norm     %.4f +- %.4f\n",
                  r->acc, r->acc_error, r->acc_norm, r->acc_norm_error);
}

static void put_choices(job *j, const char *path, const ls_eval_choices *r)
{
    ls_json *json = &j->json;

    ls_json_open(json, '{');
    ls_json_put_str(json, "file", path);
    ls_json_put_int(json, "questions", r->questions);
    ls_json_put_int(json, "choices", r->choices);
    ls_json_put_num(json, "acc", r->acc);
    ls_json_put_num(json, "acc_stderr", r->acc_error);
    ls_json_put_num(json, "acc_norm", r->acc_norm);
    ls_json_put_num(json, "acc_norm_stderr", r->acc_norm_error);
    ls_json_close(json);
}

static ls_status run_tasks(job *j)
{
    const char *path, *delimiter = ls_args_value(j->args, "delimiter");
    ls_eval_choices r;
    ls_str text;
    ls_status st = LS_OK;

    ls_str_init(&text);
    if (j->as_json) {
        ls_json_key(&j->json, "tasks");
        ls_json_open(&j->json, '[');
    }
    for (int i = 0; (path = ls_args_nth(j->args, "task", i)); i++) {
        ls_str_clear(&text);
        LS_TRY(st, read_file(path, &text), out);
        LS_TRY(
            st,
            ls_eval_choices_run(j->scorer, text.p, text.len, delimiter ? delimiter : " ", path, &r),
            out);
        (j->as_json ? put_choices : say_choices)(j, path, &r);
    }
    if (j->as_json)
        ls_json_close(&j->json);
out:
    ls_str_release(&text);
    return st;
}

/* --- the command ------------------------------------------------------------------------------ */

static ls_status check_flags(const ls_args *args)
{
    if (ls_args_has(args, "text") || ls_args_has(args, "task"))
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "there is nothing to evaluate the model on");
    ls_err_hint("Name a text with --text FILE, or questions with --task FILE.jsonl.");
    return st;
}

static ls_status check_stride(const job *j, int64_t *stride)
{
    int64_t context = ls_scorer_context(j->scorer);

    if (*stride == 0)
        *stride = context;
    if (*stride <= context)
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "--stride %lld is more than the model's context of %lld",
                           (long long)*stride, (long long)context);
    ls_err_hint("A window cannot predict more tokens than the model can see.");
    return st;
}

static ls_status run_eval(const ls_args *args, ls_str *out)
{
    job j = {.args = args, .as_json = ls_args_has(args, "json"), .out = out};
    ls_hf_folder *folder = NULL;
    int64_t stride;
    ls_status st;

    LS_TRY(st, check_flags(args), out);
    LS_TRY(st, ls_args_number(args, "stride", 0, 1, INT64_MAX, &stride), out);
    LS_TRY(st, ls_hf_folder_open_signed(&folder, args->rest[0], -1, ls_args_value(args, "key")),
           out);
    LS_TRY(st, ls_scorer_open(&j.scorer, folder), out);
    LS_TRY(st, check_stride(&j, &stride), out);
    j.watch = ls_cmd_data_watch_begin();
    ls_scorer_watch(j.scorer, show, &j);
    if (j.as_json) {
        ls_json_begin(&j.json, out);
        ls_json_open(&j.json, '{');
        ls_json_put_str(&j.json, "model", args->rest[0]);
    }
    st = run_texts(&j, stride);
    if (st == LS_OK)
        st = run_tasks(&j);
    ls_cmd_data_watch_end(&j.watch);
    if (st == LS_OK && j.as_json) {
        ls_json_close(&j.json);
        ls_str_append_char(out, '\n');
    }
out:
    ls_scorer_close(j.scorer);
    ls_hf_folder_close(folder);
    return st;
}

static const ls_flag flags[] = {
    {.name = "text",
     .value = "FILE",
     .repeats = true,
     .doc = "Measure the perplexity of this text."},
    {.name = "stride",
     .value = "N",
     .doc =
         "Tokens that each window over a text predicts; as many as the context has unless given. "
         "Fewer take longer and predict from more."},
    {.name = "task",
     .value = "FILE",
     .repeats = true,
     .doc = "Answer the multiple-choice questions of this JSONL file."},
    {.name = "delimiter",
     .value = "TEXT",
     .doc = "Text between a question and its choices; a blank unless given."},
    LS_CMD_DATA_JSON_FLAG,
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_eval = {
    .name = "eval",
    .summary = "measure a model on a text or on questions",
    .arguments = "MODEL",
    .about =
        "MODEL is a run folder, its checkpoints folder, \"best\" in one of them, one manifest "
        "(step-*.json), an imported model or a Hugging Face folder.\n\n"
        "A text is read as one document, in windows of the model's context; its perplexity is "
        "given "
        "by token, by word and by byte. Only the last two can be compared between tokenizers.\n\n"
        "A line of a task is {\"query\": TEXT, \"choices\": [TEXT, ...], \"gold\": NUMBER}. acc "
        "counts "
        "the questions whose right choice is the most likely one, acc_norm those where it is after "
        "dividing by its characters. The numbers are those of the lm_eval package.",
    .examples =
        "lineshaft eval runs/demo --text book.txt                 # perplexity\n"
        "lineshaft eval runs/demo --text book.txt --stride 128    # from more context, slower\n"
        "lineshaft eval models/qwen --task questions.jsonl --json # acc and acc_norm",
    .flags = flags,
    .run = run_eval,
};
