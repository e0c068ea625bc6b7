/* session_report.c -- events on their way out, and those with which a run begins.
 *
 * Only the first rank reports; the others send it their host and process. */
#include "train/session/session_impl.h"

#include <errno.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "config/option.h"
#include "parallel/blocking.h"
#include "train/session/mesh_agree.h"
#include "optim/lr_schedule.h"
#include "train/session/model_groups.h"

void ls_session_emit(ls_session *s, const ls_event *what)
{
    ls_event timed = *what, *event = &timed;

    if (s->mesh.rank > 0)
        return;
    event->time_ms = ls_time_wall_ms();
    /* events.jsonl comes second: the next first rank goes on where it ends (train/replica/recover.h), so
     * a slow reader of the sink loses nothing when this process is killed. */
    if (s->args.sink)
        s->args.sink(s->args.sink_context, event);
    ls_str_clear(&s->folder.line);
    ls_event_json(event, &s->folder.line);
    ls_str_append_char(&s->folder.line, '\n');
    if (!s->folder.events_bad && write(s->folder.events_fd, s->folder.line.p, s->folder.line.len) !=
                                     (ssize_t)s->folder.line.len) {
        s->folder.events_bad = true; /* training goes on: losing events must not lose the run */
        ls_log(LS_LOG_WARN, "cannot write \"%s/events.jsonl\": %s; events are no longer kept",
               s->run->out, strerror(errno));
    }
}

void ls_session_incident(ls_session *s, int64_t step, const char *kind, const char *action,
                         const char *text)
{
    ls_session_emit(
        s, &(ls_event){.kind = LS_EVENT_INCIDENT,
                       .incident = {.step = step, .kind = kind, .action = action, .text = text}});
}

/* What the exchange does between nodes. */
static const char *compress_name(const ls_session *s)
{
    bool compressed = s->dp && ls_dp_residuals(ls_dp_args_of(s->dp)) > 0;

    return ls_codec_name(compressed ? ls_dp_args_of(s->dp)->codec.kind : LS_CODEC_NONE);
}

/* The same run file works on one machine, where there is nothing to compress. */
static const char *unused_compress(const ls_session *s)
{
    bool unused = s->run->exchange.compress != LS_COMPRESS_NONE && s->mesh.nodes < 2;

    return unused ? ls_option_find("exchange.compress")->names[s->run->exchange.compress] : NULL;
}

static ls_event_recompute recompute_of(const ls_session *s)
{
    int64_t blocks = s->run->train.recompute_blocks;

    return (ls_event_recompute){
        .level = ls_option_find("train.recompute")->names[s->run->train.recompute],
        .blocks = blocks == LS_RUN_AUTO ? s->model.shape.L : blocks,
        .of = s->model.shape.L,
        .chosen = s->args.run->train.recompute == LS_RECOMPUTE_AUTO};
}

/* GPUs of all ranks: each is counted with the first rank that uses it. */
static int count_cards(const ls_session *s)
{
    int n = 0;

    for (int r = 0; r < s->mesh.ranks && s->gpu.cards; r++) {
        int k = 0;
        while (k < r && !ls_session_same_card(&s->gpu.cards[k], &s->gpu.cards[r]))
            k++;
        n += k == r;
    }
    return s->gpu.cards ? n : s->discrete;
}

static void emit_start(ls_session *s)
{
    ls_device_info info = ls_device_describe(s->device);
    const ls_option *family = ls_option_find("model.family"), *sync = ls_option_find("sync");
    const ls_option *optimizer = ls_option_find("train.optimizer");
    const ls_option *schedule = ls_option_find("mesh.schedule");
    double factor = ls_lr_schedule_factor(s->run);
    int64_t train_tokens = 0, validation_tokens = 0, trained = 0;
    ls_calls calls;

    const ls_model *model = ls_model_groups_whole(s);

    double flops = ls_model_flops_per_token(model, s->model.shape.T);
    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    for (int i = 0; i < model->n_params; i++)
        if (model->params[i].trained >= 0)
            trained += model->params[i].count;
    for (int i = 0; i < ls_corpus_sources(s->data.corpus); i++) {
        train_tokens += ls_corpus_train_tokens(s->data.corpus, i);
        validation_tokens += ls_corpus_validation_tokens(s->data.corpus, i);
    }
    calls.sequences = s->run->batch.sequences; /* of all workers */
    ls_session_emit(s,
                    &(ls_event){.kind = LS_EVENT_START,
                                .start = {.name = s->run->name,
                                          .out = s->run->out,
                                          .family = family->names[s->run->model.family],
                                          .device = info.name,
                                          .kernels = s->kernels->name,
                                          .reduce = calls.ordered ? "ordered" : "fast",
                                          .parameters = model->elements,
                                          .trained = trained,
                                          .vocab = model->shape.V,
                                          .train_tokens = train_tokens,
                                          .validation_tokens = validation_tokens,
                                          .sequences = calls.sequences,
                                          .leaf = s->run->batch.leaf,
                                          .group = ls_min_i64(s->run->batch.group,
                                                              calls.sequences / s->run->batch.leaf),
                                          .recompute = recompute_of(s),
                                          .optimizer = optimizer->names[s->run->train.optimizer],
                                          .lr = factor * s->run->train.lr,
                                          .lr_factor = factor,
                                          .warmup = s->run->train.warmup,
                                          .warmup_written = s->run->train.warmup_written,
                                          .ranks = ls_mesh_ranks(&s->mesh),
                                          .zero = s->mesh.zero,
                                          .shard = ls_mesh_shard_ranks(ls_model_groups_replicas(s)),
                                          .pp = ls_mesh_pp(&s->mesh),
                                          .tp = ls_mesh_tp(&s->mesh),
                                          .cp = ls_mesh_cp(&s->mesh),
                                          .schedule = schedule->names[s->run->mesh.schedule],
                                          .chunks = s->run->mesh.chunks,
                                          .nodes = (int)ls_max_i64(1, s->mesh.nodes),
                                          .cards = count_cards(s),
                                          .compress = compress_name(s),
                                          .collectives = s->gpu.collectives.provider,
                                          .collectives_why = s->gpu.collectives.why,
                                          .collectives_axes = s->gpu.axes,
                                          .unused_compress = unused_compress(s),
                                          .sync = sync->names[s->run->sync],
                                          .context = s->model.shape.T,
                                          .flops_per_token = flops,
                                          .first_step = s->step_number,
                                          .loaded_bytes = s->loaded.read.bytes,
                                          .loaded_s = s->loaded.read.seconds,
                                          .loaded_most = s->loaded.most_bytes,
                                          .overridden = s->save.overridden.p,
                                          .total_steps = s->progress.total_steps,
                                          .epochs = s->run->train.epochs,
                                          .windows = s->data.windows,
                                          .ledger = &s->ledger,
                                          .run = s->args.run}});
}

/* More ranks than leaves is allowed, and rarely meant; so are weights that leave a rank none. */
static void warn_of_idle_ranks(const ls_session *s)
{
    ls_ordered_run runs[LS_MESH_RANKS];
    int ranks = ls_mesh_tp_groups(&s->mesh), idle = 0;
    ls_calls calls;

    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    ls_mesh_split(ls_model_groups_mesh(s), calls.leaves, runs);
    for (int r = 0; r < ranks; r++)
        idle += runs[r].count == 0;
    if (!ls_session_is_first(s) || s->mesh.independent || idle == 0)
        return;
    int64_t shared = calls.leaves / calls.cp;
    bool divisible = calls.ordered && calls.leaf > 1;
    ls_log(LS_LOG_WARN, "%d of %d ranks have no work: they share %lld %s; %s%stake fewer ranks",
           idle, ranks, (long long)shared,
           calls.ordered ? shared == 1 ? "leaf (batch.sequences / batch.leaf)"
                                       : "leaves (batch.sequences / batch.leaf)"
           : shared == 1 ? "sequence (batch.sequences)"
                         : "sequences (batch.sequences)",
           divisible ? "lower batch.leaf, " : "",
           s->mesh.weights && !s->mesh.balance ? "change mesh.weights, or "
           : divisible                         ? "or "
                                               : "");
}

/* One event for each rank: its process, host and card. */
static ls_status emit_ranks(ls_session *s)
{
    int n = ls_mesh_ranks(&s->mesh);
    typedef struct member {
        int pid;
        char host[64];
    } member;
    member own = {.pid = getpid()}, *all = ls_mem_array((size_t)n, sizeof *all);
    ls_status st = LS_OK;

    if (!all)
        return LS_ENOMEM;
    gethostname(own.host, sizeof own.host - 1);
    all[0] = own;
    if (n > 1)
        LS_TRY(st, ls_blocking_gather(s->args.comm, &own, sizeof own, all, ls_session_deadline()),
               out);
    s->data.slice.hosts = ls_mem_array((size_t)n, sizeof *s->data.slice.hosts);
    LS_TRY(st, s->data.slice.hosts ? LS_OK : LS_ENOMEM, out);
    for (int r = 0; r < n && ls_session_is_first(s); r++) {
        memcpy(s->data.slice.hosts[r], all[r].host, sizeof all[r].host);
        ls_session_emit(
            s, &(ls_event){.kind = LS_EVENT_RANK,
                           .rank = {.rank = r,
                                    .pid = all[r].pid,
                                    .host = all[r].host,
                                    .card = s->gpu.cards ? s->gpu.cards[r].card : -1,
                                    .bus_id = s->gpu.cards ? s->gpu.cards[r].bus_id : ""}});
    }
out:
    ls_mem_free(all);
    return st;
}

/* Falling back to an older checkpoint costs work: it is an event for programs that watch, too. */
static void emit_fallback(ls_session *s)
{
    char text[160];

    int64_t redone = s->save.newest_step - s->step_number;

    if (redone <= 0)
        return;
    snprintf(text, sizeof text,
             "the checkpoint of step %lld is damaged: %lld step%s done again from step %lld",
             (long long)s->save.newest_step, (long long)redone, redone == 1 ? " is" : "s are",
             (long long)s->step_number);
    ls_session_incident(s, s->step_number, "resume", "an older checkpoint was used", text);
}

/* An attempt that was killed before its first save cost all of its steps. */
static void emit_lost_attempt(ls_session *s)
{
    char text[160];

    if (s->folder.lost_step == 0)
        return;
    snprintf(
        text, sizeof text,
        "an earlier attempt came to step %lld and left no checkpoint: its steps are done again",
        (long long)s->folder.lost_step);
    ls_session_incident(s, 0, "resume", "the run begins at step 0 again", text);
}

ls_status ls_session_report(ls_session *s)
{
    ls_status st;

    LS_TRY(st, emit_ranks(s), out);
    if (!s->args.view.begun) {
        ls_mesh_agree_report(s);
        emit_start(s);
    }
    warn_of_idle_ranks(s);
    emit_fallback(s);
    emit_lost_attempt(s);
out:
    return st;
}
