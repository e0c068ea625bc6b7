/* coll_case.h -- one collective with known numbers in it, checked against a plain loop: for tests
 * of comm. The numbers are small and whole, so that they are exact in every type and order. */
#pragma once
#include "comm/coll.h"

typedef struct ls_call {
    ls_coll_kind kind; /* up to LS_COLL_GATHER */
    ls_coll_op op;
    ls_dtype type;
    int64_t count;
    bool in_place, shared_in, shared_out;
    int root;
} ls_call;

/* What each of the two buffers of rank `me` of n needs. */
int64_t ls_call_bytes(const ls_call *c, int n, int me);

/* Fill them (in == out: in place); the collective to run. */
ls_coll ls_call_fill(const ls_call *c, int n, int me, void *in, void *out);

/* Whether out holds what it must, and nothing behind it was touched; else the test fails. */
void ls_call_check(const ls_call *c, int n, int me, const void *out);
