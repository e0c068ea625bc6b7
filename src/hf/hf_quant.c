/* hf_quant.c -- rounding matrices to 8 or 4 bits, and reading them.
 *
 * 8 bits: the scale is the largest amount of a group / 127. 4 bits: the number with the largest amount
 * becomes -8, so that all 16 values are used. The scale is rounded to F16 first and numbers are divided
 * by what was stored. An example with a group of four and 4 bits:
 *
 *   numbers  1.0  -2.0  0.5  0      scale -2 / -8 = 0.25
 *   q        4    -8    2    0      stored as 12 | 0 << 4, 10 | 8 << 4 */
#include "hf/hf_quant.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "hf/hf_convert.h"

static const ls_safetensors_dtype int8_row = {"INT8", 8, -1}, int4_row = {"INT4", 4, -1};

/* --- reading ---------------------------------------------------------------------------------- */

/* The name in front of an ending, "" when it has another. */
static bool without(const char *name, const char *ending, char out[LS_PARAM_NAME])
{
    size_t n = strlen(name), m = strlen(ending);

    if (n <= m || n - m >= LS_PARAM_NAME || strcmp(name + n - m, ending) != 0)
        return false;
    snprintf(out, LS_PARAM_NAME, "%.*s", (int)(n - m), name);
    return true;
}

/* The tensor whose scales are e, of the same file. */
static ls_status join_one(const ls_hf_folder *f, int file, const ls_safetensors_entry *e,
                          struct ls_hf_quant_tensor *to)
{
    char packed[LS_PARAM_NAME + 16];
    const ls_safetensors_entry *q = ls_safetensors_find(&f->files[file], to->name);
    bool four = !q;

    snprintf(packed, sizeof packed, "%s_packed", to->name);
    if (four)
        q = ls_safetensors_find(&f->files[file], packed);
    int64_t cols = q && q->ndim == 2 ? q->shape[1] * (four ? 2 : 1) : 0;
    if (!q || cols == 0 || strcmp(q->dtype->name, four ? "U8" : "I8") != 0 || e->ndim != 2 ||
        strcmp(e->dtype->name, "F16") != 0 || e->shape[0] != q->shape[0] || e->shape[1] < 1 ||
        cols % e->shape[1] != 0 || (four && cols / e->shape[1] % 2 != 0))
        return ls_fail(LS_EDATA, "\"%s\": the integers and scales of \"%s\" do not fit together",
                       f->path, to->name);
    to->entry = *q;
    to->entry.name = to->name;
    to->entry.dtype = four ? &int4_row : &int8_row;
    to->entry.shape[1] = cols;
    to->group = cols / e->shape[1];
    to->scales = e->begin;
    return LS_OK;
}

static bool is_joined(const ls_hf_folder *f, int n, const char *name)
{
    char whole[LS_PARAM_NAME];

    if (!without(name, "_packed", whole))
        snprintf(whole, sizeof whole, "%.*s", LS_PARAM_NAME - 1, name);
    for (int i = 0; i < n; i++)
        if (strcmp(f->quants[i].name, whole) == 0)
            return true;
    return false;
}

ls_status ls_hf_quant_join(ls_hf_folder *f)
{
    char name[LS_PARAM_NAME];
    int n = 0, kept = 0, made = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < f->n_tensors; i++)
        n += without(f->tensors[i].entry->name, "_scale", name);
    if (n == 0)
        return LS_OK;
    f->quants = ls_mem_array((size_t)n, sizeof *f->quants);
    int *files = ls_mem_array((size_t)n, sizeof *files);
    if (!f->quants || !files)
        st = LS_ENOMEM;
    for (int i = 0; i < f->n_tensors && st == LS_OK; i++) {
        const ls_hf_folder_tensor *t = &f->tensors[i];
        if (!without(t->entry->name, "_scale", f->quants[made].name))
            continue;
        st = join_one(f, t->file, t->entry, &f->quants[made]);
        files[made] = t->file;
        made += st == LS_OK;
        if (made == n)
            break;
    }
    for (int i = 0; i < f->n_tensors && st == LS_OK; i++)
        if (!without(f->tensors[i].entry->name, "_scale", name) &&
            !is_joined(f, made, f->tensors[i].entry->name))
            f->tensors[kept++] = f->tensors[i];
    for (int i = 0; i < made && st == LS_OK; i++)
        f->tensors[kept++] = (ls_hf_folder_tensor){
            .entry = &f->quants[i].entry, .file = files[i], .quant = &f->quants[i]};
    if (st == LS_OK)
        f->n_tensors = kept;
    ls_mem_free(files);
    return st;
}

void ls_hf_quant_widen(const struct ls_hf_quant_tensor *t, const void *bytes, int64_t first,
                       int64_t count, float *values_out)
{
    const unsigned char *q = (const unsigned char *)bytes + t->entry.begin;
    const unsigned char *scales = (const unsigned char *)bytes + t->scales;
    const ls_safetensors_dtype *f16 = ls_safetensors_dtype_find("F16");

    for (int64_t i = first, end = first + count; i < end;) {
        int64_t stop = ls_min_i64(end, (i / t->group + 1) * t->group); /* groups fill rows */
        float scale;
        ls_hf_convert_widen(f16, scales + i / t->group * 2, 1, &scale);
        for (; i < stop; i++) {
            int x = t->entry.dtype == &int8_row ? (signed char)q[i]
                    : i % 2                     ? (q[i / 2] >> 4) - 8
                                                : (q[i / 2] & 15) - 8;
            values_out[i - first] = scale * (float)x;
        }
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Something of the file: integers or scales of a parameter, or one that stays as it is. */
typedef struct piece {
    const ls_param *param;
    enum { WHOLE, INTEGERS, SCALES } what;
    char name[LS_PARAM_NAME + 16];
} piece;

static bool is_matrix(const ls_hf_quant_args *a, const ls_param *p)
{
    const ls_model *m = &a->model->model;

    return p->ndim == 2 && !p->lora && p->unit >= 1 && p->unit <= m->shape.L &&
           m->blocks[p->unit - 1].router.w != p->first;
}

static int64_t divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : divisor(b, a % b);
}

/* The scale of a group, as it is stored. */
static float scale_of(const float *x, int64_t n, int bits, uint16_t *stored)
{
    int64_t at = 0;
    float scale;

    for (int64_t i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(x[at]))
            at = i;
    scale = bits == 8 ? fabsf(x[at]) / 127.0f : x[at] / -8.0f;
    ls_hf_convert_narrow(LS_F16, &scale, 1, stored);
    ls_hf_convert_widen(ls_safetensors_dtype_find("F16"), stored, 1, &scale);
    return scale;
}

static int rounded(float x, float scale, int least, int most)
{
    float q = scale != 0 ? roundf(x / scale) : 0;

    return q < (float)least ? least : q > (float)most ? most : (int)q;
}

/* Integers or scales of one group to bytes; returns how many, 0 when the scale is infinite. */
static int64_t put_group(const ls_hf_quant_args *a, bool scales, const float *x,
                         unsigned char *bytes)
{
    uint16_t stored;
    float scale = scale_of(x, a->group, a->bits, &stored);

    if (!isfinite(scale))
        return 0;
    if (scales) {
        memcpy(bytes, &stored, 2);
        return 2;
    }
    if (a->bits == 8) {
        for (int64_t i = 0; i < a->group; i++)
            bytes[i] = (unsigned char)(signed char)rounded(x[i], scale, -127, 127);
        return a->group;
    }
    for (int64_t i = 0; i < a->group; i += 2)
        bytes[i / 2] = (unsigned char)((rounded(x[i], scale, -8, 7) + 8) |
                                       (rounded(x[i + 1], scale, -8, 7) + 8) << 4);
    return a->group / 2;
}

static ls_status put_groups(const ls_hf_quant_args *a, ls_safetensors_writer *w, const piece *p)
{
    const float *x = a->model->w + p->param->first;
    int64_t C = p->param->shape[1];
    unsigned char *row = ls_mem_alloc((size_t)C * 2);
    ls_status st = row ? LS_OK : LS_ENOMEM;

    for (int64_t n = 0; n < p->param->shape[0] && st == LS_OK; n++, x += C) {
        int64_t len = 0;
        for (int64_t k = 0; k < C && st == LS_OK; k += a->group) {
            int64_t more = put_group(a, p->what == SCALES, x + k, row + len);
            if (more == 0)
                st = ls_fail(LS_EDATA, "a weight of \"%s\" is too large to be quantized",
                             p->param->name);
            len += more;
        }
        if (st == LS_OK)
            st = ls_safetensors_put(w, row, len);
    }
    ls_mem_free(row);
    return st;
}

static ls_status put_whole(const ls_hf_quant_args *a, ls_safetensors_writer *w, const ls_param *p)
{
    enum { PIECE = 65536 };
    const float *x = a->model->w + p->first;
    ls_status st = LS_OK;

    if (a->type == LS_F32)
        return ls_safetensors_put(w, x, p->count * (int64_t)sizeof *x);
    uint16_t *narrow = ls_mem_array(PIECE, sizeof *narrow);
    if (!narrow)
        return LS_ENOMEM;
    for (int64_t k = 0; k < p->count && st == LS_OK; k += PIECE) {
        int64_t n = ls_min_i64(PIECE, p->count - k);
        ls_hf_convert_narrow(a->type, x + k, n, narrow);
        for (int64_t i = 0; i < n && a->type == LS_F16 && st == LS_OK; i++)
            if ((narrow[i] & 0x7fff) == 0x7c00)
                st = ls_fail(LS_EDATA, "a weight of \"%s\" is too large for f16", p->name);
        if (st == LS_OK)
            st = ls_safetensors_put(w, narrow, n * 2);
    }
    ls_mem_free(narrow);
    return st;
}

static ls_safetensors_item item_of(const ls_hf_quant_args *a, const piece *p)
{
    ls_safetensors_item item = {.name = p->name,
                                .type = p->what == WHOLE    ? a->type
                                        : p->what == SCALES ? LS_F16
                                        : a->bits == 8      ? LS_I8
                                                            : LS_U8,
                                .ndim = p->param->ndim,
                                .shape = {p->param->shape[0], p->param->shape[1]},
                                .bytes = p};

    if (p->what == SCALES)
        item.shape[1] /= a->group;
    if (p->what == INTEGERS && a->bits == 4)
        item.shape[1] /= 2;
    return item;
}

/* What goes into the file; returns how many pieces, *matrices_out of them integers. */
static int list_pieces(const ls_hf_quant_args *a, piece *pieces, ls_hf_quant_report *r)
{
    const ls_model *m = &a->model->model;
    int n = 0;

    *r = (ls_hf_quant_report){.fits = a->group};
    for (int i = 0; i < m->n_params; i++) {
        const ls_param *p = &m->params[i];
        bool matrix = is_matrix(a, p);
        if (p->lora)
            continue;
        if (matrix) {
            r->fits = divisor(r->fits, p->shape[1]);
            matrix = p->shape[1] % a->group == 0;
            ++*(matrix ? &r->matrices : &r->left);
        }
        pieces[n].param = p;
        pieces[n].what = matrix ? INTEGERS : WHOLE;
        snprintf(pieces[n].name, sizeof pieces[n].name, "%s%s", p->name,
                 matrix && a->bits == 4 ? "_packed" : "");
        n++;
        if (!matrix)
            continue;
        pieces[n].param = p;
        pieces[n].what = SCALES;
        snprintf(pieces[n].name, sizeof pieces[n].name, "%s_scale", p->name);
        n++;
    }
    r->fits -= r->fits % 2 || r->fits < LS_HF_QUANT_GROUP ? r->fits : 0;
    return n;
}

/* Say in config.json how the weights are stored: one key more before the last brace. */
static ls_status write_section(const ls_hf_quant_args *a)
{
    enum { CONFIG_BYTES = 1 << 20 };
    char path[PATH_MAX];
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    snprintf(path, sizeof path, "%s/config.json", a->folder);
    LS_TRY(st, ls_file_read(path, CONFIG_BYTES, &text), out);
    while (text.len && text.p[text.len - 1] != '}')
        text.len--;
    LS_BUG_IF(text.len < 2, "config.json has no object");
    text.len--;
    while (text.len && (text.p[text.len - 1] == '\n' || text.p[text.len - 1] == ' '))
        text.len--;
    ls_str_printf(&text,
                  ",\n  \"quantization_config\": {\n    \"bits\": %d,\n    \"group_size\": %lld,\n"
                  "    \"quant_method\": \"lineshaft\"\n  }\n}\n",
                  a->bits, (long long)a->group);
    LS_TRY(st, ls_str_status(&text), out);
    st = ls_file_write_atomic(path, text.p, text.len);
out:
    ls_str_release(&text);
    return st;
}

ls_status ls_hf_quant_write(const ls_hf_quant_args *a, ls_hf_quant_report *report_out)
{
    char path[PATH_MAX];
    size_t most = 2 * (size_t)a->model->model.n_params;
    piece *pieces = ls_mem_array(most, sizeof *pieces);
    ls_safetensors_item *items = ls_mem_array(most, sizeof *items);
    ls_safetensors_writer w = {.fd = -1};
    ls_hf_quant_report r;
    ls_status st = LS_ENOMEM;

    if (!pieces || !items)
        goto out;
    int n = list_pieces(a, pieces, &r);
    if (r.matrices == 0) {
        st = ls_fail(LS_EUSAGE,
                     "no matrix of the model has rows that can be divided into groups of "
                     "%lld",
                     (long long)a->group);
        ls_err_hint("Choose a smaller --group, such as 32.");
        goto out;
    }
    for (int i = 0; i < n; i++)
        items[i] = item_of(a, &pieces[i]);
    snprintf(path, sizeof path, "%s/model.safetensors", a->folder);
    LS_TRY(st, ls_safetensors_create(&w, path, items, n), out);
    for (int i = 0; i < n; i++) {
        const piece *p = items[i].bytes;
        LS_TRY(st, p->what == WHOLE ? put_whole(a, &w, p->param) : put_groups(a, &w, p), out);
    }
    r.bytes = w.end;
    LS_TRY(st, ls_safetensors_finish(&w), out);
    LS_TRY(st, write_section(a), out);
    *report_out = r;
out:
    ls_safetensors_abandon(&w);
    ls_mem_free(pieces);
    ls_mem_free(items);
    return st;
}
