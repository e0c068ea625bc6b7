/* eval.c -- validation loss and text sample.
 *
 * The windows are the same in every run of the same text: n of them, evenly spread, so that losses can
 * be compared. 10 windows and n = 4: windows 0, 2, 5 and 7. Ranks share the n windows as they share a
 * batch; each writes its losses into its places of one array, the rest is zero, and the sum over ranks
 * has every loss at its place. Added up in order, the result has the bits of one process.
 *
 *     rank 0      l0 l1  0  0
 *     rank 1       0  0 l2 l3      sum: l0 l1 l2 l3, on all ranks
 *
 * In rounds without windows of its own a rank calls ls_step_idle(): a pipeline, ZeRO 3 and experts need
 * every rank in every round. */
#include "train/report/eval.h"

#include "base/mem.h"
#include "train/save/best_loss.h"
#include "train/save/save.h"
#include "train/session/model_groups.h"

enum { VALIDATION_AUTO = 256 };

static bool stop_asked(const ls_session *s)
{
    return s->args.stop && *s->args.stop;
}

static int64_t validation_sequences(const ls_session *s)
{
    int64_t all = ls_corpus_validation_windows(s->data.corpus, s->model.shape.T);
    int64_t want = s->run->eval.sequences;

    return ls_min_i64(all, want == LS_RUN_AUTO ? VALIDATION_AUTO : want);
}

void ls_eval_init(ls_eval *eval)
{
    *eval = (ls_eval){.windows = NULL};
    ls_str_init(&eval->sample);
}

ls_status ls_eval_open(ls_eval *eval, const ls_session *session)
{
    ls_calls calls;

    ls_mem_free(eval->windows);
    ls_mem_free(eval->losses);
    ls_calls_plan(session->run, ls_model_groups_mesh(session), &calls);
    size_t n = (size_t)(calls.most * calls.leaf * session->model.shape.T);
    eval->windows = ls_mem_array(3 * n, sizeof *eval->windows);
    eval->losses = ls_mem_array((size_t)validation_sequences(session) + 1, sizeof *eval->losses);
    return eval->windows && eval->losses ? LS_OK : LS_ENOMEM;
}

void ls_eval_release(ls_eval *eval)
{
    ls_mem_free(eval->windows);
    ls_mem_free(eval->losses);
    ls_str_release(&eval->sample);
}

/* Validation windows first .. first+B-1 of n, evenly spread over all there are. */
static ls_status read_windows(const ls_eval *e, const ls_session *s, int64_t first, int64_t B,
                              int64_t n, ls_step_batch *windows_out)
{
    int64_t T = s->model.shape.T, all = ls_corpus_validation_windows(s->data.corpus, T);
    int32_t *tokens = e->windows, *targets = tokens + B * T, *start = targets + B * T;
    bool isolate = ls_corpus_isolates(s->data.corpus);
    ls_status st = LS_OK;

    for (int64_t i = 0; i < B; i++) {
        int64_t index = ls_sample_order_spread(all, n, first + i);
        LS_TRY(st,
               ls_corpus_validation(s->data.corpus, index, T, tokens + i * T, targets + i * T,
                                    isolate ? start + i * T : NULL),
               out);
    }
    *windows_out = (ls_step_batch){.tokens = tokens,
                                   .targets = targets,
                                   .start = isolate ? start : NULL,
                                   .restart = !s->progress.positions_run_on,
                                   .counted = ls_corpus_counted(targets, B * T)};
out:
    return st;
}

/* Calls of the rank that needs most of them for n windows. */
static int64_t validation_rounds(const ls_session *s, int64_t n)
{
    int64_t rounds = 0;

    for (int r = 0; r < ls_mesh_tp_groups(&s->mesh); r++) {
        ls_mesh other = *ls_model_groups_mesh(s);
        ls_calls calls;
        other.rank = r;
        ls_calls_plan(s->run, &other, &calls);
        int64_t own = ls_mesh_leaves(&other, n * ls_mesh_cp(&other), r).count;
        int64_t most = calls.most * calls.leaf;
        rounds = ls_max_i64(rounds, (own + most - 1) / most);
    }
    return rounds;
}

/* Of ranks that share windows (mesh.cp) each has a part of their losses, and the first one counts their
 * targets; of a tp group the first rank speaks. */
ls_status ls_eval_loss(ls_eval *eval, ls_session *s)
{
    ls_calls calls;
    int64_t n = validation_sequences(s);
    double total = 0, *losses = eval->losses;
    int64_t rounds = validation_rounds(s, n);
    ls_status st = LS_OK;

    if (n == 0)
        return LS_OK;
    const ls_mesh *mesh = ls_model_groups_mesh(s);
    ls_calls_plan(s->run, mesh, &calls);
    ls_ordered_run own = ls_mesh_leaves(mesh, n * ls_mesh_cp(mesh), mesh->rank);
    own = ls_mesh_cp_leaves(mesh, mesh->rank, own);
    int64_t most = calls.most * calls.leaf;
    memset(losses, 0, (size_t)(n + 1) * sizeof *losses);
    for (int64_t done = 0; done < own.count; done += most, rounds--) {
        int64_t B = ls_min_i64(most, own.count - done);
        ls_step_batch windows;
        LS_TRY(st, read_windows(eval, s, own.first + done, B, n, &windows), out);
        LS_TRY(st, ls_step_loss(s->step, &windows, B, losses + own.first + done), out);
        if (ls_step_has_losses(s->step) && mesh->rank % ls_mesh_cp(mesh) == 0)
            losses[n] += (double)windows.counted;
    }
    for (; rounds > 0; rounds--)
        ls_step_idle(s->step);
    if (!ls_model_groups_is_first(s))
        memset(losses, 0, (size_t)(n + 1) * sizeof *losses);
    if (s->dp)
        LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, losses, n + 1), out);
    for (int64_t i = 0; i < n; i++)
        total += losses[i];
    total /= losses[n] > 0 ? losses[n] : 1;
    if (s->dp) /* what follows from it (checkpoint.best, train.patience) is decided once, for all ranks */
        LS_TRY(st, ls_dp_broadcast(s->dp, 0, &total, sizeof total), out);
    s->progress.val_loss = total;
    ls_best_loss_judge(s);
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_EVAL,
                                   .eval = {.step = s->step_number,
                                            .sequences = n,
                                            .val_loss = s->progress.val_loss,
                                            .best_step = s->progress.best.step,
                                            .since_best = s->progress.best.since,
                                            .patience = s->run->train.patience}});
out:
    return st;
}

/* With a fixed seed, so that samples of a run can be compared. */
ls_status ls_eval_sample(ls_eval *eval, ls_session *s, int64_t count)
{
    const char *prompt = s->run->eval.sample;
    const ls_sampling sampling = {
        .temperature = 0.8, .top_k = 0, .top_p = 0.95, .seed = (uint64_t)s->run->train.seed};
    const void *weights;
    ls_tokens ids;
    ls_status st = LS_OK;

    if (prompt[0] == '\0' || count == 0)
        return LS_OK;
    st = ls_save_whole_weights(s, &weights);
    if (st != LS_OK || s->mesh.rank > 0)
        return st;
    ls_tokens_init(&ids);
    ls_str_clear(&eval->sample);
    LS_TRY(st,
           ls_tokenizer_encode(s->data.tokenizer, prompt, strlen(prompt), LS_ENCODE_TEMPLATE, &ids),
           out);
    int64_t n = ids.count, first = n;
    LS_TRY(st, ls_tokens_reserve(&ids, count), out);
    ls_decode_forget(s->samples.decode); /* the weights have changed */
    for (int64_t i = 0; i < count && !stop_asked(s); i++, n++) {
        LS_TRY(st,
               ls_decode_next(s->samples.decode, weights, ids.ids, n, &sampling, (uint64_t)i,
                              &ids.ids[n]),
               out);
        if (ids.ids[n] == ls_tokenizer_separator(s->data.tokenizer))
            break; /* the model ended its document */
    }
    LS_TRY(st, ls_tokenizer_decode(s->data.tokenizer, ids.ids + first, n - first, &eval->sample),
           out);
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_SAMPLE,
                                   .sample = {.step = s->step_number,
                                              .prompt = prompt,
                                              .text = eval->sample.p,
                                              .text_len = eval->sample.len}});
out:
    ls_tokens_release(&ids);
    return st;
}
