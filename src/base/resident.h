/* resident.h -- how much of a range of memory is resident in this process now. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

/* Bytes of the pages of the range that are there, by the kernel's own table (pagemap); -1 where the
 * system does not show it. */
int64_t ls_resident_bytes(const void *memory, int64_t bytes);

LS_C_END
