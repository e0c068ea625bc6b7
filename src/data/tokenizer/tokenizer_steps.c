/* tokenizer_steps.c -- normalizer, pre_tokenizer, post_processor and decoder of a tokenizer.json.
 *
 * Each is null, one step, or a sequence of steps. A step that is not known here is refused by its
 * name: a tokenizer that leaves out a step gives ids that are nearly right, which is worse. */
#include "data/tokenizer/tokenizer_json_impl.h"

enum {
    DEPTH = 8,   /* sequences in sequences */
    GROWTH = 100 /* how many times as long the steps may make a text: Llama-2's is 12 */
};

typedef struct reader {
    ls_tokenizer *tok;
    ls_json_rules *rules;
    const char *part; /* "normalizer" */
    double *growth;   /* of a text by the steps so far, at most */
} reader;

static ls_status refuse(const reader *r, const char *what, const char *name)
{
    return ls_fail(LS_EDATA,
                   "the tokenizer has a %s with %s \"%.60s\", which lineshaft does not know",
                   r->part, what, name);
}

static ls_status wrong(const reader *r, const char *what)
{
    return ls_fail(LS_EDATA, "the %s of the tokenizer is not as it should be: %s", r->part, what);
}

/* A step that may write `to` bytes for each `from` bytes of a text. */
static ls_status note_growth(const reader *r, size_t from, size_t to)
{
    if (to > from)
        *r->growth *= (double)to / (double)from;
    if (*r->growth <= GROWTH)
        return LS_OK;
    return ls_fail(LS_EDATA, "the %s of the tokenizer makes a text more than %d times as long",
                   r->part, GROWTH);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static bool flag_of(const json_t *object, const char *key, bool preset)
{
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) ? json_is_true(value) : preset;
}

static ls_status keep_text(const reader *r, const char *text, const char **out)
{
    *out = ls_arena_strdup(&r->rules->arena, text);
    return *out ? LS_OK : LS_ENOMEM;
}

/* "pattern": {"String": "..."}; LS_EDATA for a regular expression or an empty text. */
static ls_status literal_of(const reader *r, const json_t *step, const char **out)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const char *text = text_of(pattern, "String");

    if (json_object_get(pattern, "Regex"))
        return refuse(r, "Replace of a regular expression", text_of(pattern, "Regex"));
    if (!*text)
        return wrong(r, "a pattern is empty or missing");
    return keep_text(r, text, out);
}

typedef ls_status read_step(const reader *r, const json_t *step, const char *type);

/* One step, or the steps of a sequence, each through read. list: the key of a sequence's steps. */
static ls_status each_step(const reader *r, const json_t *step, const char *list, read_step *read,
                           int depth)
{
    const char *type = text_of(step, "type");
    size_t i;
    const json_t *item;

    if (!step || json_is_null(step))
        return LS_OK;
    if (!json_is_object(step) || !*type)
        return wrong(r, "a step has no type");
    if (strcmp(type, "Sequence") != 0)
        return read(r, step, type);
    if (depth >= DEPTH || !json_is_array(json_object_get(step, list)))
        return wrong(r, "a sequence has no steps, or sequences in it go too deep");
    json_array_foreach(json_object_get(step, list), i, item)
    {
        ls_status st = each_step(r, item, list, read, depth + 1);
        if (st != LS_OK)
            return st;
    }
    return LS_OK;
}

static ls_status read_norm(const reader *r, const json_t *step, const char *type)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"};
    ls_json_rules *rules = r->rules;
    ls_norm_step s = {.to = ""};
    ls_status st = LS_OK;
    size_t i = 0;

    while (i < LS_COUNT(forms) && strcmp(type, forms[i]) != 0)
        i++;
    if (i < LS_COUNT(forms)) {
        s.kind = (ls_norm_kind)i;
    } else if (strcmp(type, "Prepend") == 0) {
        s.kind = LS_NORM_PREPEND;
        LS_TRY(st, keep_text(r, text_of(step, "prepend"), &s.to), out);
        LS_TRY(st, note_growth(r, 1, 1 + strlen(s.to)), out);
    } else if (strcmp(type, "Replace") == 0) {
        s.kind = LS_NORM_REPLACE;
        LS_TRY(st, literal_of(r, step, &s.from), out);
        LS_TRY(st, keep_text(r, text_of(step, "content"), &s.to), out);
        LS_TRY(st, note_growth(r, strlen(s.from), strlen(s.to)), out);
    } else {
        return refuse(r, "a step", type);
    }
    if (rules->n_norm == LS_JSON_STEPS)
        return wrong(r, "too many steps");
    rules->norm[rules->n_norm++] = s;
out:
    return st;
}

static ls_status add_cut(const reader *r, ls_cut_step s)
{
    if (r->rules->n_cut == LS_JSON_STEPS) {
        ls_pretokenizer_free(s.pretokenizer);
        return wrong(r, "too many steps");
    }
    r->rules->cut[r->rules->n_cut++] = s;
    return LS_OK;
}

static ls_status read_byte_level(const reader *r, const json_t *step)
{
    ls_status st = LS_OK;
    ls_pretokenizer *pretokenizer = NULL;

    r->rules->by_byte = true;
    if (flag_of(step, "add_prefix_space", true)) {
        LS_TRY(st, note_growth(r, 1, 2), out);
        LS_TRY(st, add_cut(r, (ls_cut_step){.kind = LS_CUT_BLANK}), out);
    }
    if (flag_of(step, "use_regex", true)) {
        LS_TRY(st, ls_pretokenizer_open(&pretokenizer, LS_PRETOKENIZER_GPT2), out);
        st = add_cut(r, (ls_cut_step){.kind = LS_CUT_PATTERN, .pretokenizer = pretokenizer});
    }
out:
    return st;
}

static ls_status read_split(const reader *r, const json_t *step)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = text_of(step, "behavior");
    ls_cut_step s = {.kind = LS_CUT_PATTERN};
    ls_status st = LS_OK;

    if (strcmp(behavior, "Isolated") != 0)
        return refuse(r, "the Split behavior", behavior);
    if (regex) {
        LS_TRY(st, ls_pretokenizer_open(&s.pretokenizer, regex), out);
    } else {
        s.kind = LS_CUT_LITERAL;
        LS_TRY(st, literal_of(r, step, &s.literal), out);
    }
    st = add_cut(r, s);
out:
    return st;
}

/* The prepend scheme, also as older files write it: add_prefix_space. */
static ls_status scheme_of(const reader *r, const json_t *step, ls_cut_scheme *out)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *name = text_of(step, "prepend_scheme");

    if (!*name)
        name = flag_of(step, "add_prefix_space", true) ? "always" : "never";
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (ls_cut_scheme)i;
            return LS_OK;
        }
    return refuse(r, "the prepend_scheme", name);
}

static ls_status mark_of(const reader *r, const json_t *step, const char **out)
{
    const char *text = text_of(step, "replacement");

    return keep_text(r, *text ? text : LS_JSON_MARK, out);
}

static ls_status read_cut(const reader *r, const json_t *step, const char *type)
{
    ls_cut_step s = {.kind = LS_CUT_MARK, .split = flag_of(step, "split", true)};
    ls_status st = LS_OK;

    if (r->rules->by_byte)
        return refuse(r, "a step after ByteLevel,", type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, step);
    if (strcmp(type, "Split") == 0)
        return read_split(r, step);
    if (strcmp(type, "Digits") == 0)
        return add_cut(r, (ls_cut_step){.kind = LS_CUT_DIGITS,
                                        .each = flag_of(step, "individual_digits", false)});
    if (strcmp(type, "Metaspace") != 0)
        return refuse(r, "a step", type);
    LS_TRY(st, scheme_of(r, step, &s.scheme), out);
    LS_TRY(st, mark_of(r, step, &s.literal), out);
    LS_TRY(st, note_growth(r, 1, 1 + strlen(s.literal)), out);
    st = add_cut(r, s);
out:
    return st;
}

/* Append the ids of a special token of a template. */
static ls_status template_ids(const reader *r, const json_t *step, const char *name, int32_t *ids,
                              int *n)
{
    const json_t *special = json_object_get(json_object_get(step, "special_tokens"), name);
    const json_t *list = json_object_get(special, "ids"), *id;
    size_t i;

    if (!json_is_array(list))
        return wrong(r, "a special token of the template has no ids");
    json_array_foreach(list, i, id)
    {
        json_int_t value = json_integer_value(id);
        if (*n == LS_JSON_TEMPLATE || !json_is_integer(id) || value < 0 || value >= r->tok->vocab)
            return wrong(r,
                         "an id of the template is outside the vocabulary, or there are too many");
        ids[(*n)++] = (int32_t)value;
    }
    return LS_OK;
}

static ls_status read_post(const reader *r, const json_t *step, const char *type)
{
    int32_t front[LS_JSON_TEMPLATE];
    ls_json_rules *rules = r->rules;
    int n_front = 0;
    bool after = false;
    size_t i;
    const json_t *item;

    if (strcmp(type, "ByteLevel") == 0) /* only offsets, which are not needed */
        return LS_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return refuse(r, "a step", type);
    json_array_foreach(json_object_get(step, "single"), i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (!special) {
            after = true;
            continue;
        }
        ls_status st =
            after ? template_ids(r, step, text_of(special, "id"), rules->back, &rules->n_back)
                  : template_ids(r, step, text_of(special, "id"), front, &n_front);
        if (st != LS_OK)
            return st;
    }
    if (!after)
        return wrong(r, "its template has no place for the text");
    if (n_front + rules->n_front > LS_JSON_TEMPLATE)
        return wrong(r, "its templates have too many tokens");
    memmove(rules->front + n_front, rules->front, (size_t)rules->n_front * sizeof *front);
    memcpy(rules->front, front, (size_t)n_front * sizeof *front);
    rules->n_front += n_front;
    return LS_OK;
}

static int count_of(const json_t *step, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(step, key));

    return n < 0 ? 0 : n > INT32_MAX ? INT32_MAX : (int)n;
}

static ls_status read_strip(const reader *r, const json_t *step)
{
    ls_tokenizer_decode_step s = {.kind = LS_TOKENIZER_DECODE_STRIP,
                                  .start = count_of(step, "start"),
                                  .stop = count_of(step, "stop")};
    ls_json_rules *rules = r->rules;
    ls_status st = keep_text(r, text_of(step, "content"), &s.from);

    if (st != LS_OK)
        return st;
    if (!*s.from)
        return wrong(r, "a Strip without content");
    if (!rules->fused) {
        rules->undo[rules->n_undo++] = s;
        return LS_OK;
    }
    if (s.stop || strlen(s.from) != 1 || r->tok->strip)
        return refuse(r, "a Strip at the end of a text, or of", s.from);
    r->tok->strip = s.start;
    r->tok->strip_byte = (unsigned char)s.from[0];
    return LS_OK;
}

static ls_status read_undo(const reader *r, const json_t *step, const char *type)
{
    ls_json_rules *rules = r->rules;
    ls_tokenizer_decode_step s = {.to = ""};
    ls_status st = LS_OK;
    ls_cut_scheme scheme;

    if (rules->n_undo == LS_JSON_STEPS)
        return wrong(r, "too many steps");
    if (strcmp(type, "Strip") == 0)
        return read_strip(r, step);
    if (strcmp(type, "Fuse") == 0) {
        rules->fused = true;
        return LS_OK;
    }
    if (rules->fused)
        return refuse(r, "a step after Fuse,", type);
    if (strcmp(type, "ByteLevel") == 0) {
        s.kind = LS_TOKENIZER_DECODE_BYTES;
    } else if (strcmp(type, "ByteFallback") == 0) {
        s.kind = LS_TOKENIZER_DECODE_FALLBACK;
    } else if (strcmp(type, "Replace") == 0) {
        s.kind = LS_TOKENIZER_DECODE_REPLACE;
        LS_TRY(st, literal_of(r, step, &s.from), out);
        LS_TRY(st, keep_text(r, text_of(step, "content"), &s.to), out);
        LS_TRY(st, note_growth(r, strlen(s.from), strlen(s.to)), out);
    } else if (strcmp(type, "Metaspace") == 0) {
        s.kind = LS_TOKENIZER_DECODE_MARK;
        LS_TRY(st, mark_of(r, step, &s.from), out);
        LS_TRY(st, scheme_of(r, step, &scheme), out);
        s.keep_first = scheme == LS_CUT_NEVER;
    } else {
        return refuse(r, "a step", type);
    }
    rules->undo[rules->n_undo++] = s;
out:
    return st;
}

ls_status ls_json_read_steps(ls_tokenizer *tok, ls_json_rules *rules, json_t *root)
{
    static const struct {
        const char *part, *list;
        read_step *read;
    } parts[] = {{"normalizer", "normalizers", read_norm},
                 {"pre_tokenizer", "pretokenizers", read_cut},
                 {"post_processor", "processors", read_post},
                 {"decoder", "decoders", read_undo}};
    double growth = 1;

    for (size_t i = 0; i < LS_COUNT(parts); i++) {
        growth = i < 3 ? growth : 1; /* a decoder begins with tokens */
        reader r = {tok, rules, parts[i].part, &growth};
        ls_status st =
            each_step(&r, json_object_get(root, parts[i].part), parts[i].list, parts[i].read, 0);
        if (st != LS_OK)
            return st;
    }
    /* Without a decoder the package writes tokens with blanks between them. */
    tok->join_blank =
        json_is_null(json_object_get(root, "decoder")) || !json_object_get(root, "decoder");
    return LS_OK;
}
