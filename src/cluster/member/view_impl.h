/* view_impl.h -- what view.c and recovery_policy.c share. */
#pragma once
#include "cluster/member/view.h"

LS_C_BEGIN

/* Every change of a worker's state: the number of workers in each state is kept. */
void ls_view_enter(ls_view *view, int worker, ls_view_state state);

/* The ranks that hold one model: at least 1. */
int ls_view_unit(const ls_view *view);

LS_C_END
