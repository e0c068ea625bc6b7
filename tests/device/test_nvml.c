/* test_nvml.c -- NVML that is there, that says little, that is broken, and that is not there. */
#include "device/nvml.h"

#include <math.h>
#include "fake/fake.h"

typedef struct fake {
    int *mode, *open;
    unsigned long long *xids;
} fake;

static fake use_fake(void)
{
    void *library = ls_fake_use("LINESHAFT_NVML", "libfake_nvml.so");
    fake f = {dlsym(library, "fake_nvml_mode"), dlsym(library, "fake_nvml_open"),
              dlsym(library, "fake_nvml_xids")};

    LS_CHECK(f.mode && f.open && f.xids);
    return f;
}

LS_TEST(nvml_reports_all_of_a_card)
{
    fake f = use_fake();
    ls_nvml *n = NULL;
    ls_nvml_state state;
    ls_nvml_reading r;
    char why[160], text[128];

    LS_CHECK(!ls_nvml_open(&n, "0000:0b:00.0", why));
    LS_CHECK_EQ(*f.open, 1);
    ls_nvml_read(n, &r);
    LS_CHECK_NEAR(r.power_w, 612.5, 1e-9);
    LS_CHECK_NEAR(r.limit_w, 700, 1e-9);
    LS_CHECK_NEAR(r.energy_j, 250, 1e-9);
    LS_CHECK_NEAR(r.sm_mhz, 1485, 0);
    LS_CHECK_NEAR(r.sm_most_mhz, 1980, 0);
    LS_CHECK_NEAR(r.memory_mhz, 3201, 0);
    LS_CHECK_NEAR(r.temperature_c, 58, 0);
    LS_CHECK_NEAR(r.used_bytes, 771.0 * LS_MIB, 0);
    LS_CHECK_NEAR(r.total_bytes, 143771.0 * LS_MIB, 0);
    LS_CHECK_NEAR(r.corrected, 5, 0);
    LS_CHECK_NEAR(r.uncorrected, 2, 0);
    LS_CHECK_EQ(r.xids, 0);
    ls_nvml_reasons(r.reasons, text);
    LS_CHECK_STR(text, "power limit, heat");
    f.xids[0] = 31, f.xids[1] = 79;
    ls_nvml_read(n, &r);
    LS_CHECK_NEAR(r.energy_j, 500, 1e-9);
    LS_CHECK_EQ(r.xids, 2);
    LS_CHECK_EQ(r.last_xid, 79);
    f.xids[0] = 48;
    ls_nvml_look(n, &state);
    LS_CHECK_EQ(state.xids, 3);
    LS_CHECK_EQ(state.last_xid, 48);
    LS_CHECK_NEAR(state.reasons, LS_NVML_POWER_CAP | LS_NVML_HW_THERMAL, 0);
    LS_CHECK(ls_nvml_slowed(state.reasons) && !ls_nvml_slowed(LS_NVML_POWER_CAP | LS_NVML_IDLE));
    LS_CHECK(ls_nvml_slowed(LS_NVML_POWER_BRAKE) && !ls_nvml_slowed((double)NAN));
    ls_nvml_close(n);
    LS_CHECK_EQ(*f.open, 0);
}

LS_TEST(nvml_of_a_card_that_says_little)
{
    fake f = use_fake();
    ls_nvml *n = NULL;
    ls_nvml_reading r;
    char why[160], text[128];

    *f.mode = 1;
    f.xids[0] = 31; /* not registered, so not seen */
    LS_CHECK(!ls_nvml_open(&n, "", why));
    ls_nvml_read(n, &r);
    LS_CHECK(isnan(r.power_w) && isnan(r.limit_w) && isnan(r.energy_j) && isnan(r.sm_mhz));
    LS_CHECK(isnan(r.sm_most_mhz) && isnan(r.memory_mhz) && isnan(r.temperature_c));
    LS_CHECK(isnan(r.corrected) && isnan(r.uncorrected) && isnan(r.reasons));
    LS_CHECK(r.used_bytes > 0);
    LS_CHECK_EQ(r.xids, 0);
    ls_nvml_reasons(r.reasons, text);
    LS_CHECK_STR(text, "");
    ls_nvml_close(n);
}

LS_TEST(nvml_that_cannot_be_used_says_why)
{
    fake f = use_fake();
    ls_nvml *n = NULL;
    ls_nvml_reading r;
    char why[160];

    *f.mode = 2;
    LS_CHECK(strstr(ls_nvml_open(&n, "", why), "does not start (NVML's code 9)"));
    *f.mode = 0;
    LS_CHECK_STR(ls_nvml_open(&n, "0000:99:00.0", why),
                 "it does not know the card 0000:99:00.0 (NVML's code 6)");
    LS_CHECK_EQ(*f.open, 0);
    LS_CHECK_EQ(setenv("LINESHAFT_NVML", "libm.so.6", 1), 0);
    LS_CHECK_STR(ls_nvml_open(&n, "", why), "\"libm.so.6\" lacks nvmlInit_v2");
    LS_CHECK_EQ(setenv("LINESHAFT_NVML", "libnothing-ml.so.1", 1), 0);
    LS_CHECK_STR(ls_nvml_open(&n, "", why), "there is no \"libnothing-ml.so.1\"");
    LS_CHECK(!n);
    ls_nvml_read(n, &r);
    LS_CHECK(isnan(r.energy_j) && isnan(r.used_bytes));
    ls_nvml_close(n);
}
