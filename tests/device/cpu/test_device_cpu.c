/* test_device_cpu.c -- how much memory a container leaves us, read from folders made here.
 *
 * device_cpu.c is compiled a second time under another name, to call its private functions. */
#include "harness.h"

#define ls_device_cpu copy_of_ls_device_cpu
#include "device/cpu/device_cpu.c"
#undef ls_device_cpu

#include "base/file.h"

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

static void check_room(int64_t want_free, int64_t want_total)
{
    room r = groups_room(".");

    LS_CHECK_EQ(r.free, want_free);
    LS_CHECK_EQ(r.total, want_total);
}

static void make_group(int version)
{
    LS_CHECK_OK(ls_file_make_dirs("proc/self"));
    LS_CHECK_OK(ls_file_make_dirs("mnt/job/step"));
    put("proc/self/cgroup", version == 2 ? "0::/job/step\n" : "4:cpu,memory:/job/step\n");
    put("proc/self/mountinfo", version == 2 ? "36 25 0:31 / /mnt rw - cgroup2 cgroup2 rw\n"
                                            : "36 25 0:31 / /mnt rw - cgroup cgroup rw,memory\n");
}

LS_TEST(device_cpu_room_without_a_container)
{
    check_room(INT64_MAX, INT64_MAX);
}

LS_TEST(device_cpu_room_of_cgroup_2)
{
    make_group(2);
    put("mnt/job/step/memory.current", "3000\n");
    put("mnt/job/step/memory.max", "max\n");
    check_room(INT64_MAX, INT64_MAX);
    put("mnt/job/step/memory.max", "10000\n");
    check_room(7000, 10000);
    put("mnt/job/step/memory.stat",
        "anon 5\ninactive_file_more 9\ninactive_file 500\nactive_file 77\n");
    check_room(7500, 10000);
    put("mnt/job/step/memory.current", "20000\n"); /* above its limit: none, not less than none */
    check_room(0, 10000);
    put("mnt/job/step/memory.max", "what\n");
    check_room(INT64_MAX, INT64_MAX);
    put("mnt/job/step/memory.max", "");
    check_room(INT64_MAX, INT64_MAX);
}

/* The least of all groups on the way up, for each of the two numbers. */
LS_TEST(device_cpu_room_is_the_least_of_all_groups)
{
    make_group(2);
    put("mnt/job/step/memory.current", "1000\n");
    put("mnt/job/step/memory.max", "5000\n");
    put("mnt/job/memory.current", "9000\n");
    put("mnt/job/memory.max", "10000\n");
    check_room(1000, 5000);
}

LS_TEST(device_cpu_room_of_cgroup_1)
{
    make_group(1);
    put("mnt/job/step/memory.limit_in_bytes", "9223372036854771712\n"); /* its way to say "none" */
    put("mnt/job/step/memory.usage_in_bytes", "4096\n");
    check_room(INT64_C(9223372036854767616), INT64_C(9223372036854771712));
    put("mnt/job/step/memory.limit_in_bytes", "8192\n");
    put("mnt/job/step/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
    check_room(4196, 8192);
}

LS_TEST(device_cpu_reads_the_machine)
{
    char model[64];
    int64_t free_bytes, total_bytes;

    cpu_model(model, sizeof model);
    LS_CHECK(model[0]);
    memory_room(&free_bytes, &total_bytes);
    LS_CHECK(free_bytes > 0 && free_bytes <= total_bytes);
}
