/* comm_world.c -- see comm_world.h. */
#include "parallel/comm_world.h"

#include <math.h>
#include "base/mem.h"
#include "harness.h"

/* By the name, because a part may have fewer tensors than the whole. */
static int64_t number_of(const char *name)
{
    int64_t sum = 0;

    for (; *name; name++)
        sum += *name;
    return sum;
}

static void start_weights(side *s)
{
    for (int i = 0; i < s->model.n_params; i++) {
        const ls_param *p = &s->model.params[i];
        int64_t number = number_of(p->name);
        float *w = s->w + p->first;
        ls_model_start(p, 3, 0, p->count, w);
        for (int64_t k = 0, run; k < p->count && p->start != LS_START_NORMAL; k++)
            w[k] += 0.1f *
                    (float)((ls_param_box_whole(&p->box, p->shape, k, &run) * 7 + number) % 5 - 2);
    }
}

static void start_side(side *s)
{
    s->w = ls_mem_array((size_t)s->model.flat, sizeof *s->w);
    s->grad = ls_mem_array((size_t)ls_pass_grad_elements(&s->model, false), sizeof *s->grad);
    s->w_read = s->w;
    LS_CHECK(s->w && s->grad);
    start_weights(s);
    if (s->args.type == LS_F32)
        return;
    s->w_read = ls_mem_array((size_t)s->model.flat, 2);
    LS_CHECK(s->w_read);
    s->args.kernels->cast(s->stream, &(ls_cast){.from_type = LS_F32,
                                                .to_type = s->args.type,
                                                .from = s->w,
                                                .to = s->w_read,
                                                .n = s->model.flat});
}

int64_t open_side(side *s, int64_t vocab, ls_model_split split, const char *kernels,
                  ls_pass_args args)
{
    const ls_kernels *rows;

    s->borrowed = args.stream;
    s->stream = args.stream ? args.stream : open_stream();
    s->device = ls_stream_device(s->stream);
    LS_CHECK_OK(ls_kernel_pick(kernels, &rows));
    LS_CHECK_OK(ls_model_init_split(&s->model, &s->run, vocab, split));
    s->args = args;
    s->args.model = &s->model;
    s->args.kernels = rows;
    s->args.stream = s->stream;
    s->args.training = true;
    s->args.recompute_blocks = s->model.shape.L;
    s->T = args.T;
    s->documents = false;
    int64_t before = ls_device_used_bytes(s->device);
    LS_CHECK_OK(ls_pass_open(&s->pass, &s->args));
    int64_t taken = ls_device_used_bytes(s->device) - before;
    start_side(s);
    return taken;
}

ls_stream *open_stream(void)
{
    ls_device *device;
    ls_stream *stream;

    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&stream, device));
    return stream;
}

void close_stream(ls_stream *stream)
{
    ls_device *device = stream ? ls_stream_device(stream) : NULL;

    ls_stream_free(stream);
    if (device)
        ls_device_close(device);
}

void move_by_device(ls_mp_group *group, ls_stream *stream, const char *axis, bool halves)
{
    ls_device *device = ls_stream_device(stream);
    int64_t before = ls_device_used_bytes(device);

    LS_CHECK_OK(ls_mp_group_by_device(
        group, &(ls_mp_group_device){
                   .stream = stream, .provider = "host", .axis = axis, .halves = halves}));
    LS_CHECK_EQ(ls_device_used_bytes(device) - before, ls_mp_group_device_bytes());
}

ls_pass_call call_of(side *s)
{
    return (ls_pass_call){.w = s->w_read,
                          .tokens = s->tokens,
                          .targets = s->targets,
                          .start = s->documents ? s->start : NULL,
                          .restart = true,
                          .B = s->args.B,
                          .T = s->args.T,
                          .dropout = true,
                          .state = &s->state,
                          .losses = s->losses,
                          .grad = s->grad,
                          .leaves = s->args.leaves};
}

void train_twice(side *s)
{
    ls_pass_call call = call_of(s);

    for (int i = 0; i < 2; i++) {
        call.accumulate = i > 0;
        ls_pass_forward(s->pass, &call);
        if (s->args.late) {
            ls_pass_backward_first(s->pass, &call);
            ls_pass_backward_second(s->pass, &call);
        } else {
            ls_pass_backward(s->pass, &call);
        }
    }
    LS_CHECK_OK(ls_stream_sync(s->stream, INT64_MAX));
}

void close_side(side *s)
{
    ls_pass_close(s->pass);
    ls_model_release(&s->model);
    ls_mem_free(s->w_read == s->w ? NULL : s->w_read);
    ls_mem_free(s->w);
    ls_mem_free(s->grad);
    if (!s->borrowed)
        close_stream(s->stream);
}

/* A key's bias moves all scores of a query alike: its gradient is nothing but rounding. */
static double noise_of(const char *name)
{
    return strstr(name, "k_proj.bias") ? 1e-7 : 1e-9;
}

void check_gradient(const side *whole, const side *part, const ls_param *p, double tolerance,
                    const char *who)
{
    const ls_param *all = ls_model_same(&whole->model, p);
    double off = 0, size = 0;

    LS_CHECK_EQ(p->box.shape[0], all->shape[0]);
    LS_CHECK_EQ(p->box.shape[1], all->shape[1]);
    for (int64_t k = 0, run; k < p->count; k++) {
        int64_t at = ls_param_box_whole(&p->box, p->shape, k, &run);
        LS_CHECK(run >= 1 && at < all->count);
        if (part->w[p->first + k] != whole->w[all->first + at])
            ls_test_fail(__FILE__, __LINE__, "%s: %s starts differently", who, p->name);
        if (p->trained < 0)
            continue;
        double want = (double)whole->grad[all->trained + at];
        double d = (double)part->grad[p->trained + k] - want;
        off += d * d;
        size += want * want;
    }
    if (!(sqrt(off) <= tolerance * sqrt(size) + noise_of(p->name)))
        ls_test_fail(__FILE__, __LINE__, "%s: %s is off by %.3g of %.3g", who, p->name, sqrt(off),
                     sqrt(size));
}
