/* ckpt_pack.c -- from parts of tensors in memory to objects in the store.
 *
 *   plan      which part of which tensor goes into which object (below)
 *   hash      name and block checksums of each object, straight from the caller's memory
 *   look      which objects the store has already; one that this process has neither written nor
 *             read is read now, because a name alone does not prove that its bytes are right
 *   reserve   bytes needed against bytes free, before anything is written
 *   write     each new object (ckpt_object_write.c), then sync their folders
 *
 * Where there is room for everything, even if all of it were new, the middle three happen object by
 * object: a thread hashes ahead while this one writes what has been hashed. Otherwise all is hashed
 * first, because only then it is known how much must be written.
 *
 * The result is the rows and objects that this writer adds to a manifest; ckpt_save.c joins those
 * of all writers and commits.
 *
 * The plan. A part of more than 64 MiB is cut along dimension 0 into slabs of at most that size (a
 * single row that is longer stays whole), each an object of its own. Smaller parts fill the object
 * of their group and kind up to 64 MiB. So a model of 6 layers with two moments per parameter makes
 * (6 + embeddings + final norm) x 3 = 24 objects. Frozen tensors have objects of their own, which have
 * the same content in every save, and so the same name: with LoRA a save writes the small matrices
 * alone.
 *
 *     layer 3, kind "param"    frozen    q k v o ...        4 MiB   found in the store
 *                              trained   q.lora_A ...     0.1 MiB   written
 *
 * Worked example: w of shape [5, 3] in float32 and slabs of at most 24 bytes. A row has 12 bytes,
 * so a slab has 2 rows: boxes at offset [0,0] shape [2,3], [2,0] [2,3], [4,0] [1,3]. */
#include "checkpoint/ckpt_impl.h"

#include <stdio.h>
#include <sys/stat.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/spill.h"
#include "checkpoint/safetensors.h"

#define AHEAD_LEAST (16 * LS_MIB) /* bytes for which a thread that hashes is worth it */

/* A part of a tensor that goes into one object. */
typedef struct slab {
    int part;
    int64_t first, rows; /* along dimension 0 of the part; all of it when the tensor has none */
    int64_t bytes;
    int plan;        /* index of its object */
    const char *key; /* under which it lies there */
} slab;

/* An object to be. */
typedef struct plan {
    const char *group, *kind; /* borrowed from the first tensor */
    bool open;                /* small tensors may still join */
    bool frozen;              /* only frozen ones */
    bool spilled;             /* its tensors are, as those of a kind are alike */
    bool digests;             /* it needs a SHA-256: the manifest will be signed */
    int64_t bytes;            /* of tensors */
    ls_ckpt_object object;    /* crcs owned */
    ls_str head;              /* length and header */
    ls_ckpt_piece *pieces;    /* head, then tensors in file order; owned */
    int n_pieces;
    bool present, replace; /* the store has it; it has a damaged file of this name */
} plan;

typedef struct work {
    ls_ckpt_store *store; /* NULL: nothing is written */
    const ls_ckpt_writing *how;
    const ls_ckpt_part *parts;
    int n;
    slab *slabs; /* owned; by part, then by first row */
    int n_slabs, cap_slabs;
    int *first_slab; /* of each part; owned */
    plan *plans;     /* owned */
    int n_plans, cap_plans;
    ls_ckpt_added *added; /* what comes out */
    bool no_room;         /* as a test wants it */
    const ls_ckpt_aside *aside;
    pthread_t thread; /* hashes ahead; the lock is of the two numbers below */
    bool threaded;    /* it was started, and not joined yet */
    pthread_mutex_t lock;
    pthread_cond_t more;
    int hashed; /* plans that have their hashes */
    bool stop;  /* no more are needed */
} work;

static void work_release(work *s)
{
    for (int i = 0; i < s->n_plans; i++) {
        ls_mem_free(s->plans[i].object.crcs);
        ls_mem_free(s->plans[i].pieces);
        ls_str_release(&s->plans[i].head);
    }
    ls_mem_free(s->plans);
    ls_mem_free(s->slabs);
    ls_mem_free(s->first_slab);
}

void ls_ckpt_added_release(ls_ckpt_added *added)
{
    ls_arena_release(&added->ckpt.arena);
}

/* --- checking what the caller gave --------------------------------------------------------------
 */

static int order_parts(const void *a, const void *b)
{
    const ls_ckpt_part *x = *(const ls_ckpt_part *const *)a;
    const ls_ckpt_part *y = *(const ls_ckpt_part *const *)b;
    int order = ls_ckpt_name_order(x->of.name, x->of.kind, y->of.name, y->of.kind);

    return order ? order : (x > y) - (x < y);
}

ls_status ls_ckpt_tensor_check(const ls_ckpt_tensor *t, const int64_t *shape, int64_t *bytes_out)
{
    if (!t->name || !t->name[0] || !t->kind || strcmp(t->name, "__metadata__") == 0)
        return ls_fail(LS_EDATA, "cannot save a tensor without a proper name and kind");
    if (t->ndim < 0 || t->ndim > LS_CKPT_RANK ||
        !ls_safetensors_elements(shape, t->ndim, bytes_out) ||
        __builtin_mul_overflow(*bytes_out, ls_dtype_bytes(t->type), bytes_out))
        return ls_fail(LS_EDATA, "cannot save tensor \"%s\": its shape is not possible", t->name);
    LS_BUG_IF(!t->bytes && *bytes_out, "tensor \"%s\" has no bytes", t->name);
    return LS_OK;
}

int ls_ckpt_cut(const ls_ckpt_tensor *tensor, int64_t first, int64_t count,
                ls_ckpt_part parts_out[LS_CKPT_PARTS])
{
    /* Example, [4, 3] and elements 2 .. 10: the end of row 0, whole rows, the begin of row 3.
     *
     *     . . 0        part 0   offset [0,2] shape [1,1]
     *     1 1 1        part 1   offset [1,0] shape [2,3]
     *     1 1 1
     *     2 2 .        part 2   offset [3,0] shape [1,2] */
    const ls_ckpt_tensor *t = tensor;
    int64_t at = first, end = first + count;
    int n = 0;

    while (at < end) {
        ls_ckpt_part *p = &parts_out[n++];
        int64_t below = 1, rest = at; /* elements of one step along dimension d */
        int d = t->ndim - 1;
        *p = (ls_ckpt_part){.of = *t};
        p->of.bytes = (char *)t->bytes + (at - first) * ls_dtype_bytes(t->type);
        for (int i = t->ndim - 1; i >= 0; i--) {
            p->offset[i] = rest % t->shape[i];
            rest /= t->shape[i];
            p->shape[i] = 1;
        }
        /* as high a dimension as begins here and is whole below */
        for (; d > 0 && p->offset[d] == 0 && end - at >= below * t->shape[d]; d--) {
            p->shape[d] = t->shape[d];
            below *= t->shape[d];
        }
        if (d >= 0)
            p->shape[d] = ls_min_i64((end - at) / below, t->shape[d] - p->offset[d]);
        at += d >= 0 ? p->shape[d] * below : 1;
    }
    return n;
}

/* --- plan ---------------------------------------------------------------------------------------
 */

/* A new object, empty so far. open: small tensors of its group and kind may still join. */
static ls_status add_plan(work *s, const ls_ckpt_tensor *t, bool open)
{
    ls_status st = ls_ckpt_grow((void **)&s->plans, s->n_plans, &s->cap_plans, sizeof *s->plans);

    if (st == LS_OK) {
        s->plans[s->n_plans] = (plan){.group = t->group ? t->group : "",
                                      .kind = t->kind,
                                      .open = open,
                                      .frozen = t->frozen,
                                      .spilled = t->spilled,
                                      .digests = s->store && s->store->key};
        ls_str_init(&s->plans[s->n_plans].head);
        s->n_plans++;
    }
    return st;
}

/* The object that a small tensor joins: the newest open one of its group and kind with room, which
 * holds frozen tensors only or none. A full one
 * is not looked behind: the order of tensors alone decides which share an object, and so its name. */
static ls_status find_plan(work *s, const ls_ckpt_tensor *t, int64_t bytes, int *index_out)
{
    const char *group = t->group ? t->group : "";
    ls_status st = LS_OK;

    for (int i = s->n_plans - 1; i >= 0; i--) {
        const plan *p = &s->plans[i];
        if (p->open && p->frozen == t->frozen && strcmp(p->group, group) == 0 &&
            strcmp(p->kind, t->kind) == 0) {
            if (p->bytes + bytes > LS_CKPT_SLAB)
                break;
            *index_out = i;
            return LS_OK;
        }
    }
    LS_TRY(st, add_plan(s, t, true), out);
    *index_out = s->n_plans - 1;
out:
    return st;
}

/* One object may hold several parts of a tensor: the second is called "name#2". */
static ls_status name_slab(work *s, slab *b)
{
    ls_arena *arena = &s->added->ckpt.arena;
    const char *name = s->parts[b->part].of.name;
    int same = 1;

    b->key = name;
    for (int i = 0; i < s->n_slabs; i++)
        same +=
            s->slabs[i].plan == b->plan && strcmp(s->parts[s->slabs[i].part].of.name, name) == 0;
    if (same == 1)
        return LS_OK;
    b->key = ls_arena_printf(arena, "%s#%d", name, same);
    return b->key ? LS_OK : ls_err_last()->code;
}

/* Put rows first .. first+rows-1 of a part into an object; its key there is the tensor's name, or
 * name#2 for a second part. */
static ls_status add_slab(work *s, int part, int64_t first, int64_t rows, int64_t bytes, int to)
{
    slab added = {.part = part, .first = first, .rows = rows, .bytes = bytes, .plan = to};
    ls_status st = LS_OK;

    LS_TRY(st, ls_ckpt_grow((void **)&s->slabs, s->n_slabs, &s->cap_slabs, sizeof *s->slabs), out);
    LS_TRY(st, name_slab(s, &added), out);
    s->slabs[s->n_slabs++] = added;
    s->plans[to].bytes += bytes;
out:
    return st;
}

/* Cut a part into slabs of at most 64 MiB; a small one joins the open object of its group and
 * kind. */
static ls_status plan_part(work *s, int index)
{
    ls_status st = LS_OK;
    const ls_ckpt_part *p = &s->parts[index];
    const ls_ckpt_tensor *t = &p->of;
    int64_t bytes = 0;
    int to;

    LS_TRY(st, ls_ckpt_tensor_check(t, p->shape, &bytes), out);
    LS_BUG_IF(p->pitch && (t->ndim != 2 || bytes == 0), "tensor \"%s\" cannot have a pitch",
              t->name);
    if (bytes <= LS_CKPT_SLAB || t->ndim == 0) {
        LS_TRY(st, find_plan(s, t, bytes, &to), out);
        LS_TRY(st, add_slab(s, index, 0, t->ndim ? p->shape[0] : 1, bytes, to), out);
        goto out;
    }
    int64_t row = bytes / p->shape[0];
    int64_t most = ls_max_i64(1, LS_CKPT_SLAB / row);
    for (int64_t first = 0; first < p->shape[0]; first += most) {
        int64_t rows = ls_min_i64(most, p->shape[0] - first);
        LS_TRY(st, add_plan(s, t, false), out);
        LS_TRY(st, add_slab(s, index, first, rows, rows * row, s->n_plans - 1), out);
    }
out:
    return st;
}

/* --- hash ---------------------------------------------------------------------------------------
 */

/* Name and block checksums of a file made of pieces; a block may span several pieces. A SHA-256
 * that cannot be made is missed by the commit. */
static void hash_pieces(plan *p)
{
    ls_digest sha = {NULL};
    ls_hash_stream hash;
    int64_t block = 0, filled = 0;
    uint32_t crc = 0;

    ls_hash_begin(&hash);
    if (p->digests)
        (void)ls_digest_begin(&sha);
    for (int i = 0; i < p->n_pieces; i++) {
        const unsigned char *at = p->pieces[i].bytes;
        int64_t left = p->pieces[i].len;
        while (left) {
            int64_t n = ls_min_i64(left, LS_CKPT_BLOCK - filled);
            ls_hash_add(&hash, at, (size_t)n);
            ls_digest_add(&sha, at, (size_t)n);
            crc = ls_hash_crc32c(crc, at, (size_t)n);
            at += n;
            left -= n;
            filled += n;
            if (filled == LS_CKPT_BLOCK) {
                p->object.crcs[block++] = crc;
                crc = 0;
                filled = 0;
            }
        }
        if (p->pieces[i].spilled)
            ls_spill_give_back(p->pieces[i].bytes, p->pieces[i].len);
    }
    if (filled)
        p->object.crcs[block] = crc;
    p->object.hash = ls_hash_end(&hash);
    if (p->digests)
        p->object.has_sha = p->object.by_sha = ls_digest_end(&sha, p->object.sha) == LS_OK;
}

/* Bytes from one row of a part to the next in memory. */
static int64_t stride_of(const work *s, const slab *b)
{
    const ls_ckpt_part *p = &s->parts[b->part];

    return p->pitch ? p->pitch * ls_dtype_bytes(p->of.type) : b->rows ? b->bytes / b->rows : 0;
}

static ls_safetensors_item item_of(const work *s, const slab *b)
{
    const ls_ckpt_part *p = &s->parts[b->part];
    ls_safetensors_item item = {.name = b->key, .type = p->of.type, .ndim = p->of.ndim, .of = b};

    for (int i = 0; i < p->of.ndim; i++)
        item.shape[i] = i ? p->shape[i] : b->rows;
    item.bytes = b->bytes ? (const char *)p->of.bytes + b->first * stride_of(s, b) : "";
    return item;
}

/* Pieces of memory that a slab lies in: one, or with a pitch its rows. A rank that has columns 2 and 3
 * of w [3, 4] in a matrix of its own with rows of 5 elements has the pitch 5, and 3 pieces of 2. */
static int64_t pieces_of(const work *s, const slab *b)
{
    return s->parts[b->part].pitch ? b->rows : 1;
}

static void add_pieces(const work *s, plan *p, const ls_safetensors_item *item)
{
    const slab *b = item->of;
    int64_t n = pieces_of(s, b), stride = stride_of(s, b);

    for (int64_t i = 0; i < n; i++)
        p->pieces[p->n_pieces++] = (ls_ckpt_piece){.bytes = (const char *)item->bytes + i * stride,
                                                   .len = (item->end - item->begin) / n,
                                                   .spilled = p->spilled};
}

/* The thread that hashes ahead. */
static void *hash_ahead(void *context)
{
    work *s = context;
    bool stop = false;

    for (int i = 0; i < s->n_plans && !stop; i++) {
        hash_pieces(&s->plans[i]);
        pthread_mutex_lock(&s->lock);
        s->hashed = i + 1;
        stop = s->stop;
        pthread_cond_signal(&s->more);
        pthread_mutex_unlock(&s->lock);
    }
    if (!stop && s->aside->run)
        s->aside->run(s->aside->context);
    return NULL;
}

/* Hash on a thread of its own where something is written meanwhile and the size makes it worth it.
 * A spill's pages are given back by their reader, so spills have one reader only. */
static void begin_hash(work *s)
{
    int64_t bytes = 0;
    bool spilled = false;

    for (int i = 0; i < s->n_plans; i++) {
        bytes += s->plans[i].object.bytes;
        spilled = spilled || s->plans[i].spilled;
    }
    if (s->store && !spilled && bytes >= AHEAD_LEAST)
        s->threaded = ls_pool_start_apart(&s->thread, hash_ahead, s) == 0;
}

/* Until the first n plans have their hashes. */
static void await_hash(work *s, int n)
{
    if (!s->threaded) {
        for (; s->hashed < n; s->hashed++)
            hash_pieces(&s->plans[s->hashed]);
        return;
    }
    pthread_mutex_lock(&s->lock);
    while (s->hashed < n)
        pthread_cond_wait(&s->more, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* Stop the thread: everything is hashed, or something failed. */
static void end_hash(work *s, bool well)
{
    if (!s->threaded) {
        if (well && s->aside->run)
            s->aside->run(s->aside->context);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->stop = !well;
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->threaded = false;
}

/* Lay out the tensors of a planned object: header first, then tensors in file order. Its length is
 * known from here on. */
static ls_status finish_plan(const work *s, plan *p, ls_safetensors_item *items, int n)
{
    int64_t pieces = 1;
    ls_status st = LS_OK;

    LS_TRY(st, ls_safetensors_layout(items, n, &p->head), out);
    for (int i = 0; i < n; i++)
        pieces += pieces_of(s, items[i].of);
    p->pieces = ls_mem_array((size_t)pieces, sizeof *p->pieces);
    p->object.bytes = (int64_t)p->head.len + p->bytes;
    p->object.crcs = ls_mem_array((size_t)ls_ckpt_blocks(p->object.bytes), sizeof(uint32_t));
    if (!p->pieces || !p->object.crcs) {
        st = LS_ENOMEM;
        goto out;
    }
    p->pieces[p->n_pieces++] = (ls_ckpt_piece){.bytes = p->head.p, .len = (int64_t)p->head.len};
    for (int i = 0; i < n; i++)
        add_pieces(s, p, &items[i]);
out:
    return st;
}

/* Which part goes into which object, for all parts; small tensors share objects, slabs have their
 * own. */
static ls_status plan_objects(work *s)
{
    ls_status st = LS_OK;
    ls_safetensors_item *items = NULL;

    s->first_slab = ls_mem_array((size_t)s->n + 1, sizeof *s->first_slab);
    if (!s->first_slab)
        return LS_ENOMEM;
    for (int i = 0; i < s->n; i++) {
        LS_TRY(st, plan_part(s, i), out);
        s->first_slab[i + 1] = s->n_slabs;
    }
    items = ls_mem_array((size_t)s->n_slabs, sizeof *items);
    if (!items) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int p = 0; p < s->n_plans; p++) {
        int n = 0;
        for (int b = 0; b < s->n_slabs; b++)
            if (s->slabs[b].plan == p)
                items[n++] = item_of(s, &s->slabs[b]);
        LS_TRY(st, finish_plan(s, &s->plans[p], items, n), out);
    }
out:
    ls_mem_free(items);
    return st;
}

/* --- rows and objects of a manifest -------------------------------------------------------------
 */

/* The object table: each content once, sorted. */
static ls_status list_objects(work *s)
{
    ls_ckpt *c = &s->added->ckpt;

    c->objects = ls_arena_alloc(&c->arena, (size_t)s->n_plans * sizeof *c->objects);
    if (!c->objects)
        return LS_ENOMEM;
    for (int i = 0; i < s->n_plans; i++) {
        const ls_ckpt_object *o = &s->plans[i].object;
        size_t bytes = (size_t)ls_ckpt_blocks(o->bytes) * sizeof *o->crcs;
        c->objects[i] = *o;
        c->objects[i].crcs = ls_arena_alloc(&c->arena, bytes);
        if (!c->objects[i].crcs)
            return LS_ENOMEM;
        memcpy(c->objects[i].crcs, o->crcs, bytes);
    }
    c->n_objects = ls_ckpt_objects_sort(c->objects, s->n_plans);
    return LS_OK;
}

/* Where a slab lies in its tensor: the part's offset, moved along dimension 0. */
static void fill_box(const work *s, const slab *b, ls_ckpt_box *box)
{
    const ls_ckpt_part *p = &s->parts[b->part];
    const ls_ckpt *c = &s->added->ckpt;

    *box = (ls_ckpt_box){.object = ls_ckpt_object_index(c, s->plans[b->plan].object.hash),
                         .key = b->key};
    memcpy(box->shape, p->shape, sizeof box->shape);
    memcpy(box->offset, p->offset, sizeof box->offset);
    if (p->of.ndim) {
        box->offset[0] += b->first;
        box->shape[0] = b->rows;
    }
}

/* The row of the first of n parts, which are of one tensor. */
static ls_status fill_row(work *s, ls_ckpt_row *row, const ls_ckpt_part *const *parts, int n)
{
    const ls_ckpt_tensor *t = &parts[0]->of;
    int boxes = 0;

    for (int i = 0; i < n; i++) {
        int part = (int)(parts[i] - s->parts);
        boxes += s->first_slab[part + 1] - s->first_slab[part];
    }
    *row = (ls_ckpt_row){.name = t->name, .kind = t->kind, .type = t->type, .ndim = t->ndim};
    memcpy(row->shape, t->shape, sizeof row->shape);
    row->boxes = ls_arena_alloc(&s->added->ckpt.arena, (size_t)boxes * sizeof *row->boxes);
    if (!row->boxes)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++) {
        int part = (int)(parts[i] - s->parts);
        for (int b = s->first_slab[part]; b < s->first_slab[part + 1]; b++)
            fill_box(s, &s->slabs[b], &row->boxes[row->n_boxes++]);
    }
    return LS_OK;
}

/* The rows of this writer: for each of its tensors one row, with the boxes that its parts are. */
static ls_status list_rows(work *s)
{
    ls_ckpt *c = &s->added->ckpt;
    const ls_ckpt_part **sorted = ls_mem_array((size_t)s->n, sizeof *sorted);
    ls_status st = LS_OK;

    c->rows = ls_arena_alloc(&c->arena, (size_t)s->n * sizeof *c->rows);
    if (!sorted || !c->rows) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int i = 0; i < s->n; i++)
        sorted[i] = &s->parts[i];
    qsort(sorted, (size_t)s->n, sizeof *sorted, order_parts);
    for (int i = 0, n; i < s->n; i += n) {
        const ls_ckpt_tensor *t = &sorted[i]->of;
        for (n = 1; i + n < s->n && ls_ckpt_name_order(t->name, t->kind, sorted[i + n]->of.name,
                                                       sorted[i + n]->of.kind) == 0;)
            n++;
        LS_TRY(st, fill_row(s, &c->rows[c->n_rows++], sorted + i, n), out);
    }
out:
    ls_mem_free(sorted);
    return st;
}

/* --- look, reserve, write -----------------------------------------------------------------------
 */

/* Whether the store has the object already. A name alone does not prove the bytes: an object that
 * this process has neither written nor read is read here. */
static ls_status look_for_object(work *s, plan *p)
{
    ls_status st = LS_OK;
    struct stat info;
    ls_str path;

    ls_str_init(&path);
    ls_ckpt_object_path(s->store->dir, p->object.hash, &path);
    LS_TRY(st, ls_str_status(&path), out);
    if (ls_ckpt_stat_file(path.p, &info) != 0)
        goto out;
    if (info.st_size == p->object.bytes && ls_ckpt_store_is_good(s->store, p->object.hash)) {
        p->present = true;
        goto out;
    }
    st = ls_ckpt_object_verify(s->store->dir, &p->object);
    p->present = st == LS_OK;
    if (st != LS_OK && st != LS_ENOMEM) {
        p->replace = true;
        ls_log(LS_LOG_WARN, "%s; writing it anew", ls_err_last()->text);
        st = LS_OK;
    }
out:
    ls_str_release(&path);
    return st;
}

/* Must this object be written? Of equal ones the first: moments that are still all zero, of two tensors
 * of one shape, are one object. */
static ls_status look(work *s, int i)
{
    ls_ckpt_saved *saved = &s->added->saved;
    plan *p = &s->plans[i];
    ls_status st = LS_OK;

    for (int j = 0; j < i; j++)
        if (ls_hash_equal(s->plans[j].object.hash, p->object.hash)) {
            p->present = true;
            return LS_OK;
        }
    LS_TRY(st, look_for_object(s, p), out);
    saved->bytes_written += p->present ? 0 : p->object.bytes;
    saved->bytes_reused += p->present ? p->object.bytes : 0;
    saved->objects_written += !p->present;
    saved->objects_reused += p->present;
out:
    return st;
}

static ls_status look_at_all(work *s)
{
    ls_status st = LS_OK;

    for (int i = 0; i < s->n_plans && st == LS_OK; i++)
        st = look(s, i);
    return st;
}

/* The rows of tensors and objects in the manifest, or a little more. */
static int64_t bytes_of_tables(const work *s)
{
    int64_t bytes = 0;

    for (int i = 0; i < s->n; i++)
        bytes += 160 + (int64_t)strlen(s->parts[i].of.name);
    for (int i = 0; i < s->n_slabs; i++)
        bytes += 160 + (int64_t)strlen(s->slabs[i].key);
    for (int i = 0; i < s->n_plans; i++)
        bytes += 96 + (s->plans[i].digests ? 80 : 0) + 8 * ls_ckpt_blocks(s->plans[i].object.bytes);
    return bytes;
}

/* Bytes on disk that the save will take: whole pages, folders, and the manifest. */
static int64_t bytes_needed(const work *s)
{
    int64_t need = ls_round_up(s->how->manifest_bytes + bytes_of_tables(s) + 512, 4096) + 4096;

    for (int i = 0; i < s->n_plans; i++)
        if (!s->plans[i].present)
            need += ls_round_up(s->plans[i].object.bytes, 4096) + 4096;
    return need;
}

static ls_status bytes_free(const work *s, int64_t *left_out)
{
    ls_status st = ls_file_free_bytes(s->store->dir, left_out);

    if (s->no_room)
        *left_out = 0;
    return st;
}

/* No other process is writing: objects that no manifest names may go, even those that this save
 * wanted to reuse. */
static ls_status sweep_leftovers(work *s)
{
    int64_t swept = 0;

    if (ls_ckpt_sweep(s->store, &swept) != LS_OK || swept == 0)
        return LS_OK;
    s->added->saved = (ls_ckpt_saved){.seconds = 0};
    for (int i = 0; i < s->n_plans; i++)
        s->plans[i].present = s->plans[i].replace = false;
    return look_at_all(s);
}

/* Check that there is room, if need be after sweeping leftovers. What must be written is known. Each of
 * several writers asks for as much as it needs itself, times their number: they cannot ask each
 * other, and start at the same time. */
static ls_status reserve(work *s)
{
    ls_status st = LS_OK;
    int64_t need = bytes_needed(s) * s->how->writers, left = 0;

    LS_TRY(st, bytes_free(s, &left), out);
    if (left < need && s->how->writers == 1) {
        LS_TRY(st, sweep_leftovers(s), out);
        need = bytes_needed(s);
        LS_TRY(st, bytes_free(s, &left), out);
    }
    if (left < need) {
        st = ls_fail(LS_EIO, "cannot save step %lld in \"%s\": needs %.1f MiB, %.1f MiB free",
                     (long long)s->how->step, s->store->dir, ls_size_up(need, LS_MIB),
                     ls_size_down(left, LS_MIB));
        ls_err_hint("Free some space there, or keep fewer checkpoints.");
    }
out:
    return st;
}

/* What is not in the store yet. looks: it is not known yet what that is. */
static ls_status write_objects(work *s, bool looks)
{
    bool touched[256] = {false};
    ls_ckpt_flow *flow = NULL;
    ls_status st = LS_OK;

    for (int i = 0; i < s->n_plans; i++) {
        plan *p = &s->plans[i];
        await_hash(s, i + 1);
        if (looks)
            LS_TRY(st, look(s, i), out);
        if (p->present)
            continue;
        if (!flow)
            LS_TRY(st, ls_ckpt_flow_open(&flow, s->store), out);
        LS_TRY(st, ls_ckpt_flow_put(flow, &p->object, p->pieces, p->n_pieces, p->replace), out);
        touched[p->object.hash.hi >> 56] = true;
    }
    if (flow)
        LS_TRY(st, ls_ckpt_flow_end(flow), out);
    LS_TRY(st, ls_ckpt_objects_sync(s->store->dir, touched), out);
out:
    ls_ckpt_flow_close(flow);
    return st;
}

/* With room for everything, even if all of it were new: look and write object by object while
 * hashing goes on. Otherwise hash all, look at all, reserve, then write. */
static ls_status store_objects(work *s)
{
    int64_t left = 0;
    ls_status st = LS_OK;

    s->no_room = LS_FAULT("ckpt.reserve");
    LS_TRY(st, bytes_free(s, &left), out);
    bool roomy = left >= bytes_needed(s) * s->how->writers; /* nothing is known to be present */
    if (!roomy) {
        await_hash(s, s->n_plans);
        LS_TRY(st, look_at_all(s), out);
        LS_TRY(st, reserve(s), out);
    }
    LS_TRY(st, write_objects(s, roomy), out);
out:
    return st;
}

/* Plan, hash, look, reserve, write: the whole way of one writer's parts. */
static ls_status do_parts(work *s)
{
    ls_status st = LS_OK;

    LS_TRY(st, plan_objects(s), out);
    begin_hash(s);
    st = s->store ? store_objects(s) : LS_OK;
    await_hash(s, st == LS_OK ? s->n_plans : 0);
    end_hash(s, st == LS_OK);
    LS_TRY(st, st, out);
    LS_TRY(st, list_objects(s), out);
    LS_TRY(st, list_rows(s), out);
    if (s->store)
        ls_ckpt_store_remember(s->store, &s->added->ckpt, NULL);
out:
    return st;
}

ls_status ls_ckpt_add_parts(ls_ckpt_store *store, const ls_ckpt_writing *how,
                            const ls_ckpt_part *parts, int n, const ls_ckpt_aside *aside,
                            ls_ckpt_added *added_out)
{
    work s = {.store = store,
              .how = how,
              .parts = parts,
              .n = n,
              .aside = aside,
              .added = added_out,
              .lock = PTHREAD_MUTEX_INITIALIZER,
              .more = PTHREAD_COND_INITIALIZER};

    *added_out = (ls_ckpt_added){.saved = {.seconds = 0}};
    ls_arena_init(&added_out->ckpt.arena);
    ls_status st = do_parts(&s);
    work_release(&s);
    return st;
}

/* The report of a writer to the process that commits. */
static void report(const ls_ckpt_added *added, ls_str *report_out)
{
    ls_str_printf(report_out,
                  "{\n  \"bytes_written\": %lld,\n  \"bytes_reused\": %lld,\n"
                  "  \"objects_written\": %d,\n  \"objects_reused\": %d,",
                  (long long)added->saved.bytes_written, (long long)added->saved.bytes_reused,
                  added->saved.objects_written, added->saved.objects_reused);
    ls_ckpt_manifest_tables(&added->ckpt, report_out);
    if (ls_str_status(report_out) == LS_OK)
        report_out->p[report_out->len - 1] = '\n'; /* no comma after the last table */
    ls_str_append(report_out, "}\n");
}

ls_status ls_ckpt_write_parts(ls_ckpt_store *store, const ls_ckpt_writing *how,
                              const ls_ckpt_part *parts, int n, ls_str *report_out)
{
    ls_ckpt_added added;
    ls_status st;

    if (store && pthread_mutex_trylock(&store->saving) != 0)
        return ls_fail(LS_EBUSY, "cannot save step %lld in \"%s\": another save is under way",
                       (long long)how->step, store->dir);
    ls_err_doing("saving a part of step %lld", (long long)how->step);
    st = ls_ckpt_add_parts(store, how, parts, n, &(ls_ckpt_aside){.run = NULL}, &added);
    if (st == LS_OK) {
        report(&added, report_out);
        st = ls_str_status(report_out);
    }
    ls_ckpt_added_release(&added);
    ls_err_done();
    if (store)
        pthread_mutex_unlock(&store->saving);
    return st;
}
