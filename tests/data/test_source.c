/* test_source.c -- documents out of text, JSON lines, gzip, zstd and the built-in stories. */
#include "data/corpus/source.h"

#include <zlib.h>
#include <zstd.h>
#include "base/file.h"
#include "base/mem.h"
#include "data/corpus/synthetic_text.h"
#include "harness.h"

static void put_file(const char *path, const void *bytes, size_t len)
{
    LS_CHECK_OK(ls_file_write_atomic(path, bytes, len));
}

static void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

static void put_gz(const char *path, const char *text, int members)
{
    gzFile f = gzopen(path, "wb");
    size_t n = strlen(text), half = n / 2;

    gzwrite(f, text, (unsigned)(members == 2 ? half : n));
    gzclose(f);
    if (members == 2) {
        f = gzopen(path, "ab");
        gzwrite(f, text + half, (unsigned)(n - half));
        gzclose(f);
    }
}

static void put_zst(const char *path, const char *text, int frames)
{
    size_t n = strlen(text), half = frames == 2 ? n / 2 : n, cap = ZSTD_compressBound(n) + 64;
    char *out = ls_mem_alloc(2 * cap);
    size_t used = ZSTD_compress(out, cap, text, half, 3);

    if (frames == 2)
        used += ZSTD_compress(out + used, cap, text + half, n - half, 3);
    put_file(path, out, used);
    ls_mem_free(out);
}

/* All documents of a source, each followed by '|'. */
static ls_status read_all(const char *path, const char *field, ls_utf8_policy utf8, ls_str *out)
{
    ls_status st = LS_OK;
    ls_source *source = NULL;
    ls_source_piece piece;
    bool any = false;

    ls_str_clear(out);
    LS_TRY(st,
           ls_source_open(&source, &(ls_source_args){.path = path, .field = field, .utf8 = utf8}),
           out);
    for (;;) {
        LS_TRY(st, ls_source_next(source, &piece), out);
        if (!piece.bytes)
            break;
        LS_CHECK(piece.len > 0);
        LS_CHECK(any || piece.begins);
        if (piece.begins && any)
            ls_str_append_char(out, '|');
        any = true;
        ls_str_append_bytes(out, piece.bytes, piece.len);
    }
    LS_CHECK_OK(ls_source_next(source, &piece)); /* the end stays the end */
    LS_CHECK(!piece.bytes);
out:
    ls_source_close(source);
    return st;
}

static void expect(const char *path, const char *want)
{
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_OK(read_all(path, NULL, LS_UTF8_STRICT, &out));
    LS_CHECK_STR(out.p, want);
    ls_str_release(&out);
}

LS_TEST(text_is_one_document)
{
    put_file("a.txt", "one\ntwo\n", 8);
    expect("a.txt", "one\ntwo\n");
    put_file("mark.txt", "\xef\xbb\xbfone", 6);
    expect("mark.txt", "one");
    put_file("empty.txt", "", 0);
    expect("empty.txt", "");
    put_gz("a.txt.gz", "packed text\n", 1);
    expect("a.txt.gz", "packed text\n");
    put_gz("b.txt.gz", "packed text\n", 2);
    expect("b.txt.gz", "packed text\n");
    put_zst("a.txt.zst", "packed text\n", 1);
    expect("a.txt.zst", "packed text\n");
    put_zst("b.txt.zst", "packed text\n", 2);
    expect("b.txt.zst", "packed text\n");
}

/* Long text comes in pieces that end after lines or at least between characters. */
static void check_long(const char *line, bool lines)
{
    ls_str text, again;
    ls_source *source;
    ls_source_piece piece;
    int pieces = 0;

    ls_str_init(&text);
    ls_str_init(&again);
    while (text.len < 300000)
        ls_str_append(&text, line);
    put_file("long.txt", text.p, text.len);
    LS_CHECK_OK(ls_source_open(&source, &(ls_source_args){.path = "long.txt"}));
    for (;; pieces++) {
        LS_CHECK_OK(ls_source_next(source, &piece));
        if (!piece.bytes)
            break;
        LS_CHECK_EQ(piece.begins, pieces == 0);
        LS_CHECK_EQ(ls_utf8_valid(piece.bytes, piece.len), piece.len);
        LS_CHECK(!lines || piece.bytes[piece.len - 1] == '\n');
        ls_str_append_bytes(&again, piece.bytes, piece.len);
    }
    LS_CHECK(pieces > 2);
    LS_CHECK_STR(again.p, text.p);
    ls_source_close(source);
    put_gz("long.txt.gz", text.p, 2);
    expect("long.txt.gz", text.p);
    put_zst("long.txt.zst", text.p, 2);
    expect("long.txt.zst", text.p);
    ls_str_release(&text);
    ls_str_release(&again);
}

LS_TEST(long_text_comes_in_pieces)
{
    check_long("a line of some length \xc3\xa9\n", true);
    check_long("\xf0\x9f\x98\x80\xe2\x82\xac", false);
}

LS_TEST(json_lines_are_documents)
{
    static const char text[] = "{\"text\": \"first\", \"id\": 1}\n"
                               "\n"
                               "{\"text\": \"\"}\n"
                               "{\"id\": 2, \"text\": \"sec\\u00f6nd\\nline\"}\r\n"
                               "{\"text\": \"last\"}";
    ls_str out;

    put_file("a.jsonl", text, sizeof text - 1);
    expect("a.jsonl", "first|sec\xc3\xb6nd\nline|last");
    put_gz("a.jsonl.gz", text, 1);
    expect("a.jsonl.gz", "first|sec\xc3\xb6nd\nline|last");
    put_zst("a.jsonl.zst", text, 2);
    expect("a.jsonl.zst", "first|sec\xc3\xb6nd\nline|last");
    put_file("b.jsonl", "{\"body\": \"x\"}\n", 14);
    ls_str_init(&out);
    LS_CHECK_OK(read_all("b.jsonl", "body", LS_UTF8_STRICT, &out));
    LS_CHECK_STR(out.p, "x");
    ls_str_release(&out);
}

LS_TEST(long_json_lines_are_whole)
{
    ls_str line;

    ls_str_init(&line);
    ls_str_append(&line, "{\"text\": \"");
    for (int i = 0; i < 200000; i++)
        ls_str_append_char(&line, 'x');
    ls_str_append(&line, "\"}\n{\"text\": \"y\"}\n");
    put_file("a.jsonl", line.p, line.len);
    ls_str out;
    ls_str_init(&out);
    LS_CHECK_OK(read_all("a.jsonl", NULL, LS_UTF8_STRICT, &out));
    LS_CHECK_EQ(out.len, 200002);
    LS_CHECK_STR(out.p + 199999, "x|y");
    ls_str_release(&line);
    ls_str_release(&out);
}

static void refuse(const char *path, const char *text, const char *says)
{
    ls_str out;

    put_file(path, text, strlen(text));
    ls_str_init(&out);
    LS_CHECK_FAILS(read_all(path, NULL, LS_UTF8_STRICT, &out), LS_EDATA, says);
    ls_str_release(&out);
}

LS_TEST(bad_json_lines_are_named)
{
    refuse("a.jsonl", "{\"text\": \"ok\"}\n{\"text\": oops}\n", "a.jsonl:2:");
    refuse("a.jsonl", "\n\n[1]\n", "a.jsonl:3: the line is not a JSON object");
    refuse("a.jsonl", "{\"text\": 7}\n", "a.jsonl:1: field \"text\" is not a string");
    refuse("a.jsonl", "{\"content\": \"x\", \"id\": 3}\n", "a.jsonl:1: the object has no field");
    LS_CHECK(strstr(ls_err_last()->hint, "\"content\", \"id\""));
    refuse("a.jsonl", "{\"text\": \"ok\"}\n{\"text\": \"\xff\"}\n",
           "a.jsonl:2: the line is not UTF-8");
    refuse("a.jsonl", "{\"text\": \"cut", "a.jsonl:1:");
}

/* What Python's json module writes and reads: in a field nobody asked for it does not matter. */
LS_TEST(json_lines_are_those_that_python_reads)
{
    ls_str text;

    ls_str_init(&text);
    put_text("p.jsonl",
             "{\"text\":\"a\",\"id\":18446744073709551615,\"n\":-9223372036854775808}\n"
             "{\"id\":[NaN,-Infinity,{\"x\":Infinity,\"y\":1e999}],\"text\":\"b\"}\n"
             "{\"text\":\"c \\\"NaN\\\" \\ud83d\\ude00\",\"s\":\"\\ud800\",\"\\u0000\":NaN}\n"
             "{\"x\":-9223372036854775809,\"y\":[{\"text\":\"\\udfff\"}],\"text\":\"d\"}\n");
    LS_CHECK_OK(read_all("p.jsonl", NULL, LS_UTF8_STRICT, &text));
    LS_CHECK_STR(text.p, "a|b|c \"NaN\" \xf0\x9f\x98\x80|d");
    put_text("s.jsonl", "{\"text\":\"a\\ud800b\"}\n");
    LS_CHECK_FAILS(read_all("s.jsonl", NULL, LS_UTF8_STRICT, &text), LS_EDATA,
                   "s.jsonl:1: the text has half of a surrogate pair");
    LS_CHECK(strstr(ls_err_last()->hint, "--utf8) to replace"));
    LS_CHECK_OK(read_all("s.jsonl", NULL, LS_UTF8_REPLACE, &text));
    LS_CHECK_STR(text.p, "a\xef\xbf\xbd"
                         "b");
    put_text("n.jsonl", "{\"text\":NaN}\n");
    LS_CHECK_FAILS(read_all("n.jsonl", NULL, LS_UTF8_STRICT, &text), LS_EDATA,
                   "n.jsonl:1: field \"text\" is not a string");
    put_text("z.jsonl", "{\"text\":\"x\",\"y\":00018446744073709551616}\n");
    LS_CHECK_FAILS(read_all("z.jsonl", NULL, LS_UTF8_STRICT, &text), LS_EDATA, "z.jsonl:1:");
    put_text("w.jsonl", "{\"text\":\"x\",\"y\":NaN,}\n");
    LS_CHECK_FAILS(read_all("w.jsonl", NULL, LS_UTF8_STRICT, &text), LS_EDATA, "w.jsonl:1:");
    ls_str_release(&text);
}

LS_TEST(bad_json_lines_are_skipped_where_that_is_asked_for)
{
    ls_source *source;
    ls_source_piece piece;

    LS_EXPECT_LOG(6); /* five lines, and that no more are named */
    put_text("b.jsonl", "1\n{\n{\"text\":\"good\"}\n{\"x\":1}\n{\"text\":5}\n[]\n\xff\n{}\n");
    LS_CHECK_OK(ls_source_open(&source, &(ls_source_args){.path = "b.jsonl", .skip_bad = true}));
    LS_CHECK_OK(ls_source_next(source, &piece));
    LS_CHECK_EQ(piece.len, 4);
    LS_CHECK_EQ(ls_source_line(source), 3);
    LS_CHECK_OK(ls_source_next(source, &piece));
    LS_CHECK(!piece.bytes);
    LS_CHECK_EQ(ls_source_skipped(source), 7);
    ls_source_close(source);
}

LS_TEST(invalid_utf8_follows_the_policy)
{
    ls_str out, text;

    refuse("a.txt", "good\nbad \xff here\n", "\"a.txt\" is not UTF-8 at byte 9");
    LS_CHECK(strstr(ls_err_last()->hint, "data.utf8"));
    refuse("a.txt", "cut \xe2\x82", "at byte 4");
    ls_str_init(&out);
    put_file("a.txt", "bad \xff here\n", 11);
    LS_CHECK_OK(read_all("a.txt", NULL, LS_UTF8_REPLACE, &out));
    LS_CHECK_STR(out.p, "bad " LS_UTF8_REPLACEMENT " here\n");
    LS_CHECK_OK(read_all("a.txt", NULL, LS_UTF8_BYTES, &out));
    LS_CHECK_STR(out.p, "bad \xff here\n");
    put_file("a.jsonl", "{\"text\": \"\xff\"}\n", 14);
    LS_CHECK_OK(read_all("a.jsonl", NULL, LS_UTF8_REPLACE, &out));
    LS_CHECK_STR(out.p, LS_UTF8_REPLACEMENT);
    /* Offsets count from the start of the file, beyond the first block too. */
    ls_str_init(&text);
    while (text.len < 200000)
        ls_str_append(&text, "0123456789abcde\n");
    ls_str_append(&text, "\x80");
    char says[64];
    snprintf(says, sizeof says, "at byte %zu", text.len - 1);
    refuse("b.txt", text.p, says);
    ls_str_release(&text);
    ls_str_release(&out);
}

LS_TEST(damaged_compression_is_refused)
{
    ls_str text, packed, out;

    ls_str_init(&text);
    ls_str_init(&packed);
    ls_str_init(&out);
    for (int64_t i = 0; text.len < 20000; i++)
        LS_CHECK_OK(ls_synthetic_text_story(3, i, &text));
    put_gz("a.txt.gz", text.p, 1);
    LS_CHECK_OK(ls_file_read("a.txt.gz", LS_MIB, &packed));
    put_file("cut.txt.gz", packed.p, packed.len - 9);
    LS_CHECK_FAILS(read_all("cut.txt.gz", NULL, LS_UTF8_STRICT, &out), LS_EDATA, "is cut off");
    packed.p[packed.len / 2] = (char)(packed.p[packed.len / 2] ^ 0x55);
    put_file("bad.txt.gz", packed.p, packed.len);
    LS_CHECK_FAILS(read_all("bad.txt.gz", NULL, LS_UTF8_STRICT, &out), LS_EDATA, "is damaged");
    put_zst("a.txt.zst", text.p, 1);
    ls_str_clear(&packed);
    LS_CHECK_OK(ls_file_read("a.txt.zst", LS_MIB, &packed));
    put_file("cut.txt.zst", packed.p, packed.len - 9);
    LS_CHECK_FAILS(read_all("cut.txt.zst", NULL, LS_UTF8_STRICT, &out), LS_EDATA, "is cut off");
    put_file("no.txt.zst", "plain text", 10);
    LS_CHECK_FAILS(read_all("no.txt.zst", NULL, LS_UTF8_STRICT, &out), LS_EDATA, "not compressed");
    put_file("no.txt.gz", "plain text", 10);
    LS_CHECK_FAILS(read_all("no.txt.gz", NULL, LS_UTF8_STRICT, &out), LS_EDATA, "not compressed");
    ls_str_release(&text);
    ls_str_release(&packed);
    ls_str_release(&out);
}

LS_TEST(names_that_are_not_text_are_refused)
{
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_FAILS(read_all("none.txt", NULL, LS_UTF8_STRICT, &out), LS_EIO, "none.txt");
    LS_CHECK_FAILS(read_all(".", NULL, LS_UTF8_STRICT, &out), LS_EIO, "is a folder");
    LS_CHECK_FAILS(read_all("x.lst", NULL, LS_UTF8_STRICT, &out), LS_EUSAGE, "not a text file");
    LS_CHECK_FAILS(read_all("x.parquet", NULL, LS_UTF8_STRICT, &out), LS_EUSAGE, "not a text");
    LS_CHECK_FAILS(read_all("builtin:poems", NULL, LS_UTF8_STRICT, &out), LS_EUSAGE, "poems");
    LS_CHECK_FAILS(read_all("builtin:stories:x", NULL, LS_UTF8_STRICT, &out), LS_EUSAGE, "\"x\"");
    ls_str_release(&out);
}

LS_TEST(stories_are_documents)
{
    ls_str out, first;

    ls_str_init(&out);
    ls_str_init(&first);
    LS_CHECK_OK(read_all("builtin:stories:10K", NULL, LS_UTF8_STRICT, &out));
    LS_CHECK(out.len >= 10240 && out.len < 13000);
    LS_CHECK_OK(ls_synthetic_text_story(1, 0, &first));
    LS_CHECK(strncmp(out.p, first.p, first.len) == 0);
    LS_CHECK(out.p[first.len] == '|');
    ls_str_release(&out);
    ls_str_release(&first);
}

LS_TEST(sizes_are_parsed)
{
    int64_t n;

    LS_CHECK_OK(ls_source_parse_bytes("17", &n));
    LS_CHECK_EQ(n, 17);
    LS_CHECK_OK(ls_source_parse_bytes("2M", &n));
    LS_CHECK_EQ(n, 2 << 20);
    LS_CHECK_OK(ls_source_parse_bytes("1GiB", &n));
    LS_CHECK_EQ(n, 1 << 30);
    LS_CHECK_FAILS(ls_source_parse_bytes("", &n), LS_EUSAGE, "number of bytes");
    LS_CHECK_FAILS(ls_source_parse_bytes("-1", &n), LS_EUSAGE, "number of bytes");
    LS_CHECK_FAILS(ls_source_parse_bytes("2X", &n), LS_EUSAGE, "number of bytes");
    LS_CHECK_FAILS(ls_source_parse_bytes("9999999999G", &n), LS_EUSAGE, "number of bytes");
}

LS_TEST(every_failing_allocation_of_a_source_is_reported)
{
    ls_str out;
    uint64_t n = 1;

    put_file("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n", 32);
    ls_str_init(&out);
    ls_str_reserve(&out, 4096);
    for (;; n++) {
        ls_mem_fail_nth(n);
        ls_status st = read_all("a.jsonl", NULL, LS_UTF8_STRICT, &out);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n >= 4);
    ls_str_release(&out);
}
