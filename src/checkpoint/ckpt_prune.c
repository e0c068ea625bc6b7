/* ckpt_prune.c -- removes old manifests, then objects that no manifest names, then temporary files
 * of dead writers.
 *
 * The order is the reverse of saving: a manifest is removed and the folder synced before any of its
 * objects go, so no crash leaves a manifest whose objects are missing. Objects stay when any
 * readable manifest names them, also one that is not usable now: its missing object may be brought
 * back. When a manifest cannot be read for another reason than damage, nothing is removed, because
 * we do not know what it names.
 *
 *     steps 100 200 300 400 500, keep 2, keep_every 200, 100 pinned:   100 200 . 400 500
 *
 * What stays: the newest `keep` that are usable; those whose step is a multiple of `keep_every`;
 * the best, which is the newest that its manifest calls so; pinned ones, which have an empty file
 * step-<10 digits>.pin beside their manifest; and, where there is a key, those that are not signed
 * with it. */
#include "checkpoint/ckpt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"

/* Objects that manifests name, sorted. */
typedef struct name_set {
    ls_hash *hashes; /* owned */
    int n, cap;
} name_set;

/* All objects of a manifest; names that several manifests have stand several times. */
static ls_status add_names(name_set *set, const ls_ckpt *ckpt)
{
    ls_status st = LS_OK;

    for (int i = 0; i < ckpt->n_objects && st == LS_OK; i++) {
        st = ls_ckpt_grow((void **)&set->hashes, set->n, &set->cap, sizeof *set->hashes);
        if (st == LS_OK)
            set->hashes[set->n++] = ckpt->objects[i].hash;
    }
    return st;
}

/* A prune under way, and its results. */
typedef struct pruning {
    ls_ckpt_store *store;
    const ls_ckpt_pruning *how;
    int64_t *gone; /* steps whose manifests go; owned */
    int n_gone;
    int64_t freed;
} pruning;

static bool is_gone(const pruning *x, int64_t step)
{
    for (int i = 0; i < x->n_gone; i++)
        if (x->gone[i] == step)
            return true;
    return false;
}

/* The objects that any readable manifest names. A manifest that is damaged names nothing; one that
 * cannot be read for another reason stops the sweep. */
static ls_status collect_names(const pruning *x, name_set *set)
{
    const ls_ckpt_store *store = x->store;
    ls_status st = LS_OK;
    int64_t *steps = NULL;
    int n = 0;

    LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    for (int i = 0; i < n; i++) {
        ls_ckpt *ckpt = NULL;
        if (is_gone(x, steps[i])) /* still there when nothing is removed */
            continue;
        st = ls_ckpt_read_manifest(store->dir, steps[i], &ckpt);
        if (st == LS_OK)
            st = add_names(set, ckpt);
        else if (st == LS_EDATA)
            st = LS_OK; /* it names nothing that can be trusted */
        ls_ckpt_free(ckpt);
        if (st != LS_OK)
            goto out;
    }
    if (set->n)
        qsort(set->hashes, (size_t)set->n, sizeof *set->hashes, ls_ckpt_hash_order);
out:
    ls_mem_free(steps);
    return st;
}

/* Remove a file, or in a dry run only report it, and count its bytes. */
static ls_status remove_file(pruning *x, const char *path)
{
    struct stat info;

    if (LS_FAULT("ckpt.prune")) {
        errno = EIO;
        return ls_fail_sys(LS_EIO, "cannot remove \"%s\"", path);
    }
    if (ls_ckpt_stat_file(path, &info) != 0)
        return errno == ENOENT ? LS_OK : ls_fail_sys(LS_EIO, "cannot remove \"%s\"", path);
    if (!x->how->dry && unlink(path) != 0 && errno != ENOENT)
        return ls_fail_sys(LS_EIO, "cannot remove \"%s\"", path);
    x->freed += info.st_size;
    if (x->how->tell)
        x->how->tell(path, info.st_size, x->how->context);
    return LS_OK;
}

/* The hash in an object's name; false for other names, such as what a user has put into the folder: that
 * is never removed. */
static bool object_of_name(const char *name, ls_hash *hash_out)
{
    char hex[LS_HASH_HEX] = "";

    if (strlen(name) < LS_HASH_HEX - 1 || strcmp(name + LS_HASH_HEX - 1, ".safetensors") != 0)
        return false;
    memcpy(hex, name, LS_HASH_HEX - 1);
    for (int i = 0; i < LS_HASH_HEX - 1; i++)
        if (!strchr("0123456789abcdef", hex[i]))
            return false;
    return ls_hash_parse(hex, hash_out) == LS_OK;
}

/* Remove from one folder of objects what no manifest names, and temporary files of dead writers. */
static ls_status sweep_folder(pruning *x, const char *folder, const name_set *set)
{
    ls_status st = LS_OK;
    ls_str path;
    DIR *d = opendir(folder);

    if (!d)
        return errno == ENOENT || errno == ENOTDIR
                   ? LS_OK
                   : ls_fail_sys(LS_EIO, "cannot list \"%s\"", folder);
    ls_str_init(&path);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        ls_hash hash;
        ls_str_clear(&path);
        ls_str_printf(&path, "%s/%s", folder, e->d_name);
        LS_TRY(st, ls_str_status(&path), out);
        if (strncmp(e->d_name, LS_CKPT_TEMP, strlen(LS_CKPT_TEMP)) == 0 && !x->how->dry)
            ls_ckpt_temp_sweep(path.p);
        else if (set && object_of_name(e->d_name, &hash) &&
                 (!set->n ||
                  !bsearch(&hash, set->hashes, (size_t)set->n, sizeof hash, ls_ckpt_hash_order)))
            LS_TRY(st, remove_file(x, path.p), out);
    }
out:
    closedir(d);
    ls_str_release(&path);
    return st;
}

/* Temporary files in the store itself, then all 256 folders of objects. */
static ls_status sweep(pruning *x)
{
    ls_status st = LS_OK;
    name_set set = {.n = 0};
    const char *dir = x->store->dir;
    char folder[LS_CKPT_PATH];

    LS_TRY(st, collect_names(x, &set), out);
    LS_TRY(st, sweep_folder(x, dir, NULL), out);
    for (int i = 0; i < 256; i++) {
        if ((size_t)snprintf(folder, sizeof folder, "%s/objects/%02x", dir, (unsigned)i) >=
            sizeof folder)
            continue;
        LS_TRY(st, sweep_folder(x, folder, &set), out);
    }
out:
    ls_mem_free(set.hashes);
    return st;
}

ls_status ls_ckpt_sweep(ls_ckpt_store *store, int64_t *freed_out)
{
    const ls_ckpt_pruning how = {.dry = false};
    pruning x = {.store = store, .how = &how};
    ls_status st = sweep(&x);

    *freed_out = x.freed;
    return st;
}

/* --- what is kept -------------------------------------------------------------------------------
 */

static ls_status pin_path(const ls_ckpt_store *store, int64_t step, char path_out[LS_CKPT_PATH])
{
    if ((size_t)snprintf(path_out, LS_CKPT_PATH, "%s/step-%010lld.pin", store->dir,
                         (long long)step) >= LS_CKPT_PATH)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", store->dir);
    return LS_OK;
}

bool ls_ckpt_is_pinned(const ls_ckpt_store *store, int64_t step)
{
    char path[LS_CKPT_PATH];

    return pin_path(store, step, path) == LS_OK && ls_ckpt_file_exists(path);
}

ls_status ls_ckpt_pin(const ls_ckpt_store *store, int64_t step, bool pinned)
{
    char path[LS_CKPT_PATH];
    bool before = ls_ckpt_is_pinned(store, step);
    ls_ckpt *ckpt = NULL;
    ls_status st = pin_path(store, step, path);

    if (st == LS_OK && !pinned) {
        if (unlink(path) != 0)
            st = errno == ENOENT ? ls_fail(LS_EUSAGE, "step %lld is not pinned", (long long)step)
                                 : ls_fail_sys(LS_EIO, "cannot remove \"%s\"", path);
        return st == LS_OK ? ls_ckpt_sync_folder(store->dir) : st;
    }
    if (st == LS_OK)
        st = ls_file_write_atomic(path, "", 0);
    /* Checked after the pin exists: a run that prunes at this moment has removed the checkpoint, or
     * sees the pin. */
    if (st == LS_OK)
        st = ls_ckpt_find(store, step, &ckpt, NULL);
    if (st != LS_OK && !before)
        (void)unlink(path);
    ls_ckpt_free(ckpt);
    return st;
}

/* Whether a checkpoint that is not among the newest stays. */
static bool is_kept(const pruning *x, int64_t step)
{
    int64_t every = x->how->keep_every;

    return (every > 0 && step % every == 0) || ls_ckpt_is_pinned(x->store, step) ||
           (x->how->like && ls_ckpt_is_pinned(x->how->like, step));
}

/* Remove manifests: verified ones beyond the newest `keep`, and damaged ones that are older than
 * the newest verified one (a damaged newer one stays, so that a person can look at it). */
static ls_status prune_manifests(pruning *x)
{
    ls_ckpt_store *store = x->store;
    int64_t keep = ls_max_i64(x->how->keep, ls_max_i64(x->how->least, 1));
    ls_status st = LS_OK;
    int64_t *steps = NULL, verified = 0;
    bool best_seen = false;
    int n = 0;
    ls_str path;

    ls_str_init(&path);
    LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    x->gone = ls_mem_array((size_t)n, sizeof *x->gone);
    LS_TRY(st, x->gone ? LS_OK : LS_ENOMEM, out);
    for (int i = n - 1; i >= 0; i--) {
        ls_ckpt *ckpt = NULL;
        st = ls_ckpt_find(store, steps[i], &ckpt, NULL);
        bool best = st == LS_OK && ls_ckpt_about(ckpt)->best && !best_seen;
        best_seen |= best;
        ls_ckpt_free(ckpt);
        if (st != LS_OK && st != LS_EDATA)
            goto out;
        bool usable = st == LS_OK;
        st = LS_OK;
        if (!usable && ls_ckpt_is_foreign(store, steps[i]))
            continue; /* it neither counts nor goes: it may be older than the key */
        verified += usable;
        if (verified == 0 || (usable && verified <= keep) || best || is_kept(x, steps[i]))
            continue;
        ls_str_clear(&path);
        ls_ckpt_manifest_path(store->dir, steps[i], &path);
        LS_TRY(st, ls_str_status(&path), out);
        LS_TRY(st, remove_file(x, path.p), out);
        x->gone[x->n_gone++] = steps[i];
    }
    if (x->n_gone && !x->how->dry)
        LS_TRY(st, ls_ckpt_sync_folder(store->dir), out);
out:
    ls_mem_free(steps);
    ls_str_release(&path);
    return st;
}

/* Before a save that would find no space. Leftovers are what killed writers have written and no manifest
 * names yet; what a living writer of this job has written looks the same, so the caller must know that
 * there is none. */
ls_status ls_ckpt_make_room(ls_ckpt_store *store, int64_t bytes)
{
    ls_status st = LS_OK;
    int64_t left = 0, swept;

    if (pthread_mutex_trylock(&store->saving) != 0)
        return ls_fail(LS_EBUSY, "cannot sweep \"%s\": a save is under way", store->dir);
    LS_TRY(st, ls_ckpt_store_hold(store), out);
    LS_TRY(st, ls_file_free_bytes(store->dir, &left), out);
    if (left < bytes)
        LS_TRY(st, ls_ckpt_sweep(store, &swept), out);
out:
    pthread_mutex_unlock(&store->saving);
    return st;
}

ls_status ls_ckpt_prune_by(ls_ckpt_store *store, const ls_ckpt_pruning *how, int64_t *freed_out)
{
    pruning x = {.store = store, .how = how};
    ls_status st = LS_OK;

    if (pthread_mutex_trylock(&store->saving) != 0)
        return ls_fail(LS_EBUSY, "cannot prune \"%s\": a save is under way", store->dir);
    if (!how->dry)
        LS_TRY(st, ls_ckpt_store_hold(store), out);
    LS_TRY(st, prune_manifests(&x), out);
    LS_TRY(st, sweep(&x), out);
    if (freed_out)
        *freed_out = x.freed;
out:
    ls_mem_free(x.gone);
    pthread_mutex_unlock(&store->saving);
    return st;
}
