/* ramp.c -- the batch ramp: leaves of a step, and samples before a step in closed form.
 *
 * In step s of the ramp's n the batch has f + floor(d s / n) leaves: f at first, d more in the end.
 * The samples before a step are sums of such floors, which Euclid's algorithm gives in a few
 * rounds: what each floor certainly has is taken out, and the rest is a sum of the same kind with
 * the two numbers changed places (the lattice points under a line, counted by the other axis). */
#include "config/ramp.h"

/* The sum of floor((a i + b) / m) over i = 0 .. n-1; all at least 0, m above 0. */
static int64_t sum_of_floors(int64_t n, int64_t m, int64_t a, int64_t b)
{
    int64_t sum = 0;

    while (n > 0) {
        sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
        a %= m;
        b %= m;
        int64_t top = a * n + b, old = m;
        if (top < m)
            break;
        n = top / m;
        b = top % m;
        m = a;
        a = old;
    }
    return sum;
}

int64_t ls_ramp_sequences(const ls_run *run, int64_t step)
{
    int64_t leaf = run->batch.leaf, steps = run->batch.ramp;
    int64_t more = (run->batch.sequences - run->batch.ramp_from) / ls_max_i64(1, leaf);

    if (step >= steps)
        return run->batch.sequences;
    return run->batch.ramp_from + more * step / steps * leaf;
}

int64_t ls_ramp_samples(const ls_run *run, int64_t steps)
{
    int64_t rising = ls_min_i64(steps, run->batch.ramp), leaf = run->batch.leaf;

    if (rising == 0)
        return steps * run->batch.sequences;
    int64_t more = (run->batch.sequences - run->batch.ramp_from) / leaf;
    return rising * run->batch.ramp_from + sum_of_floors(rising, run->batch.ramp, more, 0) * leaf +
           (steps - rising) * run->batch.sequences;
}

int64_t ls_ramp_steps(const ls_run *run, int64_t samples)
{
    int64_t ramp = run->batch.ramp, risen = ls_ramp_samples(run, ramp);
    int64_t low = 0, high = ramp;

    if (samples > risen)
        return ramp + (samples - risen - 1) / run->batch.sequences + 1;
    while (low < high) { /* the first number of steps that is enough */
        int64_t middle = low + (high - low) / 2;
        if (ls_ramp_samples(run, middle) >= samples)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool ls_ramp_overflows(const ls_run *run, int64_t steps)
{
    int64_t product;

    return __builtin_mul_overflow(steps, run->batch.sequences, &product);
}
