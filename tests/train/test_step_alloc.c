/* test_step_alloc.c -- no heap call in a step after the second.
 *
 * malloc and its relatives are replaced in the test program by versions that count, so calls from
 * libraries and other threads (the loader) count too. A sanitizer has its own malloc: skipped
 * there. */
#include <stdatomic.h>
#include "config/runfile.h"
#include "harness.h"
#include "train/loop.h"

static atomic_long heap_calls;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t bytes);

/* The C library's declarations carry attributes that a plain definition does not repeat. */
void *malloc(size_t bytes)
{
    atomic_fetch_add_explicit(&heap_calls, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add_explicit(&heap_calls, 1, memory_order_relaxed);
    return __libc_calloc(count, size);
}

void *realloc(void *p, size_t bytes)
{
    atomic_fetch_add_explicit(&heap_calls, 1, memory_order_relaxed);
    return __libc_realloc(p, bytes);
}
#define COUNTS 1
#else
#define COUNTS 0
#endif

typedef struct span {
    int64_t from, to; /* steps */
    long begin, end;  /* heap calls when they had ended */
} span;

static void on_event(void *context, const ls_event *event)
{
    span *s = context;

    if (event->kind == LS_EVENT_STEP && event->step.step == s->from)
        s->begin = atomic_load(&heap_calls);
    if (event->kind == LS_EVENT_STEP && event->step.step == s->to)
        s->end = atomic_load(&heap_calls);
}

/* Heap calls of a run of 30 steps between the ends of two of them. */
static long count_between(int64_t from, int64_t to, const char *set, int64_t profile_steps)
{
    static const char text[] =
        "model: {layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}\n"
        "data: {text: [builtin:stories]}\n"
        "batch: {sequences: 6, leaf: 2, group: 1}\n"
        "train: {steps: 30, warmup: 3}\n"
        "checkpoint: {every: 0}\n"
        "eval: {every: 0, sample: \"\"}\n";
    const char *sets[] = {"out=run", set};
    span s = {.from = from, .to = to};
    ls_run run;

    LS_CHECK_OK(ls_runfile_load(&run, &(ls_runfile_source){.text = text,
                                                           .len = sizeof text - 1,
                                                           .sets = sets,
                                                           .n_sets = 2,
                                                           .no_environment = true}));
    LS_CHECK_OK(ls_loop_run(&(ls_session_args){.run = &run,
                                               .fresh = true,
                                               .sink = on_event,
                                               .sink_context = &s,
                                               .profile_steps = profile_steps}));
    ls_runfile_release(&run);
    LS_CHECK(s.begin > 0); /* opening the run did call the heap: the counter works */
    return s.end - s.begin;
}

LS_TEST(step_alloc_none_after_the_second_step)
{
    if (!COUNTS)
        ls_test_skip("a sanitizer's malloc is in use");
    LS_CHECK_EQ(count_between(2, 29, "train.reduce=ordered", 0), 0);
    LS_CHECK_EQ(count_between(2, 29, "train.reduce=fast", 0), 0);
    LS_CHECK_EQ(count_between(2, 29, "data.isolate=true", 0), 0);
    LS_CHECK_EQ(count_between(2, 21, "train.reduce=ordered", 20), 0); /* and while profiled */
}
