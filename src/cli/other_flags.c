/* other_flags.c -- from flags of other programs to a flag or a key of ours.
 *
 * In this order: our own flag with - for _; a flag of this command that other programs call by this word; for a command
 * that takes --set, the option of that last part ("--steps" -> train.steps) or of that name elsewhere. */
#include "cli/other_flags.h"

#include "config/option.h"
#include "config/other_names.h"

static const struct {
    const char *words,
        *flag; /* words between spaces, as a command line has them but with _ for - */
} rows[] = {
    {"max_tokens max_new_tokens n_predict num_tokens n_tokens max_length max_gen_len length",
     "tokens"},
    {"temp", "temperature"},
    {"interactive conversation", "chat"},
    {"repeat_penalty rep_pen", "repetition-penalty"},
    {"ctx_size ctx n_ctx max_seq_len", "context"},
    {"file input_file", "prompt-file"},
    {"stop_sequence stop_token", "stop"},
    {"gpus ngpus num_gpus n_gpus nproc_per_node nproc procs num_processes np world_size devices "
     "ntasks",
     "ranks"},
    {"nnodes num_nodes num_machines", "nodes"},
    {"master_addr master_port rdzv_endpoint", "listen"},
    {"output output_file out_file out", "output"},
    {"dtype torch_dtype precision outtype", "dtype"},
    {"overwrite force restart no_resume from_scratch", "fresh"},
    {"log_dir logs", "log-dir"},
};

/* What is no flag here but an argument, or needs none. */
static const struct {
    const char *words, *instead;
} sentences[] = {
    {"config config_file run yaml cfg", "The run file is an argument"},
    {"model model_path model_name_or_path ckpt checkpoint m", "The model is an argument"},
    {"resume resume_from_checkpoint",
     "A run resumes by itself from the newest checkpoint in its folder"},
    {"step checkpoint_step global_step",
     "An earlier step is named by its manifest, RUN/checkpoints/step-*.json"},
    {"greedy no_sample", "Write --temperature 0"},
};

/* Commands of other programs. */
static const struct {
    const char *words, *instead;
} commands[] = {
    {"finetune fine_tune pretrain sft fit run start resume continue", "train RUN.yaml"},
    {"chat ask talk", "generate MODEL --chat"},
    {"infer inference sample complete predict prompt", "generate MODEL --prompt TEXT"},
    {"tokenize encode", "data encode"},
    {"tokenizer", "data tokenizer"},
    {"convert load", "import HF_FOLDER OUT` or `lineshaft export CKPT OUT"},
    {"save", "export CKPT OUT"},
    {"evaluate test perplexity ppl", "eval MODEL --text FILE"},
    {"init new create", "train --print > run.yaml"},
    {"check validate lint", "config check RUN.yaml"},
    {"info inspect show", "ckpt show CKPT"},
};

static const ls_flag *own_flag(const ls_command *command, const char *name)
{
    for (const ls_flag *f = command ? command->flags : NULL; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static void show_flag(const ls_flag *flag, ls_str *out)
{
    ls_str_append(out, "Write ");
    if (flag->letter)
        ls_str_printf(out, "-%c%s%s or ", flag->letter, flag->value ? " " : "",
                      flag->value ? flag->value : "");
    ls_str_printf(out, "--%s%s%s.", flag->name, flag->value ? " " : "",
                  flag->value ? flag->value : "");
}

/* "MODEL", "RUN": the arguments of the command name what the sentence is about. */
static bool sentence_fits(const ls_command *command, size_t i)
{
    static const char *const about[] = {"RUN", "MODEL", "RUN", "MODEL", "MODEL"};

    return command && command->arguments && strstr(command->arguments, about[i]);
}

/* The option with exactly this last part; of several, that of training. */
static const ls_option *own_option(const char *name)
{
    const ls_option *found = NULL;

    for (int i = 0; i < ls_option_count; i++)
        if (strcmp(ls_option_leaf(&ls_options[i]), name) == 0 &&
            (!found || ls_option_in(&ls_options[i], "train")))
            found = &ls_options[i];
    return found;
}

static bool suggest_setting(const char *word, const char *value, ls_str *out)
{
    const ls_option *row = own_option(word);

    if (ls_other_names_suggest(word, &(ls_other_names_place){.flag = "--set", .value = value}, out))
        return true;
    const char *meant = row ? NULL : ls_other_names_of_section(word, "");
    if (meant)
        row = ls_option_find(meant);
    if (row)
        ls_str_printf(out, "Write --set %s=%.60s.", row->key, *value ? value : "VALUE");
    return row;
}

bool ls_other_flags_suggest(const ls_command *command, const char *name, const char *value,
                            ls_str *out)
{
    char word[64], dashed[64];
    size_t n = 0;

    for (; name[n] && n + 1 < sizeof word; n++) {
        word[n] = name[n] == '-' ? '_' : name[n];
        dashed[n] = name[n] == '_' ? '-' : name[n];
    }
    word[n] = dashed[n] = '\0';
    if (own_flag(command, dashed)) {
        show_flag(own_flag(command, dashed), out);
        return true;
    }
    for (size_t i = 0; i < LS_COUNT(rows); i++)
        if (ls_other_names_has(rows[i].words, word) && own_flag(command, rows[i].flag)) {
            show_flag(own_flag(command, rows[i].flag), out);
            return true;
        }
    for (size_t i = 0; i < LS_COUNT(sentences); i++)
        if (ls_other_names_has(sentences[i].words, word) && sentence_fits(command, i)) {
            ls_str_printf(out, "%s.", sentences[i].instead);
            return true;
        }
    return own_flag(command, "set") && suggest_setting(word, value, out);
}

bool ls_other_flags_command(const char *word, ls_str *out)
{
    char plain[64];
    size_t n = 0, dot = strlen(word);

    if (dot > 5 && (strcmp(word + dot - 5, ".yaml") == 0 || strcmp(word + dot - 4, ".yml") == 0)) {
        ls_str_printf(out, "A run file follows a command: `lineshaft train %.60s`.", word);
        return true;
    }
    for (; word[n] && n + 1 < sizeof plain; n++)
        plain[n] = word[n] == '-' ? '_' : word[n];
    plain[n] = '\0';
    for (size_t i = 0; i < LS_COUNT(commands); i++)
        if (ls_other_names_has(commands[i].words, plain)) {
            ls_str_printf(out, "Write `lineshaft %s`.", commands[i].instead);
            return true;
        }
    return false;
}

/* A dash, a long one or a minus sign of a word processor, in UTF-8. */
static bool is_other_dash(const char *word)
{
    return strncmp(word, "\xe2\x80\x93", 3) == 0 || strncmp(word, "\xe2\x80\x94", 3) == 0 ||
           strncmp(word, "\xe2\x88\x92", 3) == 0;
}

bool ls_other_flags_argument(const ls_command *command, const char *word, ls_str *out)
{
    const char *is = strchr(word, '=');

    if (is_other_dash(word))
        ls_str_append(out, "It begins with a dash of a word processor: type --.");
    else if (is && is > word && own_flag(command, "set"))
        ls_str_printf(out, "Write --set %.60s.", word);
    else if (own_flag(command, "set") && strspn(word, "=0123456789.eE+-") == strlen(word))
        ls_str_append(out, "A setting is one word, without blanks: --set train.lr=1e-3.");
    else if (own_flag(command, "prompt"))
        ls_str_append(out, "Write --prompt \"TEXT\", in quotes.");
    else
        return false;
    return true;
}
