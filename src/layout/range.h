/* range.h -- a run of elements, leaves or bytes that lie side by side. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef struct ls_range {
    int64_t first, count;
} ls_range;

/* What both have: of 3..9 and 7..20 it is 7..9. Without any, count is 0. */
static inline ls_range ls_range_common(ls_range a, ls_range b)
{
    int64_t first = ls_max_i64(a.first, b.first);
    int64_t end = ls_min_i64(a.first + a.count, b.first + b.count);

    return (ls_range){first, ls_max_i64(0, end - first)};
}

LS_C_END
