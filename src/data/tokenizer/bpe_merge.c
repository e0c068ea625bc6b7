/* bpe_merge.c -- merging adjacent symbols, lowest rank first.
 *
 * Two ways that give the same ids. A word of a few symbols is scanned for its best pair again and
 * again: quadratic, but of a handful in one cache line. A long run without a place to cut (a line
 * of "aaaa...", a text without blanks) keeps its symbols in a linked list and its pairs in a heap;
 * a pair that has changed since it was pushed is skipped when it comes up.
 *
 * Example: merges (b,c)=0, (a,b)=1. "abc": the heap holds (1, place 0) and (0, place 1). The second
 * goes first: "a bc"; then (1, place 0) comes up, but the pair there is now (a, bc): skipped. */
#include "data/tokenizer/bpe_impl.h"

#include "base/mem.h"

static uint32_t rank_of(const ls_bpe *bpe, int32_t left, int32_t right)
{
    const ls_bpe_merge *m = ls_bpe_merge_of(bpe, left, right);

    return m ? m->rank : LS_BPE_NO_RANK;
}

size_t ls_bpe_merge_few(const ls_bpe *bpe, int32_t *ids, size_t n)
{
    uint32_t ranks[LS_BPE_FEW];

    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(bpe, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == LS_BPE_NO_RANK)
            break;
        ids[best] = ls_bpe_merge_of(bpe, ids[best], ids[best + 1])->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) {
            memmove(ranks + best + 1, ranks + best + 2, (n - best - 2) * sizeof *ranks);
            ranks[best] = rank_of(bpe, ids[best], ids[best + 1]);
        }
        if (best)
            ranks[best - 1] = rank_of(bpe, ids[best - 1], ids[best]);
    }
    return n;
}

ls_status ls_bpe_many_reserve(ls_bpe_many *many, size_t n)
{
    size_t cap = many->cap * 2 > n ? many->cap * 2 : n;

    if (n <= many->cap)
        return LS_OK;
    if (cap > INT32_MAX)
        return ls_fail(LS_EDATA, "a text of %zu characters without a place to cut is too long", n);
    ls_bpe_many_release(many);
    many->ids = ls_mem_array(cap, sizeof *many->ids);
    many->before = ls_mem_array(cap, sizeof *many->before);
    many->after = ls_mem_array(cap, sizeof *many->after);
    many->heap = ls_mem_array(cap, 2 * sizeof *many->heap);
    if (!many->ids || !many->before || !many->after || !many->heap) {
        ls_bpe_many_release(many);
        return LS_ENOMEM;
    }
    many->cap = cap;
    return LS_OK;
}

void ls_bpe_many_release(ls_bpe_many *many)
{
    ls_mem_free(many->ids);
    ls_mem_free(many->before);
    ls_mem_free(many->after);
    ls_mem_free(many->heap);
    *many = (ls_bpe_many){.cap = 0};
}

static void push(ls_bpe_candidate *heap, size_t *n, uint64_t order)
{
    size_t i = (*n)++;

    while (i && heap[(i - 1) / 2].order > order) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i].order = order;
}

static uint64_t pop(ls_bpe_candidate *heap, size_t *n)
{
    uint64_t top = heap[0].order, last = heap[--*n].order;
    size_t i = 0;

    for (size_t child = 1; child < *n; child = 2 * i + 1) {
        if (child + 1 < *n && heap[child + 1].order < heap[child].order)
            child++;
        if (heap[child].order >= last)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i].order = last;
    return top;
}

/* Push the pair whose left symbol stands at place, when it can be merged. */
static void propose(const ls_bpe *bpe, ls_bpe_many *many, size_t *n_heap, int32_t place)
{
    int32_t right = many->after[place];

    if (right < 0)
        return;
    uint32_t rank = rank_of(bpe, many->ids[place], many->ids[right]);
    if (rank != LS_BPE_NO_RANK)
        push(many->heap, n_heap, (uint64_t)rank << 32 | (uint32_t)place);
}

size_t ls_bpe_merge_many(const ls_bpe *bpe, ls_bpe_many *many, size_t n)
{
    size_t n_heap = 0, left = 0;

    for (size_t i = 0; i < n; i++) {
        many->before[i] = (int32_t)i - 1;
        many->after[i] = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++)
        propose(bpe, many, &n_heap, (int32_t)i);
    /* Each merge takes one pair out and puts at most two in: the heap stays below 2n. */
    while (n_heap) {
        uint64_t order = pop(many->heap, &n_heap);
        int32_t place = (int32_t)(order & UINT32_MAX);
        if (many->ids[place] < 0 || many->after[place] < 0)
            continue;
        int32_t right = many->after[place];
        const ls_bpe_merge *m = ls_bpe_merge_of(bpe, many->ids[place], many->ids[right]);
        if (!m || m->rank != order >> 32)
            continue;
        many->ids[place] = m->id;
        many->ids[right] = -1;
        many->after[place] = many->after[right];
        if (many->after[place] >= 0)
            many->before[many->after[place]] = place;
        propose(bpe, many, &n_heap, place);
        if (many->before[place] >= 0)
            propose(bpe, many, &n_heap, many->before[place]);
    }
    for (size_t i = 0; i < n; i++)
        if (many->ids[i] >= 0)
            many->ids[left++] = many->ids[i];
    return left;
}
