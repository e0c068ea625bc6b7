/* ckpt_writer.c -- one thread, one job at a time, a mutex and a condition.
 *
 *   IDLE      no job                         begin() -> RUNNING
 *   RUNNING   the thread saves               thread  -> FINISHED
 *   FINISHED  the result waits to be read    poll(), wait() -> IDLE
 *
 *   training   step | copy | step | step | step | step | poll: saved
 *   writer            [ hash, write, sync, commit, prune ]
 *
 * The thread is started once and sleeps between jobs, so beginning a save costs copying the rows
 * into an arena and a wake-up. The job's fields are written by the caller while IDLE and by the
 * thread while RUNNING; the mutex orders the two. */
#include "checkpoint/ckpt_writer.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* The lowest priority short of none, where training wants the core. With nice 10 a step of a 124M
 * model on two cores took 12 % longer during a save, with 19 6 %, and the save 9 s instead of 3; on
 * an idle machine the writer has the core for itself. */
enum { NICER = 19 };

typedef enum state { IDLE, RUNNING, FINISHED } state;

struct ls_ckpt_writer {
    ls_ckpt_store *store; /* borrowed */
    ls_ckpt_pruning after;
    bool prunes;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    state state;
    bool stop, copying;
    ls_ckpt_job job;
    ls_arena arena; /* of the job's rows */
    ls_ckpt_info info;
    ls_ckpt_tensor *tensors;
    int n;
    ls_status status; /* of the finished job */
    ls_err_record record;
    ls_ckpt_saved saved;
};

/* The rows that begin() has copied. */
static ls_status save_rows(void *context, ls_ckpt_saved *saved_out)
{
    ls_ckpt_writer *w = context;
    ls_status st = ls_ckpt_save(w->store, &w->info, w->tensors, w->n, saved_out);

    if (st == LS_OK && w->prunes) {
        /* The checkpoint is safe; failing to tidy up must not look like failing to save. */
        if (ls_ckpt_prune_by(w->store, &w->after, NULL) != LS_OK)
            ls_log(LS_LOG_WARN, "cannot remove old checkpoints: %s", ls_err_last()->text);
    }
    return st;
}

/* A job's work and how it ended. */
typedef struct job_run {
    ls_ckpt_writer *writer;
    ls_status status;
    ls_err_record record;
} job_run;

static void *do_work(void *context)
{
    job_run *e = context;

    e->status = e->writer->job.work(e->writer->job.context, &e->writer->saved);
    if (e->status != LS_OK)
        e->record = *ls_err_last();
    return NULL;
}

static void *do_work_nicely(void *context)
{
    (void)!nice(NICER); /* of this thread alone, as Linux has it, and of those that it starts */
    return do_work(context);
}

/* The copy is made at once, because the next update waits for it. Hashing and writing give way to
 * training: on a thread of their own, since one that has given way can never come back. */
static ls_status do_job(ls_ckpt_writer *w)
{
    ls_status st = w->job.copy ? w->job.copy(w->job.context) : LS_OK;
    job_run e = {.writer = w};
    pthread_t thread;

    pthread_mutex_lock(&w->lock);
    w->copying = false;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (st != LS_OK)
        return st;
    if (ls_pool_start_apart(&thread, do_work_nicely, &e) == 0)
        pthread_join(thread, NULL);
    else
        (void)do_work(&e);
    return e.status == LS_OK ? LS_OK : ls_err_adopt(&e.record);
}

/* The writer's thread: waits for a job, runs it without the lock, and leaves its result for
 * poll(). */
static void *work(void *context)
{
    ls_ckpt_writer *w = context;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->state != RUNNING && !w->stop)
            pthread_cond_wait(&w->changed, &w->lock);
        if (w->state != RUNNING)
            break;
        pthread_mutex_unlock(&w->lock);
        ls_status st = do_job(w);
        pthread_mutex_lock(&w->lock);
        w->status = st;
        if (st != LS_OK)
            w->record = *ls_err_last();
        w->state = FINISHED;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

ls_status ls_ckpt_writer_create(ls_ckpt_writer **writer_out, ls_ckpt_store *store,
                                const ls_ckpt_pruning *after)
{
    ls_status st = LS_OK;
    pthread_condattr_t clock;
    ls_ckpt_writer *w = ls_mem_alloc(sizeof *w);

    if (!w)
        return LS_ENOMEM;
    w->store = store;
    w->prunes = after != NULL;
    if (after)
        w->after = *after;
    ls_arena_init(&w->arena);
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* deadlines are monotonic */
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
    int rc = ls_pool_start_apart(&w->thread, work, w);
    w->started = rc == 0;
    if (rc != 0) {
        st = ls_pool_start_failed(rc, "start the thread that writes checkpoints");
        ls_ckpt_writer_free(w);
        return st;
    }
    *writer_out = w;
    return st;
}

void ls_ckpt_writer_free(ls_ckpt_writer *writer)
{
    if (!writer)
        return;
    if (writer->started) {
        pthread_mutex_lock(&writer->lock);
        writer->stop = true;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    ls_arena_release(&writer->arena);
    ls_mem_free(writer);
}

/* Until the running job has ended, or its copy is made; false: the deadline has passed before. The
 * lock is held. A deadline of 0 is long past, and so asks without waiting. */
static bool wait_until(ls_ckpt_writer *w, bool copied, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / LS_NS_PER_S,
                             .tv_nsec = deadline_ns % LS_NS_PER_S};

    while (copied ? w->copying : w->state == RUNNING) {
        int rc = deadline_ns == LS_NO_DEADLINE
                     ? pthread_cond_wait(&w->changed, &w->lock)
                     : pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (rc == ETIMEDOUT)
            return copied ? !w->copying : w->state != RUNNING;
    }
    return true;
}

static ls_status copy_text(ls_arena *arena, const char **text)
{
    if (!*text)
        return LS_OK;
    *text = ls_arena_strdup(arena, *text);
    return *text ? LS_OK : LS_ENOMEM;
}

/* Copy rows, names and texts into the arena of the job; tensors' bytes stay the caller's. */
static ls_status copy_job(ls_ckpt_writer *w, const ls_ckpt_info *info,
                          const ls_ckpt_tensor *tensors, int n)
{
    ls_status st = LS_OK;

    ls_arena_release(&w->arena);
    w->info = *info;
    w->n = n;
    w->tensors = ls_arena_alloc(&w->arena, (size_t)n * sizeof *tensors);
    if (!w->tensors)
        return LS_ENOMEM;
    LS_TRY(st, copy_text(&w->arena, &w->info.run_name), out);
    LS_TRY(st, copy_text(&w->arena, &w->info.mesh), out);
    LS_TRY(st, copy_text(&w->arena, &w->info.config), out);
    LS_TRY(st, copy_text(&w->arena, &w->info.extra), out);
    for (int i = 0; i < n; i++) {
        w->tensors[i] = tensors[i];
        LS_TRY(st, copy_text(&w->arena, &w->tensors[i].name), out);
        LS_TRY(st, copy_text(&w->arena, &w->tensors[i].kind), out);
        LS_TRY(st, copy_text(&w->arena, &w->tensors[i].group), out);
    }
out:
    return st;
}

/* Hand over a result; the lock is held. */
static ls_status report(ls_ckpt_writer *w, bool *done_out, ls_ckpt_saved *saved_out)
{
    *done_out = w->state == FINISHED;
    if (w->state != FINISHED)
        return LS_OK;
    w->state = IDLE;
    if (w->status != LS_OK)
        return ls_err_adopt(&w->record);
    if (saved_out)
        *saved_out = w->saved;
    return LS_OK;
}

/* Until the writer is idle; the lock is held. A result that nobody has asked for is looked at here: a
 * failure is returned instead of beginning the next save, and so is never lost. */
static ls_status make_idle(ls_ckpt_writer *w, int64_t step, int64_t deadline_ns)
{
    bool done;

    if (!wait_until(w, false, deadline_ns))
        return ls_fail(LS_EBUSY, "cannot save step %lld: the save of step %lld is still running",
                       (long long)step, (long long)w->job.step);
    return report(w, &done, NULL);
}

static void start(ls_ckpt_writer *w, const ls_ckpt_job *job)
{
    w->job = *job;
    w->copying = job->copy != NULL;
    w->state = RUNNING;
    pthread_cond_broadcast(&w->changed);
}

ls_status ls_ckpt_writer_begin(ls_ckpt_writer *writer, const ls_ckpt_info *info,
                               const ls_ckpt_tensor *tensors, int n, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    pthread_mutex_lock(&writer->lock);
    LS_TRY(st, make_idle(writer, info->step, deadline_ns), out);
    LS_TRY(st, copy_job(writer, info, tensors, n), out);
    start(writer, &(ls_ckpt_job){.step = info->step, .work = save_rows, .context = writer});
out:
    pthread_mutex_unlock(&writer->lock);
    return st;
}

ls_status ls_ckpt_writer_run(ls_ckpt_writer *writer, const ls_ckpt_job *job, int64_t deadline_ns)
{
    pthread_mutex_lock(&writer->lock);
    ls_status st = make_idle(writer, job->step, deadline_ns);
    if (st == LS_OK)
        start(writer, job);
    pthread_mutex_unlock(&writer->lock);
    return st;
}

ls_status ls_ckpt_writer_copied(ls_ckpt_writer *writer, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    pthread_mutex_lock(&writer->lock);
    if (!wait_until(writer, true, deadline_ns))
        st = ls_fail(LS_EDEADLINE, "the copy of step %lld is still being made",
                     (long long)writer->job.step);
    pthread_mutex_unlock(&writer->lock);
    return st;
}

ls_status ls_ckpt_writer_poll(ls_ckpt_writer *writer, bool *done_out, ls_ckpt_saved *saved_out)
{
    pthread_mutex_lock(&writer->lock);
    ls_status st = report(writer, done_out, saved_out);
    pthread_mutex_unlock(&writer->lock);
    return st;
}

ls_status ls_ckpt_writer_wait(ls_ckpt_writer *writer, int64_t deadline_ns, bool *done_out,
                              ls_ckpt_saved *saved_out)
{
    ls_status st;

    pthread_mutex_lock(&writer->lock);
    *done_out = false;
    if (wait_until(writer, false, deadline_ns))
        st = report(writer, done_out, saved_out);
    else
        st = ls_fail(LS_EDEADLINE, "the save of step %lld is still running",
                     (long long)writer->job.step);
    pthread_mutex_unlock(&writer->lock);
    return st;
}
