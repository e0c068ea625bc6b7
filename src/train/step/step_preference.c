/* step_preference.c -- steps whose sequences are pairs of answers: train.objective dpo, orpo, kto.
 *
 * The head's rank makes of each sequence the numbers of kernel/preference.h, the loss first. They
 * take the way of the losses of leaves: summed over each leaf, exchanged, and added up along the
 * tree over leaves, all in one array:
 *
 *     host_sums   loss of leaf 0 1 2 3 | chosen rewards of leaf 0 1 2 3 | ... | times of ranks
 *
 * kto compares with the mean of KL over the whole batch, which is known only after all ranks have
 * looked at it: so the step begins with a forward pass over its sequences, and an exchange. */
#include "train/step/step_impl.h"

#include "base/mem.h"
#include "plan/memory.h"

ls_status ls_step_open_preference(ls_step *s)
{
    const ls_run *run = s->args.run;
    const ls_calls *calls = &s->args.calls;
    ls_step_preference *p = &s->preference;
    int64_t held = ls_step_held(s), numbers = LS_PREFERENCE_NUMBERS;
    char *at;
    ls_status st = LS_OK;

    if (run->train.objective == LS_OBJECTIVE_LM)
        return LS_OK;
    LS_TRY(st,
           ls_device_alloc(ls_step_device(s), ls_memory_preference_bytes(run, s->args.model, calls),
                           "pairs", &p->memory),
           out);
    LS_TRY(st,
           ls_device_host_alloc(ls_step_device(s), ls_memory_preference_host_bytes(run, calls),
                                "pairs on their way", &p->host_memory),
           out);
    if (run->train.objective == LS_OBJECTIVE_KTO) {
        p->kl = ls_mem_array((size_t)(numbers * held + calls->sequences), sizeof *p->kl);
        LS_TRY(st, p->kl ? LS_OK : LS_ENOMEM, out);
    }
    p->objective =
        (ls_preference_objective){.kind = (ls_preference_kind)run->train.objective,
                                  .beta = run->preference.beta,
                                  .label_smoothing = run->preference.label_smoothing,
                                  .desirable_weight = run->preference.desirable_weight,
                                  .undesirable_weight = run->preference.undesirable_weight};
    at = p->memory;
    p->references = ls_step_cut(&at, held * (int64_t)sizeof *p->references);
    p->weights = ls_step_cut(&at, held * s->args.model->shape.T * (int64_t)sizeof *p->weights);
    p->numbers = ls_step_cut(&at, numbers * held * (int64_t)sizeof *p->numbers);
    p->sums = ls_step_cut(&at, numbers * held * (int64_t)sizeof *p->sums);
    at = p->host_memory;
    p->host_references = ls_step_cut(&at, held * (int64_t)sizeof *p->host_references);
    s->host_sums = (double *)(void *)at;
out:
    return st;
}

void ls_step_close_preference(ls_step *s)
{
    ls_device_free(ls_step_device(s), s->preference.memory);
    ls_device_host_free(ls_step_device(s), s->preference.host_memory,
                        ls_memory_preference_host_bytes(s->args.run, &s->args.calls));
    ls_mem_free(s->preference.kl);
}

void ls_step_copy_references(ls_step *s, const ls_preference_reference *from, int64_t count)
{
    size_t bytes = (size_t)count * sizeof *from;

    if (from)
        memcpy(s->preference.host_references, from, bytes);
    else
        memset(s->preference.host_references, 0, bytes);
    ls_stream_copy_in(s->args.stream, s->preference.references, s->preference.host_references,
                      (int64_t)bytes);
}

ls_pass_preference ls_step_pass_preference(const ls_step *s, int64_t first, int64_t stride)
{
    const ls_step_preference *p = &s->preference;

    if (!ls_step_has_pairs(s))
        return (ls_pass_preference){.weights = NULL};
    return (ls_pass_preference){.objective = p->objective,
                                .references = p->references + first,
                                .weights = p->weights + first * s->args.model->shape.T,
                                .numbers = p->numbers + first,
                                .stride = stride};
}

void ls_step_sum_numbers(ls_step *s)
{
    const ls_calls *calls = &s->now;
    int64_t own = calls->own;

    s->args.kernels->sum(s->args.stream, &(ls_sum){.x = s->preference.numbers,
                                                   .out = s->preference.sums,
                                                   .n = LS_PREFERENCE_NUMBERS * own * calls->leaf,
                                                   .segments = LS_PREFERENCE_NUMBERS * own});
    for (int k = 0; k < LS_PREFERENCE_NUMBERS; k++)
        ls_stream_copy_out(s->args.stream, s->host_sums + k * calls->leaves + calls->first,
                           s->preference.sums + k * own, own * (int64_t)sizeof(double));
}

ls_status ls_step_kl(ls_step *s, const ls_step_batch *batch, double *kl_out)
{
    const ls_calls *calls = &s->now;
    int64_t own = calls->own * calls->leaf;
    double *numbers = s->preference.kl, *leaves = numbers + LS_PREFERENCE_NUMBERS * own;
    ls_dp *ranks = ls_step_batch_dp(s);
    ls_status st = LS_OK;

    *kl_out = 0;
    if (s->preference.objective.kind != LS_PREFERENCE_KTO)
        return LS_OK;
    LS_TRY(st, ls_step_loss(s, batch, own, numbers), out);
    memset(leaves, 0, (size_t)calls->leaves * sizeof *leaves);
    for (int64_t i = 0; i < own; i++)
        leaves[calls->first + i / calls->leaf] += numbers[LS_PREFERENCE_KL * own + i];
    if (ranks)
        LS_TRY(st, ls_dp_sum_numbers(ranks, LS_F64, leaves, calls->leaves), out);
    *kl_out = ls_step_tree_sum(leaves, calls->leaves) / (double)s->counted;
    if (*kl_out < 0)
        *kl_out = 0;
out:
    return st;
}
