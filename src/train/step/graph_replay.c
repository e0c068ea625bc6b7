/* graph_replay.c -- forward and backward of a step as recorded graphs (device.graphs).
 *
 * Where a model is small for its GPU, the host needs longer to queue a step than the device to do
 * it. The work of all calls is then recorded once and replayed. It reads and writes fixed
 * addresses; what differs from step to step is put there before: tokens in device memory, the
 * numbers of each call in locked host memory, from which a recorded copy fetches them.
 *
 * With other ranks a recording ends wherever gradients go to the host (host_stage.c), so a step is
 * a list of segments, and after each but the last some elements leave:
 *
 *   alone        [ all calls ]
 *   with others  [ calls ... head ] from 900 [ blocks 3, 2 ] from 400 [ blocks 1, 0 ] from 0 [ ]
 *
 *   wanted -> ready    recorded, in a step whose calls have run before
 *   ready -> wanted    the batch is cut into other calls
 *   wanted -> off      recording failed; one warning
 *   ready -> off       auto: the first steps are queued and replayed in turn; replay is no faster
 *
 * Ranks that share a model or sequences exchange tensors in every layer, which the host does: their
 * steps are not recorded.
 *
 * While recording, each segment is launched as soon as it is complete. When one fails, the
 * gradients of the step are computed again from the beginning, kernel by kernel: nothing of them
 * has left this process yet. Bits are the same either way: no algorithm is chosen while
 * recording. */
#include "train/step/step_impl.h"

#include "base/log.h"

/* Steps that auto compares, of both kinds together; and how much of a queued step's time the best
 * replayed one may take to be worth it, in percent. */
enum { TRIALS = 16, WORTH = 98 };

void ls_step_open_replay(ls_step *s)
{
    ls_graphs asked = s->args.run->device.graphs;
    bool can = ls_device_describe(ls_step_device(s)).graphs;

    if (!s->mode->replays || ls_step_has_mp_group(s) || s->args.cp_group) {
        if (can && asked == LS_GRAPHS_ON && s->args.rank == 0)
            ls_log(LS_LOG_WARN, "device.graphs is on, but steps are not replayed: ranks exchange "
                                "tensors inside of a pass, and the host does that");
        can = false;
    }
    if (s->device_exchange) /* what has left with a recording cannot leave once more when it fails */
        can = false;
    s->replay.state = can && asked != LS_GRAPHS_OFF ? LS_REPLAY_WANTED : LS_REPLAY_OFF;
    s->replay.trials = asked == LS_GRAPHS_AUTO ? TRIALS : 0;
    s->replay.best_ns[0] = s->replay.best_ns[1] = INT64_MAX;
}

/* Forget what was recorded. */
static void drop(ls_step *s)
{
    for (int i = 0; i < s->replay.n; i++)
        ls_graph_free(s->replay.segments[i].graph);
    s->replay.n = 0;
}

void ls_step_close_replay(ls_step *s)
{
    drop(s);
}

/* Whether the calls of this step are those of the one before, over the same kind of batch. */
static bool same_calls(const ls_step *s)
{
    const ls_calls *a = &s->replay.calls, *b = &s->now;

    return a->own == b->own && a->first == b->first && a->leaves == b->leaves &&
           a->calls == b->calls && s->replay.isolated == s->isolated;
}

bool ls_step_replay_begin(ls_step *s, const ls_step_clock *clock)
{
    bool same = same_calls(s) && s->replay.ran;

    s->replay.launched = false;
    if (s->replay.state == LS_REPLAY_OFF || clock->profile)
        return false;
    if (!same) {
        drop(s);
        s->replay.state = s->replay.state == LS_REPLAY_READY ? LS_REPLAY_WANTED : s->replay.state;
        s->replay.calls = s->now;
        s->replay.isolated = s->isolated;
        s->replay.ran = true; /* after this step: whatever is chosen on first use will have been */
    }
    if (s->replay.state != LS_REPLAY_WANTED || !same || s->now.calls == 0)
        return false;
    s->replay.status = ls_graph_begin(s->args.stream);
    s->replay.recording = s->replay.status == LS_OK;
    return true;
}

/* The segment that is being recorded is complete: do it. */
static void end_segment(ls_step *s, int64_t from, int buffers)
{
    ls_graph *graph = NULL;

    if (!s->replay.recording)
        return;
    s->replay.recording = false;
    s->replay.status = ls_graph_end(s->args.stream, &graph);
    if (s->replay.status != LS_OK)
        return;
    ls_graph_launch(graph, s->args.stream);
    s->replay.segments[s->replay.n].graph = graph;
    s->replay.segments[s->replay.n].from = from;
    s->replay.segments[s->replay.n++].buffers = buffers;
}

bool ls_step_replay_cut(ls_step *s, int64_t from, int buffers)
{
    bool recording = s->replay.recording;

    end_segment(s, from, buffers);
    return recording;
}

void ls_step_replay_resume(ls_step *s)
{
    if (s->replay.status == LS_OK)
        s->replay.status = ls_graph_begin(s->args.stream);
    s->replay.recording = s->replay.status == LS_OK;
}

static void report(const ls_step *s)
{
    ls_log(LS_LOG_INFO, "forward and backward are replayed: %d recorded graph%s", s->replay.n,
           s->replay.n == 1 ? "" : "s");
}

bool ls_step_replay_end(ls_step *s)
{
    end_segment(s, -1, 0);
    if (s->replay.status == LS_OK) {
        s->replay.state = LS_REPLAY_READY;
        if (s->replay.trials == 0)
            report(s);
        return true;
    }
    ls_log(LS_LOG_WARN, "steps are not replayed: %s; their work is queued row by row",
           ls_err_last()->text);
    ls_err_clear();
    drop(s);
    s->replay.state = LS_REPLAY_OFF;
    return false;
}

bool ls_step_replay_launch(ls_step *s, ls_step_state *host_state, const ls_step_clock *clock)
{
    ls_step_leaves p = {.count = 0};

    if (s->replay.state != LS_REPLAY_READY || clock->profile || !same_calls(s) ||
        s->replay.trials % 2 != 0)
        return false;
    s->replay.launched = true;
    while (ls_step_next(s, &p))
        ls_step_set_numbers(s, &p, host_state);
    for (int i = 0; i < s->replay.n; i++) {
        ls_graph_launch(s->replay.segments[i].graph, s->args.stream);
        if (s->replay.segments[i].from >= 0)
            s->exchange->leave(s, s->replay.segments[i].from, s->replay.segments[i].buffers);
    }
    return true;
}

void ls_step_replay_judge(ls_step *s)
{
    int64_t now = ls_time_now_ns(), took = now - s->replay.checked_ns;
    int64_t *best = s->replay.best_ns;
    int kind = s->replay.launched;

    s->replay.checked_ns = now;
    if (s->replay.state != LS_REPLAY_READY || s->replay.trials == 0)
        return;
    best[kind] = ls_min_i64(best[kind], took);
    if (--s->replay.trials > 0)
        return;
    if (best[1] < best[0] / 100 * WORTH) {
        report(s);
        return;
    }
    drop(s);
    s->replay.state = LS_REPLAY_OFF;
}
