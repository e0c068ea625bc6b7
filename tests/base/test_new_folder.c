/* test_new_folder.c -- folders that appear whole. */
#include "harness.h"
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/new_folder.h"

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

LS_TEST(new_folder_removes_what_a_killed_process_left)
{
    ls_new_folder mine = {.path = ""}, other = {.path = ""};

    LS_CHECK_EQ(mkdir("out.tmp-1", 0755), 0);
    put("out.tmp-1/model.safetensors", "half");
    LS_CHECK_EQ(mkdir("out.tmp-1/checkpoints", 0755), 0);
    LS_CHECK_EQ(mkdir("out.tmp-x", 0755), 0);  /* not ours */
    LS_CHECK_EQ(mkdir("out2.tmp-1", 0755), 0); /* of another folder */
    put("out.tmp-7", "a file");
    LS_CHECK_EQ(mkdir("elsewhere", 0755), 0);
    put("elsewhere/file", "precious");
    LS_CHECK_EQ(symlink("elsewhere", "out.tmp-8"), 0);
    LS_CHECK_OK(ls_new_folder_begin(&mine, "out/"));
    LS_CHECK(!ls_file_exists("out.tmp-1"));
    LS_CHECK(ls_file_exists("out.tmp-x") && ls_file_exists("out2.tmp-1"));
    LS_CHECK(ls_file_exists("out.tmp-7") && ls_file_exists("elsewhere/file"));
    /* Somebody who is still writing keeps the folder. */
    LS_CHECK_FAILS(ls_new_folder_begin(&other, "out"), LS_EIO, "cannot create folder");
    LS_CHECK(ls_file_exists(mine.path));
    LS_CHECK_OK(ls_new_folder_commit(&mine));
    LS_CHECK(ls_file_is_dir("out"));
    ls_new_folder_drop(&mine);
    LS_CHECK(ls_file_is_dir("out"));
}
