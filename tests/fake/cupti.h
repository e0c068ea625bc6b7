/* cupti.h -- what a test says to the library of cupti.c. */
#pragma once
#include "fake/fake.h"

typedef struct ls_fake_cupti {
    int *mode, *enabled, *buffers, *depth;
    int64_t *ahead, *drift;
    void (*kernel)(const char *name, int64_t begin_ns, int64_t end_ns);
    void (*copy)(int how, int64_t bytes, int64_t begin_ns, int64_t end_ns);
} ls_fake_cupti;

/* LINESHAFT_CUPTI names it from now on. Its clock is far ahead of ours. */
static inline ls_fake_cupti ls_fake_cupti_use(void)
{
    void *library = ls_fake_use("LINESHAFT_CUPTI", "libfake_cupti.so");
    ls_fake_cupti f = {.mode = dlsym(library, "fake_cupti_mode"),
                       .enabled = dlsym(library, "fake_cupti_enabled"),
                       .buffers = dlsym(library, "fake_cupti_buffers"),
                       .depth = dlsym(library, "fake_cupti_depth"),
                       .ahead = dlsym(library, "fake_cupti_ahead"),
                       .drift = dlsym(library, "fake_cupti_drift")};
    void *kernel = dlsym(library, "fake_cupti_kernel"), *copy = dlsym(library, "fake_cupti_copy");

    LS_CHECK(f.mode && f.enabled && f.buffers && f.depth && f.ahead && f.drift && kernel && copy);
    memcpy(&f.kernel, &kernel, sizeof kernel);
    memcpy(&f.copy, &copy, sizeof copy);
    *f.ahead = INT64_C(1700000000000000000);
    return f;
}
