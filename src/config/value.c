/* value.c -- parsing and printing one option's value.
 *
 * Parsing is directed by the option's type, never guessed from the text: YAML's habit of reading
 * `no` as false or 1e-3 as text cannot surprise a user here. Numbers are scanned by hand before
 * strtod() sees them, because it also takes "inf", "nan" and hexadecimal.
 *
 *   10k = 10 000   64M = 64 000 000   4GiB = 4 * 2^30   10% = 0.1   1h30m = 5400 s */
#include "config/value.h"

#include "config/other_names.h"
#include "config/unbuilt_families.h"
#include <ctype.h>
#include <math.h>

/* --- access ----------------------------------------------------------------------------------- */

static void *field(const ls_option *row, ls_run *run)
{
    return (char *)run + row->offset;
}

static const void *const_field(const ls_option *row, const ls_run *run)
{
    return (const char *)run + row->offset;
}

/* The field itself. The row's type says which of these may be called. */
static int64_t *int_field(const ls_option *row, ls_run *run)
{
    LS_BUG_IF(row->type != LS_OPTION_INT, "\"%s\" is no integer", row->key);
    return field(row, run);
}

static double *float_field(const ls_option *row, ls_run *run)
{
    LS_BUG_IF(row->type != LS_OPTION_FLOAT && row->type != LS_OPTION_DURATION,
              "\"%s\" is no number", row->key);
    return field(row, run);
}

static const char **text_field(const ls_option *row, ls_run *run)
{
    LS_BUG_IF(row->type != LS_OPTION_STRING, "\"%s\" is no text", row->key);
    return field(row, run);
}

static int enum_value(const ls_option *row, const ls_run *run)
{
    int value;

    memcpy(&value, const_field(row, run), sizeof value);
    return value;
}
_Static_assert(sizeof(ls_isa) == sizeof(int), "enum options are read and written as int");

bool ls_value_is_auto(const ls_option *row, const ls_run *run)
{
    const void *p = const_field(row, run);

    if (!row->when_auto)
        return false;
    switch (row->type) {
    case LS_OPTION_INT:
        return *(const int64_t *)p == LS_RUN_AUTO;
    case LS_OPTION_FLOAT:
    case LS_OPTION_DURATION:
        return *(const double *)p == LS_RUN_AUTO;
    case LS_OPTION_STRING:
        return *(const char *const *)p == NULL;
    default:
        return false;
    }
}

/* --- texts ------------------------------------------------------------------------------------ */

bool ls_value_is_utf8(const char *bytes, size_t len, size_t *bad_out)
{
    const unsigned char *p = (const unsigned char *)bytes;

    for (size_t i = 0; i < len;) {
        static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
        unsigned char c = p[i];
        size_t n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
        uint32_t code = n > 1 ? c & (0xffu >> (n + 1)) : c;
        bool good = n > 0 && n <= len - i;
        for (size_t k = 1; good && k < n; k++) {
            good = p[i + k] >> 6 == 2;
            code = code << 6 | (p[i + k] & 0x3fu);
        }
        if (!good || code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
            *bad_out = i;
            return false;
        }
        i += n;
    }
    return true;
}

void ls_value_quote(const char *text, char *out, size_t cap)
{
    enum { SHOWN = 48 };
    size_t n = strnlen(text, SHOWN + 1), used = 0;
    bool cut = n > SHOWN;

    LS_BUG_IF(cap < SHOWN + 8, "no room to quote a value");
    n = cut ? SHOWN : n;
    while (cut && n && ((unsigned char)text[n] >> 6) == 2) /* never cut inside a character */
        n--;
    out[used++] = '"';
    for (size_t i = 0; i < n; i++)
        out[used++] = iscntrl((unsigned char)text[i]) ? '?' : text[i];
    snprintf(out + used, cap - used, "%s\"", cut ? "..." : "");
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* A decimal number at *text; moves *text behind it. */
static bool scan_number(const char **text, double *out)
{
    const char *p = *text, *digits;
    char copy[64];
    int n = 0;

    p += *p == '+' || *p == '-';
    for (digits = p; isdigit((unsigned char)*p); p++)
        n++;
    if (*p == '.')
        for (p++; isdigit((unsigned char)*p); p++)
            n++;
    if (n == 0 || p - digits > 40)
        return false;
    if ((*p == 'e' || *p == 'E') &&
        (isdigit((unsigned char)p[1]) ||
         ((p[1] == '-' || p[1] == '+') && isdigit((unsigned char)p[2]))))
        for (p += 2; isdigit((unsigned char)*p); p++)
            ;
    if ((size_t)(p - *text) >= sizeof copy)
        return false;
    memcpy(copy, *text, (size_t)(p - *text));
    copy[p - *text] = '\0';
    *out = strtod(copy, NULL);
    *text = p;
    return true;
}

static bool parse_int(const char *text, double *out)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"k", 1e3},      {"K", 1e3},         {"M", 1e6},      {"G", 1e9},     {"T", 1e12},
                 {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    double x;

    if (!scan_number(&text, &x))
        return false;
    if (*text) {
        size_t i = 0;
        while (i < LS_COUNT(units) && strcmp(units[i].suffix, text) != 0)
            i++;
        if (i == LS_COUNT(units))
            return false;
        x *= units[i].factor;
        /* 64.1k is 64100, whatever binary fractions make of it. */
        if (fabs(x - nearbyint(x)) <= 1e-9 * fabs(x))
            x = nearbyint(x);
    }
    *out = x;
    return isinf(x) || x == nearbyint(x);
}

static bool parse_float(const char *text, double *out)
{
    if (!scan_number(&text, out))
        return false;
    if (strcmp(text, "%") == 0) {
        *out /= 100;
        return true;
    }
    return *text == '\0';
}

static bool parse_duration(const char *text, double *out)
{
    static const char letters[] = "dhms";
    static const double seconds[] = {86400, 3600, 60, 1};
    size_t from = 0; /* units must fall: 1h30m, not 30m1h */

    *out = 0;
    do {
        double x;
        if (*text == '-' || *text == '+' || !scan_number(&text, &x))
            return false;
        if (!*text && from == 0) { /* a bare number */
            *out = x;
            return true;
        }
        const char *unit = *text ? strchr(letters + from, *text) : NULL;
        if (!unit)
            return false;
        *out += x * seconds[unit - letters];
        from = (size_t)(unit - letters) + 1;
        text++;
    } while (*text);
    return true;
}

static bool in_range(const ls_option *row, double x)
{
    return (row->above ? x > row->least : x >= row->least) &&
           (row->below ? x < row->most : x <= row->most) && isfinite(x);
}

/* --- from text -------------------------------------------------------------------------------- */

/* "run.yaml:3:9: batch.leaf must be ..., not "x": this version ...", with a hint where one helps.
 */
static ls_status refuse(const ls_option *row, const char *where, const char *got)
{
    ls_str wants;
    ls_status st;

    ls_str_init(&wants);
    ls_option_describe(row, &wants);
    st = ls_fail(LS_EUSAGE, "%s: %s must be %s, not %s%s%s", where, row->key, wants.p, got,
                 row->limit ? ": " : "", row->limit ? row->limit : "");
    ls_str_release(&wants);
    return st;
}

/* Whether a name is one of the words of text: "adamw" of "adamw_torch", "cuda" of "cuda:0". */
static bool is_part(const char *name, const char *text)
{
    size_t n = strlen(name);

    for (const char *p = strstr(text, name); p; p = strstr(p + 1, name))
        if ((p == text || !isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[n]))
            return true;
    return false;
}

/* The value that is meant by what other programs say, or by a slip of at most two letters. */
static const char *near_value(const ls_option *row, const char *text)
{
    static const char *const others[][2] = {
        {"gpu", "cuda"},   {"nvidia", "cuda"},   {"float32", "fp32"},
        {"float", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"},
        {"half", "fp16"},  {"sft", "lm"},        {"clm", "lm"}};
    const char *near = NULL;
    int most = (int)ls_min_i64(2, (int64_t)strlen(text) / 2);

    for (int i = 0; row->names[i] && row->names[1]; i++)
        for (size_t k = 0; k < LS_COUNT(others); k++)
            if (strcmp(row->names[i], others[k][1]) == 0 && strcasecmp(text, others[k][0]) == 0)
                return row->names[i];
    for (int i = 0; row->names[i] && row->names[1]; i++)
        if (ls_str_distance(row->names[i], text) <= most || is_part(row->names[i], text))
            near = row->names[i];
    return near;
}

/* What a value that other programs have would need here; NULL: not known. */
static const char *lacking(const ls_option *row, const char *text)
{
    static const char online[] = "ppo grpo rloo reinforce online_dpo gspo";

    if (strcmp(row->key, "model.family") == 0)
        return ls_unbuilt_families_lacks(text);
    if (strcmp(row->key, "train.objective") == 0 && ls_other_names_has(online, text))
        return "answers that the model gives while it trains, which is not built";
    return NULL;
}

/* How people write numbers elsewhere. */
static void hint_number(const char *text)
{
    size_t digits = strspn(text, "0123456789");

    if (*text == '"' || *text == '\'')
        ls_err_hint("Remove the inner quotes.");
    else if (strchr(text, '='))
        ls_err_hint("Each setting has a --set of its own.");
    else if (digits && text[digits] == ',')
        ls_err_hint("Write numbers without commas, and with a decimal point: 1000, 0.001.");
}

static ls_status refuse_item(const ls_option *row, const ls_value_item *item)
{
    char quoted[64];

    if (!item->quoted && !*item->text)
        return refuse(row, item->where, "nothing");
    ls_value_quote(item->text, quoted, sizeof quoted);
    ls_status st = refuse(row, item->where, quoted);
    if (item->quoted && row->type <= LS_OPTION_BOOL)
        ls_err_hint("Remove the quotes if a number or a truth value is meant.");
    else if (row->type <= LS_OPTION_BOOL)
        hint_number(item->text);
    const char *near = near_value(row, item->text);
    const char *lacks = lacking(row, item->text);
    if (lacks)
        ls_err_hint("%.60s needs %s.", item->text, lacks);
    else if (near)
        ls_err_hint("Did you mean \"%s\"?", near);
    return st;
}

static ls_status parse_number(const ls_option *row, const ls_value_item *item, double *out)
{
    double x = 0;
    bool good = row->type == LS_OPTION_INT        ? parse_int(item->text, &x)
                : row->type == LS_OPTION_DURATION ? parse_duration(item->text, &x)
                                                  : parse_float(item->text, &x);

    if (!good || item->quoted || !in_range(row, x))
        return refuse_item(row, item);
    *out = x;
    return LS_OK;
}

static ls_status set_enum(const ls_option *row, ls_run *run, const ls_value_item *item)
{
    for (int i = 0; row->names[i]; i++) {
        if (strcmp(row->names[i], item->text) != 0)
            continue;
        memcpy(field(row, run), &i, sizeof i);
        return LS_OK;
    }
    return refuse_item(row, item);
}

static ls_status set_string(const ls_option *row, ls_run *run, const ls_value_item *item)
{
    bool known = !row->names[0];

    for (int i = 0; row->names[i]; i++)
        known |= strcmp(row->names[i], item->text) == 0;
    if (!known)
        return refuse_item(row, item);
    char *copy = ls_arena_strdup(&run->arena, item->text);
    if (!copy)
        return LS_ENOMEM;
    *text_field(row, run) = copy;
    return LS_OK;
}

static ls_status set_auto(const ls_option *row, ls_run *run)
{
    if (row->type == LS_OPTION_INT)
        *int_field(row, run) = LS_RUN_AUTO;
    else if (row->type == LS_OPTION_STRING)
        *text_field(row, run) = NULL;
    else
        *float_field(row, run) = LS_RUN_AUTO;
    return LS_OK;
}

static ls_status set_scalar(const ls_option *row, ls_run *run, const ls_value_item *item)
{
    ls_status st = LS_OK;
    double x = 0;

    if (row->when_auto && !item->quoted && strcmp(item->text, "auto") == 0)
        return set_auto(row, run);
    switch (row->type) {
    case LS_OPTION_INT:
        LS_TRY(st, parse_number(row, item, &x), out);
        *int_field(row, run) = (int64_t)x;
        break;
    case LS_OPTION_FLOAT:
    case LS_OPTION_DURATION:
        LS_TRY(st, parse_number(row, item, &x), out);
        *float_field(row, run) = x;
        break;
    case LS_OPTION_BOOL: {
        bool yes = strcmp(item->text, "true") == 0;
        if (item->quoted || (!yes && strcmp(item->text, "false") != 0))
            return refuse_item(row, item);
        memcpy(field(row, run), &yes, sizeof yes);
        break;
    }
    case LS_OPTION_ENUM:
        return set_enum(row, run, item);
    default:
        return set_string(row, run, item);
    }
out:
    return st;
}

static ls_status set_strings(const ls_option *row, ls_run *run, const ls_value *value)
{
    const char **items = ls_arena_alloc(&run->arena, (size_t)value->count * sizeof *items);

    if (!items)
        return LS_ENOMEM;
    for (int i = 0; i < value->count; i++) {
        if (!*value->items[i].text)
            return ls_fail(LS_EUSAGE, "%s: %s has an empty entry", value->items[i].where, row->key);
        items[i] = ls_arena_strdup(&run->arena, value->items[i].text);
        if (!items[i])
            return LS_ENOMEM;
    }
    *(ls_run_list *)field(row, run) = (ls_run_list){items, value->count};
    return LS_OK;
}

static ls_status set_floats(const ls_option *row, ls_run *run, const ls_value *value)
{
    double *items = ls_arena_alloc(&run->arena, (size_t)value->count * sizeof *items);
    ls_status st = items ? LS_OK : LS_ENOMEM;

    for (int i = 0; i < value->count && st == LS_OK; i++)
        st = parse_number(row, &value->items[i], &items[i]);
    if (st == LS_OK)
        *(ls_run_floats *)field(row, run) = (ls_run_floats){items, value->count};
    return st;
}

ls_status ls_value_set(const ls_option *row, ls_run *run, const ls_value *value)
{
    if (row->type == LS_OPTION_STRINGS)
        return set_strings(row, run, value);
    if (row->type == LS_OPTION_FLOATS)
        return set_floats(row, run, value);
    if (value->list)
        return refuse(row, value->where, "a list");
    return set_scalar(row, run, value->items);
}

ls_status ls_value_preset(const ls_option *row, ls_run *run)
{
    ls_value_item item = {row->preset, false, "default"};
    ls_value value = {&item, 1, false, "default"};

    if (!row->preset)
        return LS_OK;
    if (strcmp(row->preset, "[]") == 0)
        value = (ls_value){NULL, 0, true, "default"};
    return ls_value_set(row, run, &value);
}

/* --- to text ---------------------------------------------------------------------------------- */

/* The shortest decimal that reads back, without padding in the exponent: 1e-8. */
static void print_number(double x, ls_str *out)
{
    char text[40];

    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    char *e = strchr(text, 'e');
    if (!e) {
        ls_str_append(out, text);
        return;
    }
    const char *power = e + 2;
    while (*power == '0' && power[1])
        power++;
    ls_str_append_bytes(out, text, (size_t)(e - text) + 1);
    if (e[1] == '-')
        ls_str_append_char(out, '-');
    ls_str_append(out, power);
}

/* Whether a text may stand without quotes and still be read as that text by any YAML reader. */
static bool is_plain(const char *text)
{
    static const char *const words[] = {"auto", "true", "false", "yes", "no",  "on",
                                        "off",  "null", "y",     "n",   "nan", "inf"};

    if (!isalpha((unsigned char)text[0]) && text[0] != '/')
        return false;
    for (size_t i = 0; i < LS_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0)
            return false;
    return text[strspn(
               text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")] == '\0';
}

/* Characters that YAML refuses, folds as line breaks or takes for a mark unless escaped. */
static bool needs_escape(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff ||
           c == 0xfffe || c == 0xffff;
}

/* One text, quoted when it must be. It is valid UTF-8, as all that was ever accepted. */
static void print_text(const char *text, ls_str *out)
{
    const unsigned char *p = (const unsigned char *)text;

    if (is_plain(text)) {
        ls_str_append(out, text);
        return;
    }
    ls_str_append_char(out, '"');
    while (*p) {
        int n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
        uint32_t c = n == 1 ? *p : *p & (0xffu >> (n + 1));
        for (int k = 1; k < n; k++)
            c = c << 6 | (p[k] & 0x3fu);
        if (c == '"' || c == '\\')
            ls_str_printf(out, "\\%c", (char)c);
        else if (c == '\n')
            ls_str_append(out, "\\n");
        else if (c == '\t')
            ls_str_append(out, "\\t");
        else if (needs_escape(c))
            ls_str_printf(out, "\\u%04x", (unsigned)c);
        else
            ls_str_append_bytes(out, p, (size_t)n);
        p += n;
    }
    ls_str_append_char(out, '"');
}

void ls_value_print(const ls_option *row, const ls_run *run, ls_str *out)
{
    const void *p = const_field(row, run);

    if (ls_value_is_auto(row, run)) {
        ls_str_append(out, "auto");
        return;
    }
    switch (row->type) {
    case LS_OPTION_INT:
        ls_str_printf(out, "%lld", (long long)*(const int64_t *)p);
        break;
    case LS_OPTION_FLOAT:
    case LS_OPTION_DURATION:
        print_number(*(const double *)p, out);
        break;
    case LS_OPTION_BOOL:
        ls_str_append(out, *(const bool *)p ? "true" : "false");
        break;
    case LS_OPTION_ENUM:
        ls_str_append(out, row->names[enum_value(row, run)]);
        break;
    case LS_OPTION_STRING:
        print_text(*(const char *const *)p, out);
        break;
    case LS_OPTION_STRINGS: {
        const ls_run_list *list = p;
        ls_str_append_char(out, '[');
        for (int i = 0; i < list->count; i++) {
            ls_str_append(out, i ? ", " : "");
            print_text(list->items[i], out);
        }
        ls_str_append_char(out, ']');
        break;
    }
    case LS_OPTION_FLOATS: {
        const ls_run_floats *list = p;
        ls_str_append_char(out, '[');
        for (int i = 0; i < list->count; i++) {
            ls_str_append(out, i ? ", " : "");
            print_number(list->items[i], out);
        }
        ls_str_append_char(out, ']');
        break;
    }
    }
}

void ls_value_json(const ls_option *row, const ls_run *run, ls_json *json)
{
    const void *p = const_field(row, run);
    const ls_run_list *texts = p;
    const ls_run_floats *numbers = p;

    if (ls_value_is_auto(row, run)) {
        ls_json_str(json, "auto");
        return;
    }
    switch (row->type) {
    case LS_OPTION_INT:
        ls_json_int(json, *(const int64_t *)p);
        break;
    case LS_OPTION_FLOAT:
    case LS_OPTION_DURATION:
        ls_json_num(json, *(const double *)p);
        break;
    case LS_OPTION_BOOL:
        ls_json_bool(json, *(const bool *)p);
        break;
    case LS_OPTION_ENUM:
        ls_json_str(json, row->names[enum_value(row, run)]);
        break;
    case LS_OPTION_STRING:
        ls_json_str(json, *(const char *const *)p);
        break;
    case LS_OPTION_STRINGS:
        ls_json_open(json, '[');
        for (int i = 0; i < texts->count; i++)
            ls_json_str(json, texts->items[i]);
        ls_json_close(json);
        break;
    case LS_OPTION_FLOATS:
        ls_json_open(json, '[');
        for (int i = 0; i < numbers->count; i++)
            ls_json_num(json, numbers->items[i]);
        ls_json_close(json);
        break;
    }
}
