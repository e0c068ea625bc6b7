/* hf_convert.c -- numbers between fp32 and the narrower types of files.
 *
 * A small float of e exponent bits (bias b) and m mantissa bits becomes fp32 by moving its fields
 * and changing the bias; its subnormals become normal numbers, which fp32 always has room for.
 * Worked example, F8_E4M3 (bias 7) 0x01: subnormal 1 x 2^-3 x 2^-6 = 2^-9. */
#include "hf/hf_convert.h"

#include <math.h>
#include <string.h>

typedef struct small_float {
    int mantissa, exponent; /* bits */
    bool ieee;              /* the highest exponent is infinity and NaN; otherwise only all ones
                             * is NaN and the rest are numbers */
} small_float;

static const small_float half = {10, 5, true}, e5m2 = {2, 5, true}, e4m3 = {3, 4, false};

static float bits_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float widen(uint32_t x, const small_float *f)
{
    uint32_t top = (1u << f->exponent) - 1, ones = (1u << f->mantissa) - 1;
    uint32_t sign = (x >> (f->mantissa + f->exponent)) << 31;
    uint32_t e = x >> f->mantissa & top, m = x & ones;
    int bias = (1 << (f->exponent - 1)) - 1;

    if (e == top && (f->ieee || m == ones))
        return bits_float(sign | 0x7f800000u | m << (23 - f->mantissa));
    if (e == 0) {
        float magnitude = ldexpf((float)m, 1 - bias - f->mantissa);
        return sign ? -magnitude : magnitude;
    }
    return bits_float(sign | (e + 127u - (uint32_t)bias) << 23 | m << (23 - f->mantissa));
}

static void widen_16(const unsigned char *src, int64_t count, const small_float *f, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t x;
        memcpy(&x, src + 2 * i, 2);
        out[i] = widen(x, f);
    }
}

static void widen_bf16(const unsigned char *src, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t x;
        memcpy(&x, src + 2 * i, 2);
        out[i] = bits_float((uint32_t)x << 16);
    }
}

static void widen_f64(const unsigned char *src, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        double x;
        memcpy(&x, src + 8 * i, 8);
        out[i] = (float)x;
    }
}

bool ls_hf_convert_reads(const ls_safetensors_dtype *dtype)
{
    static const char *const names[] = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"};

    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (strcmp(dtype->name, names[i]) == 0)
            return true;
    return false;
}

void ls_hf_convert_widen(const ls_safetensors_dtype *dtype, const void *src, int64_t count,
                         float *values_out)
{
    const unsigned char *p = src;

    switch (dtype->type) {
    case LS_F32:
        if (count > 0)
            memcpy(values_out, p, (size_t)count * sizeof *values_out);
        return;
    case LS_BF16:
        widen_bf16(p, count, values_out);
        return;
    case LS_F16:
        widen_16(p, count, &half, values_out);
        return;
    case LS_F64:
        widen_f64(p, count, values_out);
        return;
    default:
        LS_BUG_IF(!ls_hf_convert_reads(dtype), "no conversion from %s", dtype->name);
        const small_float *f = strcmp(dtype->name, "F8_E4M3") == 0 ? &e4m3 : &e5m2;
        for (int64_t i = 0; i < count; i++)
            values_out[i] = widen(p[i], f);
    }
}

static uint16_t narrow_bf16(float x)
{
    uint32_t bits = float_bits(x);

    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40); /* stays NaN whatever the lower half was */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t narrow_f16(float x)
{
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) /* 65520: half way to the number after the largest */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) { /* below 2^-14: a multiple of 2^-24 */
        float steps = bits_float(rest) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)nearbyintf(steps));
    }
    rest += 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | (rest - 0x38000000) >> 13);
}

void ls_hf_convert_narrow(ls_dtype type, const float *values, int64_t count, void *dst)
{
    unsigned char *p = dst;

    LS_BUG_IF(type != LS_F32 && type != LS_BF16 && type != LS_F16, "no conversion to type %d",
              (int)type);
    if (type == LS_F32 && count > 0)
        memcpy(p, values, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && type != LS_F32; i++) {
        uint16_t x = type == LS_BF16 ? narrow_bf16(values[i]) : narrow_f16(values[i]);
        memcpy(p + 2 * i, &x, 2);
    }
}
