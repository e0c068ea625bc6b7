/* test_arena.c -- memory released in one call. */
#include "harness.h"
#include "base/arena.h"
#include "base/mem.h"

#include <wchar.h>

LS_TEST(arena_blocks_are_zeroed_aligned_and_apart)
{
    enum { N = 300 };
    unsigned char *p[N];
    ls_arena arena;

    ls_arena_init(&arena);
    for (int i = 0; i < N; i++) { /* sizes around the first chunk's 4096 bytes */
        p[i] = ls_arena_alloc(&arena, (size_t)i * 37 % 5000);
        LS_CHECK(p[i]);
        LS_CHECK_EQ((uintptr_t)p[i] % _Alignof(max_align_t), 0);
        for (int k = 0; k < i * 37 % 5000; k++) {
            LS_CHECK_EQ(p[i][k], 0);
            p[i][k] = (unsigned char)i;
        }
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i * 37 % 5000; k++)
            LS_CHECK_EQ(p[i][k], (unsigned char)i);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++) /* also those of zero bytes */
            LS_CHECK(p[i] != p[j]);
    ls_arena_release(&arena);
}

LS_TEST(arena_is_usable_after_release)
{
    ls_arena arena;

    ls_arena_init(&arena);
    ls_arena_release(&arena);
    LS_CHECK_STR(ls_arena_strdup(&arena, "again"), "again");
    ls_arena_release(&arena);
    LS_CHECK_STR(ls_arena_printf(&arena, "%s-%d", "again", 2), "again-2");
    LS_CHECK_STR(ls_arena_printf(&arena, "%s", ""), "");
    ls_arena_release(&arena);
}

LS_TEST(arena_refuses_absurd_sizes)
{
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 14, SIZE_MAX - 15, SIZE_MAX / 2 + 1, SIZE_MAX / 2};
    ls_arena arena;

    ls_arena_init(&arena);
    for (size_t i = 0; i < LS_COUNT(sizes); i++) {
        ls_err_clear();
        LS_CHECK(!ls_arena_alloc(&arena, sizes[i]));
        LS_CHECK_EQ(ls_err_last()->code, LS_ENOMEM);
        LS_CHECK(strstr(ls_err_last()->text, "cannot allocate"));
    }
    LS_CHECK(ls_arena_alloc(&arena, 1));
    ls_arena_release(&arena);
}

LS_TEST(arena_survives_every_failing_allocation)
{
    for (uint64_t n = 1; n <= 3; n++) {
        ls_arena arena;
        int lost = 0;
        ls_arena_init(&arena);
        ls_mem_fail_nth(n);
        for (int i = 0; i < 40; i++) /* grows through several chunks */
            lost += ls_arena_alloc(&arena, 1000) == NULL;
        LS_CHECK_EQ(lost, 1);
        ls_mem_fail_nth(1);
        LS_CHECK(!ls_arena_alloc(&arena, 1 << 20));
        ls_mem_fail_nth(1);
        char big[9000];
        memset(big, 'b', sizeof big);
        big[sizeof big - 1] = '\0';
        ls_arena_release(&arena);
        LS_CHECK(!ls_arena_strdup(&arena, big));
        ls_mem_fail_nth(1);
        LS_CHECK(!ls_arena_printf(&arena, "%s", big));
        LS_CHECK_STR(ls_arena_printf(&arena, "%s", big), big);
        ls_arena_release(&arena);
    }
}

/* A character that the C locale cannot write: no text, but a reason. */
LS_TEST(arena_printf_that_cannot_be_formatted_has_a_record)
{
    ls_arena arena;

    ls_arena_init(&arena);
    ls_err_clear();
    LS_CHECK(!ls_arena_printf(&arena, "%ls", L"\x1f600"));
    LS_CHECK(ls_err_last()->code != LS_OK);
    ls_arena_release(&arena);
}
