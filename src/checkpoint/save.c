/* save.c -- from tensors in memory to a committed checkpoint.
 *
 *   plan      which part of which tensor goes into which object (below)
 *   hash      name and block checksums of each object, straight from the caller's memory
 *   look      which objects the store has already; one that this process has neither written nor
 *             read is read now, because a name alone does not prove that its bytes are right
 *   reserve   bytes needed against bytes free, before anything is written
 *   write     each new object (object.c), then sync their folders
 *   commit    manifest under a temporary name, sync, rename, sync: only the rename commits
 *
 * The plan. A tensor of more than 64 MiB is cut along dimension 0 into slabs of at most that size
 * (a single row that is longer stays whole), each an object of its own. Smaller tensors fill the
 * object of their group and kind up to 64 MiB. So a model of 6 layers with two moments per
 * parameter makes (6 + embeddings + final norm) x 3 = 24 objects, and a frozen layer costs nothing:
 * its object has the same content and so the same name.
 *
 * Worked example: w of shape [5, 3] in float32 and slabs of at most 24 bytes. A row has 12 bytes,
 * so a slab has 2 rows: boxes at offset [0,0] shape [2,3], [2,0] [2,3], [4,0] [1,3]. */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/spill.h"
#include "base/time.h"
#include "checkpoint/safetensors.h"

/* A part of a tensor that goes into one object. */
typedef struct slab {
    int tensor;
    int64_t first, rows; /* along dimension 0; all of it when the tensor has none */
    int64_t bytes;
    int plan; /* index of its object */
} slab;

/* An object to be. */
typedef struct plan {
    const char *group, *kind; /* borrowed from the first tensor */
    bool open;                /* small tensors may still join */
    bool spilled;             /* its tensors are, as those of a kind are alike */
    int64_t bytes;            /* of tensors */
    ls_ckpt_object object;    /* crcs owned */
    ls_str head;              /* length and header */
    ls_ckpt_piece *pieces;    /* head, then tensors in file order; owned */
    int n_pieces;
    bool present, replace; /* the store has it; it has a damaged file of this name */
} plan;

typedef struct save {
    ls_ckpt_store *store;
    const ls_ckpt_tensor *tensors;
    int n;
    slab *slabs; /* owned; by tensor, then by first row */
    int n_slabs, cap_slabs;
    plan *plans; /* owned */
    int n_plans, cap_plans;
    ls_ckpt ckpt; /* the manifest to be; in its own arena */
    ls_ckpt_saved saved;
} save;

static void save_release(save *s)
{
    for (int i = 0; i < s->n_plans; i++) {
        ls_mem_free(s->plans[i].object.crcs);
        ls_mem_free(s->plans[i].pieces);
        ls_str_release(&s->plans[i].head);
    }
    ls_mem_free(s->plans);
    ls_mem_free(s->slabs);
    ls_arena_release(&s->ckpt.arena);
}

/* --- checking what the caller gave --------------------------------------------------------------
 */

static int order_tensors(const void *a, const void *b)
{
    const ls_ckpt_tensor *x = *(const ls_ckpt_tensor *const *)a;
    const ls_ckpt_tensor *y = *(const ls_ckpt_tensor *const *)b;
    int order = strcmp(x->name, y->name);

    return order ? order : strcmp(x->kind, y->kind);
}

static ls_status check_tensor(const ls_ckpt_tensor *t, int64_t *bytes_out)
{
    if (!t->name || !t->name[0] || !t->kind || strcmp(t->name, "__metadata__") == 0)
        return ls_fail(LS_EDATA, "cannot save a tensor without a proper name and kind");
    if (t->ndim < 0 || t->ndim > LS_CKPT_RANK ||
        !ls_safetensors_elements(t->shape, t->ndim, bytes_out) ||
        __builtin_mul_overflow(*bytes_out, ls_dtype_bytes(t->type), bytes_out))
        return ls_fail(LS_EDATA, "cannot save tensor \"%s\": its shape is not possible", t->name);
    LS_BUG_IF(!t->bytes && *bytes_out, "tensor \"%s\" has no bytes", t->name);
    return LS_OK;
}

/* The tensors in order of name and kind, each pair once. */
static ls_status sort_tensors(const ls_ckpt_tensor *tensors, int n,
                              const ls_ckpt_tensor ***sorted_out)
{
    const ls_ckpt_tensor **sorted = ls_mem_array((size_t)n, sizeof *sorted);

    if (!sorted)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++) {
        int64_t bytes;
        if (check_tensor(&tensors[i], &bytes) != LS_OK) {
            ls_mem_free(sorted);
            return LS_EDATA;
        }
        sorted[i] = &tensors[i];
    }
    qsort(sorted, (size_t)n, sizeof *sorted, order_tensors);
    for (int i = 1; i < n; i++)
        if (order_tensors(&sorted[i - 1], &sorted[i]) == 0) {
            ls_status st = ls_fail(LS_EDATA, "cannot save tensor \"%s\" (%s) twice",
                                   sorted[i]->name, sorted[i]->kind);
            ls_mem_free(sorted);
            return st;
        }
    *sorted_out = sorted;
    return LS_OK;
}

ls_status ls_ckpt_weights_hash(const ls_ckpt_tensor *tensors, int n, char hex_out[33])
{
    const ls_ckpt_tensor **sorted;
    ls_hash_stream hash;
    ls_status st = sort_tensors(tensors, n, &sorted);

    if (st != LS_OK)
        return st;
    ls_hash_begin(&hash);
    for (int i = 0; i < n; i++) {
        const ls_ckpt_tensor *t = sorted[i];
        const char *type = ls_safetensors_dtype_name(t->type);
        int64_t rank = t->ndim, bytes;
        if (strcmp(t->kind, "param") != 0 || check_tensor(t, &bytes) != LS_OK)
            continue;
        ls_hash_add(&hash, t->name, strlen(t->name) + 1);
        ls_hash_add(&hash, type, strlen(type) + 1);
        ls_hash_add(&hash, &rank, sizeof rank);
        ls_hash_add(&hash, t->shape, (size_t)t->ndim * sizeof t->shape[0]);
        ls_hash_add(&hash, t->bytes, (size_t)bytes);
    }
    ls_hash_hex(ls_hash_end(&hash), hex_out);
    ls_mem_free(sorted);
    return LS_OK;
}

/* --- plan ---------------------------------------------------------------------------------------
 */

/* Make room for one more element. */
static ls_status grow(void **array, int n, int *cap, size_t size)
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

static ls_status add_plan(save *s, const ls_ckpt_tensor *t, bool open)
{
    ls_status st = grow((void **)&s->plans, s->n_plans, &s->cap_plans, sizeof *s->plans);

    if (st == LS_OK) {
        s->plans[s->n_plans] = (plan){.group = t->group ? t->group : "",
                                      .kind = t->kind,
                                      .open = open,
                                      .spilled = t->spilled};
        ls_str_init(&s->plans[s->n_plans].head);
        s->n_plans++;
    }
    return st;
}

/* The object that a small tensor joins: the newest open one of its group and kind with room. */
static ls_status find_plan(save *s, const ls_ckpt_tensor *t, int64_t bytes, int *index_out)
{
    const char *group = t->group ? t->group : "";
    ls_status st = LS_OK;

    for (int i = s->n_plans - 1; i >= 0; i--) {
        const plan *p = &s->plans[i];
        if (p->open && strcmp(p->group, group) == 0 && strcmp(p->kind, t->kind) == 0) {
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

static ls_status add_slab(save *s, int tensor, int64_t first, int64_t rows, int64_t bytes, int to)
{
    ls_status st = grow((void **)&s->slabs, s->n_slabs, &s->cap_slabs, sizeof *s->slabs);

    if (st == LS_OK) {
        s->slabs[s->n_slabs++] = (slab){tensor, first, rows, bytes, to};
        s->plans[to].bytes += bytes;
    }
    return st;
}

static ls_status plan_tensor(save *s, int index)
{
    ls_status st = LS_OK;
    const ls_ckpt_tensor *t = &s->tensors[index];
    int64_t bytes = 0;
    int to;

    LS_TRY(st, check_tensor(t, &bytes), out);
    if (bytes <= LS_CKPT_SLAB || t->ndim == 0) {
        LS_TRY(st, find_plan(s, t, bytes, &to), out);
        LS_TRY(st, add_slab(s, index, 0, t->ndim ? t->shape[0] : 1, bytes, to), out);
        goto out;
    }
    int64_t row = bytes / t->shape[0];
    int64_t most = ls_max_i64(1, LS_CKPT_SLAB / row);
    for (int64_t first = 0; first < t->shape[0]; first += most) {
        int64_t rows = ls_min_i64(most, t->shape[0] - first);
        LS_TRY(st, add_plan(s, t, false), out);
        LS_TRY(st, add_slab(s, index, first, rows, rows * row, s->n_plans - 1), out);
    }
out:
    return st;
}

/* --- hash ---------------------------------------------------------------------------------------
 */

/* Name and block checksums of a file made of pieces; a block may span several pieces. */
static void hash_pieces(plan *p)
{
    ls_hash_stream hash;
    int64_t block = 0, filled = 0;
    uint32_t crc = 0;

    ls_hash_begin(&hash);
    for (int i = 0; i < p->n_pieces; i++) {
        const unsigned char *at = p->pieces[i].bytes;
        int64_t left = p->pieces[i].len;
        while (left) {
            int64_t n = ls_min_i64(left, LS_CKPT_BLOCK - filled);
            ls_hash_add(&hash, at, (size_t)n);
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
}

static ls_safetensors_item item_of(const save *s, const slab *b)
{
    const ls_ckpt_tensor *t = &s->tensors[b->tensor];
    ls_safetensors_item item = {.name = t->name, .type = t->type, .ndim = t->ndim};
    int64_t row = b->rows ? b->bytes / b->rows : 0;

    for (int i = 0; i < t->ndim; i++)
        item.shape[i] = i ? t->shape[i] : b->rows;
    item.bytes = b->bytes ? (const char *)t->bytes + b->first * row : "";
    return item;
}

static ls_status finish_plan(plan *p, ls_safetensors_item *items, int n)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_safetensors_layout(items, n, &p->head), out);
    p->pieces = ls_mem_array((size_t)n + 1, sizeof *p->pieces);
    p->object.bytes = (int64_t)p->head.len + p->bytes;
    p->object.crcs = ls_mem_array((size_t)ls_ckpt_blocks(p->object.bytes), sizeof(uint32_t));
    if (!p->pieces || !p->object.crcs) {
        st = LS_ENOMEM;
        goto out;
    }
    p->pieces[p->n_pieces++] = (ls_ckpt_piece){.bytes = p->head.p, .len = (int64_t)p->head.len};
    for (int i = 0; i < n; i++)
        p->pieces[p->n_pieces++] = (ls_ckpt_piece){
            .bytes = items[i].bytes, .len = items[i].end - items[i].begin, .spilled = p->spilled};
    hash_pieces(p);
out:
    return st;
}

static ls_status plan_objects(save *s)
{
    ls_status st = LS_OK;
    ls_safetensors_item *items = NULL;

    for (int i = 0; i < s->n; i++)
        LS_TRY(st, plan_tensor(s, i), out);
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
        LS_TRY(st, finish_plan(&s->plans[p], items, n), out);
    }
out:
    ls_mem_free(items);
    return st;
}

/* --- the manifest in memory ---------------------------------------------------------------------
 */

static int order_objects(const void *a, const void *b)
{
    const ls_ckpt_object *x = a, *y = b;

    return ls_ckpt_hash_order(x->hash, y->hash);
}

/* The object table: each content once, sorted. */
static ls_status list_objects(save *s)
{
    ls_ckpt *c = &s->ckpt;
    int n = 0;

    c->objects = ls_arena_alloc(&c->arena, (size_t)s->n_plans * sizeof *c->objects);
    if (!c->objects)
        return LS_ENOMEM;
    for (int i = 0; i < s->n_plans; i++)
        c->objects[i] = s->plans[i].object; /* crcs borrowed from the plan */
    qsort(c->objects, (size_t)s->n_plans, sizeof *c->objects, order_objects);
    for (int i = 0; i < s->n_plans; i++)
        if (n == 0 || order_objects(&c->objects[n - 1], &c->objects[i]) != 0)
            c->objects[n++] = c->objects[i];
    c->n_objects = n;
    return LS_OK;
}

static ls_status fill_row(save *s, ls_ckpt_row *row, const ls_ckpt_tensor *t)
{
    ls_ckpt *c = &s->ckpt;
    int first = 0, n = 0;

    while (s->slabs[first].tensor != t - s->tensors)
        first++;
    while (first + n < s->n_slabs && s->slabs[first + n].tensor == t - s->tensors)
        n++;
    *row = (ls_ckpt_row){.name = t->name, .kind = t->kind, .type = t->type, .ndim = t->ndim};
    memcpy(row->shape, t->shape, sizeof row->shape);
    row->n_boxes = n;
    row->boxes = ls_arena_alloc(&c->arena, (size_t)n * sizeof *row->boxes);
    if (!row->boxes)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++) {
        const slab *b = &s->slabs[first + i];
        ls_ckpt_box *box = &row->boxes[i];
        const ls_ckpt_object *o = bsearch(&s->plans[b->plan].object, c->objects,
                                          (size_t)c->n_objects, sizeof *o, order_objects);
        memcpy(box->shape, t->shape, sizeof box->shape);
        box->object = (int)(o - c->objects);
        box->key = t->name;
        box->offset[0] = b->first;
        if (t->ndim)
            box->shape[0] = b->rows;
    }
    return LS_OK;
}

static ls_status build_manifest(save *s)
{
    ls_status st = LS_OK;
    ls_ckpt *c = &s->ckpt;
    const ls_ckpt_tensor **sorted = NULL;

    LS_TRY(st, sort_tensors(s->tensors, s->n, &sorted), out);
    LS_TRY(st, list_objects(s), out);
    c->rows = ls_arena_alloc(&c->arena, (size_t)s->n * sizeof *c->rows);
    if (!c->rows) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int i = 0; i < s->n; i++)
        LS_TRY(st, fill_row(s, &c->rows[i], sorted[i]), out);
    c->n_rows = s->n;
    for (int i = 0; i < c->n_objects; i++)
        c->info.total_bytes += c->objects[i].bytes;
    if (!c->info.weights_hash[0])
        LS_TRY(st, ls_ckpt_weights_hash(s->tensors, s->n, c->info.weights_hash), out);
out:
    ls_mem_free(sorted);
    return st;
}

/* --- look, reserve, write -----------------------------------------------------------------------
 */

static ls_status look_for_object(save *s, plan *p)
{
    ls_status st = LS_OK;
    struct stat info;
    ls_str path;

    ls_str_init(&path);
    ls_ckpt_object_path(s->store->dir, p->object.hash, &path);
    LS_TRY(st, ls_str_status(&path), out);
    if (stat(path.p, &info) != 0)
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

/* Which of the objects must be written? Equal ones are written once. */
static ls_status look(save *s)
{
    ls_status st = LS_OK;
    ls_ckpt_saved *saved = &s->saved;

    for (int i = 0; i < s->n_plans; i++) {
        plan *p = &s->plans[i];
        bool twin = false;
        for (int j = 0; j < i && !twin; j++)
            twin = ls_hash_equal(s->plans[j].object.hash, p->object.hash);
        if (twin) {
            p->present = true;
            continue;
        }
        LS_TRY(st, look_for_object(s, p), out);
        saved->bytes_written += p->present ? 0 : p->object.bytes;
        saved->bytes_reused += p->present ? p->object.bytes : 0;
        saved->objects_written += !p->present;
        saved->objects_reused += p->present;
    }
out:
    return st;
}

/* Bytes on disk that the save will take: whole pages, folders, and the manifest. */
static int64_t bytes_needed(const save *s, size_t manifest_bytes)
{
    int64_t need = ls_round_up((int64_t)manifest_bytes + 512, 4096) + 4096;

    for (int i = 0; i < s->n_plans; i++)
        if (!s->plans[i].present)
            need += ls_round_up(s->plans[i].object.bytes, 4096) + 4096;
    return need;
}

static ls_status reserve(save *s, size_t manifest_bytes)
{
    ls_status st = LS_OK;
    int64_t need = bytes_needed(s, manifest_bytes), left = 0, swept = 0;

    LS_TRY(st, ls_file_free_bytes(s->store->dir, &left), out);
    if (left < need && ls_ckpt_sweep(s->store, &swept) == LS_OK && swept > 0) {
        /* what an interrupted save left behind may be all it takes; it may also be what this save
         * wanted to reuse */
        s->saved = (ls_ckpt_saved){.seconds = 0};
        for (int i = 0; i < s->n_plans; i++)
            s->plans[i].present = s->plans[i].replace = false;
        LS_TRY(st, look(s), out);
        need = bytes_needed(s, manifest_bytes);
        LS_TRY(st, ls_file_free_bytes(s->store->dir, &left), out);
    }
    if (LS_FAULT("ckpt.reserve"))
        left = 0;
    if (left < need) {
        st = ls_fail(LS_EIO, "cannot save step %lld in \"%s\": needs %.1f MiB, %.1f MiB free",
                     (long long)s->ckpt.info.step, s->store->dir, (double)need / (double)LS_MIB,
                     (double)left / (double)LS_MIB);
        ls_err_hint("Free some space there, or keep fewer checkpoints.");
    }
out:
    return st;
}

static ls_status write_objects(save *s)
{
    ls_status st = LS_OK;
    bool touched[256] = {false};
    char folder[LS_CKPT_PATH];
    bool any = false;

    for (int i = 0; i < s->n_plans; i++) {
        plan *p = &s->plans[i];
        if (p->present)
            continue;
        LS_TRY(st, ls_ckpt_object_write(s->store, &p->object, p->pieces, p->n_pieces, p->replace),
               out);
        touched[p->object.hash.hi >> 56] = any = true;
    }
    for (int i = 0; i < 256; i++) {
        if (!touched[i])
            continue;
        snprintf(folder, sizeof folder, "%s/objects/%02x", s->store->dir, (unsigned)i);
        LS_TRY(st, ls_file_sync_dir(folder), out);
    }
    snprintf(folder, sizeof folder, "%s/objects", s->store->dir);
    if (any)
        LS_TRY(st, ls_file_sync_dir(folder), out);
    ls_ckpt_store_remember(s->store, &s->ckpt, NULL);
out:
    return st;
}

/* --- commit -------------------------------------------------------------------------------------
 */

/* The hash that ends the newest manifest before this step, whatever state that one is in. */
static ls_status find_previous(save *s)
{
    ls_status st = LS_OK;
    int64_t *steps = NULL;
    int n = 0;

    LS_TRY(st, ls_ckpt_steps(s->store, &steps, &n), out);
    for (int i = n - 1; i >= 0 && !s->ckpt.has_previous; i--) {
        ls_ckpt *before = NULL;
        if (steps[i] >= s->ckpt.info.step)
            continue;
        st = ls_ckpt_read_manifest(s->store->dir, steps[i], &before);
        if (st == LS_OK) {
            s->ckpt.previous = before->hash;
            s->ckpt.has_previous = true;
        } else if (st != LS_ENOMEM) {
            st = LS_OK; /* a damaged one is no ancestor; find() warns about it */
        }
        ls_ckpt_free(before);
        if (st != LS_OK)
            goto out;
    }
out:
    ls_mem_free(steps);
    return st;
}

static ls_status commit(save *s, ls_str *text)
{
    ls_status st = LS_OK;
    ls_str path, old;
    bool replace = false;

    ls_str_init(&path);
    ls_str_init(&old);
    ls_ckpt_manifest_path(s->store->dir, s->ckpt.info.step, &path);
    LS_TRY(st, ls_str_status(&path), out);
    if ((size_t)snprintf(s->saved.path, sizeof s->saved.path, "%s", path.p) >=
        sizeof s->saved.path) {
        st = ls_fail(LS_EIO, "the path \"%s\" is too long", path.p);
        goto out;
    }
    if (ls_file_exists(path.p)) {
        replace = true;
        if (ls_file_read(path.p, 256 * LS_MIB, &old) == LS_OK &&
            ls_ckpt_manifest_check(old.p, old.len, NULL) == LS_OK &&
            ls_ckpt_manifest_same(old.p, old.len, text))
            goto out; /* the same state was saved before */
        ls_log(LS_LOG_INFO, "replacing \"%s\": its content is another", path.p);
    }
    s->ckpt.info.time_s = (int64_t)time(NULL);
    s->ckpt.info.new_bytes = s->saved.bytes_written;
    LS_TRY(st, find_previous(s), out);
    ls_ckpt_manifest_tail(&s->ckpt, text);
    LS_TRY(st, ls_str_status(text), out);
    LS_TRY(st, ls_ckpt_manifest_commit(s->store, path.p, text, replace), out);
out:
    ls_str_release(&path);
    ls_str_release(&old);
    return st;
}

static ls_status save_all(save *s)
{
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, ls_ckpt_store_hold(s->store), out);
    LS_TRY(st, plan_objects(s), out);
    LS_TRY(st, build_manifest(s), out);
    ls_ckpt_manifest_body(&s->ckpt, &text);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, look(s), out);
    LS_TRY(st, reserve(s, text.len), out);
    LS_TRY(st, write_objects(s), out);
    LS_TRY(st, commit(s, &text), out);
out:
    ls_str_release(&text);
    return st;
}

ls_status ls_ckpt_save(ls_ckpt_store *store, const ls_ckpt_info *info,
                       const ls_ckpt_tensor *tensors, int n, ls_ckpt_saved *saved_out)
{
    ls_status st = LS_OK;
    int64_t start_ns = ls_time_now_ns();
    save s = {.store = store, .tensors = tensors, .n = n};

    LS_BUG_IF(info->step < 0 || info->step > LS_CKPT_MOST_STEP, "step %lld cannot be named",
              (long long)info->step);
    if (pthread_mutex_trylock(&store->saving) != 0)
        return ls_fail(LS_EBUSY, "cannot save step %lld in \"%s\": another save is under way",
                       (long long)info->step, store->dir);
    ls_err_doing("saving step %lld", (long long)info->step);
    ls_arena_init(&s.ckpt.arena);
    s.ckpt.info = *info;
    s.ckpt.info.total_bytes = 0;
    st = save_all(&s);
    s.saved.seconds = (double)(ls_time_now_ns() - start_ns) / 1e9;
    if (st == LS_OK && saved_out)
        *saved_out = s.saved;
    save_release(&s);
    ls_err_done();
    pthread_mutex_unlock(&store->saving);
    return st;
}
