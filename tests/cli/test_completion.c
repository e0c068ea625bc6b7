/* test_completion.c -- completion scripts, tried in the shells that are here. */
#include "harness.h"
#include "base/file.h"
#include "cli/capture.h"
#include "cli/completion.h"

static void write_script(const char *shell, const char *path)
{
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_OK(ls_completion_script(shell, &text));
    LS_CHECK_OK(ls_file_write_atomic(path, text.p, text.len));
    ls_str_release(&text);
}

static void need(const char *program)
{
    char command[64];
    ls_str out;

    ls_str_init(&out);
    snprintf(command, sizeof command, "command -v %s", program);
    if (ls_capture_shell(command, &out) != 0)
        ls_test_skip("%s is not installed", program);
    ls_str_release(&out);
}

/* What bash would offer for these words; the last one is being typed. */
static void offers(const char *words, const char *want)
{
    char command[600];
    ls_str out;

    ls_str_init(&out);
    snprintf(command, sizeof command,
             "bash -uc '. ./script; compopt() { :; }; COMP_WORDS=(lineshaft %s); "
             "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lineshaft; echo \"${COMPREPLY[*]}\"'",
             words);
    LS_CHECK_EQ(ls_capture_shell(command, &out), 0);
    out.p[strcspn(out.p, "\n")] = '\0';
    if (strcmp(out.p, want) != 0)
        ls_test_fail(__FILE__, __LINE__, "\"%s\" offers \"%s\", expected \"%s\"", words, out.p,
                     want);
    ls_str_release(&out);
}

LS_TEST(completion_works_in_bash)
{
    ls_str out;

    need("bash");
    write_script("bash", "script");
    ls_str_init(&out);
    LS_CHECK_EQ(ls_capture_shell("bash -n script", &out), 0);
    LS_CHECK_STR(out.p, "");
    if (ls_capture_shell("command -v shellcheck >/dev/null", &out) == 0)
        LS_CHECK_EQ(ls_capture_shell("shellcheck -s bash script", &out), 0);
    ls_str_release(&out);
    offers("con", "config");
    offers("config ex", "explain");
    offers("-q config ex", "explain");
    offers("--color never config ex", "explain");
    offers("--color = never config ex", "explain");
    offers("config explain --js", "--json");
    offers("config explain run.yaml --set batch.",
           "batch.sequences= batch.leaf= batch.group= batch.ramp= batch.ramp_from=");
    offers("config explain run.yaml -s train.sche", "train.schedule=");
    offers("config explain --set train.schedule = c", "constant cosine");
    offers("config explain --set train.schedule =", "constant linear cosine wsd");
    offers("config explain --set data.shuffle = t", "true");
    offers("config explain --set batch.leaf = a", "auto");
    offers("config explain run.yaml batch.l", "batch.leaf");
    offers("config explain --set a.b = c run.yaml batch.l", "batch.leaf");
    offers("config explain r", ""); /* a file */
    offers("--color \"\"", "auto always never");
    offers("--color = n", "never");
    offers("completion \"\"", "bash zsh fish");
    offers("help exit", "exit-codes");
    offers("nonesuch x", "");
}

LS_TEST(completion_is_understood_by_zsh)
{
    ls_str out;

    need("zsh");
    write_script("zsh", "script");
    ls_str_init(&out);
    LS_CHECK_EQ(ls_capture_shell("zsh -n script", &out), 0);
    LS_CHECK_STR(out.p, "");
    /* The part that bash and zsh share must say the same in both. */
    LS_CHECK_EQ(ls_capture_shell("zsh -fc 'compdef() { :; }; . ./script; "
                                 "_lineshaft_path config --color never explain run.yaml; "
                                 "echo \"$ls_path/$ls_count\"; _lineshaft_values train.reduce'",
                                 &out),
                0);
    LS_CHECK_STR(out.p, "config explain/1\nordered fast \n");
    ls_str_clear(&out);
    /* The glue, with the completion system replaced by functions that say what they were given. */
    LS_CHECK_EQ(
        ls_capture_shell("zsh -fc 'compdef() { :; }; compset() { :; }; _files() { echo files; }; "
                         "compadd() { echo \"$@\"; }; . ./script; "
                         "words=(lineshaft config ex); CURRENT=3; _lineshaft; "
                         "words=(lineshaft config check r); CURRENT=4; _lineshaft; "
                         "words=(lineshaft config check -s sync=); CURRENT=5; _lineshaft'",
                         &out),
        0);
    LS_CHECK_STR(out.p, "-- check explain schema reference\nfiles\n-- allreduce\n");
    ls_str_release(&out);
}

LS_TEST(completion_works_in_fish)
{
    ls_str out;

    need("fish");
    write_script("fish", "script");
    ls_str_init(&out);
    LS_CHECK_EQ(ls_capture_shell("fish -n script", &out), 0);
    LS_CHECK_EQ(ls_capture_shell("fish -c 'source ./script; complete -C \"lineshaft con\"; "
                                 "complete -C \"lineshaft config ex\"; "
                                 "complete -C \"lineshaft config explain --set batch.l\"'",
                                 &out),
                0);
    LS_CHECK(strstr(out.p, "config\t") && strstr(out.p, "explain\t") &&
             strstr(out.p, "batch.leaf="));
    ls_str_release(&out);
}

LS_TEST(completion_of_an_unknown_shell_is_refused)
{
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_FAILS(ls_completion_script("tcsh", &out), LS_EUSAGE, "no completion for \"tcsh\"");
    ls_str_release(&out);
}
