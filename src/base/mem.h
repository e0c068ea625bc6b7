/* mem.h -- small heap memory, checked, counted, and able to fail on purpose.
 *
 * Everything that is not a device buffer comes from here, so that tests can make the n-th call fail
 * and count the calls of a training step. Large memory goes through device/device.h and its ledger.
 */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* bytes of memory, zeroed; NULL (with an LS_ENOMEM record) when there is none. Zero bytes give a
 * valid pointer. */
void *ls_mem_alloc(size_t bytes);

/* count elements of size bytes, zeroed; NULL on overflow or exhaustion. */
void *ls_mem_array(size_t count, size_t size);

/* Grow or shrink; the old block stays valid when NULL is returned. New bytes are not zeroed. */
void *ls_mem_resize(void *p, size_t bytes);

/* items with room for one more of size bytes behind its n: memory that doubles at powers of two, so
 * that no capacity needs to be kept. NULL: items stays valid. */
void *ls_mem_one_more(void *items, size_t n, size_t size);

/* A copy of a string; NULL when memory is exhausted. */
char *ls_mem_strdup(const char *text);

/* NULL is allowed. */
void ls_mem_free(void *p);

/* Calls of alloc, array and resize so far in this process; tests count those of a training step. */
uint64_t ls_mem_calls(void);

/* For tests: let the n-th call from now on fail (1 = the next one), once; 0 switches it off. */
void ls_mem_fail_nth(uint64_t n);

LS_C_END
