/* test_ref_bf16.c -- how the reference rounds doubles to bf16: as the cast does, and only once. */
#include "harness.h"
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_basic.h"

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* All signs and exponents, with fractions around every kind of tie. */
LS_TEST(ref_bf16_rounds_floats_as_the_cast_does)
{
    static const uint32_t low[] = {0,       1,        0x7fff,   0x8000,  0x8001,
                                   0xffff,  0x10000,  0x17fff,  0x18000, 0x18001,
                                   0x1ffff, 0x7f8000, 0x7f7fff, 0x7fffff};

    for (uint32_t top = 0; top < 512; top++)
        for (size_t i = 0; i < LS_COUNT(low); i++) {
            uint32_t bits = top << 23 | low[i];
            float x = float_of(bits);
            uint16_t want;
            if (isnan(x))
                continue;
            ls_ref_cast(
                NULL,
                &(ls_cast){
                    .from_type = LS_F32, .to_type = LS_BF16, .from = &x, .to = &want, .n = 1});
            LS_CHECK_EQ(ls_ref_bf16((double)x), want);
            LS_CHECK(ls_ref_load(&want, LS_BF16, 0) == (double)float_of((uint32_t)want << 16));
        }
    uint16_t nan = ls_ref_bf16((double)NAN);
    LS_CHECK(isnan(ls_ref_load(&nan, LS_BF16, 0)));
}

/* 1 + 2^-8 lies between two bf16 numbers; a little more must go up, but is lost in fp32. */
LS_TEST(ref_bf16_rounds_once)
{
    double tie = 1 + 0x1p-8;

    LS_CHECK_EQ(ls_ref_bf16(tie), 0x3f80);
    LS_CHECK_EQ(ls_ref_bf16(tie + 0x1p-40), 0x3f81);
    LS_CHECK_EQ(ls_ref_bf16((double)(float)(tie + 0x1p-40)), 0x3f80);
    LS_CHECK_EQ(ls_ref_bf16(-(tie + 0x1p-40)), 0xbf81);
    /* The same among the denormal numbers, whose last place is 2^-133. */
    LS_CHECK_EQ(ls_ref_bf16(0x1.8p-133), 2);
    LS_CHECK_EQ(ls_ref_bf16(0x1p-134), 0);
    LS_CHECK_EQ(ls_ref_bf16(0x1p-134 + 0x1p-180), 1);
    LS_CHECK_EQ(ls_ref_bf16(0x1p-126 - 0x1p-150), 0x80);
    /* What is beyond the largest number by half a place is infinite. */
    LS_CHECK_EQ(ls_ref_bf16(0x1.fep127), 0x7f7f);
    LS_CHECK_EQ(ls_ref_bf16(0x1.ffp127), 0x7f80);
    LS_CHECK_EQ(ls_ref_bf16(0x1.feffp127), 0x7f7f);
    LS_CHECK_EQ(ls_ref_bf16(1e300), 0x7f80);
    LS_CHECK_EQ(ls_ref_bf16(-1e300), 0xff80);
}
