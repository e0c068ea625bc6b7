/* sched_text.c -- see sched_text.h. */
#include "comm/algo/sched_text.h"

#include <stdio.h>

int64_t ls_sched_text_sent(const ls_sched *sched)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < sched->count; i++)
        if (sched->steps[i].act == LS_SCHED_SEND)
            sum += sched->steps[i].count;
    return sum;
}

static const char *const act_names[] = {"send", "recv", "recv_add", "copy", "combine"};
static const char *const buffer_names[] = {"in", "out", "tmp"};

char *ls_sched_text(const ls_sched *sched, int32_t step, char *text, size_t bytes)
{
    const ls_sched_step *s = &sched->steps[step];
    bool writes = s->act != LS_SCHED_SEND;
    bool reads = s->act != LS_SCHED_RECV && s->act != LS_SCHED_COMBINE;
    char to[64] = "", from[64] = "", peer[48] = "", after[48] = "", parts[32] = "";

    if (writes)
        snprintf(to, sizeof to, " %s[%lld+%lld] =", buffer_names[s->to], (long long)s->to_at,
                 (long long)s->count);
    if (reads)
        snprintf(from, sizeof from, " %s[%lld+%lld]", buffer_names[s->from], (long long)s->from_at,
                 (long long)s->count);
    if (s->act == LS_SCHED_COMBINE)
        snprintf(parts, sizeof parts, " %d parts", (int)s->parts);
    if (s->peer >= 0)
        snprintf(peer, sizeof peer, " %s %d#%d", s->act == LS_SCHED_SEND ? "to" : "from",
                 (int)s->peer, (int)s->number);
    if (s->after[1] >= 0)
        snprintf(after, sizeof after, " after %d and %d", (int)s->after[0], (int)s->after[1]);
    else if (s->after[0] >= 0)
        snprintf(after, sizeof after, " after %d", (int)s->after[0]);
    snprintf(text, bytes, "%d: %s%s%s%s%s%s%s", (int)step, act_names[s->act], to, from, parts, peer,
             after, s->last ? " (last)" : "");
    return text;
}
