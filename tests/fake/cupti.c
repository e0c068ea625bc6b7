/* cupti.c -- a library with CUPTI's symbols, and kernels that the test launches. Built as a shared
 * object of its own, opened by the code under test as the toolkit's would be. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "device/cupti_impl.h"

#define SHOWN __attribute__((visibility("default")))

enum { OK = 0, REFUSED = 39, END = 12, ENTRY = 192, ENTRIES = 4096, DEEP = 8, KINDS = 64 };

/* How it behaves: 0 as it should, 1 of CUDA 12, 2 another profiler is there, 3 without tags. */
SHOWN int fake_cupti_mode;
SHOWN int fake_cupti_enabled;         /* kinds that are on */
SHOWN int fake_cupti_buffers;         /* given to it less given back */
SHOWN int64_t fake_cupti_ahead;       /* of CUPTI's clock before ours, ns */
SHOWN int64_t fake_cupti_drift;       /* and by how many parts in a million it is faster */
SHOWN uint64_t fake_cupti_tags[DEEP]; /* pushed */
SHOWN int fake_cupti_depth;

typedef void (*requested)(uint8_t **buffer_out, size_t *bytes_out, size_t *most_out);
typedef void (*completed)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                          size_t used);

static char entries[ENTRIES][ENTRY];
static int n_entries;
static bool on[KINDS];
static uint32_t last_number;
static requested give;
static completed take;

SHOWN int cuptiGetVersion(uint32_t *out);
SHOWN int cuptiGetResultString(int result, const char **out);
SHOWN int cuptiActivityRegisterCallbacks(requested g, completed t);
SHOWN int cuptiActivityEnable(int kind);
SHOWN int cuptiActivityDisable(int kind);
SHOWN int cuptiActivityFlushAll(uint32_t flag);
SHOWN int cuptiActivityGetNextRecord(uint8_t *buffer, size_t used, void **record);
SHOWN int cuptiGetTimestamp(uint64_t *out);
SHOWN int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id);
SHOWN int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *out);
SHOWN void fake_cupti_kernel(const char *name, int64_t begin_ns, int64_t end_ns);
SHOWN void fake_cupti_copy(int how, int64_t bytes, int64_t begin_ns, int64_t end_ns);

static uint64_t theirs(int64_t ours)
{
    return (uint64_t)(ours + fake_cupti_ahead + ours / 1000000 * fake_cupti_drift);
}

static void add(const void *record, size_t bytes)
{
    if (n_entries < ENTRIES)
        memcpy(entries[n_entries++], record, bytes);
}

/* Tags around the call that makes the next record, from the outside in; behind it, as can be. */
static void add_tags(uint32_t number)
{
    for (int i = 0; i < fake_cupti_depth && fake_cupti_mode != 3; i++) {
        ls_cupti_external_record r = {.kind = LS_CUPTI_KIND_EXTERNAL,
                                      .external_kind = LS_CUPTI_EXTERNAL_OURS,
                                      .id = fake_cupti_tags[i],
                                      .correlation = number};
        if (on[LS_CUPTI_KIND_EXTERNAL] && on[LS_CUPTI_KIND_DRIVER] && on[LS_CUPTI_KIND_RUNTIME])
            add(&r, sizeof r);
    }
}

/* Times by our clock. A kernel that has not ended has none. */
void fake_cupti_kernel(const char *name, int64_t begin_ns, int64_t end_ns)
{
    ls_cupti_kernel_record r = {.kind = LS_CUPTI_KIND_KERNEL,
                                .start = end_ns ? theirs(begin_ns) : 0,
                                .end = end_ns ? theirs(end_ns) : 0,
                                .correlation = ++last_number,
                                .name = name};

    if (on[LS_CUPTI_KIND_KERNEL])
        add(&r, sizeof r);
    add_tags(last_number);
}

void fake_cupti_copy(int how, int64_t bytes, int64_t begin_ns, int64_t end_ns)
{
    ls_cupti_copy_record r = {.kind = how ? LS_CUPTI_KIND_COPY : LS_CUPTI_KIND_SET,
                              .how = (uint8_t)how,
                              .bytes = (uint64_t)bytes,
                              .start = theirs(begin_ns),
                              .end = theirs(end_ns),
                              .correlation = ++last_number};

    if (on[r.kind])
        add(&r, sizeof r);
    add_tags(last_number);
}

int cuptiGetVersion(uint32_t *out)
{
    *out = fake_cupti_mode == 1 ? 28 : 130001;
    return OK;
}

int cuptiGetResultString(int result, const char **out)
{
    *out = result == REFUSED ? "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "ERROR";
    return OK;
}

int cuptiActivityRegisterCallbacks(requested g, completed t)
{
    give = g;
    take = t;
    return OK;
}

int cuptiActivityEnable(int kind)
{
    if (fake_cupti_mode == 2)
        return REFUSED;
    fake_cupti_enabled += !on[kind];
    on[kind] = true;
    return OK;
}

int cuptiActivityDisable(int kind)
{
    fake_cupti_enabled -= on[kind];
    on[kind] = false;
    return OK;
}

/* A few records in each buffer. */
int cuptiActivityFlushAll(uint32_t flag)
{
    enum { EACH = 3 };

    for (int i = 0; i < n_entries && flag == LS_CUPTI_FLUSH_FORCED; i += EACH) {
        size_t bytes = 0, most = 0;
        int n = n_entries - i < EACH ? n_entries - i : EACH;
        uint8_t *buffer = NULL;
        give(&buffer, &bytes, &most);
        if (!buffer || bytes < EACH * ENTRY)
            continue;
        fake_cupti_buffers++;
        memcpy(buffer, entries[i], (size_t)n * ENTRY);
        take(NULL, 0, buffer, bytes, (size_t)n * ENTRY);
        fake_cupti_buffers--;
    }
    n_entries = 0;
    return OK;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t used, void **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + ENTRY : buffer;

    if (next >= buffer + used)
        return END;
    *record = next;
    return OK;
}

int cuptiGetTimestamp(uint64_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    *out = theirs((int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
    return OK;
}

int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id)
{
    if (kind == LS_CUPTI_EXTERNAL_OURS && fake_cupti_depth < DEEP)
        fake_cupti_tags[fake_cupti_depth++] = id;
    return OK;
}

int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *out)
{
    if (kind == LS_CUPTI_EXTERNAL_OURS && fake_cupti_depth > 0)
        *out = fake_cupti_tags[--fake_cupti_depth];
    return OK;
}
