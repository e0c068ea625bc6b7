/* test_journal.c -- the log of a coordinator: cut at every byte, every bit flipped, full and
 * failing disks, killed while it writes. */
#include "harness.h"
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "cluster/elect/journal.h"

/* What a replay hands out: texts, and how many. */
typedef struct seen {
    int n;
    char last[64];
    ls_str all; /* each with a line end */
} seen;

static ls_status take(void *context, const void *bytes, size_t len)
{
    seen *s = context;

    s->n++;
    snprintf(s->last, sizeof s->last, "%.*s", (int)len, (const char *)bytes);
    ls_str_append_bytes(&s->all, bytes, len);
    ls_str_append_char(&s->all, '\n');
    return LS_OK;
}

static ls_journal *open_journal(seen *s, ls_journal_found *found)
{
    ls_journal *j;

    *s = (seen){0};
    ls_str_init(&s->all);
    LS_CHECK_OK(ls_journal_open(&j, "log", take, s, found));
    return j;
}

static void append(ls_journal *j, const char *text)
{
    LS_CHECK_OK(ls_journal_append(j, text, strlen(text)));
}

static void holds(const char *want)
{
    ls_journal_found found;
    seen s;
    ls_journal *j = open_journal(&s, &found);

    LS_CHECK_STR(s.all.p, want);
    ls_str_release(&s.all);
    ls_journal_close(j);
}

LS_TEST(journal_keeps_records_in_order)
{
    ls_journal_found found;
    seen s;
    ls_journal *j = open_journal(&s, &found), *other;
    char longest[LS_JOURNAL_RECORD] = "x";

    LS_CHECK(s.n == 0 && found.records == 0 && found.cut_bytes == 0 && !found.why[0]);
    append(j, "one");
    append(j, "two");
    LS_CHECK_FAILS(ls_journal_open(&other, "log", take, &s, &found), LS_EBUSY, "held by");
    LS_CHECK_FAILS(ls_journal_append(j, longest, sizeof longest + 1), LS_EUSAGE, "too long");
    ls_journal_close(j);
    holds("one\ntwo\n");
    j = open_journal(&s, &found);
    LS_CHECK(found.first == 1 && found.records == 2 && found.cut_bytes == 0);
    append(j, "three");
    LS_CHECK_OK(ls_journal_append(j, longest, sizeof longest));
    ls_str_release(&s.all);
    ls_journal_close(j);
    j = open_journal(&s, &found);
    LS_CHECK_EQ(s.n, 4);
    ls_str_release(&s.all);
    ls_journal_close(j);
    LS_CHECK_FAILS(ls_journal_open(&j, "no/log", take, &s, &found), LS_EIO, "no/log.lock");
}

LS_TEST(journal_is_compacted_into_one_record)
{
    ls_journal_found found;
    seen s;
    ls_journal *j = open_journal(&s, &found);

    for (int i = 0; i < 20; i++)
        append(j, "record");
    int64_t before = ls_journal_bytes(j);
    LS_CHECK_OK(ls_journal_compact(j, "all", 3));
    LS_CHECK(ls_journal_bytes(j) < before);
    append(j, "tail");
    ls_journal_close(j);
    j = open_journal(&s, &found);
    LS_CHECK_STR(s.all.p, "all\ntail\n");
    LS_CHECK_EQ(found.first, 21); /* numbers go on: an old record can never stand for a new one */
    LS_CHECK(!ls_file_exists("log.new"));
    ls_str_release(&s.all);

    /* Each step of it fails once: one of the two files is there, whole. */
    static const char *const points[] = {"file.write@1", "file.write@2", "journal.sync@1",
                                         "journal.rename@1"};
    for (size_t i = 0; i < LS_COUNT(points); i++) {
        ls_fault_arm(points[i]);
        LS_CHECK_EQ(ls_journal_compact(j, "new", 3), LS_EIO);
        ls_fault_arm(NULL);
        LS_CHECK(!ls_file_exists("log.new"));
        append(j, "x"); /* the old file goes on */
    }
    ls_journal_close(j);
    holds("all\ntail\nx\nx\nx\nx\n");
}

/* A file of a few records, in memory. */
static void make_file(ls_str *file)
{
    ls_journal_found found;
    seen s;
    ls_journal *j = open_journal(&s, &found);

    append(j, "generation 1");
    append(j, "generation 2");
    append(j, "generation 3, of five nodes");
    ls_journal_close(j);
    ls_str_release(&s.all);
    ls_str_init(file);
    LS_CHECK_OK(ls_file_read("log", 1 << 20, file));
}

static void put_file(const void *bytes, size_t len)
{
    FILE *f = fopen("log", "wb");

    LS_CHECK(f && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
}

LS_TEST(journal_torn_at_every_byte_goes_on)
{
    static const size_t ends[] = {24, 24 + 28, 24 + 56, 24 + 56 + 43}; /* of whole records */
    ls_str file;

    make_file(&file);
    LS_CHECK_EQ(file.len, ends[3]);
    for (size_t n = 0; n <= file.len; n++)
        for (int tail = 0; tail < 2; tail++) { /* the end is missing, or zeros */
            char bytes[256] = "";
            ls_journal_found found;
            seen s;
            int want = 0;

            memcpy(bytes, file.p, n);
            put_file(bytes, tail ? file.len : n);
            while (want < 3 && n >= ends[want + 1])
                want++;
            ls_journal *j = open_journal(&s, &found);
            LS_CHECK_EQ(s.n, want);
            bool headless = (!tail && n < ends[0]) || memcmp(bytes, file.p, ends[0]) != 0;
            LS_CHECK_EQ(found.damaged, headless);
            if (!headless)
                LS_CHECK_EQ(found.cut_bytes, (tail ? file.len : n) - ends[want]);
            LS_CHECK_EQ(found.why[0] != 0, found.cut_bytes > 0 || headless);
            append(j, "next");
            ls_journal_close(j);
            ls_str_release(&s.all);
            j = open_journal(&s, &found);
            LS_CHECK_EQ(s.n, want + 1);
            LS_CHECK_STR(s.last, "next");
            LS_CHECK_EQ(found.cut_bytes, 0);
            ls_journal_close(j);
            ls_str_release(&s.all);
        }
    ls_str_release(&file);
}

LS_TEST(journal_finds_every_flipped_bit)
{
    static const char *const want[] = {"", "generation 1\n", "generation 1\ngeneration 2\n"};
    ls_str file;

    make_file(&file);
    for (size_t at = 0; at < file.len; at++)
        for (int flip = 1; flip < 256; flip *= 2) {
            ls_journal_found found;
            seen s = {0};
            size_t record = at < 24 ? 0 : at < 52 ? 0 : at < 80 ? 1 : 2;

            ls_str_init(&s.all);
            file.p[at] ^= (char)flip;
            LS_CHECK_OK(ls_journal_replay(file.p, file.len, take, &s, &found));
            LS_CHECK_STR(s.all.p, want[record]);
            LS_CHECK(found.cut_bytes > 0 && found.why[0]);
            LS_CHECK_EQ(found.damaged, at < 80); /* the last record alone looks torn */
            file.p[at] ^= (char)flip;
            ls_str_release(&s.all);
        }
    /* Of a damaged file a copy is kept. */
    file.p[30] ^= 1;
    put_file(file.p, file.len);
    holds("");
    ls_str copy;
    ls_str_init(&copy);
    LS_CHECK_OK(ls_file_read("log.damaged", 1 << 20, &copy));
    LS_CHECK(copy.len == file.len && memcmp(copy.p, file.p, file.len) == 0);
    ls_str_release(&copy);
    ls_str_release(&file);
}

static ls_status refuse(void *context, const void *bytes, size_t len)
{
    (void)context;
    (void)bytes;
    (void)len;
    return ls_fail(LS_EDATA, "not understood");
}

LS_TEST(journal_reader_may_refuse_and_memory_may_end)
{
    ls_journal_found found;
    ls_journal *j;
    ls_str file;
    seen s;

    make_file(&file);
    LS_CHECK_FAILS(ls_journal_open(&j, "log", refuse, NULL, &found), LS_EDATA, "not understood");
    ls_str_release(&file);
    j = open_journal(&s, &found);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_journal_append(j, "x", 1), LS_ENOMEM);
    ls_mem_fail_nth(0);
    append(j, "y");
    ls_journal_close(j);
    ls_str_release(&s.all);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_journal_open(&j, "log", take, &s, &found), LS_ENOMEM);
    ls_mem_fail_nth(0);
}

LS_TEST(journal_survives_a_full_disk_and_a_failing_one)
{
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    struct stat info;
    ls_journal_found found;
    seen s;
    ls_journal *j = open_journal(&s, &found);

    append(j, "first");
    /* A real short write: the limit of a file cuts the record in the middle. */
    signal(SIGXFSZ, SIG_IGN);
    LS_CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    char text[200];
    memset(text, 'a', sizeof text);
    LS_CHECK_FAILS(ls_journal_append(j, text, sizeof text), LS_EIO, "cannot write \"log\"");
    limit.rlim_cur = RLIM_INFINITY;
    LS_CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    LS_CHECK(stat("log", &info) == 0 && info.st_size == ls_journal_bytes(j));
    append(j, "second"); /* there is room again */

    ls_fault_arm("file.write@1");
    LS_CHECK_FAILS(ls_journal_append(j, "x", 1), LS_EIO, "No space left");
    ls_fault_arm(NULL);
    append(j, "third");

    /* A failed sync: what is on the disk is not known, and only a new file helps. */
    ls_fault_arm("journal.sync@1");
    LS_CHECK_FAILS(ls_journal_append(j, "lost?", 5), LS_EIO, "cannot sync");
    ls_fault_arm(NULL);
    LS_CHECK_FAILS(ls_journal_append(j, "x", 1), LS_EIO, "an earlier write failed");
    LS_CHECK_OK(ls_journal_compact(j, "anew", 4));
    append(j, "tail");
    ls_journal_close(j);
    ls_str_release(&s.all);
    holds("anew\ntail\n");
}

/* Append numbers, telling each when it is durable; compact now and then. Never returns. */
static void write_for_ever(int tell_fd)
{
    ls_journal_found found;
    seen s;
    ls_journal *j = open_journal(&s, &found);
    uint32_t n = s.n ? (uint32_t)strtoul(s.last, NULL, 10) : 0;
    char text[64];

    for (;;) {
        int len = snprintf(text, sizeof text, "%u", ++n);
        LS_CHECK_OK(n % 16 ? ls_journal_append(j, text, (size_t)len)
                           : ls_journal_compact(j, text, (size_t)len));
        LS_CHECK_EQ(write(tell_fd, &n, sizeof n), sizeof n);
    }
}

LS_TEST_SECONDS(journal_killed_at_any_moment_has_what_it_said, 120)
{
    ls_rng_key key = ls_rng_derive(7, 1, 0);
    uint32_t told = 0, last;

    for (int i = 0; i < ls_test_times(40); i++) {
        ls_journal_found found;
        int pipe_fd[2];
        seen s;

        LS_CHECK_EQ(pipe(pipe_fd), 0);
        fflush(NULL);
        pid_t pid = fork();
        LS_CHECK(pid >= 0);
        if (pid == 0) {
            close(pipe_fd[0]);
            write_for_ever(pipe_fd[1]);
        }
        close(pipe_fd[1]);
        LS_CHECK_EQ(read(pipe_fd[0], &told, sizeof told), sizeof told); /* it writes */
        usleep(ls_rng_philox(key, (uint32_t)i, 0, 0, 0).v[0] % 4000);
        LS_CHECK_EQ(kill(pid, SIGKILL), 0);
        while (read(pipe_fd[0], &last, sizeof last) == sizeof last)
            told = last;
        LS_CHECK_EQ(waitpid(pid, NULL, 0), pid);
        close(pipe_fd[0]);
        ls_journal *j = open_journal(&s, &found);
        uint32_t has = (uint32_t)strtoul(s.last, NULL, 10);
        LS_CHECK(has == told || has == told + 1); /* written, but not told yet */
        LS_CHECK(!found.damaged);
        ls_str_release(&s.all);
        ls_journal_close(j);
    }
}
