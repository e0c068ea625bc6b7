/* ledger.h -- every large piece of memory, by name, before it is taken.
 *
 * The run adds up what it will allocate, refuses what does not fit with the changes that would make
 * it fit, and at the end compares the sum with the peak that the system counted. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_ledger_item {
    const char *name; /* static text */
    const char *why;  /* static text: what decides its size */
    int64_t bytes;
    bool host; /* of the host, where the device has a memory of its own: not part of the total */
} ls_ledger_item;

typedef struct ls_ledger {
    ls_ledger_item items[24];
    int count;
} ls_ledger;

void ls_ledger_add(ls_ledger *ledger, const char *name, const char *why, int64_t bytes);
void ls_ledger_add_host(ls_ledger *ledger, const char *name, const char *why, int64_t bytes);
int64_t ls_ledger_total(const ls_ledger *ledger);      /* what the device must have */
int64_t ls_ledger_host_total(const ls_ledger *ledger); /* beside it, in the host's memory */

/* A table for people: name, bytes, share, what decides its size. */
void ls_ledger_print(const ls_ledger *ledger, ls_str *text);

/* Resident bytes of this process now, and the most so far, as the kernel counts them. */
int64_t ls_ledger_resident_bytes(void);
int64_t ls_ledger_peak_resident_bytes(void);
/* Let the most so far begin anew, after memory that does not belong to the run; nothing changes
 * where the kernel does not allow it. */
void ls_ledger_forget_peak(void);

LS_C_END
