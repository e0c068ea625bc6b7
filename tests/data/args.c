/* args.c -- reading a parsed command line, for a test binary without the command-line parser; weak,
 * so that the real one takes its place. */
#include "cli/command.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

__attribute__((weak)) const char *ls_args_nth(const ls_args *args, const char *name, int i)
{
    for (int k = 0; k < args->n_given; k++)
        if (strcmp(args->given[k].flag->name, name) == 0 && i-- == 0)
            return args->given[k].value ? args->given[k].value : "";
    return NULL;
}

__attribute__((weak)) const char *ls_args_value(const ls_args *args, const char *name)
{
    const char *last = NULL;

    for (int i = 0; ls_args_nth(args, name, i); i++)
        last = ls_args_nth(args, name, i);
    return last;
}

__attribute__((weak)) bool ls_args_has(const ls_args *args, const char *name)
{
    return ls_args_value(args, name) != NULL;
}
