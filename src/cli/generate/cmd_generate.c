/* cmd_generate.c -- lineshaft generate: let a model continue a text. */
#include "cli/generate/cmd_generate.h"

#include "cli/args.h"
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmds.h"

/* One prompt, one text. */
static ls_status run_once(ls_generate_model *m, const ls_generate_settings *s, const ls_args *args)
{
    ls_tokens ids;
    ls_str prompt;
    int64_t context = 0;
    ls_status st;

    ls_tokens_init(&ids);
    ls_str_init(&prompt);
    LS_TRY(st, ls_generate_context(m, s, &context), out);
    LS_TRY(st, ls_generate_read_prompt(args, &prompt), out);
    LS_TRY(st, ls_generate_encode(m, s, &prompt, &ids), out);
    /* Keys and values only for what can come. */
    LS_TRY(st,
           ls_generate_load(m, ls_min_i64(context, ids.count + s->count),
                            ls_args_count(args, "verbose") > 0),
           out);
    const ls_generate_task task = {.prompt = s->chat ? NULL : &prompt, .ids = &ids};
    st = ls_generate_speak(m, s, &task, NULL);
out:
    ls_tokens_release(&ids);
    ls_str_release(&prompt);
    return st;
}

static ls_status run_session(ls_generate_model *m, const ls_generate_settings *s,
                             const ls_args *args)
{
    int64_t context = 0;
    ls_status st;

    if (s->json)
        return ls_fail(LS_EUSAGE, "--json is one object, and a conversation has many answers");
    LS_TRY(st, ls_generate_context(m, s, &context), out);
    if (s->context == 0)
        context = ls_min_i64(context, LS_GENERATE_SESSION);
    LS_TRY(st, ls_generate_load(m, context, ls_args_count(args, "verbose") > 0), out);
    st = ls_generate_converse(m, s, context);
out:
    return st;
}

static ls_status run_generate(const ls_args *args, ls_str *out)
{
    ls_generate_model m = {.folder = NULL};
    ls_generate_settings s;
    ls_status st;

    (void)out;
    LS_TRY(st, ls_generate_read_flags(&s, args), out);
    LS_TRY(st, ls_generate_find(&m, args->rest[0], ls_args_value(args, "key"), s.chat), out);
    LS_TRY(st, ls_generate_read_defaults(&s, args, &m), out);
    st = (ls_generate_is_session(args) ? run_session : run_once)(&m, &s, args);
out:
    ls_generate_release(&m);
    return st;
}

static const ls_flag flags[] = {
    {.name = "prompt",
     .letter = 'p',
     .value = "TEXT",
     .doc = "Text to continue; - reads standard input, as does a pipe without this flag."},
    {.name = "prompt-file",
     .value = "FILE",
     .doc = "Take the prompt from a file, exactly as it is; - reads standard input."},
    {.name = "tokens",
     .letter = 'n',
     .value = "N",
     .doc = "Add at most N tokens; 200 unless given."},
    {.name = "temperature",
     .value = "X",
     .doc = "Randomness: 0 takes the most likely token; 0.8 unless given."},
    {.name = "top-k", .value = "K", .doc = "Choose among the K most likely; all unless given."},
    {.name = "top-p",
     .value = "P",
     .doc = "Choose among the most likely that sum to P; 0.95 unless given."},
    {.name = "min-p",
     .value = "P",
     .doc = "Leave out what is less than P times as likely as the most likely token."},
    {.name = "repetition-penalty",
     .value = "X",
     .doc = "Make tokens that are already there less likely; 1, no penalty, unless given."},
    {.name = "stop", .value = "TEXT", .repeats = true, .doc = "End before this text."},
    {.name = "seed", .value = "N", .doc = "The same seed gives the same text; 1 unless given."},
    {.name = "ignore-eos", .doc = "Go on where the model would end its text."},
    {.name = "chat",
     .doc = "The prompt is what a user says; the model's chat template asks for the answer. "
            "Without a prompt, at a terminal: a conversation."},
    {.name = "context",
     .value = "N",
     .doc = "The model sees at most N tokens at once; as many as it can unless given."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object at the end instead of the text."},
    {.name = NULL},
};

const ls_command ls_cmd_generate = {
    .name = "generate",
    .summary = "let a trained model continue a text",
    .arguments = "MODEL",
    .about =
        "MODEL is a run folder, its checkpoints folder, \"best\" in one of them, one manifest "
        "(step-*.json), or a "
        "Hugging Face folder. Of several checkpoints, the newest whole one is used.\n\n"
        "The text is printed while it is generated. It ends after --tokens tokens, before a "
        "--stop text, or where the model ends it. On a terminal, bytes that are not text are "
        "shown as dots. At the end, standard error reports the speed and why the text ended, "
        "unless --quiet is given; with --verbose also what uses memory. Ctrl-C ends the text "
        "and exits with 130.\n\n"
        "A generation_config.json in the folder gives defaults for temperature, top-k, top-p, "
        "min-p and the penalty; flags win. When the text outgrows the context of N tokens, "
        "its first N/2 are left out; so the model sees from N/2 to N tokens "
        "(docs/guide/generate.md).\n\n"
        "Without --prompt and --prompt-file, a pipe or a file at standard input is the prompt, "
        "without its last line feed. With --chat at a terminal each line is a message, and the "
        "model sees the whole conversation: /reset begins a new one, /system TEXT gives it "
        "instructions, /quit or Ctrl-D ends it, and Ctrl-C ends an answer.\n\n"
        "The JSON object has text, finish_reason (length, eos, stop or interrupted), stop, "
        "sampling, prompt_ids, ids and timings.",
    .examples =
        "lineshaft generate runs/demo --prompt \"Once upon a time\"  # continue a text\n"
        "lineshaft generate runs/demo -p \"The fox\" --temperature 0  # most likely text\n"
        "echo \"The fox\" | lineshaft generate runs/demo  # a prompt from a pipe\n"
        "lineshaft generate runs/chat --chat  # a conversation\n"
        "lineshaft generate runs/demo -p \"Q: why?\" --stop \"Q:\" --stop END  # end before these\n"
        "lineshaft generate runs/demo --prompt-file story.txt --json  # for programs\n"
        "lineshaft generate runs/demo/checkpoints/step-0000000400.json  # an earlier step",
    .flags = flags,
    .run = run_generate,
};
