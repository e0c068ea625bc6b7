/* test_flight_recorder.c -- the black box as others read it. */
#include "comm/node/flight_recorder.h"

#include <unistd.h>
#include "base/file.h"
#include "base/time.h"
#include "comm/node/ranks.h"

/* Text begins with these words and a number of seconds: at least so many, at most what has passed;
 * it has one decimal. */
static void check_seconds(const char *text, const char *words, double least, int64_t since_ns)
{
    double most = (double)(ls_time_now_ns() - since_ns) / 1e9, seconds = -1;

    LS_CHECK(strncmp(text, words, strlen(words)) == 0);
    LS_CHECK_EQ(sscanf(text + strlen(words), "%lf s", &seconds), 1);
    if (!(seconds >= least - 0.051 && seconds <= most + 0.051))
        ls_test_fail(__FILE__, __LINE__, "\"%s\", but it is %.3f to %.3f s", text, least, most);
}

LS_TEST(box_keeps_the_last_64_operations_and_where_a_rank_is)
{
    char where[LS_FLIGHT_RECORDER_TEXT];
    ls_flight_recorder_record r[LS_FLIGHT_RECORDER_RECORDS],
        what = {.kind = LS_COLL_BROADCAST, .type = LS_BF16, .group = 3};
    ls_shm_segment *segment;
    uint64_t ticket = 0;
    int fd;

    LS_CHECK_OK(
        ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 2, .heap_bytes = LS_MIB}, &fd));
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 0));
    LS_CHECK_STR(ls_flight_recorder_where(segment, 0, where), "it never came");
    LS_CHECK_OK(ls_shm_segment_join(segment, 0, 0, "here"));
    LS_CHECK_STR(ls_flight_recorder_where(segment, 0, where),
                 "it has not been in a collective so far");
    LS_CHECK_EQ(ls_flight_recorder_read(segment, 0, r), 0);
    for (int i = 1; i <= 100; i++) {
        ls_flight_recorder_set_step(segment, 0, i / 10);
        what.seq = (uint64_t)i;
        what.bytes = i * 10;
        ticket = ls_flight_recorder_enter(segment, 0, &what);
        if (i < 100)
            ls_flight_recorder_leave(segment, 0, ticket,
                                     i == 50 ? LS_FLIGHT_RECORDER_FAILED : LS_FLIGHT_RECORDER_LEFT);
    }
    LS_CHECK_EQ(ls_flight_recorder_read(segment, 0, r), LS_FLIGHT_RECORDER_RECORDS);
    for (int i = 0; i < LS_FLIGHT_RECORDER_RECORDS; i++) {
        LS_CHECK_EQ(r[i].seq, 37 + i);
        LS_CHECK_EQ(r[i].bytes, 370 + 10 * i);
        LS_CHECK_EQ(r[i].step, (37 + i) / 10);
        LS_CHECK_EQ(r[i].kind, LS_COLL_BROADCAST);
        LS_CHECK_EQ(r[i].type, LS_BF16);
        LS_CHECK_EQ(r[i].group, 3);
        LS_CHECK_EQ(r[i].state, i == 63          ? LS_FLIGHT_RECORDER_ENTERED
                                : r[i].seq == 50 ? LS_FLIGHT_RECORDER_FAILED
                                                 : LS_FLIGHT_RECORDER_LEFT);
        LS_CHECK(r[i].entered_ns > 0 && (i == 63 || r[i].left_ns >= r[i].entered_ns));
    }
    usleep(120000);
    ls_flight_recorder_where(segment, 0, where);
    check_seconds(where, "it has been in broadcast 100 (1000 bytes of bf16, step 10) for", 0.12,
                  r[63].entered_ns);
    int64_t left_ns = ls_time_now_ns();
    ls_flight_recorder_leave(segment, 0, ticket, LS_FLIGHT_RECORDER_LEFT);
    ls_flight_recorder_where(segment, 0, where);
    check_seconds(where, "it has not been in a collective for", 0, left_ns);
    ls_shm_segment_leave(segment, 0);
    LS_CHECK_STR(ls_flight_recorder_where(segment, 0, where), "it has left");
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST(box_is_written_for_people)
{
    ls_flight_recorder_record what = {
        .kind = LS_COLL_BROADCAST, .type = LS_BF16, .bytes = 10, .seq = 1};
    ls_shm_segment *segment;
    ls_str text;
    int fd;

    LS_CHECK_OK(
        ls_shm_segment_create(&(ls_shm_segment_args){.ranks = 1, .heap_bytes = LS_MIB}, &fd));
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 0));
    LS_CHECK_EQ(ls_shm_segment_rank(segment, 0), -1);
    LS_CHECK_OK(ls_shm_segment_join(segment, 0, 5, "here"));
    LS_CHECK_EQ(ls_shm_segment_rank(segment, 0), 5);
    LS_CHECK(!ls_flight_recorder_used(segment, 0));
    ls_flight_recorder_leave(segment, 0, ls_flight_recorder_enter(segment, 0, &what),
                             LS_FLIGHT_RECORDER_LEFT);
    what.seq = 2;
    what.group = LS_FLIGHT_RECORDER_COMM + 3;
    ls_flight_recorder_enter(segment, 0, &what);
    LS_CHECK(ls_flight_recorder_used(segment, 0));
    ls_str_init(&text);
    LS_CHECK_OK(ls_flight_recorder_write(segment, 0, "a reason", "box.txt"));
    LS_CHECK_OK(ls_file_read("box.txt", LS_MIB, &text));
    LS_CHECK(strstr(text.p, "# black box of rank 5 (pid ") && strstr(text.p, "# a reason\n"));
    LS_CHECK(
        strstr(text.p, "       1        0 broadcast      bf16            5             10 done"));
    LS_CHECK(strstr(text.p, "             10 inside 20") && strstr(text.p, " -  comm 3\n"));
    LS_CHECK_FAILS(ls_flight_recorder_write(segment, 0, "", "no/such/folder"), LS_EIO,
                   "no/such/folder");
    unlink("box.txt");
    ls_str_release(&text);
    ls_shm_segment_close(segment);
    close(fd);
}
