/* hash.c -- what proving bytes costs: XXH3-128, CRC32C, both, and copying, in GB/s of one thread
 * over memory that no cache holds, in blocks of 1 MiB as checkpoints have them. Medians of 9
 * rounds, by the clock of the thread: what others do on the machine counts only as far as it takes
 * memory's time. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/hash.h"
#include "base/mem.h"

enum { BLOCK = 1 << 20, BLOCKS = 512, ROUNDS = 9, WAYS = 4 };

static volatile uint64_t sink;

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void run(int way, const unsigned char *from, unsigned char *to)
{
    ls_hash_stream hash;

    ls_hash_begin(&hash);
    for (int64_t i = 0; i < BLOCKS; i++) {
        const unsigned char *block = from + i * BLOCK;
        if (way == 0 || way == 2)
            ls_hash_add(&hash, block, BLOCK);
        if (way == 1 || way == 2)
            sink += ls_hash_crc32c(0, block, BLOCK);
        if (way == 3)
            memcpy(to + i * BLOCK, block, BLOCK);
    }
    sink += ls_hash_end(&hash).lo;
}

static int order(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

int main(void)
{
    static const char *const names[WAYS] = {"XXH3-128", "CRC32C", "both, block by block", "memcpy"};
    unsigned char *from = ls_mem_alloc((size_t)BLOCKS * BLOCK);
    unsigned char *to = ls_mem_alloc((size_t)BLOCKS * BLOCK);
    double seconds[WAYS][ROUNDS];

    if (!from || !to)
        return 1;
    for (int64_t i = 0; i < (int64_t)BLOCKS * BLOCK; i++)
        from[i] = to[i] = (unsigned char)(i * 2654435761u >> 11);
    for (int r = 0; r < ROUNDS; r++)
        for (int w = 0; w < WAYS; w++) {
            double begun = cpu_seconds();
            run(w, from, to);
            seconds[w][r] = cpu_seconds() - begun;
        }
    for (int w = 0; w < WAYS; w++) {
        qsort(seconds[w], ROUNDS, sizeof seconds[w][0], order);
        printf("%-22s %6.2f GB/s  %6.3f s of a core for a checkpoint of 1.5 GB\n", names[w],
               (double)BLOCKS * BLOCK / 1e9 / seconds[w][ROUNDS / 2],
               1.5e9 / ((double)BLOCKS * BLOCK) * seconds[w][ROUNDS / 2]);
    }
    ls_mem_free(from);
    ls_mem_free(to);
    return 0;
}
