/* test_writer.c -- saving in the background. */
#include "harness.h"
#include "sample.h"
#include <stdatomic.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/time.h"
#include "checkpoint/ckpt_writer.h"

LS_TEST(writer_saves_while_the_caller_goes_on)
{
    sample s, snapshot;
    ls_ckpt_store *store;
    ls_ckpt_writer *writer;
    ls_ckpt_info back;
    ls_ckpt_saved saved;
    bool done, found;
    char name[32];

    sample_make(&s);
    sample_make(&snapshot);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_writer_create(&writer, store, &(ls_ckpt_pruning){.keep = 2}));
    LS_CHECK_OK(ls_ckpt_writer_poll(writer, &done, &saved));
    LS_CHECK(!done);
    for (int64_t step = 1; step <= 5; step++) {
        ls_ckpt_info info = sample_info(step);
        ls_ckpt_tensor rows[SAMPLE_MOST];
        snprintf(name, sizeof name, "run %d", (int)step);
        info.run_name = name;
        sample_fill(&snapshot, (uint32_t)step);
        memcpy(rows, snapshot.tensors, sizeof rows);
        LS_CHECK_OK(ls_ckpt_writer_begin(writer, &info, rows, snapshot.n, 0));
        memset(rows, 0, sizeof rows); /* rows and names were copied */
        memset(name, '!', sizeof name - 1);
        sample_fill(&s, 77); /* training goes on in its own memory */
        LS_CHECK_OK(ls_ckpt_writer_wait(writer, ls_test_soon(), &done, &saved));
        LS_CHECK(done && saved.bytes_written > 0);
    }
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(found && back.step == 5 && sample_is(&s, 5));
    LS_CHECK_STR(back.run_name, "run 5");
    LS_CHECK(!ls_file_exists("c/step-0000000003.json") && ls_file_exists("c/step-0000000004.json"));
    ls_ckpt_writer_free(writer);
    ls_ckpt_close(store);
    sample_release(&s);
    sample_release(&snapshot);
}

LS_TEST(writer_one_save_at_a_time)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_writer *writer;
    bool done, busy = false, late = false;
    int64_t end = ls_test_soon();

    sample_make(&s);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_writer_create(&writer, store, NULL));
    /* The thread may be quicker than we are, so go on until both refusals have been seen. */
    for (int64_t step = 2; !busy || !late; step += 2) {
        ls_ckpt_info info = sample_info(step);
        LS_CHECK(step < 100);
        sample_fill(&s, (uint32_t)step);
        LS_CHECK_OK(ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, 0));
        ls_status st = ls_ckpt_writer_wait(writer, ls_time_now_ns(), &done, NULL);
        LS_CHECK(st == (done ? LS_OK : LS_EDEADLINE));
        late = late || st == LS_EDEADLINE;
        info.step = step + 1;
        st = ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, 0);
        if (st == LS_EBUSY) {
            busy = true;
            LS_CHECK(strstr(ls_err_last()->text, "is still running"));
            st = ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, end); /* waits, then starts */
        }
        LS_CHECK_OK(st);
        for (done = false; !done;)
            LS_CHECK_OK(ls_ckpt_writer_poll(writer, &done, NULL));
    }
    LS_CHECK(ls_file_exists("c/step-0000000002.json") && ls_file_exists("c/step-0000000003.json"));
    LS_CHECK_OK(ls_ckpt_writer_wait(writer, end, &done, NULL)); /* idle: nothing to wait for */
    LS_CHECK(!done);
    ls_ckpt_writer_free(writer);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(writer_errors_travel_to_the_caller)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_writer *writer;
    ls_ckpt_info info = sample_info(1);
    bool done;
    int64_t end = ls_test_soon();

    sample_make_tiny(&s);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_writer_create(&writer, store, &(ls_ckpt_pruning){.keep = 1}));
    ls_fault_arm("ckpt.object.write@2,ckpt.object.write@3");
    LS_CHECK_OK(ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, 0));
    LS_CHECK_FAILS(ls_ckpt_writer_wait(writer, end, &done, NULL), LS_EIO, "No space left");
    LS_CHECK(done);
    LS_CHECK_STR(ls_err_last()->doing, "saving step 1");
    /* a failure that nobody fetched comes back from the next begin */
    LS_CHECK_OK(ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, 0));
    LS_CHECK_FAILS(ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, end), LS_EIO,
                   "No space left");
    LS_CHECK_OK(ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, end));
    LS_CHECK_OK(ls_ckpt_writer_wait(writer, end, &done, NULL));
    LS_CHECK(done && ls_file_exists("c/step-0000000001.json"));
    ls_fault_arm(NULL);
    ls_ckpt_writer_free(writer);
    ls_ckpt_writer_free(NULL);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(writer_freed_while_running_finishes_first)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_writer *writer;
    ls_ckpt_info info = sample_info(1);

    sample_make(&s);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    LS_CHECK_OK(ls_ckpt_writer_create(&writer, store, &(ls_ckpt_pruning){.keep = 1}));
    LS_CHECK_OK(ls_ckpt_writer_begin(writer, &info, s.tensors, s.n, 0));
    ls_ckpt_writer_free(writer);
    LS_CHECK(ls_file_exists("c/step-0000000001.json"));
    ls_ckpt_close(store);
    sample_release(&s);
}

/* A job whose copy waits until it may go on. */
typedef struct slow_job {
    atomic_bool go;
    bool fails;
    sample *from, *to;
    ls_ckpt_store *store;
    ls_ckpt_info info;
} slow_job;

static ls_status slow_copy(void *context)
{
    slow_job *job = context;

    while (!atomic_load(&job->go))
        usleep(1000);
    for (int i = 0; i < job->from->n; i++) {
        const ls_ckpt_tensor *t = &job->from->tensors[i];
        int64_t bytes = ls_dtype_bytes(t->type);
        for (int d = 0; d < t->ndim; d++)
            bytes *= t->shape[d];
        if (bytes)
            memcpy(job->to->tensors[i].bytes, t->bytes, (size_t)bytes);
    }
    return job->fails ? ls_fail(LS_EIO, "the copy failed") : LS_OK;
}

static ls_status slow_save(void *context, ls_ckpt_saved *saved_out)
{
    slow_job *job = context;

    return ls_ckpt_save(job->store, &job->info, job->to->tensors, job->to->n, saved_out);
}

LS_TEST(writer_copies_while_the_caller_goes_on)
{
    sample live, snapshot;
    ls_ckpt_writer *writer;
    slow_job job = {.from = &live, .to = &snapshot, .info = sample_info(3)};
    const ls_ckpt_job todo = {.step = 3, .copy = slow_copy, .work = slow_save, .context = &job};
    bool done, found;

    sample_make(&live);
    sample_make(&snapshot);
    sample_fill(&live, 3);
    LS_CHECK_OK(ls_ckpt_open(&job.store, "c", true));
    LS_CHECK_OK(ls_ckpt_writer_create(&writer, job.store, NULL));
    LS_CHECK_OK(ls_ckpt_writer_copied(writer, 0)); /* nothing is being copied */
    LS_CHECK_OK(ls_ckpt_writer_run(writer, &todo, 0));
    /* the state must not change yet; others may read it */
    LS_CHECK_FAILS(ls_ckpt_writer_copied(writer, ls_time_now_ns()), LS_EDEADLINE, "of step 3");
    LS_CHECK_FAILS(ls_ckpt_writer_run(writer, &todo, 0), LS_EBUSY, "still running");
    atomic_store(&job.go, true);
    LS_CHECK_OK(ls_ckpt_writer_copied(writer, ls_test_soon()));
    sample_fill(&live, 4); /* now it may */
    LS_CHECK_OK(ls_ckpt_writer_wait(writer, ls_test_soon(), &done, NULL));
    LS_CHECK(done);
    LS_CHECK_OK(ls_ckpt_load_newest(job.store, live.tensors, live.n, NULL, &found));
    LS_CHECK(found && sample_is(&live, 3));
    /* a copy that fails saves nothing */
    job.fails = true;
    job.info = sample_info(4);
    LS_CHECK_OK(ls_ckpt_writer_run(writer, &todo, 0));
    LS_CHECK_OK(ls_ckpt_writer_copied(writer, ls_test_soon()));
    LS_CHECK_FAILS(ls_ckpt_writer_wait(writer, ls_test_soon(), &done, NULL), LS_EIO,
                   "the copy failed");
    LS_CHECK(done && !ls_file_exists("c/step-0000000004.json"));
    ls_ckpt_writer_free(writer);
    ls_ckpt_close(job.store);
    sample_release(&live);
    sample_release(&snapshot);
}
