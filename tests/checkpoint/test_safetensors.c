/* test_safetensors.c -- headers good and bad. */
#include "harness.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

/* A file made of a header text and data bytes. */
static void build(ls_str *out, const char *header, size_t data)
{
    uint64_t n = strlen(header);

    ls_str_clear(out);
    ls_str_append_bytes(out, &n, 8);
    ls_str_append(out, header);
    for (size_t i = 0; i < data; i++)
        ls_str_append_char(out, (char)i);
}

static void check_refused(const char *header, size_t data, const char *part)
{
    ls_safetensors file;
    ls_str bytes;

    ls_str_init(&bytes);
    build(&bytes, header, data);
    LS_CHECK_FAILS(ls_safetensors_parse(&file, bytes.p, bytes.len, "x"), LS_EDATA, part);
    ls_safetensors_close(&file);
    ls_str_release(&bytes);
}

static void check_accepted(const char *header, size_t data, int count)
{
    ls_safetensors file;
    ls_str bytes;

    ls_str_init(&bytes);
    build(&bytes, header, data);
    LS_CHECK_OK(ls_safetensors_parse(&file, bytes.p, bytes.len, "x"));
    LS_CHECK_EQ(file.count, count);
    ls_safetensors_close(&file);
    ls_str_release(&bytes);
}

LS_TEST(safetensors_reads_a_file)
{
    ls_safetensors file;
    ls_str bytes;

    ls_str_init(&bytes);
    build(&bytes,
          "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"},"
          "\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
          "\"e\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[4,4]}}   ",
          16);
    LS_CHECK_OK(ls_safetensors_parse(&file, bytes.p, bytes.len, "x"));
    LS_CHECK_EQ(file.count, 3);
    const ls_safetensors_entry *e = ls_safetensors_find(&file, "b");
    LS_CHECK(e && e->dtype->type == -1 && e->dtype->bits == 16);
    LS_CHECK_EQ(e->end - e->begin, 12);
    LS_CHECK_EQ(((const unsigned char *)file.bytes)[e->begin], 4);
    LS_CHECK_EQ(ls_safetensors_find(&file, "a")->ndim, 0);
    LS_CHECK(!ls_safetensors_find(&file, "c"));
    LS_CHECK(memmem(file.bytes, (size_t)file.data_begin, "\"format\":\"pt\"", 13));
    ls_safetensors_close(&file);
    ls_safetensors_close(&file);
    ls_str_release(&bytes);
}

LS_TEST(safetensors_accepts_what_the_format_allows)
{
    check_accepted("{}", 0, 0);
    check_accepted("{}        ", 0, 0);
    check_accepted("{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, 1);
    check_accepted("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1);
    check_accepted("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1,1],\"data_offsets\":[0,1]}}", 1,
                   1);
}

LS_TEST(safetensors_refuses_bad_headers)
{
    check_refused("", 0, "does not begin with");
    check_refused(" {}", 0, "does not begin with");
    check_refused("[]", 0, "does not begin with");
    check_refused("{", 0, "not valid JSON");
    check_refused("{}x", 0, "not valid JSON");
    check_refused("{\"\xff\":1}", 0, "not valid JSON");
    check_refused("{\"a\":1}", 0, "no dtype");
    check_refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                  "unknown dtype \"F31\"");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
                  "not a count");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4,
                  "not a count");
    check_refused(
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
        "dimensions");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "range");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "range");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "ask for");
    check_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "ask for");
    check_refused("{\"__metadata__\":{\"a\":1}}", 0, "not a string");
    check_refused("{\"__metadata__\":[]}", 0, "not an object");
}

LS_TEST(safetensors_refuses_overflow_overlap_holes_and_duplicates)
{
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],"
                  "\"data_offsets\":[0,0]}}",
                  0, "too large");
    check_refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[288230376151711744],"
                  "\"data_offsets\":[0,0]}}",
                  0, "too large");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                  "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
                  6, "inside another");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                  "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}",
                  6, "after a hole");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5,
                  "after a hole");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5,
                  "1 bytes behind");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3,
                  "is cut off: it has 64 of 65 bytes");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                  "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                  0, "not valid JSON");
}

LS_TEST(safetensors_refuses_lying_lengths)
{
    ls_safetensors file;
    unsigned char bytes[16] = {0};
    uint64_t lengths[] = {9, 100000001, UINT64_MAX, (uint64_t)INT64_MAX};

    for (size_t n = 0; n < 8; n++)
        LS_CHECK_FAILS(ls_safetensors_parse(&file, bytes, n, "x"), LS_EDATA, "of at least 8 bytes");
    for (size_t i = 0; i < LS_COUNT(lengths); i++) {
        memcpy(bytes, &lengths[i], 8);
        LS_CHECK_FAILS(ls_safetensors_parse(&file, bytes, sizeof bytes, "x"), LS_EDATA,
                       i == 0 ? "16 of at least 17 bytes" : "header");
    }
}

LS_TEST(safetensors_writes_what_it_reads)
{
    ls_safetensors_item items[] = {
        {.name = "z", .type = LS_U8, .ndim = 1, .shape = {3}},
        {.name = "b", .type = LS_F32, .ndim = 2, .shape = {2, 2}},
        {.name = "a \"q\"", .type = LS_F32, .ndim = 0},
        {.name = "d", .type = LS_F64, .ndim = 1, .shape = {1}},
        {.name = "n", .type = LS_BF16, .ndim = 2, .shape = {0, 9}},
    };
    const char *order[] = {"d", "a \"q\"", "b", "n", "z"};
    ls_safetensors file;
    ls_str bytes;

    ls_str_init(&bytes);
    LS_CHECK_OK(ls_safetensors_layout(items, (int)LS_COUNT(items), &bytes));
    LS_CHECK_EQ(bytes.len % 8, 0);
    LS_CHECK_EQ(items[0].begin, bytes.len);
    for (size_t i = 0; i < LS_COUNT(items); i++)
        LS_CHECK_STR(items[i].name, order[i]);
    while ((int64_t)bytes.len < items[4].end)
        ls_str_append_char(&bytes, 7);
    LS_CHECK_OK(ls_file_write_atomic("x.safetensors", bytes.p, bytes.len));
    LS_CHECK_OK(ls_safetensors_open(&file, "x.safetensors"));
    LS_CHECK_EQ(file.count, 5);
    for (size_t i = 0; i < LS_COUNT(items); i++) {
        const ls_safetensors_entry *e = ls_safetensors_find(&file, items[i].name);
        LS_CHECK(e && e->dtype->type == (int)items[i].type && e->ndim == items[i].ndim);
        LS_CHECK(e->begin == items[i].begin && e->end == items[i].end);
        LS_CHECK_EQ(e->begin % ls_dtype_bytes(items[i].type), 0);
    }
    LS_CHECK(memmem(file.bytes, (size_t)file.data_begin, "\"format\":\"pt\"", 13));
    ls_safetensors_close(&file);
    LS_CHECK_FAILS(ls_safetensors_open(&file, "none"), LS_EIO, "cannot open");
    ls_str_release(&bytes);
}

LS_TEST(safetensors_survives_each_failed_allocation)
{
    ls_safetensors file;
    ls_str bytes;

    ls_str_init(&bytes);
    build(&bytes,
          "{\"__metadata__\":{\"format\":\"pt\"},"
          "\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}",
          12);
    for (uint64_t n = 1;; n++) {
        uint64_t before = ls_mem_calls();
        ls_mem_fail_nth(n);
        ls_status st = ls_safetensors_parse(&file, bytes.p, bytes.len, "x");
        ls_mem_fail_nth(0);
        if (ls_mem_calls() - before < n) {
            LS_CHECK(st == LS_OK && n > 1);
            break;
        }
        LS_CHECK_EQ(st, LS_ENOMEM);
        ls_safetensors_close(&file);
    }
    ls_safetensors_close(&file);
    ls_str_release(&bytes);
}

/* Every type of the format: name, bits, and whether a whole number of bytes is asked for. */
LS_TEST(safetensors_knows_every_type)
{
    static const struct {
        const char *name;
        int bits;
    } rows[] = {{"BOOL", 8},    {"U8", 8},         {"I8", 8},          {"U16", 16}, {"I16", 16},
                {"U32", 32},    {"I32", 32},       {"U64", 64},        {"I64", 64}, {"F16", 16},
                {"BF16", 16},   {"F32", 32},       {"F64", 64},        {"C64", 64}, {"F8_E4M3", 8},
                {"F8_E5M2", 8}, {"F8_E8M0", 8},    {"F8_E4M3FNUZ", 8}, {"F4", 4},   {"F6_E2M3", 6},
                {"F6_E3M2", 6}, {"F8_E5M2FNUZ", 8}};
    char header[160];

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        ls_safetensors file;
        ls_str bytes;
        LS_CHECK_EQ(ls_safetensors_dtype_find(rows[i].name)->bits, rows[i].bits);
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%d]}}", rows[i].name,
                 rows[i].bits);
        ls_str_init(&bytes);
        build(&bytes, header, (size_t)rows[i].bits);
        LS_CHECK_OK(ls_safetensors_parse(&file, bytes.p, bytes.len, "x"));
        ls_safetensors_close(&file);
        ls_str_release(&bytes);
    }
    check_refused("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
                  "ask for");
    check_refused("{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                  "unknown dtype");
}

/* Cases of the format's own list that are not above. */
LS_TEST(safetensors_refuses_hostile_headers)
{
    ls_str deep;

    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                  "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                  4, "inside another");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
                  "\"data_offsets\":[9223372036854775804,9223372036854775807]}}",
                  4, "");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
                  "\"dtype\":\"F32\"}}",
                  4, "not valid JSON");
    check_refused("{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                  "not valid JSON");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],"
                  "\"data_offsets\":[0,4]}}",
                  4, "not valid JSON");
    ls_str_init(&deep);
    ls_str_append(&deep, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        ls_str_append_char(&deep, '[');
    check_refused(deep.p, 0, "not valid JSON");
    ls_str_release(&deep);
}

LS_TEST(safetensors_writes_piece_by_piece)
{
    float a[6] = {1, 2, 3, 4, 5, 6}, b[3] = {7, 8, 9};
    ls_safetensors_item items[2] = {{.name = "b", .type = LS_F32, .ndim = 1, .shape = {3}},
                                    {.name = "a", .type = LS_F32, .ndim = 2, .shape = {2, 3}}};
    ls_safetensors_writer w;
    ls_safetensors file;

    LS_CHECK_OK(ls_safetensors_create(&w, "x.safetensors", items, 2));
    LS_CHECK_STR(items[0].name, "a");
    LS_CHECK_OK(ls_safetensors_put(&w, a, 4));
    LS_CHECK_OK(ls_safetensors_put(&w, a + 1, 20));
    LS_CHECK_OK(ls_safetensors_put(&w, b, 12));
    LS_CHECK_OK(ls_safetensors_finish(&w));
    ls_safetensors_abandon(&w);
    LS_CHECK_OK(ls_safetensors_open(&file, "x.safetensors"));
    const ls_safetensors_entry *e = ls_safetensors_find(&file, "a");
    LS_CHECK(memcmp((const char *)file.bytes + e->begin, a, sizeof a) == 0);
    e = ls_safetensors_find(&file, "b");
    LS_CHECK(memcmp((const char *)file.bytes + e->begin, b, sizeof b) == 0);
    ls_safetensors_close(&file);
    LS_CHECK_FAILS(ls_safetensors_create(&w, "nowhere/x.safetensors", items, 2), LS_EIO,
                   "cannot write \"nowhere/x.safetensors\"");
}
