/* combine_impl.h -- the loops behind combine.h, one per instruction set, all with the same bits. */
#pragma once
#include "kernel/combine.h"

void ls_combine_run_generic(const ls_combine *combine, int64_t count);
void ls_combine_run_avx2(const ls_combine *combine, int64_t count);
void ls_combine_run_avx512(const ls_combine *combine, int64_t count);
