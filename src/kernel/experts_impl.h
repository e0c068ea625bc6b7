/* experts_impl.h -- what the files of the experts share; for the kernel room only. */
#pragma once
#include "kernel/experts.h"

/* ls_experts_apply() and ls_experts_apply_back() on a device that brings a table for experts. */
void ls_experts_groups_forward(ls_stream *stream, const ls_experts *a);
void ls_experts_groups_back(ls_stream *stream, const ls_experts *a);
