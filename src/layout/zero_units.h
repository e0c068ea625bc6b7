/* zero_units.h -- which weight buckets each unit needs, where every rank keeps only its own shard.
 *
 * With ZeRO 3 a unit of the model (embedding, block, final norm with the head) is gathered before it
 * is read. In memory at a time are the buckets of the unit that is computed now and those of the next
 * one, which arrive meanwhile. The order is known: up through the units, and down again.
 *
 *     units      embedding | block 0 | block 1 | head
 *     buckets    0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3        forward: 0 1 | 1 2 | 2 3 | 3, then back */
#pragma once
#include "model/model.h"
#include "layout/mesh.h"

LS_C_BEGIN

/* A set of buckets: bit b is bucket b. */
typedef uint64_t ls_zero_units_set;
enum { LS_ZERO_UNITS_SET = 64 }; /* most buckets in a set: its bits */

/* What a unit reads; that of the head includes a tied embedding. */
ls_zero_units_set ls_zero_units_buckets(const ls_model *model, const ls_mesh *mesh, int64_t unit);

/* The unit after `unit`, which came after `before` (-1: nothing did). */
int64_t ls_zero_units_next(const ls_model *model, int64_t before, int64_t unit);

/* The most elements that are there at a time, padding included. */
int64_t ls_zero_units_most(const ls_model *model, const ls_mesh *mesh);

/* The most elements of a call's gradient that are there at a time beside the buckets on their way:
 * those of a unit, the rest of a bucket that it shares with the unit above, and those of a tied
 * embedding, begun by the head and ended last. */
int64_t ls_zero_units_gradient(const ls_model *model, const ls_mesh *mesh, bool ordered);

LS_C_END
