/* cmd_bench.h -- the parts of `lineshaft bench`. */
#pragma once
#include "cli/command.h"

extern const ls_command ls_bench_comm;
