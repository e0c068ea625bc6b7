/* test_dispatch.c -- the program from argv to exit code. */
#include "harness.h"
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "cli/capture.h"
#include "cli/dispatch.h"
#include "cli/report.h"
#include "golden/golden.h"

static const char good[] = "model: {layers: 6, width: 384, heads: 6, context: 256}\n"
                           "data: {text: builtin:stories}\n";

static void write_run(void)
{
    LS_CHECK_OK(ls_file_write_atomic("run.yaml", good, sizeof good - 1));
}

LS_TEST(dispatch_errors_are_as_reviewed)
{
    static const char *const lines[][6] = {
        {"confg"},
        {"wombat"},
        {"config", "chek", "run.yaml"},
        {"config", "check"},
        {"config", "check", "none.yaml"},
        {"config", "check", "run.yaml", "other"},
        {"config", "check", "run.yaml", "--sett", "a=b"},
        {"config", "check", "run.yaml", "--set"},
        {"config", "check", "run.yaml", "--set", "train.step=5"},
        {"config", "check", "run.yaml", "-x"},
        {"config", "explain", "run.yaml", "trian.lr"},
        {"config", "explain", "run.yaml", "--json", "--yaml"},
        {"config", "explain", "run.yaml", "--yaml", "batch"},
        {"--color=blue", "version"},
        {"completion", "tcsh"},
        {"help", "wombat"},
        {"help", "--markdown", "wombat"},
    };
    ls_str text;

    write_run();
    ls_str_init(&text);
    for (size_t i = 0; i < LS_COUNT(lines); i++) {
        ls_capture c;
        ls_capture_run(&c, lines[i]);
        LS_CHECK_STR(c.out.p, "");
        ls_str_append(&text, "$ lineshaft");
        for (int k = 0; lines[i][k]; k++)
            ls_str_printf(&text, " %s", lines[i][k]);
        ls_str_printf(&text, "\n%s[exit code %d]\n\n", c.err.p, c.code);
        ls_capture_release(&c);
    }
    ls_golden_check("tests/golden/cli-errors.txt", &text, "LINESHAFT_GOLDEN=write");
    ls_str_release(&text);
}

LS_TEST(dispatch_without_a_command_shows_help_and_fails)
{
    ls_capture c;

    ls_capture_run(&c, (const char *const[]){NULL});
    LS_CHECK_EQ(c.code, 2);
    LS_CHECK_STR(c.out.p, "");
    LS_CHECK(strstr(c.err.p, "Commands:") && strstr(c.err.p, "error: \"lineshaft\" needs"));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "config");
    LS_CHECK_EQ(c.code, 2);
    LS_CHECK(strstr(c.err.p, "explain") && c.out.len == 0);
    ls_capture_release(&c);
}

LS_TEST(dispatch_shows_the_version)
{
    ls_capture c;
    json_error_t error;

    LS_CAPTURE(&c, "--version");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_STR(c.out.p, "lineshaft " LS_VERSION "\n");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "version", "--json");
    json_t *root = json_loads(c.out.p, 0, &error);
    LS_CHECK(root && strcmp(json_string_value(json_object_get(root, "version")), LS_VERSION) == 0);
    json_decref(root);
    ls_capture_release(&c);
}

LS_TEST(dispatch_checks_and_explains_a_run_file)
{
    ls_capture c;

    write_run();
    LS_CAPTURE(&c, "config", "check", "run.yaml", "-s", "train.steps=7");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_STR(c.err.p, "");
    LS_CHECK_STR(c.out.p, "run.yaml is valid: gpt2, 6 layers of width 384, 16 x 256 tokens a step, "
                          "7 steps, into runs/run\n");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "config", "check", "-q", "run.yaml");
    LS_CHECK(c.code == 0 && c.out.len == 0);
    ls_capture_release(&c);
    LS_CAPTURE(&c, "config", "explain", "run.yaml", "train.steps", "--set", "train.steps=7");
    LS_CHECK_STR(c.out.p, "train.steps  7  --set\n");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "config", "explain", "run.yaml", "--yaml");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_OK(ls_file_write_atomic("full.yaml", c.out.p, c.out.len));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "config", "check", "full.yaml");
    LS_CHECK_EQ(c.code, 0);
    ls_capture_release(&c);
    LS_CHECK(!ls_file_exists("runs"));
}

LS_TEST(dispatch_uses_colour_only_when_asked)
{
    ls_capture c;

    setenv("TERM", "xterm", 1);
    LS_CAPTURE(&c, "wombat");
    LS_CHECK(!strchr(c.err.p, '\033')); /* a file is no terminal */
    ls_capture_release(&c);
    LS_CAPTURE(&c, "--color", "always", "wombat");
    LS_CHECK(strstr(c.err.p, "\033[31merror:\033[0m"));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "help", "--color=always");
    LS_CHECK(strstr(c.out.p, "\033[1mUsage:\033[0m"));
    ls_capture_release(&c);
}

LS_TEST(dispatch_warns_with_the_program_name)
{
    ls_capture c;

    LS_EXPECT_LOG(2);
    write_run();
    setenv("LINESHAFT_BATCH_SEQUENCE", "3", 1);
    LS_CAPTURE(&c, "config", "check", "run.yaml");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_STR(c.err.p, "lineshaft: warning: the variable LINESHAFT_BATCH_SEQUENCE is no option "
                          "and is ignored; is batch.sequences meant?\n");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "config", "check", "run.yaml", "-q");
    LS_CHECK_STR(c.err.p, "");
    ls_capture_release(&c);
}

/* Run with standard output on fd in another process; its wait status, and what it said. */
static int run_onto(int fd, bool ignore_pipe, ls_str *said)
{
    FILE *err = tmpfile();
    char block[512];
    int status;

    LS_CHECK(err != NULL);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        if (ignore_pipe)
            signal(SIGPIPE, SIG_IGN);
        _exit(ls_dispatch_main(3, (const char *const[]){"lineshaft", "help", "run-file"}));
    }
    LS_CHECK(waitpid(pid, &status, 0) == pid);
    rewind(err);
    size_t n = fread(block, 1, sizeof block, err);
    ls_str_append_bytes(said, block, n);
    fclose(err);
    return status;
}

LS_TEST(dispatch_leaves_quietly_when_the_reader_is_gone)
{
    int ends[2];
    ls_str said;

    ls_str_init(&said);
    LS_CHECK_EQ(pipe(ends), 0);
    close(ends[0]);
    int status = run_onto(ends[1], true, &said);
    LS_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
    LS_CHECK_STR(said.p, "");
    close(ends[1]);
    ls_str_release(&said);
}

LS_TEST(dispatch_says_when_output_cannot_be_written)
{
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ls_str said;

    if (full < 0)
        ls_test_skip("there is no /dev/full here");
    ls_str_init(&said);
    int status = run_onto(full, false, &said);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    LS_CHECK_STR(said.p,
                 "lineshaft: error: cannot write to standard output: No space left on device\n");
    close(full);
    ls_str_release(&said);
}

LS_TEST(dispatch_report_has_three_lines)
{
    const ls_term plain = {.width = 80}, colour = {.width = 80, .color = true};
    ls_err_record record = {.code = LS_EIO,
                            .text = "cannot open \"x\"",
                            .hint = "Check it.",
                            .doing = "restoring step 5"};
    ls_str text;

    ls_str_init(&text);
    ls_report_render(&record, &plain, &text);
    LS_CHECK_STR(text.p, "lineshaft: error: cannot open \"x\"\n  while: restoring step 5\n"
                         "  hint: Check it.\n");
    record = (ls_err_record){.code = LS_EINTR, .text = "saved at step 5"};
    ls_str_clear(&text);
    ls_report_render(&record, &plain, &text);
    LS_CHECK_STR(text.p, "lineshaft: stopped: saved at step 5\n");
    ls_str_clear(&text);
    ls_report_render(&record, &colour, &text);
    LS_CHECK(strstr(text.p, "\033[33mstopped:\033[0m"));
    ls_str_release(&text);
}

LS_TEST(report_shows_control_characters_of_others)
{
    ls_err_record record = {.code = LS_EDATA,
                            .text = "the template said \"\033[2J\033]0;x\007\"\nlineshaft: done",
                            .hint = "Ask \xc2\x9b"
                                    "31m.",
                            .doing = "reading \"a\rb\""};
    ls_term plain = {.fd = 2}, colour = {.fd = 2, .color = true};
    ls_str text;

    ls_str_init(&text);
    ls_report_render(&record, &plain, &text);
    LS_CHECK_STR(text.p, "lineshaft: error: the template said \"\\x1b[2J\\x1b]0;x\\x07\"\n"
                         "    lineshaft: done\n"
                         "  while: reading \"a\\x0db\"\n"
                         "  hint: Ask \\xc2\\x9b31m.\n");
    ls_str_clear(&text);
    ls_report_render(&record, &colour, &text);
    LS_CHECK(strstr(text.p, "\033[31merror") && !strstr(text.p, "\033[2J"));
    ls_str_release(&text);
}
