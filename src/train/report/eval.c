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
    ls_mem_free(eval->references);
    eval->references = NULL;
    ls_calls_plan(session->run, ls_model_groups_mesh(session), &calls);
    size_t held = (size_t)(calls.most * calls.leaf), n = held * (size_t)session->model.shape.T;
    size_t numbers = (size_t)ls_step_numbers(session->step);
    eval->windows = ls_mem_array(3 * n, sizeof *eval->windows);
    eval->losses =
        ls_mem_array(numbers * (size_t)validation_sequences(session) + 1, sizeof *eval->losses);
    if (ls_corpus_has_pairs(session->data.corpus)) {
        eval->references = ls_mem_array(held, sizeof *eval->references);
        if (!eval->references)
            return LS_ENOMEM;
    }
    return eval->windows && eval->losses ? LS_OK : LS_ENOMEM;
}

void ls_eval_release(ls_eval *eval)
{
    ls_mem_free(eval->windows);
    ls_mem_free(eval->losses);
    ls_mem_free(eval->references);
    ls_str_release(&eval->sample);
}

/* Window i of n to its place in a call: of all pairs, or of those for validation. */
static ls_status read_window(const ls_eval *e, const ls_session *s, const ls_eval_windows *which,
                             int64_t i, int64_t place, const ls_step_batch *to)
{
    const ls_corpus *corpus = s->data.corpus;
    int64_t T = s->model.shape.T, all = ls_corpus_validation_windows(corpus, T);
    int64_t index = which->pairs ? i : ls_sample_order_spread(all, which->n, i);
    int32_t *tokens = (int32_t *)(uintptr_t)to->tokens + place * T;
    int32_t *targets = (int32_t *)(uintptr_t)to->targets + place * T;
    int32_t *start = to->start ? (int32_t *)(uintptr_t)to->start + place * T : NULL;

    if (which->pairs)
        return ls_corpus_pair(corpus, index, tokens, targets, start);
    if (e->references)
        e->references[place] = s->data.references[ls_corpus_validation_pair(corpus, index)];
    return ls_corpus_validation(corpus, index, T, tokens, targets, start);
}

/* Windows first .. first+B-1. */
static ls_status read_windows(const ls_eval *e, const ls_session *s, const ls_eval_windows *which,
                              int64_t first, int64_t B, ls_step_batch *windows_out)
{
    int64_t T = s->model.shape.T;
    int32_t *targets = e->windows + B * T, *start = targets + B * T;
    ls_step_batch windows = {.tokens = e->windows,
                             .targets = targets,
                             .start = ls_corpus_isolates(s->data.corpus) ? start : NULL,
                             .restart = !s->progress.positions_run_on,
                             .references = which->pairs ? NULL : e->references};
    ls_status st = LS_OK;

    for (int64_t i = 0; i < B; i++)
        LS_TRY(st, read_window(e, s, which, first + i, i, &windows), out);
    windows.counted = e->references ? B : ls_corpus_counted(targets, B * T);
    *windows_out = windows;
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

/* The numbers of B windows from this rank's call to their places among those of all n. */
static ls_status measure_call(const ls_eval *e, ls_session *s, const ls_eval_windows *which,
                              int64_t first, int64_t B, double *numbers, double *counted)
{
    int64_t rows = ls_step_numbers(s->step);
    double *own = ls_mem_array((size_t)(rows * B), sizeof *own);
    ls_step_batch windows;
    ls_status st = own ? LS_OK : LS_ENOMEM;

    LS_TRY(st, st, out);
    LS_TRY(st, read_windows(e, s, which, first, B, &windows), out);
    LS_TRY(st, ls_step_loss(s->step, &windows, B, own), out);
    for (int64_t k = 0; k < rows; k++)
        memcpy(numbers + k * which->n + first, own + k * B, (size_t)B * sizeof *own);
    const ls_mesh *mesh = ls_model_groups_mesh(s);
    if (ls_step_has_losses(s->step) && mesh->rank % ls_mesh_cp(mesh) == 0)
        *counted += (double)windows.counted;
out:
    ls_mem_free(own);
    return st;
}

/* Of ranks that share windows (mesh.cp) each has a part of their losses, and the first one counts their
 * targets; of a tp group the first rank speaks. */
ls_status ls_eval_numbers(const ls_eval *eval, ls_session *s, const ls_eval_windows *which,
                          double *numbers_out)
{
    ls_calls calls;
    int64_t n = which->n, rows = ls_step_numbers(s->step), rounds = validation_rounds(s, n);
    size_t bytes = (size_t)(rows * n + 1) * sizeof *numbers_out;
    ls_status st = LS_OK;

    const ls_mesh *mesh = ls_model_groups_mesh(s);
    ls_calls_plan(s->run, mesh, &calls);
    ls_ordered_run own = ls_mesh_leaves(mesh, n * ls_mesh_cp(mesh), mesh->rank);
    own = ls_mesh_cp_leaves(mesh, mesh->rank, own);
    int64_t most = calls.most * calls.leaf;
    memset(numbers_out, 0, bytes);
    for (int64_t done = 0; done < own.count; done += most, rounds--)
        LS_TRY(st,
               measure_call(eval, s, which, own.first + done, ls_min_i64(most, own.count - done),
                            numbers_out, &numbers_out[rows * n]),
               out);
    for (; rounds > 0; rounds--)
        ls_step_idle(s->step);
    if (!ls_model_groups_is_first(s))
        memset(numbers_out, 0, bytes);
    if (s->dp)
        st = ls_dp_sum_numbers(s->dp, LS_F64, numbers_out, rows * n + 1);
out:
    return st;
}

/* kto: the loss of a sample depends on the mean KL of all. */
static void lose_with_kl(const ls_session *s, double *numbers, int64_t n)
{
    const ls_preference_objective o = {.kind = LS_PREFERENCE_KTO,
                                       .beta = s->run->preference.beta,
                                       .desirable_weight = s->run->preference.desirable_weight,
                                       .undesirable_weight = s->run->preference.undesirable_weight};
    double kl = 0;

    for (int64_t i = 0; i < n; i++)
        kl += numbers[LS_PREFERENCE_KL * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        bool desirable = numbers[LS_PREFERENCE_IS_CHOSEN * n + i] > 0;
        double reward =
            numbers[(desirable ? LS_PREFERENCE_CHOSEN : LS_PREFERENCE_REJECTED) * n + i];
        ls_preference_outcome out = {.all = 0};
        ls_preference_kto(&o, reward / o.beta, kl > 0 ? kl : 0, desirable, &out);
        numbers[LS_PREFERENCE_LOSS * n + i] = out.numbers[LS_PREFERENCE_LOSS];
    }
}

ls_status ls_eval_loss(ls_eval *eval, ls_session *s)
{
    ls_preference_kind kind = (ls_preference_kind)s->run->train.objective;
    int64_t n = validation_sequences(s), rows = ls_step_numbers(s->step);
    double sums[LS_PREFERENCE_NUMBERS] = {0}, *losses = eval->losses;
    ls_status st = LS_OK;

    if (n == 0)
        return LS_OK;
    LS_TRY(st, ls_eval_numbers(eval, s, &(ls_eval_windows){.n = n}, losses), out);
    if (kind == LS_PREFERENCE_KTO)
        lose_with_kl(s, losses, n);
    for (int64_t k = 0; k < rows; k++)
        for (int64_t i = 0; i < n; i++)
            sums[k] += losses[k * n + i];
    s->progress.val_loss = sums[0] / (losses[rows * n] > 0 ? losses[rows * n] : 1);
    if (s->dp) /* what follows from it (checkpoint.best, train.patience) is decided once, for all ranks */
        LS_TRY(st, ls_dp_broadcast(s->dp, 0, &s->progress.val_loss, sizeof s->progress.val_loss),
               out);
    ls_best_loss_judge(s);
    ls_session_emit(
        s, &(ls_event){.kind = LS_EVENT_EVAL,
                       .eval = {.step = s->step_number,
                                .sequences = n,
                                .val_loss = s->progress.val_loss,
                                .best_step = s->progress.best.step,
                                .since_best = s->progress.best.since,
                                .patience = s->run->train.patience,
                                .preference = ls_event_preference_of(kind, sums, (double)n)}});
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
