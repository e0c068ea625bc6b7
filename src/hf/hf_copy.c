/* hf_copy.c -- the small files that go along with a model, and folders that appear whole.
 *
 * A folder is written under a temporary name beside its final place, synced, and renamed: rename()
 * replaces an empty folder and fails on any other, so nothing of anybody is ever overwritten. While
 * its process lives the folder is locked; one that can be locked was left by a process that was
 * killed, and the next one to write to the same place removes it. */
#include "hf/hf_copy.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/str.h"
#include "config/hf_config.h"

#define COPY_BYTES (256 * LS_MIB) /* longest file that goes along */

ls_status ls_hf_copy_file(const char *from, const char *to, const char *name, bool *done_out)
{
    char source[PATH_MAX], target[PATH_MAX];
    ls_str bytes;
    ls_status st = LS_OK;

    *done_out = false;
    snprintf(source, sizeof source, "%s/%s", from, name);
    snprintf(target, sizeof target, "%s/%s", to, name);
    if (!ls_file_exists(source))
        return LS_OK;
    ls_str_init(&bytes);
    LS_TRY(st, ls_file_read(source, COPY_BYTES, &bytes), out);
    LS_TRY(st, ls_file_write_atomic(target, bytes.p, bytes.len), out);
    *done_out = true;
out:
    ls_str_release(&bytes);
    return st;
}

ls_status ls_hf_copy_tokenizer(const char *from, const char *to, int *count_out)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
    ls_status st = LS_OK;

    *count_out = 0;
    for (size_t i = 0; i < LS_COUNT(names) && st == LS_OK; i++) {
        bool done;
        st = ls_hf_copy_file(from, to, names[i], &done);
        *count_out += done;
    }
    return st;
}

/* --- a folder in the making ------------------------------------------------------------------- */

static ls_status occupied(const char *final)
{
    ls_status st = ls_fail(LS_EUSAGE, "\"%s\" exists and is not an empty folder", final);

    ls_err_hint("Choose another folder, or remove this one first.");
    return st;
}

static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    if (!dir)
        return false;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n <= 2; /* itself and its parent */
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The lock of a folder; -1: another process has it, or it is no folder. */
static int lock_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Remove folders in the making for base in parent whose process is gone. */
static void remove_stale(const char *parent, const char *base)
{
    char path[PATH_MAX];
    size_t n = strlen(base);
    DIR *dir = opendir(parent);
    const struct dirent *e;

    while (dir && (e = readdir(dir)) != NULL) {
        const char *rest = e->d_name + n;
        if (strncmp(e->d_name, base, n) != 0 || strncmp(rest, ".tmp-", 5) != 0 || !rest[5] ||
            rest[5 + strspn(rest + 5, "0123456789")] != '\0')
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", parent, e->d_name) >= sizeof path)
            continue;
        int fd = lock_folder(path);
        if (fd < 0)
            continue;
        remove_tree(path);
        close(fd);
    }
    if (dir)
        closedir(dir);
}

ls_status ls_hf_copy_stage_begin(ls_hf_copy_stage *stage, const char *final)
{
    size_t n = strlen(final);
    char parent[sizeof stage->path];

    stage->path[0] = '\0';
    stage->locked = false;
    while (n > 1 && final[n - 1] == '/')
        n--;
    if (n == 0 || n + 32 >= sizeof stage->final)
        return ls_fail(LS_EUSAGE, "the folder's name is empty or too long");
    snprintf(stage->final, sizeof stage->final, "%.*s", (int)n, final);
    if (ls_file_exists(stage->final) && !is_empty(stage->final))
        return occupied(stage->final);
    const char *slash = strrchr(stage->final, '/');
    snprintf(parent, sizeof parent, "%s", ".");
    if (slash)
        snprintf(parent, sizeof parent, "%.*s",
                 slash == stage->final ? 1 : (int)(slash - stage->final), stage->final);
    ls_status st = ls_file_make_dirs(parent);
    if (st != LS_OK)
        return st;
    remove_stale(parent, slash ? slash + 1 : stage->final);
    snprintf(stage->path, sizeof stage->path, "%.*s.tmp-%ld", (int)n, stage->final, (long)getpid());
    if (mkdir(stage->path, 0755) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot create folder \"%s\"", stage->path);
        stage->path[0] = '\0';
        return st;
    }
    stage->fd = lock_folder(stage->path); /* without locks nothing stale is ever removed */
    stage->locked = stage->fd >= 0;
    return LS_OK;
}

static void unlock(ls_hf_copy_stage *stage)
{
    if (stage->locked)
        close(stage->fd);
    stage->locked = false;
}

ls_status ls_hf_copy_stage_commit(ls_hf_copy_stage *stage)
{
    ls_status st = ls_file_sync_dir(stage->path);

    if (st != LS_OK)
        return st;
    if (rename(stage->path, stage->final) != 0) {
        if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
            return occupied(stage->final);
        return ls_fail_sys(LS_EIO, "cannot rename \"%s\" to \"%s\"", stage->path, stage->final);
    }
    stage->path[0] = '\0';
    unlock(stage);
    char parent[sizeof stage->final];
    const char *slash = strrchr(stage->final, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - stage->final) + 1 : 1,
             slash ? stage->final : ".");
    return ls_file_sync_dir(parent);
}

void ls_hf_copy_stage_drop(ls_hf_copy_stage *stage)
{
    if (stage->path[0])
        remove_tree(stage->path);
    stage->path[0] = '\0';
    unlock(stage);
}

/* --- what a run keeps ------------------------------------------------------------------------- */

/* The folder of a tokenizer that may be named by its file. */
static void folder_of(const char *name, char *out, size_t cap)
{
    const char *slash = strrchr(name, '/');

    if (ls_file_is_dir(name))
        snprintf(out, cap, "%s", name);
    else
        snprintf(out, cap, "%.*s", slash ? (int)(slash - name) + 1 : 1, slash ? name : ".");
}

/* A tokenizer that is named by its file gets the usual name. */
static ls_status keep_file(const char *from, const char *to)
{
    char path[PATH_MAX + 32];
    ls_str bytes;
    ls_status st;

    ls_str_init(&bytes);
    snprintf(path, sizeof path, "%s/tokenizer.json", to);
    LS_TRY(st, ls_file_read(from, COPY_BYTES, &bytes), out);
    LS_TRY(st, ls_file_write_atomic(path, bytes.p, bytes.len), out);
out:
    ls_str_release(&bytes);
    return st;
}

static ls_status keep_all(const char *to, const char *tokenizer, const char *import)
{
    char folder[PATH_MAX];
    bool done;
    int count;
    ls_status st = LS_OK;

    if (strcmp(tokenizer, "bytes") != 0) {
        folder_of(tokenizer, folder, sizeof folder);
        LS_TRY(st, ls_hf_copy_tokenizer(folder, to, &count), out);
        if (!ls_file_is_dir(tokenizer))
            LS_TRY(st, keep_file(tokenizer, to), out);
    }
    if (*import) {
        LS_TRY(st, ls_hf_copy_file(import, to, "config.json", &done), out);
        LS_TRY(st, ls_hf_copy_file(import, to, "generation_config.json", &done), out);
    }
out:
    return st;
}

ls_status ls_hf_copy_keep(const char *home, const char *tokenizer, const char *import, bool renew)
{
    char to[PATH_MAX];
    ls_hf_copy_stage stage = {.path = ""};
    ls_status st = LS_OK;

    if ((size_t)snprintf(to, sizeof to, "%s/" LS_HF_CONFIG_COPIES, home) >= sizeof to)
        return ls_fail(LS_EUSAGE, "the folder's name is too long");
    if (ls_file_exists(to) && !is_empty(to)) {
        if (!renew)
            return LS_OK;
        remove_tree(to);
    }
    if (strcmp(tokenizer, "bytes") == 0 && !*import)
        return LS_OK;
    LS_TRY(st, ls_hf_copy_stage_begin(&stage, to), out);
    LS_TRY(st, keep_all(stage.path, tokenizer, import), out);
    LS_TRY(st, ls_hf_copy_stage_commit(&stage), out);
out:
    ls_hf_copy_stage_drop(&stage);
    return st;
}
