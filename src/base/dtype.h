/* dtype.h -- element types of tensors, on devices and in files. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef enum ls_dtype {
    LS_F32,
    LS_BF16,
    LS_F16,
    LS_F64,
    LS_I32,
    LS_I64,
    LS_U8,
    LS_I8,
    LS_E4M3,
    LS_E5M2
} ls_dtype;

static inline int64_t ls_dtype_bytes(ls_dtype type)
{
    static const unsigned char bytes[] = {4, 2, 2, 8, 4, 8, 1, 1, 1, 1};

    return bytes[type];
}

LS_C_END
