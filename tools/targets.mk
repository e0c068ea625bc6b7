# targets.mk -- everything around the build: setting up, testing, checking.
# Lines that begin with "##" are what `make help` prints.

DEPS := gcc make pkg-config libyaml-dev libjansson-dev libzstd-dev zlib1g-dev libxxhash-dev \
  libisal-dev libpcre2-dev libutf8proc-dev libhwloc-dev libssl-dev libsqlite3-dev
TEST_DEPS := $(DEPS) g++ librandom123-dev clang clang-format-14 libclang-rt-14-dev zstd shellcheck \
  man-db python3-minimal
# What one thread does alone is too slow under ThreadSanitizer to be worth it: schedules of
# collectives, played for all ranks, and 64 MiB of one letter. So is what has no threads of its own
# beside those of its neighbours: what a rank that recovers reads from disk or makes again instead of
# taking it (recover_takes_).
TSAN_TESTS ?= $(TSAN_ROOMS:%=tests/%/) \
  $(foreach part,comm/algo/ comm/test_cost comm/test_sched a_document_without_a_place \
  recover_loads_ recover_makes_the_update,--except $(part))
# ThreadSanitizer of gcc 12 and clang 14 cannot map its shadow when addresses are very random.
UNRANDOM := setarch -R true 2>/dev/null && set -- setarch -R;
# Headers only; the libraries are opened at run time. Without them the UCX carrier, or heal.quorum: etcd, is
# left out.
DEPS += libucx-dev libcurl4-openssl-dev
TEST_DEPS += libucx-dev libucx0 iproute2 libcurl4-openssl-dev etcd-server etcd-client

.PHONY: help deps test-deps test check format format-check layers headers shell-check links clang asan model \
  tsan fuzz faults hashes examples conformance clean demo
## make            the program, ./lineshaft
## make demo       install what is missing, build, train a small model, let it talk
## make test       install what is missing, build, run all tests
##                 FILTER=str: only tests whose "path/test_file.c:name" contains str
help:
	@sed -n 's/^## \{0,1\}/  /p' tools/targets.mk tools/cuda.mk

# As many jobs as there are cores, unless make was told otherwise.
JOBS := $(if $(findstring j,$(firstword -$(MAKEFLAGS))),,-j$(shell nproc 2>/dev/null || echo 2))
demo: deps
	@$(MAKE) --no-print-directory $(JOBS) MODE=release found lineshaft
	@./lineshaft train
	@echo
	@echo "Let it talk:   ./lineshaft generate runs/demo --prompt \"One day\""
	@echo "Your own text: ./lineshaft train --print > run.yaml, then edit data: and run ./lineshaft train run.yaml"

found:
	@sh tools/found.sh "$(CC)" "$(PKGS)"
.PHONY: libraries
libraries:
	@sh tools/found.sh --quiet "$(CC)" "$(PKGS)"

## make deps       install the packages that the build needs (test-deps: and those of the tests)
deps:
	@sh tools/deps.sh $(DEPS)
test-deps:
	@sh tools/deps.sh $(TEST_DEPS)

# The program, and the same with fault points, which tests and scripts run. The program comes first, so that
# "make -j lineshaft build-test" has one make at a time that writes build/release.
.PHONY: build-test
build-test: | lineshaft
	@$(MAKE) --no-print-directory $(JOBS) MODE=test found lineshaft build/test/lineshaft build/test/lineshaft-test
test: test-deps
	@$(MAKE) --no-print-directory build-test
	@build/test/lineshaft-test $(FILTER) --scripts $(SCRIPTS)

##
## make check      everything below: what .ci/run adds to the tests
check: format-check layers headers shell-check links
	@$(MAKE) --no-print-directory clang
	@$(MAKE) --no-print-directory asan
	@$(MAKE) --no-print-directory tsan
	@$(MAKE) --no-print-directory fuzz
	@$(MAKE) --no-print-directory model
	@$(MAKE) --no-print-directory examples

SOURCES := $(sort $(shell find src tests tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null))
## make format     rewrite the sources with clang-format 14 (format-check: only compare)
format:
	@clang-format-14 -i $(SOURCES)
format-check:
	@clang-format-14 --dry-run -Werror $(SOURCES)
	@echo "format: ok"
## make layers     includes go only where src/LAYERS allows
layers:
	@sh tools/layers.sh
## make headers    each header compiles alone
headers:
	@CC="$(CC)" sh tools/headers.sh
## make shell-check  shellcheck on every script
shell-check:
	@find . \( -name build -o -name .git -o -name runs \) -prune -o \
	  \( -name '*.sh' -o -path ./.ci/run \) -print0 | sort -z | xargs -0 shellcheck -S warning
	@echo "shellcheck: ok"

## make links      relative links and anchors in *.md lead somewhere
links:
	@sh tools/links.sh

## make clang      build with clang and -Werror, apart from the usual build
clang:
	@$(MAKE) --no-print-directory CI=1 MODE=clang build/clang/lineshaft build/clang/lineshaft-test

## make asan       the tests under AddressSanitizer and UndefinedBehaviorSanitizer
asan:
	@$(MAKE) --no-print-directory MODE=asan build/asan/lineshaft build/asan/lineshaft-test
	@build/asan/lineshaft-test $(FILTER)
## make tsan       the tests of the rooms with threads under ThreadSanitizer
tsan:
	@$(MAKE) --no-print-directory MODE=tsan build/tsan/lineshaft build/tsan/lineshaft-test
	@$(UNRANDOM) "$$@" build/tsan/lineshaft-test $(or $(FILTER),$(TSAN_TESTS))

## make fuzz       run each tests/fuzz/fuzz_*.c for FUZZ_SECONDS=60
FUZZERS := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
fuzz:
	@$(if $(FUZZERS),$(MAKE) --no-print-directory MODE=fuzz $(FUZZERS))
	@FUZZ_SECONDS="$(FUZZ_SECONDS)" sh tools/fuzz.sh $(FUZZERS)
ifeq ($(MODE),fuzz)
# libFuzzer calls LLVMFuzzerTestOneInput(); no header of ours declares it.
build/fuzz/tests/fuzz/%.o: CFLAGS += -Wno-missing-prototypes
# Rooms above all of those whose formats are read.
FUZZ_OBJ := $(filter-out $(foreach room,optim layout parallel plan train launch observe cli,build/fuzz/$(room)/%),$(LIB_OBJ))
$(FUZZERS): build/fuzz/%: build/fuzz/tests/fuzz/%.o $(FUZZ_OBJ)
	@echo "  link   $@"
	@$(CC) -fsanitize=fuzzer,address,undefined -pthread -o $@ $^ $(LIBS)
endif

## make model      check the rules of membership (docs/design/*.pml) with spin
model:
	@sh tools/model.sh

## make faults     break runs in every way there is a test for (docs/design/faults.md), long; QUICK=1: a little
faults:
	@$(MAKE) --no-print-directory MODE=release lineshaft
	@$(MAKE) --no-print-directory MODE=test build/test/lineshaft build/test/lineshaft-test
	@sh tools/faults.sh $(QUICK)

## make hashes     compare the bits of 265 small runs with tests/golden/weights_hash.tsv; FILTER=str: only
##                 rows whose name contains str
hashes:
	@$(MAKE) --no-print-directory MODE=release build/release/lineshaft
	@bench/weights_hash.sh

## make examples   run every example, and every command of docs/start.md, for a few steps
examples:
	@$(MAKE) --no-print-directory MODE=release lineshaft
	@sh tools/examples.sh build/release/lineshaft
	@sh tools/start.sh build/release/lineshaft

## make conformance  compare with PyTorch, transformers, tokenizers and peft (fetched once, kept in
##                 ~/.cache/lineshaft/peers); NAME=models: only tests/conformance/models.py
conformance: test-deps
	@sh tools/deps.sh python3-venv
	@sh tools/conformance.sh $(NAME)

##
## make clean      remove what was built
clean:
	@rm -rf build lineshaft
