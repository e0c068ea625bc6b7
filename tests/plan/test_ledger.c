/* test_ledger.c -- adding up, and what the kernel counts. */
#include "harness.h"
#include "plan/ledger.h"
#include "plan/ledger_bytes.h"

LS_TEST(ledger_adds_up_and_prints)
{
    ls_ledger ledger = {.count = 0};
    ls_str text;

    ls_ledger_add(&ledger, "weights", "why", 3 * LS_MIB);
    ls_ledger_add(&ledger, "nothing", "left out", 0);
    ls_ledger_add(&ledger, "gradients", "why", LS_MIB);
    LS_CHECK_EQ(ls_ledger_total(&ledger), 4 * LS_MIB);
    LS_CHECK_EQ(ledger_bytes(&ledger, "gradients"), LS_MIB);
    LS_CHECK_EQ(ledger_bytes(&ledger, "nothing"), 0);
    ls_str_init(&text);
    ls_ledger_print(&ledger, &text);
    LS_CHECK(strstr(text.p, "weights") && strstr(text.p, "75.0 %") && strstr(text.p, "4.0 MiB"));
    ls_ledger_add(&ledger, "a name that is longer", "why", 12 * LS_MIB);
    ls_str_clear(&text);
    ls_ledger_print(&ledger, &text); /* its columns stand below each other all the same */
    LS_CHECK(strstr(text.p, "  weights                    3.0 MiB"));
    LS_CHECK(strstr(text.p, "  a name that is longer     12.0 MiB"));
    LS_CHECK(strstr(text.p, "  total                     16.0 MiB"));
    ls_str_release(&text);
}

/* What lies in the host's memory beside a GPU does not count against the GPU. */
LS_TEST(ledger_keeps_the_host_discrete)
{
    ls_ledger ledger = {.count = 0};
    ls_str text;

    ls_ledger_add(&ledger, "weights", "why", 3 * LS_MIB);
    ls_ledger_add_host(&ledger, "snapshot", "why", 9 * LS_MIB);
    LS_CHECK_EQ(ls_ledger_total(&ledger), 3 * LS_MIB);
    LS_CHECK_EQ(ls_ledger_host_total(&ledger), 9 * LS_MIB);
    ls_str_init(&text);
    ls_ledger_print(&ledger, &text);
    const char *host = strstr(text.p, "memory of the host\n");
    LS_CHECK(host && strstr(host, "snapshot") && !strstr(host, "weights"));
    LS_CHECK(strstr(text.p, "3.0 MiB") < host);
    ls_str_release(&text);
}

LS_TEST(ledger_reads_the_resident_size)
{
    int64_t now = ls_ledger_resident_bytes();

    LS_CHECK(now > 0 && ls_ledger_peak_resident_bytes() >= now);
}
