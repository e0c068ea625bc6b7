/* test_node_memory.c -- the memory of a node's ranks as the process sees it that starts them. */
#include "harness.h"
#include <string.h>
#include <unistd.h>
#include "comm/node/flight_recorder.h"
#include "comm/node_memory.h"

LS_TEST(node_memory_breaks_for_all_ranks)
{
    ls_shm_segment *segment;
    int fd;

    LS_CHECK_OK(ls_node_memory_create(7, 2, &fd));
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 7));
    LS_CHECK_OK(ls_shm_segment_failure(segment));
    LS_CHECK_FAILS(ls_node_memory_break(fd, 8, "rank 1 died"), LS_EUSAGE, "generation");
    LS_CHECK_OK(ls_shm_segment_failure(segment)); /* another view's memory is left alone */
    LS_CHECK_OK(ls_node_memory_break(fd, 7, "rank 1 died"));
    LS_CHECK_FAILS(ls_shm_segment_failure(segment), LS_EPEER, "rank 1 died");
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST(node_memory_writes_what_ranks_were_doing)
{
    const ls_flight_recorder_record record = {.kind = LS_COLL_BROADCAST, .type = LS_F32, .seq = 3};
    ls_node_memory_post_mortem found;
    ls_shm_segment *segment;
    int fd;

    LS_CHECK_OK(ls_node_memory_create(1, 2, &fd));
    LS_CHECK_OK(ls_node_memory_write(fd, 1, "boxes", "killed", -1, &found));
    LS_CHECK(found.written == 0 && access("boxes", F_OK) != 0); /* nothing to tell, no folder */
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 1));
    LS_CHECK_OK(ls_shm_segment_join(segment, 1, 5, "host"));
    (void)ls_flight_recorder_enter(segment, 1, &record);
    LS_CHECK_OK(ls_node_memory_write(fd, 1, "boxes", "killed", 1, &found));
    LS_CHECK_EQ(found.written, 1);
    LS_CHECK(strstr(found.call, "broadcast") != NULL);
    LS_CHECK_EQ(access("boxes/rank-5.txt", F_OK), 0);
    ls_shm_segment_leave(segment, 1);
    ls_shm_segment_close(segment);
    close(fd);
}
