/* The preference row: the example of the header, weights against finite differences of the loss, what
 * counts and what does not, and numbers that are not ordinary. */
#include "kernel/kernel_check.h"

#include <math.h>

enum { B = 2, T = 12, N = LS_PREFERENCE_NUMBERS };

/* Two pairs: prompts of 3 and 1 tokens, answers of different lengths, and a rest that does not count. */
typedef struct pairs {
    float losses[B * T];
    int32_t targets[B * T], start[B * T];
    ls_preference_reference references[B];
    float weights[B * T], numbers[N * B];
} pairs;

static void put_document(pairs *p, int b, int begin, int prompt, int n, bool prompt_counts)
{
    for (int t = 0; t < n; t++) {
        int at = b * T + begin + t;
        p->start[at] = begin;
        bool answer = t + 1 >= prompt && t + 1 < n;
        p->targets[at] = answer || (prompt_counts && t + 1 < n) ? 5 : -1;
        p->losses[at] = p->targets[at] < 0 ? 0 : 0.3f + 0.1f * (float)((at * 7) % 11);
    }
}

static pairs make_pairs(const ls_preference_objective *o)
{
    pairs p = {.references = {{{-2.5f, -3.1f}, 1}, {{-1.0f, -0.4f}, 0}}};
    bool orpo = o->kind == LS_PREFERENCE_ORPO;

    for (int i = 0; i < B * T; i++) {
        p.targets[i] = -1;
        p.start[i] = T - 1;
    }
    put_document(&p, 0, 0, 3, 6, orpo);
    put_document(&p, 0, 6, 3, 5, false);
    put_document(&p, 1, 0, 1, 4, orpo);
    put_document(&p, 1, 4, 1, 7, false);
    return p;
}

static void run(pairs *p, const ls_preference_objective *o, const ls_kernels *k, float kl)
{
    ls_step_state state = {.kl = kl};
    ls_check c;

    ls_check_begin(&c, 1);
    k->preference(c.stream, &(ls_preference){.objective = *o,
                                             .losses = p->losses,
                                             .targets = p->targets,
                                             .start = p->start,
                                             .references = p->references,
                                             .state = &state,
                                             .weights = p->weights,
                                             .numbers = p->numbers,
                                             .B = B,
                                             .T = T,
                                             .stride = B});
    ls_check_end(&c);
}

static const ls_preference_objective objectives[] = {
    {.kind = LS_PREFERENCE_DPO, .beta = 0.5},
    {.kind = LS_PREFERENCE_DPO, .beta = 0.5, .label_smoothing = 0.2},
    {.kind = LS_PREFERENCE_ORPO, .beta = 0.7},
    {.kind = LS_PREFERENCE_KTO, .beta = 0.4, .desirable_weight = 1.5, .undesirable_weight = 0.5},
};

/* The loss of a pair when the loss of one token is so much larger, in double. */
static double loss_with(const pairs *p, const ls_preference_objective *o, int b, int at,
                        double more)
{
    ls_preference_answers a = {.all = 0};
    int prompt = b == 0 ? 2 : 0; /* the first row that counts */

    for (int i = b * T; i < (b + 1) * T; i++) {
        int which = p->start[i] > 0;
        double loss = (double)p->losses[i] + (i == at ? more : 0);
        if (p->targets[i] < 0)
            continue;
        if (!which) {
            a.all -= loss;
            a.all_tokens++;
        }
        if (which || i - b * T >= prompt) {
            a.logp[which] -= loss;
            a.tokens[which]++;
        }
    }
    /* ls_preference_of() rounds log-probabilities to float: the parts do not. */
    ls_preference_outcome out = {.all = 0};
    const ls_preference_reference *ref = &p->references[b];
    if (o->kind == LS_PREFERENCE_DPO)
        ls_preference_dpo(o, a.logp[0] - (double)ref->logp[0], a.logp[1] - (double)ref->logp[1],
                          &out);
    else if (o->kind == LS_PREFERENCE_ORPO)
        ls_preference_orpo(o, &a, &out);
    else
        ls_preference_kto(o, a.logp[0] - (double)ref->logp[0], 0.25, ref->desirable > 0, &out);
    return out.numbers[LS_PREFERENCE_LOSS];
}

LS_TEST(preference_weights_are_slopes_of_the_loss)
{
    const double step = 1e-5;

    for (size_t k = 0; k < LS_COUNT(objectives); k++) {
        const ls_preference_objective *o = &objectives[k];
        pairs p = make_pairs(o);
        run(&p, o, ls_check_reference(), 0.25f);
        for (int i = 0; i < B * T; i++) {
            double up = loss_with(&p, o, i / T, i, step), down = loss_with(&p, o, i / T, i, -step);
            LS_CHECK_NEAR(p.weights[i], (up - down) / (2 * step), 1e-5);
        }
        for (int b = 0; b < B; b++)
            LS_CHECK_NEAR(p.numbers[b], loss_with(&p, o, b, -1, 0), 1e-5);
    }
}

LS_TEST(preference_has_equal_bits_in_all_tables)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (size_t k = 0; k < LS_COUNT(objectives); k++) {
        pairs want = make_pairs(&objectives[k]);
        run(&want, &objectives[k], ls_check_reference(), 0.5f);
        for (int i = 0; i < n; i++) {
            pairs got = make_pairs(&objectives[k]);
            run(&got, &objectives[k], list[i], 0.5f);
            ls_check_same("weights", got.weights, want.weights, sizeof got.weights);
            ls_check_same("numbers", got.numbers, want.numbers, sizeof got.numbers);
        }
    }
}

/* The example in preference.h. */
LS_TEST(preference_dpo_example)
{
    const ls_preference_objective o = {.kind = LS_PREFERENCE_DPO, .beta = 0.1};
    const ls_preference_answers a = {.logp = {-8, -11}, .tokens = {4, 4}};
    const ls_preference_reference ref = {.logp = {-10, -10}};
    ls_preference_outcome out = ls_preference_of(&o, &a, &ref, 0);

    LS_CHECK_NEAR(out.numbers[LS_PREFERENCE_LOSS], 0.5544, 1e-4);
    LS_CHECK_NEAR(out.weight[0], 0.0426, 1e-4);
    LS_CHECK_NEAR(out.weight[1], -0.0426, 1e-4);
    LS_CHECK_NEAR(out.numbers[LS_PREFERENCE_CHOSEN], 0.2, 1e-6);
    LS_CHECK_NEAR(out.numbers[LS_PREFERENCE_REJECTED], -0.1, 1e-6);
    LS_CHECK_EQ(out.numbers[LS_PREFERENCE_RIGHT], 1);
}

/* Answers that are certain or impossible, far from the reference: no NaN, no Inf. */
LS_TEST(preference_of_extremes_is_finite)
{
    static const double logps[] = {0, -1e-12, -700, -1e5};

    for (size_t k = 0; k < LS_COUNT(objectives); k++)
        for (size_t i = 0; i < LS_COUNT(logps); i++)
            for (size_t j = 0; j < LS_COUNT(logps); j++) {
                const ls_preference_answers a = {.logp = {logps[i], logps[j]},
                                                 .tokens = {3, 2},
                                                 .all = logps[i],
                                                 .all_tokens = 5};
                const ls_preference_reference ref = {.logp = {-5, -5}, .desirable = (float)(i % 2)};
                ls_preference_outcome out = ls_preference_of(&objectives[k], &a, &ref, 0.1);
                LS_CHECK(isfinite(out.numbers[LS_PREFERENCE_LOSS]));
                LS_CHECK(isfinite(out.weight[0]) && isfinite(out.weight[1]) && isfinite(out.all));
            }
}

/* A pair with an empty answer says nothing, whatever its other answer is. */
LS_TEST(preference_of_an_empty_answer_is_nothing)
{
    for (size_t k = 0; k < LS_COUNT(objectives); k++) {
        const ls_preference_answers a = {
            .logp = {-3, 0}, .tokens = {3, 0}, .all = -3, .all_tokens = 3};
        const ls_preference_reference ref = {.desirable = 1};
        ls_preference_outcome out = ls_preference_of(&objectives[k], &a, &ref, 0);
        LS_CHECK_EQ(out.numbers[LS_PREFERENCE_LOSS], 0);
        LS_CHECK_EQ(out.weight[0], 0);
        LS_CHECK_EQ(out.all, 0);
    }
}
