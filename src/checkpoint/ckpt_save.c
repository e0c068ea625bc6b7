/* ckpt_save.c -- makes a committed checkpoint out of what all writers have written.
 *
 *   join      rows of one tensor that came from several writers become one; objects are listed once
 *   check     boxes cover every tensor exactly once; the objects of other writers are visible from
 *             here; what two writers have both hashed is equal
 *   commit    manifest under a temporary name, sync, rename, sync: only the rename commits
 *
 * With one writer (ls_ckpt_save) the parts are whole tensors. With several, each has written its
 * objects (ckpt_pack.c) and sent a report; the process that commits must be able to read what they
 * wrote.
 *
 *     rank 0: rows 0..3 of w in object a   \
 *     rank 1: rows 4..7 of w in object b    >  manifest: w = [0,0]+[4,n] in a, [4,0]+[4,n] in b
 *     rank 2: hash of rows 0..3 of w       /   equal to object a's: or LS_ENUMERIC */
#include "checkpoint/ckpt_impl.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "checkpoint/safetensors.h"

/* Bytes of a tensor that are read back at a time: a whole embedding would be gigabytes. */
enum { ROWS = LS_CKPT_READ_BACK };

typedef struct join {
    ls_ckpt_store *store;
    ls_ckpt ckpt; /* the manifest to be; in its own arena */
    ls_ckpt_saved saved;
} join;

/* --- the hash of the weights --------------------------------------------------------------------
 */

static int order_tensors(const void *a, const void *b)
{
    const ls_ckpt_tensor *x = *(const ls_ckpt_tensor *const *)a;
    const ls_ckpt_tensor *y = *(const ls_ckpt_tensor *const *)b;

    return ls_ckpt_name_order(x->name, x->kind, y->name, y->kind);
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
        if (ls_ckpt_tensor_check(&tensors[i], tensors[i].shape, &bytes) != LS_OK) {
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

/* What of a tensor goes before its bytes. */
static void hash_head(ls_hash_stream *hash, const ls_ckpt_tensor *t)
{
    const char *type = ls_safetensors_dtype_name(t->type);
    int64_t rank = t->ndim;

    ls_hash_add(hash, t->name, strlen(t->name) + 1);
    ls_hash_add(hash, type, strlen(type) + 1);
    ls_hash_add(hash, &rank, sizeof rank);
    ls_hash_add(hash, t->shape, (size_t)t->ndim * sizeof t->shape[0]);
}

ls_status ls_ckpt_weights_hash(const ls_ckpt_tensor *tensors, int n, char hex_out[33])
{
    const ls_ckpt_tensor **sorted = NULL;
    ls_hash_stream hash;
    ls_status st = sort_tensors(tensors, n, &sorted);

    if (st != LS_OK)
        return st;
    ls_hash_begin(&hash);
    for (int i = 0; i < n; i++) {
        const ls_ckpt_tensor *t = sorted[i];
        int64_t bytes;
        if (strcmp(t->kind, "param") != 0 || ls_ckpt_tensor_check(t, t->shape, &bytes) != LS_OK)
            continue;
        hash_head(&hash, t);
        ls_hash_add(&hash, t->bytes, (size_t)bytes);
    }
    ls_hash_hex(ls_hash_end(&hash), hex_out);
    ls_mem_free(sorted);
    return LS_OK;
}

/* One tensor of the store, some rows at a time: of [50257, 768] in float32, which has 147 MiB, 1,365
 * rows of 3 KiB, which are just below 4 MiB. */
static ls_status hash_rows(ls_hash_stream *hash, const ls_ckpt *ckpt, const ls_ckpt_tensor *t,
                           int64_t bytes)
{
    int64_t rows = t->ndim > 0 ? t->shape[0] : 1, offset[LS_CKPT_RANK] = {0}, shape[LS_CKPT_RANK];
    int64_t row = rows > 0 ? bytes / rows : 0, each = ls_max_i64(1, ROWS / ls_max_i64(1, row));
    ls_status st = LS_OK;

    each = ls_min_i64(each, rows);
    void *memory = ls_mem_alloc((size_t)(each * row));
    if (!memory)
        return LS_ENOMEM;
    memcpy(shape, t->shape, sizeof shape);
    for (int64_t first = 0; first < rows; first += each) {
        offset[0] = first;
        shape[0] = ls_min_i64(each, rows - first);
        LS_TRY(st, ls_ckpt_read_box(ckpt, t->name, t->kind, offset, shape, memory), out);
        ls_hash_add(hash, memory, (size_t)(shape[0] * row));
    }
out:
    ls_mem_free(memory);
    return st;
}

/* The same for weights that exist only in the store. */
static ls_status hash_stored(const ls_ckpt *ckpt, char hex_out[33])
{
    ls_hash_stream hash;
    ls_status st = LS_OK;

    ls_hash_begin(&hash);
    for (int i = 0; i < ckpt->n_rows; i++) { /* in order of name, as they are */
        ls_ckpt_tensor t = ls_ckpt_nth(ckpt, i);
        int64_t bytes;
        if (strcmp(t.kind, "param") != 0 || !ls_safetensors_elements(t.shape, t.ndim, &bytes))
            continue;
        hash_head(&hash, &t);
        LS_TRY(st, hash_rows(&hash, ckpt, &t, bytes * ls_dtype_bytes(t.type)), out);
    }
    ls_hash_hex(ls_hash_end(&hash), hex_out);
out:
    return st;
}

/* --- join ---------------------------------------------------------------------------------------
 */

/* All objects of all writers, each once. */
static ls_status join_objects(join *s, const ls_ckpt_added *added, int n)
{
    ls_ckpt *c = &s->ckpt;
    int all = 0;

    for (int i = 0; i < n; i++)
        all += added[i].ckpt.n_objects;
    c->objects = ls_arena_alloc(&c->arena, (size_t)all * sizeof *c->objects);
    if (!c->objects)
        return LS_ENOMEM;
    all = 0;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < added[i].ckpt.n_objects; o++)
            c->objects[all++] = added[i].ckpt.objects[o]; /* crcs borrowed */
    c->n_objects = ls_ckpt_objects_sort(c->objects, all);
    for (int o = 0; o < c->n_objects; o++)
        c->info.total_bytes += c->objects[o].bytes;
    return LS_OK;
}

/* The boxes of a row, numbered by the joined objects, behind those that it has. Each writer numbers its
 * own objects from 0:
 *
 *     writer 0: objects 5a, 77    w: box in 0      ->   objects 0c, 5a, 77    w: boxes in 1 and 0
 *     writer 1: objects 0c        w: box in 0 */
static ls_status join_row(join *s, ls_ckpt_row *row, const ls_ckpt *from, const ls_ckpt_row *more)
{
    size_t n = (size_t)(row->n_boxes + more->n_boxes);
    ls_ckpt_box *boxes = ls_arena_alloc(&s->ckpt.arena, n * sizeof *boxes);

    if (!boxes)
        return LS_ENOMEM;
    if (row->type != more->type || row->ndim != more->ndim ||
        memcmp(row->shape, more->shape, (size_t)row->ndim * sizeof row->shape[0]) != 0)
        return ls_fail(LS_EDATA, "writers do not agree about the shape of tensor \"%s\" (%s)",
                       row->name, row->kind);
    if (row->n_boxes)
        memcpy(boxes, row->boxes, (size_t)row->n_boxes * sizeof *boxes);
    for (int b = 0; b < more->n_boxes; b++) {
        ls_ckpt_box *box = &boxes[row->n_boxes + b];
        *box = more->boxes[b];
        box->object = ls_ckpt_object_index(&s->ckpt, from->objects[box->object].hash);
    }
    row->boxes = boxes;
    row->n_boxes = (int)n;
    return LS_OK;
}

/* A row and where it came from. */
typedef struct source {
    ls_ckpt_row row;
    const ls_ckpt *from;
} source;

/* Rows of all writers, sorted by name and kind; rows of one tensor become one that has all their
 * boxes, renumbered by the joined objects. */
static ls_status join_rows(join *s, const ls_ckpt_added *added, int n)
{
    ls_ckpt *c = &s->ckpt;
    ls_status st = LS_OK;
    int all = 0;

    for (int i = 0; i < n; i++)
        all += added[i].ckpt.n_rows;
    source *rows = ls_mem_array((size_t)all, sizeof *rows);
    c->rows = ls_arena_alloc(&c->arena, (size_t)all * sizeof *c->rows);
    if (!rows || !c->rows) {
        st = LS_ENOMEM;
        goto out;
    }
    all = 0;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < added[i].ckpt.n_rows; r++)
            rows[all++] = (source){added[i].ckpt.rows[r], &added[i].ckpt};
    if (all)
        qsort(rows, (size_t)all, sizeof *rows, ls_ckpt_row_order);
    for (int i = 0; i < all; i++) {
        if (c->n_rows == 0 || ls_ckpt_row_order(&c->rows[c->n_rows - 1], &rows[i].row) != 0) {
            c->rows[c->n_rows] = rows[i].row;
            c->rows[c->n_rows++].n_boxes = 0;
        }
        LS_TRY(st, join_row(s, &c->rows[c->n_rows - 1], rows[i].from, &rows[i].row), out);
    }
    for (int r = 0; r < c->n_rows; r++)
        LS_TRY(st, ls_ckpt_row_check(&c->rows[r]), out);
out:
    ls_mem_free(rows);
    return st;
}

/* Join objects and rows of all writers; then every tensor must be covered exactly once. */
static ls_status join_all(join *s, const ls_ckpt_added *added, int n)
{
    ls_status st = LS_OK;

    for (int i = 0; i < n; i++) {
        s->saved.bytes_written += added[i].saved.bytes_written;
        s->saved.bytes_reused += added[i].saved.bytes_reused;
        s->saved.objects_written += added[i].saved.objects_written;
        s->saved.objects_reused += added[i].saved.objects_reused;
        s->saved.most_bytes = ls_max_i64(s->saved.most_bytes, added[i].saved.bytes_written +
                                                                  added[i].saved.bytes_reused);
        s->saved.writers += added[i].ckpt.n_objects > 0;
    }
    LS_TRY(st, join_objects(s, added, n), out);
    LS_TRY(st, join_rows(s, added, n), out);
out:
    return st;
}

/* --- commit -------------------------------------------------------------------------------------
 */

/* The hash that ends the newest manifest before this step. A damaged one is no ancestor; find()
 * warns about it. */
static ls_status find_previous(join *s)
{
    ls_ckpt *before = NULL;
    ls_status st = ls_ckpt_read_newest(s->store, s->ckpt.info.step, &before);

    if (before) {
        s->ckpt.previous = before->hash;
        s->ckpt.has_previous = true;
    }
    ls_ckpt_free(before);
    return st;
}

/* The commit token: no newer group writes here, and the holder of the token agrees. */
static ls_status may_commit(const join *s)
{
    const ls_ckpt_info *info = &s->ckpt.info;
    int64_t newest;
    ls_status st = ls_ckpt_claimed(s->store, &newest);

    if (st == LS_OK && newest > info->generation) {
        st = ls_fail(LS_EBUSY,
                     "step %lld of generation %lld is not saved: generation %lld writes to \"%s\" "
                     "now",
                     (long long)info->step, (long long)info->generation, (long long)newest,
                     s->store->dir);
        ls_err_hint("Another group of processes has taken over this run; this one must stop.");
    }
    if (st == LS_OK && s->store->token)
        st = s->store->token(s->store->token_context, info);
    return st;
}

/* Write the tail of the manifest and rename it into place, unless the same state is already saved
 * under this step: a run that was killed behind its save, and has come to the same step again, finds
 * the same body and leaves time and chain of the first one as they are. The commit token is asked
 * for last, directly before the rename. */
static ls_status commit(join *s, ls_str *text)
{
    ls_status st = LS_OK;
    ls_str path, old;
    bool replace = false;
    ls_ckpt_trust trust;

    ls_str_init(&path);
    ls_str_init(&old);
    ls_ckpt_manifest_path(s->store->dir, s->ckpt.info.step, &path);
    LS_TRY(st, ls_str_status(&path), out);
    if ((size_t)snprintf(s->saved.path, sizeof s->saved.path, "%s", path.p) >=
        sizeof s->saved.path) {
        st = ls_fail(LS_EIO, "the path \"%s\" is too long", path.p);
        goto out;
    }
    if (ls_ckpt_file_exists(path.p)) {
        replace = true;
        if (ls_ckpt_read_file(path.p, LS_CKPT_MANIFEST_LIMIT, &old) == LS_OK &&
            ls_ckpt_manifest_check(old.p, old.len, NULL) == LS_OK &&
            ls_ckpt_manifest_same(old.p, old.len, text) &&
            ls_ckpt_check_trust(s->store->key, old.p, old.len, &trust) == LS_OK)
            goto out; /* the same state was saved before */
        ls_log(LS_LOG_INFO, "replacing \"%s\": its content is another", path.p);
    }
    s->ckpt.info.time_s = (int64_t)time(NULL);
    s->ckpt.info.new_bytes = s->saved.bytes_written;
    LS_TRY(st, find_previous(s), out);
    if (s->store->key)
        LS_TRY(st, ls_ckpt_bind_objects(&s->ckpt), out);
    LS_TRY(st, ls_ckpt_manifest_tail(&s->ckpt, s->store->key, text), out);
    LS_TRY(st, may_commit(s), out);
    LS_TRY(st, ls_ckpt_manifest_commit(s->store, path.p, text, replace), out);
out:
    ls_str_release(&path);
    ls_str_release(&old);
    return st;
}

/* --- from memory, by one writer -----------------------------------------------------------------
 */

/* The size of a manifest without its tables, about: four texts of the caller, and 1 KiB for the rest. It
 * is part of what must be free before a save begins. */
static int64_t text_bytes(const ls_ckpt_info *info)
{
    const char *texts[] = {info->run_name, info->mesh, info->config, info->extra};
    size_t bytes = 1024;

    for (size_t i = 0; i < LS_COUNT(texts); i++)
        bytes += texts[i] ? strlen(texts[i]) : 0;
    return (int64_t)bytes;
}

/* The hash of the weights, computed while objects are written. */
typedef struct hash_job {
    const ls_ckpt_tensor *tensors;
    int n;
    char hex[33];
    ls_status status;
    ls_err_record why;
} hash_job;

static void hash_weights(void *context)
{
    hash_job *w = context;

    w->status = ls_ckpt_weights_hash(w->tensors, w->n, w->hex);
    if (w->status != LS_OK)
        w->why = *ls_err_last();
}

/* A save by one process: its parts are whole tensors. The hash of the weights is computed beside
 * the writing. */
static ls_status save_all(join *s, const ls_ckpt_tensor *tensors, int n)
{
    ls_ckpt_info *info = &s->ckpt.info;
    ls_ckpt_writing how = {.step = info->step, .writers = 1, .manifest_bytes = text_bytes(info)};
    ls_ckpt_part *parts = ls_ckpt_whole_parts(tensors, n);
    ls_ckpt_added added = {.saved = {.seconds = 0}};
    const ls_ckpt_tensor **sorted = NULL;
    hash_job job = {.tensors = tensors, .n = n};
    const ls_ckpt_aside aside = {.run = info->weights_hash[0] ? NULL : hash_weights,
                                 .context = &job};
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    ls_arena_init(&added.ckpt.arena);
    LS_TRY(st, parts ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, ls_ckpt_store_hold(s->store), out);
    LS_TRY(st, sort_tensors(tensors, n, &sorted), out); /* each once, before anything is written */
    LS_TRY(st, ls_ckpt_add_parts(s->store, &how, parts, n, &aside, &added), out);
    LS_TRY(st, job.status == LS_OK ? LS_OK : ls_err_adopt(&job.why), out);
    if (aside.run)
        memcpy(info->weights_hash, job.hex, sizeof job.hex);
    LS_TRY(st, join_all(s, &added, 1), out);
    ls_ckpt_manifest_body(&s->ckpt, &text);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, commit(s, &text), out);
out:
    ls_ckpt_added_release(&added);
    ls_mem_free(parts);
    ls_mem_free(sorted);
    ls_str_release(&text);
    return st;
}

/* Take the store, and note for errors what is being done; and the reverse. */
static ls_status begin(join *s, ls_ckpt_store *store, const ls_ckpt_info *info)
{
    LS_BUG_IF(info->step < 0 || info->step > LS_CKPT_MOST_STEP, "step %lld cannot be named",
              (long long)info->step);
    if (pthread_mutex_trylock(&store->saving) != 0)
        return ls_fail(LS_EBUSY, "cannot save step %lld in \"%s\": another save is under way",
                       (long long)info->step, store->dir);
    ls_err_doing("saving step %lld", (long long)info->step);
    *s = (join){.store = store};
    ls_arena_init(&s->ckpt.arena);
    s->ckpt.info = *info;
    s->ckpt.info.total_bytes = 0;
    return LS_OK;
}

static void end(join *s)
{
    ls_arena_release(&s->ckpt.arena);
    ls_err_done();
    pthread_mutex_unlock(&s->store->saving);
}

ls_status ls_ckpt_save(ls_ckpt_store *store, const ls_ckpt_info *info,
                       const ls_ckpt_tensor *tensors, int n, ls_ckpt_saved *saved_out)
{
    int64_t start_ns = ls_time_now_ns();
    join s;
    ls_status st = begin(&s, store, info);

    if (st != LS_OK)
        return st;
    st = save_all(&s, tensors, n);
    s.saved.seconds = (double)(ls_time_now_ns() - start_ns) / 1e9;
    if (st == LS_OK && saved_out)
        *saved_out = s.saved;
    end(&s);
    return st;
}

/* --- from reports of several writers ------------------------------------------------------------
 */

/* Wait until objects of other writers are visible here. On a network file system that may take
 * until its cache of a folder has expired. */
static ls_status await_objects(const join *s, int64_t deadline_ns)
{
    ls_ckpt seen = s->ckpt;
    ls_status st;

    seen.dir = s->store->dir;
    for (;;) {
        st = ls_ckpt_objects_there(&seen);
        if (st == LS_OK || st == LS_ENOMEM || ls_time_now_ns() >= deadline_ns)
            break;
        usleep(50 * 1000);
    }
    if (st == LS_EDATA)
        ls_err_hint("Ranks on other hosts write to the same folder: it must lie on a file system "
                    "that all of them share.");
    return st;
}

/* What a writer hashed although another one wrote it must be there with this content. */
static ls_status compare(const join *s, const ls_ckpt_added *seen, int writer)
{
    const ls_ckpt *c = &seen->ckpt;

    for (int r = 0; r < c->n_rows; r++)
        for (int b = 0; b < c->rows[r].n_boxes; b++)
            if (ls_ckpt_object_index(&s->ckpt, c->objects[c->rows[r].boxes[b].object].hash) < 0) {
                ls_status st = ls_fail(LS_ENUMERIC,
                                       "replicas differ: tensor \"%s\" (%s), or another one of its "
                                       "group, is not the same on rank %d and on the one that "
                                       "writes it",
                                       c->rows[r].name, c->rows[r].kind, writer);
                ls_err_hint("Memory or arithmetic of one of them is not to be trusted; the "
                            "checkpoint before is whole.");
                return st;
            }
    return LS_OK;
}

/* A save by several processes: their reports are parsed, joined and compared, and the objects they
 * wrote must be visible here. Reports of writers that only hashed come last. */
static ls_status commit_all(join *s, const ls_ckpt_report *reports, int n, ls_ckpt_added *added,
                            int64_t deadline_ns)
{
    ls_status st = LS_OK;
    int writers = 0;
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, ls_ckpt_store_hold(s->store), out);
    while (writers < n && !reports[writers].seen_only)
        writers++;
    for (int i = 0; i < n; i++)
        LS_TRY(st, ls_ckpt_report_parse(&added[i], reports[i].text, reports[i].len), out);
    LS_TRY(st, join_all(s, added, writers), out);
    for (int i = writers; i < n; i++)
        LS_TRY(st, compare(s, &added[i], reports[i].writer), out);
    LS_TRY(st, await_objects(s, deadline_ns), out);
    if (!s->ckpt.info.weights_hash[0]) {
        s->ckpt.dir = s->ckpt.path = s->store->dir;
        LS_TRY(st, hash_stored(&s->ckpt, s->ckpt.info.weights_hash), out);
    }
    ls_ckpt_manifest_body(&s->ckpt, &text);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, commit(s, &text), out);
out:
    ls_str_release(&text);
    return st;
}

ls_status ls_ckpt_commit(ls_ckpt_store *store, const ls_ckpt_info *info,
                         const ls_ckpt_report *reports, int n, int64_t deadline_ns,
                         ls_ckpt_saved *saved_out)
{
    ls_ckpt_added *added = ls_mem_array((size_t)n, sizeof *added);
    join s;
    ls_status st = added ? begin(&s, store, info) : LS_ENOMEM;

    if (st == LS_OK) {
        for (int i = 0; i < n; i++)
            ls_arena_init(&added[i].ckpt.arena);
        st = commit_all(&s, reports, n, added, deadline_ns);
        if (st == LS_OK && saved_out)
            *saved_out = s.saved;
        for (int i = 0; i < n; i++)
            ls_ckpt_added_release(&added[i]);
        end(&s);
    }
    ls_mem_free(added);
    return st;
}
