/* ckpt_load.c -- from a checkpoint back to memory.
 *
 * A tensor is stored as boxes, and a caller asks for a box (often the whole tensor). For each
 * stored box that meets it, the common part is copied row by row:
 *
 *     stored box  [2..5) x [0..4)      wanted [3..8) x [1..3)      common [3..5) x [1..3)
 *
 *     . . . .          the common part is contiguous along the last dimension only, so one memcpy
 *     . # # .          per row, unless the row is whole in both: then rows are joined into one copy
 *     . # # .
 *
 * Loading many parts goes object by object, not part by part. An object of which everything is
 * wanted is read whole and proved by its name (ckpt_fetch.c). Of other objects only the blocks that
 * hold something wanted are read, and each is proved by its checksum. Bytes are copied out only
 * after that. Every object of a signed checkpoint is read whole: only that proves it. */
#include "checkpoint/ckpt_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/spill.h"
#include "base/time.h"
#include "checkpoint/safetensors.h"

static void shape_text(char *out, size_t cap, const int64_t *shape, int ndim)
{
    size_t used = (size_t)snprintf(out, cap, "[");

    for (int i = 0; i < ndim && used < cap; i++)
        used +=
            (size_t)snprintf(out + used, cap - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < cap)
        snprintf(out + used, cap - used, "]");
}

/* The row of a tensor in the manifest; rows are sorted by name, then kind. */
static ls_status find_row(const ls_ckpt *ckpt, const char *name, const char *kind,
                          const ls_ckpt_row **row_out)
{
    ls_ckpt_row key = {.name = name, .kind = kind};
    const ls_ckpt_row *row = ckpt->n_rows ? bsearch(&key, ckpt->rows, (size_t)ckpt->n_rows,
                                                    sizeof key, ls_ckpt_row_order)
                                          : NULL;

    if (!row) {
        ls_status st = ls_fail(LS_EDATA, "checkpoint \"%s\" has no tensor \"%s\" (%s)", ckpt->path,
                               name, kind);
        ls_err_hint("It was saved by a run with another model or optimizer.");
        return st;
    }
    *row_out = row;
    return LS_OK;
}

/* The row of a tensor, which must have the caller's type and shape. */
static ls_status match_tensor(const ls_ckpt *ckpt, const ls_ckpt_tensor *t,
                              const ls_ckpt_row **row_out)
{
    char stored[128], wanted[128];
    const ls_ckpt_row *row = NULL;
    ls_status st = find_row(ckpt, t->name, t->kind, &row);

    if (st != LS_OK)
        return st;
    if (row->type == t->type && row->ndim == t->ndim &&
        memcmp(row->shape, t->shape, (size_t)t->ndim * sizeof t->shape[0]) == 0) {
        *row_out = row;
        return LS_OK;
    }
    shape_text(stored, sizeof stored, row->shape, row->ndim);
    shape_text(wanted, sizeof wanted, t->shape, t->ndim);
    st = ls_fail(LS_EDATA,
                 "tensor \"%s\" (%s) is %s %s in checkpoint \"%s\", but the run needs %s %s",
                 t->name, t->kind, ls_safetensors_dtype_name(row->type), stored, ckpt->path,
                 ls_safetensors_dtype_name(t->type), wanted);
    ls_err_hint("It was saved by a run with another model; check model: in the run file.");
    return st;
}

/* --- copying boxes ------------------------------------------------------------------------------
 */

/* What to copy from a stored box to a wanted one, in elements, padded in front to full rank. */
typedef struct copy {
    int64_t from[LS_CKPT_RANK], to[LS_CKPT_RANK]; /* where the common part begins in each */
    int64_t common[LS_CKPT_RANK];                 /* its shape */
    int64_t from_shape[LS_CKPT_RANK], to_shape[LS_CKPT_RANK];
} copy;

/* The common part of two boxes of a tensor; false when there is none. */
static bool intersect(copy *c, const ls_ckpt_box *box, const int64_t *offset, const int64_t *shape,
                      int ndim)
{
    for (int i = 0; i < LS_CKPT_RANK; i++) {
        int d = i - (LS_CKPT_RANK - ndim);
        if (d < 0) {
            c->from[i] = c->to[i] = 0;
            c->common[i] = c->from_shape[i] = c->to_shape[i] = 1;
            continue;
        }
        int64_t begin = ls_max_i64(box->offset[d], offset[d]);
        int64_t end = ls_min_i64(box->offset[d] + box->shape[d], offset[d] + shape[d]);
        if (begin >= end)
            return false;
        c->from[i] = begin - box->offset[d];
        c->to[i] = begin - offset[d];
        c->common[i] = end - begin;
        c->from_shape[i] = box->shape[d];
        c->to_shape[i] = shape[d];
    }
    return true;
}

static int64_t index_of(const int64_t *at, const int64_t *shape)
{
    return ((at[0] * shape[1] + at[1]) * shape[2] + at[2]) * shape[3] + at[3];
}

/* Join dimensions that are whole on both sides, so that a common part of whole rows is one copy:
 *
 *     from [1, 1, 8, 4]   to [1, 1, 6, 4]   common [1, 1, 3, 4]
 *     from [1, 1, 1, 32]  to [1, 1, 1, 24]  common [1, 1, 1, 12]     one memcpy of 12 elements
 *
 * Where a row is cut, as in common [1, 1, 3, 2], nothing is joined, and there are 3 copies of 2. */
static void join_rows(copy *c)
{
    for (int d = LS_CKPT_RANK - 1; d > 0; d--) {
        int last = LS_CKPT_RANK - 1;
        if (c->common[last] != c->from_shape[last] || c->common[last] != c->to_shape[last])
            return;
        int64_t width = c->common[last];
        c->common[last] = c->common[last - 1] * width;
        c->from[last] = c->from[last - 1] * width;
        c->to[last] = c->to[last - 1] * width;
        c->from_shape[last] = c->from_shape[last - 1] * width;
        c->to_shape[last] = c->to_shape[last - 1] * width;
        for (int i = last - 1; i > 0; i--) {
            c->common[i] = c->common[i - 1];
            c->from[i] = c->from[i - 1];
            c->to[i] = c->to[i - 1];
            c->from_shape[i] = c->from_shape[i - 1];
            c->to_shape[i] = c->to_shape[i - 1];
        }
        c->common[0] = c->from_shape[0] = c->to_shape[0] = 1;
        c->from[0] = c->to[0] = 0;
    }
}

/* Copy the common part of two boxes, row by row after dimensions that are whole on both sides are
 * joined. Shapes have four dimensions here, padded with ones in front, so three loops do for all. */
static void copy_box(const copy *whole, const unsigned char *from, unsigned char *to, int64_t width)
{
    copy c = *whole;

    join_rows(&c);
    for (int64_t i = 0; i < c.common[0]; i++)
        for (int64_t j = 0; j < c.common[1]; j++)
            for (int64_t k = 0; k < c.common[2]; k++) {
                int64_t f[4] = {c.from[0] + i, c.from[1] + j, c.from[2] + k, c.from[3]};
                int64_t t[4] = {c.to[0] + i, c.to[1] + j, c.to[2] + k, c.to[3]};
                memcpy(to + index_of(t, c.to_shape) * width,
                       from + index_of(f, c.from_shape) * width, (size_t)(c.common[3] * width));
            }
}

/* --- objects ------------------------------------------------------------------------------------
 */

/* An object's header, from a reader that has verified it. */
static ls_status read_header(ls_ckpt_reader *reader, ls_safetensors *file)
{
    ls_status st = LS_OK;
    int64_t head = 0, bytes = reader->object->bytes;

    LS_TRY(st, ls_ckpt_reader_need(reader, 0, ls_min_i64(8, bytes)), out);
    LS_TRY(st, ls_safetensors_head_bytes(reader->bytes, bytes, reader->path.p, &head), out);
    LS_TRY(st, ls_ckpt_reader_need(reader, 0, head), out);
    LS_TRY(st,
           ls_safetensors_parse_header(file, reader->bytes, (size_t)head, bytes, reader->path.p),
           out);
out:
    return st;
}

/* Where a box lies in its object; the object's own header must agree with the manifest. */
static ls_status find_box(const ls_safetensors *file, const ls_ckpt_row *row,
                          const ls_ckpt_box *box, const char *path,
                          const ls_safetensors_entry **entry_out)
{
    const ls_safetensors_entry *e = ls_safetensors_find(file, box->key);

    if (!e || e->dtype->type != (int)row->type || e->ndim != row->ndim ||
        memcmp(e->shape, box->shape, (size_t)row->ndim * sizeof box->shape[0]) != 0)
        return ls_fail(LS_EDATA,
                       "object \"%s\" does not hold the part of tensor \"%s\" that the "
                       "manifest says",
                       path, row->name);
    *entry_out = e;
    return LS_OK;
}

/* Whether another copy of the object may help against this failure. */
static bool is_damage(ls_status st)
{
    return st == LS_EDATA || st == LS_EIO;
}

/* A wanted part, and a stored box that overlaps it. */
typedef struct need {
    const ls_ckpt_part *part;
    const ls_ckpt_row *row;
    const ls_ckpt_box *box;
    copy common;
} need;

/* What a load wants, object by object. */
typedef struct load {
    const ls_ckpt *ckpt;
    need *needs; /* owned; sorted by object */
    int n_needs, cap;
    int64_t *wanted; /* for each object: wanted bytes, and all bytes of tensors in it; */
    int64_t *stored; /* owned */
    bool *whole;     /* it is read whole; owned */
    int *order;      /* objects that are; owned */
    int n_order;
    ls_ckpt_read read;
} load;

static void load_release(load *x)
{
    ls_mem_free(x->needs);
    ls_mem_free(x->wanted);
    ls_mem_free(x->stored);
    ls_mem_free(x->whole);
    ls_mem_free(x->order);
}

static int64_t volume(const int64_t *shape, int ndim)
{
    int64_t n = 1;

    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    return n;
}

/* Note one overlap of a wanted part and a stored box, and its bytes with the object that holds
 * them. */
static ls_status add_need(load *x, const need *added)
{
    if (ls_ckpt_grow((void **)&x->needs, x->n_needs, &x->cap, sizeof *x->needs) != LS_OK)
        return LS_ENOMEM;
    x->needs[x->n_needs++] = *added;
    x->wanted[added->box->object] +=
        volume(added->common.common, LS_CKPT_RANK) * ls_dtype_bytes(added->row->type);
    return LS_OK;
}

static ls_status sticks_out(const ls_ckpt_row *row)
{
    char whole[128];

    shape_text(whole, sizeof whole, row->shape, row->ndim);
    return ls_fail(LS_EDATA, "tensor \"%s\" (%s) has shape %s; the part asked for sticks out",
                   row->name, row->kind, whole);
}

static bool is_inside(const ls_ckpt_row *row, const int64_t *offset, const int64_t *shape)
{
    for (int i = 0; i < row->ndim; i++)
        if (offset[i] < 0 || shape[i] < 0 || offset[i] > row->shape[i] ||
            shape[i] > row->shape[i] - offset[i])
            return false;
    return true;
}

static int order_needs(const void *a, const void *b)
{
    const need *x = a, *y = b;

    return (x->box->object > y->box->object) - (x->box->object < y->box->object);
}

/* Where everything that is wanted lies; all of it fits, or nothing will be read. Example, w [8, 4] stored
 * as rows 0-3 in object a and 4-7 in b, of which a rank wants rows 2-7:
 *
 *     needs     rows 2-3 of a: 32 of 64 bytes, so only its blocks     rows 4-7 of b: all, read whole
 *
 * Needs are sorted by object, so each object is opened once, however many parts want some of it. */
static ls_status plan_load(load *x, const ls_ckpt *ckpt, const ls_ckpt_part *parts, int n)
{
    size_t objects = (size_t)ckpt->n_objects;
    ls_status st = LS_OK;

    *x = (load){.ckpt = ckpt};
    x->wanted = ls_mem_array(objects, sizeof *x->wanted);
    x->stored = ls_mem_array(objects, sizeof *x->stored);
    x->whole = ls_mem_array(objects, sizeof *x->whole);
    x->order = ls_mem_array(objects, sizeof *x->order);
    if (!x->wanted || !x->stored || !x->whole || !x->order)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++) {
        need d = {.part = &parts[i]};
        LS_TRY(st, match_tensor(ckpt, &parts[i].of, &d.row), out);
        if (!is_inside(d.row, parts[i].offset, parts[i].shape)) {
            st = sticks_out(d.row);
            goto out;
        }
        for (int b = 0; b < d.row->n_boxes; b++) {
            d.box = &d.row->boxes[b];
            if (!intersect(&d.common, d.box, parts[i].offset, parts[i].shape, d.row->ndim))
                continue;
            if (parts[i].pitch)
                d.common.to_shape[LS_CKPT_RANK - 1] = parts[i].pitch;
            LS_TRY(st, add_need(x, &d), out);
        }
    }
    for (int r = 0; r < ckpt->n_rows; r++)
        for (int b = 0; b < ckpt->rows[r].n_boxes; b++)
            x->stored[ckpt->rows[r].boxes[b].object] +=
                volume(ckpt->rows[r].boxes[b].shape, ckpt->rows[r].ndim) *
                ls_dtype_bytes(ckpt->rows[r].type);
    for (int o = 0; o < ckpt->n_objects; o++)
        if (x->wanted[o] > 0 && (x->wanted[o] >= x->stored[o] || ckpt->objects[o].by_sha)) {
            x->whole[o] = true;
            x->order[x->n_order++] = o;
        }
    if (x->n_needs)
        qsort(x->needs, (size_t)x->n_needs, sizeof *x->needs, order_needs);
out:
    return st;
}

/* The needs of an object: *first_out of them, returns how many. */
static int needs_of(const load *x, int object, const need **first_out)
{
    int low = 0, high = x->n_needs, n = 0;

    while (low < high) {
        int middle = low + (high - low) / 2;
        if (x->needs[middle].box->object < object)
            low = middle + 1;
        else
            high = middle;
    }
    *first_out = x->needs + low;
    while (low + n < x->n_needs && x->needs[low + n].box->object == object)
        n++;
    return n;
}

/* Copy what two boxes have in common out of an object whose header was read. What is not in memory
 * yet is read. Example, a stored box [4, 4] of 4-byte elements from byte 100 on, of which rows 1 and
 * 2 are wanted: bytes 116 to 147 are needed, and copied at once. */
static ls_status take_common(ls_ckpt_reader *reader, const ls_safetensors *file,
                             const ls_ckpt_row *row, const ls_ckpt_box *box, const copy *c,
                             void *to)
{
    int64_t width = ls_dtype_bytes(row->type), last[LS_CKPT_RANK];
    const ls_safetensors_entry *e;
    ls_status st;

    LS_TRY(st, find_box(file, row, box, reader->path.p, &e), out);
    for (int i = 0; i < LS_CKPT_RANK; i++)
        last[i] = c->from[i] + c->common[i] - 1;
    LS_TRY(st,
           ls_ckpt_reader_need(reader, e->begin + index_of(c->from, c->from_shape) * width,
                               e->begin + (index_of(last, c->from_shape) + 1) * width),
           out);
    copy_box(c, reader->bytes + e->begin, to, width);
out:
    return st;
}

/* Copy everything that is wanted out of an object. */
static ls_status take_needs(const load *x, int object, ls_ckpt_reader *reader)
{
    ls_safetensors file = {.count = 0};
    const need *d;
    int n = needs_of(x, object, &d);
    ls_status st = LS_OK;

    LS_TRY(st, read_header(reader, &file), out);
    for (; n > 0; n--, d++) {
        const ls_ckpt_tensor *t = &d->part->of;
        LS_TRY(st, take_common(reader, &file, d->row, d->box, &d->common, t->bytes), out);
        if (t->spilled)
            ls_spill_give_back(t->bytes, volume(d->part->shape, t->ndim) * ls_dtype_bytes(t->type));
    }
out:
    ls_safetensors_close(&file);
    return st;
}

/* The same of an object that is opened now. */
static ls_status take_object(load *x, int object)
{
    ls_ckpt_reader reader;
    ls_status st = ls_ckpt_reader_open(&reader, x->ckpt->dir, &x->ckpt->objects[object], NULL);

    if (st == LS_OK && x->whole[object])
        st = ls_ckpt_reader_all(&reader);
    if (st == LS_OK)
        st = take_needs(x, object, &reader);
    x->read.bytes += reader.bytes_read;
    ls_ckpt_reader_close(&reader);
    return st;
}

/* Objects of which everything is wanted: read ahead, one after the other. A damaged one is restored
 * from the mirror and read again. */
static ls_status take_whole_ones(load *x)
{
    ls_ckpt_fetch *fetch = NULL;
    ls_status st = LS_OK;

    if (x->n_order > 0)
        LS_TRY(st, ls_ckpt_fetch_open(&fetch, x->ckpt, x->order, x->n_order, false), out);
    for (int i = 0; i < x->n_order; i++) {
        ls_ckpt_reader *reader;
        st = ls_ckpt_fetch_next(fetch, &reader);
        if (st == LS_OK)
            st = take_needs(x, x->order[i], reader);
        if (is_damage(st) && ls_ckpt_heal(x->ckpt, x->order[i]))
            st = take_object(x, x->order[i]);
        LS_TRY(st, st, out);
    }
    x->read.objects_whole = x->n_order;
out:
    x->read.bytes += fetch ? ls_ckpt_fetch_bytes(fetch) : 0;
    ls_ckpt_fetch_close(fetch);
    return st;
}

/* First the whole objects, then of the others the blocks that hold something wanted. */
static ls_status take_all(load *x)
{
    ls_status st = LS_OK;

    LS_TRY(st, take_whole_ones(x), out);
    for (int o = 0; o < x->ckpt->n_objects; o++) {
        if (x->wanted[o] == 0 || x->whole[o])
            continue;
        st = take_object(x, o);
        if (is_damage(st) && ls_ckpt_heal(x->ckpt, o))
            st = take_object(x, o);
        LS_TRY(st, st, out);
        x->read.objects_part++;
    }
out:
    return st;
}

/* store: NULL, or where objects that were read whole are remembered as good. *damaged_out: it failed
 * because an object is damaged, and an older checkpoint may do. */
static ls_status load_parts(ls_ckpt_store *store, const ls_ckpt *ckpt, const ls_ckpt_part *parts,
                            int n, ls_ckpt_read *read_out, bool *damaged_out)
{
    int64_t begun_ns = ls_time_now_ns();
    ls_status st = LS_OK;
    load x = {.ckpt = ckpt};

    *damaged_out = false;
    ls_err_doing("loading step %lld", (long long)ckpt->info.step);
    LS_TRY(st, parts ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, plan_load(&x, ckpt, parts, n), out);
    st = take_all(&x);
    *damaged_out = is_damage(st);
    if (st == LS_OK && store)
        ls_ckpt_store_remember(store, ckpt, x.whole);
    *read_out = x.read;
    read_out->seconds = (double)(ls_time_now_ns() - begun_ns) / 1e9;
out:
    load_release(&x);
    ls_err_done();
    return st;
}

ls_status ls_ckpt_load_parts(const ls_ckpt *ckpt, const ls_ckpt_part *parts, int n,
                             ls_ckpt_read *read_out)
{
    ls_ckpt_read read;
    bool damaged;
    ls_status st = load_parts(NULL, ckpt, parts, n, &read, &damaged);

    if (st == LS_OK && read_out)
        *read_out = read;
    return st;
}

ls_ckpt_part *ls_ckpt_whole_parts(const ls_ckpt_tensor *tensors, int n)
{
    ls_ckpt_part *parts = ls_mem_array((size_t)n, sizeof *parts);

    for (int i = 0; parts && i < n; i++) {
        parts[i] = (ls_ckpt_part){.of = tensors[i]};
        memcpy(parts[i].shape, tensors[i].shape, sizeof parts[i].shape);
    }
    return parts;
}

ls_status ls_ckpt_load(const ls_ckpt *ckpt, ls_ckpt_tensor *tensors, int n)
{
    ls_ckpt_part *parts = ls_ckpt_whole_parts(tensors, n);
    ls_status st = ls_ckpt_load_parts(ckpt, parts, n, NULL);

    ls_mem_free(parts);
    return st;
}

/* Fetch the part of one stored box that is wanted. */
static ls_status read_common(const ls_ckpt *ckpt, const ls_ckpt_row *row, const ls_ckpt_box *box,
                             const copy *c, void *dst)
{
    ls_status st = LS_OK;
    ls_ckpt_reader reader;
    ls_safetensors file = {.count = 0};

    LS_TRY(st, ls_ckpt_reader_open(&reader, ckpt->dir, &ckpt->objects[box->object], NULL), out);
    LS_TRY(st, read_header(&reader, &file), out);
    LS_TRY(st, take_common(&reader, &file, row, box, c, dst), out);
out:
    ls_safetensors_close(&file);
    ls_ckpt_reader_close(&reader);
    return st;
}

ls_status ls_ckpt_read_box(const ls_ckpt *ckpt, const char *name, const char *kind,
                           const int64_t *offset, const int64_t *shape, void *dst)
{
    ls_status st = LS_OK;
    const ls_ckpt_row *row = NULL;
    copy c;

    LS_TRY(st, find_row(ckpt, name, kind, &row), out);
    if (!is_inside(row, offset, shape))
        return sticks_out(row);
    for (int b = 0; b < row->n_boxes; b++)
        if (intersect(&c, &row->boxes[b], offset, shape, row->ndim)) {
            st = read_common(ckpt, row, &row->boxes[b], &c, dst);
            if (is_damage(st) && ls_ckpt_heal(ckpt, row->boxes[b].object))
                st = read_common(ckpt, row, &row->boxes[b], &c, dst);
            LS_TRY(st, st, out);
        }
out:
    return st;
}

/* --- the newest that loads ----------------------------------------------------------------------
 */

struct ls_ckpt_search {
    ls_ckpt_store *store; /* borrowed */
    ls_ckpt_passed passed;
    ls_ckpt *now; /* owned: the current candidate */
    int64_t below;
};

ls_status ls_ckpt_search_open(ls_ckpt_search **search_out, ls_ckpt_store *store)
{
    ls_ckpt_search *search = ls_mem_alloc(sizeof *search);

    if (!search)
        return LS_ENOMEM;
    search->store = store;
    search->below = INT64_MAX;
    ls_ckpt_passed_init(&search->passed);
    *search_out = search;
    return LS_OK;
}

void ls_ckpt_search_close(ls_ckpt_search *search)
{
    if (!search)
        return;
    ls_ckpt_free(search->now);
    ls_ckpt_passed_release(&search->passed);
    ls_mem_free(search);
}

ls_status ls_ckpt_search_next(ls_ckpt_search *search, const ls_ckpt **ckpt_out)
{
    ls_ckpt_search *x = search;
    ls_status st = LS_OK;

    ls_ckpt_free(x->now);
    x->now = NULL;
    LS_TRY(st, ls_ckpt_find_below(x->store, x->below, &x->passed, &x->now), out);
    if (!x->now && x->passed.n)
        LS_TRY(st, ls_ckpt_passed_tell(x->store, &x->passed, -1, NULL), out);
    *ckpt_out = x->now;
out:
    return st;
}

/* Going back: the next candidate is the newest one below this step. */
ls_status ls_ckpt_search_reject(ls_ckpt_search *search, const char *reason)
{
    char text[sizeof ls_err_last()->text + 64];
    int64_t step = search->now->info.step;

    snprintf(text, sizeof text, "checkpoint of step %lld is damaged: %s", (long long)step, reason);
    ls_ckpt_store_forget(search->store); /* what we believed about the objects may be wrong */
    search->below = step;
    return ls_ckpt_passed_add(&search->passed, step, text);
}

ls_status ls_ckpt_search_take(ls_ckpt_search *search, ls_ckpt_info *info_out)
{
    ls_ckpt_search *x = search;
    ls_status st = LS_OK;

    if (x->passed.n)
        LS_TRY(st, ls_ckpt_passed_tell(x->store, &x->passed, x->now->info.step, NULL), out);
    ls_ckpt_free(x->store->loaded);
    x->store->loaded = x->now;
    x->now = NULL;
    if (info_out)
        *info_out = x->store->loaded->info;
out:
    return st;
}

ls_status ls_ckpt_load_newest(ls_ckpt_store *store, ls_ckpt_tensor *tensors, int n,
                              ls_ckpt_info *info_out, bool *found_out)
{
    ls_status st = LS_OK;
    ls_ckpt_search *search = NULL;
    const ls_ckpt *ckpt = NULL;
    ls_ckpt_part *parts = ls_ckpt_whole_parts(tensors, n);

    LS_TRY(st, ls_ckpt_search_open(&search, store), out);
    for (bool damaged = true; damaged;) {
        LS_TRY(st, ls_ckpt_search_next(search, &ckpt), out);
        if (!ckpt)
            break;
        st = load_parts(store, ckpt, parts, n, &store->read, &damaged);
        if (st != LS_OK && !damaged)
            goto out;
        if (damaged)
            LS_TRY(st, ls_ckpt_search_reject(search, ls_err_last()->text), out);
    }
    if (ckpt)
        LS_TRY(st, ls_ckpt_search_take(search, info_out), out);
    *found_out = ckpt != NULL;
out:
    ls_ckpt_search_close(search);
    ls_mem_free(parts);
    return st;
}

ls_ckpt_read ls_ckpt_last_read(const ls_ckpt_store *store)
{
    return store->read;
}

/* --- verify -------------------------------------------------------------------------------------
 */

/* The tensors that have a part in an object: "a, b, c and 12 more". */
static void name_tensors(const ls_ckpt *ckpt, int object, ls_str *out)
{
    int n = 0;

    for (int r = 0; r < ckpt->n_rows; r++) {
        const ls_ckpt_row *row = &ckpt->rows[r];
        bool in = false;
        for (int b = 0; b < row->n_boxes && !in; b++)
            in = row->boxes[b].object == object;
        if (in && ++n <= 3)
            ls_str_printf(out, "%s%s (%s)", n > 1 ? ", " : "", row->name, row->kind);
    }
    if (n > 3)
        ls_str_printf(out, " and %d more", n - 3);
}

/* Whether a whole object holds what the manifest lists. */
static ls_status check_content(const ls_ckpt *ckpt, int object, ls_ckpt_reader *reader)
{
    ls_safetensors file = {.count = 0};
    const ls_safetensors_entry *e;
    ls_status st = LS_OK;

    LS_TRY(st, read_header(reader, &file), out);
    for (int r = 0; r < ckpt->n_rows; r++)
        for (int b = 0; b < ckpt->rows[r].n_boxes; b++)
            if (ckpt->rows[r].boxes[b].object == object)
                LS_TRY(st,
                       find_box(&file, &ckpt->rows[r], &ckpt->rows[r].boxes[b], reader->path.p, &e),
                       out);
out:
    ls_safetensors_close(&file);
    return st;
}

ls_status ls_ckpt_verify(const ls_ckpt *ckpt, ls_ckpt_damage tell, void *context, int *damaged_out)
{
    int *all = ls_mem_array((size_t)ckpt->n_objects, sizeof *all);
    ls_ckpt_fetch *fetch = NULL;
    ls_status st = LS_OK;
    ls_str path, names;
    int damaged = 0;

    ls_str_init(&path);
    ls_str_init(&names);
    LS_TRY(st, all ? LS_OK : LS_ENOMEM, out);
    for (int o = 0; o < ckpt->n_objects; o++)
        all[o] = o;
    LS_TRY(st, ls_ckpt_fetch_open(&fetch, ckpt, all, ckpt->n_objects, true), out);
    for (int o = 0; o < ckpt->n_objects; o++) {
        ls_ckpt_reader *reader;
        st = ls_ckpt_fetch_next(fetch, &reader);
        if (st == LS_OK)
            st = check_content(ckpt, o, reader);
        if (st == LS_ENOMEM)
            goto out;
        if (st == LS_OK)
            continue;
        ls_str_clear(&path);
        ls_str_clear(&names);
        ls_ckpt_object_path(ckpt->dir, ckpt->objects[o].hash, &path);
        name_tensors(ckpt, o, &names);
        damaged++;
        if (tell)
            tell(path.p, ls_err_last()->text, names.p, context);
        st = LS_OK;
    }
    *damaged_out = damaged;
out:
    ls_ckpt_fetch_close(fetch);
    ls_mem_free(all);
    ls_str_release(&path);
    ls_str_release(&names);
    return st;
}
