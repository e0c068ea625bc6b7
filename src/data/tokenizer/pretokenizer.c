/* pretokenizer.c -- pre-tokenization: a text is cut into words by the pattern (a regular expression)
 * of a tokenizer. The patterns of GPT-2, Llama 3 and Qwen2 are recognised and scanned by code
 * (pretokenizer_scan.c), others are compiled by PCRE2.
 *
 * tokenizer.json holds expressions for another engine (Oniguruma, Ruby's syntax), so an expression
 * that PCRE2 would read in another sense is refused instead of cutting differently in silence:
 * class intersections, \h (hexadecimal digits there, blanks here), classes inside classes, (?m).
 * Where the senses differ in little, the expression is translated: ^ and $ stand at every line, and
 * \s, \w and \b are written out, because the engines have other sets for them.
 *
 * A hostile expression can make a backtracking matcher work for ever. The matcher has limits on
 * steps and on memory; reaching one is an error that names the pattern. */
#include "data/tokenizer/pretokenizer.h"

#include "data/tokenizer/pretokenizer_impl.h"
#include "base/mem.h"
#include "base/str.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    PATTERN_BYTES = 16 << 10,  /* longest expression */
    MATCH_STEPS = 2 << 20,     /* backtracking steps of one match */
    MATCH_HEAP_KIB = 64 << 10, /* memory of one match */
    JIT_STACK_BYTES = 1 << 20
};

struct ls_pretokenizer {
    ls_pretokenizer_scan *scan; /* NULL: an expression of PCRE2 */
    unsigned char *classes;     /* of the scan, owned */
    pcre2_code *code;           /* owned */
    char *pattern;              /* owned */
};

struct ls_pretokenizer_work {
    const ls_pretokenizer *pretokenizer; /* borrowed */
    pcre2_match_data *match;             /* all owned; NULL for a scan */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

#define ENDING "[^\\s\\p{L}\\p{N}]+"
#define LLAMA_FRONT "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LLAMA_BACK "| ?" ENDING "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2_BACK "| ?\\p{L}+| ?\\p{N}+| ?" ENDING "|\\s+(?!\\S)|\\s+"

/* The first row of a scan is what its name stands for. */
static const struct known {
    const char *name, *pattern;
    ls_pretokenizer_scan *scan;
} known[] = {
    {LS_PRETOKENIZER_GPT2, "'(?:[sdmt]|ll|ve|re)" GPT2_BACK, ls_pretokenizer_scan_gpt2},
    {LS_PRETOKENIZER_GPT2, "'s|'t|'re|'ve|'m|'ll|'d" GPT2_BACK, ls_pretokenizer_scan_gpt2},
    {LS_PRETOKENIZER_LLAMA3, LLAMA_FRONT "\\p{N}{1,3}" LLAMA_BACK, ls_pretokenizer_scan_llama3},
    {LS_PRETOKENIZER_QWEN2, LLAMA_FRONT "\\p{N}" LLAMA_BACK, ls_pretokenizer_scan_qwen2},
};

static const struct known *find_known(const char *pattern)
{
    for (size_t i = 0; i < LS_COUNT(known); i++)
        if (strcmp(pattern, known[i].name) == 0 || strcmp(pattern, known[i].pattern) == 0)
            return &known[i];
    return NULL;
}

static ls_status refuse(const char *what, size_t place)
{
    return ls_fail(LS_EDATA,
                   "the pattern of the pre-tokenizer has %s at byte %zu, which lineshaft "
                   "does not know",
                   what, place);
}

/* White space and word characters, as parts of a class. */
#define SPACES "\\x09-\\x0d\\x{85}\\p{Z}"
#define WORDS                                                                                  \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}" \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

/* The escape \c in PCRE2's terms; NULL: as it is. */
static const char *escape_text(char c, bool in_class)
{
    switch (c) {
    case 's':
        return in_class ? SPACES : "[" SPACES "]";
    case 'w':
        return in_class ? WORDS : "[" WORDS "]";
    case 'S':
        return in_class ? NULL : "[^" SPACES "]";
    case 'W':
        return in_class ? NULL : "[^" WORDS "]";
    case 'b':
        return in_class ? NULL
                        : "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))";
    case 'B':
        return in_class ? NULL
                        : "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))";
    default:
        return NULL;
    }
}

/* Whether the group that begins at p, "(?", switches on what the engines call by other letters. */
static bool has_option_m(const char *p)
{
    for (p += 2; (*p >= 'a' && *p <= 'z') || *p == '-'; p++)
        if (*p == 'm')
            return true;
    return false;
}

/* Outside a class: what the next character opens or means. */
static ls_status enter(const char *p, size_t i, bool *in_class)
{
    if (p[i] == '(' && p[i + 1] == '*')
        return refuse("a verb \"(*\"", i);
    if (p[i] == '(' && p[i + 1] == '?' && has_option_m(p + i))
        return refuse("the option \"m\"", i);
    *in_class = p[i] == '[';
    return LS_OK;
}

/* Append the expression in PCRE2's terms; LS_EDATA for what has none. */
static ls_status translate(const char *p, ls_str *out)
{
    ls_status st = LS_OK;
    bool in_class = false;
    size_t opened = 0; /* first place inside the class: a bracket there is a plain character */

    for (size_t i = 0; p[i]; i++) {
        if (p[i] == '\\' && p[i + 1]) {
            char c = p[++i];
            const char *text = escape_text(c, in_class);
            if (c == 'h' || c == 'H' || (in_class && (c == 'S' || c == 'W')))
                return refuse("an escape in another sense", i - 1);
            if (text)
                ls_str_append(out, text);
            else
                ls_str_append_bytes(out, p + i - 1, 2);
            continue;
        }
        ls_str_append_char(out, p[i]);
        if (!in_class) {
            LS_TRY(st, enter(p, i, &in_class), out);
            opened = i + 1 + (in_class && p[i + 1] == '^');
        } else if (p[i] == ']' && i > opened) {
            in_class = false;
        } else if (p[i] == '[') {
            const char *end = p[i + 1] == ':' ? strstr(p + i, ":]") : NULL;
            if (!end)
                return refuse("a class inside a class", i);
            ls_str_append_bytes(out, p + i + 1, (size_t)(end - p) + 1 - i);
            i = (size_t)(end - p) + 1;
        } else if (p[i] == '&' && p[i + 1] == '&') {
            return refuse("an intersection \"&&\"", i);
        }
    }
    st = ls_str_status(out);
out:
    return st;
}

static ls_status compile_text(const char *pattern, pcre2_code **out)
{
    int error;
    PCRE2_SIZE place;
    PCRE2_UCHAR text[160];
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;

    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &place, NULL);
    if (*out)
        return LS_OK;
    pcre2_get_error_message(error, text, sizeof text);
    return ls_fail(LS_EDATA, "the pattern of the pre-tokenizer is wrong at byte %zu: %s",
                   (size_t)place, (const char *)text);
}

static ls_status compile(ls_pretokenizer *pretokenizer)
{
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, translate(pretokenizer->pattern, &text), out);
    LS_TRY(st, compile_text(pretokenizer->pattern, &pretokenizer->code),
           out); /* for the place of an error */
    if (strcmp(text.p, pretokenizer->pattern) != 0) {
        pcre2_code_free(pretokenizer->code);
        pretokenizer->code = NULL;
        LS_TRY(st, compile_text(text.p, &pretokenizer->code), out);
    }
    /* Without a compiler for this machine the pattern is interpreted: slower, the same pieces. */
    (void)pcre2_jit_compile(pretokenizer->code, PCRE2_JIT_COMPLETE);
out:
    ls_str_release(&text);
    return st;
}

ls_status ls_pretokenizer_open(ls_pretokenizer **out, const char *pattern)
{
    ls_status st = LS_OK;
    const struct known *k = find_known(pattern);
    ls_pretokenizer *pretokenizer = ls_mem_alloc(sizeof *pretokenizer);

    if (!pretokenizer)
        return LS_ENOMEM;
    if (strlen(pattern) > PATTERN_BYTES) {
        st = ls_fail(LS_EDATA, "the pattern of the pre-tokenizer has %zu bytes, more than %d",
                     strlen(pattern), (int)PATTERN_BYTES);
        goto out;
    }
    pretokenizer->pattern =
        ls_mem_strdup(k && strcmp(pattern, k->name) == 0 ? k->pattern : pattern);
    if (!pretokenizer->pattern) {
        st = LS_ENOMEM;
        goto out;
    }
    if (k) {
        pretokenizer->scan = k->scan;
        pretokenizer->classes = ls_mem_alloc(LS_PRETOKENIZER_CODES);
        if (!pretokenizer->classes) {
            st = LS_ENOMEM;
            goto out;
        }
        ls_pretokenizer_fill(pretokenizer->classes);
    } else {
        LS_TRY(st, compile(pretokenizer), out);
    }
    *out = pretokenizer;
out:
    if (st != LS_OK)
        ls_pretokenizer_free(pretokenizer);
    return st;
}

void ls_pretokenizer_free(ls_pretokenizer *pretokenizer)
{
    if (!pretokenizer)
        return;
    pcre2_code_free(pretokenizer->code);
    ls_mem_free(pretokenizer->classes);
    ls_mem_free(pretokenizer->pattern);
    ls_mem_free(pretokenizer);
}

const char *ls_pretokenizer_pattern(const ls_pretokenizer *pretokenizer)
{
    return pretokenizer->pattern;
}

bool ls_pretokenizer_is_known(const ls_pretokenizer *pretokenizer)
{
    return pretokenizer->scan != NULL;
}

ls_status ls_pretokenizer_work_open(ls_pretokenizer_work **out, const ls_pretokenizer *pretokenizer)
{
    ls_pretokenizer_work *work = ls_mem_alloc(sizeof *work);

    if (!work)
        return LS_ENOMEM;
    work->pretokenizer = pretokenizer;
    if (!pretokenizer->scan) {
        work->match = pcre2_match_data_create_from_pattern(pretokenizer->code, NULL);
        work->context = pcre2_match_context_create(NULL);
        work->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
        if (!work->match || !work->context) {
            ls_pretokenizer_work_free(work);
            return ls_fail(LS_ENOMEM, "no memory to match a pattern");
        }
        pcre2_set_match_limit(work->context, MATCH_STEPS);
        pcre2_set_heap_limit(work->context, MATCH_HEAP_KIB);
        if (work->stack) /* NULL where there is no compiler */
            pcre2_jit_stack_assign(work->context, NULL, work->stack);
    }
    *out = work;
    return LS_OK;
}

void ls_pretokenizer_work_free(ls_pretokenizer_work *work)
{
    if (!work)
        return;
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    ls_mem_free(work);
}

static size_t match_failed(const ls_pretokenizer *pretokenizer, int error, size_t at)
{
    PCRE2_UCHAR text[160];

    pcre2_get_error_message(error, text, sizeof text);
    ls_fail(LS_EDATA,
            "the pattern of the pre-tokenizer gives up at byte %zu of a text: %s (\"%.80s\")", at,
            (const char *)text, pretokenizer->pattern);
    ls_err_hint("The pattern takes too many steps on this text; lineshaft stops it instead of "
                "hanging.");
    return 0;
}

/* The first match at or after `from`. 1: found, 0: none, below: an error. */
static int search(ls_pretokenizer_work *work, const unsigned char *text, size_t len, size_t from)
{
    const pcre2_code *code = work->pretokenizer->code;
    int rc = pcre2_match(code, text, len, from, PCRE2_NO_UTF_CHECK, work->match, work->context);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter may use more memory */
        rc = pcre2_match(code, text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work->match,
                         work->context);
    return rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : rc;
}

static size_t next_match(ls_pretokenizer_work *work, const unsigned char *text, size_t len,
                         size_t at)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(work->match);
    size_t from = at;

    /* An empty match where the piece begins cuts nothing off: look one character further. */
    for (;;) {
        int rc = search(work, text, len, from);
        if (rc < 0)
            return match_failed(work->pretokenizer, rc, at);
        if (rc == 0)
            return len;
        if (range[0] > at)
            return range[0] < len ? range[0] : len;
        if (range[1] > at)
            return range[1];
        for (from++; from < len && text[from] >> 6 == 2; from++)
            ;
        if (from >= len)
            return len;
    }
}

size_t ls_pretokenizer_next(ls_pretokenizer_work *work, const unsigned char *text, size_t len,
                            size_t at)
{
    const ls_pretokenizer *pretokenizer = work->pretokenizer;

    return pretokenizer->scan ? pretokenizer->scan(pretokenizer->classes, text, len, at)
                              : next_match(work, text, len, at);
}
