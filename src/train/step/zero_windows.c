/* zero_windows.c -- ZeRO 2 and 3 on a device with a memory of its own: windows for the gradient of a
 * call and for the weights, and the sums of the own parts.
 *
 * The pages of a window are used again for other buckets (layout/page_reuse.h):
 *
 *     window of weights     unit 0 | 1 | 2 | 3 | 4 | 5
 *     memory                     a | b | a | b | a | b      unit 1 comes to b while 0 is read in a */
#include "train/step/step_impl.h"

static ls_status open_window(const ls_step *s, ls_window *window, const ls_page_reuse *t,
                             const char *what)
{
    void *base;
    ls_status st;

    LS_TRY(st, ls_device_window_open(ls_step_device(s), t->bytes, what, &base), out);
    *window = (ls_window){.base = base, .bytes = t->bytes};
    LS_TRY(st, ls_device_window_back(ls_step_device(s), base, 0, t->fixed, what), out);
    LS_TRY(st,
           ls_device_window_turn(ls_step_device(s), base, t->fixed, t->end - t->fixed, t->period,
                                 what),
           out);
    st = ls_device_window_back(ls_step_device(s), base, t->end, t->bytes - t->end, what);
out:
    return st;
}

ls_status ls_step_open_zero_windows(ls_step *s)
{
    const ls_dp_args *dp = ls_dp_args_of(s->args.dp);
    int64_t page = ls_device_describe(ls_step_device(s)).window_page;
    ls_page_reuse gradient = ls_page_reuse_gradient(s->args.model, &dp->mesh, dp->ordered, page);
    void *memory;
    ls_status st;

    LS_TRY(st, open_window(s, &s->grad_window, &gradient, "gradients"), out);
    s->grads[0] = s->grad_window.base;
    LS_TRY(st,
           ls_device_alloc(ls_step_device(s), ls_dp_sum_elements(dp) * (int64_t)sizeof(float),
                           "gradients", &memory),
           out);
    s->own_grad = memory;
    if (!ls_step_divides_weights(s))
        goto out;
    ls_page_reuse weights =
        ls_page_reuse_weights(s->args.model, &dp->mesh, ls_dtype_bytes(s->type), page);
    st = open_window(s, &s->zero_gather.window, &weights, "weights");
out:
    return st;
}

void ls_step_close_zero_windows(ls_step *step)
{
    ls_device_window_close(ls_step_device(step), step->grad_window.base);
    ls_device_window_close(ls_step_device(step), step->zero_gather.window.base);
    ls_device_free(ls_step_device(step), step->own_grad);
    step->grad_window = step->zero_gather.window = (ls_window){.base = NULL};
    step->own_grad = NULL;
}
