/* store_writer.c -- see store_writer.h. */
#include "observe/store/store_writer.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"

int64_t ls_store_writer_start_of(int pid)
{
    char path[40], line[1024];
    long long ticks = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = '\0';
    const char *at = strrchr(line, ')'); /* names may hold spaces; field 3 follows */
    for (int field = 3; at && field <= 22; field++)
        at = strchr(at + 1, ' ');
    if (at)
        ticks = strtoll(at + 1, NULL, 10);
    return ticks;
}

bool ls_store_writer_is_local(const char *folder)
{
    /* Kernel's numbers of file systems on which a shared memory map is not shared between machines,
     * or locks are not kept: NFS, SMB (three), Lustre, GPFS, Ceph, AFS, 9p, FUSE, CODA, BeeGFS, GFS2,
     * OCFS2. */
    static const unsigned long remote[] = {
        0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x0bd00bd0, 0x47504653, 0x00c36400,
        0x5346414f, 0x01021997, 0x65735546, 0x73757245, 0x19830326, 0x01161970, 0x7461636f};
    struct statfs fs;

    if (statfs(folder, &fs) != 0)
        return false;
    for (size_t i = 0; i < LS_COUNT(remote); i++)
        if ((unsigned long)(unsigned int)fs.f_type == remote[i])
            return false;
    return true;
}

/* Note which process fills the store from now on. */
static ls_status sign(ls_store_db *db, bool elsewhere)
{
    char host[64] = "";
    ls_status st;

    gethostname(host, sizeof host - 1);
    LS_TRY(st, ls_store_db_set(db, "host", host), out);
    LS_TRY(st, ls_store_db_set_int(db, "pid", getpid()), out);
    LS_TRY(st, ls_store_db_set_int(db, "pid_start", ls_store_writer_start_of(getpid())), out);
    LS_TRY(st, ls_store_db_set_int(db, "backup", elsewhere), out);
    st = ls_store_db_set(db, "failed", "");
out:
    return st;
}

static void put_aside(const char *path)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char from[PATH_MAX], to[PATH_MAX];

    for (size_t i = 0; i < LS_COUNT(ends); i++) {
        if (snprintf(from, sizeof from, "%s%s", path, ends[i]) < (int)sizeof from &&
            snprintf(to, sizeof to, "%s.damaged%s", path, ends[i]) < (int)sizeof to)
            (void)rename(from, to);
    }
}

static ls_status copy_file(const char *from, const char *to)
{
    ls_file_map map;
    ls_status st = ls_file_map_open(&map, from);

    if (st != LS_OK)
        return st;
    st = ls_file_write_atomic(to, map.bytes, map.len);
    ls_file_map_close(&map);
    return st;
}

/* The path of the database; a backup in the run folder is where it goes on from on a new machine. */
static ls_status find_path(ls_store_writer *w, const char *elsewhere, char path_out[PATH_MAX])
{
    char in_folder[PATH_MAX], real[PATH_MAX], *slash;
    struct stat backup, own;

    if (snprintf(in_folder, sizeof in_folder, "%s/run.db", w->folder) >= (int)sizeof in_folder)
        return ls_fail(LS_EUSAGE, "the path of the run folder is too long");
    snprintf(path_out, PATH_MAX, "%s", in_folder);
    if (!elsewhere && ls_store_writer_is_local(w->folder))
        return LS_OK;
    if (elsewhere)
        snprintf(path_out, PATH_MAX, "%s/run.db", elsewhere);
    else
        ls_file_cache_path("runs", realpath(w->folder, real) ? real : w->folder, 16, path_out,
                           PATH_MAX - 8);
    slash = strrchr(path_out, '/');
    if (!slash || (!elsewhere && !ls_store_writer_is_local("/")))
        return ls_fail(LS_EIO, "no local disk to keep the run store on");
    *slash = '\0';
    ls_status st = ls_file_make_dirs(path_out);
    *slash = '/';
    if (st != LS_OK)
        return st;
    memcpy(w->backup, in_folder, sizeof w->backup);
    if (stat(in_folder, &backup) == 0 &&
        (stat(path_out, &own) != 0 || own.st_mtime < backup.st_mtime))
        st = copy_file(in_folder, path_out);
    return st;
}

ls_status ls_store_writer_open(ls_store_writer *w, const char *folder, const char *elsewhere)
{
    char path[PATH_MAX];
    ls_status st;

    *w = (ls_store_writer){0};
    snprintf(w->folder, sizeof w->folder, "%s", folder);
    LS_TRY(st, find_path(w, elsewhere, path), out);
    st = ls_store_db_open(&w->db, path);
    if (st == LS_EDATA) {
        ls_log(LS_LOG_WARN, "%s; it is put aside and made again from events.jsonl",
               ls_err_last()->text);
        ls_err_clear();
        put_aside(path);
        st = ls_store_db_open(&w->db, path);
    }
    LS_TRY(st, st, out);
    st = sign(&w->db, *w->backup);
out:
    if (st != LS_OK)
        ls_store_writer_close(w);
    return st;
}

ls_status ls_store_writer_commit(ls_store_writer *w)
{
    ls_status st;

    LS_TRY(st, ls_store_db_begin(&w->db), out);
    LS_TRY(st, ls_store_db_set_int(&w->db, "updated_ms", ls_time_wall_ms()), out);
    st = ls_store_db_commit(&w->db);
out:
    if (st != LS_OK)
        ls_store_db_rollback(&w->db);
    return st;
}

ls_status ls_store_writer_backup(ls_store_writer *w)
{
    char fresh[PATH_MAX];
    ls_store_db to = {0};
    ls_status st = LS_OK;

    if (!*w->backup || snprintf(fresh, sizeof fresh, "%s.new", w->backup) >= (int)sizeof fresh)
        return LS_OK;
    (void)unlink(fresh);
    if (sqlite3_open_v2(fresh, &to.db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) !=
        SQLITE_OK)
        LS_TRY(st, ls_fail(LS_EIO, "cannot write \"%s\"", fresh), out);
    sqlite3_backup *copy = sqlite3_backup_init(to.db, "main", w->db.db, "main");
    int rc = copy ? sqlite3_backup_step(copy, -1) : SQLITE_ERROR;
    if (!copy || sqlite3_backup_finish(copy) != SQLITE_OK || rc != SQLITE_DONE)
        LS_TRY(st, ls_fail(LS_EIO, "cannot write \"%s\": %s", fresh, sqlite3_errmsg(to.db)), out);
    /* A reader on another machine must need no shared memory. */
    if (sqlite3_exec(to.db, "PRAGMA journal_mode=DELETE", NULL, NULL, NULL) != SQLITE_OK)
        LS_TRY(st, ls_fail(LS_EIO, "cannot write \"%s\": %s", fresh, sqlite3_errmsg(to.db)), out);
    sqlite3_close(to.db);
    to.db = NULL;
    if (rename(fresh, w->backup) != 0)
        st = ls_fail_sys(LS_EIO, "cannot replace \"%s\"", w->backup);
out:
    sqlite3_close(to.db);
    if (st != LS_OK)
        (void)unlink(fresh);
    return st;
}

void ls_store_writer_close(ls_store_writer *w)
{
    ls_store_db_close(&w->db);
}
