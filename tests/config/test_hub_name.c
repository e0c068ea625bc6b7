/* test_hub_name.c -- names of the Hub are told from paths. */
#include "harness.h"

#include <sys/stat.h>
#include "config/hub_name.h"

static void expect(const char *path, ls_hub_kind kind, const char *command)
{
    ls_fail(LS_EUSAGE, "there is no \"%s\"", path);
    ls_err_hint("as before");
    bool is_name = ls_hub_name_hint(path, kind);
    const char *hint = ls_err_last()->hint;

    LS_CHECK_EQ(is_name, command != NULL);
    if (command ? !strstr(hint, command) : strcmp(hint, "as before") != 0)
        ls_test_fail(__FILE__, __LINE__, "\"%s\" has the hint \"%s\"", path, hint);
    ls_err_clear();
}

LS_TEST(hub_names_get_the_command_that_downloads_them)
{
    expect("Qwen/Qwen2.5-0.5B", LS_HUB_MODEL,
           "`hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`, then name that folder.");
    expect("https://hub.example/org/a_model-7B/tree/main", LS_HUB_MODEL,
           "`hf download org/a_model-7B --local-dir a_model-7B`");
    expect("gpt2", LS_HUB_MODEL, "`hf download openai-community/gpt2 --local-dir gpt2`");
    expect("roneneldan/TinyStories", LS_HUB_DATASET,
           "`hf download --repo-type dataset roneneldan/TinyStories");
}

LS_TEST(paths_are_no_hub_names)
{
    LS_CHECK_EQ(mkdir("runs", 0755), 0);
    LS_CHECK_EQ(mkdir("gpt2", 0755), 0);
    expect("runs/demo", LS_HUB_MODEL, NULL); /* there is a folder runs: a mistyped path */
    expect("gpt2", LS_HUB_MODEL, NULL);      /* there is such a folder */
    expect("gpt2-large", LS_HUB_DATASET, NULL);
    expect("demo", LS_HUB_MODEL, NULL);
    expect("/a/b", LS_HUB_MODEL, NULL);
    expect("./a/b", LS_HUB_MODEL, NULL);
    expect("../a", LS_HUB_MODEL, NULL);
    expect("a/b/c", LS_HUB_MODEL, NULL);
    expect("corpus/text.txt", LS_HUB_DATASET, NULL);
    expect("corpus/*.txt", LS_HUB_DATASET, NULL);
    expect("a/", LS_HUB_MODEL, NULL);
    expect("", LS_HUB_MODEL, NULL);
    expect("https://", LS_HUB_MODEL, NULL);
}
