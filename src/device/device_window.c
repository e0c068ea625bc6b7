/* device_window.c -- long arrays on a device, of which only some parts have memory.
 *
 * A pipeline rank keeps plain indices of the whole model and backs only the pages of its own layers
 * (train/step/pipeline.h). What is backed is listed among the device's buffers, one entry for each
 * run of pages, so that it is counted like all other memory. */
#include "device/device_impl.h"

#include <string.h>

static int find(const ls_device *d, const void *base)
{
    int i = 0;

    while (i < LS_DEVICE_WINDOWS && d->windows[i].base != base)
        i++;
    return i;
}

ls_status ls_device_window_open(ls_device *device, int64_t bytes, const char *what, void **base_out)
{
    ls_device *d = device;
    int slot = find(d, NULL);
    int64_t page = d->ops->window_page ? d->ops->window_page(d) : 0, all;

    if (page == 0) {
        ls_fail(LS_EUSAGE,
                "device \"%s\" cannot map memory page by page, which %s of a pipeline need",
                d->ops->kind, what);
        ls_err_hint("Update the driver of the device, or set mesh.pp: 1.");
        return LS_EUSAGE;
    }
    LS_BUG_IF(slot == LS_DEVICE_WINDOWS, "more than %d windows", LS_DEVICE_WINDOWS);
    all = ls_round_up(ls_max_i64(bytes, 1), page);
    d->windows[slot].base = d->ops->window_open(d, all);
    if (!d->windows[slot].base)
        return ls_fail(LS_ENOMEM, "no addresses on the device for %s (%lld bytes)", what,
                       (long long)bytes);
    d->windows[slot].bytes = all;
    *base_out = d->windows[slot].base;
    return LS_OK;
}

/* The end of what is backed from `at` on: `at` itself where nothing is. */
static char *backed_until(const ls_device *d, char *at)
{
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++) {
        char *first = d->buffers[i].memory;
        if (first && at >= first && at < first + d->buffers[i].bytes)
            return first + d->buffers[i].bytes;
    }
    return at;
}

/* Where the next backed part behind `at` begins, at most `end`. */
static char *next_backed(const ls_device *d, const char *at, char *end)
{
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++) {
        char *first = d->buffers[i].memory;
        if (first && first > at && first < end)
            end = first;
    }
    return end;
}

ls_status ls_device_window_back(ls_device *device, void *base, int64_t first, int64_t count,
                                const char *what)
{
    ls_device *d = device;
    int slot = find(d, base);
    int64_t page = d->ops->window_page(d);
    char *at = (char *)base + first / page * page;
    char *end = (char *)base + ls_round_up(first + count, page);

    LS_BUG_IF(slot == LS_DEVICE_WINDOWS || count < 0 || first < 0 ||
                  end > (char *)base + d->windows[slot].bytes,
              "bytes %lld .. of a window that has them not", (long long)first);
    while (count > 0 && at < end) {
        char *to = backed_until(d, at);
        if (to > at) {
            at = to;
            continue;
        }
        to = next_backed(d, at, end);
        if (!d->ops->window_back(d, at, to - at))
            return ls_fail(LS_ENOMEM, "cannot allocate %.1f MiB for %s: %.1f MiB are free",
                           ls_size_up(to - at, LS_MIB), what,
                           ls_size_down(ls_device_describe(d).free_bytes, LS_MIB));
        ls_device_count(d, at, to - at);
        at = to;
    }
    return LS_OK;
}

ls_status ls_device_window_turn(ls_device *device, void *base, int64_t first, int64_t count,
                                int64_t period, const char *what)
{
    ls_device *d = device;
    int slot = find(d, base);
    int64_t page = d->ops->window_page(d);
    char *at = (char *)base + first;

    if (count == 0)
        return LS_OK;
    LS_BUG_IF(slot == LS_DEVICE_WINDOWS || first % page || count % page || period % page ||
                  period <= 0 || first < 0 || count < 0 || first + count > d->windows[slot].bytes ||
                  d->windows[slot].turns,
              "bytes %lld .. of a window cannot take turns of %lld", (long long)first,
              (long long)period);
    period = period < count ? period : count;
    if (!d->ops->window_turn(d, at, count, period))
        return ls_fail(LS_ENOMEM, "cannot allocate %.1f MiB for %s: %.1f MiB are free",
                       ls_size_up(period, LS_MIB), what,
                       ls_size_down(ls_device_describe(d).free_bytes, LS_MIB));
    d->windows[slot].turns = at;
    d->windows[slot].turned = count;
    d->windows[slot].period = period;
    ls_device_count(d, at, period);
    return LS_OK;
}

void ls_device_window_close(ls_device *device, void *base)
{
    ls_device *d = device;
    int slot = base ? find(d, base) : LS_DEVICE_WINDOWS;

    if (!base)
        return;
    LS_BUG_IF(slot == LS_DEVICE_WINDOWS, "closing a window that the device does not know");
    char *first = base, *end = first + d->windows[slot].bytes;
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++) {
        char *memory = d->buffers[i].memory;
        if (!memory || memory < first || memory >= end)
            continue;
        d->ops->window_drop(d, memory, d->buffers[i].bytes);
        ls_device_forget(d, i);
    }
    for (int64_t done = d->windows[slot].period; done < d->windows[slot].turned;
         done += d->windows[slot].period) /* the first was among the buffers */
        d->ops->window_drop(d, d->windows[slot].turns + done,
                            ls_device_turn(d->windows[slot].turned, d->windows[slot].period, done));
    d->ops->window_close(d, base, d->windows[slot].bytes);
    memset(&d->windows[slot], 0, sizeof d->windows[slot]);
}
