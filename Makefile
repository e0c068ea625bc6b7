# lineshaft: plain GNU make.
#
#   make            the program, ./lineshaft
#   make demo       install what is missing, build, train a small model, let it talk
#   make test       install what is missing, build, run all tests
#   make check      format, layers, headers, clang, asan, tsan, fuzz, model: what .ci/run adds to the tests
#   make help       all targets
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

CC ?= cc
ifeq ($(origin CC),default)
CC := gcc
endif
MODE ?= release
B := build/$(MODE)
VERSION := $(shell cat VERSION 2>/dev/null || echo 0.0.0)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wformat=2 -Wwrite-strings -Wcast-qual \
  -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
  -Wimplicit-fallthrough -Wdouble-promotion
ifdef CI
WARN += -Werror
endif
# Never -ffast-math; contraction off, so that an fma is one only where the code says so.
BASE_FLAGS := -std=c17 -D_GNU_SOURCE -Isrc -fno-common -fvisibility=hidden -ffp-contract=off \
  -fno-omit-frame-pointer -pthread -DLS_VERSION='"$(VERSION)"'
# Each mode has a folder of objects; all but the release have fault points. Where only reports of a
# sanitizer are read, lines are enough to know (-g1); clang only says what it thinks of the code.
MODE_FLAGS_release := -O2 -g
MODE_FLAGS_test := -O2 -g
MODE_FLAGS_clang := -O0
MODE_FLAGS_asan := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
MODE_FLAGS_tsan := -O1 -g1 -fsanitize=thread
MODE_FLAGS_fuzz := -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
ifneq ($(filter clang fuzz,$(MODE)),)
override CC := clang
endif
CFLAGS += $(BASE_FLAGS) $(WARN) $(MODE_FLAGS_$(MODE)) $(PKG_CFLAGS)
LDFLAGS += -pthread $(filter -fsanitize=address% -fsanitize=thread,$(MODE_FLAGS_$(MODE)))

PKGS := yaml-0.1 jansson libzstd zlib libxxhash libisal libpcre2-8 libutf8proc hwloc \
  libcrypto libssl sqlite3
ifeq ($(filter clean help deps,$(MAKECMDGOALS)),)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
endif
LIBS := $(PKG_LIBS) -lm

# --- sources -----------------------------------------------------------------------------------
# Files under kernel/cpu/simd are written once over kernel/cpu/simd/vec.h and compiled once per
# instruction set; the table of each is picked at run time. Everything else is compiled once.
SIMD_SRC := $(sort $(wildcard src/kernel/cpu/simd/*.c))
MAIN_SRC := src/cli/main.c
LIB_SRC := $(filter-out $(SIMD_SRC) $(MAIN_SRC),$(sort $(shell find src -name '*.c')))
ARCH := $(shell uname -m)
ISAS := generic
ifeq ($(ARCH),x86_64)
ISAS += avx2 avx512
endif
ISA_FLAGS_generic := -DLS_ISA=generic
ISA_FLAGS_avx2 := -DLS_ISA=avx2 -mavx2 -mfma
ISA_FLAGS_avx512 := -DLS_ISA=avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma \
  -mprefer-vector-width=512
# Optimised, except where that takes long for nothing: the generic version, which is there for old
# machines and for comparing bits, and fuzzing, which does not run kernels. Following variables
# through unrolled loops doubles the time of the compiler.
SIMD_OPT = $(if $(filter release test,$(MODE)),-O3)$(if $(filter fuzz,$(MODE)),-O0)
SIMD_OPT += $(if $(findstring clang,$(CC)),,-fno-var-tracking-assignments)
ISA_FLAGS_generic += $(if $(filter asan,$(MODE)),-O0)$(if $(filter release test,$(MODE)),-O2)

# MODE=test is the release but for the fault points: it compiles again only the sources that have
# some (`make layers` keeps them out of headers), and takes the other objects from there.
H := $(if $(filter build/test,$(B)),build/release,$(B))
ifneq ($(H),$(B))
FAULT_OBJ := $(patsubst src/%.c,%.o,$(shell grep -rlwE 'LS_FAULTS?' src --include='*.c'))
endif
all_of = $(LIB_SRC:src/%.c=$(1)/%.o) $(foreach isa,$(ISAS),$(SIMD_SRC:src/%.c=$(1)/%.$(isa).o))
LIB_OBJ := $(filter-out $(FAULT_OBJ:%=$(H)/%),$(call all_of,$(H))) $(FAULT_OBJ:%=$(B)/%)
MAIN_OBJ := $(MAIN_SRC:src/%.c=$(H)/%.o)
# It carries them inside (.incbin), which the compiler's list of files does not name.
$(H)/observe/page/page_assets.o: $(wildcard src/observe/page/web/*)
$(H)/cli/bench/cmd_bench_peer.o: bench/peers/allreduce_mpi.c bench/peers/allreduce_gloo.py
TEST_SRC := $(sort $(shell find tests -name '*.c' -not -path 'tests/fuzz/*' -not -path 'tests/fake/*' \
  -not -path 'tests/conformance/*' 2>/dev/null))
# Rooms where threads meet; tests of the others have nothing for ThreadSanitizer.
TSAN_ROOMS := base net device comm cluster data observe parallel train
ifeq ($(MODE),tsan)
TEST_SRC := $(filter-out $(filter-out $(TSAN_ROOMS:%=tests/%/%),$(wildcard tests/*/test_*.c)),$(TEST_SRC))
endif
TEST_OBJ := $(TEST_SRC:%.c=$(B)/%.o)
CONFORMANCE_OBJ := $(patsubst %.c,$(B)/%.o,$(sort $(wildcard tests/conformance/*.c)))
SCRIPTS := $(sort $(wildcard tests/e2e/*.sh))

# --- building ----------------------------------------------------------------------------------
.PHONY: all found
all: found lineshaft
lineshaft: build/release/lineshaft
	@ln -sf build/release/lineshaft $@
ifneq ($(H),build/release)
build/release/lineshaft: FORCE
	@$(MAKE) --no-print-directory MODE=release build/release/lineshaft
endif

$(B)/lineshaft: $(LIB_OBJ) $(MAIN_OBJ)
$(H)/lineshaft: $(call all_of,$(H)) $(MAIN_OBJ)
$(sort $(B)/lineshaft $(H)/lineshaft):
	@echo "  link   $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$(B)/lineshaft-test: $(LIB_OBJ) $(TEST_OBJ)
	@echo "  link   $@"
	@$(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) $(LIBS)
# Libraries that tests open in place of a vendor's, beside the test program.
$(B)/lineshaft-test: $(B)/libfake_nvml.so $(B)/libfake_cupti.so $(B)/libfake_badfs.so $(B)/libfake_clock.so
$(B)/libfake_%.so: tests/fake/%.c
	@mkdir -p $(@D)
	@echo "  cc     $< (shared)"
	@$(CC) $(CFLAGS) -fPIC -shared -o $@ $<

# Small programs that conformance tests talk to.
$(B)/conformance-%: $(LIB_OBJ) $(B)/tests/conformance/%.o
	@echo "  link   $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
# A program of a bench, such as bench/tokenizer.c.
$(B)/bench-%: bench/%.c $(LIB_OBJ)
	@echo "  link   $@"
	@$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS) $(LIBS)
$(B)/bench-agents: $(B)/tests/cluster/many_agents.o

define source_rule
$(1)/%.o: src/%.c
	@mkdir -p $$(@D)
	@echo "  cc     $$<"
	@$$(CC) $$(CFLAGS) -MMD -MP -c -o $$@ $$<
endef
$(foreach folder,$(sort $(B) $(H)),$(eval $(call source_rule,$(folder))))
ifneq ($(MODE),release)
$(B)/%.o: CFLAGS += -DLS_FAULTS
endif
$(B)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	@echo "  cc     $<"
	@$(CC) $(CFLAGS) $(if $(filter test,$(MODE)),-O1 -g1) -Itests -MMD -MP -c -o $@ $<
define simd_rule
$(H)/kernel/cpu/simd/%.$(1).o: src/kernel/cpu/simd/%.c
	@mkdir -p $$(@D)
	@echo "  cc     $$< ($(1))"
	@$$(CC) $$(CFLAGS) $$(SIMD_OPT) $$(ISA_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call simd_rule,$(isa))))
# Products of bf16 pairs belong to the avx512 kernels; each instruction is on in its own file only,
# where the compiler knows it.
ifeq ($(ARCH),x86_64)
knows = $(shell $(CC) $(1) -x c -fsyntax-only /dev/null 2>/dev/null && echo $(1))
$(H)/kernel/cpu/dot/dot_%.o: CFLAGS += $(SIMD_OPT) $(ISA_FLAGS_avx512)
$(H)/kernel/cpu/dot/dot_avx512.o: CFLAGS += $(call knows,-mavx512bf16)
$(H)/kernel/cpu/dot/dot_amx.o: CFLAGS += $(call knows,-mamx-tile -mamx-bf16)
endif
# Files that name the version are compiled again when it changes.
VERSIONED := $(shell grep -rlw LS_VERSION src tests --include='*.c')
$(foreach folder,$(sort $(B) $(H)),$(patsubst src/%,$(folder)/%.o,$(basename $(filter src/%,$(VERSIONED))))): VERSION
$(patsubst %.c,$(B)/%.o,$(filter tests/%,$(VERSIONED))): VERSION
# A missing library is named, before the first compiler error.
$(sort $(LIB_OBJ) $(call all_of,$(H))) $(MAIN_OBJ) $(TEST_OBJ) $(CONFORMANCE_OBJ): | libraries
-include $(shell find $(sort $(B) $(H)) -name '*.d' 2>/dev/null)

.PHONY: FORCE
FORCE:

include tools/targets.mk
include tools/cuda.mk
