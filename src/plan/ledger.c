/* ledger.c -- a list of names and bytes, and the kernel's own count beside it. */
#include "plan/ledger.h"

static void add(ls_ledger *ledger, ls_ledger_item item)
{
    LS_BUG_IF(ledger->count == (int)LS_COUNT(ledger->items), "the ledger is full at \"%s\"",
              item.name);
    if (item.bytes > 0)
        ledger->items[ledger->count++] = item;
}

void ls_ledger_add(ls_ledger *ledger, const char *name, const char *why, int64_t bytes)
{
    add(ledger, (ls_ledger_item){.name = name, .why = why, .bytes = bytes});
}

void ls_ledger_add_host(ls_ledger *ledger, const char *name, const char *why, int64_t bytes)
{
    add(ledger, (ls_ledger_item){.name = name, .why = why, .bytes = bytes, .host = true});
}

static int64_t total_of(const ls_ledger *ledger, bool host)
{
    int64_t sum = 0;

    for (int i = 0; i < ledger->count; i++)
        if (ledger->items[i].host == host)
            sum += ledger->items[i].bytes;
    return sum;
}

int64_t ls_ledger_total(const ls_ledger *ledger)
{
    return total_of(ledger, false);
}

int64_t ls_ledger_host_total(const ls_ledger *ledger)
{
    return total_of(ledger, true);
}

static void print_part(const ls_ledger *ledger, bool host, ls_str *text)
{
    int64_t total = total_of(ledger, host);
    int width = 12; /* or the longest name */

    for (int i = 0; i < ledger->count; i++)
        if (ledger->items[i].host == host)
            width = (int)ls_max_i64(width, (int64_t)strlen(ledger->items[i].name));
    for (int i = 0; i < ledger->count; i++) {
        const ls_ledger_item *item = &ledger->items[i];
        if (item->host != host)
            continue;
        ls_str_printf(text, "  %-*s %8.1f MiB %5.1f %%  %s\n", width, item->name,
                      (double)item->bytes / (double)LS_MIB,
                      100.0 * (double)item->bytes / (double)total, item->why);
    }
    ls_str_printf(text, "  %-*s %8.1f MiB\n", width, "total", (double)total / (double)LS_MIB);
}

void ls_ledger_print(const ls_ledger *ledger, ls_str *text)
{
    print_part(ledger, false, text);
    if (ls_ledger_host_total(ledger) > 0) {
        ls_str_printf(text, "memory of the host\n");
        print_part(ledger, true, text);
    }
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

void ls_ledger_forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");

    if (!f)
        return;
    fputs("5", f); /* only the high-water mark, see proc(5) */
    fclose(f);
}
