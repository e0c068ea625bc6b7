/* test_args.c -- the command line against a small table of its own. */
#include "harness.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cli/args.h"

static const ls_flag flags[] = {
    {"set", 's', "KEY=VALUE", true, "Sets."},
    {"json", 'j', NULL, false, "Prints."},
    {"mode", 'm', "slow|fast", false, "Chooses."},
    {.name = NULL},
};
static const ls_command leaf = {.name = "leaf", .arguments = "RUN [FILE]", .flags = flags};
static const ls_command any = {.name = "any", .arguments = "[WORD ...]"};
static const ls_command *const subs[] = {&leaf, NULL};
static const ls_command group = {.name = "group", .subs = subs};
static const ls_command *const table[] = {&group, &leaf, &any, NULL};

static ls_status parse(ls_args *args, const char *const *words)
{
    int argc = 0;

    while (words[argc])
        argc++;
    return ls_args_parse(args, table, argc, words);
}
#define PARSE(args, ...) parse((args), (const char *const[]){"lineshaft", __VA_ARGS__, NULL})

LS_TEST(args_accept_every_form_of_a_flag)
{
    ls_args args;

    LS_CHECK_OK(PARSE(&args, "leaf", "--set", "a=1", "run", "--set=b=2", "-s", "c=3", "-sd=4",
                      "-jvv", "--mode=fast", "--", "--json"));
    LS_CHECK(args.command == &leaf);
    LS_CHECK_EQ(args.n_rest, 2);
    LS_CHECK_STR(args.rest[0], "run");
    LS_CHECK_STR(args.rest[1], "--json");
    LS_CHECK_STR(ls_args_nth(&args, "set", 0), "a=1");
    LS_CHECK_STR(ls_args_nth(&args, "set", 1), "b=2");
    LS_CHECK_STR(ls_args_nth(&args, "set", 3), "d=4");
    LS_CHECK(ls_args_nth(&args, "set", 4) == NULL);
    LS_CHECK_STR(ls_args_value(&args, "set"), "d=4");
    LS_CHECK_STR(ls_args_value(&args, "json"), "");
    LS_CHECK_STR(ls_args_value(&args, "mode"), "fast");
    LS_CHECK_EQ(ls_args_count(&args, "verbose"), 2);
    LS_CHECK(!ls_args_has(&args, "quiet"));
}

LS_TEST(args_find_sub_commands_behind_global_flags)
{
    ls_args args;

    LS_CHECK_OK(PARSE(&args, "-q", "group", "--color", "never", "leaf", "-", "x"));
    LS_CHECK(args.command == &leaf);
    LS_CHECK_STR(args.rest[0], "-");
    LS_CHECK_OK(PARSE(&args, "group"));
    LS_CHECK(args.command == &group);
    LS_CHECK_OK(PARSE(&args, "-v"));
    LS_CHECK(args.command == NULL);
    LS_CHECK_OK(PARSE(&args, "any"));
    LS_CHECK_OK(PARSE(&args, "leaf", "--help")); /* help needs no arguments */
}

LS_TEST(args_refuse_what_the_table_does_not_list)
{
    ls_args args;

    LS_CHECK_FAILS(PARSE(&args, "leef", "x"), LS_EUSAGE, "unknown command \"leef\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"lineshaft leaf\"?");
    LS_CHECK_FAILS(PARSE(&args, "wombat"), LS_EUSAGE, "unknown command \"wombat\"");
    LS_CHECK_STR(ls_err_last()->hint, "`lineshaft --help` lists the commands.");
    LS_CHECK_FAILS(PARSE(&args, "group", "x"), LS_EUSAGE, "has no command \"x\"");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "--jsn"), LS_EUSAGE, "has no flag \"--jsn\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"--json\"?");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "--mo"), LS_EUSAGE, "has no flag \"--mo\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"--mode\"?"); /* as --temp begins a word */
    LS_CHECK_FAILS(PARSE(&args, "leaf", "-jx"), LS_EUSAGE, "has no flag \"-x\"");
    LS_CHECK_FAILS(PARSE(&args, "--json", "leaf", "x"), LS_EUSAGE, "has no flag \"--json\"");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "--json=1"), LS_EUSAGE, "--json takes no value");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "x", "--set"), LS_EUSAGE, "--set needs a value");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "x", "-s"), LS_EUSAGE, "--set needs a value");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "x", "--mode", "quick"), LS_EUSAGE,
                   "--mode must be slow or fast, not \"quick\"");
    LS_CHECK_FAILS(PARSE(&args, "--color=", "leaf", "x"), LS_EUSAGE, "or never, not \"\"");
    LS_CHECK_FAILS(PARSE(&args, "leaf"), LS_EUSAGE, "needs RUN [FILE]");
    LS_CHECK_FAILS(PARSE(&args, "leaf", "a", "b", "c"), LS_EUSAGE, "the argument \"c\"");
}

/* The usage line says how many arguments there may be. */
LS_TEST(args_count_what_the_usage_line_shows)
{
    static const struct {
        const char *usage;
        int least, most; /* most 4: any number that is tried here */
    } rows[] = {{NULL, 0, 0},
                {"RUN", 1, 1},
                {"HF_FOLDER OUT", 2, 2},
                {"bash|zsh|fish", 1, 1},
                {"[FILE.lst]", 0, 1},
                {"RUN [KEY ...]", 1, 4},
                {"FOLDER | FILE ...", 1, 4},
                {"-- [COMMAND [ARGUMENT ...]]", 0, 4}};
    static const char *const words[] = {"lineshaft", "one", "a", "b", "c", "d"};

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        const ls_command one = {.name = "one", .arguments = rows[i].usage};
        const ls_command *const list[] = {&one, NULL};
        for (int n = 0; n <= 4; n++) {
            ls_args args;
            ls_status want = n < rows[i].least || n > rows[i].most ? LS_EUSAGE : LS_OK;
            LS_CHECK_EQ(ls_args_parse(&args, list, 2 + n, words), want);
        }
    }
}

LS_TEST(args_refuse_more_than_they_can_hold)
{
    const char *words[300] = {"lineshaft", "any"};
    ls_args args;

    for (int i = 2; i < 280; i++)
        words[i] = "x";
    LS_CHECK_FAILS(parse(&args, words), LS_EUSAGE, "more than 255 arguments");
    for (int i = 2; i < 70; i++)
        words[i] = "-v";
    LS_CHECK_FAILS(parse(&args, words), LS_EUSAGE, "more than 64 flags");
}

/* Asking for a flag that help does not show must never go unnoticed. */
LS_TEST(args_abort_on_a_flag_that_is_not_in_the_table)
{
    for (int which = 0; which < 2; which++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            ls_args args;
            int quiet = PARSE(&args, "leaf", "x") == LS_OK && freopen("/dev/null", "w", stderr);
            (void)quiet;
            if (which == 0)
                ls_args_value(&args, "nonesuch");
            else
                ls_args_nth(&args, "json", 0);
            _exit(0);
        }
        int status;
        LS_CHECK(waitpid(pid, &status, 0) == pid);
        LS_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

LS_TEST(args_answer_flags_of_other_programs)
{
    static const char *const cases[][3] = {
        {"train", "--lr", "Write --set train.lr=x."},
        {"train", "--lr=3e-4", "Write --set train.lr=3e-4."},
        {"train", "--model", "Write --set model.import=x."},
        {"train", "--steps", "Write --set train.steps=x."},
        {"train", "--seed", "Write --set train.seed=x."},
        {"train", "--bf16", "Write --set precision=bf16."},
        {"train", "--nproc_per_node=4", "Write -n N or --ranks N."},
        {"train", "--nproc-per-node", "Write -n N or --ranks N."},
        {"train", "--config", "The run file is an argument."},
        {"train", "--temp", "`lineshaft train --help` lists the flags."},
        {"generate", "--max_new_tokens", "Write -n N or --tokens N."},
        {"generate", "--temp", "Write --temperature X."},
        {"generate", "--greedy", "Write --temperature 0."},
        {"generate", "--interactive", "Write --chat."},
        {"generate", "--step",
         "An earlier step is named by its manifest, RUN/checkpoints/step-*.json."},
        {"generate", "--top_k", "Write --top-k K."},
    };
    ls_args args;

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        const char *argv[] = {"lineshaft", cases[i][0], cases[i][1], "x"};
        LS_CHECK_FAILS(ls_args_parse(&args, ls_commands, 4, argv), LS_EUSAGE, "has no flag \"--");
        LS_CHECK_STR(ls_err_last()->hint, cases[i][2]);
    }
}
