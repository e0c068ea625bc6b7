/* cmd_encode.c -- lineshaft data encode and decode: text to token ids and back. */
#include "cli/cmd_tokenizer.h"

#include <errno.h>
#include "base/file.h"
#include "cli/args.h"
#include "cli/cmd_data.h"
#include "cli/term.h"
#include "data/tokenizer/tokenizer.h"

static const int64_t largest_input = LS_GIB;

/* The file, or standard input for "-" and no name. */
static ls_status read_input(const ls_args *args, ls_str *out)
{
    const char *path = args->n_rest ? args->rest[0] : "-";

    if (strcmp(path, "-") != 0 && ls_cmd_data_need_file(path) != LS_OK)
        return LS_EUSAGE;
    return strcmp(path, "-") == 0 ? ls_file_read_stdin(largest_input, out)
                                  : ls_file_read(path, largest_input, out);
}

/* id in decimal, then the byte `after`. Written by hand: printf took most of the time. */
static void put_id(ls_str *out, int32_t id, char after)
{
    char digits[16];
    size_t at = sizeof digits;

    digits[--at] = after;
    do
        digits[--at] = (char)('0' + id % 10);
    while (id /= 10);
    ls_str_append_bytes(out, digits + at, sizeof digits - at);
}

/* The ids of all of text, one a line. */
static ls_status print_ids(const ls_tokenizer *tok, const ls_str *text, unsigned how, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokens tokens;

    ls_tokens_init(&tokens);
    LS_TRY(st, ls_tokenizer_encode(tok, text->p, text->len, how, &tokens), out);
    for (int64_t i = 0; i < tokens.count; i++) {
        put_id(out, tokens.ids[i], '\n');
        LS_TRY(st, ls_term_print_some(out), out);
    }
out:
    ls_tokens_release(&tokens);
    return st;
}

/* The ids of each line on a line, the ends of lines not encoded. */
static ls_status print_lines(const ls_tokenizer *tok, const ls_str *text, unsigned how, ls_str *out)
{
    ls_status st = LS_OK;
    const char *at = text->p, *stop = text->p + text->len;
    ls_tokens tokens;

    ls_tokens_init(&tokens);
    while (at < stop) {
        const char *end = memchr(at, '\n', (size_t)(stop - at));
        end = end ? end : stop;
        ls_tokens_clear(&tokens);
        LS_TRY(st, ls_tokenizer_encode(tok, at, (size_t)(end - at), how, &tokens), out);
        for (int64_t i = 0; i < tokens.count; i++)
            put_id(out, tokens.ids[i], i + 1 < tokens.count ? ' ' : '\n');
        if (tokens.count == 0)
            ls_str_append_char(out, '\n');
        LS_TRY(st, ls_term_print_some(out), out);
        at = end + 1;
    }
out:
    ls_tokens_release(&tokens);
    return st;
}

static ls_status run_encode(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    unsigned how = (ls_args_has(args, "plain") ? 0 : LS_ENCODE_SPECIAL) |
                   (ls_args_has(args, "template") ? LS_ENCODE_TEMPLATE : 0);
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, ls_tokenizer_open(&tok, ls_cmd_tokenizer_name(args)), out);
    LS_TRY(st, read_input(args, &text), out);
    st = (ls_args_has(args, "lines") ? print_lines : print_ids)(tok, &text, how, out);
out:
    ls_tokenizer_free(tok);
    ls_str_release(&text);
    return st;
}

/* Ids in decimal, separated by white space. */
static ls_status parse_ids(const ls_str *text, ls_tokens *ids)
{
    const char *p = text->p;

    for (;;) {
        p += strspn(p, " \t\r\n");
        if (p == text->p + text->len)
            return LS_OK;
        char *end;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX || !strchr(" \t\r\n", *end)) {
            int line = 1;
            for (const char *q = text->p; q < p; q++)
                line += *q == '\n';
            ls_status st = ls_fail(LS_EDATA, "line %d is not a token id: \"%.*s\"", line,
                                   (int)ls_min_i64(20, (int64_t)strcspn(p, " \t\r\n")), p);
            ls_err_hint(
                "Give whole numbers, one a line, as \"lineshaft data encode\" prints them.");
            return st;
        }
        ls_status st = ls_tokens_reserve(ids, 1);
        if (st != LS_OK)
            return st;
        ids->ids[ids->count++] = (int32_t)id;
        p = end;
    }
}

static ls_status run_decode(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_tokenizer *tok = NULL;
    ls_tokens tokens;
    ls_str text;

    ls_tokens_init(&tokens);
    ls_str_init(&text);
    LS_TRY(st, ls_tokenizer_open(&tok, ls_cmd_tokenizer_name(args)), out);
    LS_TRY(st, read_input(args, &text), out);
    LS_TRY(st, parse_ids(&text, &tokens), out);
    LS_TRY(st, ls_tokenizer_decode(tok, tokens.ids, tokens.count, out), out);
out:
    ls_tokenizer_free(tok);
    ls_tokens_release(&tokens);
    ls_str_release(&text);
    return st;
}

/* --- tables ----------------------------------------------------------------------------------- */

static const ls_flag encode_flags[] = {
    LS_CMD_TOKENIZER_FLAG,
    {"lines", 0, NULL, false,
     "Encode each line on its own, without its end, and print its ids on one line."},
    {"template", 0, NULL, false,
     "Add what the tokenizer adds to a whole text, such as a token that begins it."},
    {"plain", 0, NULL, false, "Treat special tokens in the text as ordinary text."},
    LS_CMD_DATA_END_FLAGS};
const ls_command ls_cmd_encode = {
    .name = "encode",
    .summary = "print the token ids of a text",
    .arguments = "[FILE]",
    .about = "Prints one id a line for the text of FILE, or of standard input when there is no "
             "FILE or it is \"-\". Special tokens written in the text become their ids.",
    .examples = "echo hello | lineshaft data encode  # 104, 101, 108, 108, 111, 10\n"
                "lineshaft data encode --tokenizer tok --lines words.txt  # a line for each line",
    .flags = encode_flags,
    .run = run_encode};

static const ls_flag decode_flags[] = {LS_CMD_TOKENIZER_FLAG, LS_CMD_DATA_END_FLAGS};
const ls_command ls_cmd_decode = {
    .name = "decode",
    .summary = "print the text of token ids",
    .arguments = "[FILE]",
    .about = "Reads ids separated by white space from FILE, or from standard input, and writes "
             "exactly the bytes that they stand for.",
    .examples = "lineshaft data decode --tokenizer tok ids.txt  # ids to text",
    .flags = decode_flags,
    .run = run_decode};
