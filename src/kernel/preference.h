/* preference.h -- losses of preference fine-tuning: DPO, ORPO and KTO.
 *
 * A sample holds two answers to one prompt. Of each is known what the model thinks of it: the
 * log-probability of its tokens, their sum, and how many there are; and the same sum under the
 * reference, the model as it was before training. The functions give the loss of a sample and its
 * derivative by the two sums; s(x) is 1 / (1 + exp(-x)), r1 and r2 are log-probability minus
 * reference of the two answers.
 *
 *   dpo   d = beta (r1 - r2), chosen and rejected. Loss: -log s(d). With label_smoothing e, the
 *         share of pairs that are thought to be the wrong way round ("robust DPO"):
 *         ((e log s(-d)) - (1 - e) log s(d)) / (1 - 2 e)
 *   orpo  no reference; p1 and p2: exp of the mean log-probability of a token of the answer.
 *         Loss: -(mean log-probability of the chosen one's tokens, prompt included)
 *               - beta log s(log(p1 / (1 - p1)) - log(p2 / (1 - p2)))
 *   kto   the first answer is desirable or not; the second one belongs to another prompt, and
 *         only measures kl, the mean of r2 over the batch where that is above 0, which has no
 *         gradient. Loss: desirable_weight (1 - s(beta (r1 - kl))), or
 *         undesirable_weight (1 - s(beta (kl - r1)))
 *
 * Example, dpo with beta 0.1: r1 = 2, r2 = -1: d = 0.3, loss 0.554, and by r1 -0.0426. The loss of a
 * token is minus its log-probability, so it has the weight +0.0426 in the gradient in the chosen
 * answer, and -0.0426 in the rejected one. The same code compiles for CUDA. */
#pragma once
#include "base/rng.h"

#include <math.h>

typedef enum ls_preference_kind {
    LS_PREFERENCE_NONE, /* train.objective: lm; a token's loss is the loss */
    LS_PREFERENCE_DPO,
    LS_PREFERENCE_ORPO,
    LS_PREFERENCE_KTO
} ls_preference_kind;

typedef struct ls_preference_objective {
    ls_preference_kind kind;
    double beta, label_smoothing, desirable_weight, undesirable_weight;
} ls_preference_objective;

/* What is known of a sample beside its tokens. */
typedef struct ls_preference_reference {
    float logp[2];   /* of the two answers under the reference */
    float desirable; /* kto: 1 or 0 */
} ls_preference_reference;

/* What is reported of a sample; over many of them, sums. */
enum {
    LS_PREFERENCE_LOSS,
    LS_PREFERENCE_CHOSEN, /* rewards: beta r1, or with orpo beta times the mean log-probability */
    LS_PREFERENCE_REJECTED,
    LS_PREFERENCE_RIGHT, /* 1 where the chosen answer has the larger reward */
    LS_PREFERENCE_LOGP_CHOSEN,
    LS_PREFERENCE_LOGP_REJECTED,
    LS_PREFERENCE_IS_CHOSEN, /* kto: 1 where the answer is desirable; then the numbers of the
                              * rejected one are 0, else those of the chosen one */
    LS_PREFERENCE_KL,        /* kto: r2 */
    LS_PREFERENCE_NUMBERS
};

/* The two answers of a sample under the model. */
typedef struct ls_preference_answers {
    double logp[2]; /* sums over the tokens of each answer */
    double tokens[2];
    double all, all_tokens; /* orpo: of the first one with its prompt */
} ls_preference_answers;

/* What comes of a sample: its numbers, and the weights of the losses of tokens. */
typedef struct ls_preference_outcome {
    double numbers[LS_PREFERENCE_NUMBERS];
    double weight[2]; /* of the tokens of each answer, */
    double all;       /* and of all tokens of the first document beside it */
} ls_preference_outcome;

/* 1 / (1 + exp(-x)) and -log of it, without overflow. */
LS_RNG_FN double ls_preference_sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

LS_RNG_FN double ls_preference_minus_log_sigmoid(double x)
{
    return x >= 0 ? log1p(exp(-x)) : log1p(exp(x)) - x;
}

LS_RNG_FN void ls_preference_dpo(const ls_preference_objective *o, double r1, double r2,
                                 ls_preference_outcome *out)
{
    double e = o->label_smoothing, d = o->beta * (r1 - r2);
    double slope = -((1 - e) * ls_preference_sigmoid(-d) + e * ls_preference_sigmoid(d));

    out->numbers[LS_PREFERENCE_LOSS] =
        ((1 - e) * ls_preference_minus_log_sigmoid(d) - e * ls_preference_minus_log_sigmoid(-d)) /
        (1 - 2 * e);
    out->weight[0] = -o->beta * slope / (1 - 2 * e);
    out->weight[1] = -out->weight[0];
}

/* A mean log-probability below 0: at 0 itself the odds would be infinite. */
LS_RNG_FN double ls_preference_below_zero(double logp)
{
    return logp < -1e-9 ? logp : -1e-9;
}

LS_RNG_FN void ls_preference_orpo(const ls_preference_objective *o, const ls_preference_answers *a,
                                  ls_preference_outcome *out)
{
    double l1 = ls_preference_below_zero(a->logp[0] / a->tokens[0]);
    double l2 = ls_preference_below_zero(a->logp[1] / a->tokens[1]);
    double rest1 = -expm1(l1), rest2 = -expm1(l2); /* 1 - p */
    double odds = l1 - l2 - (log(rest1) - log(rest2));
    double slope = -o->beta * ls_preference_sigmoid(-odds);

    out->numbers[LS_PREFERENCE_LOSS] =
        -a->all / a->all_tokens + o->beta * ls_preference_minus_log_sigmoid(odds);
    out->weight[0] = -slope / rest1 / a->tokens[0];
    out->weight[1] = slope / rest2 / a->tokens[1];
    out->all = 1 / a->all_tokens;
}

LS_RNG_FN void ls_preference_kto(const ls_preference_objective *o, double r1, double kl,
                                 bool desirable, ls_preference_outcome *out)
{
    double weight = desirable ? o->desirable_weight : o->undesirable_weight;
    double side = desirable ? 1 : -1, s = ls_preference_sigmoid(o->beta * side * (r1 - kl));

    out->numbers[LS_PREFERENCE_LOSS] = weight * (1 - s);
    out->weight[0] = weight * o->beta * side * s * (1 - s);
}

/* kl: of kto. An answer without a token that counts has no say: the numbers are 0. */
LS_RNG_FN ls_preference_outcome ls_preference_of(const ls_preference_objective *o,
                                                 const ls_preference_answers *a,
                                                 const ls_preference_reference *ref, double kl)
{
    ls_preference_outcome out = {{0}, {0}, 0};
    bool kto = o->kind == LS_PREFERENCE_KTO, orpo = o->kind == LS_PREFERENCE_ORPO;
    bool desirable = ref->desirable > 0;
    /* Rounded as the reference is: where nothing has changed, the difference is 0. */
    double r1 = orpo ? 0 : (double)((float)a->logp[0] - ref->logp[0]);
    double r2 = orpo ? 0 : (double)((float)a->logp[1] - ref->logp[1]);
    double *n = out.numbers;

    if (a->tokens[0] <= 0 || a->tokens[1] <= 0)
        return out;
    if (o->kind == LS_PREFERENCE_DPO)
        ls_preference_dpo(o, r1, r2, &out);
    else if (orpo)
        ls_preference_orpo(o, a, &out);
    else
        ls_preference_kto(o, r1, kl, desirable, &out);
    n[LS_PREFERENCE_LOGP_CHOSEN] = orpo ? a->logp[0] / a->tokens[0] : a->logp[0];
    n[LS_PREFERENCE_LOGP_REJECTED] = orpo ? a->logp[1] / a->tokens[1] : a->logp[1];
    n[LS_PREFERENCE_CHOSEN] = o->beta * (orpo ? n[LS_PREFERENCE_LOGP_CHOSEN] : r1);
    n[LS_PREFERENCE_REJECTED] = o->beta * (orpo ? n[LS_PREFERENCE_LOGP_REJECTED] : r2);
    n[LS_PREFERENCE_RIGHT] = n[LS_PREFERENCE_CHOSEN] > n[LS_PREFERENCE_REJECTED] ? 1 : 0;
    n[LS_PREFERENCE_IS_CHOSEN] = 1;
    if (kto) {
        n[LS_PREFERENCE_IS_CHOSEN] = desirable;
        n[LS_PREFERENCE_KL] = r2;
        n[LS_PREFERENCE_RIGHT] = 0;
        n[LS_PREFERENCE_LOGP_REJECTED] = desirable ? 0 : a->logp[0];
        n[LS_PREFERENCE_REJECTED] = desirable ? 0 : o->beta * r1;
        n[LS_PREFERENCE_LOGP_CHOSEN] = desirable ? a->logp[0] : 0;
        n[LS_PREFERENCE_CHOSEN] = desirable ? o->beta * r1 : 0;
    }
    return out;
}
