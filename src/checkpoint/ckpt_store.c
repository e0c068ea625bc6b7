/* ckpt_store.c -- the folder: which process may write, which steps exist, and which of them are
 * usable.
 *
 * No file names the newest checkpoint: a "latest" file could lie after a crash. A reader lists the
 * manifests and takes the highest step whose manifest carries its own hash and whose objects all
 * exist. It logs what it skipped and what that costs.
 *
 *     step-0000000100.json  ok
 *     step-0000000200.json  ok            <- taken
 *     step-0000000300.json  damaged       <- skipped: "100 steps are lost"
 *
 * Removing runs in the reverse order of writing: first manifests, then the folder is synced, then
 * objects that no manifest names any more. A crash in between leaves objects without a manifest,
 * which the next sweep removes, and never a manifest without its objects. */
#include "checkpoint/ckpt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

enum { STEP_DIGITS = 10 };

/* --- opening ------------------------------------------------------------------------------------
 */

/* Make the folder and, when it is new, make its name survive a power cut: the folders above it may
 * be new too. Those that we may not open existed before us. */
static ls_status make_store(const char *dir)
{
    ls_status st = LS_OK;
    bool fresh = !ls_file_is_dir(dir);
    char path[LS_CKPT_PATH];

    if ((size_t)snprintf(path, sizeof path, "%s/objects", dir) >= sizeof path)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", dir);
    LS_TRY(st, ls_file_make_dirs(path), out);
    LS_TRY(st, ls_ckpt_sync_folder(dir), out);
    snprintf(path, sizeof path, "%s", dir);
    while (fresh && strcmp(path, "/") != 0 && strcmp(path, ".") != 0) {
        const char *above = dirname(path);
        memmove(path, above, strlen(above) + 1);
        fresh = ls_file_sync_dir(path) == LS_OK;
    }
out:
    return st;
}

ls_status ls_ckpt_open(ls_ckpt_store **store_out, const char *dir, bool create)
{
    ls_status st = LS_OK;
    ls_ckpt_store *store = ls_mem_alloc(sizeof *store);

    if (!store)
        return LS_ENOMEM;
    store->lock_fd = -1;
    pthread_mutex_init(&store->saving, NULL);
    pthread_mutex_init(&store->guard, NULL);
    store->dir = ls_mem_strdup(dir);
    if (!store->dir) {
        st = LS_ENOMEM;
        goto out;
    }
    for (size_t n = strlen(store->dir); n > 1 && store->dir[n - 1] == '/'; n--)
        store->dir[n - 1] = '\0';
    if (create) {
        LS_TRY(st, make_store(store->dir), out);
        LS_TRY(st, ls_ckpt_store_hold(store), out);
    } else if (!ls_file_is_dir(store->dir)) {
        st = ls_fail(LS_EIO, "there is no checkpoint folder \"%s\"", dir);
        goto out;
    }
    *store_out = store;
out:
    if (st != LS_OK)
        ls_ckpt_close(store);
    return st;
}

void ls_ckpt_close(ls_ckpt_store *store)
{
    if (!store)
        return;
    ls_ckpt_free(store->loaded);
    ls_file_unlock(store->lock_fd);
    pthread_mutex_destroy(&store->saving);
    pthread_mutex_destroy(&store->guard);
    ls_mem_free(store->good);
    ls_mem_free(store->mirror);
    ls_ckpt_key_free(store->key);
    ls_mem_free(store->dir);
    ls_mem_free(store);
}

const char *ls_ckpt_dir(const ls_ckpt_store *store)
{
    return store->dir;
}

ls_status ls_ckpt_store_hold(ls_ckpt_store *store)
{
    char path[LS_CKPT_PATH];

    if (store->lock_fd >= 0)
        return LS_OK;
    if ((size_t)snprintf(path, sizeof path, "%s/lock", store->dir) >= sizeof path)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", store->dir);
    return ls_file_lock(path, &store->lock_fd);
}

/* --- the right to commit -----------------------------------------------------------------------------
 */

static ls_status claim_path(const ls_ckpt_store *store, char path_out[LS_CKPT_PATH])
{
    if ((size_t)snprintf(path_out, LS_CKPT_PATH, "%s/generation", store->dir) >= LS_CKPT_PATH)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", store->dir);
    return LS_OK;
}

ls_status ls_ckpt_claimed(const ls_ckpt_store *store, int64_t *generation_out)
{
    char path[LS_CKPT_PATH], *end;
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    *generation_out = 0;
    LS_TRY(st, claim_path(store, path), out);
    if (!ls_ckpt_file_exists(path))
        goto out;
    LS_TRY(st, ls_ckpt_read_file(path, 64, &text), out);
    long long value = strtoll(text.p, &end, 10);
    if (end == text.p || strcmp(end, "\n") != 0 || value < 0 || value == LLONG_MAX) {
        st = ls_fail(LS_EDATA, "\"%s\" does not hold a number", path);
        ls_err_hint(
            "It numbers the groups of processes that wrote here; remove it when none runs.");
        goto out;
    }
    *generation_out = value;
out:
    ls_str_release(&text);
    return st;
}

ls_status ls_ckpt_read_newest(const ls_ckpt_store *store, int64_t below, ls_ckpt **ckpt_out)
{
    int64_t *steps = NULL;
    int n = 0;
    ls_status st = ls_ckpt_steps(store, &steps, &n);

    *ckpt_out = NULL;
    for (int i = n - 1; i >= 0 && st == LS_OK && !*ckpt_out; i--) {
        if (steps[i] < below)
            st = ls_ckpt_read_trusted(store, steps[i], ckpt_out);
        st = st == LS_ENOMEM ? st : LS_OK;
    }
    ls_mem_free(steps);
    return st;
}

/* Above both the claim and the newest manifest: a store that was copied has manifests, and no claim. */
ls_status ls_ckpt_claim(ls_ckpt_store *store, int64_t *generation_out)
{
    char path[LS_CKPT_PATH], text[32];
    int64_t until_ns = ls_time_now_ns() + LS_CKPT_SEEN_S * LS_NS_PER_S;
    int64_t claimed;
    ls_ckpt *newest = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, claim_path(store, path), out);
    LS_TRY(st, ls_ckpt_claimed(store, &claimed), out);
    LS_TRY(st, ls_ckpt_read_newest(store, INT64_MAX, &newest), out); /* a copy has no claim */
    *generation_out = ls_max_i64(claimed, newest ? newest->info.generation : 0) + 1;
    snprintf(text, sizeof text, "%lld\n", (long long)*generation_out);
    ls_file_sweep_temps(store->dir);
    while ((st = ls_file_write_atomic(path, text, strlen(text))) != LS_OK && errno == ESTALE &&
           ls_time_now_ns() < until_ns)
        usleep(50 * 1000);
out:
    ls_ckpt_free(newest);
    return st;
}

void ls_ckpt_set_token(ls_ckpt_store *store, ls_ckpt_token *token, void *context)
{
    store->token = token;
    store->token_context = context;
}

bool ls_ckpt_store_is_good(ls_ckpt_store *store, ls_hash hash)
{
    pthread_mutex_lock(&store->guard);
    bool found = store->n_good && bsearch(&hash, store->good, (size_t)store->n_good, sizeof hash,
                                          ls_ckpt_hash_order);
    pthread_mutex_unlock(&store->guard);
    return found;
}

void ls_ckpt_store_remember(ls_ckpt_store *store, const ls_ckpt *ckpt, const bool *keep)
{
    ls_hash *good = ls_mem_array((size_t)ckpt->n_objects, sizeof *good);
    int n = 0;

    for (int i = 0; good && i < ckpt->n_objects; i++)
        if (!keep || keep[i])
            good[n++] = ckpt->objects[i].hash; /* sorted, because the table is */
    pthread_mutex_lock(&store->guard);
    ls_mem_free(store->good);
    store->good = good;
    store->n_good = n;
    pthread_mutex_unlock(&store->guard);
}

void ls_ckpt_store_forget(ls_ckpt_store *store)
{
    pthread_mutex_lock(&store->guard);
    store->n_good = 0;
    pthread_mutex_unlock(&store->guard);
}

/* --- names --------------------------------------------------------------------------------------
 */

void ls_ckpt_manifest_path(const char *dir, int64_t step, ls_str *path_out)
{
    ls_str_printf(path_out, "%s/step-%0*lld.json", dir, STEP_DIGITS, (long long)step);
}

/* The step in a manifest's name, -1 for any other name. */
static int64_t step_of_name(const char *name)
{
    int64_t step = 0;

    if (strncmp(name, "step-", 5) != 0 || strlen(name) != 5 + STEP_DIGITS + 5 ||
        strcmp(name + 5 + STEP_DIGITS, ".json") != 0)
        return -1;
    for (int i = 5; i < 5 + STEP_DIGITS; i++) {
        if (name[i] < '0' || name[i] > '9')
            return -1;
        step = step * 10 + (name[i] - '0');
    }
    return step;
}

static int order_steps(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

ls_status ls_ckpt_steps(const ls_ckpt_store *store, int64_t **steps_out, int *n_out)
{
    ls_status st = LS_OK;
    int64_t *steps = NULL;
    int n = 0, cap = 0;
    int fd = ls_ckpt_open_file(store->dir, O_DIRECTORY);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);

    if (!folder) {
        st = ls_fail_sys(LS_EIO, "cannot list \"%s\"", store->dir);
        if (fd >= 0)
            close(fd);
        return st;
    }
    for (const struct dirent *e; (errno = 0, e = readdir(folder)) != NULL;) {
        int64_t step = step_of_name(e->d_name);
        if (step < 0)
            continue;
        LS_TRY(st, ls_ckpt_grow((void **)&steps, n, &cap, sizeof *steps), out);
        steps[n++] = step;
    }
    if (errno != 0) {
        st = ls_fail_sys(LS_EIO, "cannot list \"%s\"", store->dir);
        goto out;
    }
    if (n)
        qsort(steps, (size_t)n, sizeof *steps, order_steps);
    *steps_out = steps;
    *n_out = n;
    steps = NULL;
out:
    closedir(folder);
    ls_mem_free(steps);
    return st;
}

static bool is_store(const char *dir)
{
    char path[LS_CKPT_PATH];

    return (size_t)snprintf(path, sizeof path, "%s/objects", dir) < sizeof path &&
           ls_file_is_dir(path);
}

static const char what_to_give[] =
    "Give a run folder (out: in the run file), its checkpoints folder, or a step-*.json file.";

/* The store of a folder: it, or the one of a run. */
static ls_status store_of(const char *path, char inner[LS_CKPT_PATH], const char **store_out)
{
    *store_out = NULL;
    if ((size_t)snprintf(inner, LS_CKPT_PATH, "%s/checkpoints", path) >= LS_CKPT_PATH)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", path);
    *store_out = is_store(path) ? path : is_store(inner) ? inner : NULL;
    return LS_OK;
}

/* "runs/a/best": the store of runs/a; NULL: the path means something else. */
static ls_status store_of_best(const char *path, char parent[LS_CKPT_PATH],
                               char inner[LS_CKPT_PATH], const char **store_out)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    *store_out = NULL;
    if (strcmp(name, "best") != 0 || ls_file_exists(path))
        return LS_OK;
    size_t n = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    if (n >= LS_CKPT_PATH)
        return ls_fail(LS_EIO, "the path \"%s\" is too long", path);
    snprintf(parent, LS_CKPT_PATH, "%.*s", slash ? (int)n : 1, slash ? path : ".");
    return store_of(parent, inner, store_out);
}

/*     runs/a                                     -> runs/a/checkpoints, step -1
 *     runs/a/checkpoints                         -> itself, step -1
 *     runs/a/checkpoints/step-0000000200.json    -> runs/a/checkpoints, step 200
 *     runs/a/best, runs/a/checkpoints/best       -> runs/a/checkpoints, LS_CKPT_BEST */
ls_status ls_ckpt_locate(const char *path, ls_str *dir_out, int64_t *step_out)
{
    const char *slash = strrchr(path, '/');
    int64_t step = step_of_name(slash ? slash + 1 : path);
    char parent[LS_CKPT_PATH], inner[LS_CKPT_PATH];
    const char *store;
    ls_status st = LS_OK;

    *step_out = -1;
    if (step >= 0 && !ls_file_is_dir(path)) {
        *step_out = step;
        if (slash)
            ls_str_append_bytes(dir_out, path, slash == path ? 1 : (size_t)(slash - path));
        else
            ls_str_append_char(dir_out, '.');
        return ls_str_status(dir_out);
    }
    LS_TRY(st, store_of(path, inner, &store), out);
    if (!store) {
        LS_TRY(st, store_of_best(path, parent, inner, &store), out);
        *step_out = store ? LS_CKPT_BEST : -1;
    }
    if (store) {
        ls_str_append(dir_out, store);
        return ls_str_status(dir_out);
    }
    if (!ls_file_exists(path)) {
        bool gone = errno == ENOENT || errno == ENOTDIR;
        ls_status none = gone ? ls_fail(LS_EUSAGE, "there is no \"%s\"", path)
                              : ls_fail_sys(LS_EIO, "cannot look at \"%s\"", path);
        ls_err_hint("%s", what_to_give);
        return none;
    }
    if (access(path, R_OK | X_OK) != 0 && errno == EACCES && ls_file_is_dir(path))
        return ls_fail_sys(LS_EIO, "cannot look into \"%s\"", path);
    st = ls_fail(LS_EUSAGE, "there are no checkpoints in \"%s\"", path);
    ls_err_hint("%s", what_to_give);
out:
    return st;
}

/* --- finding ------------------------------------------------------------------------------------
 */

void ls_ckpt_free(ls_ckpt *ckpt)
{
    if (!ckpt)
        return;
    ls_arena_release(&ckpt->arena);
    ls_mem_free(ckpt);
}

const ls_ckpt_info *ls_ckpt_about(const ls_ckpt *ckpt)
{
    return &ckpt->info;
}

const char *ls_ckpt_path(const ls_ckpt *ckpt)
{
    return ckpt->path;
}

int ls_ckpt_count(const ls_ckpt *ckpt)
{
    return ckpt->n_rows;
}

ls_ckpt_tensor ls_ckpt_nth(const ls_ckpt *ckpt, int i)
{
    const ls_ckpt_row *row = &ckpt->rows[i];
    ls_ckpt_tensor t = {.name = row->name, .kind = row->kind, .type = row->type, .ndim = row->ndim};

    memcpy(t.shape, row->shape, sizeof t.shape);
    return t;
}

/* Repeat the error that a checking function found, with the file's name in front. */
static ls_status unusable(const char *path, const char *what)
{
    char why[sizeof ls_err_last()->text];

    memcpy(why, ls_err_last()->text, sizeof why);
    return ls_fail(LS_EDATA, "checkpoint \"%s\" is %s: %s", path, what, why);
}

/* Parse a manifest whose hash is right. Its step must be that of its name, so that a renamed file
 * is found. */
static ls_status fill_ckpt(ls_ckpt *ckpt, const char *dir, int64_t step, const ls_str *text)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_ckpt_manifest_parse(ckpt, text->p, text->len), out);
    if (ckpt->info.trust == LS_CKPT_PROVED)
        LS_TRY(st, ls_ckpt_bind_objects(ckpt), out);
    if (ckpt->info.step != step) {
        st = ls_fail(LS_EDATA, "it is the manifest of step %lld under another name",
                     (long long)ckpt->info.step);
        goto out;
    }
    ckpt->dir = ls_arena_strdup(&ckpt->arena, dir);
    if (!ckpt->dir)
        st = LS_ENOMEM;
out:
    return st;
}

/* Read the manifest of a step: its hash first, then with a key its signature, and only then its
 * content. */
static ls_status read_step(const char *dir, int64_t step, const ls_ckpt_key *key,
                           ls_ckpt **ckpt_out)
{
    ls_status st = LS_OK;
    bool refused = false;
    ls_str text, path;
    ls_ckpt *ckpt = ls_mem_alloc(sizeof *ckpt);

    ls_str_init(&text);
    ls_str_init(&path);
    if (!ckpt)
        return LS_ENOMEM;
    ls_arena_init(&ckpt->arena);
    ls_ckpt_manifest_path(dir, step, &path);
    LS_TRY(st, ls_str_status(&path), out);
    LS_TRY(st, ls_ckpt_read_file(path.p, LS_CKPT_MANIFEST_LIMIT, &text), out);
    st = ls_ckpt_manifest_check(text.p, text.len, &ckpt->hash);
    if (st == LS_OK) {
        st = ls_ckpt_check_trust(key, text.p, text.len, &ckpt->info.trust);
        refused = st == LS_EDATA;
    }
    if (st == LS_OK)
        st = fill_ckpt(ckpt, dir, step, &text);
    if (st == LS_OK) {
        ckpt->path = ls_arena_strdup(&ckpt->arena, path.p);
        st = ckpt->path ? LS_OK : LS_ENOMEM;
    } else if (st == LS_EDATA) {
        st = unusable(path.p, refused ? "refused" : "damaged");
        if (refused)
            ls_err_hint("Give the key that it was signed with, or none if you trust the folder.");
    }
out:
    if (st == LS_OK)
        *ckpt_out = ckpt;
    else
        ls_ckpt_free(ckpt);
    ls_str_release(&text);
    ls_str_release(&path);
    return st;
}

ls_status ls_ckpt_read_manifest(const char *dir, int64_t step, ls_ckpt **ckpt_out)
{
    return read_step(dir, step, NULL, ckpt_out);
}

ls_status ls_ckpt_read_trusted(const ls_ckpt_store *store, int64_t step, ls_ckpt **ckpt_out)
{
    return read_step(store->dir, step, store->key, ckpt_out);
}

/* One object is there with the right size. */
static ls_status check_object(const ls_ckpt *ckpt, int i)
{
    struct stat info;
    ls_status st;
    ls_str path;

    ls_str_init(&path);
    ls_ckpt_object_path(ckpt->dir, ckpt->objects[i].hash, &path);
    st = ls_str_status(&path);
    if (st != LS_OK)
        goto out;
    if (ls_ckpt_stat_file(path.p, &info) != 0)
        st = ls_fail_sys(LS_EDATA, "object \"%s\" is missing", path.p);
    else if (info.st_size != ckpt->objects[i].bytes)
        st = ls_fail(LS_EDATA, "object \"%s\" has %lld bytes instead of %lld", path.p,
                     (long long)info.st_size, (long long)ckpt->objects[i].bytes);
out:
    ls_str_release(&path);
    return st;
}

ls_status ls_ckpt_objects_there(const ls_ckpt *ckpt)
{
    ls_status st = LS_OK;

    for (int i = 0; i < ckpt->n_objects && st == LS_OK; i++) {
        st = check_object(ckpt, i);
        if (st == LS_EDATA && ls_ckpt_heal(ckpt, i))
            st = LS_OK;
    }
    return st;
}

/* A manifest that may be used and whose objects all exist, restored from the mirror where need
 * be. */
static ls_status open_step(const ls_ckpt_store *store, int64_t step, ls_ckpt **ckpt_out)
{
    ls_ckpt *ckpt = NULL;
    ls_status st = ls_ckpt_read_trusted(store, step, &ckpt);

    if (st == LS_OK && store->mirror) {
        ckpt->mirror = ls_arena_strdup(&ckpt->arena, store->mirror);
        st = ckpt->mirror ? LS_OK : LS_ENOMEM;
    }
    if (st == LS_OK)
        st = ls_ckpt_objects_there(ckpt);
    if (st == LS_EDATA && ckpt)
        st = unusable(ckpt->path, "damaged");
    if (st == LS_OK)
        *ckpt_out = ckpt;
    else
        ls_ckpt_free(ckpt);
    return st;
}

/* A chain by hashes, which shows whether steps 100, 200 and 300 are of one history: 300 has the hash of
 * 200 only if 200, with this content, was the newest one when 300 was saved. */
ls_status ls_ckpt_follows(const ls_ckpt_store *store, const ls_ckpt *ckpt, int64_t *step_out)
{
    int64_t *steps = NULL, found = ckpt->has_previous ? -2 : -1;
    ls_status st = LS_OK;
    int n = 0;

    if (ckpt->has_previous)
        LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    for (int i = n - 1; i >= 0 && found == -2; i--) {
        ls_ckpt *before = NULL;
        if (steps[i] >= ckpt->info.step)
            continue;
        st = ls_ckpt_read_manifest(store->dir, steps[i], &before);
        if (st == LS_OK && ls_hash_equal(before->hash, ckpt->previous))
            found = steps[i];
        ls_ckpt_free(before);
        if (st == LS_ENOMEM)
            goto out;
        st = LS_OK; /* a damaged one is not the one */
    }
    *step_out = found;
out:
    ls_mem_free(steps);
    return st;
}

ls_status ls_ckpt_await(const ls_ckpt_store *store, int64_t step, int64_t deadline_ns,
                        ls_ckpt **ckpt_out)
{
    ls_ckpt *seen = NULL;
    ls_status st;
    ls_str path;

    ls_str_init(&path);
    ls_ckpt_manifest_path(store->dir, step, &path);
    LS_TRY(st, ls_str_status(&path), out);
    while (!ls_ckpt_file_exists(path.p) && ls_time_now_ns() < deadline_ns)
        usleep(50 * 1000);
    LS_TRY(st, ls_ckpt_read_trusted(store, step, &seen), out);
    while (ls_ckpt_objects_there(seen) == LS_EDATA && ls_time_now_ns() < deadline_ns)
        usleep(50 * 1000);
    LS_TRY(st, open_step(store, step, ckpt_out), out);
out:
    ls_ckpt_free(seen);
    ls_str_release(&path);
    return st;
}

void ls_ckpt_passed_init(ls_ckpt_passed *passed)
{
    *passed = (ls_ckpt_passed){.n = 0};
    ls_str_init(&passed->reasons);
}

void ls_ckpt_passed_release(ls_ckpt_passed *passed)
{
    ls_str_release(&passed->reasons);
    ls_mem_free(passed->steps);
    ls_ckpt_passed_init(passed);
}

ls_status ls_ckpt_passed_add(ls_ckpt_passed *passed, int64_t step, const char *reason)
{
    int64_t *grown = ls_mem_resize(passed->steps, (size_t)(passed->n + 1) * sizeof *grown);

    if (!grown)
        return LS_ENOMEM;
    passed->steps = grown;
    ls_str_append_bytes(&passed->reasons, reason, strlen(reason) + 1);
    ls_status st = ls_str_status(&passed->reasons);
    if (st == LS_OK)
        passed->steps[passed->n++] = step;
    return st;
}

ls_status ls_ckpt_find_below(const ls_ckpt_store *store, int64_t below, ls_ckpt_passed *passed,
                             ls_ckpt **ckpt_out)
{
    ls_status st = LS_OK;
    int64_t *steps = NULL;
    int n = 0;

    *ckpt_out = NULL;
    LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    for (int i = n - 1; i >= 0 && !*ckpt_out; i--) {
        if (steps[i] >= below)
            continue;
        st = open_step(store, steps[i], ckpt_out);
        if (st == LS_EDATA || st == LS_EIO)
            st = ls_ckpt_passed_add(passed, steps[i], ls_err_last()->text);
        if (st != LS_OK)
            goto out;
    }
out:
    ls_mem_free(steps);
    return st;
}

ls_status ls_ckpt_passed_tell(const ls_ckpt_store *store, const ls_ckpt_passed *passed,
                              int64_t used, ls_str *notes)
{
    const char *reason = passed->reasons.p;

    if (used < 0) {
        ls_status st =
            passed->n == 1
                ? ls_fail(LS_EDATA, "the only checkpoint in \"%s\" is not usable: %s", store->dir,
                          reason)
                : ls_fail(LS_EDATA,
                          "none of the %d checkpoints in \"%s\" is usable; the newest: %s",
                          passed->n, store->dir, reason);
        ls_err_hint("\"lineshaft ckpt verify %s\" shows each damage; \"lineshaft train RUN "
                    "--fresh\" puts them aside and starts anew.",
                    store->dir);
        if (store->key)
            ls_err_hint("Is \"%s\" the key that signed them? Unsigned ones are taken in with "
                        "checkpoint.take_unsigned: true.",
                        store->key->path);
        return st;
    }
    for (int i = 0; i < passed->n; i++) {
        long long lost = (long long)(passed->steps[i] - used);
        if (!notes)
            ls_log(LS_LOG_WARN, "%s; going back to step %lld costs %lld step%s", reason,
                   (long long)used, lost, lost == 1 ? "" : "s");
        else
            ls_str_printf(notes, "%s; going back to step %lld costs %lld step%s\n", reason,
                          (long long)used, lost, lost == 1 ? "" : "s");
        reason += strlen(reason) + 1;
    }
    return notes ? ls_str_status(notes) : LS_OK;
}

/* LS_EUSAGE, with the newest step that there is as the hint. */
static ls_status no_such_step(const ls_ckpt_store *store, int64_t step)
{
    int64_t *steps = NULL, newest = -1;
    int n = 0;
    ls_status st = ls_ckpt_steps(store, &steps, &n);

    if (st != LS_OK)
        return st;
    if (n)
        newest = steps[n - 1];
    ls_mem_free(steps);
    st = ls_fail(LS_EUSAGE, "there is no checkpoint of step %lld in \"%s\"", (long long)step,
                 store->dir);
    if (newest >= 0)
        ls_err_hint("The newest is of step %lld; \"lineshaft ckpt list %s\" shows all.",
                    (long long)newest, store->dir);
    return st;
}

/* A run's losses only fall from one best checkpoint to the next, so the newest is the best. */
static ls_status find_best(const ls_ckpt_store *store, ls_ckpt **ckpt_out)
{
    ls_status st = LS_OK;
    int64_t *steps = NULL;
    ls_ckpt *ckpt = NULL;
    int n = 0;

    LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    for (int i = n - 1; i >= 0; i--) {
        st = open_step(store, steps[i], &ckpt);
        if (st != LS_OK && st != LS_EDATA && st != LS_EIO)
            goto out;
        if (st == LS_OK && ckpt->info.best)
            goto out;
        ls_ckpt_free(ckpt);
        ckpt = NULL;
    }
    st = ls_fail(LS_EUSAGE, "no checkpoint in \"%s\" is marked as the best", store->dir);
    ls_err_hint("Runs with checkpoint.best: true keep and mark the checkpoint of the lowest "
                "validation loss.");
out:
    ls_mem_free(steps);
    *ckpt_out = ckpt;
    return st;
}

ls_status ls_ckpt_find(const ls_ckpt_store *store, int64_t step, ls_ckpt **ckpt_out, ls_str *notes)
{
    ls_status st = LS_OK;
    ls_ckpt_passed passed;
    ls_ckpt *ckpt = NULL;

    ls_ckpt_passed_init(&passed);
    if (step >= 0) {
        ls_str path;
        ls_str_init(&path);
        ls_ckpt_manifest_path(store->dir, step, &path);
        st = ls_str_status(&path);
        if (st == LS_OK)
            st = ls_ckpt_file_exists(path.p) ? open_step(store, step, &ckpt)
                                             : no_such_step(store, step);
        ls_str_release(&path);
        goto out;
    }
    if (step == LS_CKPT_BEST) {
        st = find_best(store, &ckpt);
        goto out;
    }
    LS_TRY(st, ls_ckpt_find_below(store, INT64_MAX, &passed, &ckpt), out);
    if (passed.n)
        st = ls_ckpt_passed_tell(store, &passed, ckpt ? ckpt->info.step : -1, notes);
out:
    if (st == LS_OK)
        *ckpt_out = ckpt;
    else
        ls_ckpt_free(ckpt);
    ls_ckpt_passed_release(&passed);
    return st;
}
