/* run_folder.c -- the lock of the run folder, its events file, and which ranks see it.
 *
 * A lock is a file that the kernel holds locked for a process. It is taken away from a process that
 * stands still with its machine by a new file under the same name: the old file has no name any
 * more and may stay locked for ever.
 *
 *     view 1   host a: run.lock (file 17) locked by a
 *     a stops with its machine; view 2 is made without it
 *     view 2   host b: run.lock is locked, and its holder is the one of view 1: unlink, then
 *              run.lock (file 18) locked by b; a still holds file 17, which has no name
 *     a wakes  what it writes carries the generation of view 1, and is refused */
#include "train/session/run_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "config/explain.h"
#include "hf/hf_copy.h"
#include "parallel/blocking.h"
#include "train/session/session_impl.h"

/* How long a new first rank waits for the one before, at least. */
enum { LOOK_MS = 20, LOCK_S = 20, DIES_S = 5 };

void ls_run_folder_holder(const char *path, char holder_out[LS_RUN_FOLDER_HOLDER])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, holder_out, LS_RUN_FOLDER_HOLDER - 1);

    if (fd >= 0)
        close(fd);
    holder_out[n > 0 ? n : 0] = '\0';
    holder_out[strcspn(holder_out, "\n")] = '\0';
}

ls_status ls_run_folder_lock(const char *path, const char *former, int64_t patience_ns, int *fd_out)
{
    int64_t until_ns = ls_time_now_ns() + patience_ns;
    char holder[LS_RUN_FOLDER_HOLDER];
    ls_status st;

    while ((st = ls_file_lock(path, fd_out)) == LS_EBUSY && ls_time_now_ns() < until_ns)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * LS_NS_PER_MS}, NULL);
    if (st != LS_EBUSY || !*former)
        return st;
    ls_run_folder_holder(path, holder);
    if (strcmp(holder, former) != 0)
        return st;
    ls_log(LS_LOG_WARN, "\"%s\" is taken from %s, which is no part of this run any more", path,
           holder);
    if (unlink(path) != 0)
        return ls_fail_sys(LS_EIO, "cannot take \"%s\" from %s", path, holder);
    ls_err_clear();
    return ls_file_lock(path, fd_out);
}

static void lock_path(const ls_session *s, char path_out[PATH_MAX])
{
    snprintf(path_out, PATH_MAX, "%s/run.lock", s->run->out);
}

/* In a view that follows a loss the former first rank may still have to let go of the file, or its
 * machine was cut off and needs a while to see that the run is over for it (twice heal.dead,
 * cluster/recover/failover.c). */
static int64_t lock_patience_ns(const ls_session *s)
{
    int64_t cut_ns = (int64_t)(4 * s->run->heal.dead * LS_NS_PER_S);

    return s->args.view.plan.generation > 1 ? ls_max_i64(LOCK_S * LS_NS_PER_S, cut_ns) : 0;
}

/* A process that stands still with the run folder has the lock of its checkpoints, too; a process that
 * dies lets go of one after the other. */
static ls_status free_checkpoints(const ls_session *s)
{
    char path[PATH_MAX];
    int fd = -1;

    snprintf(path, sizeof path, "%s/checkpoints/lock", s->run->out);
    if (s->args.view.plan.generation <= 1 || !ls_file_exists(path))
        return LS_OK;
    ls_status st = ls_run_folder_lock(path, s->folder.holder, DIES_S * LS_NS_PER_S, &fd);
    if (st == LS_OK)
        ls_file_unlock(fd);
    return st == LS_EBUSY ? LS_OK : st; /* another job has it: opening the store reports that */
}

ls_status ls_run_folder_open(ls_session *s)
{
    const char *out = s->run->out;
    char path[PATH_MAX];
    ls_status st;

    s->folder.made = !ls_file_exists(out);
    st = ls_file_make_dirs(out);
    if (st != LS_OK)
        return st;
    lock_path(s, path);
    st = ls_run_folder_lock(path, s->folder.holder, lock_patience_ns(s), &s->folder.lock_fd);
    if (st == LS_OK)
        st = free_checkpoints(s);
    if (st == LS_EBUSY) {
        st = ls_fail(LS_EBUSY, "another run is using \"%s\" (see \"%s\")", out, path);
        ls_err_hint("Wait for it, stop it, or give this run a folder of its own with out: or "
                    "--set out=FOLDER.");
    }
    if (st != LS_OK)
        return st;
    ls_file_sweep_temps(out);
    ls_str_clear(&s->folder.config);
    ls_explain_yaml(s->run, &s->folder.config);
    return ls_str_status(&s->folder.config);
}

int64_t ls_run_folder_last_step(const ls_session *session)
{
    static const char mark[] = "{\"event\":\"step\",\"step\":";
    enum { TAIL = 1 << 16 };
    char path[PATH_MAX], *text = ls_mem_alloc(TAIL + 1);
    int64_t step = 0;
    int fd = -1;

    snprintf(path, sizeof path, "%s/events.jsonl", session->run->out);
    if (text && ls_file_exists(path) && ls_file_open_read(path, &fd) != LS_OK)
        ls_err_clear();
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long bytes = ftell(f), from = bytes > TAIL ? bytes - TAIL : 0;
        if (fseek(f, from, SEEK_SET) == 0) {
            text[fread(text, 1, TAIL, f)] = '\0';
            for (const char *at = text; (at = strstr(at, mark)); at += sizeof mark - 1)
                step = strtoll(at + sizeof mark - 1, NULL, 10);
        }
    }
    if (f)
        fclose(f);
    ls_mem_free(text);
    return step;
}

/* A run begins at step 0 where events of an earlier attempt lie. Without --fresh nobody has asked for
 * that: the attempt was killed before its first save, or its checkpoints were removed. */
static ls_status put_attempt_aside(ls_session *s, const char *path)
{
    char aside[PATH_MAX];
    int64_t last = ls_run_folder_last_step(s);
    int i = 1;

    if (s->args.view.begun || s->step_number > 0 || !ls_file_exists(path))
        return LS_OK;
    do {
        if ((size_t)snprintf(aside, sizeof aside, "%s/events.before-%d.jsonl", s->run->out, i) >=
            sizeof aside)
            return ls_fail(LS_EIO, "the path of \"%s\" is too long", path);
    } while (ls_file_exists(aside) && i++ < 10000);
    if (rename(path, aside) != 0)
        return ls_fail_sys(LS_EIO, "cannot move \"%s\" to \"%s\"", path, aside);
    if (last > 0 && !s->args.fresh) {
        s->folder.lost_step = last;
        ls_log(
            LS_LOG_WARN,
            "an earlier attempt came to step %lld and left no checkpoint: the run begins at step "
            "0 again; the events of that attempt are in \"%s\"",
            (long long)last, aside);
    } else {
        ls_log(LS_LOG_INFO, "moved the events of an earlier attempt to \"%s\"", aside);
    }
    return LS_OK;
}

ls_status ls_run_folder_open_events(ls_session *s)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/events.jsonl", s->run->out);
    ls_status st = ls_file_refuse_link(path);
    if (st == LS_OK)
        st = put_attempt_aside(s, path);
    if (st != LS_OK)
        return st;
    return ls_file_open_append(path, 0644, &s->folder.events_fd);
}

/* A run that could not be opened takes its folder away again, unless something of value is in it:
 * rmdir leaves folders that are not empty, such as encoded text. */
void ls_run_folder_remove(const ls_session *s)
{
    static const char *const leftovers[] = {
        "data",        "checkpoints/lock", "checkpoints/generation", "checkpoints/objects",
        "checkpoints", "run.lock"};
    char path[PATH_MAX];

    for (size_t i = 0; i < LS_COUNT(leftovers); i++) {
        snprintf(path, sizeof path, "%s/%s", s->run->out, leftovers[i]);
        (void)remove(path);
    }
    (void)ls_hf_copy_keep(s->run->out, "bytes", "",
                          true); /* nothing to keep: what was is removed */
    (void)rmdir(s->run->out);
}

void ls_run_folder_leave(ls_session *s)
{
    if (s->folder.events_fd >= 0)
        close(s->folder.events_fd);
    ls_file_unlock(s->folder.lock_fd);
    s->folder.events_fd = s->folder.lock_fd = -1;
}

void ls_run_folder_remember(ls_session *session)
{
    char path[PATH_MAX];

    lock_path(session, path);
    ls_run_folder_holder(path, session->folder.holder);
}

/* Whether all ranks write their parts of checkpoints: they must see the run folder, so they look
 * for a file that the first one has just made; and the parts must lie in the memory of the host. The
 * file is named as a temporary one, so that the next run sweeps it if this one is killed here. */
ls_status ls_run_folder_find_writers(ls_session *s)
{
    const int64_t until_ns = ls_session_deadline();
    bool first = ls_session_is_first(s);
    char name[64] = "", path[PATH_MAX];
    double blind = 0;
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1 && !s->mesh.independent) {
        snprintf(name, sizeof name, ".seen-%lld.tmp.%d", (long long)ls_time_now_ns(),
                 (int)getpid());
        snprintf(path, sizeof path, "%s/%s", s->run->out, name);
        if (first)
            LS_TRY(st, ls_file_write_atomic(path, "", 0), out);
        LS_TRY(st, ls_blocking_broadcast(s->args.comm, 0, name, sizeof name, until_ns), out);
        snprintf(path, sizeof path, "%s/%.63s", s->run->out, name);
        blind = !ls_file_exists(path) || (!first && LS_FAULT("train.blind"));
        LS_TRY(st, ls_blocking_reduce(s->args.comm, LS_COLL_SUM, LS_F64, &blind, 1, until_ns), out);
        if (first)
            (void)remove(path);
    }
    if (blind > 0 && first)
        ls_log(LS_LOG_WARN,
               "%.0f of %d ranks do not see \"%s\": the first rank collects and writes checkpoints "
               "for all; on a file system that all hosts share each would write its part",
               blind, s->mesh.ranks, s->run->out);
    s->mesh.blind = blind > 0 || s->discrete || s->offload != LS_OFFLOAD_NONE;
    s->snapshot.staged = s->discrete || ls_mesh_parts_weights(&s->mesh) ||
                         (ls_mesh_divides(&s->mesh) && !ls_mesh_saves_parts(&s->mesh));
out:
    return st;
}
