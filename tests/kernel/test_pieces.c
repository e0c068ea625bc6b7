/* test_pieces.c -- heads of tokens out of a packed tensor and back into it. */
#include "kernel/kernel_check.h"
#include "kernel/pieces.h"

enum { B = 3, T = 50, WIDTH = 20, H = 2, D = 5, FIRST = 7 };

static void there_and_back(ls_dtype type)
{
    int64_t size = ls_dtype_bytes(type), row = WIDTH * size, part = H * D * size;
    ls_check c;

    ls_check_begin(&c, 2);
    unsigned char *packed = ls_check_bytes(&c, "packed", B * T * row);
    unsigned char *dense = ls_check_bytes(&c, "dense", B * T * part);
    unsigned char *other = ls_check_bytes(&c, "other", B * T * row);
    ls_pieces a = {.type = type,
                   .heads = {packed + FIRST * size, T * WIDTH, WIDTH, D},
                   .dense = dense,
                   .B = B,
                   .T = T,
                   .H = H,
                   .D = D};
    for (int64_t i = 0; i < B * T * row; i++)
        packed[i] = (unsigned char)(i * 7 % 251);
    ls_pieces_pack(c.stream, &a);
    a.heads.p = other + FIRST * size;
    ls_pieces_unpack(c.stream, &a);
    ls_check_sync(&c);
    for (int64_t i = 0; i < B * T; i++) {
        const unsigned char *from = packed + i * row + FIRST * size;
        ls_check_same("dense", dense + i * part, from, part);
        ls_check_same("back", other + i * row + FIRST * size, from, part);
        for (int64_t k = 0; k < row; k++)
            if (k < FIRST * size || k >= FIRST * size + part)
                LS_CHECK_EQ(other[i * row + k], 0xff);
    }
    ls_check_end(&c);
}

LS_TEST(pieces_come_back_as_they_were)
{
    there_and_back(LS_F32);
    there_and_back(LS_BF16);
}
