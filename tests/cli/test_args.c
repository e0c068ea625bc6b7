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
static const ls_command leaf = {
    .name = "leaf", .arguments = "RUN [FILE]", .least = 1, .most = 2, .flags = flags};
static const ls_command any = {.name = "any", .least = 0, .most = -1};
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
