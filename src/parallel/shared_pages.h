/* shared_pages.h -- how much of the memory that ranks share an allocation takes (ls_comm_alloc). */
#pragma once
#include "base/base.h"

LS_C_BEGIN

/* Whole pages, at least one: 1 byte takes 4096, 4097 bytes take 8192. */
static inline int64_t ls_shared_pages(int64_t bytes)
{
    return ls_round_up(ls_max_i64(1, bytes), 4096);
}

LS_C_END
