/* test_chat_cmd.c -- chat data on the command line: seen, built, inspected, refused. */
#include "base/file.h"
#include "cli/capture.h"
#include "harness.h"

static const char line[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                           "{\"role\":\"assistant\",\"content\":\"Hello\"}]}\n";

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

LS_TEST(data_chat_shows_what_counts)
{
    ls_capture c;

    put("c.jsonl", line);
    LS_CAPTURE(&c, "data", "chat", "c.jsonl");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_STR(c.out.p, "--- line 1: 68 tokens, loss on 15\n"
                          "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                          "\xe2\x9f\xa6Hello<|im_end|>\xe2\x9f\xa7\n");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "chat", "c.jsonl", "--template", "llama3", "--json");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK(strstr(c.out.p, "\"answers\":[\"Hello<|eot_id|>\"]"));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "chat", "c.jsonl", "--line", "2");
    LS_CHECK_EQ(c.code, 2);
    LS_CHECK(strstr(c.err.p, "\"c.jsonl\" has no conversation from line 2 on"));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "chat", "c.jsonl", "-n", "0");
    LS_CHECK_EQ(c.code, 2);
    LS_CHECK(strstr(c.err.p, "--count must be a whole number, at least 1, not \"0\""));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "chat", "none.jsonl");
    LS_CHECK_EQ(c.code, 2);
    LS_CHECK(strstr(c.err.p, "there is no file \"none.jsonl\""));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "chat", "c.jsonl", "--template", "auto");
    LS_CHECK(c.code != 0);
    LS_CHECK(strstr(c.err.p, "has no chat template of its own"));
    ls_capture_release(&c);
}

LS_TEST(data_build_makes_a_shard_of_conversations)
{
    ls_capture c;

    put("c.jsonl", line);
    LS_CAPTURE(&c, "data", "build", "--template", "chatml", "--context", "100", "--out", "c.lst",
               "c.jsonl");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK_STR(c.out.p, "c.lst: 1 conversation in 1 window of 100 tokens (68 % full), loss on 15 "
                          "of 68 tokens\n");
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "inspect", "c.lst");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK(strstr(c.out.p, "token shard, format 2"));
    LS_CHECK(strstr(c.out.p, "windows of 100 tokens, loss on 15 of all"));
    ls_capture_release(&c);
    LS_CAPTURE(&c, "data", "build", "--template", "chatml", "--out", "d.lst", "c.jsonl");
    LS_CHECK_EQ(c.code, 2);
    LS_CHECK(strstr(c.err.p, "--context is missing"));
    ls_capture_release(&c);
    put("some.jsonl",
        "{\"text\":\"x\"}\n{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}\n");
    LS_EXPECT_LOG(2); /* the line, and how many there were */
    LS_CAPTURE(&c, "data", "build", "--template", "chatml", "--context", "99", "--out", "s.lst",
               "some.jsonl", "--skip-bad", "--json");
    LS_CHECK_EQ(c.code, 0);
    LS_CHECK(strstr(c.out.p, "\"conversations\":1") && strstr(c.out.p, "\"skipped\":1"));
    ls_capture_release(&c);
    put("bad.jsonl", "{\"text\":\"x\"}\n");
    LS_CAPTURE(&c, "data", "build", "--template", "chatml", "--context", "9", "--out", "d.lst",
               "bad.jsonl");
    LS_CHECK(c.code != 0);
    LS_CHECK(strstr(c.err.p, "bad.jsonl:1: the line has no list \"messages\""));
    LS_CHECK(!ls_file_exists("d.lst"));
    ls_capture_release(&c);
}
