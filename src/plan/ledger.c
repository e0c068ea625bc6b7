/* ledger.c -- a list of names and bytes, and the kernel's own count beside it. */
#include "plan/ledger.h"

void ls_ledger_add(ls_ledger *ledger, const char *name, const char *why, int64_t bytes)
{
    LS_BUG_IF(ledger->count == (int)LS_COUNT(ledger->items), "the ledger is full at \"%s\"", name);
    if (bytes > 0)
        ledger->items[ledger->count++] = (ls_ledger_item){name, why, bytes};
}

int64_t ls_ledger_total(const ls_ledger *ledger)
{
    int64_t sum = 0;

    for (int i = 0; i < ledger->count; i++)
        sum += ledger->items[i].bytes;
    return sum;
}

int64_t ls_ledger_bytes(const ls_ledger *ledger, const char *name)
{
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->items[i].name, name) == 0)
            return ledger->items[i].bytes;
    return 0;
}

void ls_ledger_print(const ls_ledger *ledger, ls_str *text)
{
    int64_t total = ls_ledger_total(ledger);

    for (int i = 0; i < ledger->count; i++) {
        const ls_ledger_item *item = &ledger->items[i];
        ls_str_printf(text, "  %-12s %8.1f MiB %5.1f %%  %s\n", item->name,
                      (double)item->bytes / (double)LS_MIB,
                      100.0 * (double)item->bytes / (double)total, item->why);
    }
    ls_str_printf(text, "  %-12s %8.1f MiB\n", "total", (double)total / (double)LS_MIB);
}

static int64_t status_bytes(const char *field)
{
    char line[160];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0 &&
            sscanf(line + strlen(field), ": %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (int64_t)kib * LS_KIB;
}

int64_t ls_ledger_resident_bytes(void)
{
    return status_bytes("VmRSS");
}

int64_t ls_ledger_peak_resident_bytes(void)
{
    return status_bytes("VmHWM");
}
