/* safetensors.c -- reading and writing the header of a safetensors file.
 *
 * Reading goes in two passes. The first walks the JSON (jansson, duplicate keys refused) and turns
 * each row into an entry whose own numbers agree: dtype x shape = end - begin, without overflow.
 * The second sorts the entries by offset and asks that each begins where the one before ended, the
 * first at 0 and the last at the end of the file. Together this excludes overlaps, holes, offsets
 * outside the file and trailing bytes, so no later code has to check an offset again.
 *
 *     8 bytes    "a4 00 00 00 00 00 00 00"     the header has 164 bytes
 *     164 bytes  {"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[3,5],
 *                "data_offsets":[0,60]}, ...}      padded with blanks
 *     60 bytes   a, then the next tensor, up to the end of the file
 *
 * Writing is deterministic: the same tensors give the same bytes, because objects of a checkpoint
 * are named by their content. Elements of 8 bytes come first, then 4, 2, 1; as the header is padded
 * to a multiple of 8, each tensor is aligned for its type in a mapped file. */
#include "checkpoint/safetensors.h"

#include <jansson.h>
#include "base/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little endian");

static const ls_safetensors_dtype dtypes[] = {
    {"F32", 32, LS_F32}, {"BF16", 16, LS_BF16},  {"F16", 16, LS_F16},    {"F64", 64, LS_F64},
    {"I32", 32, LS_I32}, {"I64", 64, LS_I64},    {"U8", 8, LS_U8},       {"BOOL", 8, -1},
    {"I8", 8, LS_I8},    {"U16", 16, -1},        {"I16", 16, -1},        {"U32", 32, -1},
    {"U64", 64, -1},     {"C64", 64, -1},        {"F8_E4M3", 8, -1},     {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},  {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"F4", 4, -1},
    {"F6_E2M3", 6, -1},  {"F6_E3M2", 6, -1},
};

const ls_safetensors_dtype *ls_safetensors_dtype_find(const char *name)
{
    for (size_t i = 0; i < LS_COUNT(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

const char *ls_safetensors_dtype_name(ls_dtype type)
{
    for (size_t i = 0; i < LS_COUNT(dtypes); i++)
        if (dtypes[i].type == (int)type)
            return dtypes[i].name;
    LS_BUG_IF(true, "element type %d has no name in the format", (int)type);
}

bool ls_safetensors_elements(const int64_t *shape, int ndim, int64_t *elements_out)
{
    int64_t n = 1;

    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
            return false;
    *elements_out = n;
    return true;
}

/* --- reading ------------------------------------------------------------------------------------
 */

static ls_status damaged(const char *name, const char *why)
{
    return ls_fail(LS_EDATA, "\"%s\" is not a valid safetensors file: %s", name, why);
}

/* least: bytes that it must have, as far as can be seen. */
static ls_status cut_off(const char *name, int64_t have, int64_t least)
{
    ls_status st = ls_fail(LS_EDATA, "\"%s\" is cut off: it has %lld of at least %lld bytes", name,
                           (long long)have, (long long)least);

    ls_err_hint("Copy or download it again, and compare its size with the original.");
    return st;
}

ls_status ls_safetensors_head_bytes(const void *first8, int64_t file_bytes, const char *name,
                                    int64_t *bytes_out)
{
    uint64_t n;

    if (file_bytes < 8)
        return cut_off(name, file_bytes, 8);
    memcpy(&n, first8, 8);
    if (memcmp(first8, "version ", 8) == 0) {
        ls_fail(LS_EDATA, "\"%s\" is a pointer of Git LFS, not the file itself", name);
        ls_err_hint("Fetch it: `git lfs pull` in the folder that was cloned.");
        return LS_EDATA;
    }
    if (n > LS_SAFETENSORS_HEADER_LIMIT)
        return damaged(name, "its header is longer than 100,000,000 bytes");
    if ((int64_t)n > file_bytes - 8)
        return cut_off(name, file_bytes, 8 + (int64_t)n);
    *bytes_out = 8 + (int64_t)n;
    return LS_OK;
}

/* The shape of an entry: counts only, and not more dimensions than LS_SAFETENSORS_RANK. */
static ls_status read_shape(ls_safetensors_entry *e, const json_t *shape, const char *file_name)
{
    if (!json_is_array(shape))
        return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has no shape", e->name, file_name);
    if (json_array_size(shape) > LS_SAFETENSORS_RANK)
        return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has more than %d dimensions", e->name,
                       file_name, LS_SAFETENSORS_RANK);
    e->ndim = (int)json_array_size(shape);
    for (int i = 0; i < e->ndim; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has a dimension that is not a count",
                           e->name, file_name);
        e->shape[i] = json_integer_value(d);
    }
    return LS_OK;
}

/* One row of the header: its dtype, shape and offsets must agree with each other. */
static ls_status read_entry(ls_safetensors_entry *e, const json_t *row, const char *file_name)
{
    ls_status st = LS_OK;
    const char *dtype = json_string_value(json_object_get(row, "dtype"));
    const json_t *offsets = json_object_get(row, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    int64_t bits;

    if (!dtype)
        return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has no dtype", e->name, file_name);
    e->dtype = ls_safetensors_dtype_find(dtype);
    if (!e->dtype)
        return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has the unknown dtype \"%.40s\"", e->name,
                       file_name, dtype);
    LS_TRY(st, read_shape(e, json_object_get(row, "shape"), file_name), out);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has data_offsets that are not a range",
                       e->name, file_name);
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (!ls_safetensors_elements(e->shape, e->ndim, &bits) ||
        __builtin_mul_overflow(bits, (int64_t)e->dtype->bits, &bits))
        return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" has a shape that is too large", e->name,
                       file_name);
    if (bits % 8 != 0 || bits / 8 != e->end - e->begin)
        return ls_fail(LS_EDATA,
                       "tensor \"%s\" in \"%s\" has %lld bytes, but its shape and dtype ask for "
                       "%lld bits",
                       e->name, file_name, (long long)(e->end - e->begin), (long long)bits);
out:
    return st;
}

/* The optional map of strings, which is for other programs. Anything but strings is damage. */
static ls_status check_metadata(const json_t *map, const char *name)
{
    const char *key;
    json_t *value;

    if (!json_is_object(map))
        return damaged(name, "__metadata__ is not an object");
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        if (!json_is_string(value))
            return damaged(name, "__metadata__ holds something that is not a string");
    }
    return LS_OK;
}

/* All rows of the header, in any order; duplicate names were refused by the JSON parser. */
static ls_status read_rows(ls_safetensors *file, json_t *root, const char *name)
{
    ls_status st = LS_OK;
    const char *key;
    json_t *row;

    file->entries = ls_arena_alloc(&file->arena, json_object_size(root) * sizeof *file->entries);
    if (!file->entries)
        return LS_ENOMEM;
    json_object_foreach(root, key, row)
    {
        if (strcmp(key, "__metadata__") == 0) {
            LS_TRY(st, check_metadata(row, name), out);
            continue;
        }
        ls_safetensors_entry *e = &file->entries[file->count];
        e->name = ls_arena_strdup(&file->arena, key);
        if (!e->name)
            return LS_ENOMEM;
        LS_TRY(st, read_entry(e, row, name), out);
        file->count++;
    }
out:
    return st;
}

static int by_offset(const void *a, const void *b)
{
    const ls_safetensors_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    const ls_safetensors_entry *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* Where the last tensor ends, behind the header. */
static int64_t furthest(const ls_safetensors *file)
{
    int64_t end = 0;

    for (int i = 0; i < file->count; i++)
        end = ls_max_i64(end, file->entries[i].end);
    return end;
}

/* The tensors must fill the space after the header exactly, in some order. With 100 bytes of them:
 *
 *     a [0, 60)   b [60, 100)      a file        a [0, 60)   b [64, 100)   a hole
 *     a [0, 60)   b [50, 100)      an overlap    a [0, 60)                 40 bytes behind the last */
static ls_status check_tiling(ls_safetensors *file, int64_t file_bytes, const char *name)
{
    int64_t at = 0, room = file_bytes - file->data_begin;

    if (furthest(file) > room) {
        ls_fail(LS_EDATA, "\"%s\" is cut off: it has %lld of %lld bytes", name,
                (long long)file_bytes, (long long)(file->data_begin + furthest(file)));
        ls_err_hint("Copy or download it again, and compare its size with the original.");
        return LS_EDATA;
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, by_offset);
    for (int i = 0; i < file->count; i++) {
        ls_safetensors_entry *e = &file->entries[i];
        if (e->begin != at)
            return ls_fail(LS_EDATA, "tensor \"%s\" in \"%s\" begins at byte %lld, %s", e->name,
                           name, (long long)e->begin,
                           e->begin < at ? "inside another tensor" : "after a hole");
        at = e->end;
        e->begin += file->data_begin;
        e->end += file->data_begin;
    }
    if (at != room)
        return ls_fail(LS_EDATA, "\"%s\" has %lld bytes behind its last tensor", name,
                       (long long)(room - at));
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, by_name);
    return LS_OK;
}

/* Only the header need be in memory, so a reader of one tensor of a file of 5 GB reads some KiB first. */
ls_status ls_safetensors_parse_header(ls_safetensors *file, const void *bytes, size_t have,
                                      int64_t file_bytes, const char *name)
{
    ls_status st = LS_OK;
    json_error_t error;
    json_t *root = NULL;
    const char *text = (const char *)bytes + 8;

    *file = (ls_safetensors){.count = 0};
    ls_arena_init(&file->arena);
    if (have < 8)
        return cut_off(name, file_bytes, 8);
    LS_TRY(st, ls_safetensors_head_bytes(bytes, file_bytes, name, &file->data_begin), out);
    LS_BUG_IF((int64_t)have < file->data_begin, "the header is not in memory");
    if (file->data_begin == 8 || text[0] != '{') {
        st = damaged(name, "its header does not begin with \"{\"");
        goto out;
    }
    root = json_loadb(text, (size_t)file->data_begin - 8, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        /* jansson leaves the text empty when it found no memory */
        st = error.text[0] ? ls_fail(LS_EDATA,
                                     "\"%s\" is not a valid safetensors file: its header is not "
                                     "valid JSON: %.160s",
                                     name, error.text)
                           : ls_fail(LS_ENOMEM, "cannot read the header of \"%s\"", name);
        goto out;
    }
    LS_TRY(st, read_rows(file, root, name), out);
    LS_TRY(st, check_tiling(file, file_bytes, name), out);
out:
    json_decref(root);
    if (st != LS_OK)
        ls_safetensors_close(file);
    return st;
}

ls_status ls_safetensors_parse(ls_safetensors *file, const void *bytes, size_t len,
                               const char *name)
{
    ls_status st = ls_safetensors_parse_header(file, bytes, len, (int64_t)len, name);

    if (st == LS_OK)
        file->bytes = bytes;
    return st;
}

ls_status ls_safetensors_open(ls_safetensors *file, const char *path)
{
    ls_status st = LS_OK;
    ls_file_map map;

    *file = (ls_safetensors){.count = 0};
    ls_arena_init(&file->arena);
    LS_TRY(st, ls_file_map_open(&map, path), out);
    st = ls_safetensors_parse(file, map.bytes, map.len, path);
    if (st != LS_OK)
        ls_file_map_close(&map);
    else
        file->map = map;
out:
    return st;
}

void ls_safetensors_close(ls_safetensors *file)
{
    ls_arena_release(&file->arena);
    ls_file_map_close(&file->map);
    *file = (ls_safetensors){.count = 0};
    ls_arena_init(&file->arena);
}

const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name)
{
    ls_safetensors_entry key = {.name = name};

    if (!file->count)
        return NULL;
    return bsearch(&key, file->entries, (size_t)file->count, sizeof key, by_name);
}

/* --- writing ------------------------------------------------------------------------------------
 */

static int by_width_then_name(const void *a, const void *b)
{
    const ls_safetensors_item *x = a, *y = b;
    int64_t wx = ls_dtype_bytes(x->type), wy = ls_dtype_bytes(y->type);

    return wx != wy ? (wx > wy ? -1 : 1) : strcmp(x->name, y->name);
}

/* File order, and where each tensor begins and ends; refuses sums that overflow. With c (F32, 3
 * elements), a (BF16, 5) and b (I64, 1): b [0, 8), c [8, 20), a [20, 30), each aligned for its type. */
static ls_status place_items(ls_safetensors_item *items, int count)
{
    int64_t at = 0;

    qsort(items, (size_t)count, sizeof *items, by_width_then_name);
    for (int i = 0; i < count; i++) {
        int64_t bytes;
        LS_BUG_IF(strcmp(items[i].name, "__metadata__") == 0, "a tensor with a reserved name");
        if (!ls_safetensors_elements(items[i].shape, items[i].ndim, &bytes) ||
            __builtin_mul_overflow(bytes, ls_dtype_bytes(items[i].type), &bytes) ||
            __builtin_add_overflow(at, bytes, &items[i].end))
            return ls_fail(LS_EDATA, "tensor \"%s\" is too large to be written", items[i].name);
        items[i].begin = at;
        at = items[i].end;
    }
    return LS_OK;
}

/* One row of the header. */
static void put_item(ls_json *json, const ls_safetensors_item *item)
{
    ls_json_key(json, item->name);
    ls_json_open(json, '{');
    ls_json_put_str(json, "dtype", ls_safetensors_dtype_name(item->type));
    ls_json_key(json, "shape");
    ls_json_open(json, '[');
    for (int i = 0; i < item->ndim; i++)
        ls_json_int(json, item->shape[i]);
    ls_json_close(json);
    ls_json_key(json, "data_offsets");
    ls_json_open(json, '[');
    ls_json_int(json, item->begin);
    ls_json_int(json, item->end);
    ls_json_close(json);
    ls_json_close(json);
}

ls_status ls_safetensors_layout(ls_safetensors_item *items, int count, ls_str *head_out)
{
    ls_status st = LS_OK;
    ls_json json;
    size_t start = head_out->len;
    uint64_t n = 0;

    LS_TRY(st, place_items(items, count), out);
    ls_str_append_bytes(head_out, &n, 8);
    ls_json_begin(&json, head_out);
    ls_json_open(&json, '{');
    ls_json_key(&json, "__metadata__");
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "format", "pt");
    ls_json_close(&json);
    for (int i = 0; i < count; i++)
        put_item(&json, &items[i]);
    ls_json_close(&json);
    while ((head_out->len - start) % 8 != 0 && ls_str_status(head_out) == LS_OK)
        ls_str_append_char(head_out, ' ');
    LS_TRY(st, ls_str_status(head_out), out);
    n = head_out->len - start - 8;
    if (n > LS_SAFETENSORS_HEADER_LIMIT) {
        st = ls_fail(LS_EDATA, "%d tensors are too many for one safetensors file", count);
        goto out;
    }
    memcpy(head_out->p + start, &n, 8);
    for (int i = 0; i < count; i++) {
        items[i].begin += (int64_t)n + 8;
        items[i].end += (int64_t)n + 8;
    }
out:
    return st;
}
