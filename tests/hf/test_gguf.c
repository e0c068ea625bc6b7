/* test_gguf.c -- GGUF files: block rounding, the order of rows, settings, tokenizers, refusals. */
#include "harness.h"

#include <math.h>
#include <unistd.h>
#include "base/mem.h"
#include "hf/gguf_block.h"
#include "hf/gguf_read.h"
#include "data/tokenizer/bpe_train.h"
#include "hf/hf_export.h"
#include "hf/hub.h"

#define COMMON "layers: 2, width: 32, heads: 4, context: 30, mlp: 64, vocab: 259, init_std: 0.3"

static ls_status export_to(const char *to, ls_gguf_type type, ls_hf_export_report *report)
{
    ls_hf_export_args args = {.from = "hf", .to = to, .step = -1, .gguf = true, .gguf_type = type};

    return ls_hf_export(&args, report);
}

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

/* The folder "hf" with the tokenizer "bytes". */
static void make(hub *s, const char *model)
{
    hub_init(s, model);
    hub_write(s, "hf", 1);
    LS_CHECK_OK(ls_bpe_train_write_bytes("hf"));
}

/* --- numbers ---------------------------------------------------------------------------------- */

LS_TEST(gguf_blocks_round_as_the_format_says)
{
    float x[32] = {1.0f, -2.0f, 0.5f, 0, 0.124f, 0.126f}, y[32];
    unsigned char bytes[34];
    bool finite;

    ls_gguf_block_pack(LS_GGUF_TYPE_Q4_0, x, 32, bytes, &finite);
    LS_CHECK(finite);
    LS_CHECK(bytes[0] == 0 && bytes[1] == 0x34); /* d = 0.25 */
    LS_CHECK_EQ(bytes[2] & 15, 12);
    LS_CHECK_EQ(bytes[3] & 15, 0);
    LS_CHECK_EQ(bytes[4] & 15, 10);
    LS_CHECK_EQ(bytes[6] & 15, 8); /* 0.124 / 0.25 is less than a half, */
    LS_CHECK_EQ(bytes[7] & 15, 9); /* 0.126 more */
    LS_CHECK_EQ(bytes[2] >> 4, 8); /* number 16 is 0 */
    ls_gguf_block_unpack(LS_GGUF_TYPE_Q4_0, bytes, 32, y);
    LS_CHECK(y[0] == 1 && y[1] == -2 && y[2] == 0.5f && y[3] == 0 && y[5] == 0.25f);

    x[1] = -127;
    x[2] = 0.5f;
    ls_gguf_block_pack(LS_GGUF_TYPE_Q8_0, x, 32, bytes, &finite);
    LS_CHECK(bytes[0] == 0 && bytes[1] == 0x3c); /* d = 1 */
    LS_CHECK_EQ((signed char)bytes[2], 1);
    LS_CHECK_EQ((signed char)bytes[3], -127);
    LS_CHECK_EQ((signed char)bytes[4], 1); /* a half rounds away from zero */
    ls_gguf_block_unpack(LS_GGUF_TYPE_Q8_0, bytes, 32, y);
    LS_CHECK(y[1] == -127 && y[2] == 1);
}

LS_TEST(gguf_blocks_of_zeros_and_of_extremes_are_sound)
{
    static const ls_gguf_type types[] = {LS_GGUF_TYPE_Q8_0, LS_GGUF_TYPE_Q4_0};
    static const float numbers[] = {0, 1e-45f, 1e-39f, 1e-30f, 1e4f, 3e38f};
    unsigned char bytes[34];
    float x[32], y[32];
    bool finite;

    for (int t = 0; t < 2; t++)
        for (size_t k = 0; k < LS_COUNT(numbers); k++) {
            for (int i = 0; i < 32; i++)
                x[i] = i % 2 ? numbers[k] : -numbers[k];
            ls_gguf_block_pack(types[t], x, 32, bytes, &finite);
            LS_CHECK_EQ(finite, numbers[k] < 1e38f);
            ls_gguf_block_unpack(types[t], bytes, 32, y);
            for (int i = 0; i < 32 && finite; i++)
                LS_CHECK(fabsf(y[i] - x[i]) <= 0.13f * numbers[k] + 1e-6f);
        }
    for (int i = 0; i < 32; i++)
        x[i] = i == 5 ? 70000.0f : 1.0f;
    ls_gguf_block_pack(LS_GGUF_TYPE_F16, x, 17, bytes, &finite);
    LS_CHECK(!finite);
    ls_gguf_block_pack(LS_GGUF_TYPE_BF16, x, 17, bytes, &finite);
    LS_CHECK(finite);
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* Row `row` of a tensor in the file is row `want` of a parameter, bit for bit. */
static void check_row(const gguf_read *f, const char *name, int64_t row, const hub_tensor *of,
                      int64_t want)
{
    gguf_found t = {.type = 0};
    int64_t C = of->ndim == 1 ? 1 : of->shape[1];

    LS_CHECK(gguf_read_tensor(f, name, &t));
    LS_CHECK_EQ(t.type, LS_GGUF_TYPE_F32);
    LS_CHECK(memcmp(t.bytes + row * C * 4, of->values + want * C, (size_t)C * 4) == 0);
}

LS_TEST(gguf_pairs_rows_of_queries_and_keys_for_llama)
{
    hub s;
    gguf_read f;
    ls_hf_export_report r;
    char text[64];

    make(&s, "family: llama, kv_heads: 2, bias: attention, tied: false, " COMMON);
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F32, &r));
    LS_CHECK(r.worst == 0);
    gguf_read_open(&f, "out.gguf");
    const hub_tensor *q = hub_find(&s, "model.layers.1.self_attn.q_proj.weight");
    const hub_tensor *k = hub_find(&s, "model.layers.1.self_attn.k_proj.bias");
    const hub_tensor *v = hub_find(&s, "model.layers.1.self_attn.v_proj.weight");
    static const int order[] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of a head of 8 */
    for (int i = 0; i < 32; i++)
        check_row(&f, "blk.1.attn_q.weight", i, q, i / 8 * 8 + order[i % 8]);
    for (int i = 0; i < 16; i++) {
        check_row(&f, "blk.1.attn_k.bias", i, k, i / 8 * 8 + order[i % 8]);
        check_row(&f, "blk.1.attn_v.weight", i, v, i);
    }
    gguf_read_text(&f, "general.architecture", text, sizeof text);
    LS_CHECK_STR(text, "llama");
    LS_CHECK_EQ(gguf_read_u32(&f, "llama.attention.head_count_kv"), 2);
    LS_CHECK_EQ(gguf_read_u32(&f, "llama.rope.dimension_count"), 8);
    LS_CHECK_NEAR((double)gguf_read_f32(&f, "llama.rope.freq_base"), 10000, 0);
    gguf_read_close(&f);
    hub_release(&s);
}

LS_TEST(gguf_turns_the_matrices_of_gpt2)
{
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;

    make(&s, "family: gpt2, " COMMON);
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F32, &r));
    LS_CHECK(r.worst == 0);
    gguf_read_open(&f, "out.gguf");
    const hub_tensor *fc = hub_find(&s, "transformer.h.0.mlp.c_fc.weight"); /* [32, 64] */
    LS_CHECK(gguf_read_tensor(&f, "blk.0.ffn_up.weight", &t));
    LS_CHECK(t.sizes[0] == 32 && t.sizes[1] == 64);
    for (int n = 0; n < 64; n++)
        for (int k = 0; k < 32; k++) {
            float x;
            memcpy(&x, t.bytes + (n * 32 + k) * 4, sizeof x);
            LS_CHECK(x == fc->values[k * 64 + n]);
        }
    check_row(&f, "position_embd.weight", 7, hub_find(&s, "transformer.wpe.weight"), 7);
    LS_CHECK(!gguf_read_tensor(&f, "output.weight", &t)); /* it is the embedding */
    gguf_read_close(&f);
    hub_release(&s);
}

LS_TEST(gguf_joins_what_llama_cpp_has_as_one)
{
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;

    make(&s, "family: phi3, kv_heads: 2, tied: false, window: 9, " COMMON);
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F32, &r));
    LS_CHECK(r.worst == 0 && strstr(r.notes, "no window of 9 tokens"));
    gguf_read_open(&f, "out.gguf");
    LS_CHECK_EQ(gguf_read_u32(&f, "phi3.context_length"), 9);
    LS_CHECK(gguf_read_tensor(&f, "blk.0.attn_qkv.weight", &t) && t.sizes[1] == 64);
    LS_CHECK(gguf_read_tensor(&f, "blk.0.ffn_up.weight", &t) && t.sizes[1] == 128);
    gguf_read_close(&f);
    hub_release(&s);
}

LS_TEST(gguf_stacks_experts)
{
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;

    make(&s, "family: mixtral, kv_heads: 2, experts: 3, experts_used: 2, tied: false, " COMMON);
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F32, &r));
    gguf_read_open(&f, "out.gguf");
    LS_CHECK(gguf_read_tensor(&f, "blk.1.ffn_down_exps.weight", &t));
    LS_CHECK(t.ndim == 3 && t.sizes[0] == 64 && t.sizes[1] == 32 && t.sizes[2] == 3);
    const hub_tensor *down = hub_find(&s, "model.layers.1.block_sparse_moe.experts.2.w2.weight");
    check_row(&f, "blk.1.ffn_down_exps.weight", 2 * 32 + 5, down, 5);
    gguf_read_close(&f);
    hub_release(&s);
}

LS_TEST(gguf_types_of_tensors)
{
    static const struct {
        const char *name;
        ls_gguf_type type;
    } rows[] = {{"token_embd.weight", LS_GGUF_TYPE_Q8_0},
                {"output.weight", LS_GGUF_TYPE_Q8_0},
                {"output_norm.weight", LS_GGUF_TYPE_F32},
                {"blk.0.attn_q.weight", LS_GGUF_TYPE_Q4_0},
                {"blk.0.ffn_down.weight", LS_GGUF_TYPE_F16}}; /* rows of 40: no whole blocks */
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;

    make(&s, "family: llama, tied: false, layers: 2, width: 32, heads: 4, context: 30, mlp: 40, "
             "vocab: 259");
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_Q4_0, &r));
    LS_CHECK(r.worst > 0);
    gguf_read_open(&f, "out.gguf");
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        LS_CHECK(gguf_read_tensor(&f, rows[i].name, &t));
        LS_CHECK_EQ(t.type, rows[i].type);
    }
    gguf_read_close(&f);
    hub_release(&s);
}

LS_TEST(gguf_scales_frequencies_as_the_model_does)
{
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;
    ls_run plain;
    ls_model model;
    float scaled[8], flat[8];

    make(&s, "family: llama, rope_scaling: llama3, rope_factor: 8, rope_original: 16, " COMMON);
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F32, &r));
    gguf_read_open(&f, "out.gguf");
    LS_CHECK(gguf_read_tensor(&f, "rope_freqs.weight", &t) && t.count == 4);
    plain = s.run;
    plain.model.rope_scaling = LS_ROPE_PLAIN;
    LS_CHECK_OK(ls_model_init(&model, &plain, 259));
    ls_model_rope(&s.model, 1, 1, scaled);
    ls_model_rope(&model, 1, 1, flat);
    for (int i = 0; i < 4; i++) {
        float factor;
        memcpy(&factor, t.bytes + 4 * i, sizeof factor);
        double angle = atan2((double)flat[2 * i + 1], (double)flat[2 * i]);
        LS_CHECK_NEAR(atan2((double)scaled[2 * i + 1], (double)scaled[2 * i]),
                      angle / (double)factor, 1e-6);
    }
    ls_model_release(&model);
    gguf_read_close(&f);
    hub_release(&s);
}

/* --- tokenizers ------------------------------------------------------------------------------- */

#define BYTE_LEVEL                                                                          \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\"" \
    ":true,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
#define ADDED(id, text, special)                                     \
    "{\"id\":" #id ",\"content\":\"" text "\",\"special\":" #special \
    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}"

LS_TEST(gguf_keeps_a_byte_level_tokenizer)
{
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;
    char text[64];

    make(&s, "family: qwen2, kv_heads: 2, " COMMON);
    put("hf/tokenizer.json",
        "{\"added_tokens\":[" ADDED(4, "<|end|>", true) "," ADDED(
            5, "<tool>", false) "]," BYTE_LEVEL "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"abb\":3},"
                                "\"merges\":[\"a b\",[\"ab\",\"b\"]]}}");
    put("hf/tokenizer_config.json", "{\"eos_token\":\"<|end|>\",\"chat_template\":\"hello\"}");
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F16, &r));
    gguf_read_open(&f, "out.gguf");
    gguf_read_text(&f, "tokenizer.ggml.model", text, sizeof text);
    LS_CHECK_STR(text, "gpt2");
    gguf_read_text(&f, "tokenizer.ggml.pre", text, sizeof text);
    LS_CHECK_STR(text, "gpt-2");
    gguf_read_text(&f, "tokenizer.chat_template", text, sizeof text);
    LS_CHECK_STR(text, "hello");
    LS_CHECK(gguf_read_setting(&f, "tokenizer.ggml.tokens", &t) && t.count == 259);
    gguf_read_nth(&t, 3, text, sizeof text);
    LS_CHECK_STR(text, "abb");
    gguf_read_nth(&t, 258, text, sizeof text);
    LS_CHECK_STR(text, "[PAD258]");
    LS_CHECK(gguf_read_setting(&f, "tokenizer.ggml.token_type", &t));
    LS_CHECK(t.bytes[0] == 1 && t.bytes[16] == 3 && t.bytes[20] == 4 && t.bytes[24] == 5);
    LS_CHECK(gguf_read_setting(&f, "tokenizer.ggml.merges", &t) && t.count == 2);
    gguf_read_nth(&t, 1, text, sizeof text);
    LS_CHECK_STR(text, "ab b");
    LS_CHECK_EQ(gguf_read_u32(&f, "tokenizer.ggml.eos_token_id"), 4);
    gguf_read_close(&f);
    hub_release(&s);
}

#define PIECES \
    "\"<unk>\":0,\"<0x0A>\":1,\"\xe2\x96\x81\":2,\"a\":3,\"b\":4,\"c\":5,\"ab\":6,\"abc\":7"
#define SENTENCE_PIECE(vocab, merges)                                                          \
    "{\"added_tokens\":[],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"   \
    "\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":" \
    "\" \"},\"content\":\"\xe2\x96\x81\"}]},\"decoder\":null,\"model\":{\"type\":\"BPE\","     \
    "\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{" vocab "},\"merges\":[" merges \
    "]}}"

LS_TEST(gguf_scores_a_sentence_piece_tokenizer)
{
    hub s;
    gguf_read f;
    gguf_found t = {.type = 0};
    ls_hf_export_report r;
    char text[64];
    float score;

    make(&s, "family: llama, " COMMON);
    put("hf/tokenizer.json", SENTENCE_PIECE(PIECES, "\"a b\",\"ab c\""));
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_F16, &r));
    gguf_read_open(&f, "out.gguf");
    gguf_read_text(&f, "tokenizer.ggml.model", text, sizeof text);
    LS_CHECK_STR(text, "llama");
    LS_CHECK(gguf_read_setting(&f, "tokenizer.ggml.scores", &t));
    memcpy(&score, t.bytes + 4 * 7, sizeof score);
    LS_CHECK(score == -1);
    LS_CHECK(gguf_read_setting(&f, "tokenizer.ggml.token_type", &t));
    LS_CHECK(t.bytes[0] == 2 && t.bytes[4] == 6 && t.bytes[12] == 1);
    LS_CHECK(gguf_read_setting(&f, "tokenizer.ggml.add_space_prefix", &t) && t.bytes[0] == 1);
    gguf_read_close(&f);

    put("hf/tokenizer.json", SENTENCE_PIECE(PIECES ",\"bc\":8", "\"a b\",\"ab c\",\"b c\""));
    LS_CHECK_FAILS(export_to("no.gguf", LS_GGUF_TYPE_F16, &r), LS_EUSAGE,
                   "\"abc\" can be made of two tokens that no merge joins");
    put("hf/tokenizer.json",
        SENTENCE_PIECE(PIECES ",\"bc\":8", "\"a b\",\"ab c\",\"b c\",\"a bc\""));
    LS_CHECK_FAILS(export_to("no.gguf", LS_GGUF_TYPE_F16, &r), LS_EUSAGE,
                   "the merges that make \"abc\" do not stand in a row");
    LS_CHECK(!ls_file_exists("no.gguf"));
    hub_release(&s);
}

/* --- refusals --------------------------------------------------------------------------------- */

LS_TEST(gguf_refuses_what_llama_cpp_lacks)
{
    static const struct {
        const char *model, *message;
    } rows[] = {
        {"family: qwen3, kv_heads: 2, bias: attention, " COMMON, "no place for these biases"},
        {"family: qwen2, kv_heads: 2, head_size: 16, " COMMON, "heads that fill the width"},
        {"family: olmoe, kv_heads: 2, experts: 3, experts_used: 2, " COMMON, "as many key heads"},
        {"family: olmoe, experts: 3, experts_used: 2, experts_norm: true, " COMMON,
         "never divides the weights"},
        {"family: qwen3, rope_scaling: llama3, rope_factor: 8, rope_original: 16, " COMMON,
         "Llama 3's scaling"},
    };
    ls_hf_export_report r;

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        hub s;
        make(&s, rows[i].model);
        LS_CHECK_FAILS(export_to("out.gguf", LS_GGUF_TYPE_F16, &r), LS_EUSAGE, rows[i].message);
        LS_CHECK(!ls_file_exists("out.gguf"));
        hub_release(&s);
    }
}

LS_TEST(gguf_file_is_there_whole_or_not_at_all)
{
    hub s;
    ls_hf_export_report r;

    make(&s, "family: llama, " COMMON);
    hub_find(&s, "model.layers.0.mlp.up_proj.weight")->values[3] = 70000;
    hub_write(&s, "hf", 1);
    LS_CHECK_FAILS(export_to("out.gguf", LS_GGUF_TYPE_F16, &r), LS_EDATA, "too large for f16");
    LS_CHECK(!ls_file_exists("out.gguf"));
    LS_CHECK_OK(export_to("out.gguf", LS_GGUF_TYPE_BF16, &r));
    LS_CHECK_FAILS(export_to("out.gguf", LS_GGUF_TYPE_BF16, &r), LS_EUSAGE, "exists");
    LS_CHECK(unlink("hf/tokenizer.json") == 0);
    LS_CHECK_FAILS(export_to("no.gguf", LS_GGUF_TYPE_BF16, &r), LS_EUSAGE,
                   "no tokenizer.json lies beside");
    hub_release(&s);
}
