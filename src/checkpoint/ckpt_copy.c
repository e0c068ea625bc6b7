/* ckpt_copy.c -- copies a checkpoint to a second store, and restores damaged objects from there.
 *
 *     store A                      store B (the copy, or checkpoint.mirror)
 *     manifest 100 --- 3. rename -----> manifest 100 (same bytes)
 *     object x     --- 1. write ------> object x           2. sync folders
 *     object y         (whole in B: skipped)
 *
 * A copy takes the steps of a save: whole objects of the other store stay, missing and damaged ones
 * are written, folders are synced, and the manifest, byte for byte the same, is renamed last. So
 * repeating an interrupted copy finishes it, and copying back restores. A damaged source is found
 * while it is read, before the manifest exists. */
#include "checkpoint/ckpt_impl.h"

#include <stdio.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* What the other store has of an object. */
typedef enum state { WHOLE, MISSING, DAMAGED } state;

/* Whether the other store has an object, and whole: it is read and hashed, because a name alone
 * proves nothing. */
static ls_status look(const ls_ckpt_store *to, const ls_ckpt_object *object, state *state_out)
{
    ls_str path;
    ls_status st;

    ls_str_init(&path);
    ls_ckpt_object_path(to->dir, object->hash, &path);
    LS_TRY(st, ls_str_status(&path), out);
    *state_out = MISSING;
    if (!ls_ckpt_file_exists(path.p))
        goto out;
    st = ls_ckpt_object_verify(to->dir, object);
    *state_out = st == LS_OK ? WHOLE : DAMAGED;
    if (st != LS_ENOMEM)
        st = LS_OK;
out:
    ls_str_release(&path);
    return st;
}

/* Read a whole object and write it to another store; the folder there is not synced. */
static ls_status copy_object(const char *from, ls_ckpt_store *to, const ls_ckpt_object *object,
                             bool replace)
{
    ls_ckpt_reader reader;
    ls_status st = ls_ckpt_reader_open(&reader, from, object, NULL);

    if (st != LS_OK)
        return st;
    LS_TRY(st, ls_ckpt_reader_all(&reader), out);
    ls_ckpt_piece piece = {.bytes = reader.bytes, .len = object->bytes};
    LS_TRY(st, ls_ckpt_object_write(to, object, &piece, 1, replace), out);
out:
    ls_ckpt_reader_close(&reader);
    return st;
}

/* Which objects must be copied, and whether there is room for them. Damaged ones are counted with their
 * full size: the new file is written beside the old one. */
static ls_status plan(const ls_ckpt *ckpt, const ls_ckpt_store *to, state *had,
                      ls_ckpt_copied *copied)
{
    int64_t left = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < ckpt->n_objects; i++) {
        int64_t bytes = ckpt->objects[i].bytes;
        LS_TRY(st, look(to, &ckpt->objects[i], &had[i]), out);
        copied->objects_copied += had[i] != WHOLE;
        copied->objects_healed += had[i] == DAMAGED;
        copied->bytes_copied += had[i] != WHOLE ? bytes : 0;
        copied->objects_there += had[i] == WHOLE;
        copied->bytes_there += had[i] == WHOLE ? bytes : 0;
    }
    LS_TRY(st, ls_file_free_bytes(to->dir, &left), out);
    if (left < copied->bytes_copied) {
        st = ls_fail(LS_EIO, "cannot copy step %lld to \"%s\": needs %.1f MiB, %.1f MiB free",
                     (long long)ckpt->info.step, to->dir, ls_size_up(copied->bytes_copied, LS_MIB),
                     ls_size_down(left, LS_MIB));
        ls_err_hint("Free some space there; what has been copied already need not be again.");
    }
out:
    return st;
}

/* The last step of a copy. The text is checked against its own hash before it is written, and left
 * alone where the same one is already there. */
static ls_status copy_manifest(const ls_ckpt *ckpt, ls_ckpt_store *to)
{
    ls_status st = LS_OK;
    ls_str text, path, old;

    ls_str_init(&text);
    ls_str_init(&path);
    ls_str_init(&old);
    ls_ckpt_manifest_path(to->dir, ckpt->info.step, &path);
    LS_TRY(st, ls_str_status(&path), out);
    LS_TRY(st, ls_ckpt_read_file(ckpt->path, LS_CKPT_MANIFEST_LIMIT, &text), out);
    LS_TRY(st, ls_ckpt_manifest_check(text.p, text.len, NULL), out);
    bool there = ls_ckpt_file_exists(path.p);
    if (there && ls_ckpt_read_file(path.p, LS_CKPT_MANIFEST_LIMIT, &old) == LS_OK &&
        old.len == text.len && memcmp(old.p, text.p, text.len) == 0)
        goto out;
    LS_TRY(st, ls_ckpt_manifest_commit(to, path.p, &text, there), out);
out:
    ls_str_release(&text);
    ls_str_release(&path);
    ls_str_release(&old);
    return st;
}

/* A copy in the order of a save: hold the store, plan and reserve, objects, folders, manifest. */
static ls_status copy_all(const ls_ckpt *ckpt, ls_ckpt_store *to, state *had,
                          ls_ckpt_copied *copied)
{
    bool touched[256] = {false};
    ls_status st = LS_OK;

    LS_TRY(st, ls_ckpt_store_hold(to), out);
    LS_TRY(st, plan(ckpt, to, had, copied), out);
    for (int i = 0; i < ckpt->n_objects; i++) {
        if (had[i] == WHOLE)
            continue;
        LS_TRY(st, copy_object(ckpt->dir, to, &ckpt->objects[i], had[i] == DAMAGED), out);
        touched[ckpt->objects[i].hash.hi >> 56] = true;
    }
    LS_TRY(st, ls_ckpt_objects_sync(to->dir, touched), out);
    LS_TRY(st, copy_manifest(ckpt, to), out);
out:
    return st;
}

ls_status ls_ckpt_copy(const ls_ckpt *ckpt, ls_ckpt_store *to, ls_ckpt_copied *copied_out)
{
    state *had = ls_mem_array((size_t)ckpt->n_objects, sizeof *had);
    ls_status st;

    *copied_out = (ls_ckpt_copied){.bytes_copied = 0};
    if (!had)
        return LS_ENOMEM;
    if (pthread_mutex_trylock(&to->saving) == 0) {
        ls_err_doing("copying step %lld", (long long)ckpt->info.step);
        st = copy_all(ckpt, to, had, copied_out);
        ls_err_done();
        pthread_mutex_unlock(&to->saving);
    } else {
        st = ls_fail(LS_EBUSY, "cannot copy step %lld to \"%s\": a save is under way",
                     (long long)ckpt->info.step, to->dir);
    }
    ls_mem_free(had);
    return st;
}

/* --- healing ------------------------------------------------------------------------------------
 */

ls_status ls_ckpt_set_mirror(ls_ckpt_store *store, const char *dir)
{
    char *copy = dir ? ls_mem_strdup(dir) : NULL;

    if (dir && !copy)
        return LS_ENOMEM;
    ls_mem_free(store->mirror);
    store->mirror = copy;
    return LS_OK;
}

/* One object is copied from the mirror over the damaged one. Into a store of this moment only: it holds
 * no lock, because the object's name proves its bytes, and two processes that heal the same object
 * write the same bytes. */
bool ls_ckpt_heal(const ls_ckpt *ckpt, int object)
{
    ls_ckpt_store store = {.lock_fd = -1};
    const ls_ckpt_object *o = &ckpt->objects[object];
    bool touched[256] = {false};
    char dir[LS_CKPT_PATH];
    ls_err_record why = *ls_err_last();
    ls_status st;

    if (!ckpt->mirror)
        return false;
    snprintf(dir, sizeof dir, "%s", ckpt->dir);
    store.dir = dir;
    touched[o->hash.hi >> 56] = true;
    st = copy_object(ckpt->mirror, &store, o, true);
    if (st == LS_OK)
        st = ls_ckpt_objects_sync(dir, touched);
    if (st == LS_OK)
        ls_log(LS_LOG_WARN, "%s; healed from \"%s\"", why.text, ckpt->mirror);
    else
        ls_log(LS_LOG_WARN, "cannot heal from \"%s\": %s", ckpt->mirror, ls_err_last()->text);
    (void)ls_err_adopt(&why);
    return st == LS_OK;
}
