/* test_tokenizer_json.c -- tokenizers out of a tokenizer.json: small ones made here, hostile ones,
 * texts in parts, threads, and the vectors of real ones where they are present. */
#include "data/tokenizer/tokenizer.h"

#include "data/tokenizer/bpe.h"
#include "data/chat/chat.h"
#include "data/corpus/corpus.h"
#include "config/runfile.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "harness.h"

#include <pthread.h>

#define MARK "\xe2\x96\x81"
#define BLANK "\xc4\xa0" /* U+0120: a blank in ByteLevel's alphabet */

/* --- small files --------------------------------------------------------------------------------
 */

static void put_file(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

static ls_tokenizer *open_text(const char *json)
{
    ls_tokenizer *tok = NULL;

    LS_CHECK_OK(ls_file_make_dirs("tok"));
    put_file("tok/tokenizer.json", json);
    LS_CHECK_OK(ls_tokenizer_open(&tok, "tok"));
    return tok;
}

/* A byte-level tokenizer of 256 bytes, some merges, and added tokens. rest: more members. */
static void byte_level_json(ls_str *out, const char *rest)
{
    static const char *const words[] = {"he", "ll",        "hell", "hello",      BLANK "w",
                                        "or", BLANK "wor", "ld",   BLANK "world"};
    static const char *const merges[] = {"h e", "l l",        "he ll", "hell o",      BLANK " w",
                                         "o r", BLANK "w or", "l d",   BLANK "wor ld"};

    ls_str_append(out, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int b = 0, above = 0; b < 256; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        ls_str_printf(out, "%s\"\\u%04x\":%d", b ? "," : "", prints ? b : 0x100 + above, b);
        above += !prints;
    }
    for (size_t i = 0; i < LS_COUNT(words); i++)
        ls_str_printf(out, ",\"%s\":%d", words[i], 256 + (int)i);
    ls_str_append(out, "},\"merges\":[");
    for (size_t i = 0; i < LS_COUNT(merges); i++)
        ls_str_printf(out, "%s\"%s\"", i ? "," : "", merges[i]);
    ls_str_append(out,
                  "]},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":["
                  "{\"id\":270,\"content\":\"<|end|>\",\"special\":true,\"normalized\":false},"
                  "{\"id\":271,\"content\":\"<tool>\",\"special\":false,\"normalized\":false},"
                  "{\"id\":272,\"content\":\"<tool>box\",\"special\":false,\"normalized\":false},"
                  "{\"id\":273,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false},"
                  "{\"id\":274,\"content\":\"<l>\",\"lstrip\":true,\"normalized\":false},"
                  "{\"id\":275,\"content\":\"own\",\"single_word\":true,\"normalized\":false}]");
    ls_str_printf(out, "%s}", rest);
}

#define GPT2_RULES \
    ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"

static ls_tokenizer *open_byte_level(const char *rest)
{
    ls_str json;

    ls_str_init(&json);
    byte_level_json(&json, rest);
    ls_tokenizer *tok = open_text(json.p);
    ls_str_release(&json);
    return tok;
}

/* A vocabulary in SentencePiece's way: marks for blanks, bytes for what is not in it. */
#define PIECES_FRONT                                                                             \
    "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":"       \
    "\"<unk>\",\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"<0xC3>\":3,\"<0xA9>\":4,\"" MARK    \
    "\":5,\"a\":6,\"b\":7,\"" MARK "a\":8,\"" MARK MARK "\":9,\"ab\":10,\"" MARK "ab\":11},"     \
    "\"merges\":[[\"a\",\"b\"],[\"" MARK "\",\"ab\"],[\"" MARK "\",\"a\"],[\"" MARK "\",\"" MARK \
    "\"]]},\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},"                   \
    "{\"id\":2,\"content\":\"</s>\",\"special\":true}],"                                         \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":" \
    "\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":"   \
    "{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
#define PIECES_NORM                                                                             \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":" \
    "\"" MARK "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK    \
    "\"}]},"                                                                                    \
    "\"pre_tokenizer\":null,"                                                                   \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"       \
    "{\"String\":\"" MARK "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"       \
    "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}}"
#define PIECES_META                                                                           \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK                       \
    "\",\"prepend_scheme\":\"first\",\"split\":true},"                                        \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":" \
    "\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"first\"}]}}"

static void check_ids(const ls_tokenizer *tok, const char *text, unsigned how, const char *want)
{
    ls_tokens ids;
    ls_str got;

    ls_tokens_init(&ids);
    ls_str_init(&got);
    LS_CHECK_OK(ls_tokenizer_encode(tok, text, strlen(text), how, &ids));
    for (int64_t i = 0; i < ids.count; i++)
        ls_str_printf(&got, "%s%d", i ? " " : "", (int)ids.ids[i]);
    LS_CHECK_STR(got.p, want);
    ls_tokens_release(&ids);
    ls_str_release(&got);
}

/* Decoding gives text back, at once and as a stream. */
static void check_back(const ls_tokenizer *tok, const char *text)
{
    ls_tokenizer_stream stream;
    ls_tokens ids;
    ls_str got;

    ls_tokens_init(&ids);
    ls_str_init(&got);
    LS_CHECK_OK(ls_tokenizer_encode(tok, text, strlen(text), LS_ENCODE_SPECIAL, &ids));
    LS_CHECK_OK(ls_tokenizer_decode(tok, ids.ids, ids.count, &got));
    LS_CHECK_STR(got.p, text);
    ls_str_clear(&got);
    ls_tokenizer_stream_begin(&stream, tok);
    for (int64_t i = 0; i < ids.count; i++)
        LS_CHECK_OK(ls_tokenizer_stream_feed(&stream, ids.ids[i], &got));
    LS_CHECK_OK(ls_tokenizer_stream_end(&stream, &got));
    LS_CHECK_STR(got.p, text);
    ls_tokens_release(&ids);
    ls_str_release(&got);
}

LS_TEST(byte_level_merges_and_finds_added_tokens)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);

    LS_CHECK_EQ(ls_tokenizer_vocab(tok), 276);
    LS_CHECK_STR(ls_tokenizer_name(tok), "tok");
    check_ids(tok, "hello world", 0, "259 264");
    check_ids(tok, "hello  wor\xc3\xa9", 0, "259 32 262 195 169");
    check_ids(tok, "", 0, "");
    check_ids(tok, "hell<|end|>", LS_ENCODE_SPECIAL, "258 270");
    check_ids(tok, "<|e", LS_ENCODE_SPECIAL, "60 124 101");
    check_ids(tok, "<|end|>", 0, "60 124 101 110 100 124 62");
    check_ids(tok, "<tool>he<tool>box<tool>bo", 0, "271 256 272 271 98 111");
    check_ids(tok, "he<r> \n he <l>he", 0, "256 273 256 274 256");
    check_ids(tok, "own downtown own! \xc3\xa9own", 0,
              "275 32 100 111 119 110 116 111 119 110 32 275 33 32 195 169 111 119 110");
    check_back(tok, "hello \xf0\x9f\x98\x80 world<|end|>\n\tx");
    LS_CHECK_EQ(ls_tokenizer_find(tok, "<|end|>"), 270);
    LS_CHECK_EQ(ls_tokenizer_find(tok, BLANK "world"), 264);
    LS_CHECK_EQ(ls_tokenizer_find(tok, "nothing"), -1);
    LS_CHECK(ls_tokenizer_is_special(tok, 270) && !ls_tokenizer_is_special(tok, 271));
    LS_CHECK(!ls_tokenizer_is_special(tok, -1) && !ls_tokenizer_is_special(tok, 276));
    ls_tokenizer_free(tok);
}

LS_TEST(a_hole_in_the_ids_is_no_text)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_OK(ls_tokenizer_decode(tok, (int32_t[]){'a', 267, 'b'}, 3, &text));
    LS_CHECK_STR(text.p, "ab");
    LS_CHECK_FAILS(ls_tokenizer_decode(tok, (int32_t[]){276}, 1, &text), LS_EDATA, "0 to 275");
    ls_str_release(&text);
    ls_tokenizer_free(tok);
}

LS_TEST(broken_utf8_is_refused_with_its_place)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    ls_tokens ids;

    ls_tokens_init(&ids);
    LS_CHECK_FAILS(ls_tokenizer_encode(tok, "ab\xff", 3, 0, &ids), LS_EDATA, "not UTF-8 at byte 2");
    LS_CHECK_EQ(ids.count, 0);
    ls_tokens_release(&ids);
    ls_tokenizer_free(tok);
}

LS_TEST(steps_of_the_pre_tokenizer_are_run_in_order)
{
    ls_tokenizer *tok = open_byte_level(",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}");

    check_ids(tok, "world<tool>world", 0, "264 271 264"); /* a blank in front of each */
    check_ids(tok, " world", 0, "264");
    ls_tokenizer_free(tok);
    tok = open_byte_level(
        ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
        "\"Split\",\"pattern\":{\"String\":\"ll\"},\"behavior\":\"Isolated\"},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}");
    check_ids(tok, "hello", 0, "256 257 111");
    ls_tokenizer_free(tok);
    tok = open_byte_level(",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                          "\"Digits\",\"individual_digits\":true},{\"type\":\"Split\",\"pattern\":"
                          "{\"Regex\":\"l+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":false,\"use_regex\":false}]}");
    check_ids(tok, "he12ll\xc2\xbd", 0, "256 49 50 257 194 189");
    ls_tokenizer_free(tok);
}

LS_TEST(normal_form_c_joins_marks)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES ",\"normalizer\":{\"type\":\"NFC\"}");
    enum { MANY = 200000 };
    char *marks = ls_mem_alloc(4 * MANY + 2);
    ls_tokens ids;

    check_ids(tok, "e\xcc\x81", 0, "195 169");
    check_ids(tok, "q\xcc\xa7\xcc\x81 q\xcc\x81\xcc\xa7", 0,
              "113 204 167 204 129 32 113 204 167 204 129"); /* ordered */
    check_ids(tok, "\xe1\x84\x80\xe1\x85\xa1", 0, "234 176 128");
    /* Two marks in turns, in the order that is changed: a slow sort would need minutes. */
    marks[0] = 'q';
    for (int i = 0; i < MANY; i++)
        memcpy(marks + 1 + 4 * (ptrdiff_t)i, "\xcc\x81\xcc\xa7", 4);
    ls_tokens_init(&ids);
    LS_CHECK_OK(ls_tokenizer_encode(tok, marks, strlen(marks), 0, &ids));
    LS_CHECK_EQ(ids.count, 4 * MANY + 1);
    LS_CHECK_EQ(ids.ids[2], 0xa7);
    LS_CHECK_EQ(ids.ids[2 * MANY + 2], 0x81);
    ls_tokens_release(&ids);
    ls_mem_free(marks);
    ls_tokenizer_free(tok);
}

LS_TEST(pieces_with_marks_encode_and_decode)
{
    ls_tokenizer *tok = open_text(PIECES_FRONT PIECES_NORM);

    check_ids(tok, "ab a  ab", 0, "11 8 5 11");
    check_ids(tok, "ab", LS_ENCODE_TEMPLATE, "1 11");
    check_ids(tok,
              "\xc3\xa9x\xe2\x82\xac"
              "a",
              0, "5 3 4 0 6"); /* bytes, then one unknown */
    check_ids(tok, "a<s>a", LS_ENCODE_SPECIAL, "8 1 8");
    check_back(tok, "ab a  ab");
    check_back(tok, " ab \xc3\xa9");
    LS_CHECK_EQ(ls_tokenizer_bos(tok), 1);
    LS_CHECK_EQ(ls_tokenizer_eos(tok), 2);
    LS_CHECK_EQ(ls_tokenizer_separator(tok), 2);
    ls_tokenizer_free(tok);
    tok = open_text(PIECES_FRONT PIECES_META);
    check_ids(tok, "ab a  ab", 0, "11 8 5 11");
    check_ids(tok, "<s>a", LS_ENCODE_SPECIAL, "1 6"); /* only in front of the whole */
    check_back(tok, "ab a");
    ls_tokenizer_free(tok);
}

/* --- what is refused ----------------------------------------------------------------------------
 */

static void check_refused(const char *json, ls_status status, const char *part)
{
    ls_tokenizer *tok = NULL;

    LS_CHECK_OK(ls_file_make_dirs("bad"));
    put_file("bad/tokenizer.json", json);
    ls_err_clear();
    LS_CHECK_FAILS(ls_tokenizer_open(&tok, "bad"), status, part);
    LS_CHECK(!tok);
}

#define MODEL(more) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}," more "}"
#define PLAIN MODEL("\"merges\":[]}")

LS_TEST(files_that_are_no_tokenizer_are_refused)
{
    ls_tokenizer *tok = NULL;

    LS_CHECK_FAILS(ls_tokenizer_open(&tok, "no/where"), LS_EUSAGE, "no such folder or file");
    LS_CHECK(strstr(ls_err_last()->hint, "`hf download no/where "));
    LS_CHECK_OK(ls_file_make_dirs("empty"));
    LS_CHECK_FAILS(ls_tokenizer_open(&tok, "empty"), LS_EUSAGE, "has no tokenizer.json");
    check_refused("", LS_EDATA, "is not JSON");
    check_refused("{\"model\": {\"type\": \"BP", LS_EDATA, "is not JSON");
    LS_CHECK(strstr(ls_err_last()->hint, "bytes end in the middle: it is cut off"));
    check_refused("[1]", LS_EDATA, "holds no object");
    check_refused("{}", LS_EDATA, "no \"model\"");
    check_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", LS_EDATA, "\"Unigram\", not");
    check_refused("{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", LS_EDATA, "\"WordPiece\"");
    check_refused("{\"model\":{\"vocab\":{}}}", LS_EDATA, "of no type");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", LS_EDATA,
                  "no \"vocab\"");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", LS_EDATA, "empty");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", LS_EDATA,
                  "id -1");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", LS_EDATA,
                  "\"a\" has the id");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2147483647},\"merges\":[]}}",
                  LS_EDATA, "2147483647");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":7,\"b\":7},\"merges\":[]}}",
                  LS_EDATA, "same id 7");
    check_refused(MODEL("\"merges\":[\"a c\"]}"), LS_EDATA, "merge 1");
    check_refused(MODEL("\"merges\":[\"ab\"]}"), LS_EDATA, "not two tokens");
    check_refused(MODEL("\"merges\":[[\"a\",\"b\",\"c\"]]}"), LS_EDATA, "not two tokens");
    check_refused(MODEL("\"merges\":[5]}"), LS_EDATA, "not two tokens");
    check_refused(MODEL("\"merges\":[],\"dropout\":0.1}"), LS_EDATA, "\"dropout\"");
    check_refused(MODEL("\"merges\":[],\"end_of_word_suffix\":\"</w>\"}"), LS_EDATA, "end_of_word");
    check_refused(MODEL("\"merges\":[],\"continuing_subword_prefix\":\"##\"}"), LS_EDATA,
                  "subword");
    check_refused(MODEL("\"merges\":[],\"unk_token\":\"?\"}"), LS_EDATA, "unk_token \"?\"");
}

#define WITH(member) MODEL("\"merges\":[]}," member)

/* Conversations are filled up to their windows with the separator. */
LS_TEST(a_tokenizer_without_an_end_builds_no_shard)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    ls_chat *chat;
    const char *files[] = {"c.jsonl"};

    put_file("c.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":"
                        "\"assistant\",\"content\":\"\"}]}\n");
    LS_EXPECT_LOG(1); /* marks of the template are no tokens */
    LS_CHECK_OK(ls_chat_open(&chat, "chatml", tok));
    LS_CHECK_EQ(ls_log_count(LS_LOG_WARN), 0); /* generate --chat opens it for every answer */
    LS_CHECK_FAILS(
        ls_chat_build(chat,
                      &(ls_chat_build_args){
                          .out = "c.lst", .files = files, .n_files = 1, .name = "c", .window = 99},
                      NULL),
        LS_EDATA, "has no token that ends a text");
    LS_CHECK_EQ(ls_log_count(LS_LOG_WARN), 1);
    LS_CHECK(!ls_file_exists("c.lst"));
    ls_chat_close(chat);
    ls_tokenizer_free(tok);
}

LS_TEST(steps_that_are_not_known_are_refused_by_name)
{
    check_refused(WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), LS_EDATA, "\"Precompiled\"");
    check_refused(WITH("\"normalizer\":7"), LS_EDATA, "has no type");
    check_refused(WITH("\"normalizer\":{\"type\":\"Sequence\"}"), LS_EDATA, "no steps");
    check_refused(WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"}}"),
                  LS_EDATA, "regular expression \"x\"");
    check_refused(WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"}}"),
                  LS_EDATA, "empty");
#define TENFOLD "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"
    check_refused(WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" TENFOLD "," TENFOLD
                       "," TENFOLD "]}"),
                  LS_EDATA, "the normalizer of the tokenizer makes a text more than 100 times");
    check_refused(WITH("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" TENFOLD "," TENFOLD
                       "," TENFOLD "]}"),
                  LS_EDATA, "the decoder of the tokenizer makes a text more than 100 times");
    check_refused(WITH("\"pre_tokenizer\":{\"type\":\"Whitespace\"}"), LS_EDATA, "\"Whitespace\"");
    check_refused(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},"
                       "\"behavior\":\"Removed\"}"),
                  LS_EDATA, "behavior \"Removed\"");
    check_refused(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
                       "\"behavior\":\"Isolated\"}"),
                  LS_EDATA, "wrong at byte 1");
    check_refused(WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                       "\"ByteLevel\"},{\"type\":\"Digits\"}]}"),
                  LS_EDATA, "after ByteLevel");
    check_refused(WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"odd\"}"),
                  LS_EDATA, "\"odd\"");
    check_refused(WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), LS_EDATA,
                  "BertProcessing");
    check_refused(
        WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
             "\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[99]}}}"),
        LS_EDATA, "outside the vocabulary");
    check_refused(WITH("\"decoder\":{\"type\":\"WordPiece\"}"), LS_EDATA, "\"WordPiece\"");
    check_refused(WITH("\"added_tokens\":[{\"id\":5}]"), LS_EDATA, "added token 1");
    check_refused(WITH("\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]"), LS_EDATA, "same id 1");
    check_refused(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"a\"}]"), LS_EDATA,
                  "the vocabulary says 0");
}

LS_TEST(every_failing_allocation_is_survived)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES ",\"normalizer\":{\"type\":\"NFC\"}");
    ls_tokens ids;
    uint64_t nth = 0;
    bool done = false;

    ls_tokenizer_free(tok);
    ls_tokens_init(&ids);
    while (!done) {
        LS_CHECK(++nth < 100000);
        tok = NULL;
        ls_mem_fail_nth(nth);
        ls_status st = ls_tokenizer_open(&tok, "tok");
        if (st == LS_OK)
            st = ls_tokenizer_encode(tok, "he <tool>e\xcc\x81 world", 17, 0, &ids);
        done = st == LS_OK && ls_mem_calls() > 0;
        LS_CHECK(st == LS_OK || st == LS_ENOMEM);
        ls_mem_fail_nth(0);
        ls_tokenizer_free(tok);
        ls_tokens_release(&ids);
    }
    LS_CHECK(nth > 30);
}

LS_TEST(a_run_file_names_a_folder_that_must_exist)
{
    static const char text[] = "model: {layers: 1, width: 8, heads: 1, context: 8}\n"
                               "data: {text: [builtin:stories], tokenizer: tok}\n";
    ls_runfile_source source = {.text = text, .len = sizeof text - 1, .no_environment = true};
    ls_run run;

    LS_CHECK_FAILS(ls_runfile_load(&run, &source), LS_EUSAGE, "there is no folder \"tok\"");
    LS_CHECK_OK(ls_file_make_dirs("tok"));
    LS_CHECK_OK(ls_runfile_load(&run, &source));
    LS_CHECK_STR(run.data.tokenizer, "tok");
    ls_runfile_release(&run);
}

/* --- files next to it ---------------------------------------------------------------------------
 */

LS_TEST(the_files_next_to_it_name_the_ends_and_the_chat_template)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    ls_hash before = ls_tokenizer_hash(tok);

    LS_CHECK_EQ(ls_tokenizer_eos(tok), -1);
    LS_CHECK_EQ(ls_tokenizer_separator(tok), -1);
    LS_CHECK(!ls_tokenizer_chat_template(tok));
    ls_tokenizer_free(tok);
    put_file("tok/special_tokens_map.json", "{\"eos_token\":\"<tool>\",\"bos_token\":\"<r>\"}");
    LS_CHECK_OK(ls_tokenizer_open(&tok, "tok/tokenizer.json"));
    LS_CHECK_EQ(ls_tokenizer_eos(tok), 271);
    LS_CHECK(!ls_hash_equal(before, ls_tokenizer_hash(tok)));
    ls_tokenizer_free(tok);
    put_file("tok/tokenizer_config.json",
             "{\"eos_token\":{\"content\":\"<|end|>\"},\"bos_token\":null,"
             "\"model_max_length\":1000000000000000019884624838656,\"chat_template\":["
             "{\"name\":\"tools\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}");
    LS_CHECK_OK(ls_tokenizer_open(&tok, "tok"));
    LS_CHECK_EQ(ls_tokenizer_eos(tok), 270);
    LS_CHECK_EQ(ls_tokenizer_bos(tok), -1); /* null is an answer */
    LS_CHECK_STR(ls_tokenizer_chat_template(tok), "d");
    ls_tokenizer_free(tok);
    put_file("tok/chat_template.jinja", "{{ messages }}");
    LS_CHECK_OK(ls_tokenizer_open(&tok, "tok"));
    LS_CHECK_STR(ls_tokenizer_chat_template(tok), "{{ messages }}");
    ls_tokenizer_free(tok);
    put_file("tok/tokenizer_config.json", "{");
    LS_CHECK_FAILS(ls_tokenizer_open(&tok, "tok"), LS_EDATA, "tokenizer_config.json\" is not JSON");
}

/* --- texts in parts -----------------------------------------------------------------------------
 */

static uint64_t below(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

/* Encode text as it would arrive in parts of random length. Returns how many cuts were used. */
static int encode_parts(const ls_tokenizer *tok, const ls_str *text, uint64_t *rng, ls_tokens *ids)
{
    size_t begin = 0, seen = 0;
    int cuts = 0;

    while (seen < text->len) {
        seen += 1 + below(rng, 40);
        seen = seen < text->len ? seen : text->len;
        while (seen < text->len && (unsigned char)text->p[seen] >> 6 == 2)
            seen++;
        size_t n =
            seen == text->len ? seen - begin : ls_tokenizer_cut(tok, text->p + begin, seen - begin);
        LS_CHECK(n <= seen - begin);
        if (n == 0)
            continue;
        unsigned how = LS_ENCODE_SPECIAL | (begin ? LS_ENCODE_CONTINUE : 0u);
        LS_CHECK_OK(ls_tokenizer_encode(tok, text->p + begin, n, how, ids));
        begin += n;
        cuts++;
    }
    return cuts;
}

static int check_parts(const ls_tokenizer *tok, uint64_t seed)
{
    static const char *const words[] = {
        "a",        "ab",           " ",      "  ",        "hello",
        " world",   "\n",           "<r>",    "<l>",       "<s>",
        MARK,       "own",          "<tool>", "'ll",       "\t",
        "\xc2\xa0", "12",           ". ",     "e\xcc\x81", " a",
        " ab",      "\xe4\xb8\xad", " own",   "!",         "\xe2\x80\x83",
        " <r>",     "<|end|> "};
    ls_tokens whole, parts;
    uint64_t rng = seed;
    ls_str text;
    int cuts = 0;

    ls_str_init(&text);
    ls_tokens_init(&whole);
    ls_tokens_init(&parts);
    for (int round = 0; round < 300; round++) {
        ls_str_clear(&text);
        ls_tokens_clear(&whole);
        ls_tokens_clear(&parts);
        for (uint64_t i = below(&rng, 120); i-- > 0;)
            ls_str_append(&text, words[below(&rng, LS_COUNT(words))]);
        LS_CHECK_OK(ls_tokenizer_encode(tok, text.p, text.len, LS_ENCODE_SPECIAL, &whole));
        cuts += encode_parts(tok, &text, &rng, &parts) > 1;
        if (whole.count != parts.count ||
            memcmp(whole.ids, parts.ids, (size_t)whole.count * sizeof *whole.ids) != 0)
            ls_test_fail(__FILE__, __LINE__, "seed %llu: other ids in parts for \"%s\"",
                         (unsigned long long)seed, text.p);
    }
    ls_tokens_release(&whole);
    ls_tokens_release(&parts);
    ls_str_release(&text);
    return cuts;
}

LS_TEST(texts_in_parts_have_the_ids_of_the_whole)
{
    static const char *const rules[] = {GPT2_RULES,
                                        GPT2_RULES ",\"normalizer\":{\"type\":\"NFKC\"}",
                                        ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"};
    ls_tokenizer *tok;

    for (size_t i = 0; i < LS_COUNT(rules); i++) {
        tok = open_byte_level(rules[i]);
        LS_CHECK(check_parts(tok, 11 + i) > 100);
        ls_tokenizer_free(tok);
    }
    tok = open_text(PIECES_FRONT PIECES_NORM);
    LS_CHECK(check_parts(tok, 21) > 100);
    ls_tokenizer_free(tok);
    tok = open_text(PIECES_FRONT PIECES_META);
    LS_CHECK(check_parts(tok, 22) > 100);
    ls_tokenizer_free(tok);
    /* A pattern that may look anywhere is never cut. */
    tok =
        open_byte_level(",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                        "\"Split\",\"pattern\":{\"Regex\":\"(?<=a) b\"},\"behavior\":\"Isolated\"},"
                        "{\"type\":\"ByteLevel\",\"use_regex\":false}]}");
    LS_CHECK_EQ(check_parts(tok, 23), 0);
    ls_tokenizer_free(tok);
}

LS_TEST(a_shard_of_a_long_document_has_the_ids_of_the_whole)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    ls_token_shard shard;
    ls_tokens ids;
    ls_str text;
    int32_t *got;
    const char *file = "long.txt";
    uint64_t rng = 5;

    ls_tokenizer_free(tok);
    put_file("tok/tokenizer_config.json", "{\"eos_token\":\"<|end|>\"}");
    LS_CHECK_OK(ls_tokenizer_open(&tok, "tok"));
    ls_str_init(&text);
    ls_tokens_init(&ids);
    while (text.len < 700000)
        ls_str_append(&text, below(&rng, 5) ? below(&rng, 3) ? " hello" : " world\n" : "\n\n  he");
    put_file(file, text.p);
    LS_CHECK_OK(ls_corpus_build(&(ls_corpus_build_args){
        .tok = tok, .out = "a.shard", .name = "long", .files = &file, .n_files = 1}));
    LS_CHECK_OK(ls_tokenizer_encode(tok, text.p, text.len, LS_ENCODE_SPECIAL, &ids));
    LS_CHECK_OK(ls_token_shard_open(&shard, "a.shard"));
    LS_CHECK_EQ(shard.tokens, ids.count);
    got = ls_mem_array((size_t)ids.count, sizeof *got);
    LS_CHECK_OK(ls_token_shard_read(&shard, 0, ids.count, got));
    LS_CHECK(memcmp(got, ids.ids, (size_t)ids.count * sizeof *got) == 0);
    ls_mem_free(got);
    ls_token_shard_close(&shard);
    ls_tokens_release(&ids);
    ls_str_release(&text);
    ls_tokenizer_free(tok);
}

/* --- long words, threads ------------------------------------------------------------------------
 */

LS_TEST(a_word_of_a_megabyte_takes_no_time)
{
    enum { LEN = 1 << 20 };
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    char *text = ls_mem_alloc(LEN + 1);
    ls_tokens ids;

    for (int i = 0; i < LEN; i++)
        text[i] = "hello"[i % 5];
    ls_tokens_init(&ids);
    LS_CHECK_OK(ls_tokenizer_encode(tok, text, LEN, 0, &ids));
    LS_CHECK_EQ(ids.count, LEN / 5 + 1);
    LS_CHECK_EQ(ids.ids[0], 259);
    LS_CHECK_EQ(ids.ids[ids.count - 1], 'h');
    ls_tokens_release(&ids);
    ls_mem_free(text);
    ls_tokenizer_free(tok);
}

/* What a token took along is not a token again, unless that one does not look to the left. The ids
 * are those of the package, which fails on the first row. */
LS_TEST(blanks_that_were_taken_along_are_gone)
{
    static const struct {
        const char *flags, *ids;
    } rows[] = {{"\"lstrip\":true", "0 2 0"},
                {"\"lstrip\":true,\"rstrip\":true", "0 2 0"},
                {"\"rstrip\":true", "0 2 1 1 0"}};

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        ls_str json;
        ls_str_init(&json);
        ls_str_printf(&json,
                      "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                      "\"added_tokens\":[{\"id\":1,\"content\":\" \",%s,\"normalized\":false},"
                      "{\"id\":2,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false}]}",
                      rows[i].flags);
        ls_tokenizer *tok = open_text(json.p);
        check_ids(tok, "a<r>  a", 0, rows[i].ids);
        ls_tokenizer_free(tok);
        ls_str_release(&json);
    }
}

/* Tokens that take the blanks around them along, in a text of nothing else. */
LS_TEST(greedy_blank_tokens_take_no_time)
{
    enum { LEN = 1 << 20 };
    static const char *const flags[] = {"lstrip", "rstrip"};
    char *text = ls_mem_alloc(LEN + 1);

    memset(text, ' ', LEN);
    for (size_t k = 0; k < LS_COUNT(flags); k++) {
        ls_str json;
        ls_tokens ids;
        ls_str_init(&json);
        ls_str_printf(&json,
                      "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                      "\"added_tokens\":[{\"id\":1,\"content\":\" \",\"%s\":true,"
                      "\"normalized\":false}]}",
                      flags[k]);
        ls_tokenizer *tok = open_text(json.p);
        check_ids(tok, "a   a", 0, "0 1 1 1 0");
        ls_tokens_init(&ids);
        LS_CHECK_OK(ls_tokenizer_encode(tok, text, LEN, 0, &ids));
        LS_CHECK_EQ(ids.count, LEN);
        ls_tokens_release(&ids);
        ls_tokenizer_free(tok);
        ls_str_release(&json);
    }
    ls_mem_free(text);
}

/* A document in one line must not be larger than what is encoded in one go, either. */
LS_TEST(a_document_without_a_place_to_cut_is_refused)
{
    size_t len = (size_t)LS_TOKENIZER_WHOLE + LS_MIB;
    const char *file = "long.jsonl";
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    ls_str text;

    ls_tokenizer_free(tok);
    put_file("tok/tokenizer_config.json", "{\"eos_token\":\"<|end|>\"}");
    LS_CHECK_OK(ls_tokenizer_open(&tok, "tok"));
    ls_str_init(&text);
    ls_str_append(&text, "{\"text\":\"");
    ls_str_reserve(&text, len + 64);
    LS_CHECK_OK(ls_str_status(&text));
    memset(text.p + text.len, 'a', len);
    text.len += len;
    ls_str_append(&text, "\"}\n");
    LS_CHECK_OK(ls_file_write_atomic(file, text.p, text.len));
    LS_CHECK_FAILS(ls_corpus_build(&(ls_corpus_build_args){
                       .tok = tok, .out = "a.shard", .name = "long", .files = &file, .n_files = 1}),
                   LS_EDATA, "a document has 65 MiB without a place where the tokenizer \"tok\"");
    ls_str_release(&text);
    ls_tokenizer_free(tok);
}

/* The two ways of merging give the same: words below and above the limit between them. */
LS_TEST(few_and_many_symbols_merge_alike)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    uint64_t rng = 3;
    char text[400];
    ls_tokens one, two;

    ls_tokens_init(&one);
    ls_tokens_init(&two);
    for (int round = 0; round < 2000; round++) {
        /* The same word twice, as itself and behind sixty letters that merge with nothing. */
        int n = 1 + (int)below(&rng, 60);
        memset(text, 'z', sizeof text);
        for (int i = 0; i < n; i++)
            text[70 + i] = "hellowrd"[below(&rng, 8)];
        ls_tokens_clear(&one);
        ls_tokens_clear(&two);
        LS_CHECK_OK(ls_tokenizer_encode(tok, text + 70, (size_t)n, 0, &one));
        LS_CHECK_OK(ls_tokenizer_encode(tok, text, (size_t)n + 70, 0, &two));
        LS_CHECK_EQ(two.count, one.count + 70);
        LS_CHECK(memcmp(one.ids, two.ids + 70, (size_t)one.count * sizeof *one.ids) == 0);
    }
    ls_tokens_release(&one);
    ls_tokens_release(&two);
    ls_tokenizer_free(tok);
}

static void *encode_often(void *context)
{
    const ls_tokenizer *tok = context;
    ls_tokens ids;

    ls_tokens_init(&ids);
    for (int i = 0; i < 200; i++) {
        ls_tokens_clear(&ids);
        LS_CHECK_OK(ls_tokenizer_encode(tok, "hello world he<tool>", 20, 0, &ids));
        LS_CHECK_EQ(ids.count, 5);
        LS_CHECK_EQ(ids.ids[1], 264);
    }
    ls_tokens_release(&ids);
    return NULL;
}

LS_TEST(threads_share_a_tokenizer)
{
    ls_tokenizer *tok = open_byte_level(GPT2_RULES);
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        LS_CHECK_EQ(pthread_create(&threads[i], NULL, encode_often, tok), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ls_tokenizer_free(tok);
}

/* --- real ones ----------------------------------------------------------------------------------
 */

static void check_vectors(const char *folder, const char *vectors)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    ls_str path, inputs, outputs;
    ls_tokenizer *tok = NULL;
    char *in, *row;
    int count = 0;

    ls_str_init(&path);
    ls_str_init(&inputs);
    ls_str_init(&outputs);
    ls_str_printf(&path, "%s/../shared/data/tokenizers/%s", ls_test_root(), folder);
    if (!ls_file_is_dir(path.p))
        ls_test_skip("there is no ../shared/data/tokenizers/%s", folder);
    LS_CHECK_OK(ls_tokenizer_open(&tok, path.p));
    ls_str_clear(&path);
    ls_str_printf(&path, "%s/../shared/data/tokenizers/%s.inp", ls_test_root(), vectors);
    LS_CHECK_OK(ls_file_read(path.p, LS_MIB, &inputs));
    memcpy(path.p + path.len - 3, "out", 3);
    LS_CHECK_OK(ls_file_read(path.p, LS_MIB, &outputs));
    in = inputs.p;
    for (row = outputs.p; *row; count++) {
        char *end = strstr(in, between), *line = strchr(row, '\n');
        LS_CHECK(line);
        if (end)
            *end = '\0';
        *line = '\0';
        while (*row == ' ')
            row++;
        check_ids(tok, in, LS_ENCODE_SPECIAL, row);
        check_back(tok, in);
        in = end ? end + sizeof between - 1 : in + strlen(in);
        row = line + 1;
    }
    LS_CHECK(count > 30);
    ls_tokenizer_free(tok);
    ls_str_release(&path);
    ls_str_release(&inputs);
    ls_str_release(&outputs);
}

LS_TEST(vectors_of_gpt2_are_exact)
{
    check_vectors("gpt2", "vectors-gpt-2");
}

LS_TEST(vectors_of_qwen_are_exact)
{
    check_vectors("qwen2.5", "vectors-qwen2");
}
