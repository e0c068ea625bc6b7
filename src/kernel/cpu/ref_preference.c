/* ref_preference.c -- the preference row, for all tables of CPUs: in double, token after token, so
 * its bits depend on nothing else. Beside the head its work does not count. */
#include "kernel/cpu/rows_shared.h"

/* A sequence of the row. */
typedef struct sequence {
    const float *losses;
    const int32_t *targets, *start;
    int64_t T;
    int64_t prompt; /* tokens of a document before the first one that the answer's losses count */
} sequence;

/* As far as the first target lies in the second document: in the first one of ORPO the prompt has
 * targets, too. */
static int64_t prompt_of(const sequence *s)
{
    for (int64_t t = 0; t < s->T; t++)
        if (s->start[t] > 0 && s->targets[t] >= 0)
            return t - s->start[t];
    return 0;
}

static ls_preference_answers answers_of(const sequence *s)
{
    ls_preference_answers a = {.all = 0};

    for (int64_t t = 0; t < s->T; t++) {
        int which = s->start[t] > 0;
        if (s->targets[t] < 0)
            continue;
        if (!which) {
            a.all -= (double)s->losses[t];
            a.all_tokens++;
        }
        if (which || t >= s->prompt) {
            a.logp[which] -= (double)s->losses[t];
            a.tokens[which]++;
        }
    }
    return a;
}

static void put_weights(const sequence *s, const ls_preference_outcome *out, float *weights)
{
    for (int64_t t = 0; t < s->T; t++) {
        int which = s->start[t] > 0;
        double answer = which || t >= s->prompt ? out->weight[which] : 0;
        weights[t] = s->targets[t] < 0 ? 0 : (float)(answer + (which ? 0 : out->all));
    }
}

void ls_ref_preference(ls_stream *stream, const ls_preference *a)
{
    const ls_preference_reference none = {.desirable = 0};

    (void)stream;
    for (int64_t b = 0; b < a->B; b++) {
        sequence s = {.losses = a->losses + b * a->T,
                      .targets = a->targets + b * a->T,
                      .start = a->start + b * a->T,
                      .T = a->T};
        s.prompt = prompt_of(&s);
        ls_preference_answers answers = answers_of(&s);
        ls_preference_outcome out =
            ls_preference_of(&a->objective, &answers, a->references ? &a->references[b] : &none,
                             a->state ? (double)a->state->kl : 0);
        put_weights(&s, &out, a->weights + b * a->T);
        for (int i = 0; i < LS_PREFERENCE_NUMBERS; i++)
            a->numbers[i * a->stride + b] = (float)out.numbers[i];
    }
}
