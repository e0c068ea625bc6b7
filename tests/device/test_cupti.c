/* test_cupti.c -- CUPTI that records, that refuses, that is old, and that is not there. */
#include "device/cupti.h"

#include "base/mem.h"
#include "base/time.h"
#include "fake/cupti.h"

enum { ROOM = 100, US = 1000 };

LS_TEST(cupti_reports_kernels_by_our_clock_with_their_tags)
{
    ls_fake_cupti f = ls_fake_cupti_use();
    const ls_cupti_span *s = NULL;
    ls_cupti *c = NULL;
    char why[160];

    *f.drift = 50; /* ppm */
    LS_CHECK(!ls_cupti_open(&c, ROOM, why));
    LS_CHECK_EQ(*f.enabled, 6);
    int64_t early = ls_time_now_ns();
    f.kernel("_Z5earlyv", early, early + US); /* nobody has begun */
    LS_CHECK_EQ(ls_cupti_collect(c, &s), 0);
    ls_cupti_begin(c);
    int64_t at = ls_time_now_ns();
    f.kernel("_Z5earlyv", at - LS_NS_PER_S, at - LS_NS_PER_S + US); /* before it began */
    ls_cupti_push(c, 7);
    f.kernel("_Z9late_kernIfEvPT_", at + 30 * US, at + 50 * US);
    ls_cupti_push(c, 8);
    f.kernel("nvjet_tst_128x256", at + 10 * US, at + 30 * US);
    ls_cupti_pop(c);
    f.copy(8, 1000, at + 60 * US, at + 70 * US);
    ls_cupti_pop(c);
    LS_CHECK_EQ(*f.depth, 0);
    f.copy(1, 500, at + 80 * US, at + 90 * US);
    f.copy(0, 300, at + 90 * US, at + 91 * US);
    LS_CHECK_EQ(ls_cupti_collect(c, &s), 5);
    static const uint64_t tags[] = {8, 7, 7, 0, 0};
    static const int64_t bytes[] = {0, 0, 2000, 500, 300};
    static const int begins[] = {10, 30, 60, 80, 90};
    static const char *const names[] = {"nvjet_tst_128x256", "late_kern<float>",
                                        "copy on the device", "copy host to device", "set memory"};
    for (int i = 0; i < 5; i++) {
        LS_CHECK_EQ(s[i].tag, tags[i]);
        LS_CHECK_EQ(s[i].bytes, bytes[i]);
        LS_CHECK_STR(ls_cupti_name(c, s[i].name), names[i]);
        /* Two clocks are read one after the other: a machine that is busy makes that coarse. */
        LS_CHECK_NEAR((double)(s[i].begin_ns - at), (double)begins[i] * US, 2e6);
    }
    LS_CHECK_NEAR((double)(s[1].end_ns - s[1].begin_ns), 20 * US, 2000);
    f.kernel("_Z5earlyv", at, at + US); /* after it was collected */
    LS_CHECK_EQ(ls_cupti_dropped(c), 0);
    ls_cupti_stop(c);
    LS_CHECK_EQ(*f.enabled, 0);
    LS_CHECK_EQ(*f.buffers, 0);
    LS_CHECK_STR(ls_cupti_name(c, s[0].name), "nvjet_tst_128x256");
    ls_cupti_close(c);
    LS_CHECK(!ls_cupti_open(&c, ROOM, why)); /* once more */
    ls_cupti_close(c);
    LS_CHECK_EQ(*f.enabled, 0);
    ls_cupti_close(NULL);
}

LS_TEST(cupti_counts_what_it_lost)
{
    ls_fake_cupti f = ls_fake_cupti_use();
    const ls_cupti_span *s = NULL;
    ls_cupti *c = NULL;
    char why[160];

    LS_CHECK(!ls_cupti_open(&c, 2, why));
    ls_cupti_begin(c);
    int64_t at = ls_time_now_ns();
    f.kernel("never_ended", 0, 0);
    for (int i = 0; i < 5; i++)
        f.kernel("k", at + i * US, at + i * US + 1);
    LS_CHECK_EQ(ls_cupti_collect(c, &s), 2);
    LS_CHECK_EQ(ls_cupti_dropped(c), 4);
    *f.mode = 3; /* no tags: kernels all the same */
    ls_cupti_begin(c);
    ls_cupti_push(c, 9);
    at = ls_time_now_ns();
    f.kernel("k", at, at + US);
    ls_cupti_pop(c);
    LS_CHECK_EQ(ls_cupti_collect(c, &s), 1);
    LS_CHECK_EQ(s[0].tag, 0);
    ls_cupti_close(c);
}

LS_TEST(cupti_that_cannot_be_used_says_why)
{
    ls_fake_cupti f = ls_fake_cupti_use();
    ls_cupti *c = NULL;
    char why[160];

    *f.mode = 1;
    LS_CHECK_STR(ls_cupti_open(&c, ROOM, why),
                 "CUPTI's version is 28, and only that of CUDA 13 is known");
    *f.mode = 2;
    LS_CHECK_STR(ls_cupti_open(&c, ROOM, why),
                 "CUPTI does not record kernels: MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (its code 39)");
    LS_CHECK_EQ(setenv("LINESHAFT_CUPTI", "libm.so.6", 1), 0);
    LS_CHECK_STR(ls_cupti_open(&c, ROOM, why), "CUPTI's library lacks cuptiGetVersion");
    LS_CHECK_EQ(setenv("LINESHAFT_CUPTI", "libnothing.so.13", 1), 0);
    LS_CHECK_STR(ls_cupti_open(&c, ROOM, why), "there is no \"libnothing.so.13\"");
    LS_CHECK_EQ(setenv("LINESHAFT_CUPTI", "/proc/self/cmdline", 1), 0); /* a file, no library */
    LS_CHECK(strstr(ls_cupti_open(&c, ROOM, why), "/proc/self/cmdline"));
    LS_CHECK(!c);
    ls_fake_cupti_use();
    *f.mode = 0;
    for (uint64_t n = 1; n <= 4; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_STR(ls_cupti_open(&c, ROOM, why), "there is no memory for it");
    }
    ls_mem_fail_nth(0);
    LS_CHECK(!ls_cupti_open(&c, ROOM, why));
    ls_cupti_close(c);
}

static void check_short(const char *name, const char *want)
{
    char text[LS_CUPTI_NAME];

    ls_cupti_shorten(name, text);
    LS_CHECK_STR(text, want);
}

static void check_plain(const char *name, const char *want)
{
    char text[LS_CUPTI_NAME];

    ls_cupti_unmangle(name, text);
    LS_CHECK_STR(text, want);
}

LS_TEST(cupti_names_are_short)
{
    char text[LS_CUPTI_NAME], longest[300];

    check_short("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT");
    check_short("void bwd_rows<__nv_bfloat16, 8>(float const*, long)",
                "bwd_rows<__nv_bfloat16, 8>");
    check_short("void (anonymous namespace)::fold<(ls_act)1, a::b<2> >(int (*)(int))",
                "fold<(ls_act)1, a::b<2> >");
    check_short("tree_finish(float const*, ls_tree_outs, bool)", "tree_finish");
    check_short("", "");
    check_short("(", "("); /* nothing sensible: as it is */
    check_plain("_Z12plain_kernelI13__nv_bfloat16fEv10ls_product", "plain_kernel");
    check_plain("_ZN12_GLOBAL__N_18bwd_rowsILi8EEEvPKfl", "bwd_rows");
    check_plain("_ZL4foldPf", "fold");
    check_plain("cudnn_generated_kernel0", "cudnn_generated_kernel0");
    check_plain("_Z99short", "_Z99short");
    check_plain("_Z", "_Z");
    memset(longest, 'a', sizeof longest);
    memcpy(longest + sizeof longest - 9, "kernel_0", 9);
    ls_cupti_shorten(longest, text);
    LS_CHECK_EQ(strlen(text), LS_CUPTI_NAME - 1);
    LS_CHECK(strstr(text, "aaa...aaa") && strcmp(text + strlen(text) - 8, "kernel_0") == 0);
}

LS_TEST(cupti_times_lie_on_a_line)
{
    const ls_cupti_moment a = {1000, 5000000}, b = {2000, 5001100}; /* theirs is 10 % faster */

    LS_CHECK_EQ(ls_cupti_align(a, b, 5000000), 1000);
    LS_CHECK_EQ(ls_cupti_align(a, b, 5001100), 2000);
    LS_CHECK_EQ(ls_cupti_align(a, b, 5000550), 1500);
    LS_CHECK_EQ(ls_cupti_align(a, b, 5002200), 3000);
    LS_CHECK_EQ(ls_cupti_align(a, b, 4998900), 0);
    LS_CHECK_EQ(ls_cupti_align(a, a, 5000550), 1550); /* no second moment: the first one's offset */
    /* Clocks of today: the product of ns and ns does not fit in 64 bits. */
    const ls_cupti_moment c = {INT64_C(900000000000000), INT64_C(1790000000000000000)};
    const ls_cupti_moment d = {c.ours + INT64_C(100000000000), c.theirs + INT64_C(100000001000)};
    LS_CHECK_EQ(ls_cupti_align(c, d, c.theirs + INT64_C(50000000500)),
                c.ours + INT64_C(50000000000));
}
