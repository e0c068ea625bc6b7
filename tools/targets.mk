# targets.mk -- everything around the build: setting up, testing, checking.

DEPS := gcc make pkg-config libyaml-dev libjansson-dev libzstd-dev zlib1g-dev libxxhash-dev \
  libisal-dev
TEST_DEPS := $(DEPS) librandom123-dev clang clang-format-14 libclang-rt-14-dev zstd shellcheck \
  man-db
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

.PHONY: help deps test-deps test check format format-check layers headers asan tsan clean demo
help:
	@sed -n 's/^#   \(make .*\)/  \1/p' Makefile

found:
	@sh tools/found.sh $(CC) "$(PKGS)"

deps:
	@sh tools/deps.sh $(DEPS)
test-deps:
	@sh tools/deps.sh $(TEST_DEPS)

# The tests need the program itself (scripts) and the same program with fault points.
.PHONY: build-test
build-test:
	@$(MAKE) --no-print-directory MODE=test build/test/lineshaft build/test/lineshaft-test
test: test-deps
	@$(MAKE) --no-print-directory all build-test
	@build/test/lineshaft-test $(FILTER) --scripts $(SCRIPTS)

asan tsan:
	@$(MAKE) --no-print-directory MODE=$@ build/$@/lineshaft build/$@/lineshaft-test
	@build/$@/lineshaft-test $(FILTER)

SOURCES := $(shell git ls-files -co --exclude-standard 'src/*.[ch]' 'tests/*.[ch]' 'tools/*.[ch]' 2>/dev/null)
format:
	@clang-format-14 -i $(SOURCES)
format-check:
	@clang-format-14 --dry-run -Werror $(SOURCES)
layers:
	@sh tools/layers.sh
headers:
	@CC="$(CC)" sh tools/headers.sh

clean:
	@rm -rf build lineshaft
