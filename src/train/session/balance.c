/* balance.c -- medians, and whether a new split is worth it.
 *
 * Only numbers that are equal on all ranks go in, and only +, /, comparisons and sorting are done
 * with them, so all ranks decide equally. A median forgives a step in which something else had the
 * core; the twentieth keeps noise from moving leaves to and fro, which would cost nothing in bits
 * but some in warm caches. Example: 2 ranks, 24 leaves, 10 and 20 ms per leaf: the step takes
 * 12 x 20 = 240 ms; with 16 and 8 leaves 160. */
#include "train/session/balance.h"

#include <stdlib.h>
#include "base/mem.h"

static const double GAIN = 0.95; /* a new split must shorten the step to less than this */

ls_status ls_balance_init(ls_balance *balance, int ranks, const double *weights)
{
    size_t n = (size_t)ranks;

    *balance = (ls_balance){.weights = ls_mem_array(n, sizeof(double)),
                            .times = ls_mem_array(n * LS_BALANCE_WINDOW, sizeof(double)),
                            .medians = ls_mem_array(n, sizeof(double)),
                            .candidate = ls_mem_array(n, sizeof(double)),
                            .skip = LS_BALANCE_SKIPPED};
    if (!balance->weights || !balance->times || !balance->medians || !balance->candidate) {
        ls_balance_release(balance);
        return ls_fail(LS_ENOMEM, "no memory for the times of %d ranks", ranks);
    }
    for (int r = 0; r < ranks; r++)
        balance->weights[r] = weights ? weights[r] : 1;
    return LS_OK;
}

void ls_balance_release(ls_balance *balance)
{
    ls_mem_free(balance->weights);
    ls_mem_free(balance->times);
    ls_mem_free(balance->medians);
    ls_mem_free(balance->candidate);
    *balance = (ls_balance){.weights = NULL};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The lower median of the values above 0; 0: there are none. They are sorted. */
static double median(double *values, int n)
{
    int zeros = 0;

    qsort(values, (size_t)n, sizeof *values, by_value);
    while (zeros < n && values[zeros] <= 0)
        zeros++;
    return zeros == n ? 0 : values[zeros + (n - zeros - 1) / 2];
}

bool ls_balance_note(ls_balance *b, int ranks, const ls_ordered_run *runs, const double *work_ns)
{
    double of_rank[LS_BALANCE_WINDOW];

    if (b->skip > 0) {
        b->skip--;
        return false;
    }
    for (int r = 0; r < ranks; r++)
        b->times[b->noted * ranks + r] = runs[r].count > 0 ? work_ns[r] / (double)runs[r].count : 0;
    if (++b->noted < LS_BALANCE_WINDOW)
        return false;
    b->noted = 0;
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < LS_BALANCE_WINDOW; i++)
            of_rank[i] = b->times[i * ranks + r];
        double m = median(of_rank, LS_BALANCE_WINDOW);
        b->medians[r] = m > 0 ? m : b->medians[r]; /* without leaves: as it was */
    }
    return true;
}

/* When the last rank ends, in a split of the mesh. */
static double step_ns(const ls_balance *b, const ls_mesh *mesh, int64_t leaves)
{
    ls_ordered_run runs[LS_MESH_RANKS];
    double last = 0;

    ls_mesh_split(mesh, leaves, runs);
    for (int r = 0; r < mesh->ranks; r++) {
        double ns = (double)runs[r].count * b->medians[r];
        last = ns > last ? ns : last;
    }
    return last;
}

static double median_of_ranks(const ls_balance *b, int ranks)
{
    double sorted[LS_MESH_RANKS];

    memcpy(sorted, b->medians, (size_t)ranks * sizeof *sorted);
    return median(sorted, ranks);
}

bool ls_balance_decide(ls_balance *b, const ls_mesh *mesh, int64_t leaves)
{
    ls_mesh other = *mesh;
    double usual = median_of_ranks(b, mesh->ranks);

    if (usual <= 0)
        return false;
    for (int r = 0; r < mesh->ranks; r++)
        b->candidate[r] = usual / (b->medians[r] > 0 ? b->medians[r] : usual);
    other.weights = b->candidate;
    if (!(step_ns(b, &other, leaves) < GAIN * step_ns(b, mesh, leaves)))
        return false;
    memcpy(b->weights, b->candidate, (size_t)mesh->ranks * sizeof *b->weights);
    b->skip = LS_BALANCE_SKIPPED;
    return true;
}

double ls_balance_ratio(const ls_balance *balance, int ranks, int rank)
{
    double usual = median_of_ranks(balance, ranks);

    return usual > 0 && balance->medians[rank] > 0 ? balance->medians[rank] / usual : 1;
}
