/* page_reuse.h -- on a GPU with ZeRO 2 and 3: which pages of a window of gradients or weights share memory.
 *
 * Where ranks keep only their own parts, most of the array of a whole model is needed for a moment
 * only. A GPU backs no page by itself when it is touched. But the order in which a model is walked
 * through is known, and a stretch of the array is in use at a time: so pages a period apart are the
 * same memory (ls_device_window_turn), and the period is as long as the longest stretch. Pages are
 * mapped once; nothing is mapped or given back while steps run.
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
    int64_t end;    /* pages before this one are reused; the rest has memory of its own, too */
    int64_t period; /* of reuse */
} ls_page_reuse;

/* The gradient of a call; and the weights, of `size` bytes each. */
ls_page_reuse ls_page_reuse_gradient(const ls_model *model, const ls_mesh *mesh, bool ordered,
                                     int64_t page);
ls_page_reuse ls_page_reuse_weights(const ls_model *model, const ls_mesh *mesh, int64_t size,
                                    int64_t page);

/* Bytes of memory behind it. */
int64_t ls_page_reuse_held(const ls_page_reuse *page_reuse);

/* Buckets of weights that come at a time, at most: places in the host's memory. */
int ls_page_reuse_places(const ls_model *model, const ls_mesh *mesh);

LS_C_END
