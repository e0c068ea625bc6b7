/* cgroup.h -- the control groups that this process is in, from its own up to the top.
 *
 * A limit may be set on any group on the way: Slurm and containers set it on inner ones, systemd on
 * slices above. Versions 1 and 2 are understood, also both at once, and a container that sees only
 * the lower part of the way. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

/* One group; folder holds its files. version: 1 or 2. */
typedef void (*ls_cgroup_visit)(void *context, const char *folder, int version);

/* Visit every group that this process is in for a controller ("cpu", "memory"), its own first.
 * root is put before /proc/self/... and before every mount point; "" but in tests. */
void ls_cgroup_walk(const char *root, const char *controller, ls_cgroup_visit visit, void *context);

/* The number after name (and any ':') on its line of a file like memory.stat or /proc/meminfo; with
 * name "" the first number of the file. -1 when there is none ("max" of a limit). */
int64_t ls_cgroup_number(const char *folder, const char *file, const char *name);

LS_C_END
