/* test_cmd_data.c -- the data command: what it prints, what it refuses. */
#include "cli/cmd_data.h"
#include "cli/term.h"

#include <fcntl.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "harness.h"

static const ls_command *find_sub(const char *name)
{
    for (const ls_command *const *c = ls_cmd_data.subs; *c; c++)
        if (strcmp((*c)->name, name) == 0)
            return *c;
    ls_test_fail(__FILE__, __LINE__, "no sub-command %s", name);
}

/* Words: "--flag" "value" (or nothing for a switch), and arguments. */
static void parse(ls_args *args, const char *sub, const char *const *words)
{
    *args = (ls_args){.command = find_sub(sub)};
    for (; *words; words++) {
        const ls_flag *f = args->command->flags;
        if (strncmp(*words, "--", 2) != 0) {
            args->rest[args->n_rest++] = *words;
            continue;
        }
        while (f->name && strcmp(f->name, *words + 2) != 0)
            f++;
        LS_CHECK(f->name);
        args->given[args->n_given].flag = f;
        args->given[args->n_given++].value = f->value ? *++words : NULL;
    }
}

/* Run a sub-command with standard output in out_file and input from in_file (NULL: none). */
static ls_status run_sub(const char *in_file, const char *out_file, const char *sub,
                         const char *const *words)
{
    ls_args args;
    int out = open(out_file, O_CREAT | O_TRUNC | O_WRONLY, 0644), saved = dup(STDOUT_FILENO);
    int in = open(in_file ? in_file : "/dev/null", O_RDONLY);

    LS_CHECK(out >= 0 && saved >= 0 && in >= 0);
    parse(&args, sub, words);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(in, STDIN_FILENO);
    ls_str text;
    ls_str_init(&text);
    ls_status st = args.command->run(&args, &text);
    if (st == LS_OK)
        LS_CHECK_OK(ls_term_print(&text));
    ls_str_release(&text);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(out);
    close(in);
    return st;
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void read_out(const char *path, ls_str *out)
{
    ls_str_clear(out);
    LS_CHECK_OK(ls_file_read(path, LS_MIB, out));
}

static void put_text(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

LS_TEST(build_then_inspect)
{
    ls_str out;

    ls_str_init(&out);
    put_text("a.txt", "Hello, little world.\nSecond line.\n");
    put_text("b.txt", "Other document.");
    LS_CHECK_OK(run_sub(NULL, "out", "build", WORDS("--out", "ab.lst", "a.txt", "b.txt")));
    read_out("out", &out);
    LS_CHECK_STR(out.p, "ab.lst: 50 tokens in 2 documents\n");
    LS_CHECK_OK(run_sub(NULL, "out", "inspect", WORDS("ab.lst")));
    read_out("out", &out);
    LS_CHECK(strstr(out.p, "tokens     50 of 1 byte\n"));
    LS_CHECK(strstr(out.p, "begins     Hello, little world.\n"));
    LS_CHECK(strstr(out.p, "made of    a.txt b.txt "));
    LS_CHECK(strstr(out.p, "all checksums match"));
    LS_CHECK_OK(run_sub(NULL, "out", "inspect", WORDS("ab.lst", "--json")));
    read_out("out", &out);
    LS_CHECK(strstr(out.p, "\"tokens\":50,\"documents\":2,\"width\":1,\"vocab\":256"));
    LS_CHECK(strstr(out.p, "\"first_text\":\"Hello, little world.\\nSecond line.\\n\""));
    LS_CHECK(strstr(out.p, "\"verified\":true"));
    ls_str_release(&out);
}

LS_TEST(inspect_reports_damage)
{
    ls_str out;

    ls_str_init(&out);
    put_text("a.txt", "Hello, little world.");
    LS_CHECK_OK(run_sub(NULL, "out", "build", WORDS("--out", "a.lst", "a.txt", "--json")));
    read_out("out", &out);
    LS_CHECK_STR(out.p, "{\"file\":\"a.lst\",\"tokens\":20,\"documents\":1,\"bytes\":544}\n");
    ls_str_clear(&out);
    LS_CHECK_OK(ls_file_read("a.lst", LS_MIB, &out));
    out.p[515] ^= 1;
    LS_CHECK_OK(ls_file_write_atomic("a.lst", out.p, out.len));
    LS_CHECK_FAILS(run_sub(NULL, "out", "inspect", WORDS("a.lst")), LS_EDATA,
                   "checksum of its tokens");
    read_out("out", &out);
    LS_CHECK(strstr(out.p, "verify     FAILED"));
    LS_CHECK_FAILS(run_sub(NULL, "out", "inspect", WORDS("a.txt")), LS_EDATA, "not a token shard");
    ls_str_release(&out);
}

LS_TEST(build_refuses_bad_input)
{
    put_text("a.txt", "bad \xff");
    LS_CHECK_FAILS(run_sub(NULL, "out", "build", WORDS("a.txt")), LS_EUSAGE, "--out is missing");
    LS_CHECK_FAILS(run_sub(NULL, "out", "build", WORDS("--out", "x.txt", "a.txt")), LS_EUSAGE,
                   "does not end in .lst");
    LS_CHECK_FAILS(run_sub(NULL, "out", "build", WORDS("--out", "x.lst", "a.txt")), LS_EDATA,
                   "not UTF-8 at byte 4");
    LS_CHECK_FAILS(
        run_sub(NULL, "out", "build", WORDS("--out", "x.lst", "--tokenizer", "words", "a.txt")),
        LS_EUSAGE, "words");
    LS_CHECK_FAILS(run_sub(NULL, "out", "build", WORDS("--out", "x.lst", "--utf8", "no", "a.txt")),
                   LS_EUSAGE, "strict, replace or bytes");
    LS_CHECK(!ls_file_exists("x.lst"));
    LS_CHECK_OK(run_sub(NULL, "out", "build", WORDS("--out", "x.lst", "--utf8", "bytes", "a.txt")));
    LS_CHECK(ls_file_exists("x.lst"));
}

LS_TEST(encode_and_decode_are_inverse)
{
    ls_str out;

    ls_str_init(&out);
    put_text("a.txt", "h\xc3\xa9\n\xff");
    LS_CHECK_OK(run_sub(NULL, "ids", "encode", WORDS("a.txt")));
    read_out("ids", &out);
    LS_CHECK_STR(out.p, "104\n195\n169\n10\n255\n");
    LS_CHECK_OK(run_sub("ids", "back", "decode", WORDS("--tokenizer", "bytes")));
    read_out("back", &out);
    LS_CHECK_STR(out.p, "h\xc3\xa9\n\xff");
    put_text("bad", "104\n10x\n");
    LS_CHECK_FAILS(run_sub(NULL, "back", "decode", WORDS("bad")), LS_EDATA,
                   "line 2 is not a token id: \"10x\"");
    put_text("bad", "104 256");
    LS_CHECK_FAILS(run_sub(NULL, "back", "decode", WORDS("bad")), LS_EDATA, "token id 256");
    put_text("bad", "99999999999");
    LS_CHECK_FAILS(run_sub(NULL, "back", "decode", WORDS("bad")), LS_EDATA, "line 1");
    ls_str_release(&out);
}

LS_TEST(stories_are_written)
{
    ls_str out, again;

    ls_str_init(&out);
    ls_str_init(&again);
    LS_CHECK_OK(run_sub(NULL, "out", "stories", WORDS("--bytes", "200K")));
    read_out("out", &out);
    LS_CHECK(out.len >= 200 * 1024 && out.len < 203 * 1024);
    LS_CHECK(strstr(out.p, "\n\n"));
    LS_CHECK_OK(run_sub(NULL, "out", "stories", WORDS("--bytes", "200K", "--seed", "2")));
    read_out("out", &again);
    LS_CHECK(strcmp(out.p, again.p) != 0);
    LS_CHECK_FAILS(run_sub(NULL, "out", "stories", WORDS("--seed", "x")), LS_EUSAGE, "--seed");
    ls_str_release(&out);
    ls_str_release(&again);
}

LS_TEST(full_output_disk_is_reported)
{
    if (access("/dev/full", W_OK) != 0)
        ls_test_skip("there is no /dev/full");
    LS_CHECK_FAILS(run_sub(NULL, "/dev/full", "stories", WORDS("--bytes", "200K")), LS_EIO,
                   "standard output");
}

static ls_run mixture(const char **items, double *weights)
{
    ls_run run = {.out = "run"};

    items[0] = "builtin:stories:20K";
    items[1] = "a.txt";
    weights[0] = 0.75;
    weights[1] = 0.25;
    run.model.context = 32;
    run.batch.sequences = 3;
    run.train.seed = 11;
    run.data.tokenizer = "bytes";
    run.data.field = "text";
    run.data.shuffle = true;
    run.data.validation = 0.1;
    run.data.text = (ls_run_list){items, 2};
    run.data.weights = (ls_run_floats){weights, 2};
    return run;
}

static ls_status check_to(const char *out_file, const ls_run *run, int64_t steps, bool json)
{
    int out = open(out_file, O_CREAT | O_TRUNC | O_WRONLY, 0644), saved = dup(STDOUT_FILENO);

    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    ls_str text;
    ls_str_init(&text);
    ls_status st = ls_cmd_data_check(run, steps, json, &text);
    ls_str_release(&text);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(out);
    return st;
}

LS_TEST(check_proves_a_run)
{
    const char *items[2];
    double weights[2];
    ls_run run = mixture(items, weights);
    ls_str out;

    ls_str_init(&out);
    for (int i = 0; i < 200; i++)
        ls_str_append(&out, "some words in a file ");
    put_text("a.txt", out.p);
    LS_CHECK_OK(check_to("out", &run, 0, false));
    read_out("out", &out);
    LS_CHECK(strstr(out.p, "exactly once"));
    LS_CHECK(ls_file_exists("run/data/text-0.lst"));
    LS_CHECK_OK(check_to("out", &run, 2000, true));
    read_out("out", &out);
    LS_CHECK(strstr(out.p, "{\"passed\":true,\"fault\":null,\"positions\":6000,") == out.p);
    LS_CHECK(strstr(out.p, "\"source\":\"a.txt\""));
    run.data.weights.count = 0;
    run.data.shuffle = false;
    LS_CHECK_OK(check_to("out", &run, 5, true));
    read_out("out", &out);
    LS_CHECK(strstr(out.p, "{\"passed\":true,\"fault\":null,\"positions\":15,") == out.p);
    ls_str_release(&out);
}
