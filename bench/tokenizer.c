/* tokenizer.c -- seconds to encode a text, for bench/tokenizer.py.
 *
 * tokenizer FOLDER FILE: opens both, then for each line on standard input, "whole" or "lines",
 * encodes the text once (in one call, or line by line) and prints seconds and the number of ids. */
#include "data/tokenizer/tokenizer.h"
#include "base/file.h"
#include "base/time.h"

static ls_status encode(const ls_tokenizer *tok, const ls_str *text, bool lines, ls_tokens *ids)
{
    ls_status st = LS_OK;

    ls_tokens_clear(ids);
    for (size_t at = 0; at < text->len && st == LS_OK;) {
        const char *end = lines ? memchr(text->p + at, '\n', text->len - at) : NULL;
        size_t n = end ? (size_t)(end - text->p) + 1 - at : text->len - at;
        st = ls_tokenizer_encode(tok, text->p + at, n, LS_ENCODE_SPECIAL, ids);
        at += n;
    }
    return st;
}

int main(int argc, char **argv)
{
    ls_tokenizer *tok = NULL;
    ls_tokens ids;
    ls_str text;
    char word[16];

    ls_tokens_init(&ids);
    ls_str_init(&text);
    if (argc != 3 || ls_tokenizer_open(&tok, argv[1]) != LS_OK ||
        ls_file_read(argv[2], LS_GIB, &text) != LS_OK) {
        fprintf(stderr, "tokenizer: %s\n", argc == 3 ? ls_err_last()->text : "FOLDER FILE");
        return 1;
    }
    while (fgets(word, sizeof word, stdin)) {
        int64_t begin = ls_time_now_ns();
        if (encode(tok, &text, word[0] == 'l', &ids) != LS_OK) {
            fprintf(stderr, "tokenizer: %s\n", ls_err_last()->text);
            return 1;
        }
        printf("%.6f %lld\n", (double)(ls_time_now_ns() - begin) / 1e9, (long long)ids.count);
        fflush(stdout);
    }
    ls_tokens_release(&ids);
    ls_str_release(&text);
    ls_tokenizer_free(tok);
    return 0;
}
