/* dispatch.h -- the whole program behind main(): parse, run one command, report, exit code. */
#pragma once

/* Run lineshaft with these arguments and return its exit code. */
int ls_dispatch_main(int argc, const char *const *argv);
