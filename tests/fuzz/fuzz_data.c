/* fuzz_data.c -- any file through the whole of `data build`, as text, conversations or preferences.
 *
 * The first byte says how the bytes behind it are read: as .txt, .jsonl, .jsonl.gz or .jsonl.zst, by
 * which policy, with bad lines skipped or not, by which template and tokenizer, in windows of what
 * length. A shard that appears must verify, give windows, and count its targets alike in both ways.
 * Those of preferences have marks of their own and only verify. */
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "data/chat/chat.h"
#include "data/chat/preference_data.h"
#include "data/corpus/corpus.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char template[] =
    "{%- for m in messages %}{%- if m.role == 'assistant' and not loop.last %}"
    "{{- '<a>' ~ m.content.split('</t>')[-1] }}{%- elif m.role == 'assistant' %}"
    "{{- '<a><t></t>' ~ m.content | trim }}{%- else %}{{- '<u>' ~ m.content }}{%- endif %}"
    "{%- for t in m.tool_calls or [] %}{{- t | tojson }}{%- endfor %}{{- '.' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<a>' }}{%- endif %}";
/* Merges, a normalizer that lengthens, and tokens that take blanks along. */
static const char tokenizer[] =
    "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"<\":1,\">\":2,\"a\":3,"
    "\"u\":4,\"\u2581\":5,\"\u2581a\":6,\".\":7,\"<|im_end|>\":8,\"aa\":9},\"merges\":"
    "[\"\u2581 a\",\"a a\"]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
    "{\"type\":\"NFKC\"},{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},\"added_tokens\":[{\"id\":8,"
    "\"content\":\"<|im_end|>\",\"special\":true,\"lstrip\":true,\"rstrip\":true,\"normalized\":"
    "false}]}";

/* Warnings of skipped lines are no news here. */
static void no_sink(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static const char config[] = "{\"eos_token\":\"<|im_end|>\"}";

static void must(ls_status st)
{
    if (st != LS_OK)
        abort();
}

static ls_tokenizer *open_tokenizer(bool json)
{
    static ls_tokenizer *toks[2]; /* they never change; two for the life of the process */

    if (!toks[json]) {
        must(ls_file_write_atomic("t.jinja", template, sizeof template - 1));
        must(ls_file_make_dirs("tok"));
        must(ls_file_write_atomic("tok/tokenizer.json", tokenizer, sizeof tokenizer - 1));
        must(ls_file_write_atomic("tok/tokenizer_config.json", config, sizeof config - 1));
        must(ls_tokenizer_open(&toks[json], json ? "tok" : "bytes"));
        ls_log_set_sink(no_sink, NULL, LS_LOG_ERROR);
    }
    return toks[json];
}

static ls_status build_preferences(const char *const *files, ls_utf8_policy utf8, bool skip_bad,
                                   const ls_tokenizer *tok, const char *chat, int64_t T)
{
    static const ls_objective objectives[] = {LS_OBJECTIVE_DPO, LS_OBJECTIVE_ORPO,
                                              LS_OBJECTIVE_KTO};
    ls_token_shard shard;
    ls_chat *c = NULL;

    if (chat)
        must(ls_chat_open(&c, chat, tok));
    ls_status st =
        ls_preference_data_build(&(ls_preference_data_args){.objective = objectives[T % 3],
                                                            .tok = tok,
                                                            .chat = c,
                                                            .out = "out.lst",
                                                            .files = files,
                                                            .n_files = 1,
                                                            .name = "fuzz",
                                                            .utf8 = utf8,
                                                            .skip_bad = skip_bad,
                                                            .window = 2 * T});
    ls_chat_close(c);
    if (st == LS_OK) {
        must(ls_token_shard_open(&shard, "out.lst"));
        must(ls_token_shard_verify(&shard));
        ls_token_shard_close(&shard);
    }
    return st;
}

/* What was built is whole and serves windows. */
static void look(const ls_tokenizer *tok, int64_t T)
{
    ls_run run = {.model.context = T, .data.field = "text", .data.chat_template = "none"};
    const char *items[] = {"out.lst"};
    int32_t tokens[64], targets[64], start[64];
    ls_token_shard shard;
    ls_corpus *corpus;

    must(ls_token_shard_open(&shard, "out.lst"));
    must(ls_token_shard_verify(&shard));
    int64_t windows = shard.version == LS_TOKEN_SHARD_MARKED ? shard.tokens / T : 1;
    ls_token_shard_close(&shard);
    run.data.shards = (ls_run_list){items, 1};
    run.data.isolate = true;
    if (ls_corpus_open(&corpus, &run, tok, ".") != LS_OK)
        return; /* too short */
    for (int64_t w = 0; w < windows && w < 8; w++) {
        must(ls_corpus_window(corpus, 0, w * T, T, tokens, targets, start));
        if (ls_corpus_counted(targets, T) != ls_corpus_window_targets(corpus, 0, w * T, T, true))
            abort();
    }
    ls_corpus_close(corpus);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"in.txt", "in.jsonl", "in.jsonl.gz", "in.jsonl.zst"};
    static const char *const templates[] = {"chatml", "llama3", "t.jinja", "qwen"};

    if (size < 2)
        return 0;
    uint8_t how = data[0], more = data[1];
    const char *name = names[how & 3], *files[] = {name};
    ls_utf8_policy utf8 = (ls_utf8_policy)((how >> 2 & 3) % 3);
    bool skip_bad = how >> 4 & 1, chat = how >> 5 & 1, preferences = how >> 7;
    int64_t T = 1 + (more & 63);
    ls_tokenizer *tok = open_tokenizer(how >> 6 & 1);
    ls_status st;

    must(ls_file_write_atomic(name, data + 2, size - 2));
    unlink("out.lst");
    if (preferences) {
        st = build_preferences(files, utf8, skip_bad, tok, chat ? templates[more >> 6] : NULL, T);
    } else if (chat) {
        ls_chat *c;
        must(ls_chat_open(&c, templates[more >> 6], tok));
        st = ls_chat_build(c,
                           &(ls_chat_build_args){.out = "out.lst",
                                                 .files = files,
                                                 .n_files = 1,
                                                 .name = "fuzz",
                                                 .utf8 = utf8,
                                                 .skip_bad = skip_bad,
                                                 .window = T},
                           NULL);
        ls_chat_close(c);
    } else {
        st = ls_corpus_build(&(ls_corpus_build_args){.out = "out.lst",
                                                     .files = files,
                                                     .n_files = 1,
                                                     .name = "fuzz",
                                                     .utf8 = utf8,
                                                     .skip_bad = skip_bad,
                                                     .tok = tok});
    }
    if (st != LS_OK && st != LS_EDATA && st != LS_EUSAGE && st != LS_ENOMEM)
        abort();
    if ((st == LS_OK) != ls_file_exists("out.lst"))
        abort();
    if (st == LS_OK && !preferences)
        look(tok, T);
    ls_err_clear();
    return 0;
}
