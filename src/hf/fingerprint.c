/* fingerprint.c -- a few logits of fixed tokens.
 *
 * Why not a hash of all logits: two correct programs differ in the last bits. Why not a loss: it
 * sums over the vocabulary and hides much. Single logits differ by about the root mean square of
 * all logits when the model is another one, and by a millionth of it when only the order of
 * additions is. The positions are not the first ones, because a rotation by position 0 is none. */
#include "hf/fingerprint.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "model/pass.h"

enum { PRINT_BYTES = 1 << 20, FIXED = 8, TOP = LS_FINGERPRINT_PLACES - FIXED };

static int32_t spread(int64_t i, int64_t vocab)
{
    uint64_t x = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15ull;

    return (int32_t)((x >> 32) % (uint64_t)vocab);
}

/* --- computing -------------------------------------------------------------------------------- */

/* Device memory for a short text and its logits. */
typedef struct probe {
    const ls_loaded_model *r;
    ls_pass *pass;
    void *memory;
    int32_t *tokens, *targets; /* [T] each */
    float *losses;             /* [T] */
    float *logits;             /* [V] */
} probe;

static void probe_close(probe *p)
{
    ls_pass_close(p->pass);
    ls_device_free(p->r->device, p->memory);
}

static ls_status probe_open(probe *p, const ls_loaded_model *r, int64_t T)
{
    ls_status st;

    *p = (probe){.r = r};
    LS_TRY(st,
           ls_pass_open(&p->pass, &(ls_pass_args){.model = &r->model,
                                                  .kernels = r->kernels,
                                                  .stream = r->stream,
                                                  .B = 1,
                                                  .T = T,
                                                  .leaves = 1}),
           out);
    LS_TRY(st,
           ls_device_alloc(r->device, (3 * T + r->model.shape.V) * (int64_t)sizeof(float),
                           "logits of a fingerprint", &p->memory),
           out);
    p->tokens = p->memory;
    p->targets = p->tokens + T;
    p->losses = (float *)p->memory + 2 * T;
    p->logits = p->losses + T;
out:
    if (st != LS_OK)
        probe_close(p);
    return st;
}

static ls_status probe_row(probe *p, const int32_t *tokens, int64_t T, int64_t position)
{
    ls_stream_copy_in(p->r->stream, p->tokens, tokens, T * (int64_t)sizeof *tokens);
    ls_pass_logits(p->pass,
                   &(ls_pass_call){.w = p->r->w, .tokens = p->tokens, .B = 1, .T = T, .leaves = 1},
                   position, p->logits);
    return ls_stream_sync(p->r->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
}

static ls_status statistics(const float *x, int64_t n, ls_fingerprint_row *row)
{
    double sum = 0, squares = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    if (!isfinite(squares))
        return ls_fail(LS_ENUMERIC, "the model computes logits that are not numbers");
    row->mean = sum / (double)n;
    row->rms = sqrt(squares / (double)n);
    return LS_OK;
}

/* Fixed places first, then the largest logits, equal ones by number. */
static void choose_places(const float *x, int64_t V, int row_number, ls_fingerprint_row *row)
{
    for (int k = 0; k < FIXED; k++)
        row->places[k] = spread(1000 + row_number * FIXED + k, V);
    row->n = FIXED;
    for (int k = 0; k < TOP && k < V; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < V; i++) {
            bool taken = false;
            for (int j = FIXED; j < row->n; j++)
                taken |= row->places[j] == i;
            if (!taken && (best < 0 || x[i] > x[best]))
                best = i;
        }
        row->places[row->n++] = (int32_t)best;
    }
}

ls_status ls_fingerprint_make(const ls_loaded_model *r, ls_fingerprint *out)
{
    const ls_model_shape *s = &r->model.shape;
    ls_fingerprint f = {.vocab = s->V, .n_rows = LS_FINGERPRINT_ROWS};
    probe p;
    ls_status st;

    f.n_tokens = (int)ls_min_i64(LS_FINGERPRINT_TOKENS, s->T);
    for (int i = 0; i < f.n_tokens; i++)
        f.tokens[i] = spread(i, s->V);
    LS_TRY(st, probe_open(&p, r, f.n_tokens), failed);
    for (int k = 0; k < f.n_rows && st == LS_OK; k++) {
        ls_fingerprint_row *row = &f.rows[k];
        row->position = (k + 1) * (f.n_tokens - 1) / LS_FINGERPRINT_ROWS;
        LS_TRY(st, probe_row(&p, f.tokens, f.n_tokens, row->position), out);
        LS_TRY(st, statistics(p.logits, s->V, row), out);
        choose_places(p.logits, s->V, k, row);
        for (int i = 0; i < row->n; i++)
            row->logits[i] = p.logits[row->places[i]];
    }
    *out = f;
out:
    probe_close(&p);
failed:
    return st;
}

/* --- comparing -------------------------------------------------------------------------------- */

static ls_status another_model(const char *path, const char *what, int position, double got,
                               double want)
{
    ls_status st =
        ls_fail(LS_EDATA,
                "the model in \"%s\" does not compute what its fingerprint says: %s at position %d "
                "is %.6g, not %.6g",
                path, what, position, got, want);

    ls_err_hint("Its weights or its configuration were changed, or the weights are laid out "
                "differently: rotary pairs side by side instead of in halves, or a transposed "
                "matrix.");
    return st;
}

static ls_status compare_row(const probe *p, const ls_fingerprint_row *want, double tolerance,
                             const char *path, double *worst)
{
    ls_fingerprint_row got;
    char what[64];
    /* A row of tiny logits says little; 1e-4 keeps rounding from being blamed. */
    double unit = fmax(want->rms, 1e-4);
    ls_status st = statistics(p->logits, p->r->model.shape.V, &got);

    if (st != LS_OK)
        return st;
    for (int i = 0; i < want->n; i++) {
        double d = fabs((double)p->logits[want->places[i]] - (double)want->logits[i]) / unit;
        *worst = fmax(*worst, d);
        snprintf(what, sizeof what, "logit %d", want->places[i]);
        if (!(d <= tolerance))
            return another_model(path, what, want->position, (double)p->logits[want->places[i]],
                                 (double)want->logits[i]);
    }
    if (!(fabs(got.mean - want->mean) <= tolerance * unit))
        return another_model(path, "the mean of all logits", want->position, got.mean, want->mean);
    if (!(fabs(got.rms - want->rms) <= tolerance * unit))
        return another_model(path, "the root mean square of all logits", want->position, got.rms,
                             want->rms);
    return LS_OK;
}

ls_status ls_fingerprint_verify(const ls_loaded_model *r, const ls_fingerprint *want,
                                double tolerance, const char *path, double *worst_out)
{
    const ls_model_shape *s = &r->model.shape;
    int64_t T = ls_min_i64(want->n_tokens, s->T);
    double worst = 0;
    int compared = 0;
    probe p;
    ls_status st;

    if (want->vocab != s->V)
        return ls_fail(LS_EDATA,
                       "the fingerprint in \"%s\" is of a model with %lld tokens, not %lld", path,
                       (long long)want->vocab, (long long)s->V);
    LS_TRY(st, probe_open(&p, r, T), failed);
    for (int k = 0; k < want->n_rows && st == LS_OK; k++) {
        if (want->rows[k].position >= T)
            continue;
        LS_TRY(st, probe_row(&p, want->tokens, T, want->rows[k].position), out);
        st = compare_row(&p, &want->rows[k], tolerance, path, &worst);
        compared++;
    }
    if (compared == 0) {
        st = ls_fail(LS_EDATA,
                     "the fingerprint in \"%s\" proves nothing: it looks only at positions beyond "
                     "the model's context of %lld",
                     path, (long long)s->T);
        ls_err_hint("Remove " LS_FINGERPRINT_FILE " from the folder to go on without proof.");
    }
    if (worst_out)
        *worst_out = worst;
out:
    probe_close(&p);
failed:
    return st;
}

/* --- as text ---------------------------------------------------------------------------------- */

void ls_fingerprint_print(const ls_fingerprint *f, ls_str *out)
{
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "format", "lineshaft fingerprint 1");
    ls_json_put_int(&json, "vocab", f->vocab);
    ls_json_put_open(&json, "tokens", '[');
    for (int i = 0; i < f->n_tokens; i++)
        ls_json_int(&json, f->tokens[i]);
    ls_json_close(&json);
    ls_json_put_open(&json, "rows", '[');
    for (int k = 0; k < f->n_rows; k++) {
        const ls_fingerprint_row *row = &f->rows[k];
        ls_json_open(&json, '{');
        ls_json_put_int(&json, "position", row->position);
        ls_json_put_num(&json, "mean", row->mean);
        ls_json_put_num(&json, "rms", row->rms);
        ls_json_put_open(&json, "places", '[');
        for (int i = 0; i < row->n; i++)
            ls_json_int(&json, row->places[i]);
        ls_json_close(&json);
        ls_json_put_open(&json, "logits", '[');
        for (int i = 0; i < row->n; i++)
            ls_json_num(&json, (double)row->logits[i]);
        ls_json_close(&json);
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}

static bool get_id(const json_t *value, int64_t below, int32_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= below)
        return false;
    *out = (int32_t)json_integer_value(value);
    return true;
}

static bool get_finite(const json_t *value, double *out)
{
    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out) && fabs(*out) < 1e30;
}

static bool parse_row(const json_t *from, const ls_fingerprint *f, ls_fingerprint_row *row)
{
    const json_t *places = json_object_get(from, "places");
    const json_t *logits = json_object_get(from, "logits");
    size_t n = json_array_size(places);
    int32_t position;

    if (n == 0 || n > LS_FINGERPRINT_PLACES || json_array_size(logits) != n ||
        !get_id(json_object_get(from, "position"), f->n_tokens, &position) ||
        !get_finite(json_object_get(from, "mean"), &row->mean) ||
        !get_finite(json_object_get(from, "rms"), &row->rms) || row->rms < 0)
        return false;
    row->position = position;
    row->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        double logit;
        if (!get_id(json_array_get(places, i), f->vocab, &row->places[i]) ||
            !get_finite(json_array_get(logits, i), &logit))
            return false;
        row->logits[i] = (float)logit;
    }
    return true;
}

static bool parse_all(const json_t *root, ls_fingerprint *f)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *tokens = json_object_get(root, "tokens"), *rows = json_object_get(root, "rows");
    int32_t vocab;

    if (!format || strcmp(format, "lineshaft fingerprint 1") != 0 ||
        !get_id(json_object_get(root, "vocab"), 1 << 24 | 1, &vocab) || vocab < 1 ||
        json_array_size(tokens) < 1 || json_array_size(tokens) > LS_FINGERPRINT_TOKENS ||
        json_array_size(rows) < 1 || json_array_size(rows) > LS_FINGERPRINT_ROWS)
        return false;
    f->vocab = vocab;
    f->n_tokens = (int)json_array_size(tokens);
    f->n_rows = (int)json_array_size(rows);
    for (int i = 0; i < f->n_tokens; i++)
        if (!get_id(json_array_get(tokens, (size_t)i), vocab, &f->tokens[i]))
            return false;
    for (int i = 0; i < f->n_rows; i++)
        if (!parse_row(json_array_get(rows, (size_t)i), f, &f->rows[i]))
            return false;
    return true;
}

ls_status ls_fingerprint_parse(ls_fingerprint *out, const char *text, size_t len, const char *name)
{
    ls_fingerprint f = {.n_rows = 0};
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    bool good = root && parse_all(root, &f);

    json_decref(root);
    if (!good)
        return ls_fail(LS_EDATA, "\"%s\" is not a fingerprint of a model", name);
    *out = f;
    return LS_OK;
}

ls_status ls_fingerprint_read(ls_fingerprint *out, const char *folder, bool *found_out)
{
    char path[PATH_MAX];
    ls_str text;
    ls_status st = LS_OK;

    ls_str_init(&text);
    *found_out = false;
    snprintf(path, sizeof path, "%s/" LS_FINGERPRINT_FILE, folder);
    if (!ls_file_exists(path))
        return LS_OK;
    LS_TRY(st, ls_file_read(path, PRINT_BYTES, &text), out);
    LS_TRY(st, ls_fingerprint_parse(out, text.p, text.len, path), out);
    *found_out = true;
out:
    ls_str_release(&text);
    return st;
}

ls_status ls_fingerprint_write(const ls_fingerprint *f, const char *folder)
{
    char path[PATH_MAX];
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    snprintf(path, sizeof path, "%s/" LS_FINGERPRINT_FILE, folder);
    ls_fingerprint_print(f, &text);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, ls_file_write_atomic(path, text.p, text.len), out);
out:
    ls_str_release(&text);
    return st;
}

/* --- plausibility ----------------------------------------------------------------------------- */

ls_status ls_fingerprint_loss(const ls_loaded_model *r, const ls_tokenizer *tok, double *loss_out,
                              int64_t *tokens_out)
{
    static const char text[] =
        "The sun had gone down behind the hills, and the children walked home along the river. "
        "They were tired, but they were happy, because it had been a long and beautiful day. "
        "When they came to the house, their mother opened the door and asked them what they had "
        "seen.";
    ls_tokens ids;
    probe p = {.r = r};
    ls_status st;

    *tokens_out = 0;
    ls_tokens_init(&ids);
    LS_TRY(st, ls_tokenizer_encode(tok, text, sizeof text - 1, LS_ENCODE_TEMPLATE, &ids), out);
    int64_t T = ls_min_i64(ids.count - 1, r->model.shape.T);
    for (int64_t i = 0; i < ids.count; i++)
        if (ids.ids[i] >= r->model.shape.V)
            T = 0; /* not this model's tokenizer; said elsewhere */
    if (T < 8)
        goto out;
    LS_TRY(st, probe_open(&p, r, T), out);
    ls_stream_copy_in(r->stream, p.tokens, ids.ids, T * (int64_t)sizeof *ids.ids);
    ls_stream_copy_in(r->stream, p.targets, ids.ids + 1, T * (int64_t)sizeof *ids.ids);
    ls_pass_loss(p.pass, &(ls_pass_call){.w = r->w,
                                         .tokens = p.tokens,
                                         .targets = p.targets,
                                         .B = 1,
                                         .T = T,
                                         .losses = p.losses,
                                         .leaves = 1});
    st = ls_stream_sync(r->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
    double sum = 0;
    for (int64_t i = 0; i < T; i++)
        sum += (double)p.losses[i];
    *loss_out = sum / (double)T;
    *tokens_out = T;
    probe_close(&p);
out:
    ls_tokens_release(&ids);
    return st;
}
