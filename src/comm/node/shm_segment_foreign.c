/* shm_segment_foreign.c -- corrects the resident memory of a process for memory that other ranks
 * own.
 *
 * All ranks of a node map the whole segment and read each other's memory there. A page that was
 * read counts as resident in the reading process, though another rank owns it: a sum over ranks
 * counts it twice. The other way round, a rank's own blocks exist from the moment they are handed
 * out (fallocate), but count as resident only where this process has touched them: a sum counts too
 * little.
 *
 *     resident of the mapping (smaps)  -  shared pages of no rank (pagemap)  -  own blocks, whole
 *
 * Where a system does not show these, the correction is 0. */
#include <stdio.h>
#include "base/resident.h"
#include "comm/node/shm_segment_impl.h"

/* Resident bytes of mappings that begin in the segment. */
static int64_t mapped_bytes(const ls_shm_segment *segment)
{
    const uintptr_t first = (uintptr_t)segment->base;
    const uintptr_t end = first + (uintptr_t)segment->head->bytes;
    unsigned long from, to;
    long long kib, sum = 0;
    bool inside = false;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "re");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from >= first && from < end;
        else if (inside && sscanf(line, "Rss: %lld", &kib) == 1)
            sum += kib;
    if (f)
        fclose(f);
    return sum * LS_KIB;
}

int64_t ls_shm_segment_foreign_bytes(ls_shm_segment *segment, int local)
{
    int64_t nobody = ls_resident_bytes(segment->base, segment->head->heap_at), bytes;

    if (nobody < 0)
        return 0;
    bytes = mapped_bytes(segment) - nobody;
    pthread_mutex_lock(&segment->lock);
    for (int i = 0; i < segment->heaps[local].blocks; i++)
        bytes -= segment->heaps[local].block[i].bytes;
    pthread_mutex_unlock(&segment->lock);
    return bytes;
}
