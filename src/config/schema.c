/* schema.c -- documents made from the option table.
 *
 * The schema accepts what the parser accepts, within what JSON Schema can say: numbers with units
 * are strings with a pattern, and checks between keys are left to `config check`. */
#include "config/schema.h"

#include "config/option.h"
#include "config/value.h"

/* --- JSON Schema ------------------------------------------------------------------------------ */

static void put_bound(ls_json *json, const char *key, double x, bool whole)
{
    if (whole)
        ls_json_put_int(json, key, (int64_t)x);
    else
        ls_json_put_num(json, key, x);
}

static void put_number(ls_json *json, const ls_option *row, const char *pattern)
{
    bool whole = row->type == LS_OPTION_INT;

    ls_json_open(json, '{');
    ls_json_put_str(json, "type", whole ? "integer" : "number");
    put_bound(json, row->above ? "exclusiveMinimum" : "minimum", row->least, whole);
    if (row->most <= LS_OPTION_BIG)
        put_bound(json, row->below ? "exclusiveMaximum" : "maximum", row->most, whole);
    ls_json_close(json);
    if (row->least == row->most)
        return;
    ls_json_open(json, '{');
    ls_json_put_str(json, "type", "string");
    ls_json_put_str(json, "pattern", pattern);
    ls_json_close(json);
}

static void put_names(ls_json *json, const ls_option *row)
{
    ls_json_open(json, '{');
    ls_json_key(json, "enum");
    ls_json_open(json, '[');
    for (int i = 0; row->names[i]; i++)
        ls_json_str(json, row->names[i]);
    ls_json_close(json);
    ls_json_close(json);
}

static void put_type(ls_json *json, const char *type)
{
    ls_json_open(json, '{');
    ls_json_put_str(json, "type", type);
    ls_json_close(json);
}

#define FLOAT_PATTERN "^[0-9]*\\.?[0-9]+%$"

/* The alternatives of one option. */
static void put_choices(ls_json *json, const ls_option *row)
{
    switch (row->type) {
    case LS_OPTION_INT:
        put_number(json, row, "^[0-9]*\\.?[0-9]+([kKMGT]|[KMGT]iB)$");
        break;
    case LS_OPTION_FLOAT:
        put_number(json, row, FLOAT_PATTERN);
        break;
    case LS_OPTION_DURATION:
        put_number(json, row, "^([0-9.]+d)?([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?$");
        break;
    case LS_OPTION_BOOL:
        put_type(json, "boolean");
        break;
    case LS_OPTION_ENUM:
        put_names(json, row);
        break;
    case LS_OPTION_STRING:
        if (row->names[0])
            put_names(json, row);
        else
            put_type(json, "string");
        break;
    case LS_OPTION_STRINGS:
        put_type(json, "string");
        ls_json_open(json, '{');
        ls_json_put_str(json, "type", "array");
        ls_json_key(json, "items");
        put_type(json, "string");
        ls_json_close(json);
        break;
    case LS_OPTION_FLOATS:
        put_number(json, row, FLOAT_PATTERN);
        ls_json_open(json, '{');
        ls_json_put_str(json, "type", "array");
        ls_json_key(json, "items");
        ls_json_open(json, '{');
        ls_json_key(json, "anyOf");
        ls_json_open(json, '[');
        put_number(json, row, FLOAT_PATTERN);
        ls_json_close(json);
        ls_json_close(json);
        ls_json_close(json);
        break;
    }
    if (row->when_auto && row->type != LS_OPTION_STRING) {
        ls_json_open(json, '{');
        ls_json_put_str(json, "const", "auto");
        ls_json_close(json);
    }
}

static void put_option(ls_json *json, const ls_option *row, const ls_run *presets, ls_str *scratch)
{
    ls_json_key(json, ls_option_leaf(row));
    ls_json_open(json, '{');
    ls_str_clear(scratch);
    ls_str_append(scratch, row->doc);
    if (row->when_auto)
        ls_str_printf(scratch, " auto: %s.", row->when_auto);
    ls_json_put_str(json, "description", scratch->p);
    ls_json_key(json, "anyOf");
    ls_json_open(json, '[');
    put_choices(json, row);
    ls_json_close(json);
    if (row->preset) {
        ls_json_key(json, "default");
        ls_value_json(row, presets, json);
    }
    ls_json_close(json);
}

static void put_options(ls_json *json, const char *section, const ls_run *presets, ls_str *scratch)
{
    for (int i = 0; i < ls_option_count; i++)
        if (ls_option_in(&ls_options[i], section))
            put_option(json, &ls_options[i], presets, scratch);
}

static bool has_required(const char *section)
{
    for (int i = 0; i < ls_option_count; i++)
        if (ls_option_in(&ls_options[i], section) && !ls_options[i].preset)
            return true;
    return false;
}

/* An object; or, where the section has a key "auto", that word (runfile.c). */
static void put_section_type(ls_json *json, const char *section)
{
    bool word = false;

    for (int i = 0; i < ls_option_count; i++)
        word |= ls_option_in(&ls_options[i], section) &&
                strcmp(ls_option_leaf(&ls_options[i]), "auto") == 0;
    if (!word) {
        ls_json_put_str(json, "type", "object");
        return;
    }
    ls_json_key(json, "type");
    ls_json_open(json, '[');
    ls_json_str(json, "object");
    ls_json_str(json, "string");
    ls_json_close(json);
    ls_json_put_str(json, "pattern", "^auto$");
}

static void put_section(ls_json *json, const ls_option_section *section, const ls_run *presets,
                        ls_str *scratch)
{
    ls_json_key(json, section->name);
    ls_json_open(json, '{');
    ls_json_put_str(json, "description", section->doc);
    put_section_type(json, section->name);
    ls_json_put_bool(json, "additionalProperties", false);
    ls_json_key(json, "properties");
    ls_json_open(json, '{');
    put_options(json, section->name, presets, scratch);
    ls_json_close(json);
    if (has_required(section->name)) {
        ls_json_key(json, "required");
        ls_json_open(json, '[');
        for (int i = 0; i < ls_option_count; i++)
            if (ls_option_in(&ls_options[i], section->name) && !ls_options[i].preset)
                ls_json_str(json, ls_option_leaf(&ls_options[i]));
        ls_json_close(json);
    }
    ls_json_close(json);
}

/* A run with every default in it, for printing them. */
static ls_status load_presets(ls_run *run)
{
    ls_status st = LS_OK;

    *run = (ls_run){.path = NULL};
    ls_arena_init(&run->arena);
    for (int i = 0; i < ls_option_count && st == LS_OK; i++)
        st = ls_value_preset(&ls_options[i], run);
    return st;
}

ls_status ls_schema_json(ls_str *out)
{
    ls_status st = LS_OK;
    ls_run presets;
    ls_str scratch;
    ls_json json;

    ls_str_init(&scratch);
    LS_TRY(st, load_presets(&presets), out);
    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "$schema", "https://json-schema.org/draft/2020-12/schema");
    ls_json_put_str(&json, "title", "lineshaft run file");
    ls_json_put_str(&json, "type", "object");
    ls_json_put_bool(&json, "additionalProperties", false);
    ls_json_key(&json, "required");
    ls_json_open(&json, '[');
    ls_json_str(&json, "model");
    ls_json_str(&json, "data");
    ls_json_close(&json);
    ls_json_key(&json, "properties");
    ls_json_open(&json, '{');
    put_options(&json, "", &presets, &scratch);
    for (int i = 0; i < ls_option_section_count; i++)
        put_section(&json, &ls_option_sections[i], &presets, &scratch);
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
    st = ls_str_status(out);
out:
    ls_arena_release(&presets.arena);
    ls_str_release(&scratch);
    return st;
}

/* --- Markdown --------------------------------------------------------------------------------- */

static const char intro[] =
    "# The run file\n"
    "\n"
    "<!-- made by `lineshaft config reference`; do not edit -->\n"
    "\n"
    "A run file is YAML: one mapping of the keys below. Only `model` and `data` must be given.\n"
    "\n"
    "```yaml\n"
    "name: shakespeare-10m\n"
    "model: {layers: 6, width: 384, heads: 6, context: 256}\n"
    "data: {text: [corpus/*.txt], validation: 10%}\n"
    "batch: {sequences: 12, leaf: 4}\n"
    "train: {steps: 500, lr: 1e-3, schedule: cosine, warmup: 50}\n"
    "checkpoint: {every: 100, keep: 2}\n"
    "eval: {every: 100, sample: \"To be\"}\n"
    "```\n"
    "\n"
    "- **Precedence.** A later source replaces an earlier one: defaults, the run file, variables\n"
    "  (`LINESHAFT_BATCH_SEQUENCES=24`), `--set batch.sequences=24`, `train --override`.\n"
    "  `lineshaft config explain` shows each value and where it came from.\n"
    "- **Numbers** may carry a unit: `10k`, `64M`, `2G` (thousands), `4KiB`, `1GiB` (1024s), "
    "`10%`\n"
    "  (0.1). Times: `90s`, `10m`, `1h30m`; a bare number is seconds.\n"
    "- **Lists** are written `[a, b]`; one entry needs no brackets.\n"
    "- **Paths** that are relative start at the current folder, not at the run file.\n"
    "- **auto** lets lineshaft work the value out; the table says how.\n"
    "- **Not allowed:** unknown or repeated keys, anchors, aliases, tags, a second document. Each\n"
    "  mistake gets one message with file, line and column, exit code 2, and nothing is created.\n"
    "- **Resume.** A key marked *fixed* must have the same value when a run continues; some may\n"
    "  change where the command line says so: `train run.yaml --override train.lr=1e-5`.\n"
    "- An editor that knows JSON Schema checks a run file while you type: `lineshaft config "
    "schema`.\n";

/* Text inside a table cell. */
static void put_cell(ls_str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|' || *text == '*')
            ls_str_append_char(out, '\\');
        ls_str_append_char(out, *text);
    }
}

static void put_rows(ls_str *out, const char *section, ls_str *scratch)
{
    ls_str_append(out, "\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        if (!ls_option_in(row, section))
            continue;
        ls_str_printf(out, "| `%s` | ", row->key);
        ls_str_clear(scratch);
        ls_option_describe(row, scratch);
        if (row->unit)
            ls_str_printf(scratch, " (%s)", row->unit);
        put_cell(out, scratch->p);
        if (!row->preset)
            ls_str_append(out, " | must be given | ");
        else
            ls_str_printf(out, " | `%s` | ", *row->preset ? row->preset : "\"\"");
        put_cell(out, row->doc);
        if (row->when_auto)
            ls_str_printf(out, " auto: %s.", row->when_auto);
        if (row->limit)
            ls_str_printf(out, " (%c%s.)", row->limit[0] - 'a' + 'A', row->limit + 1);
        ls_str_append(out, row->fixed == LS_OPTION_FIXED     ? " *Fixed.* |\n"
                           : row->fixed == LS_OPTION_ON_WORD ? " *Fixed, but for --override.* |\n"
                                                             : " |\n");
    }
}

ls_status ls_schema_markdown(ls_str *out)
{
    ls_status st;
    ls_str scratch;

    ls_str_init(&scratch);
    ls_str_append(out, intro);
    ls_str_append(out, "\n## Top level\n");
    put_rows(out, "", &scratch);
    for (int i = 0; i < ls_option_section_count; i++) {
        ls_str_printf(out, "\n## %s\n\n%s\n", ls_option_sections[i].name,
                      ls_option_sections[i].doc);
        put_rows(out, ls_option_sections[i].name, &scratch);
    }
    st = ls_str_status(&scratch);
    ls_str_release(&scratch);
    return st == LS_OK ? ls_str_status(out) : st;
}
