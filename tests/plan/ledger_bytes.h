/* ledger_bytes.h -- the bytes of one line of a memory ledger, by its name. */
#pragma once
#include <string.h>
#include "plan/ledger.h"

/* 0 when there is none of this name. */
static inline int64_t ledger_bytes(const ls_ledger *ledger, const char *name)
{
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->items[i].name, name) == 0)
            return ledger->items[i].bytes;
    return 0;
}
