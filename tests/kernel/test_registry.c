/* test_registry.c -- the tables are whole, the choice is right, the peaks are plausible. */
#include "kernel/kernel_check.h"

#include <math.h>
#include "kernel/peak.h"

LS_TEST(registry_describes_every_row_in_order)
{
    for (int i = 0; i < LS_ROWS; i++) {
        const ls_kernel_row *row = &ls_kernel_rows[i];
        LS_CHECK_EQ(row->row, i);
        LS_CHECK(row->name && row->formula && row->reason);
        LS_CHECK(row->name[0] && row->formula[0] && row->reason[0]);
        LS_CHECK(row->tolerance >= 0 && row->tolerance <= 1e-3);
        for (int j = 0; j < i; j++)
            LS_CHECK(strcmp(row->name, ls_kernel_rows[j].name) != 0);
    }
}

LS_TEST(registry_lists_best_first_and_picks_by_name)
{
    const ls_kernels *list[8], *k = NULL;
    int n = ls_kernel_list(list, 8);

    LS_CHECK(n >= 2);
    LS_CHECK_STR(list[n - 2]->name, "generic");
    LS_CHECK_STR(list[n - 1]->name, "reference");
    LS_CHECK_EQ(ls_kernel_list(list, 1), 1);
    LS_CHECK_OK(ls_kernel_pick("auto", &k));
    LS_CHECK(k == list[0]);
    n = ls_kernel_list(list, 8);
    for (int i = 0; i < n; i++) {
        LS_CHECK_OK(ls_kernel_pick(list[i]->name, &k));
        LS_CHECK(k == list[i]);
    }
    k = NULL;
    LS_CHECK_FAILS(ls_kernel_pick("avx1024", &k), LS_EUSAGE, "no kernels named \"avx1024\"");
    LS_CHECK(!k);
}

LS_TEST(registry_asks_for_scratch_by_shape)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    ls_norm_bwd norm = {.M = 70, .C = 17, .leaves = 2}; /* 2 leaves of 2 chunks of 2 * 32 floats */
    ls_embed_bwd embed = {.M = 10, .V = 5};
    ls_add add = {.n = 5};

    for (int i = 0; i < n; i++) {
        bool reference = strcmp(list[i]->name, "reference") == 0;
        LS_CHECK_EQ(list[i]->scratch(LS_ROW_NORM_BWD, &norm, 2), reference ? 0 : 4 * 64 * 4);
        LS_CHECK_EQ(list[i]->scratch(LS_ROW_EMBED_BWD, &embed, 2), 16 * 4);
        LS_CHECK_EQ(list[i]->scratch(LS_ROW_ADD, &add, 2), 0);
    }
}

LS_TEST(peak_is_a_plausible_number)
{
    const ls_kernels *k;
    ls_check c;

    ls_check_begin(&c, 1);
    LS_CHECK_OK(ls_kernel_pick("auto", &k));
    double best = ls_peak_flops(c.device, k->name), bytes = ls_peak_bandwidth(c.device);
    double generic = ls_peak_flops(c.device, "generic");
    /* One thread of any machine: more than 10 Mflop/s and 100 MB/s, less than 1 Tflop/s. */
    LS_CHECK(best > 1e7 && best < 1e12 && generic > 1e7 && generic < 1e12);
    LS_CHECK(bytes > 1e8 && bytes < 1e12);
    if (strncmp(k->name, "avx", 3) == 0)
        LS_CHECK(best > generic);
    LS_CHECK(ls_peak_flops(c.device, "nothing") == 0);
    LS_CHECK_EQ(ls_device_used_bytes(c.device), 0);
    ls_check_end(&c);
}
