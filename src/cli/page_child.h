/* page_child.h -- the page of a run that this process trains, in a process of its own.
 *
 * `lineshaft page --until-eof` reads the run folder, with a lower priority and its own memory, so that
 * nothing that happens to it reaches training. It ends when this process does, however that ends:
 * the kernel then closes the pipe that is its standard input. */
#pragma once
#include "cli/command.h"

/* Whether `train` is to open a page: --page or --no-page, else when a person is at the terminal who
 * sees the progress (not with --json or --quiet). */
bool ls_page_child_wanted(const ls_args *args);

/* Start it for a run folder, which need not exist, and wait at most a few seconds for its address.
 * url_out: "" when it could not be started; that is no failure. */
void ls_page_child_start(const char *folder, char *url_out, size_t size);
