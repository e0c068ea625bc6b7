/* test_cmd_ckpt.c -- the command: what it prints and how it ends. */
#include "harness.h"
#include "sample.h"
#include "base/file.h"
#include "cli/term.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

extern const ls_command ls_cmd_ckpt;

/* Run a sub-command with a path and flags (name, value, ..., NULL); its output goes to text. */
static ls_status run(const char *sub, const char *path, const char *const *flags, ls_str *text)
{
    const ls_command *command = NULL;
    ls_args args = {.rest = {path}, .n_rest = 1};
    int saved = dup(STDOUT_FILENO), fd = open("out", O_CREAT | O_RDWR | O_TRUNC, 0644);

    for (const ls_command *const *c = ls_cmd_ckpt.subs; *c; c++)
        if (strcmp((*c)->name, sub) == 0)
            command = *c;
    LS_CHECK(command && fd >= 0 && saved >= 0);
    args.command = command;
    for (; flags && *flags; flags += 2)
        for (const ls_flag *f = command->flags; f->name; f++)
            if (strcmp(f->name, flags[0]) == 0) {
                args.given[args.n_given].flag = f;
                args.given[args.n_given++].value = f->value ? flags[1] : NULL;
            }
    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    ls_str_clear(text);
    ls_status st = command->run(&args, text);
    if (st == LS_OK)
        LS_CHECK_OK(ls_term_print(text));
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(fd);
    close(saved);
    ls_str_clear(text);
    LS_CHECK_OK(ls_file_read("out", 1 << 20, text));
    return st;
}

static const char *const as_json[] = {"json", "", NULL};

LS_TEST(cmd_ckpt_list_shows_each_checkpoint)
{
    sample s;
    ls_str text;
    json_error_t error;

    ls_str_init(&text);
    sample_make_tiny(&s);
    LS_CHECK_OK(sample_save("run/checkpoints", &s, 100));
    LS_CHECK_OK(sample_save("run/checkpoints", &s, 200));
    file_cut("run/checkpoints/step-0000000200.json", 77);
    LS_CHECK_OK(run("list", "run", NULL, &text));
    LS_CHECK(strstr(text.p, "       100  20") && strstr(text.p, "2.5000  ok\n"));
    LS_CHECK(strstr(text.p,
                    "       200  checkpoint \"run/checkpoints/step-0000000200.json\" is damaged"));
    LS_CHECK_OK(run("list", "run/checkpoints", as_json, &text));
    json_t *root = json_loads(text.p, 0, &error);
    json_t *rows = json_object_get(root, "checkpoints");
    LS_CHECK_EQ(json_array_size(rows), 2);
    LS_CHECK_EQ(json_integer_value(json_object_get(json_array_get(rows, 0), "step")), 100);
    LS_CHECK_EQ(json_integer_value(json_object_get(json_array_get(rows, 0), "tokens")), 76800);
    LS_CHECK(json_is_true(json_object_get(json_array_get(rows, 0), "ok")));
    LS_CHECK(json_is_false(json_object_get(json_array_get(rows, 1), "ok")));
    json_decref(root);
    ls_str_release(&text);
    sample_release(&s);
}

LS_TEST(cmd_ckpt_verify_ends_with_data_error_and_names_the_damage)
{
    sample s;
    ls_str text;
    file_list files;
    json_error_t error;

    ls_str_init(&text);
    sample_make_tiny(&s);
    LS_CHECK_OK(sample_save("c", &s, 100));
    file_list_make(&files, "c", ".safetensors");
    LS_CHECK_OK(sample_save("c", &s, 200));
    LS_CHECK_OK(run("verify", "c", NULL, &text));
    LS_CHECK(strstr(text.p, "step 100  ok, ") && strstr(text.p, "step 200  ok, "));
    file_flip(files.path[0], file_size(files.path[0]) - 1, 7);
    LS_CHECK_FAILS(run("verify", "c", NULL, &text), LS_EDATA,
                   "1 of 2 checkpoints in \"c\" is damaged");
    LS_CHECK(strstr(text.p, "step 100  DAMAGED") && strstr(text.p, files.path[0]) &&
             strstr(text.p, "    holds a (") && strstr(text.p, "step 200  ok, "));
    LS_CHECK_OK(run("verify", "c", (const char *const[]){"step", "200", NULL}, &text));
    LS_CHECK(!strstr(text.p, "step 100  "));
    LS_CHECK_FAILS(run("verify", "c/step-0000000100.json", as_json, &text), LS_EDATA, "1 of 1");
    json_t *root = json_loads(text.p, 0, &error);
    json_t *row = json_array_get(json_object_get(root, "checkpoints"), 0);
    json_t *damage = json_array_get(json_object_get(row, "damage"), 0);
    LS_CHECK_STR(json_string_value(json_object_get(damage, "object")), files.path[0]);
    LS_CHECK_EQ(json_integer_value(json_object_get(root, "damaged")), 1);
    json_decref(root);
    ls_str_release(&text);
    sample_release(&s);
}

LS_TEST(cmd_ckpt_bad_arguments_get_a_sentence)
{
    sample s;
    ls_str text;

    ls_str_init(&text);
    sample_make_tiny(&s);
    LS_CHECK_FAILS(run("list", "nowhere", NULL, &text), LS_EUSAGE, "there is no \"nowhere\"");
    LS_CHECK_OK(ls_file_make_dirs("empty/objects"));
    LS_CHECK_OK(run("list", "empty", NULL, &text));
    LS_CHECK_STR(text.p, "no checkpoints in empty\n");
    LS_CHECK_FAILS(run("verify", "empty", NULL, &text), LS_EUSAGE, "no checkpoints in \"empty\"");
    LS_CHECK_OK(sample_save("c", &s, 1));
    LS_CHECK_FAILS(run("verify", "c", (const char *const[]){"step", "9x", NULL}, &text), LS_EUSAGE,
                   "not \"9x\"");
    LS_CHECK_FAILS(run("verify", "c", (const char *const[]){"step", "9", NULL}, &text), LS_EUSAGE,
                   "no checkpoint of step 9");
    ls_str_release(&text);
    sample_release(&s);
}

LS_TEST(cmd_ckpt_pin_and_chain_are_shown)
{
    sample s;
    ls_str text;

    ls_str_init(&text);
    sample_make_tiny(&s);
    LS_CHECK_OK(sample_save("run/checkpoints", &s, 100));
    LS_CHECK_OK(sample_save("run/checkpoints", &s, 200));
    LS_CHECK_FAILS(run("pin", "run", NULL, &text), LS_EUSAGE, "which checkpoint is meant");
    LS_CHECK_OK(run("pin", "run", (const char *const[]){"step", "100", NULL}, &text));
    LS_CHECK_STR(text.p, "step 100 is pinned: it stays until the pin is removed\n");
    LS_CHECK_OK(run("list", "run", NULL, &text));
    LS_CHECK(strstr(text.p, "2.5000  ok, pinned\n") && strstr(text.p, "2.5000  ok\n"));
    LS_CHECK_OK(run("list", "run", as_json, &text));
    LS_CHECK(strstr(text.p, "\"step\":100,\"ok\":true,\"pinned\":true") &&
             strstr(text.p, "\"step\":200,\"ok\":true,\"pinned\":false"));
    LS_CHECK_OK(run("prune", "run", (const char *const[]){"keep", "1", NULL}, &text));
    LS_CHECK_OK(run("verify", "run", NULL, &text));
    LS_CHECK(strstr(text.p, " tensors; the first\n") &&
             strstr(text.p, " tensors; follows step 100\n"));
    LS_CHECK_OK(run("pin", "run/checkpoints/step-0000000100.json",
                    (const char *const[]){"remove", "", NULL}, &text));
    LS_CHECK_STR(text.p, "step 100 is not pinned any more\n");
    LS_CHECK_FAILS(
        run("pin", "run", (const char *const[]){"step", "100", "remove", "", NULL}, &text),
        LS_EUSAGE, "is not pinned");
    LS_CHECK_OK(run("prune", "run", (const char *const[]){"keep", "1", NULL}, &text));
    LS_CHECK_OK(run("verify", "run", NULL, &text));
    LS_CHECK(strstr(text.p, "the one before it is not here any more\n"));
    LS_CHECK_OK(run("verify", "run", as_json, &text));
    LS_CHECK(strstr(text.p, "\"chain\":\"gone\""));
    ls_str_release(&text);
    sample_release(&s);
}
