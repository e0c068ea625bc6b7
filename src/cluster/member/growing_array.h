/* growing_array.h -- room for one more element in an array on the heap.
 *
 *     n     0   1   8   9  17
 *     room  8   8   8  16  32     doubles, so that an array of n elements moves log2(n) times */
#pragma once
#include "base/mem.h"

/* n elements of this size are in use. False (LS_ENOMEM in the record): the array is as it was. */
static inline bool ls_growing_array_add(void **array, int n, int *room, size_t size)
{
    if (n < *room)
        return true;
    int more = *room ? 2 * *room : 8;
    void *bigger = ls_mem_resize(*array, (size_t)more * size);
    if (!bigger)
        return false;
    *array = bigger;
    *room = more;
    return true;
}
