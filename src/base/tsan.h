/* tsan.h -- what the thread sanitizer cannot see by itself.
 *
 * Ranks that are threads of one process, as in tests, map the memory of their node each for itself
 * and meet by atomics there: at two addresses, which the tool takes for two things. Before a buffer
 * is offered to others it is released, before it is read or changed again acquired. Nothing
 * elsewhere.
 *
 * LS_TSAN_UNWATCHED is for an innermost loop over a thread's own copies, where watching every
 * access takes most of a test's time and finds nothing: the code that made the copies was
 * watched. */
#pragma once

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#ifdef __cplusplus
extern "C" {
#endif
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#ifdef __cplusplus
}
#endif
#define LS_TSAN_ACQUIRE(p) __tsan_acquire(p)
#define LS_TSAN_RELEASE(p) __tsan_release(p)
#define LS_TSAN_UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define LS_TSAN_ACQUIRE(p) ((void)(p))
#define LS_TSAN_RELEASE(p) ((void)(p))
#define LS_TSAN_UNWATCHED
#endif
