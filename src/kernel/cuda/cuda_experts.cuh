/* cuda_experts.cuh -- what the plugin brings for mixtures of experts beside its rows. */
#pragma once
#include "kernel/cuda/common.cuh"
#include "kernel/experts.h"

extern const ls_experts_table ls_cuda_experts;
