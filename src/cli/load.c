/* load.c -- from parsed flags to a run. */
#include "cli/load.h"

#include "config/runfile.h"

ls_status ls_load_run(ls_run *run, const ls_args *args, const char *path)
{
    const char *sets[LS_COUNT(args->given)];
    int n = 0;

    while (n < (int)LS_COUNT(sets) && (sets[n] = ls_args_nth(args, "set", n)) != NULL)
        n++;
    return ls_runfile_load(run, &(ls_runfile_source){.path = path, .sets = sets, .n_sets = n});
}
