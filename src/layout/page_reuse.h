/* page_reuse.h -- where ranks keep only their own parts (zero 2 and 3), on a device with a memory of its
 * own: which memory of a window of gradients or weights is the same as which other.
 *
 * Such a device backs no page by itself when it is touched. But the order in which a model is
 * walked through is known, and a stretch of the array is in use at a time: so the pages of the
 * array are backed once, by as many as the longest stretch needs, in turn
 * (ls_device_window_turn). Nothing is mapped or given back while steps run.
 *
 *     array    | fixed | 0 1 2 3 | 4 5 6 7 | 8 9 .. |  behind |      stretch: at most 4 pages
 *     memory   |   f   | a b c d | a b c d | a b .. |    b    |
 *
 * What is used at both ends of the walk is fixed: a tied embedding, which the head reads, and whose
 * gradient the head begins. */
#pragma once
#include "layout/zero_units.h"

LS_C_BEGIN

/* Bytes, all of them whole pages. */
typedef struct ls_page_reuse {
    int64_t bytes;  /* of the array */
    int64_t fixed;  /* the first ones, which have memory of their own, */
    int64_t end;    /* those before this, which take turns; the rest has its own, too */
    int64_t period; /* of turns */
} ls_page_reuse;

/* The gradient of a call, of so many elements; and the weights, of so many bytes each. */
ls_page_reuse ls_page_reuse_gradient(const ls_model *model, const ls_mesh *mesh, bool ordered,
                                     int64_t page);
ls_page_reuse ls_page_reuse_weights(const ls_model *model, const ls_mesh *mesh, int64_t size,
                                    int64_t page);

/* Bytes of memory behind it. */
int64_t ls_page_reuse_held(const ls_page_reuse *page_reuse);

/* Buckets of weights that come at a time, at most: places in the host's memory. */
int ls_page_reuse_places(const ls_model *model, const ls_mesh *mesh);

LS_C_END
