# cuda.mk -- the CUDA plugin: built where nvcc is, never needed by the program.
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_PLUGIN := build/cuda/liblineshaft_cuda.so
CUDA_SRC := $(sort $(wildcard src/device/cuda/*.cu src/kernel/cuda/*.cu src/comm/device/cuda/*.cu))
CUDA_OBJ := $(CUDA_SRC:src/%.cu=build/cuda/%.o)
# Machine code for Ampere and Hopper, and PTX that later cards compile when they load it.
CUDA_ARCH ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
  -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90
NVCC_FLAGS = -std=c++20 -O3 -Isrc -D_GNU_SOURCE -DLS_VERSION='"$(VERSION)"' $(CUDA_ARCH) --threads 2 \
  -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-ffp-contract=off $(if $(CI),-Werror all-warnings)

.PHONY: cuda gpu-test
ifeq ($(NVCC),)
cuda:
	@echo "lineshaft: no nvcc, the CUDA plugin is not built"
else
all: cuda
## make cuda       the CUDA plugin, where nvcc is; it is put beside the programs
cuda: $(CUDA_PLUGIN)
	@mkdir -p build/release build/test
	@ln -sf ../cuda/$(notdir $(CUDA_PLUGIN)) build/release/$(notdir $(CUDA_PLUGIN))
	@ln -sf ../cuda/$(notdir $(CUDA_PLUGIN)) build/test/$(notdir $(CUDA_PLUGIN))
$(CUDA_PLUGIN): $(CUDA_OBJ)
	@echo "  link   $@"
	@$(NVCC) -shared -cudart static -o $@ $^ -lcublasLt -lcudnn
build/cuda/device/cuda/device_cuda.o: VERSION # which it names
build/cuda/%.o: src/%.cu
	@mkdir -p $(@D)
	@echo "  nvcc   $<"
	@$(NVCC) $(NVCC_FLAGS) -MMD -MP -c -o $@ $<
-include $(shell find build/cuda -name '*.d' 2>/dev/null)
endif

## make gpu-test   the kernel rows on this machine's NVIDIA GPU against the CPU, several ranks on it
##                 against one process, then rows under compute-sanitizer where that is
##                 installed; fails without a GPU
GPU_ROWS := test_gpu_rows test_gpu_products test_gpu_attention test_gpu_model test_gpu_fp8 test_gpu_optim \
  test_gpu_rounding test_gpu_experts test_gpu_mesh
gpu-test: cuda
	@$(MAKE) --no-print-directory MODE=test build/test/lineshaft-test
	@LINESHAFT_GPU_TEST=1 build/test/lineshaft-test tests/gpu/
	@$(MAKE) --no-print-directory MODE=release build/release/lineshaft
	@tests/gpu/gpu_ranks.sh
	@tests/gpu/gpu_mesh.sh
	@tests/gpu/gpu_tuning.sh
	@tests/gpu/gpu_nccl.sh
	@if command -v compute-sanitizer >/dev/null 2>&1; then LINESHAFT_GPU_TEST=1 \
	  compute-sanitizer --target-processes all --error-exitcode 9 --print-limit 5 \
	  build/test/lineshaft-test $(GPU_ROWS); else echo "compute-sanitizer is not here"; fi

# A training step out of the CUDA rows, timed; see bench/gpu/step_gpu.c.
build/release/step_gpu: bench/gpu/step_gpu.c cuda
	@$(MAKE) --no-print-directory MODE=release build/release/lineshaft
	@echo "  link   $@"
	@$(CC) -O2 $(BASE_FLAGS) $(WARN) -o $@ $< $(LIB_OBJ:$(B)/%=build/release/%) $(LDFLAGS) $(LIBS)
