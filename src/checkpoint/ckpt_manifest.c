/* ckpt_manifest.c -- the text of a manifest, written and read.
 *
 * A manifest is JSON with one row per line, so that people can read it and diff can show what
 * changed (docs/reference/checkpoint.md has every field). One tensor in one object:
 *
 *     "tensors": [
 *       {"name":"a","kind":"param","dtype":"F32","shape":[3,5],
 *        "boxes":[{"object":"678b...","key":"a","offset":[0,0],"shape":[3,5]}]}
 *     ],
 *     "objects": {
 *       "678b...": {"bytes": 240, "crc32c": "a4c170b9"}
 *     },
 *     "saved": {"time": 1794720459, "total_bytes": 240, "new_bytes": 240},
 *     "generation": 1,
 *     "previous": null,
 *     "hash": "0f5888cfaffa6698277ff38170887710"
 *
 * It has two parts:
 *
 *   body   what is saved: header fields, tensors with their boxes, objects with their checksums
 *   tail   when it was saved, how much of it was new, the hash of the manifest before it, its
 *          signature where there is a key (ckpt_sign.c), and last its own hash: of every byte
 *          before the line of the hash
 *
 * Two saves of the same state have the same body; that is how a resumed run notices that a
 * checkpoint already exists. The own hash comes last, and the end of the text must have exactly the
 * shape we write; so no byte of the file can change unnoticed.
 *
 * The parser does not take the right hash as proof of sane text (a fuzzer or a person may compute
 * it): it checks every number. */
#include "checkpoint/ckpt_impl.h"

#include <jansson.h>
#include <math.h>
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

#define FORMAT "lineshaft-checkpoint"
enum { VERSION = 1 };
#define TAIL_START "\n  \"saved\": "

int ls_ckpt_hash_order(const void *a, const void *b)
{
    const ls_hash *x = a, *y = b;

    if (x->hi != y->hi)
        return x->hi < y->hi ? -1 : 1;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

int ls_ckpt_name_order(const char *name, const char *kind, const char *name2, const char *kind2)
{
    int order = strcmp(name, name2);

    return order ? order : strcmp(kind, kind2);
}

int ls_ckpt_row_order(const void *a, const void *b)
{
    const ls_ckpt_row *x = a, *y = b;

    return ls_ckpt_name_order(x->name, x->kind, y->name, y->kind);
}

ls_status ls_ckpt_grow(void **array, int n, int *cap, size_t size)
{
    if (n < *cap)
        return LS_OK;
    int more = *cap ? *cap * 2 : 32;
    void *grown = ls_mem_resize(*array, (size_t)more * size);
    if (!grown)
        return LS_ENOMEM;
    *array = grown;
    *cap = more;
    return LS_OK;
}

/* --- writing ------------------------------------------------------------------------------------
 */

static void put_field_text(ls_str *out, const char *key, const char *value)
{
    ls_json json;

    ls_str_printf(out, "\n  \"%s\": ", key);
    ls_json_begin(&json, out);
    ls_json_str(&json, value ? value : "");
    ls_str_append_char(out, ',');
}

static void put_field_int(ls_str *out, const char *key, int64_t value)
{
    ls_str_printf(out, "\n  \"%s\": %lld,", key, (long long)value);
}

static void put_field_num(ls_str *out, const char *key, double value)
{
    ls_json json;

    ls_str_printf(out, "\n  \"%s\": ", key);
    ls_json_begin(&json, out);
    ls_json_num(&json, value);
    ls_str_append_char(out, ',');
}

static void put_dims(ls_json *json, const char *key, const int64_t *dims, int ndim)
{
    ls_json_key(json, key);
    ls_json_open(json, '[');
    for (int i = 0; i < ndim; i++)
        ls_json_int(json, dims[i]);
    ls_json_close(json);
}

/* One tensor as one line of JSON: its description and where each of its boxes lies. One line, so that
 * diff and grep show a tensor as a whole. */
static void put_row(const ls_ckpt *ckpt, const ls_ckpt_row *row, ls_str *out)
{
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "name", row->name);
    ls_json_put_str(&json, "kind", row->kind);
    ls_json_put_str(&json, "dtype", ls_safetensors_dtype_name(row->type));
    put_dims(&json, "shape", row->shape, row->ndim);
    ls_json_key(&json, "boxes");
    ls_json_open(&json, '[');
    for (int i = 0; i < row->n_boxes; i++) {
        const ls_ckpt_box *box = &row->boxes[i];
        char hex[LS_HASH_HEX];
        ls_hash_hex(ckpt->objects[box->object].hash, hex);
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "object", hex);
        ls_json_put_str(&json, "key", box->key);
        put_dims(&json, "offset", box->offset, row->ndim);
        put_dims(&json, "shape", box->shape, row->ndim);
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_close(&json);
}

void ls_ckpt_manifest_tables(const ls_ckpt *ckpt, ls_str *out)
{
    char hex[LS_HASH_HEX];

    ls_str_append(out, "\n  \"tensors\": [");
    for (int i = 0; i < ckpt->n_rows; i++) {
        ls_str_append(out, i ? ",\n    " : "\n    ");
        put_row(ckpt, &ckpt->rows[i], out);
    }
    ls_str_append(out, "\n  ],\n  \"objects\": {");
    for (int i = 0; i < ckpt->n_objects; i++) {
        const ls_ckpt_object *o = &ckpt->objects[i];
        ls_hash_hex(o->hash, hex);
        ls_str_printf(out, "%s    \"%s\": {\"bytes\": %lld, \"crc32c\": \"", i ? ",\n" : "\n", hex,
                      (long long)o->bytes);
        for (int64_t b = 0; b < ls_ckpt_blocks(o->bytes); b++)
            ls_str_printf(out, "%08x", o->crcs[b]);
        if (o->has_sha) {
            char sha[LS_DIGEST_HEX];
            ls_digest_hex(o->sha, sha);
            ls_str_printf(out, "\", \"sha256\": \"%s", sha);
        }
        ls_str_append(out, "\"}");
    }
    ls_str_append(out, "\n  },");
}

void ls_ckpt_manifest_body(const ls_ckpt *ckpt, ls_str *out)
{
    const ls_ckpt_info *info = &ckpt->info;

    ls_str_append(out, "{");
    put_field_text(out, "format", FORMAT);
    put_field_int(out, "version", VERSION);
    put_field_text(out, "run", info->run_name);
    put_field_int(out, "step", info->step);
    put_field_int(out, "cursor", info->cursor);
    put_field_int(out, "tokens", info->tokens);
    /* as text: a seed has 64 bits, a JSON integer of most readers 53 or 63 */
    ls_str_printf(out, "\n  \"seed\": \"%llu\",", (unsigned long long)info->seed);
    put_field_text(out, "mesh", info->mesh);
    put_field_num(out, "loss", info->loss);
    put_field_num(out, "val_loss", info->val_loss);
    put_field_text(out, "weights_hash", info->weights_hash);
    put_field_text(out, "config", info->config);
    put_field_text(out, "extra", info->extra);
    if (info->lineage && *info->lineage)
        put_field_text(out, "lineage", info->lineage);
    if (info->best)
        ls_str_append(out, "\n  \"best\": true,");
    ls_ckpt_manifest_tables(ckpt, out);
}

ls_status ls_ckpt_manifest_tail(const ls_ckpt *ckpt, const ls_ckpt_key *key, ls_str *out)
{
    char hex[LS_HASH_HEX];
    ls_status st = LS_OK;

    ls_str_printf(out, TAIL_START "{\"time\": %lld, \"total_bytes\": %lld, \"new_bytes\": %lld},",
                  (long long)ckpt->info.time_s, (long long)ckpt->info.total_bytes,
                  (long long)ckpt->info.new_bytes);
    put_field_int(out, "generation", ckpt->info.generation);
    if (ckpt->has_previous) {
        ls_hash_hex(ckpt->previous, hex);
        ls_str_printf(out, "\n  \"previous\": \"%s\",\n", hex);
    } else {
        ls_str_append(out, "\n  \"previous\": null,\n");
    }
    if (key)
        LS_TRY(st, ls_ckpt_sign(key, out), out);
    ls_hash_hex(ls_hash_bytes(out->p, out->len), hex);
    ls_str_printf(out, LS_CKPT_HASH_START "%s" LS_CKPT_HASH_END, hex);
    st = ls_str_status(out);
out:
    return st;
}

bool ls_ckpt_manifest_same(const char *text, size_t len, const ls_str *body)
{
    size_t start = strlen(TAIL_START);

    return len > body->len + start && memcmp(text, body->p, body->len) == 0 &&
           memcmp(text + body->len, TAIL_START, start) == 0;
}

/* --- tables -------------------------------------------------------------------------------------
 */

/* Two tensors of the same bytes have the same object: of 3 entries 5a, 77, 5a two are left. */
int ls_ckpt_objects_sort(ls_ckpt_object *objects, int n)
{
    int kept = 0;

    if (n)
        qsort(objects, (size_t)n, sizeof *objects, ls_ckpt_hash_order);
    for (int i = 0; i < n; i++)
        if (kept == 0 || ls_ckpt_hash_order(&objects[kept - 1], &objects[i]) != 0)
            objects[kept++] = objects[i];
    return kept;
}

int ls_ckpt_object_index(const ls_ckpt *ckpt, ls_hash hash)
{
    const ls_ckpt_object key = {.hash = hash}, *o = NULL;

    if (ckpt->n_objects)
        o = bsearch(&key, ckpt->objects, (size_t)ckpt->n_objects, sizeof key, ls_ckpt_hash_order);
    return o ? (int)(o - ckpt->objects) : -1;
}

/* --- reading ------------------------------------------------------------------------------------
 */

ls_status ls_ckpt_manifest_check(const char *text, size_t len, ls_hash *hash_out)
{
    size_t start = strlen(LS_CKPT_HASH_START), end = strlen(LS_CKPT_HASH_END);
    size_t line = LS_CKPT_HASH_LINE;
    char hex[LS_HASH_HEX] = "";
    ls_hash want, got;

    if (len < line || memcmp(text + len - end, LS_CKPT_HASH_END, end) != 0 ||
        memcmp(text + len - line, LS_CKPT_HASH_START, start) != 0)
        return ls_fail(LS_EDATA, "it does not end in its hash (cut short or not a manifest)");
    memcpy(hex, text + len - line + start, LS_HASH_HEX - 1);
    if (ls_hash_parse(hex, &want) != LS_OK)
        return ls_fail(LS_EDATA, "its hash has digits that are not hexadecimal");
    got = ls_hash_bytes(text, len - line);
    if (!ls_hash_equal(want, got))
        return ls_fail(LS_EDATA, "its hash does not match its text");
    if (hash_out)
        *hash_out = want;
    return LS_OK;
}

static ls_status get_int(const json_t *in, const char *key, int64_t least, int64_t *value_out)
{
    const json_t *v = json_object_get(in, key);

    if (!json_is_integer(v) || json_integer_value(v) < least)
        return ls_fail(LS_EDATA, "the field \"%s\" is missing or out of range", key);
    *value_out = json_integer_value(v);
    return LS_OK;
}

static ls_status get_text(ls_ckpt *ckpt, const json_t *in, const char *key, const char **text_out)
{
    const char *v = json_string_value(json_object_get(in, key));

    if (!v)
        return ls_fail(LS_EDATA, "the field \"%s\" is missing or not a text", key);
    *text_out = ls_arena_strdup(&ckpt->arena, v);
    return *text_out ? LS_OK : LS_ENOMEM;
}

static ls_status get_num(const json_t *in, const char *key, double *value_out)
{
    const json_t *v = json_object_get(in, key);

    if (!json_is_number(v) && !json_is_null(v))
        return ls_fail(LS_EDATA, "the field \"%s\" is missing or not a number", key);
    *value_out = json_is_null(v) ? (double)NAN : json_number_value(v);
    return LS_OK;
}

/* Read a shape or an offset. *ndim is the number of dimensions it must have; -1: any, and it is
 * set. */
static ls_status get_dims(const json_t *in, const char *key, int *ndim, int64_t *dims_out)
{
    const json_t *v = json_object_get(in, key);

    if (!json_is_array(v) || json_array_size(v) > LS_CKPT_RANK ||
        (*ndim >= 0 && json_array_size(v) != (size_t)*ndim))
        return ls_fail(LS_EDATA, "a tensor has a \"%s\" of the wrong length", key);
    *ndim = (int)json_array_size(v);
    for (int i = 0; i < *ndim; i++) {
        const json_t *d = json_array_get(v, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return ls_fail(LS_EDATA, "a tensor has a \"%s\" that is not made of counts", key);
        dims_out[i] = json_integer_value(d);
    }
    return LS_OK;
}

static ls_status get_hash(const json_t *value, const char *what, ls_hash *hash_out)
{
    const char *hex = json_string_value(value);

    if (!hex || ls_hash_parse(hex, hash_out) != LS_OK)
        return ls_fail(LS_EDATA, "%s is not a hash", what);
    return LS_OK;
}

/* A seed is written as text: many JSON readers keep only 53 bits of a number. */
static ls_status read_seed(const json_t *root, uint64_t *seed_out)
{
    const char *text = json_string_value(json_object_get(root, "seed"));
    uint64_t seed = 0;

    if (!text || !*text)
        return ls_fail(LS_EDATA, "the field \"seed\" is missing");
    for (; *text; text++)
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(seed, UINT64_C(10), &seed) ||
            __builtin_add_overflow(seed, (uint64_t)(*text - '0'), &seed))
            return ls_fail(LS_EDATA, "the field \"seed\" is not a number of 64 bits");
    *seed_out = seed;
    return LS_OK;
}

/* A version that this program does not know is refused rather than guessed. */
static ls_status read_version(const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *version = json_object_get(root, "version");

    if (!format || strcmp(format, FORMAT) != 0 || !json_is_integer(version))
        return ls_fail(LS_EDATA, "it is not a manifest of lineshaft");
    if (json_integer_value(version) != VERSION)
        return ls_fail(LS_EDATA, "it has format version %lld, this program reads version %d",
                       (long long)json_integer_value(version), VERSION);
    return LS_OK;
}

/* All fields but tensors and objects. A missing one or one of the wrong type is LS_EDATA; nothing
 * but "lineage" and "best" has a default. */
static ls_status read_head(ls_ckpt *ckpt, const json_t *root)
{
    ls_status st = LS_OK;
    ls_ckpt_info *info = &ckpt->info;
    const json_t *saved = json_object_get(root, "saved");
    const json_t *previous = json_object_get(root, "previous");
    const char *weights;

    LS_TRY(st, read_version(root), out);
    LS_TRY(st, get_text(ckpt, root, "run", &info->run_name), out);
    LS_TRY(st, get_int(root, "step", 0, &info->step), out);
    LS_TRY(st, get_int(root, "cursor", INT64_MIN, &info->cursor), out);
    LS_TRY(st, get_int(root, "tokens", INT64_MIN, &info->tokens), out);
    LS_TRY(st, read_seed(root, &info->seed), out);
    LS_TRY(st, get_int(root, "generation", 0, &info->generation), out);
    LS_TRY(st, get_text(ckpt, root, "mesh", &info->mesh), out);
    LS_TRY(st, get_num(root, "loss", &info->loss), out);
    LS_TRY(st, get_num(root, "val_loss", &info->val_loss), out);
    LS_TRY(st, get_text(ckpt, root, "weights_hash", &weights), out);
    if (strlen(weights) >= sizeof info->weights_hash) {
        st = ls_fail(LS_EDATA, "the field \"weights_hash\" is too long");
        goto out;
    }
    snprintf(info->weights_hash, sizeof info->weights_hash, "%s", weights);
    LS_TRY(st, get_text(ckpt, root, "config", &info->config), out);
    LS_TRY(st, get_text(ckpt, root, "extra", &info->extra), out);
    info->lineage = "";
    if (json_object_get(root, "lineage"))
        LS_TRY(st, get_text(ckpt, root, "lineage", &info->lineage), out);
    info->best = json_is_true(json_object_get(root, "best")); /* left out: it is not */
    LS_TRY(st, get_int(saved, "time", INT64_MIN, &info->time_s), out);
    LS_TRY(st, get_int(saved, "total_bytes", 0, &info->total_bytes), out);
    LS_TRY(st, get_int(saved, "new_bytes", 0, &info->new_bytes), out);
    ckpt->has_previous = !json_is_null(previous);
    if (ckpt->has_previous)
        LS_TRY(st, get_hash(previous, "the field \"previous\"", &ckpt->previous), out);
out:
    return st;
}

/* Eight hexadecimal digits. */
static bool read_crc(const char *hex, uint32_t *crc_out)
{
    uint32_t crc = 0;

    for (int i = 0; i < 8; i++) {
        char c = hex[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        crc = crc << 4 | (uint32_t)digit;
    }
    *crc_out = crc;
    return true;
}

static ls_status read_sha(ls_ckpt_object *o, const char *name, const json_t *value)
{
    const char *hex = json_string_value(value);

    if (!value)
        return LS_OK;
    o->has_sha = hex && strlen(hex) == LS_DIGEST_HEX - 1 && ls_digest_parse(hex, o->sha);
    return o->has_sha ? LS_OK : ls_fail(LS_EDATA, "object %s has a SHA-256 that is not one", name);
}

/* One object: its name is a hash, and it must list exactly one checksum for each of its blocks. */
static ls_status read_object(ls_ckpt *ckpt, ls_ckpt_object *o, const char *name, const json_t *row)
{
    ls_status st = LS_OK;
    const char *crcs = json_string_value(json_object_get(row, "crc32c"));

    LS_TRY(st, ls_hash_parse(name, &o->hash), out);
    LS_TRY(st, get_int(row, "bytes", 1, &o->bytes), out);
    LS_TRY(st, read_sha(o, name, json_object_get(row, "sha256")), out);
    int64_t blocks = ls_ckpt_blocks(o->bytes);
    if (!crcs || strlen(crcs) % 8 != 0 || (int64_t)(strlen(crcs) / 8) != blocks)
        return ls_fail(LS_EDATA, "object %s does not have one checksum per block", name);
    o->crcs = ls_arena_alloc(&ckpt->arena, (size_t)blocks * sizeof *o->crcs);
    if (!o->crcs)
        return LS_ENOMEM;
    for (int64_t b = 0; b < blocks; b++)
        if (!read_crc(crcs + 8 * b, &o->crcs[b]))
            return ls_fail(LS_EDATA, "object %s has a checksum that is not hexadecimal", name);
out:
    return st;
}

/* The table of objects, sorted by hash so that boxes find theirs by binary search. */
static ls_status read_objects(ls_ckpt *ckpt, json_t *map)
{
    ls_status st = LS_OK;
    const char *name;
    json_t *row;

    if (!json_is_object(map))
        return ls_fail(LS_EDATA, "the field \"objects\" is missing");
    ckpt->objects = ls_arena_alloc(&ckpt->arena, json_object_size(map) * sizeof *ckpt->objects);
    if (!ckpt->objects)
        return LS_ENOMEM;
    json_object_foreach(map, name, row)
    {
        LS_TRY(st, read_object(ckpt, &ckpt->objects[ckpt->n_objects], name, row), out);
        ckpt->n_objects++;
    }
    qsort(ckpt->objects, (size_t)ckpt->n_objects, sizeof *ckpt->objects, ls_ckpt_hash_order);
out:
    return st;
}

/* One box of a tensor: it must lie inside the tensor, and in an object that the manifest lists. */
static ls_status read_box(ls_ckpt *ckpt, const ls_ckpt_row *row, ls_ckpt_box *box, const json_t *in)
{
    ls_status st = LS_OK;
    ls_hash hash;
    int ndim = row->ndim;

    LS_TRY(st, get_hash(json_object_get(in, "object"), "the object of a box", &hash), out);
    box->object = ls_ckpt_object_index(ckpt, hash);
    if (box->object < 0)
        return ls_fail(LS_EDATA, "tensor \"%s\" lies in an object that is not listed", row->name);
    LS_TRY(st, get_text(ckpt, in, "key", &box->key), out);
    LS_TRY(st, get_dims(in, "offset", &ndim, box->offset), out);
    LS_TRY(st, get_dims(in, "shape", &ndim, box->shape), out);
    for (int i = 0; i < ndim; i++)
        if (box->offset[i] > row->shape[i] || box->shape[i] > row->shape[i] - box->offset[i])
            return ls_fail(LS_EDATA, "tensor \"%s\" has a box that sticks out of it", row->name);
out:
    return st;
}

static int order_boxes(const void *a, const void *b)
{
    const ls_ckpt_box *x = a, *y = b;

    for (int i = 0; i < LS_CKPT_RANK; i++)
        if (x->offset[i] != y->offset[i])
            return x->offset[i] < y->offset[i] ? -1 : 1;
    return 0;
}

static bool boxes_overlap(const ls_ckpt_box *a, const ls_ckpt_box *b, int ndim)
{
    for (int i = 0; i < ndim; i++)
        if (a->offset[i] >= b->offset[i] + b->shape[i] ||
            b->offset[i] >= a->offset[i] + a->shape[i])
            return false;
    return true;
}

/* Every element lies in exactly one box: no two boxes share one, and the volumes add up. Boxes are
 * sorted by their first offset, so each is compared only with those that begin before it ends:
 *
 *     tensor [6, 2]    boxes [0,0]+[4,2]  [4,0]+[2,1]  [4,1]+[2,1]
 *     volumes          8 + 2 + 2 = 12 = 6 x 2: covered; the first ends at row 4, where the others begin */
ls_status ls_ckpt_row_check(ls_ckpt_row *row)
{
    int64_t whole, bytes, sum = 0;

    if (!ls_safetensors_elements(row->shape, row->ndim, &whole) ||
        __builtin_mul_overflow(whole, ls_dtype_bytes(row->type), &bytes))
        return ls_fail(LS_EDATA, "tensor \"%s\" has a shape that is too large", row->name);
    qsort(row->boxes, (size_t)row->n_boxes, sizeof *row->boxes, order_boxes);
    for (int i = 0; i < row->n_boxes; i++) {
        const ls_ckpt_box *box = &row->boxes[i];
        int64_t n;
        if (!ls_safetensors_elements(box->shape, row->ndim, &n))
            return ls_fail(LS_EDATA, "tensor \"%s\" has a box that is too large", row->name);
        if (n == 0)
            continue;
        if (__builtin_add_overflow(sum, n, &sum))
            return ls_fail(LS_EDATA, "tensor \"%s\" has boxes that overlap", row->name);
        for (int j = i + 1; j < row->n_boxes; j++) {
            const ls_ckpt_box *next = &row->boxes[j];
            if (row->ndim && next->offset[0] >= box->offset[0] + box->shape[0])
                break;
            if (ls_safetensors_elements(next->shape, row->ndim, &n) && n > 0 &&
                boxes_overlap(box, next, row->ndim))
                return ls_fail(LS_EDATA, "tensor \"%s\" has boxes that overlap", row->name);
        }
    }
    if (sum != whole)
        return ls_fail(LS_EDATA, "tensor \"%s\" is not covered by its boxes", row->name);
    return LS_OK;
}

/* One tensor. whole: its boxes must cover it exactly once; in the report of one of several writers
 * they need not. */
static ls_status read_row(ls_ckpt *ckpt, ls_ckpt_row *row, const json_t *in, bool whole)
{
    ls_status st = LS_OK;
    const json_t *boxes = json_object_get(in, "boxes");
    const char *dtype = json_string_value(json_object_get(in, "dtype"));
    const ls_safetensors_dtype *type = dtype ? ls_safetensors_dtype_find(dtype) : NULL;

    LS_TRY(st, get_text(ckpt, in, "name", &row->name), out);
    LS_TRY(st, get_text(ckpt, in, "kind", &row->kind), out);
    if (!type || type->type < 0)
        return ls_fail(LS_EDATA, "tensor \"%s\" has an unknown dtype", row->name);
    row->type = (ls_dtype)type->type;
    row->ndim = -1;
    LS_TRY(st, get_dims(in, "shape", &row->ndim, row->shape), out);
    if (!json_is_array(boxes))
        return ls_fail(LS_EDATA, "tensor \"%s\" has no boxes", row->name);
    row->boxes = ls_arena_alloc(&ckpt->arena, json_array_size(boxes) * sizeof *row->boxes);
    if (!row->boxes)
        return LS_ENOMEM;
    for (size_t i = 0; i < json_array_size(boxes); i++) {
        LS_TRY(st, read_box(ckpt, row, &row->boxes[i], json_array_get(boxes, i)), out);
        row->n_boxes++;
    }
    if (whole)
        LS_TRY(st, ls_ckpt_row_check(row), out);
out:
    return st;
}

/* All tensors, sorted by name and kind; a pair that is listed twice is an error. */
static ls_status read_tensors(ls_ckpt *ckpt, const json_t *list, bool whole)
{
    ls_status st = LS_OK;

    if (!json_is_array(list))
        return ls_fail(LS_EDATA, "the field \"tensors\" is missing");
    ckpt->rows = ls_arena_alloc(&ckpt->arena, json_array_size(list) * sizeof *ckpt->rows);
    if (!ckpt->rows)
        return LS_ENOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        LS_TRY(st, read_row(ckpt, &ckpt->rows[i], json_array_get(list, i), whole), out);
        ckpt->n_rows++;
    }
    qsort(ckpt->rows, (size_t)ckpt->n_rows, sizeof *ckpt->rows, ls_ckpt_row_order);
    for (int i = 1; i < ckpt->n_rows; i++)
        if (ls_ckpt_row_order(&ckpt->rows[i - 1], &ckpt->rows[i]) == 0)
            return ls_fail(LS_EDATA, "tensor \"%s\" (%s) is listed twice", ckpt->rows[i].name,
                           ckpt->rows[i].kind);
out:
    return st;
}

/* The whole text as a tree. A key that is given twice is refused, because readers differ in which
 * one they take. */
static ls_status read_json(const char *text, size_t len, json_t **root_out)
{
    json_error_t error;

    *root_out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (*root_out)
        return LS_OK;
    /* jansson leaves the text empty when it found no memory */
    return error.text[0]
               ? ls_fail(LS_EDATA, "it is not valid JSON (line %d: %.160s)", error.line, error.text)
               : ls_fail(LS_ENOMEM, "cannot read a manifest of %zu bytes", len);
}

ls_status ls_ckpt_manifest_parse(ls_ckpt *ckpt, const char *text, size_t len)
{
    ls_status st = LS_OK;
    json_t *root = NULL;

    LS_TRY(st, read_json(text, len, &root), out);
    LS_TRY(st, read_head(ckpt, root), out);
    LS_TRY(st, read_objects(ckpt, json_object_get(root, "objects")), out);
    LS_TRY(st, read_tensors(ckpt, json_object_get(root, "tensors"), true), out);
out:
    json_decref(root);
    return st;
}

ls_status ls_ckpt_report_parse(ls_ckpt_added *added, const char *text, size_t len)
{
    ls_status st = LS_OK;
    ls_ckpt *ckpt = &added->ckpt;
    ls_ckpt_saved *saved = &added->saved;
    int64_t written, reused;
    json_t *root = NULL;

    *added = (ls_ckpt_added){.saved = {.seconds = 0}};
    ls_arena_init(&ckpt->arena);
    LS_TRY(st, read_json(text, len, &root), out);
    LS_TRY(st, get_int(root, "bytes_written", 0, &saved->bytes_written), out);
    LS_TRY(st, get_int(root, "bytes_reused", 0, &saved->bytes_reused), out);
    LS_TRY(st, get_int(root, "objects_written", 0, &written), out);
    LS_TRY(st, get_int(root, "objects_reused", 0, &reused), out);
    saved->objects_written = (int)written;
    saved->objects_reused = (int)reused;
    LS_TRY(st, read_objects(ckpt, json_object_get(root, "objects")), out);
    LS_TRY(st, read_tensors(ckpt, json_object_get(root, "tensors"), false), out);
out:
    json_decref(root);
    return st;
}
