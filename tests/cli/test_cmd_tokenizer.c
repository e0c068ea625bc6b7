/* test_cmd_tokenizer.c -- data tokenizer, encode and decode: what they print, what they refuse. */
#include "cli/capture.h"
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"
#include "harness.h"

static void put_text(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

/* The last run ended with code, and said part on either stream. */
static void expect(ls_capture *c, int code, const char *part)
{
    if (c->code != code || (!strstr(c->out.p, part) && !strstr(c->err.p, part)))
        ls_test_fail(__FILE__, __LINE__, "exit %d, expected %d and \"%s\"; got:\n%s%s", c->code,
                     code, part, c->out.p, c->err.p);
    ls_capture_release(c);
}

LS_TEST(tokenizer_training_reports_what_it_made)
{
    ls_capture c;

    put_text("a.txt", "aaabdaaabac");
    LS_CAPTURE(&c, "data", "tokenizer", "--train", "a.txt", "--vocab", "258", "-o", "tok");
    LS_CHECK(strstr(c.out.p, "tok: 258 tokens: 256 bytes, 1 merged, 1 special\n"));
    LS_CHECK(strstr(c.out.p, "  encoded  9 tokens, 1.22 bytes each\n"));
    LS_CHECK_STR(c.err.p, "");
    expect(&c, 0, "Next: lineshaft data build --tokenizer tok --out corpus.lst a.txt\n");
    LS_CHECK(ls_file_exists("tok/tokenizer.json") && ls_file_exists("tok/tokenizer_config.json"));
    LS_CAPTURE(&c, "data", "tokenizer", "--train", "a.txt", "--vocab=1000", "-otok2", "--min-count",
               "1", "--special", "<s>", "--special", "</s>");
    LS_CHECK(strstr(c.out.p, "tok2: 265 tokens: 256 bytes, 7 merged, 2 special\n"));
    expect(&c, 0, "Fewer tokens than the 1000 asked for: no other pair occurs 1 time.\n");
    LS_CAPTURE(&c, "data", "tokenizer", "--train", "a.txt", "--vocab", "300", "-o", "tok3",
               "--json");
    expect(&c, 0,
           "{\"folder\":\"tok3\",\"vocab\":260,\"merges\":3,\"bytes\":11,\"tokens\":5,"
           "\"words\":1,\"dropped_words\":0,\"seconds\":");
}

LS_TEST(tokenizer_names_a_command_that_can_be_copied)
{
    ls_capture c;

    put_text("a b.txt", "some words");
    LS_CAPTURE(&c, "data", "tokenizer", "--train", "a b.txt", "--vocab", "258", "-o", "to k");
    expect(&c, 0, "Next: lineshaft data build --tokenizer FOLDER --out corpus.lst FILE ...\n");
}

LS_TEST(tokenizer_training_refuses_bad_input)
{
    ls_capture c;

    put_text("a.txt", "some words");
    put_text("empty.txt", "");
    put_text("bad.txt", "some \xff words");
#define TRAIN(...) LS_CAPTURE(&c, "data", "tokenizer", "--train", __VA_ARGS__)
    TRAIN("a.txt", "-o", "tok");
    expect(&c, 2, "--vocab is missing");
    TRAIN("a.txt", "--vocab", "300");
    expect(&c, 2, "--out is missing");
    TRAIN("a.txt", "--vocab", "100", "-o", "tok");
    expect(&c, 2, "a vocabulary of 100 is too small: 256 bytes and 1 special token need 257");
    TRAIN("a.txt", "--vocab", "99999999999", "-o", "tok");
    expect(&c, 2, "--vocab must be a whole number from 0 to 2147483647");
    TRAIN("a.txt", "--vocab", "8k", "-o", "tok");
    expect(&c, 2, "--vocab must be a whole number from 0 to 2147483647, not \"8k\"");
    TRAIN("nowhere.txt", "--vocab", "300", "-o", "tok");
    expect(&c, 2, "there is no file \"nowhere.txt\"");
    TRAIN("empty.txt", "--vocab", "300", "-o", "tok");
    expect(&c, 4, "there is no text to train on in \"empty.txt\"");
    TRAIN("bad.txt", "--vocab", "300", "-o", "tok");
    expect(&c, 4, "not UTF-8");
    TRAIN("a.txt", "--vocab", "300", "-o", "tok", "--utf8", "bytes");
    expect(&c, 2, "strict");
    TRAIN("a.txt", "--vocab", "300", "-o", "tok", "--pattern", "(a");
    expect(&c, 4, "pattern");
    TRAIN("a.txt", "--vocab", "300", "-o", "a.txt");
    expect(&c, 2, "there is a file of that name");
    TRAIN("a.txt", "--vocab", "300", "-o", "/proc/nowhere");
    expect(&c, 3, "/proc/nowhere");
    TRAIN("--vocab", "300", "-o", "tok");
    expect(&c, 2, "tokenizer");
    LS_CHECK(!ls_file_exists("tok"));
    TRAIN("a.txt", "--vocab", "300", "-o", "tok");
    expect(&c, 0, "tok: ");
    TRAIN("a.txt", "--vocab", "300", "-o", "tok");
    expect(&c, 2, "the folder is not empty");
#undef TRAIN
}

LS_TEST(tokenizer_of_bytes_is_described)
{
    ls_capture c;

    LS_CAPTURE(&c, "data", "tokenizer", "bytes");
    LS_CHECK(strstr(c.out.p, "bytes: tokenizer of bytes\n  vocabulary  256 tokens\n"));
    expect(&c, 0, "  special     none\n");
    LS_CAPTURE(&c, "data", "tokenizer", "bytes", "--json");
    expect(&c, 0,
           "{\"tokenizer\":\"bytes\",\"kind\":\"bytes\",\"vocab\":256,\"merges\":0,"
           "\"pattern\":null,\"normalizer\":null,\"bos\":null,\"eos\":null,");
    LS_CAPTURE(&c, "data", "tokenizer", "bytes", "bytes");
    expect(&c, 2, "one tokenizer can be described at a time");
    LS_CAPTURE(&c, "data", "tokenizer", "bytes", "--vocab", "300");
    expect(&c, 2, "--vocab needs --train");
    LS_CAPTURE(&c, "data", "tokenizer", "nowhere");
    expect(&c, 2, "nowhere");
}

LS_TEST(tokenizer_that_was_trained_is_described)
{
    ls_capture c;

    LS_CAPTURE(&c, "data", "tokenizer", "--train", "builtin:stories:50K", "--vocab", "400", "-o",
               "tok", "--pattern", "llama3");
    expect(&c, 0, "tok: 400 tokens");
    LS_CAPTURE(&c, "data", "tokenizer", "tok");
    LS_CHECK_STR(c.err.p, "");
    LS_CHECK(strstr(c.out.p, "tok: byte-level BPE\n  vocabulary  400 tokens, 143 merges\n"));
    LS_CHECK(strstr(c.out.p, "  pattern     llama3\n  normalizer  none\n"));
    LS_CHECK(strstr(c.out.p, "  special     <|endoftext|> (399)\n"));
    LS_CHECK(strstr(c.out.p, "  begin       <|endoftext|> (399)\n"));
    expect(&c, 0, "  end         <|endoftext|> (399)\n");
    LS_CAPTURE(&c, "data", "tokenizer", "tok", "--json");
    LS_CHECK(strstr(c.out.p, "\"vocab\":400,\"merges\":143,\"pattern\":\"llama3\""));
    expect(&c, 0, "\"special\":{\"<|endoftext|>\":399}}\n");
}

/* Encode with a tokenizer, decode, compare; words are flags for encode. */
LS_TEST(tokenizer_that_was_trained_encodes_and_decodes)
{
    static const char text[] = "Once upon a time\n\n<|endoftext|>a caf\xc3\xa9, \xe4\xb8\xad!\r\n ";
    ls_capture c;

    LS_CAPTURE(&c, "data", "tokenizer", "--train", "builtin:stories:50K", "--vocab", "400", "-o",
               "tok");
    expect(&c, 0, "tok: 400 tokens");
    put_text("a.txt", text);
    LS_CAPTURE(&c, "data", "encode", "-t", "tok", "a.txt");
    LS_CHECK(strstr(c.out.p, "\n399\n"));
    put_text("ids", c.out.p);
    expect(&c, 0, "\n");
    LS_CAPTURE(&c, "data", "decode", "-t", "tok", "ids");
    LS_CHECK_STR(c.out.p, text);
    expect(&c, 0, "");
    LS_CAPTURE(&c, "data", "encode", "-t", "tok", "a.txt", "--plain");
    LS_CHECK(!strstr(c.out.p, "\n399\n"));
    put_text("ids", c.out.p);
    expect(&c, 0, "\n");
    LS_CAPTURE(&c, "data", "decode", "-t", "tok", "ids");
    LS_CHECK_STR(c.out.p, text);
    expect(&c, 0, "");
}

LS_TEST(encode_works_line_by_line)
{
    ls_capture c;

    put_text("a.txt", "ab\n\nc\n");
    LS_CAPTURE(&c, "data", "encode", "--lines", "a.txt");
    LS_CHECK_STR(c.out.p, "97 98\n\n99\n");
    expect(&c, 0, "");
    put_text("a.txt", "ab\nc");
    LS_CAPTURE(&c, "data", "encode", "--lines", "a.txt");
    LS_CHECK_STR(c.out.p, "97 98\n99\n");
    expect(&c, 0, "");
    put_text("a.txt", "");
    LS_CAPTURE(&c, "data", "encode", "--lines", "a.txt");
    LS_CHECK_STR(c.out.p, "");
    expect(&c, 0, "");
    LS_CAPTURE(&c, "data", "encode", "nowhere.txt");
    expect(&c, 2, "there is no file \"nowhere.txt\"");
    LS_CAPTURE(&c, "data", "encode", "--tokenizer", "nowhere", "a.txt");
    expect(&c, 2, "nowhere");
}
