/* gguf_block.h -- numbers of a GGUF file: 32 bits, 16 bits, or blocks of small integers.
 *
 *   Q8_0   32 numbers in 34 bytes: a scale d (F16), then 32 signed bytes q; a number is d q
 *   Q4_0   32 numbers in 18 bytes: a scale d (F16), then 16 bytes, of which byte i holds number i in
 *          its low half and number i + 16 in its high half; a number is d (q - 8)
 *
 * The rounding is that of the `gguf` package, bit by bit. Q8_0 chooses d so that the largest number
 * becomes 127 or -127; Q4_0 so that it becomes -8, which the unsigned 0 stands for. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_GGUF_BLOCK = 32 };

/* With the format's own numbers. */
typedef enum ls_gguf_type {
    LS_GGUF_TYPE_F32 = 0,
    LS_GGUF_TYPE_F16 = 1,
    LS_GGUF_TYPE_Q4_0 = 2,
    LS_GGUF_TYPE_Q8_0 = 8,
    LS_GGUF_TYPE_BF16 = 30
} ls_gguf_type;

const char *ls_gguf_type_name(ls_gguf_type type); /* "q4_0" */
/* Numbers that are stored together: 1 or LS_GGUF_BLOCK. */
int64_t ls_gguf_type_block(ls_gguf_type type);

/* Bytes of count numbers, a multiple of the type's block. */
int64_t ls_gguf_block_bytes(ls_gguf_type type, int64_t count);
/* Convert count numbers to bytes and back. *finite_out is false when a finite number, or the scale
 * of a block, became infinite. */
void ls_gguf_block_pack(ls_gguf_type type, const float *values, int64_t count, void *bytes_out,
                        bool *finite_out);
void ls_gguf_block_unpack(ls_gguf_type type, const void *bytes, int64_t count, float *values_out);

LS_C_END
