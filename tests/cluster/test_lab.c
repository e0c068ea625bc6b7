/* test_lab.c -- units of speed, and hosts where namespaces are allowed. */
#include "harness.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "cluster/jobs.h"
#include "cluster/node/lab.h"

LS_TEST(lab_reads_speeds_and_bytes)
{
    static const char *const speeds[] = {"",       "1",       "gbit",     "1gb",    "-1gbit",
                                         "1 gbit", "1Gbit",   "nan",      "inf",    "0gbit",
                                         "1kbit",  "401gbit", "1e99gbit", " 1gbit", "0x1gbit"};
    static const char *const sizes[] = {"",     "1",   "kb",     "1gb", "-1kb",
                                        "1kb ", "1kb", "2000mb", "nan"};
    int64_t n;

    LS_CHECK_OK(ls_lab_parse_rate("1gbit", &n));
    LS_CHECK_EQ(n, 1000000000);
    LS_CHECK_OK(ls_lab_parse_rate("2.5gbit", &n));
    LS_CHECK_EQ(n, 2500000000);
    LS_CHECK_OK(ls_lab_parse_rate("64kbit", &n));
    LS_CHECK_EQ(n, 64000);
    for (size_t i = 0; i < LS_COUNT(speeds); i++)
        if (ls_lab_parse_rate(speeds[i], &n) != LS_EUSAGE)
            ls_test_fail(__FILE__, __LINE__, "\"%s\" was accepted", speeds[i]);
    LS_CHECK_OK(ls_lab_parse_bytes("256kb", &n));
    LS_CHECK_EQ(n, 256 << 10);
    LS_CHECK_OK(ls_lab_parse_bytes("2mb", &n));
    LS_CHECK_EQ(n, 2 << 20);
    for (size_t i = 0; i < LS_COUNT(sizes); i++)
        if (ls_lab_parse_bytes(sizes[i], &n) != LS_EUSAGE)
            ls_test_fail(__FILE__, __LINE__, "\"%s\" was accepted", sizes[i]);
    LS_CHECK_EQ(ls_lab_burst(1000000000), 256 << 10);
    LS_CHECK_EQ(ls_lab_burst(10000000000), 2 << 20);
    LS_CHECK_EQ(ls_lab_burst(64000), 128 << 10);
}

static ls_status open_lab(ls_lab **lab, int nodes, const char *link, const char *burst)
{
    return ls_lab_open(lab, &(ls_lab_args){.nodes = nodes, .link = link, .burst = burst},
                       ls_test_soon());
}

LS_TEST(lab_refuses_what_makes_no_sense)
{
    ls_lab *lab = NULL;

    LS_CHECK_FAILS(open_lab(&lab, 0, "none", "auto"), LS_EUSAGE, "1 to 200 hosts, not 0");
    LS_CHECK_FAILS(open_lab(&lab, 201, "none", "auto"), LS_EUSAGE, "not 201");
    LS_CHECK_FAILS(open_lab(&lab, 2, "quick", "auto"), LS_EUSAGE, "\"quick\" is no speed");
    LS_CHECK_FAILS(open_lab(&lab, 2, "1gbit", "some"), LS_EUSAGE, "\"some\" is no number");
    LS_CHECK(!lab);
}

static void need_namespaces(void)
{
    ls_lab *lab = NULL;

    if (open_lab(&lab, 1, "1gbit", "auto") != LS_OK)
        ls_test_skip("%s", ls_err_last()->text);
    ls_lab_close(lab);
}

static long our_net(void)
{
    struct stat info;

    LS_CHECK(stat("/proc/self/ns/net", &info) == 0);
    return (long)info.st_ino;
}

LS_TEST(lab_returns_home_and_leaks_nothing)
{
    ls_lab *lab = NULL;
    long home = our_net();

    need_namespaces();
    int files = jobs_files();
    LS_CHECK_OK(open_lab(&lab, 3, "1gbit", "64kb"));
    LS_CHECK_EQ(our_net(), home);
    LS_CHECK_STR(ls_lab_host(lab, 2), "lab2");
    LS_CHECK_STR(ls_lab_address(lab, 2), "10.77.0.3");
    struct stat a, b;
    LS_CHECK(fstat(ls_lab_net_fd(lab, 0), &a) == 0 && fstat(ls_lab_net_fd(lab, 1), &b) == 0);
    LS_CHECK(a.st_ino != b.st_ino && (long)a.st_ino != home);
    ls_lab_close(lab);
    LS_CHECK_EQ(jobs_files(), files);
    for (uint64_t n = 1; n < 60; n++) {
        ls_mem_fail_nth(n);
        ls_status st = open_lab(&lab, 2, "1gbit", "auto");
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            ls_lab_close(lab);
        LS_CHECK_EQ(jobs_files(), files);
        LS_CHECK_EQ(our_net(), home);
        if (st == LS_OK)
            return;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(!"never enough memory");
}

LS_TEST(lab_says_which_command_is_missing_or_what_it_said)
{
    ls_lab *lab = NULL;

    need_namespaces();
    /* A kernel that refuses, as far as the lab can see. */
    LS_CHECK(mkdir("bin", 0755) == 0);
    FILE *f = fopen("bin/tc", "we");
    LS_CHECK(f);
    fputs("#!/bin/sh\necho 'qdisc kind is unknown' >&2\nexit 2\n", f);
    fclose(f);
    LS_CHECK(chmod("bin/tc", 0755) == 0);
    setenv("PATH", "bin", 1);
    LS_CHECK_FAILS(open_lab(&lab, 2, "1gbit", "auto"), LS_EIO,
                   "bin/tc says: qdisc kind is unknown");
    f = fopen("bin/tc", "we");
    LS_CHECK(f);
    fputs("#!/bin/sh\nexec sleep 60\n", f);
    fclose(f);
    setenv("PATH", "bin:/bin:/usr/bin", 1);
    LS_CHECK_FAILS(ls_lab_open(&lab, &(ls_lab_args){.nodes = 1, .link = "1gbit", .burst = "auto"},
                               ls_time_now_ns() + LS_NS_PER_S),
                   LS_EDEADLINE, "bin/tc\" did not end in time");
}

LS_TEST(lab_needs_the_right_to_make_namespaces)
{
    ls_lab *lab = NULL;

    if (getuid() == 0)
        LS_CHECK(setgid(64123) == 0 && setuid(64123) == 0);
    LS_CHECK_FAILS(open_lab(&lab, 2, "none", "auto"), LS_EIO, "");
    LS_CHECK(strstr(ls_err_last()->hint, "root") || strstr(ls_err_last()->hint, "iproute2"));
}
