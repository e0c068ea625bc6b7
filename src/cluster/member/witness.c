/* witness.c -- counts of answers. An answer counts for the next GOOD questions, so that one lost
 * datagram does not take it back. Node 7 is silent, dead_ns is 3 s, a question is asked each second:
 *
 *     silent for      1 s     2 s     3 s     4 s     5 s     6 s
 *     witnesses say   yes     yes     -       no      no      no
 *     limit           6 s     6 s     6 s     6 s     6 s     3 s: it counts as dead
 *
 * So a node that only the coordinator cannot reach has twice the time, and no more. */
#include "cluster/member/witness.h"

enum { GOOD = 3 }; /* questions for which an answer counts */

void ls_witness_heard(ls_witness *witness)
{
    *witness = (ls_witness){.asked_ns = 0};
}

bool ls_witness_is_due(const ls_witness *witness, int64_t suspect_ns, int64_t now)
{
    return witness->asked_ns == 0 || now - witness->asked_ns >= suspect_ns;
}

void ls_witness_asked(ls_witness *witness, int64_t now)
{
    witness->asked_ns = now;
}

/* An answer that comes after the node itself has spoken is of no use: its silence is over. */
void ls_witness_says(ls_witness *witness, bool reached, int64_t now)
{
    if (witness->asked_ns == 0)
        return; /* it has spoken meanwhile */
    if (reached)
        witness->reached_ns = now;
    witness->yes += reached;
    witness->no += !reached;
}

int64_t ls_witness_limit(const ls_witness *witness, int64_t dead_ns, int64_t suspect_ns,
                         int64_t now)
{
    bool reached = witness->reached_ns != 0 && now - witness->reached_ns <= GOOD * suspect_ns;

    return reached ? LS_WITNESS_PATIENCE * dead_ns : dead_ns;
}

const char *ls_witness_text(const ls_witness *witness, int64_t now, char *text, size_t cap)
{
    if (witness->yes > 0)
        snprintf(text, cap, "; others reached it %.1f s ago",
                 (double)(now - witness->reached_ns) / 1e9);
    else if (witness->no > 0)
        snprintf(text, cap, "; others, asked %d times, do not reach it either", witness->no);
    else
        snprintf(text, cap, "%s", "");
    return text;
}
