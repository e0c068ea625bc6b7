/* row_cost.h -- what a row must compute or move at least: the numbers behind every rate that is
 * shown.
 *
 * A cost is a formula of the shapes in a row's arguments, never of how an implementation goes about
 * it, so that rates of different implementations compare. Pointers are looked at only for being
 * NULL, never through, so arguments of any device will do. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

enum { LS_COST_DIMS = 4 };

/* Operations (an fma counts two), or bytes that must be read and written once. One of the two is 0
 * always: it decides which peak of the machine a row is held against. */
typedef struct ls_cost {
    double flops, bytes;
    int64_t dims[LS_COST_DIMS]; /* the shape, named by ls_cost_dims */
} ls_cost;

/* Names of a row's dims as in kernel.h ("M", "N", "K"); NULL behind the last. */
extern const char *const ls_cost_dims[LS_ROWS][LS_COST_DIMS];

/* Whether a row's cost is operations; bytes else. */
bool ls_cost_in_flops(ls_row row);

/* The cost of a call of row with args (the struct that the row takes). updated: elements of all
 * spans of an adamw together, which lie in device memory and cannot be asked; other rows ignore it.
 * Documents that hide a part of a sequence (start of attention) are not known here: the whole
 * triangle counts. */
ls_cost ls_cost_of(ls_row row, const void *args, int64_t updated);

LS_C_END
