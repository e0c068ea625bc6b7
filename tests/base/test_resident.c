/* test_resident.c -- pages count when they are touched, and no longer when they are given back. */
#include "harness.h"
#include "base/resident.h"

#include <sys/mman.h>

LS_TEST(present_pages_are_those_that_were_touched)
{
    const int64_t page = 4096, pages = 1500;
    char *p = mmap(NULL, (size_t)(pages * page), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    LS_CHECK(p != MAP_FAILED);
    (void)madvise(p, (size_t)(pages * page), MADV_NOHUGEPAGE);
    if (ls_resident_bytes(p, page) < 0)
        ls_test_skip("this system does not show which pages are there");
    LS_CHECK_EQ(ls_resident_bytes(p, pages * page), 0);
    for (int64_t i = 0; i < pages; i += 3)
        p[i * page] = 1;
    LS_CHECK_EQ(ls_resident_bytes(p, pages * page), pages / 3 * page);
    LS_CHECK_EQ(ls_resident_bytes(p + 10, 20), page); /* a piece of a page is the page */
    LS_CHECK_EQ(ls_resident_bytes(p + page, page), 0);
    LS_CHECK_EQ(ls_resident_bytes(p, 0), 0);
    LS_CHECK_EQ(madvise(p, (size_t)(pages * page), MADV_DONTNEED), 0);
    LS_CHECK_EQ(ls_resident_bytes(p, pages * page), 0);
    munmap(p, (size_t)(pages * page));
}
