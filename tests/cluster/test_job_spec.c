/* test_job_spec.c -- what a job runs, as bytes: whole, cut anywhere, and too long. */
#include "harness.h"
#include "base/mem.h"
#include "cluster/member/job_spec.h"

static const char *const words[] = {"sh", "-c", "echo \n\x01$0", "", "last", NULL};

LS_TEST(work_travels_with_every_byte)
{
    const ls_job_spec_heal heal = {.patience_ms = 60000,
                                   .heartbeat_ms = 250,
                                   .suspect_ms = 1000,
                                   .dead_ms = 1u << 31,
                                   .failover = 1,
                                   .cool_ms = 77};
    ls_job_spec work;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_job_spec_init(&work);
    LS_CHECK_OK(ls_job_spec_encode(words, 5, true, &heal, &bytes));
    LS_CHECK_OK(ls_job_spec_decode(&work, bytes.p, bytes.len));
    LS_CHECK(work.ranks == 5 && work.meeting);
    LS_CHECK(work.heal.patience_ms == 60000 && work.heal.dead_ms == 1u << 31);
    LS_CHECK(work.heal.failover == 1 && work.heal.cool_ms == 77 && work.heal.restarts == 0);
    for (int i = 0; i < 5; i++)
        LS_CHECK_STR(work.words[i], words[i]);
    LS_CHECK(!work.words[5]);
    for (uint64_t n = 1; n <= 1; n++) {
        ls_mem_fail_nth(n);
        ls_job_spec fresh;
        ls_job_spec_init(&fresh);
        LS_CHECK_EQ(ls_job_spec_decode(&fresh, bytes.p, bytes.len), LS_ENOMEM);
        ls_mem_fail_nth(0);
        ls_job_spec_release(&fresh);
    }
    ls_job_spec_release(&work);
    ls_str_release(&bytes);
}

LS_TEST(work_that_is_damaged_is_refused)
{
    ls_job_spec work;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_job_spec_init(&work);
    LS_CHECK_OK(ls_job_spec_encode(words, 1, false, NULL, &bytes));
    for (size_t n = 0; n < bytes.len; n++)          /* cut: refused, or fewer words */
        if (n < 3 || bytes.p[n - 1] != 0 || n == 3) /* the last one has no end */
            LS_CHECK_EQ(ls_job_spec_decode(&work, bytes.p, n), LS_EDATA);
    LS_CHECK_EQ(ls_job_spec_decode(&work, "\0\0\0sh\0", 6), LS_EDATA);   /* no ranks */
    LS_CHECK_EQ(ls_job_spec_decode(&work, "\1\0\0\0sh\0", 7), LS_EDATA); /* no program */
    ls_str_clear(&bytes);
    ls_str_append_bytes(&bytes, "\1\0\0", 3);
    for (int i = 0; i < 2 * LS_JOB_SPEC_WORDS; i++)
        ls_str_append_bytes(&bytes, "x", 2);
    LS_CHECK_FAILS(ls_job_spec_decode(&work, bytes.p, bytes.len), LS_EDATA, "more than 256 words");
    LS_CHECK(!work.words[0]);
    ls_job_spec_release(&work);
    ls_str_release(&bytes);
}

LS_TEST(work_that_is_too_long_is_not_sent)
{
    static char much[LS_JOB_SPEC_BYTES];
    const char *const long_words[] = {"echo", much, NULL};
    ls_str bytes;

    memset(much, 'x', sizeof much - 1);
    ls_str_init(&bytes);
    LS_CHECK_FAILS(ls_job_spec_encode(long_words, 1, false, NULL, &bytes), LS_EUSAGE,
                   "too long for agents");
    ls_str_release(&bytes);
}
