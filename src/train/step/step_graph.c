/* step_graph.c -- forward and backward of a step as recorded graphs (device.graphs).
 *
 * Where a model is small for its GPU, the host needs longer to queue a step than the device to do
 * it. The work of all calls is then recorded once, as graphs, and launched in each step. It reads
 * and writes fixed addresses; what differs from step to step is put there before: tokens in device
 * memory, the numbers of each call in locked host memory, from which a recorded copy fetches them.
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
 *   ready -> off       auto: the first steps are queued and launched in turn; graphs are no faster
 *
 * Ranks that share a model or sequences exchange tensors in every layer, by the host or by collectives
 * of device memory, and neither is recorded.
 *
 * While recording, each segment is launched as soon as it is complete. When one fails, the
 * gradients of the step are computed again from the beginning, kernel by kernel: nothing of them
 * has left this process yet. Bits are the same either way: no algorithm is chosen while
 * recording. */
#include "train/step/step_impl.h"

#include "base/log.h"

/* Steps that auto compares, of both kinds together; and how much of a queued step's time the best
 * launched one may take to be worth it, in percent. */
enum { TRIALS = 16, WORTH = 98 };

void ls_step_open_graphs(ls_step *s)
{
    ls_graphs asked = s->args.run->device.graphs;
    bool can = ls_device_describe(ls_step_device(s)).graphs;

    if (!s->mode->graphs || ls_step_has_mp_group(s) || s->args.cp_group) {
        if (can && asked == LS_GRAPHS_ON && s->args.rank == 0)
            ls_log(LS_LOG_WARN, "device.graphs is on, but steps are not replayed: ranks exchange "
                                "tensors inside of a pass, and the host does that");
        can = false;
    }
    if (s->device_exchange) /* what has left with a recording cannot leave once more when it fails */
        can = false;
    s->graphs.state = can && asked != LS_GRAPHS_OFF ? LS_STEP_GRAPHS_WANTED : LS_STEP_GRAPHS_OFF;
    s->graphs.trials = asked == LS_GRAPHS_AUTO ? TRIALS : 0;
    s->graphs.best_ns[0] = s->graphs.best_ns[1] = INT64_MAX;
}

/* Forget what was recorded. */
static void drop(ls_step *s)
{
    for (int i = 0; i < s->graphs.n; i++)
        ls_graph_free(s->graphs.segments[i].graph);
    s->graphs.n = 0;
}

void ls_step_close_graphs(ls_step *s)
{
    drop(s);
}

/* Whether the calls of this step are those of the one before, over the same kind of batch. */
static bool same_calls(const ls_step *s)
{
    const ls_calls *a = &s->graphs.calls, *b = &s->now;

    return a->own == b->own && a->first == b->first && a->leaves == b->leaves &&
           a->calls == b->calls && s->graphs.isolated == s->isolated;
}

bool ls_step_graph_begin(ls_step *s, const ls_step_clock *clock)
{
    bool same = same_calls(s) && s->graphs.ran;

    s->graphs.launched = false;
    if (s->graphs.state == LS_STEP_GRAPHS_OFF || clock->profile)
        return false;
    if (!same) {
        drop(s);
        s->graphs.state =
            s->graphs.state == LS_STEP_GRAPHS_READY ? LS_STEP_GRAPHS_WANTED : s->graphs.state;
        s->graphs.calls = s->now;
        s->graphs.isolated = s->isolated;
        s->graphs.ran = true; /* after this step: whatever is chosen on first use will have been */
    }
    if (s->graphs.state != LS_STEP_GRAPHS_WANTED || !same || s->now.calls == 0)
        return false;
    s->graphs.status = ls_graph_begin(s->args.stream);
    s->graphs.recording = s->graphs.status == LS_OK;
    return true;
}

/* The segment that is being recorded is complete: do it. */
static void end_segment(ls_step *s, int64_t from, int buffers)
{
    ls_graph *graph = NULL;

    if (!s->graphs.recording)
        return;
    s->graphs.recording = false;
    s->graphs.status = ls_graph_end(s->args.stream, &graph);
    if (s->graphs.status != LS_OK)
        return;
    ls_graph_launch(graph, s->args.stream);
    s->graphs.segments[s->graphs.n].graph = graph;
    s->graphs.segments[s->graphs.n].from = from;
    s->graphs.segments[s->graphs.n++].buffers = buffers;
}

bool ls_step_graph_cut(ls_step *s, int64_t from, int buffers)
{
    bool recording = s->graphs.recording;

    end_segment(s, from, buffers);
    return recording;
}

void ls_step_graph_resume(ls_step *s)
{
    if (s->graphs.status == LS_OK)
        s->graphs.status = ls_graph_begin(s->args.stream);
    s->graphs.recording = s->graphs.status == LS_OK;
}

static void report(const ls_step *s)
{
    ls_log(LS_LOG_INFO, "forward and backward are replayed: %d recorded graph%s", s->graphs.n,
           s->graphs.n == 1 ? "" : "s");
}

bool ls_step_graph_end(ls_step *s)
{
    end_segment(s, -1, 0);
    if (s->graphs.status == LS_OK) {
        s->graphs.state = LS_STEP_GRAPHS_READY;
        if (s->graphs.trials == 0)
            report(s);
        return true;
    }
    ls_log(LS_LOG_WARN, "steps are not replayed: %s; their work is queued row by row",
           ls_err_last()->text);
    ls_err_clear();
    drop(s);
    s->graphs.state = LS_STEP_GRAPHS_OFF;
    return false;
}

bool ls_step_graph_launch(ls_step *s, ls_step_state *host_state, const ls_step_clock *clock)
{
    ls_step_leaves p = {.count = 0};

    if (s->graphs.state != LS_STEP_GRAPHS_READY || clock->profile || !same_calls(s) ||
        s->graphs.trials % 2 != 0)
        return false;
    s->graphs.launched = true;
    while (ls_step_next(s, &p))
        ls_step_set_scalars(s, &p, host_state);
    for (int i = 0; i < s->graphs.n; i++) {
        ls_graph_launch(s->graphs.segments[i].graph, s->args.stream);
        if (s->graphs.segments[i].from >= 0)
            s->exchange->leave(s, s->graphs.segments[i].from, s->graphs.segments[i].buffers);
    }
    return true;
}

void ls_step_graph_compare(ls_step *s)
{
    int64_t now = ls_time_now_ns(), took = now - s->graphs.checked_ns;
    int64_t *best = s->graphs.best_ns;
    int kind = s->graphs.launched;

    s->graphs.checked_ns = now;
    if (s->graphs.state != LS_STEP_GRAPHS_READY || s->graphs.trials == 0)
        return;
    best[kind] = ls_min_i64(best[kind], took);
    if (--s->graphs.trials > 0)
        return;
    if (best[1] < best[0] / 100 * WORTH) {
        report(s);
        return;
    }
    drop(s);
    s->graphs.state = LS_STEP_GRAPHS_OFF;
}
