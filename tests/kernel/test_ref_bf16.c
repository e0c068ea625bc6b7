/* test_ref_bf16.c -- how the reference rounds doubles to bf16 and fp16: as the cast does, and only
 * once. */
#include "harness.h"
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

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

/* All fp16 numbers, and what lies between each and the next. */
LS_TEST(ref_f16_rounds_floats_as_the_cast_does)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t bits = (uint16_t)h, next = (uint16_t)(h + 1), want;
        double x = ls_ref_load(&bits, LS_F16, 0), y = ls_ref_load(&next, LS_F16, 0);
        float wide;
        if (isnan(x)) {
            LS_CHECK((bits & 0x7fff) > 0x7c00);
            continue;
        }
        ls_ref_cast(
            NULL,
            &(ls_cast){.from_type = LS_F16, .to_type = LS_F32, .from = &bits, .to = &wide, .n = 1});
        LS_CHECK(x == (double)wide);
        LS_CHECK_EQ(ls_ref_f16(x), bits);
        if ((bits & 0x7fff) >= 0x7bff)
            continue;
        for (int k = 1; k < 4; k++) { /* a quarter, a half, three quarters of the way */
            wide = (float)(x + (y - x) * k / 4);
            ls_ref_cast(
                NULL,
                &(ls_cast){
                    .from_type = LS_F32, .to_type = LS_F16, .from = &wide, .to = &want, .n = 1});
            LS_CHECK_EQ(ls_ref_f16((double)wide), want);
        }
    }
    /* Rounded once; and what is beyond the largest number by half a place is infinite. */
    LS_CHECK_EQ(ls_ref_f16(1 + 0x1p-11), 0x3c00);
    LS_CHECK_EQ(ls_ref_f16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
    LS_CHECK_EQ(ls_ref_f16(65519.99), 0x7bff);
    LS_CHECK_EQ(ls_ref_f16(65520), 0x7c00);
    LS_CHECK_EQ(ls_ref_f16(-1e300), 0xfc00);
    LS_CHECK_EQ(ls_ref_f16(0x1p-25), 0);
    LS_CHECK_EQ(ls_ref_f16(0x1.8p-25), 1);
}
