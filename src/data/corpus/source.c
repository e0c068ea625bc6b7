/* source.c -- three kinds of source behind one call: plain text, JSON lines, built-in stories.
 *
 * Bytes arrive in `held`; a piece is taken from its front and the rest stays for the next call.
 * Text: the piece ends at the last line end among the bytes held, so that a tokenizer which merges
 * across bytes sees whole lines; a block without one is cut at a character. Lines: held grows until
 * it has a whole line. Offsets in messages count bytes of the uncompressed file. */
#include "data/corpus/source.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <sys/stat.h>
#include "base/json_line.h"
#include "data/corpus/reader_impl.h"
#include "data/corpus/synthetic_text.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

enum { BLOCK = 1 << 16 };
static const int64_t longest_line = 256 * LS_MIB;
static const int64_t stories_default = 2 * LS_MIB;
enum { STORIES_SEED = 1, WARNINGS = 5 }; /* warnings of skipped lines of a file */

typedef enum kind { TEXT, LINES, STORIES } kind;

struct ls_source {
    ls_source_args args;
    kind kind;
    ls_reader *reader; /* owned; NULL for stories */
    ls_str held;       /* read, not yet given out */
    size_t used;       /* front of held that the last piece took */
    int64_t offset;    /* of held's first byte in the uncompressed file */
    int64_t line;      /* number of the last line read, from 1 */
    bool ended;        /* the reader has no more */
    bool begun;        /* a piece was given out */
    ls_str clean;      /* a piece after replacement */
    json_t *object;    /* owns the text of the last line */
    int64_t skipped;
    int64_t story, stories_left;
};

ls_status ls_source_parse_bytes(const char *text, int64_t *bytes_out)
{
    static const struct {
        const char *name;
        int shift;
    } units[] = {{"", 0},    {"B", 0},    {"K", 10}, {"KB", 10}, {"KiB", 10}, {"M", 20},
                 {"MB", 20}, {"MiB", 20}, {"G", 30}, {"GB", 30}, {"GiB", 30}};
    char *end;

    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end != text && errno == 0 && n >= 0)
        for (size_t i = 0; i < LS_COUNT(units); i++)
            if (strcmp(end, units[i].name) == 0 && n <= INT64_MAX >> units[i].shift) {
                *bytes_out = (int64_t)n << units[i].shift;
                return LS_OK;
            }
    ls_status st = ls_fail(LS_EUSAGE, "\"%s\" is not a number of bytes", text);
    ls_err_hint("Write a whole number with or without a unit, such as 512K, 2M or 1G.");
    return st;
}

/* Whether path means built-in stories, and how many bytes of them. */
static ls_status parse_builtin(const char *path, bool *is_out, int64_t *bytes_out)
{
    size_t n = strlen(LS_SOURCE_STORIES);

    *is_out = strncmp(path, "builtin:", 8) == 0;
    *bytes_out = stories_default;
    if (!*is_out)
        return LS_OK;
    if (strncmp(path, LS_SOURCE_STORIES, n) == 0 && path[n] == ':')
        return ls_source_parse_bytes(path + n + 1, bytes_out);
    if (strcmp(path, LS_SOURCE_STORIES) == 0)
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "there is no built-in text \"%s\"", path);
    ls_err_hint("The built-in text is \"" LS_SOURCE_STORIES "\".");
    return st;
}

/* Names that promise something else than text get an answer before their bytes do. */
static ls_status refuse_other_formats(const char *path)
{
    static const struct {
        const char *suffix, *hint;
    } others[] = {
        {".lst", "Token shards belong under data.shards."},
        {".parquet", "Convert it to JSON lines first; .txt, .jsonl, .gz and .zst are read."},
        {".arrow", "Convert it to JSON lines first; .txt, .jsonl, .gz and .zst are read."},
        {".zip", "Unpack it first; .gz and .zst are read as they are."},
        {".tar", "Unpack it first; .gz and .zst are read as they are."},
        {".tar.gz", "Unpack it first; a .gz must hold one text."},
        {".tgz", "Unpack it first; a .gz must hold one text."},
        {".bz2", "Unpack it first; .gz and .zst are read as they are."},
        {".xz", "Unpack it first; .gz and .zst are read as they are."},
        {".pdf", "Save it as plain text first, for instance with pdftotext."},
        {".docx", "Save it as plain text first."},
        {".doc", "Save it as plain text first."},
        {".odt", "Save it as plain text first."},
        {".epub", "Save it as plain text first."},
        {".xlsx", "Convert it to JSON lines first; .txt, .jsonl, .gz and .zst are read."},
        {".json", "Write one JSON object a line and name the file .jsonl."},
    };

    for (size_t i = 0; i < LS_COUNT(others); i++)
        if (ls_reader_ends_in(path, others[i].suffix)) {
            ls_status st = ls_fail(LS_EUSAGE, "\"%s\" is not a text file", path);
            ls_err_hint("%s", others[i].hint);
            return st;
        }
    return LS_OK;
}

static kind kind_of(const char *path)
{
    static const char *const lines[] = {".jsonl",  ".jsonl.gz",  ".jsonl.zst",
                                        ".ndjson", ".ndjson.gz", ".ndjson.zst"};

    for (size_t i = 0; i < LS_COUNT(lines); i++)
        if (ls_reader_ends_in(path, lines[i]))
            return LINES;
    return TEXT;
}

ls_status ls_source_open(ls_source **source_out, const ls_source_args *args)
{
    ls_status st = LS_OK;
    bool builtin = false;
    ls_source *s = ls_mem_alloc(sizeof *s);

    if (!s)
        return LS_ENOMEM;
    s->args = *args;
    if (!s->args.field)
        s->args.field = "text";
    ls_str_init(&s->held);
    ls_str_init(&s->clean);
    LS_TRY(st, parse_builtin(args->path, &builtin, &s->stories_left), out);
    if (builtin) {
        s->kind = STORIES;
    } else {
        LS_TRY(st, refuse_other_formats(args->path), out);
        s->kind = kind_of(args->path);
        LS_TRY(st, ls_reader_open(&s->reader, args->path), out);
    }
    *source_out = s;
out:
    if (st != LS_OK)
        ls_source_close(s);
    return st;
}

void ls_source_close(ls_source *source)
{
    if (!source)
        return;
    ls_reader_close(source->reader);
    json_decref(source->object);
    ls_str_release(&source->held);
    ls_str_release(&source->clean);
    ls_mem_free(source);
}

/* Forget what the last piece took, then add a block; `ended` when there is none. */
static ls_status read_block(ls_source *s)
{
    size_t n = 0;

    ls_str_reserve(&s->held, s->held.len + BLOCK + 1);
    ls_status st = ls_str_status(&s->held);
    if (st != LS_OK)
        return st;
    st = ls_reader_read(s->reader, s->held.p + s->held.len, BLOCK, &n);
    if (st != LS_OK)
        return st;
    s->held.len += n;
    s->held.p[s->held.len] = '\0';
    s->ended = n == 0;
    return LS_OK;
}

static void drop_used(ls_source *s)
{
    s->held.len -= s->used;
    memmove(s->held.p, s->held.p + s->used, s->held.len + 1);
    s->offset += (int64_t)s->used;
    s->used = 0;
}

static void drop_mark(ls_source *s)
{
    bool unwanted = s->kind == LINES || s->args.utf8 != LS_UTF8_BYTES;

    if (unwanted && s->held.len >= 3 && memcmp(s->held.p, "\xef\xbb\xbf", 3) == 0) {
        s->used = 3;
        drop_used(s);
    }
}

static ls_status refuse_utf8(const ls_source *s, int64_t offset)
{
    ls_status st = s->kind == LINES ? ls_fail(LS_EDATA, "%s:%lld: the line is not UTF-8",
                                              s->args.path, (long long)s->line)
                                    : ls_fail(LS_EDATA, "\"%s\" is not UTF-8 at byte %lld",
                                              s->args.path, (long long)offset);
    bool wide = offset == 0 && s->held.len >= 2 &&
                (memcmp(s->held.p, "\xff\xfe", 2) == 0 || memcmp(s->held.p, "\xfe\xff", 2) == 0);
    if (wide)
        ls_err_hint("It is UTF-16: convert it with `iconv -f UTF-16 -t UTF-8 OLD > NEW`.");
    else
        ls_err_hint("Convert it to UTF-8, for instance with `iconv -f LATIN1 -t UTF-8 OLD > NEW`, "
                    "or set data.utf8 (data "
                    "build: --utf8) to replace, which puts U+FFFD there, or to bytes, which keeps "
                    "the text as it is.");
    return st;
}

/* Whether the policy accepts the bytes; *bytes and *len may move to the cleaned copy. */
static ls_status apply_policy(ls_source *s, const char **bytes, size_t *len)
{
    size_t good =
        s->args.utf8 == LS_UTF8_BYTES && s->kind == TEXT ? *len : ls_utf8_valid(*bytes, *len);

    if (good == *len)
        return LS_OK;
    if (s->args.utf8 == LS_UTF8_STRICT)
        return refuse_utf8(s, s->offset + (int64_t)good);
    ls_str_clear(&s->clean);
    ls_utf8_append_clean(&s->clean, *bytes, *len);
    *bytes = s->clean.p;
    *len = s->clean.len;
    return ls_str_status(&s->clean);
}

/* How much of the text held makes a piece. */
static size_t cut_text(const ls_source *s)
{
    size_t n = s->held.len;

    if (s->ended)
        return n;
    const char *end = memrchr(s->held.p, '\n', n);
    if (end)
        return (size_t)(end - s->held.p) + 1;
    /* No line end: leave an unfinished character, which is at most 3 bytes. */
    for (size_t back = 1; back <= 3 && back < n; back++)
        if (ls_utf8_next((const unsigned char *)s->held.p + n - back, back) == 0)
            return n - back;
    return n;
}

static ls_status next_text(ls_source *s, ls_source_piece *piece)
{
    ls_status st = LS_OK;

    drop_used(s);
    while (!s->ended && s->held.len < BLOCK)
        LS_TRY(st, read_block(s), out);
    if (!s->begun)
        drop_mark(s);
    s->used = cut_text(s);
    const char *bytes = s->held.p;
    size_t len = s->used;
    LS_TRY(st, apply_policy(s, &bytes, &len), out);
    *piece = (ls_source_piece){len ? bytes : NULL, len, !s->begun};
    s->begun = true;
out:
    return st;
}

static ls_status refuse_field(const ls_source *s)
{
    char has[200] = "";
    const char *key;
    json_t *value, *object = s->object;
    const char *field = s->args.field;

    if (json_object_get(object, field))
        return ls_fail(LS_EDATA, "%s:%lld: field \"%s\" is not a string", s->args.path,
                       (long long)s->line, field);
    json_object_foreach(object, key, value)
    {
        size_t n = strlen(has);
        snprintf(has + n, sizeof has - n, "%s\"%s\"", n ? ", " : "", key);
    }
    ls_status st = ls_fail(LS_EDATA, "%s:%lld: the object has no field \"%s\"", s->args.path,
                           (long long)s->line, field);
    if (json_object_get(object, "messages") || json_object_get(object, "conversations"))
        ls_err_hint(
            "These are conversations: set data.template (--template), for instance to auto.");
    else
        ls_err_hint("Name the field that holds the text with data.field (--field); this line has "
                    "%s.",
                    has[0] ? has : "none");
    return st;
}

/* What no text has, in a field that is used. */
static ls_status check_found(const ls_source *s, ls_json_line_found found)
{
    if (!found.surrogate || s->args.utf8 != LS_UTF8_STRICT)
        return LS_OK;
    ls_status st = ls_fail(LS_EDATA,
                           "%s:%lld: the text has half of a surrogate pair (\\ud800 to "
                           "\\udfff), which is no character",
                           s->args.path, (long long)s->line);
    ls_err_hint("Set data.utf8 (data build: --utf8) to replace, which puts U+FFFD there.");
    return st;
}

/* The object of one line into s->object; NULL there for a blank line. */
static ls_status parse_object(ls_source *s, const char *line, size_t len, const char *const *used)
{
    json_error_t e;
    ls_json_line_found found;
    ls_status st = LS_OK;
    size_t blank = 0;

    json_decref(s->object);
    s->object = NULL;
    while (blank < len && isspace((unsigned char)line[blank]))
        blank++;
    if (blank == len)
        return LS_OK;
    LS_TRY(st, apply_policy(s, &line, &len), out);
    s->object = ls_json_line_parse(line, len, used, &found, &e);
    if (!s->object) {
        st =
            ls_fail(LS_EDATA, "%s:%lld:%d: %s", s->args.path, (long long)s->line, e.column, e.text);
        ls_err_hint(
            "A .jsonl file has one JSON object a line; plain text is read from other names, "
            "such as .txt.");
        return st;
    }
    if (!json_is_object(s->object))
        return ls_fail(LS_EDATA, "%s:%lld: the line is not a JSON object", s->args.path,
                       (long long)s->line);
    st = check_found(s, found);
out:
    return st;
}

/* The text of the line's object; *text_out is NULL for a blank line or an empty text. */
static ls_status take_text(const ls_source *s, const char **text_out, size_t *len_out)
{
    const json_t *text = s->object ? json_object_get(s->object, s->args.field) : NULL;

    *text_out = NULL;
    if (!s->object)
        return LS_OK;
    if (!json_is_string(text))
        return refuse_field(s);
    *len_out = json_string_length(text);
    *text_out = *len_out ? json_string_value(text) : NULL;
    return LS_OK;
}

/* Make held begin with one whole line; *len_out without its '\n'. At the end *len_out is 0 and
 * used stays 0. */
static ls_status hold_line(ls_source *s, size_t *len_out)
{
    ls_status st = LS_OK;
    size_t searched = 0;

    for (;;) {
        const char *end =
            memchr(s->held.p + s->used + searched, '\n', s->held.len - s->used - searched);
        if (end || s->ended) {
            const char *from = s->held.p + s->used;
            *len_out = end ? (size_t)(end - from) : s->held.len - s->used;
            return LS_OK;
        }
        drop_used(s);
        searched = s->held.len;
        if ((int64_t)searched > longest_line)
            return ls_fail(LS_EDATA, "%s:%lld: the line is longer than %lld MiB", s->args.path,
                           (long long)s->line + 1, (long long)(longest_line / LS_MIB));
        LS_TRY(st, read_block(s), out);
        if (s->offset == 0 && searched == 0)
            drop_mark(s);
    }
out:
    return st;
}

ls_status ls_source_skip(ls_source *s, ls_status st)
{
    if (st != LS_EDATA || !s->args.skip_bad)
        return st;
    if (s->skipped++ < WARNINGS)
        ls_log(LS_LOG_WARN, "skipped: %s", ls_err_last()->text);
    if (s->skipped == WARNINGS)
        ls_log(LS_LOG_WARN, "\"%s\": further lines are skipped without a warning", s->args.path);
    ls_err_clear();
    return LS_OK;
}

int64_t ls_source_skipped(const ls_source *source)
{
    return source->skipped;
}

/* One line more, its object into s->object, NULL there for one that is blank or skipped;
 * *ended_out when there is none. */
static ls_status read_line(ls_source *s, const char *const *used, bool *ended_out)
{
    ls_status st = LS_OK;
    size_t len = 0;

    LS_TRY(st, hold_line(s, &len), out);
    *ended_out = s->ended && s->used == s->held.len;
    if (*ended_out)
        goto out;
    const char *line = s->held.p + s->used;
    s->used += len + (s->used + len < s->held.len);
    s->line++;
    st = parse_object(s, line, len, used);
    if (st == LS_EDATA && s->args.skip_bad) {
        st = ls_source_skip(s, st);
        json_decref(s->object);
        s->object = NULL;
    }
out:
    return st;
}

static ls_status next_line(ls_source *s, ls_source_piece *piece)
{
    const char *const used[] = {s->args.field, NULL};
    ls_status st = LS_OK;
    bool ended = false;

    *piece = (ls_source_piece){.bytes = NULL};
    while (!piece->bytes) {
        LS_TRY(st, read_line(s, used, &ended), out);
        if (ended)
            break;
        LS_TRY(st, ls_source_skip(s, take_text(s, &piece->bytes, &piece->len)), out);
    }
    piece->begins = true;
out:
    return st;
}

ls_status ls_source_next_object(ls_source *source, const char *const *used,
                                const json_t **object_out)
{
    ls_status st = LS_OK;
    bool ended = false;

    *object_out = NULL;
    if (source->kind != LINES) {
        st = ls_fail(LS_EUSAGE, "\"%s\" does not hold JSON lines", source->args.path);
        ls_err_hint("Conversations are JSON lines (.jsonl) with a field \"messages\"; set "
                    "data.template to none for plain text.");
        return st;
    }
    do
        LS_TRY(st, read_line(source, used, &ended), out);
    while (!ended && !source->object);
    *object_out = ended ? NULL : source->object;
out:
    return st;
}

int64_t ls_source_line(const ls_source *source)
{
    return source->line;
}

static ls_status next_story(ls_source *s, ls_source_piece *piece)
{
    *piece = (ls_source_piece){.bytes = NULL};
    if (s->stories_left <= 0)
        return LS_OK;
    ls_str_clear(&s->held);
    ls_status st = ls_synthetic_text_story(STORIES_SEED, s->story++, &s->held);
    if (st != LS_OK)
        return st;
    s->stories_left -= (int64_t)s->held.len;
    *piece = (ls_source_piece){s->held.p, s->held.len, true};
    return LS_OK;
}

ls_status ls_source_next(ls_source *source, ls_source_piece *piece_out)
{
    switch (source->kind) {
    case TEXT:
        return next_text(source, piece_out);
    case LINES:
        return next_line(source, piece_out);
    case STORIES:
        return next_story(source, piece_out);
    }
    LS_BUG_IF(true, "source of kind %d", (int)source->kind);
}

ls_status ls_source_identify(const char *path, ls_str *identity_out)
{
    struct stat info;
    bool builtin;
    int64_t bytes;
    ls_status st = parse_builtin(path, &builtin, &bytes);

    if (st != LS_OK)
        return st;
    if (builtin) {
        ls_str_printf(identity_out, "%s version %d seed %d bytes %lld\n", LS_SOURCE_STORIES,
                      LS_SYNTHETIC_TEXT_VERSION, STORIES_SEED, (long long)bytes);
        return ls_str_status(identity_out);
    }
    if (stat(path, &info) != 0)
        return ls_fail_sys(LS_EIO, "cannot open \"%s\"", path);
    ls_str_printf(identity_out, "%s size %lld changed %lld.%09ld\n", path, (long long)info.st_size,
                  (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    return ls_str_status(identity_out);
}
