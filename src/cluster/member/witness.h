/* witness.h -- whether other nodes reach one that is silent, before it counts as dead.
 *
 * A node whose heartbeats do not reach the coordinator may be dead, or only the way between the
 * two may be. So others are asked whether they reach it (probe.h), again and again while it is
 * silent. One that a witness reaches is waited for twice as long: its ranks may be training on. Not
 * longer, because if they are not, all others wait for them. Rules and numbers only; rendezvous.h
 * carries the messages. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_WITNESS_ASKED = 2 };    /* nodes that are asked at a time */
enum { LS_WITNESS_PATIENCE = 2 }; /* times that a node that is reached may be silent longer */

typedef struct ls_witness {
    int64_t asked_ns;   /* when others were asked last; 0: not since its last sign of life */
    int64_t reached_ns; /* when a witness reached it last; 0: never */
    int yes, no;        /* answers since its last sign of life */
} ls_witness;

/* It has given a sign of life. */
void ls_witness_heard(ls_witness *witness);

/* Whether it is time to ask others, of a node that is silent for longer than suspect_ns. */
bool ls_witness_is_due(const ls_witness *witness, int64_t suspect_ns, int64_t now);
void ls_witness_asked(ls_witness *witness, int64_t now);
void ls_witness_says(ls_witness *witness, bool reached, int64_t now);

/* How long it may be silent: dead_ns, or longer while others reach it. An answer counts for as long
 * as three questions take. */
int64_t ls_witness_limit(const ls_witness *witness, int64_t dead_ns, int64_t suspect_ns,
                         int64_t now);

/* For the sentence that says why it was given up: "; others, asked 4 times, do not reach it
 * either",
 * "; others reached it 1.9 s ago", or "". */
const char *ls_witness_text(const ls_witness *witness, int64_t now, char *text, size_t cap);

LS_C_END
