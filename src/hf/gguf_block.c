/* gguf_block.c -- rounding to the types of a GGUF file, and back.
 *
 * Every operation is a single one in fp32, in the order in which the `gguf` package does it, so that
 * the bytes are the same. An example of Q4_0, with four numbers instead of 32:
 *
 *   numbers   1.0  -2.0   0.5   0      the largest by amount is -2: d = -2 / -8 = 0.25
 *   x / d     4    -8     2     0
 *   q        12     0    10     8      x / d + 8, rounded, at most 15 */
#include "hf/gguf_block.h"

#include <math.h>
#include <string.h>
#include "hf/hf_convert.h"

static const ls_safetensors_dtype *f16(void)
{
    return ls_safetensors_dtype_find("F16");
}

static const struct {
    ls_gguf_type type;
    const char *name;
    int block, bytes; /* numbers of a block, and its bytes */
} rows[] = {
    {LS_GGUF_TYPE_F32, "f32", 1, 4},
    {LS_GGUF_TYPE_F16, "f16", 1, 2},
    {LS_GGUF_TYPE_BF16, "bf16", 1, 2},
    {LS_GGUF_TYPE_Q8_0, "q8_0", LS_GGUF_BLOCK, 2 + LS_GGUF_BLOCK},
    {LS_GGUF_TYPE_Q4_0, "q4_0", LS_GGUF_BLOCK, 2 + LS_GGUF_BLOCK / 2},
};

static int row_of(ls_gguf_type type)
{
    for (int i = 0; i < (int)LS_COUNT(rows); i++)
        if (rows[i].type == type)
            return i;
    LS_BUG_IF(true, "GGUF type %d", (int)type);
    return 0;
}

const char *ls_gguf_type_name(ls_gguf_type type)
{
    return rows[row_of(type)].name;
}

int64_t ls_gguf_type_block(ls_gguf_type type)
{
    return rows[row_of(type)].block;
}

int64_t ls_gguf_block_bytes(ls_gguf_type type, int64_t count)
{
    int i = row_of(type);

    LS_BUG_IF(count % rows[i].block != 0, "%lld numbers in blocks of %d", (long long)count,
              rows[i].block);
    return count / rows[i].block * rows[i].bytes;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* The scale of a block to its first two bytes; false when it becomes infinite. */
static bool put_scale(float d, unsigned char *to)
{
    uint16_t bits;

    ls_hf_convert_narrow(LS_F16, &d, 1, &bits);
    memcpy(to, &bits, sizeof bits);
    return (bits & 0x7fff) < 0x7c00;
}

static float scale_of(const unsigned char *from)
{
    float d;

    ls_hf_convert_widen(f16(), from, 1, &d);
    return d;
}

/* 1 / d, or 0 for scales of 0 and for those that are too small to be divided by. */
static float inverse_of(float d)
{
    float inverse = 1.0f / d;

    return isfinite(inverse) ? inverse : 0;
}

static bool pack_q8(const float *x, unsigned char *to)
{
    float largest = 0;

    for (int i = 0; i < LS_GGUF_BLOCK; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    float d = largest / 127.0f, inverse = inverse_of(d);
    for (int i = 0; i < LS_GGUF_BLOCK; i++)
        to[2 + i] = (unsigned char)(signed char)roundf(x[i] * inverse);
    return put_scale(d, to);
}

static bool pack_q4(const float *x, unsigned char *to)
{
    enum { HALF = LS_GGUF_BLOCK / 2 };
    int at = 0, q[LS_GGUF_BLOCK];

    for (int i = 1; i < LS_GGUF_BLOCK; i++)
        if (fabsf(x[i]) > fabsf(x[at]))
            at = i;
    float d = x[at] / -8.0f, inverse = inverse_of(d);
    for (int i = 0; i < LS_GGUF_BLOCK; i++) {
        float product = x[i] * inverse;
        float sum = product + 8.5f;
        q[i] = sum < 16 ? (int)sum : 15;
    }
    for (int i = 0; i < HALF; i++)
        to[2 + i] = (unsigned char)(q[i] | q[i + HALF] << 4);
    return put_scale(d, to);
}

static void unpack_q8(const unsigned char *from, float *x)
{
    float d = scale_of(from);

    for (int i = 0; i < LS_GGUF_BLOCK; i++)
        x[i] = d * (float)(signed char)from[2 + i];
}

static void unpack_q4(const unsigned char *from, float *x)
{
    enum { HALF = LS_GGUF_BLOCK / 2 };
    float d = scale_of(from);

    for (int i = 0; i < HALF; i++) {
        x[i] = d * (float)((from[2 + i] & 15) - 8);
        x[i + HALF] = d * (float)((from[2 + i] >> 4) - 8);
    }
}

/* --- any type --------------------------------------------------------------------------------- */

static void pack_narrow(ls_gguf_type type, const float *x, int64_t count, void *to, bool *finite)
{
    const uint16_t *bits = to;

    ls_hf_convert_narrow(type == LS_GGUF_TYPE_F16 ? LS_F16 : LS_BF16, x, count, to);
    for (int64_t i = 0; i < count && type == LS_GGUF_TYPE_F16; i++)
        if ((bits[i] & 0x7fff) == 0x7c00 && isfinite(x[i]))
            *finite = false;
}

void ls_gguf_block_pack(ls_gguf_type type, const float *values, int64_t count, void *bytes_out,
                        bool *finite_out)
{
    int bytes = rows[row_of(type)].bytes;
    unsigned char *to = bytes_out;

    *finite_out = true;
    if (type == LS_GGUF_TYPE_F32)
        memcpy(bytes_out, values, (size_t)ls_gguf_block_bytes(type, count));
    else if (ls_gguf_type_block(type) == 1)
        pack_narrow(type, values, count, bytes_out, finite_out);
    else
        for (int64_t i = 0; i < count; i += LS_GGUF_BLOCK, to += bytes)
            if (!(type == LS_GGUF_TYPE_Q8_0 ? pack_q8 : pack_q4)(values + i, to))
                *finite_out = false;
}

void ls_gguf_block_unpack(ls_gguf_type type, const void *bytes, int64_t count, float *values_out)
{
    int row = row_of(type);
    const unsigned char *from = bytes;

    if (type == LS_GGUF_TYPE_F32)
        memcpy(values_out, bytes, (size_t)ls_gguf_block_bytes(type, count));
    else if (rows[row].block == 1)
        ls_hf_convert_widen(type == LS_GGUF_TYPE_F16 ? f16() : ls_safetensors_dtype_find("BF16"),
                            bytes, count, values_out);
    else
        for (int64_t i = 0; i < count; i += LS_GGUF_BLOCK, from += rows[row].bytes)
            (type == LS_GGUF_TYPE_Q8_0 ? unpack_q8 : unpack_q4)(from, values_out + i);
}
