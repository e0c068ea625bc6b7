/* fake.h -- how a test opens the libraries of this folder, which lie beside the test program. */
#pragma once
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
#include "harness.h"

/* The library's path in a variable that the code under test reads; returns it opened. */
static inline void *ls_fake_use(const char *variable, const char *file)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    LS_CHECK(n > 0);
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    LS_CHECK(slash && (size_t)(slash - path) + strlen(file) + 2 < sizeof path);
    memcpy(slash + 1, file, strlen(file) + 1);
    LS_CHECK_EQ(setenv(variable, path, 1), 0);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    LS_CHECK(library);
    return library;
}
