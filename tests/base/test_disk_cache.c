/* test_disk_cache.c -- facts that outlive a process: found again, first one counts, damage costs
 * nothing. */
#include "base/disk_cache.h"

#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "harness.h"

static void use_cache(const char *name)
{
    char here[2048], path[2200];

    LS_CHECK(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/%s", here, name);
    LS_CHECK_EQ(setenv("XDG_CACHE_HOME", path, 1), 0);
}

/* Keys 0 .. 9, each with a value made of it. */
static void add(int32_t key)
{
    int64_t value = 1000 + key;

    ls_disk_cache_add("card A", &key, sizeof key, &value, sizeof value);
}

static int64_t find(const char *about, int32_t key)
{
    int64_t value = -1;

    return ls_disk_cache_find(about, &key, sizeof key, &value, sizeof value) ? value : -1;
}

LS_TEST(disk_cache_finds_what_was_added)
{
    int64_t other = 5;
    int32_t key = 3;
    char wide[16];

    use_cache("cache");
    LS_CHECK_EQ(find("card A", 3), -1);
    for (int32_t k = 0; k < 10; k++)
        add(k);
    for (int32_t k = 0; k < 10; k++)
        LS_CHECK_EQ(find("card A", k), 1000 + k);
    LS_CHECK_EQ(find("card A", 10), -1);
    LS_CHECK_EQ(find("card B", 3), -1);
    ls_disk_cache_add("card A", &key, sizeof key, &other, sizeof other); /* the first one counts */
    LS_CHECK_EQ(find("card A", 3), 1003);
    LS_CHECK(
        !ls_disk_cache_find("card A", &key, sizeof key, wide, sizeof wide)); /* of another size */
}

LS_TEST(disk_cache_begins_a_damaged_file_anew)
{
    char path[4096];
    ls_str text;

    use_cache("cache");
    ls_disk_cache_path("card A", path);
    ls_str_init(&text);
    for (int32_t k = 0; k < 3; k++)
        add(k);
    LS_CHECK_OK(ls_file_read(path, LS_DISK_CACHE_BYTES, &text));
    for (size_t cut = 1; cut < text.len; cut += 5) {
        LS_CHECK_OK(ls_file_write_atomic(path, text.p, text.len - cut));
        LS_CHECK_EQ(find("card A", 2), -1);
        add(7);
        LS_CHECK_EQ(find("card A", 7), 1007);
    }
    for (size_t at = 0; at < text.len; at += 3) { /* a flipped bit */
        text.p[at] ^= 4;
        LS_CHECK_OK(ls_file_write_atomic(path, text.p, text.len));
        for (int32_t k = 0; k < 3; k++)
            LS_CHECK(find("card A", k) == -1 || find("card A", k) == 1000 + k);
        text.p[at] ^= 4;
    }
    ls_str_release(&text);
}

LS_TEST(disk_cache_without_a_place_keeps_nothing)
{
    use_cache("file/below");
    LS_CHECK_OK(ls_file_write_atomic("file", "x", 1));
    add(1);
    LS_CHECK_EQ(find("card A", 1), -1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    add(1);
    LS_CHECK_EQ(find("card A", 1), -1);
}
