/* pass_sent.h -- how many bytes the ranks of a divided model have to send each other. */
#pragma once
#include "model/pass.h"

/* Bytes that a rank of a split model, or one that shares sequences, sends to the others in one call
 * of B sequences of T tokens: forward and loss, and with backward all of it; of the part of the
 * model that the pass computes. At least, that is by ring; 0 of a rank that computes alone. What
 * goes to experts of other ranks depends on the tokens, and is not in it. And of that what goes to
 * those with whom it shares sequences. */
int64_t ls_pass_sent(const ls_pass_args *args, int64_t B, int64_t T, bool backward);
int64_t ls_pass_cp_sent(const ls_pass_args *args, int64_t B, int64_t T, bool backward);
