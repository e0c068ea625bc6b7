/* test_cgroup.c -- the way from this process's group to the top, through folders made here. */
#include "harness.h"
#include "base/file.h"
#include "base/str.h"
#include "device/cpu/cgroup.h"

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

static void note(void *context, const char *folder, int version)
{
    ls_str_printf(context, "%d %s\n", version, folder);
}

static void check_walk(const char *cgroup, const char *mountinfo, const char *want)
{
    ls_str got;

    LS_CHECK_OK(ls_file_make_dirs("proc/self"));
    put("proc/self/cgroup", cgroup);
    put("proc/self/mountinfo", mountinfo);
    ls_str_init(&got);
    ls_cgroup_walk(".", "cpu", note, &got);
    LS_CHECK_STR(got.p, want);
    ls_str_release(&got);
}

LS_TEST(cgroup_walks_from_its_own_group_to_the_top)
{
    check_walk("0::/system.slice/slurmd/job_7/step_0\n",
               "24 1 0:2 / /proc rw - proc proc rw\n"
               "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
               "2 ./sys/fs/cgroup/system.slice/slurmd/job_7/step_0\n"
               "2 ./sys/fs/cgroup/system.slice/slurmd/job_7\n"
               "2 ./sys/fs/cgroup/system.slice/slurmd\n"
               "2 ./sys/fs/cgroup/system.slice\n"
               "2 ./sys/fs/cgroup\n");
}

/* Both versions at once; "cpuset" is not "cpu". */
LS_TEST(cgroup_walks_both_versions)
{
    check_walk("5:cpuset:/a\n3:cpuacct,cpu:/b/c\n0::/\n",
               "31 2 0:5 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n"
               "32 2 0:6 / /cg/cpu rw - cgroup cgroup rw,cpuacct,cpu\n"
               "33 2 0:7 / /cg/unified rw - cgroup2 cgroup2 rw\n",
               "1 ./cg/cpu/b/c\n1 ./cg/cpu/b\n1 ./cg/cpu\n2 ./cg/unified\n");
}

/* A container that sees the host's names but only its own part of the tree, and one whose names lie
 * outside of what it sees. */
LS_TEST(cgroup_walks_what_a_container_can_see)
{
    check_walk("0::/docker/abc/inner\n", "36 25 0:31 /docker/abc /m ro - cgroup2 c rw\n",
               "2 ./m/inner\n2 ./m\n");
    check_walk("0::/docker/abc\n", "36 25 0:31 /docker/abc /m ro - cgroup2 c rw\n", "2 ./m\n");
    check_walk("0::/docker/abcdef\n", "36 25 0:31 /docker/abc /m ro - cgroup2 c rw\n", "2 ./m\n");
    check_walk("0::/../../host\n", "36 25 0:31 / /m ro - cgroup2 c rw\n", "2 ./m\n");
}

LS_TEST(cgroup_without_groups_or_with_nonsense_is_no_walk)
{
    ls_str got;

    ls_str_init(&got);
    ls_cgroup_walk("./nowhere", "cpu", note, &got);
    LS_CHECK_STR(got.p, "");
    ls_str_release(&got);
    check_walk("", "", "");
    check_walk("no colon\n0:\n::\n", "x\n - \n36 25 0:31 / /m ro - cgroup2\n", "");
    check_walk("0::/a\n", "36 25 0:31 / /m ro - tmpfs t rw\n", "");
}

LS_TEST(cgroup_numbers_of_files)
{
    put("stat", "anon 5\ninactive_file_more 9\ninactive_file 500\nWith: 7 kB\n");
    LS_CHECK_EQ(ls_cgroup_number(".", "stat", "inactive_file"), 500);
    LS_CHECK_EQ(ls_cgroup_number(".", "stat", "With"), 7);
    LS_CHECK_EQ(ls_cgroup_number(".", "stat", "inactive"), -1);
    LS_CHECK_EQ(ls_cgroup_number(".", "stat", ""), -1);
    put("limit", "max\n");
    LS_CHECK_EQ(ls_cgroup_number(".", "limit", ""), -1);
    put("limit", "-1\n");
    LS_CHECK_EQ(ls_cgroup_number(".", "limit", ""), -1);
    put("limit", "4096\n");
    LS_CHECK_EQ(ls_cgroup_number(".", "limit", ""), 4096);
    LS_CHECK_EQ(ls_cgroup_number(".", "no-such-file", "x"), -1);
    LS_CHECK_EQ(ls_cgroup_number("/proc", "meminfo", "NoSuchField"), -1);
}
