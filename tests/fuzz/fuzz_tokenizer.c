/* fuzz_tokenizer.c -- any bytes as a tokenizer.json: refused with a sentence, or texts can be
 * encoded with ids of the vocabulary, decoded, streamed and cut. */
#include "data/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_text(const ls_tokenizer *tok, const char *text)
{
    ls_tokenizer_stream stream;
    ls_tokens ids;
    ls_str out;
    size_t len = strlen(text);

    ls_tokens_init(&ids);
    ls_str_init(&out);
    LS_BUG_IF(ls_tokenizer_cut(tok, text, len) > len, "a cut behind the text");
    /* A pattern may give up on a text; then there are no ids. */
    if (ls_tokenizer_encode(tok, text, len, LS_ENCODE_SPECIAL | LS_ENCODE_TEMPLATE, &ids) != LS_OK)
        LS_BUG_IF(ids.count, "ids of a text that failed");
    ls_tokenizer_stream_begin(&stream, tok);
    for (int64_t i = 0; i < ids.count; i++) {
        LS_BUG_IF(ids.ids[i] < 0 || ids.ids[i] >= ls_tokenizer_vocab(tok), "id %d",
                  (int)ids.ids[i]);
        LS_BUG_IF(ls_tokenizer_stream_feed(&stream, ids.ids[i], &out) != LS_OK, "no piece");
    }
    LS_BUG_IF(ls_tokenizer_stream_end(&stream, &out) != LS_OK, "no end");
    LS_BUG_IF(ls_tokenizer_decode(tok, ids.ids, ids.count, &out) != LS_OK, "no text");
    ls_str_release(&out);
    ls_tokens_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {
        "", "a",
        ("hello  world 12\n\n x'll <s>ab</s> \xc3\xa9"
         "e\xcc\x81\xcc\xa7 \xe2\x96\x81\xf0\x9f\x98\x80 \t."),
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabab"};
    ls_tokenizer *tok = NULL;

    FILE *file = fopen("tokenizer.json", "wb"); /* not synced: it is read again at once */
    if (!file)
        return 0;
    fwrite(data, 1, size, file);
    fclose(file);
    ls_err_clear();
    if (ls_tokenizer_open(&tok, "tokenizer.json") == LS_OK)
        for (size_t i = 0; i < LS_COUNT(texts); i++)
            try_text(tok, texts[i]);
    else
        LS_BUG_IF(ls_err_last()->text[0] == '\0', "refused without a word");
    ls_tokenizer_free(tok);
    return 0;
}
