/* cmd_generate_settings.c -- what is asked for: flags first, then the model's own wishes.
 *
 * A Hugging Face folder may hold generation_config.json. Each setting that it names replaces our
 * default, and a flag replaces both. do_sample: false means the most likely token, as there. */
#include "cli/generate/cmd_generate.h"

#include <jansson.h>
#include <math.h>
#include "base/file.h"
#include "base/json_line.h"
#include "data/tokenizer/utf8.h"

enum { CONFIG_BYTES = 1 << 20 };

/* One number that a flag or generation_config.json may set. */
typedef struct number {
    const char *flag, *key;
    double least, most;
    bool above; /* least itself is too little */
    bool whole;
    const char *hint; /* for a flag at least itself */
    double *value;
} number;

static bool fits(const number *n, double x)
{
    return x <= n->most && (n->above ? x > n->least : x >= n->least) &&
           (!n->whole || x == floor(x));
}

static ls_status refuse(const number *n, ls_status st, const char *name, const char *given)
{
    st = ls_fail(st, "%s must be a %s %s %.16g %s %.16g, not \"%.40s\"", name,
                 n->whole ? "whole number" : "number", n->above ? "above" : "from", n->least,
                 n->above ? "and at most" : "to", n->most, given);
    if (n->hint)
        ls_err_hint("%s", n->hint);
    return st;
}

static ls_status read_flag(const number *n, const ls_args *args)
{
    const char *text = ls_args_value(args, n->flag);
    char name[40], *end;

    if (!text)
        return LS_OK;
    double x = strtod(text, &end);
    snprintf(name, sizeof name, "--%s", n->flag);
    if (end == text || *end || !fits(n, x))
        return refuse(n, LS_EUSAGE, name, text);
    *n->value = x;
    return LS_OK;
}

/* All numbers as doubles; the settings hold some of them as integers. */
typedef struct numbers {
    double tokens, context, temperature, top_k, top_p, min_p, repetition, seed;
} numbers;

enum { NUMBERS = 8 };

static void describe(numbers *v, number rows_out[NUMBERS])
{
    const number rows[NUMBERS] = {
        {"tokens", NULL, 1, 1e9, false, true, NULL, &v->tokens},
        {"context", NULL, 1, 1e9, false, true, NULL, &v->context},
        {"temperature", "temperature", 0, 100, false, false, NULL, &v->temperature},
        {"top-k", "top_k", 0, 1e9, false, true, NULL, &v->top_k},
        {"top-p", "top_p", 0, 1, true, false, "--temperature 0 takes the most likely token.",
         &v->top_p},
        {"min-p", "min_p", 0, 1, false, false, NULL, &v->min_p},
        {"repetition-penalty", "repetition_penalty", 0, 100, true, false,
         "1 is no penalty; 1.1 is a mild one.", &v->repetition},
        {"seed", NULL, 0, 9e15, false, true, NULL, &v->seed},
    };
    memcpy(rows_out, rows, sizeof rows);
}

static numbers numbers_of(const ls_generate_settings *s)
{
    return (numbers){.tokens = (double)s->count,
                     .context = (double)s->context,
                     .temperature = s->sampling.temperature,
                     .top_k = (double)s->sampling.top_k,
                     .top_p = s->sampling.top_p,
                     .min_p = s->sampling.min_p,
                     .repetition = s->sampling.repetition,
                     .seed = (double)s->sampling.seed};
}

static void settings_of(const numbers *v, ls_generate_settings *s)
{
    s->count = (int64_t)v->tokens;
    s->context = (int64_t)v->context;
    s->sampling = (ls_sampling){.temperature = v->temperature,
                                .top_k = (int64_t)v->top_k,
                                .top_p = v->top_p,
                                .min_p = v->min_p,
                                .repetition = v->repetition,
                                .seed = (uint64_t)v->seed};
}

static ls_status read_stops(ls_generate_settings *s, const ls_args *args)
{
    const char *text;

    for (; (text = ls_args_nth(args, "stop", s->n_stops)) != NULL; s->n_stops++) {
        if (*text == '\0')
            return ls_fail(LS_EUSAGE, "--stop is empty, so the text would end before it begins");
        if (ls_utf8_valid(text, strlen(text)) != strlen(text))
            return ls_fail(LS_EUSAGE, "--stop is not UTF-8, so it could never match");
        s->stops[s->n_stops] = text; /* a command line has no more than 64 flags */
    }
    return LS_OK;
}

ls_status ls_generate_read_flags(ls_generate_settings *s, const ls_args *args)
{
    numbers v = {.tokens = 200,
                 .temperature = LS_SAMPLING_TEMPERATURE,
                 .top_p = LS_SAMPLING_TOP_P,
                 .repetition = 1,
                 .seed = 1};
    number rows[NUMBERS];
    ls_status st = LS_OK;

    *s = (ls_generate_settings){.ignore_eos = ls_args_has(args, "ignore-eos"),
                                .json = ls_args_has(args, "json"),
                                .chat = ls_args_has(args, "chat"),
                                .quiet = ls_args_has(args, "quiet")};
    describe(&v, rows);
    for (int i = 0; i < NUMBERS; i++)
        LS_TRY(st, read_flag(&rows[i], args), out);
    settings_of(&v, s);
    LS_TRY(st, read_stops(s, args), out);
    if (ls_args_has(args, "prompt") && ls_args_has(args, "prompt-file"))
        st = ls_fail(LS_EUSAGE, "--prompt and --prompt-file are given: only one can be the prompt");
out:
    return st;
}

/* --- generation_config.json ------------------------------------------------------------------- */

static ls_status use_config(ls_generate_settings *s, const ls_args *args, const json_t *config,
                            const char *path)
{
    numbers v = numbers_of(s);
    number rows[NUMBERS];

    describe(&v, rows);
    if (json_is_false(json_object_get(config, "do_sample")) && !ls_args_has(args, "temperature"))
        v.temperature = 0;
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *x = rows[i].key ? json_object_get(config, rows[i].key) : NULL;
        char name[320], given[48];
        if (!x || json_is_null(x) || ls_args_has(args, rows[i].flag))
            continue;
        if (rows[i].value == &v.temperature && v.temperature == 0)
            continue; /* do_sample: false */
        snprintf(name, sizeof name, "%s of \"%.240s\"", rows[i].key, path);
        snprintf(given, sizeof given, "%.16g", json_number_value(x));
        if (!json_is_number(x))
            snprintf(given, sizeof given, "no number");
        if (!json_is_number(x) || !fits(&rows[i], json_number_value(x)))
            return refuse(&rows[i], LS_EDATA, name, given);
        *rows[i].value = json_number_value(x);
    }
    settings_of(&v, s);
    return LS_OK;
}

ls_status ls_generate_read_defaults(ls_generate_settings *s, const ls_args *args,
                                    const ls_generate_model *m)
{
    json_t *config = NULL;
    json_error_t where;
    ls_str path, text;
    ls_status st = LS_OK;

    if (s->chat && m->ids.turn < 0 && m->ids.turn_text[0])
        s->stops[s->n_stops++] = m->ids.turn_text;
    ls_str_init(&path);
    ls_str_init(&text);
    const char *origin = ls_hf_folder_origin(m->folder);
    ls_str_printf(&path, "%s/generation_config.json",
                  *origin ? origin : ls_hf_folder_home(m->folder));
    LS_TRY(st, ls_str_status(&path), out);
    if (!ls_file_exists(path.p))
        goto out;
    LS_TRY(st, ls_file_read(path.p, CONFIG_BYTES, &text), out);
    config = ls_json_line_parse_file(text.p, text.len, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(config)) {
        st = ls_fail(LS_EDATA, "\"%s\" is not a JSON object: line %d: %s", path.p,
                     config ? 1 : where.line, config ? "another value" : where.text);
        goto out;
    }
    st = use_config(s, args, config, path.p);
out:
    json_decref(config);
    ls_str_release(&path);
    ls_str_release(&text);
    return st;
}
