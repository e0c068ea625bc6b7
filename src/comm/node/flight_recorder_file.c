/* flight_recorder_file.c -- the black box of a rank: its records as a text file, one line for each
 * operation, the oldest first.
 *
 * Any living process that holds the segment can write it, usually the agent: so it is the same for
 * a rank that failed, crashed, or was killed with SIGKILL.
 *
 *     seq step kind       type  count  bytes state  entered                    took  of
 *      16   40 all_reduce f32    4096  16384 done   2026-03-01T10:20:30.123Z      2  comm 1
 *      17   40 all_gather bf16   2048   4096 inside 2026-03-01T10:20:30.129Z      -  comm 1
 *
 * The last line says where the rank was when it ended. */
#include "comm/node/flight_recorder.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <time.h>
#include "base/file.h"
#include "base/time.h"
#include "comm/node/shm_segment_impl.h"

enum { WHEN = 40 };

/* A time of a record as wall-clock time, in UTC. */
static const char *when(int64_t at_ns, char text_out[WHEN])
{
    struct timespec wall;
    struct tm tm;
    char day[24];

    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t ns = wall.tv_sec * LS_NS_PER_S + wall.tv_nsec - (ls_time_now_ns() - at_ns);
    time_t seconds = (time_t)(ns / LS_NS_PER_S);
    gmtime_r(&seconds, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text_out, WHEN, "%s.%03dZ", day, (int)(ns / LS_NS_PER_MS % 1000));
    return text_out;
}

/* One line: number, step, kind, type, elements, bytes, state, when it began, how many ms it took,
 * and its group. */
static void put_record(const ls_flight_recorder_record *r, ls_str *out)
{
    static const char *const states[] = {"none", "inside", "done", "failed"};
    int64_t size = ls_dtype_bytes(r->type);
    char entered[WHEN], took[24] = "-";

    if (r->state != LS_FLIGHT_RECORDER_ENTERED)
        snprintf(took, sizeof took, "%.0f", (double)(r->left_ns - r->entered_ns) / 1e6);
    ls_str_printf(out, "%8" PRIu64 " %8" PRId64 " %-14s %-4s %12" PRId64 " %14" PRId64, r->seq,
                  r->step, ls_coll_kind_name(r->kind), ls_coll_type_name(r->type),
                  size > 0 ? r->bytes / size : 0, r->bytes);
    ls_str_printf(out, " %-6s %s %8s  %s %d\n", states[r->state & 3], when(r->entered_ns, entered),
                  took,
                  r->group >= LS_FLIGHT_RECORDER_MESSAGES ? "messages"
                  : r->group >= LS_FLIGHT_RECORDER_COMM   ? "comm"
                                                          : "node",
                  r->group % LS_FLIGHT_RECORDER_COMM);
}

bool ls_flight_recorder_used(const ls_shm_segment *segment, int local)
{
    return atomic_load_explicit(&segment->process[local].entered, memory_order_relaxed) > 0;
}

ls_status ls_flight_recorder_write(const ls_shm_segment *segment, int local, const char *cause,
                                   const char *path)
{
    ls_flight_recorder_record r[LS_FLIGHT_RECORDER_RECORDS];
    int n = ls_flight_recorder_read(segment, local, r);
    char name[LS_SHM_SEGMENT_NAME], now[WHEN];
    ls_str text;

    ls_str_init(&text);
    ls_str_printf(&text, "# black box of %s, written %s\n# %s\n",
                  ls_shm_segment_name(segment, local, name), when(ls_time_now_ns(), now), cause);
    ls_str_printf(&text, "# the last %d of %" PRIu64 " operations, the oldest first; took: ms\n", n,
                  atomic_load_explicit(&segment->process[local].entered, memory_order_relaxed));
    ls_str_printf(&text, "#%7s %8s %-14s %-4s %12s %14s %-6s %-24s %8s  of\n", "seq", "step",
                  "kind", "type", "count", "bytes", "state", "entered", "took");
    for (int i = 0; i < n; i++)
        put_record(&r[i], &text);
    ls_status st = ls_str_status(&text);
    if (st == LS_OK)
        st = ls_file_write_atomic(path, text.p, text.len);
    ls_str_release(&text);
    return st;
}
