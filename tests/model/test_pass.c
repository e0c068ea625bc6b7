/* test_pass.c -- the whole model: its gradient against finite differences, fast against reference.
 */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "kernel/check.h"
#include "model/pass.h"
#include "model/tiny.h"

enum { VOCAB = 11, B = 4 };

typedef struct rig {
    ls_check c;
    ls_run run;
    ls_model model;
    ls_pass *pass;
    float *w, *grad, *losses;
    int32_t *tokens, *targets;
    ls_step_state *state;
    int64_t M;
} rig;

static void open_rig(rig *r, const char *isa, int threads, double dropout)
{
    const ls_kernels *kernels;

    ls_check_begin(&r->c, threads);
    r->run = ls_tiny_run();
    r->run.model.dropout = dropout;
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    LS_CHECK_OK(ls_kernel_pick(isa, &kernels));
    LS_CHECK_OK(ls_pass_open(&r->pass, &(ls_pass_args){.model = &r->model,
                                                       .kernels = kernels,
                                                       .stream = r->c.stream,
                                                       .B = B,
                                                       .T = 13,
                                                       .leaves = B,
                                                       .training = true}));
    r->M = B * 13;
    r->w = ls_check_floats(&r->c, "weights", r->model.flat, 0);
    memset(r->w, 0, (size_t)r->model.flat * sizeof *r->w);
    for (int i = 0; i < r->model.n_params; i++) {
        const ls_param *p = &r->model.params[i];
        ls_model_start(p, 3, 0, p->count, r->w + p->first);
        for (int64_t k = 0; k < p->count && p->start != LS_START_NORMAL; k++)
            r->w[p->first + k] += 0.1f * (float)((k * 7 + i) % 5 - 2); /* not all equal */
    }
    r->grad = ls_check_floats(&r->c, "gradients", ls_pass_grad_elements(&r->model, true), 0);
    r->losses = ls_check_floats(&r->c, "losses", r->M, 0);
    r->tokens = ls_check_ints(&r->c, "tokens", r->M, VOCAB);
    r->targets = ls_check_ints(&r->c, "targets", r->M, VOCAB);
    r->targets[5] = -1;
    r->state = ls_check_bytes(&r->c, "state", sizeof *r->state);
    *r->state = (ls_step_state){.key = {3, 4}, .grad_scale = 1.0f / (float)r->M};
}

static void close_rig(rig *r)
{
    ls_pass_close(r->pass);
    ls_model_release(&r->model);
    ls_check_end(&r->c);
}

static ls_pass_call call_of(const rig *r, bool ordered, int64_t leaves)
{
    return (ls_pass_call){.w = r->w,
                          .tokens = r->tokens,
                          .targets = r->targets,
                          .B = B,
                          .T = 13,
                          .dropout = true,
                          .state = r->state,
                          .losses = r->losses,
                          .grad = r->grad,
                          .leaves = leaves,
                          .ordered = ordered};
}

static double loss_of(rig *r, const ls_pass_call *call)
{
    double sum = 0;

    ls_pass_forward(r->pass, call);
    ls_pass_backward(r->pass, call);
    ls_check_sync(&r->c);
    for (int64_t i = 0; i < r->M; i++)
        sum += (double)r->losses[i];
    return sum / (double)r->M;
}

/* Elements of every parameter are moved a little; the loss must move as the gradient says. */
static void check_gradient(double dropout)
{
    rig r;
    const float h = 4e-3f;

    open_rig(&r, "reference", 1, dropout);
    ls_pass_call call = call_of(&r, true, B);
    loss_of(&r, &call);
    ls_pass_tie(r.pass, r.grad);
    float *grad = ls_check_copy(&r.c, "gradient kept", r.grad, r.model.flat);
    for (int i = 0; i < r.model.n_params; i++) {
        const ls_param *p = &r.model.params[i];
        for (int64_t k = i % 3; k < p->count; k += p->count / 4 + 1) {
            float *x = &r.w[p->first + k], kept = *x;
            *x = kept + h;
            double up = loss_of(&r, &call);
            *x = kept - h;
            double down = loss_of(&r, &call);
            *x = kept;
            double want = (up - down) / (2 * (double)h), got = (double)grad[p->first + k];
            if (fabs(got - want) > 2e-4 + 0.02 * fabs(want))
                ls_test_fail(__FILE__, __LINE__, "%s[%lld]: gradient %.6g, differences say %.6g",
                             p->name, (long long)k, got, want);
        }
    }
    close_rig(&r);
}

LS_TEST_SECONDS(pass_gradient_matches_finite_differences, 60)
{
    check_gradient(0);
}

LS_TEST_SECONDS(pass_gradient_matches_finite_differences_with_dropout, 60)
{
    check_gradient(0.2);
}

LS_TEST(pass_fast_kernels_agree_with_the_reference)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    rig want;

    open_rig(&want, "reference", 1, 0.1);
    ls_pass_call call = call_of(&want, false, 1);
    loss_of(&want, &call);
    for (int i = 0; i < n; i++) {
        rig got;
        open_rig(&got, list[i]->name, 2, 0.1);
        ls_pass_call same = call_of(&got, false, 1);
        loss_of(&got, &same);
        ls_check_near("losses", got.losses, want.losses, want.M, 1e-5);
        for (int k = 0; k < want.model.n_params; k++) {
            const ls_param *p = &want.model.params[k];
            ls_check_near(p->name, got.grad + p->first, want.grad + p->first, p->count, 1e-5);
        }
        close_rig(&got);
    }
    close_rig(&want);
}

/* A token's result does not depend on what stands after it, nor on the other sequences. */
LS_TEST(pass_looks_only_back)
{
    rig r;

    open_rig(&r, "auto", 1, 0);
    ls_pass_call call = call_of(&r, false, 1);
    ls_pass_loss(r.pass, &call);
    float *before = ls_check_copy(&r.c, "losses before", r.losses, r.M);
    r.tokens[13 + 7] = (r.tokens[13 + 7] + 1) % VOCAB; /* sequence 1, position 7 */
    ls_pass_loss(r.pass, &call);
    for (int64_t i = 0; i < r.M; i++)
        if (i < 13 + 7 || i >= 26)
            LS_CHECK(r.losses[i] == before[i]);
    LS_CHECK(r.losses[13 + 7] != before[13 + 7]);
    close_rig(&r);
}

LS_TEST(pass_logits_agree_with_losses)
{
    rig r;
    float logits[VOCAB];

    open_rig(&r, "auto", 1, 0);
    ls_pass_call call = call_of(&r, false, 1);
    ls_pass_loss(r.pass, &call);
    float loss = r.losses[9];
    int64_t T = 10; /* a shorter window of the first sequence: positions 0..9 */
    ls_pass_call shorter = call;
    shorter.B = 1;
    shorter.T = T;
    ls_pass_logits(r.pass, &shorter, 9, logits);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    LS_CHECK_NEAR(log(sum) - (double)logits[r.targets[9]], (double)loss, 1e-5);
    close_rig(&r);
}
