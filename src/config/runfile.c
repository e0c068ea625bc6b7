/* runfile.c -- from YAML events, variables and --set to a run.
 *
 * The walk is a small recursive descent with the option table as its grammar:
 *
 *   document -> mapping of (key: value | section: mapping of (key: value))
 *   value    -> scalar | [ scalar, ... ]
 *
 * It stops at the first thing that does not fit, so nothing of the input is ever built as a tree
 * and deep nesting costs nothing. libyaml's document API was rejected because it resolves aliases
 * and types before we can say where they stood. The text is checked for UTF-8 first: libyaml would
 * accept UTF-16, and its error for bad bytes has no line. */
#include "config/runfile.h"

#include <ctype.h>
#include <errno.h>
#include <sys/stat.h>
#include <yaml.h>
#include "config/check.h"
#include "config/hf_config.h"
#include "config/explain.h"
#include "config/other_names.h"
#include "config/unclosed.h"
#include "config/value.h"
#include "base/file.h"
#include "base/log.h"

extern char **environ;

enum { SHOWN_PATH = 160 }; /* longest path repeated in full in a message */

typedef struct loader {
    ls_run *run;
    const char *shown; /* what messages call the text */
    const char *place; /* when set: the place of everything in the text ("--set") */
    const char *text;
    size_t len;
    yaml_parser_t parser;
    yaml_event_t event;               /* the current one; type YAML_NO_EVENT: none */
    const char *seen[LS_OPTION_MOST]; /* where each key stood */
} loader;

/* A growing list of scalars in the run's arena. */
typedef struct scalars {
    ls_value_item *items;
    int count, cap;
} scalars;

/* --- places ----------------------------------------------------------------------------------- */

static const char *place_of(loader *l, yaml_mark_t mark)
{
    if (l->place)
        return l->place;
    return ls_arena_printf(&l->run->arena, "%s:%zu:%zu", l->shown, mark.line + 1, mark.column + 1);
}

/* Line and column (in characters) of a byte. */
static yaml_mark_t mark_of(const char *text, size_t offset)
{
    yaml_mark_t mark = {offset, 0, 0};

    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        } else {
            mark.column += ((unsigned char)text[i] >> 6) != 2;
        }
    }
    return mark;
}

/* --- events ----------------------------------------------------------------------------------- */

/* Whether a line of the file begins with these words, blanks left out. */
static bool begins_line(const loader *l, const char *words)
{
    size_t n = strlen(words), at = 0;

    while (at < l->len) {
        while (at < l->len && (l->text[at] == ' ' || l->text[at] == '\t'))
            at++;
        if (l->len - at >= n && memcmp(l->text + at, words, n) == 0)
            return true;
        while (at < l->len && l->text[at++] != '\n')
            ;
    }
    return false;
}

/* "lr:1e-3" is one word to YAML. Sets the hint; false for other words. */
static bool hint_colon(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz_");

    if (n == 0 || text[n] != ':' || text[n + 1] == '/' || !text[n + 1])
        return false;
    ls_err_hint("YAML wants a blank behind the colon: \"%.*s: %.*s\".", (int)n, text,
                (int)strcspn(text + n + 1, " \n"), text + n + 1);
    return true;
}

static ls_status syntax_error(loader *l)
{
    const yaml_parser_t *p = &l->parser;
    yaml_mark_t mark = p->problem_mark;
    const char *where;
    char context[160] = "";

    if (p->error == YAML_MEMORY_ERROR)
        return ls_fail(LS_ENOMEM, "cannot read \"%s\": out of memory", l->shown);
    if (p->error == YAML_READER_ERROR)
        mark = mark_of(l->text, p->problem_offset < l->len ? p->problem_offset : l->len);
    where = place_of(l, mark);
    if (!where)
        return LS_ENOMEM;
    if (mark.index < l->len && l->text[mark.index] == '\t' && p->error == YAML_SCANNER_ERROR) {
        ls_fail(LS_EUSAGE, "%s: a tab stands where YAML needs spaces", where);
        ls_err_hint("Indent with spaces.");
        return LS_EUSAGE;
    }
    if (p->context)
        snprintf(context, sizeof context, " %s that begins in line %zu", p->context,
                 p->context_mark.line + 1);
    ls_fail(LS_EUSAGE, "%s: not valid YAML: %s%s", where,
            p->problem ? p->problem : "it cannot be read", context);
    if (p->context && strstr(p->context, "alias")) /* a pattern such as *.txt */
        ls_err_hint("Put a text that begins with * in quotes.");
    else if (p->context && strstr(p->context, "quoted scalar")) /* "C:\\Users" */
        ls_err_hint("Between double quotes \\ has a meaning of its own: take single quotes, or / "
                    "in paths.");
    else if (begins_line(l, "//"))
        ls_err_hint("A comment begins with #, not with //.");
    return LS_EUSAGE;
}

static const char *anchor_of(const yaml_event_t *e)
{
    return (const char *)(e->type == YAML_SCALAR_EVENT           ? e->data.scalar.anchor
                          : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor
                          : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.anchor
                                                                 : NULL);
}

static const char *tag_of(const yaml_event_t *e)
{
    return (const char *)(e->type == YAML_SCALAR_EVENT           ? e->data.scalar.tag
                          : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.tag
                          : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.tag
                                                                 : NULL);
}

/* Parts of YAML that a run file does without. */
static ls_status refuse_extras(loader *l)
{
    const yaml_event_t *e = &l->event;
    const char *what = e->type == YAML_ALIAS_EVENT ? "an alias (*name)"
                       : anchor_of(e)              ? "an anchor (&name)"
                       : tag_of(e)                 ? "a tag (!name)"
                                                   : NULL;

    if (what) {
        const char *where = place_of(l, e->start_mark);
        if (!where)
            return LS_ENOMEM;
        ls_fail(LS_EUSAGE, "%s: %s is not allowed in a run file", where, what);
        ls_err_hint(e->type != YAML_ALIAS_EVENT && !anchor_of(e)
                        ? "Put a text that begins with ! in quotes; types come from the key."
                        : "Write the value itself; put a text that begins with * or & in quotes.");
        return LS_EUSAGE;
    }
    if (e->type == YAML_SCALAR_EVENT &&
        strlen((const char *)e->data.scalar.value) != e->data.scalar.length) {
        const char *where = place_of(l, e->start_mark);
        return where ? ls_fail(LS_EUSAGE, "%s: a text with a zero byte in it", where) : LS_ENOMEM;
    }
    return LS_OK;
}

static void drop_event(loader *l)
{
    yaml_event_delete(&l->event);
    l->event = (yaml_event_t){.type = YAML_NO_EVENT};
}

static ls_status next_event(loader *l)
{
    drop_event(l);
    if (!yaml_parser_parse(&l->parser, &l->event)) {
        l->event = (yaml_event_t){.type = YAML_NO_EVENT};
        return syntax_error(l);
    }
    return refuse_extras(l);
}

/* --- values ----------------------------------------------------------------------------------- */

/* Append the current event, a scalar, to list. */
static ls_status keep_scalar(loader *l, scalars *list)
{
    ls_arena *arena = &l->run->arena;
    ls_value_item item = {
        .text = ls_arena_strdup(arena, (const char *)l->event.data.scalar.value),
        .quoted = l->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE,
        .where = place_of(l, l->event.start_mark),
    };

    if (!item.text || !item.where)
        return LS_ENOMEM;
    if (list->count == list->cap) {
        int cap = list->cap ? list->cap * 2 : 4;
        ls_value_item *more = ls_arena_alloc(arena, (size_t)cap * sizeof *more);
        if (!more)
            return LS_ENOMEM;
        if (list->count)
            memcpy(more, list->items, (size_t)list->count * sizeof *more);
        list->items = more;
        list->cap = cap;
    }
    list->items[list->count++] = item;
    return LS_OK;
}

static ls_status refuse_nested(loader *l, const ls_option *row)
{
    const char *where = place_of(l, l->event.start_mark);
    ls_str wants;

    if (!where)
        return LS_ENOMEM;
    ls_str_init(&wants);
    ls_option_describe(row, &wants);
    ls_fail(LS_EUSAGE, "%s: %s must be %s, not %s", where, row->key, wants.p,
            l->event.type == YAML_MAPPING_START_EVENT ? "a mapping" : "a list in a list");
    ls_str_release(&wants);
    return LS_EUSAGE;
}

/* Read the value whose first event is the current one; its last event is current afterwards. */
static ls_status read_value(loader *l, const ls_option *row, scalars *list, ls_value *value_out)
{
    ls_status st = LS_OK;
    const char *where = place_of(l, l->event.start_mark);
    bool is_list = l->event.type == YAML_SEQUENCE_START_EVENT;

    if (!where)
        return LS_ENOMEM;
    if (!is_list && l->event.type != YAML_SCALAR_EVENT)
        return refuse_nested(l, row);
    if (!is_list)
        LS_TRY(st, keep_scalar(l, list), out);
    while (is_list) {
        LS_TRY(st, next_event(l), out);
        if (l->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (l->event.type != YAML_SCALAR_EVENT)
            return refuse_nested(l, row);
        LS_TRY(st, keep_scalar(l, list), out);
    }
    *value_out = (ls_value){list->items, list->count, is_list, where};
out:
    return st;
}

/* Set the option and remember where its value came from. */
static ls_status apply(ls_run *run, const ls_option *row, const ls_value *value,
                       ls_run_source source)
{
    ls_status st = LS_OK;
    ls_run_origin *origin = &run->origins[ls_option_index(row)];
    const char **items = ls_arena_alloc(&run->arena, (size_t)value->count * sizeof *items);

    if (!items)
        return LS_ENOMEM;
    for (int i = 0; i < value->count; i++)
        items[i] = value->items[i].where;
    LS_TRY(st, ls_value_set(row, run, value), out);
    *origin = (ls_run_origin){.source = source, .where = value->where, .items = items};
out:
    return st;
}

/* --- the file --------------------------------------------------------------------------------- */

static ls_status fail_unknown(const char *where, const char *section, const char *key,
                              const ls_other_names_place *place)
{
    char full[160], quoted[64];
    const char *why;
    ls_str hint;

    snprintf(full, sizeof full, "%s%s%s", section, *section ? "." : "", key);
    why = ls_option_later(full);
    if (why)
        return ls_fail(LS_EUSAGE, "%s: %s is refused: %s", where, full, why);
    ls_value_quote(full, quoted, sizeof quoted);
    ls_fail(LS_EUSAGE, "%s: unknown key %s", where, quoted);
    ls_str_init(&hint);
    if (!*section && ls_option_find(key))
        ls_str_printf(&hint, "Write it inside its section: %.*s: {%s: ...}.",
                      (int)strcspn(key, "."), key, ls_option_leaf(ls_option_find(key)));
    else if (!ls_other_names_suggest(key, place, &hint))
        ls_option_suggest(section, key, &hint);
    ls_err_hint("%s", hint.p);
    ls_str_release(&hint);
    return LS_EUSAGE;
}

/* Remember that what stands at the current event has been seen; it may not come twice. */
static ls_status mark_seen(const char *name, const char *where, const char **seen)
{
    if (*seen)
        return ls_fail(LS_EUSAGE, "%s: %s is given twice, first at %s", where, name, *seen);
    *seen = where;
    return LS_OK;
}

static ls_status walk_option(loader *l, const ls_option *row, const char *where)
{
    ls_status st = LS_OK;
    scalars list = {0};
    ls_value value;

    LS_TRY(st, mark_seen(row->key, where, &l->seen[ls_option_index(row)]), out);
    LS_TRY(st, next_event(l), out);
    LS_TRY(st, read_value(l, row, &list, &value), out);
    if (!value.list && !value.items[0].quoted && !*value.items[0].text) {
        st = ls_fail(LS_EUSAGE, "%s: %s has no value", where, row->key);
        ls_err_hint("Remove the key to get its default%s.",
                    row->type == LS_OPTION_STRING ? ", or write \"\" for an empty text" : "");
        goto out;
    }
    LS_TRY(st, apply(l->run, row, &value, LS_RUN_FILE), out);
out:
    return st;
}

static ls_status walk_mapping(loader *l, const char *section);

/* The key that is the current event, which no section has; its value is looked at for the hint. */
static ls_status refuse_key(loader *l, const char *where, const char *section)
{
    char key[160], value[64] = "";

    snprintf(key, sizeof key, "%s", (const char *)l->event.data.scalar.value);
    if (next_event(l) == LS_OK && l->event.type == YAML_SCALAR_EVENT &&
        l->event.data.scalar.length < sizeof value &&
        l->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        snprintf(value, sizeof value, "%s", (const char *)l->event.data.scalar.value);
    return fail_unknown(where, section, key,
                        &(ls_other_names_place){.section = section, .value = value});
}

static ls_status apply_text(ls_run *run, const ls_option *row, const char *text, const char *where,
                            ls_run_source source);

/* A section with a key "auto" may be written as that one word: mesh: auto. NULL: it has none. */
static const ls_option *automatic(const char *section)
{
    char key[96];

    snprintf(key, sizeof key, "%.80s.auto", section);
    return ls_option_find(key);
}

static bool is_auto(const loader *l)
{
    return l->event.type == YAML_SCALAR_EVENT &&
           strcmp((const char *)l->event.data.scalar.value, "auto") == 0;
}

static ls_status walk_section(loader *l, const ls_option_section *section, const char *where)
{
    ls_status st = LS_OK;
    int index = (int)(section - ls_option_sections);

    LS_TRY(st, mark_seen(section->name, where, &l->run->sections[index]), out);
    LS_TRY(st, next_event(l), out);
    const ls_option *row = automatic(section->name);
    if (l->event.type == YAML_MAPPING_START_EVENT) {
        st = walk_mapping(l, section->name);
    } else if (row && is_auto(l)) {
        st = apply_text(l->run, row, "true", where, LS_RUN_FILE);
    } else if (l->event.type != YAML_SCALAR_EVENT || l->event.data.scalar.length) {
        where = place_of(l, l->event.start_mark);
        st = where ? ls_fail(LS_EUSAGE, "%s: %s must be a mapping of keys to values", where,
                             section->name)
                   : LS_ENOMEM;
        const char *text =
            l->event.type == YAML_SCALAR_EVENT ? (const char *)l->event.data.scalar.value : NULL;
        if (where && text && hint_colon(text))
            goto out;
        const char *meant = text ? ls_other_names_of_section(section->name, text) : NULL;
        if (where && meant)
            ls_err_hint("Write %s: {%s: %s}.", section->name, strchr(meant, '.') + 1, text);
        else if (where)
            ls_err_hint("Write %s: {key: value, ...}, or one indented \"key: value\" a line.",
                        section->name);
    }
out:
    return st;
}

/* For what is no mapping: most often the settings of a program in another form (INI, TOML, Python), or a text. */
static void hint_root(const loader *l)
{
    const char *text =
        l->event.type == YAML_SCALAR_EVENT ? (const char *)l->event.data.scalar.value : NULL;

    if (text && hint_colon(text))
        return;
    if (!text || strstr(text, " = "))
        ls_err_hint("A run file is YAML or JSON, as in \"model: {layers: 4}\"; `lineshaft train "
                    "--print` shows one.");
    else
        ls_err_hint("Text to train on is named in a run file, under data.text; `lineshaft train "
                    "--print` shows one.");
}

/* The pairs of a mapping whose start is the current event, up to and including its end. */
static ls_status walk_mapping(loader *l, const char *section)
{
    ls_status st = LS_OK;

    for (;;) {
        char key[160];
        LS_TRY(st, next_event(l), out);
        if (l->event.type == YAML_MAPPING_END_EVENT)
            return LS_OK;
        const char *where = place_of(l, l->event.start_mark);
        if (!where)
            return LS_ENOMEM;
        if (l->event.type != YAML_SCALAR_EVENT)
            return ls_fail(LS_EUSAGE, "%s: a key must be a word", where);
        const char *name = (const char *)l->event.data.scalar.value;
        snprintf(key, sizeof key, "%s%s%.100s", section, *section ? "." : "", name);
        const ls_option *row = ls_option_find(key);
        const ls_option_section *sub = *section ? NULL : ls_option_find_section(name);
        if (sub)
            st = walk_section(l, sub, where);
        else if (row && ls_option_in(row, section))
            st = walk_option(l, row, where);
        else
            st = refuse_key(l, where, section);
        if (st != LS_OK)
            goto out;
    }
out:
    return st;
}

/* Open a parser on the loader's text and go to the root node. */
static ls_status begin_document(loader *l)
{
    ls_status st = LS_OK;

    if (!yaml_parser_initialize(&l->parser))
        return ls_fail(LS_ENOMEM, "cannot read \"%s\": out of memory", l->shown);
    yaml_parser_set_input_string(&l->parser, (const unsigned char *)l->text, l->len);
    LS_TRY(st, next_event(l), out); /* stream start */
    LS_TRY(st, next_event(l), out);
    if (l->event.type == YAML_STREAM_END_EVENT) {
        st = ls_fail(LS_EUSAGE, "%s: the run file is empty", l->place ? l->place : l->shown);
        ls_err_hint("At least \"model\" and \"data\" are needed; see `lineshaft help run-file`.");
        goto out;
    }
    LS_TRY(st, next_event(l), out);
out:
    return st;
}

static ls_status end_document(loader *l)
{
    ls_status st = LS_OK;

    LS_TRY(st, next_event(l), out); /* document end */
    LS_TRY(st, next_event(l), out);
    if (l->event.type != YAML_STREAM_END_EVENT) {
        const char *where = place_of(l, l->event.start_mark);
        st = where ? ls_fail(LS_EUSAGE, "%s: a second document begins; a run file is one", where)
                   : LS_ENOMEM;
    }
out:
    return st;
}

static ls_status check_utf8(loader *l)
{
    size_t bad;

    if (ls_value_is_utf8(l->text, l->len, &bad))
        return LS_OK;
    const char *where = place_of(l, mark_of(l->text, bad));
    if (!where)
        return LS_ENOMEM;
    bool wide = bad == 0 && l->len > 1 &&
                (unsigned char)l->text[0] + (unsigned char)l->text[1] == 0xff + 0xfe;
    ls_fail(LS_EUSAGE, "%s: byte 0x%02x is not UTF-8 text", where, (unsigned char)l->text[bad]);
    ls_err_hint(wide ? "The file is UTF-16: save it as UTF-8."
                     : "A run file is text, in UTF-8; `lineshaft train --print` shows one.");
    return LS_EUSAGE;
}

/* What does not fit is often only what follows a bracket or quote that was forgotten: then that is the message. */
static ls_status explain_brackets(loader *l, ls_status st)
{
    ls_unclosed found;
    yaml_mark_t end =
        l->event.end_mark; /* of the event that does not fit; the parser's errors have none */

    if (!ls_unclosed_find(l->text, l->len, &found))
        return st;
    yaml_mark_t mark = mark_of(l->text, found.offset);
    if (l->event.type != YAML_NO_EVENT &&
        (mark.line > end.line || (mark.line == end.line && mark.column > end.column)))
        return st;
    const char *where = place_of(l, mark);
    if (!where)
        return LS_ENOMEM;
    if (found.extra) {
        st = ls_fail(LS_EUSAGE, "%s: this %c closes nothing", where, found.what);
        ls_err_hint("Remove it.");
        return st;
    }
    bool quote = found.what == '"' || found.what == '\'';
    st = ls_fail(LS_EUSAGE, "%s: the %s %c that begins here is not closed", where,
                 quote ? "quote" : "bracket", found.what);
    ls_err_hint("Add a %c where it ends.", quote ? found.what : found.what == '{' ? '}' : ']');
    return st;
}

static ls_status load_text(loader *l)
{
    ls_status st = LS_OK;

    LS_TRY(st, check_utf8(l), out);
    LS_TRY(st, begin_document(l), out);
    if (l->event.type != YAML_MAPPING_START_EVENT) {
        const char *where = place_of(l, l->event.start_mark);
        st = where ? ls_fail(LS_EUSAGE, "%s: a run file must be a mapping of keys to values", where)
                   : LS_ENOMEM;
        if (where)
            hint_root(l);
        goto out;
    }
    LS_TRY(st, walk_mapping(l, ""), out);
    LS_TRY(st, end_document(l), out);
out:
    if (st == LS_EUSAGE)
        st = explain_brackets(l, st);
    drop_event(l);
    yaml_parser_delete(&l->parser);
    return st;
}

/* A run's or a model's, most often. */
static ls_status refuse_folder(const char *path)
{
    char config[4096];

    ls_fail(LS_EUSAGE, "cannot read run file \"%s\": it is a folder", path);
    snprintf(config, sizeof config, "%s/config.json", path);
    if (ls_file_exists(config))
        ls_err_hint("To train a model further, name it in a run file: model: {import: %s}.", path);
    else
        ls_err_hint(
            "A run goes on when it is started with its run file again, not with its folder.");
    return LS_EUSAGE;
}

static ls_status read_file(const char *path, ls_str *text)
{
    struct stat info;
    char other[4096];

    if (stat(path, &info) != 0) {
        ls_status st = ls_fail_sys(errno == ENOENT || errno == ENOTDIR ? LS_EUSAGE : LS_EIO,
                                   "cannot open run file \"%s\"", path);
        size_t n = strlen(path), end = n > 4 && strcmp(path + n - 4, ".yml") == 0 ? n - 4 : n;
        snprintf(other, sizeof other, "%.*s.yaml", (int)end, path);
        if (ls_file_exists(other))
            ls_err_hint("Did you mean \"%s\"?", other);
        else
            ls_err_hint("`lineshaft train --print > run.yaml` writes one to start from.");
        return st;
    }
    if (S_ISDIR(info.st_mode))
        return refuse_folder(path);
    if (info.st_size > LS_RUNFILE_BYTES)
        return ls_fail(LS_EUSAGE, "\"%s\" is longer than 1 MiB and cannot be a run file", path);
    return ls_file_read(path, LS_RUNFILE_BYTES, text);
}

/* The path as messages show it: a very long one keeps its end, where the name is. */
static const char *shorten(ls_arena *arena, const char *path)
{
    size_t n = strlen(path);

    if (n <= SHOWN_PATH)
        return ls_arena_strdup(arena, path);
    const char *tail = path + n - SHOWN_PATH;
    while (((unsigned char)*tail >> 6) == 2)
        tail++;
    return ls_arena_printf(arena, "...%s", tail);
}

static ls_status load_file(ls_run *run, const ls_runfile_source *source)
{
    ls_status st = LS_OK;
    loader l = {.run = run, .text = source->text, .len = source->len};
    ls_str text;

    ls_str_init(&text);
    l.shown = shorten(&run->arena, run->path);
    if (!l.shown) {
        st = LS_ENOMEM;
        goto out;
    }
    if (source->path) {
        LS_TRY(st, read_file(source->path, &text), out);
        l.text = text.p;
        l.len = text.len;
    } else if (l.len > LS_RUNFILE_BYTES) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is longer than 1 MiB and cannot be a run file", l.shown);
        goto out;
    }
    LS_TRY(st, load_text(&l), out);
out:
    ls_str_release(&text);
    return st;
}

/* --- variables and --set ---------------------------------------------------------------------- */

/* The entries of a list written as [a, b] outside a file. */
static ls_status parse_list(ls_run *run, const ls_option *row, const char *text, const char *where,
                            ls_value *value_out)
{
    ls_status st = LS_OK;
    loader l = {.run = run, .shown = where, .place = where, .text = text, .len = strlen(text)};
    scalars list = {0};

    LS_TRY(st, begin_document(&l), out);
    LS_TRY(st, read_value(&l, row, &list, value_out), out);
    LS_TRY(st, end_document(&l), out);
out:
    drop_event(&l);
    yaml_parser_delete(&l.parser);
    return st;
}

/* One value given as a plain text: no YAML, so that `eval.sample=To be: or not` needs no quotes;
 * only a list may be written as [a, b]. */
static ls_status apply_text(ls_run *run, const ls_option *row, const char *text, const char *where,
                            ls_run_source source)
{
    ls_status st = LS_OK;
    bool wants_list = row->type == LS_OPTION_STRINGS || row->type == LS_OPTION_FLOATS;
    ls_value_item item = {text, false, where};
    ls_value value = {&item, 1, false, where};
    size_t bad;

    if (!ls_value_is_utf8(text, strlen(text), &bad))
        return ls_fail(LS_EUSAGE, "%s: the value of %s is not UTF-8 text", where, row->key);
    if (wants_list && text[0] == '[')
        LS_TRY(st, parse_list(run, row, text, where, &value), out);
    LS_TRY(st, apply(run, row, &value, source), out);
out:
    return st;
}

/* A variable that is nearly an option is probably meant as one. */
static void warn_about_variables(void)
{
    static const char *const ours[] = {"LINESHAFT_FAULT", "LINESHAFT_ROOT", "LINESHAFT_LOCAL_RANK"};

    for (char **e = environ; e && *e; e++) {
        char name[96], variable[96];
        size_t n = strcspn(*e, "=");
        bool known = strncmp(*e, "LINESHAFT_", 10) != 0 || n < 16 || n >= sizeof name;
        if (known)
            continue;
        memcpy(name, *e, n);
        name[n] = '\0';
        for (size_t i = 0; i < LS_COUNT(ours); i++)
            known |= strcmp(ours[i], name) == 0;
        const char *near = NULL;
        for (int i = 0; i < ls_option_count && !known; i++) {
            ls_option_variable(&ls_options[i], variable, sizeof variable);
            known |= strcmp(variable, name) == 0;
            if (ls_str_distance(variable, name) <= 2)
                near = ls_options[i].key;
        }
        if (!known && near)
            ls_log(LS_LOG_WARN, "the variable %s is no option and is ignored; is %s meant?", name,
                   near);
    }
}

static ls_status load_environment(ls_run *run)
{
    ls_status st = LS_OK;

    for (int i = 0; i < ls_option_count && st == LS_OK; i++) {
        char name[96];
        ls_option_variable(&ls_options[i], name, sizeof name);
        const char *text = getenv(name);
        const char *where = text ? ls_arena_strdup(&run->arena, name) : NULL;
        if (text)
            st = where ? apply_text(run, &ls_options[i], text, where, LS_RUN_ENVIRONMENT)
                       : LS_ENOMEM;
    }
    if (st == LS_OK)
        warn_about_variables();
    return st;
}

/* A run that has begun keeps its model, its data and its batches. */
static ls_status refuse_override(const ls_option *row)
{
    ls_fail(LS_EUSAGE, "--override: %s cannot change in a run that has begun", row->key);
    ls_err_hint(
        "What decides an update can, such as train.lr, train.schedule or train.weight_decay; "
        "for another %s start another run, with another out: folder.",
        row->key);
    return LS_EUSAGE;
}

/* "key=value" behind this flag. */
static ls_status apply_set(ls_run *run, const char *set, const char *flag, ls_run_source source)
{
    char key[96], quoted[64];
    size_t n = strcspn(set, "=");
    const ls_option *row;

    if (set[n] != '=' || n == 0 || n >= sizeof key) {
        ls_value_quote(set, quoted, sizeof quoted);
        ls_fail(LS_EUSAGE, "%s: %s is not of the form key=value", flag, quoted);
        ls_err_hint("Write, for instance, %s %s.", flag,
                    source == LS_RUN_SET ? "batch.sequences=24" : "train.lr=1e-4");
        return LS_EUSAGE;
    }
    memcpy(key, set, n);
    key[n] = '\0';
    row = ls_option_find(key);
    if (row && source == LS_RUN_OVERRIDE && row->fixed == LS_OPTION_FIXED)
        return refuse_override(row);
    if (row)
        return apply_text(run, row, set + n + 1, flag, source);
    row = automatic(key);
    if (row && strcmp(set + n + 1, "auto") == 0)
        return apply_text(run, row, "true", flag, source);
    if (ls_option_find_section(key)) {
        ls_fail(LS_EUSAGE, "%s: \"%s\" is a section", flag, key);
        const char *meant = ls_other_names_of_section(key, set + n + 1);
        if (meant && !row && set[n + 1] != '{') /* of braces the keys are not known */
            ls_err_hint("Write %s %s=%s.", flag, meant, set + n + 1);
        else
            ls_err_hint("Set one of its keys, as in %s %s.KEY=VALUE%s.", flag, key,
                        row ? ", or write --set mesh=auto" : "");
        return LS_EUSAGE;
    }
    const ls_other_names_place place = {.flag = flag, .value = set + n + 1};
    char *dot = strchr(key, '.');
    if (dot) {
        *dot = '\0';
        if (ls_option_find_section(key))
            return fail_unknown(flag, key, dot + 1, &place);
        *dot = '.';
    }
    return fail_unknown(flag, "", key, &place);
}

/* --- the whole -------------------------------------------------------------------------------- */

static ls_status load_defaults(ls_run *run)
{
    ls_status st = LS_OK;

    run->origins = ls_arena_alloc(&run->arena, (size_t)ls_option_count * sizeof *run->origins);
    run->sections =
        ls_arena_alloc(&run->arena, (size_t)ls_option_section_count * sizeof *run->sections);
    if (!run->origins || !run->sections)
        return LS_ENOMEM;
    for (int i = 0; i < ls_option_count; i++) {
        run->origins[i] = (ls_run_origin){.source = LS_RUN_DEFAULT, .where = "default"};
        LS_TRY(st, ls_value_preset(&ls_options[i], run), out);
    }
out:
    return st;
}

static ls_status check_required(const ls_run *run)
{
    for (int i = 0; i < ls_option_count; i++) {
        if (ls_options[i].preset || run->origins[i].source != LS_RUN_DEFAULT)
            continue;
        ls_check_missing(run, ls_options[i].key, "is missing");
        ls_err_hint("A model needs its size, for instance "
                    "model: {layers: 6, width: 384, heads: 6, context: 256}.");
        return LS_EUSAGE;
    }
    return LS_OK;
}

static ls_status import_model(ls_run *run, ls_hf_config_base *base)
{
    ls_status st = ls_check_names(run); /* a copy of the model's settings may lie in out */

    return st == LS_OK ? ls_hf_config_import(run, base) : st;
}

ls_status ls_runfile_load(ls_run *run, const ls_runfile_source *source)
{
    ls_status st = LS_OK;
    const char *path = source->path        ? source->path
                       : source->text_name ? source->text_name
                                           : "<embedded>";

    *run = (ls_run){.path = NULL};
    ls_arena_init(&run->arena);
    run->path = ls_arena_strdup(&run->arena, path);
    if (!run->path) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, load_defaults(run), out);
    LS_TRY(st, load_file(run, source), out);
    if (!source->no_environment)
        LS_TRY(st, load_environment(run), out);
    for (int i = 0; i < source->n_sets; i++)
        LS_TRY(st, apply_set(run, source->sets[i], "--set", LS_RUN_SET), out);
    for (int i = 0; i < source->n_overrides; i++)
        LS_TRY(st, apply_set(run, source->overrides[i], "--override", LS_RUN_OVERRIDE), out);
    if (*run->model.import && !source->no_files)
        LS_TRY(st, import_model(run, source->base), out);
    LS_TRY(st, check_required(run), out);
    LS_TRY(st, ls_check_resolve(run), out);
    LS_TRY(st, ls_check_run(run, !source->no_files, !source->model_only), out);
out:
    if (st != LS_OK)
        ls_runfile_release(run);
    return st;
}

void ls_runfile_release(ls_run *run)
{
    ls_arena_release(&run->arena);
    *run = (ls_run){.path = NULL};
}
