/* fault_inject.c -- what a drill's plan does to numbers (ls_step_fault, base/fault.h).
 *
 * One bit of the middle element of a tensor changes on one rank, as a worn memory cell would do it.
 * A tensor that ranks divide (mesh.zero) is refused: another rank's copy would overwrite the bit,
 * or the element is not here. */
#include "train/step/step_impl.h"

#include "base/fault.h"
#include "base/time.h"

bool ls_step_test_point(const char *what, int rank, int64_t step)
{
#ifdef LS_FAULTS
    char point[64], number[24] = "";

    if (step >= 0)
        snprintf(number, sizeof number, ".%lld", (long long)step);
    snprintf(point, sizeof point, "train.%s.%d%s", what, rank, number);
    return LS_FAULT(point);
#else
    (void)what;
    (void)rank;
    (void)step;
    return false;
#endif
}

static const ls_param *find(const ls_model *model, const char *name)
{
    bool any = strcmp(name, "*") == 0;

    for (int i = 0; i < model->n_params; i++)
        if (any ? model->params[i].trained >= 0 : strcmp(model->params[i].name, name) == 0)
            return &model->params[i];
    return NULL;
}

static ls_status flip(ls_step *s, const ls_fault_about *about, bool weights)
{
    const ls_param *p = find(s->args.model, about->tensor);
    float *array = weights ? s->state_memory[0] : s->grads[0], *at;
    ls_stream *stream = s->args.stream;
    uint32_t bits;
    ls_status st;

    if (!p || ls_step_divides(s) || (!weights && p->trained < 0))
        return ls_fail(LS_EUSAGE,
                       "the plan of faults cannot flip a bit of \"%s\": it is %s of this rank",
                       about->tensor, !p ? "no tensor" : "not whole in the memory");
    at = array + (weights ? p->first : p->trained) + p->count / 2;
    ls_stream_copy_out(stream, &bits, at, sizeof bits);
    LS_TRY(st, ls_stream_sync(stream, ls_step_deadline()), out);
    bits ^= 1u << about->bit;
    LS_TRY(st, ls_step_send(s, at, &bits, sizeof bits), out);
    if (weights)
        st = ls_step_weights_changed(s);
out:
    return st;
}

ls_status ls_step_fault(ls_step *s, int point)
{
    ls_fault_about about;
    ls_fault_deed deed;

    if (!ls_fault_planned)
        return LS_OK;
    deed = ls_fault_visit((ls_fault_point)point, &about);
    if (deed == LS_FAULT_ERROR)
        return ls_fault_fail((ls_fault_point)point);
    return deed == LS_FAULT_FLIP ? flip(s, &about, point == LS_FAULT_AT_UPDATE) : LS_OK;
}
