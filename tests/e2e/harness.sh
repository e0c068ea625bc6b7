#!/bin/sh
# harness.sh -- the test runner itself: a test that fails in any way must be reported as failed.
# Builds a small program of deliberately bad tests and reads the runner's report.
set -eu
: "${LINESHAFT_ROOT:?}"
cat >bad.c <<'END'
#include "harness.h"
#include <signal.h>
#include <unistd.h>
#include "base/log.h"

static void quiet(ls_log_level level, const char *line, void *context)
{
    (void)level, (void)line, (void)context;
}

LS_TEST(bad_passes) { LS_CHECK_EQ(1 + 1, 2); }
LS_TEST(bad_check) { LS_CHECK_EQ(1 + 1, 3); }
LS_TEST(bad_number) { LS_CHECK_EQ(0.25f, 0.5); }
LS_TEST(bad_near) { LS_CHECK_NEAR(0.0 / 0.0, 0, 1e9); }
LS_TEST(bad_text) { LS_CHECK_STR("a", "b"); }
LS_TEST(bad_status) { LS_CHECK_FAILS(ls_fail(LS_EIO, "what"), LS_EDATA, "what"); }
LS_TEST(bad_message) { LS_CHECK_FAILS(ls_fail(LS_EIO, "what"), LS_EIO, "who"); }
LS_TEST(bad_crash) { raise(SIGSEGV); }
LS_TEST(bad_bug) { LS_BUG_IF(true, "on purpose"); }
LS_TEST(bad_exit) { exit(0); }
LS_TEST(bad_quick_exit) { _exit(0); }
LS_TEST_SECONDS(bad_hang, 1)
{
    if (fork() == 0)
        execlp("sleep", "sleep", "4242." MARK, (char *)NULL); /* its child must go too */
    pause();
}
LS_TEST(bad_log)
{
    ls_log_set_sink(quiet, NULL, LS_LOG_DEBUG);
    ls_log(LS_LOG_WARN, "nobody announced this");
}
LS_TEST(bad_silence) { LS_EXPECT_LOG(1); }
LS_TEST(bad_announced)
{
    ls_log_set_sink(quiet, NULL, LS_LOG_DEBUG);
    LS_EXPECT_LOG(1);
    ls_log(LS_LOG_ERROR, "announced");
}
LS_TEST(bad_skip)
{
    fprintf(stderr, "chatter\n");
    ls_test_skip("no %s here", "unicorn");
}
LS_TEST(bad_scratch_a) { LS_CHECK(fopen("mine", "wx")); }
LS_TEST(bad_scratch_b) { LS_CHECK(fopen("mine", "wx")); }
END
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ -n "$LINESHAFT_ROOT" ]\n' >good.sh
printf '#!/bin/sh\necho one\necho no network\nexit 77\n' >skip.sh
printf '#!/bin/sh\necho the reason\nexit 3\n' >fail.sh
printf '#!/bin/sh\nkill -9 $$\n' >killed.sh
chmod +x ./*.sh
"${CC:-gcc}" -std=c17 -D_GNU_SOURCE -pthread -DMARK="\"$$\"" -I"$LINESHAFT_ROOT/src" -I"$LINESHAFT_ROOT/tests" -o bad bad.c \
    "$LINESHAFT_ROOT/tests/harness.c" "$LINESHAFT_ROOT"/src/base/err.c \
    "$LINESHAFT_ROOT"/src/base/log.c "$LINESHAFT_ROOT"/src/base/pool.c "$LINESHAFT_ROOT"/src/base/mem.c \
    "$LINESHAFT_ROOT"/src/base/str.c "$LINESHAFT_ROOT"/src/device/cpu/cpus.c \
    "$LINESHAFT_ROOT"/src/device/cpu/cgroup.c -lhwloc

wrong=0
expect() { # expect "LINE BEGINS SO" "AND CONTAINS"
    if ! grep -F -- "$1" report | grep -qF -- "$2"; then
        echo "no line \"$1 ... $2\" in the report"
        wrong=1
    fi
}

code=0
./bad --scripts good.sh skip.sh fail.sh killed.sh missing.sh >report 2>&1 || code=$?
[ "$code" = 1 ] || { echo "exit code $code, expected 1"; wrong=1; }
expect "  ok     bad.c:bad_passes (" " s)"
expect "  ok     bad.c:bad_announced (" " s)"
expect "  ok     bad.c:bad_scratch_a (" " s)"
expect "  ok     bad.c:bad_scratch_b (" " s)"
for t in check number near text status message crash bug exit quick_exit hang log silence; do
    expect "  FAILED bad.c:bad_$t (" " s)"
done
expect "bad.c:" "1 + 1 is 2, expected 3"
expect "bad.c:" "0.25f is 0.25, expected 0.5"
expect "bad.c:" "gave io, expected data (last message: what)"
expect "bad.c:" "said \"what\", expected it to contain \"who\""
expect "bad_crash" ": Segmentation fault"
expect "bad_bug" ": Aborted"
expect "lineshaft: bug at" "on purpose"
expect "bad_hang" ": time limit"
expect "bad_exit" ": the process ended before the test did"
expect "bad_quick_exit" ": the process ended before the test did"
expect "bad.c:" "logged 1 warnings and errors, announced 0"
expect "bad.c:" "logged 0 warnings and errors, announced 1"
expect "  skip   bad.c:bad_skip: no unicorn here" ""
expect "  ok     good.sh (" " s)"
expect "  skip   skip.sh: no network" ""
expect "  FAILED fail.sh (" " s)"
expect "the reason" ""
expect "  FAILED killed.sh (" ": Killed"
expect "  FAILED missing.sh: No such file or directory" ""
expect "2 skipped" ""
[ "$(tail -n 1 report)" = "5 passed, 16 failed" ] || { echo "last line: $(tail -n 1 report)"; wrong=1; }
if grep -qF chatter report; then
    echo "a skip shows more than its reason"
    wrong=1
fi

# What a test starts, ends with it. A process just killed may still be on its way out.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    left=$(grep -lzx "[4]242\.$$" /proc/[0-9]*/cmdline 2>/dev/null || true)
    [ -n "$left" ] || break
    sleep 0.2
done
[ -z "$left" ] || { echo "the hanging test left a process behind"; wrong=1; }

# Filters choose; one that finds nothing is a mistake; only skips is none.
./bad bad_passes >report 2>&1 || { echo "a passing test alone must give exit code 0"; wrong=1; }
[ "$(tail -n 1 report)" = "1 passed, 0 failed" ] || { echo "filter: $(tail -n 1 report)"; wrong=1; }
./bad bad_skip >report 2>&1 || { echo "a skipped test alone must give exit code 0"; wrong=1; }
[ "$(tail -n 1 report)" = "0 passed, 0 failed" ] || { echo "skip: $(tail -n 1 report)"; wrong=1; }
if ./bad no_such_test >report 2>&1; then
    echo "a filter that finds nothing must fail"
    wrong=1
fi
[ "$(./bad --list bad_skip)" = "bad.c:bad_skip" ] || { echo "--list is wrong"; wrong=1; }
[ "$(./bad --list bad_scratch --except tch_a)" = "bad.c:bad_scratch_b" ] || { echo "--except is wrong"; wrong=1; }
# One that failed by bad luck is run once more, alone, and named; what a sanitizer reports is no luck.
cat >luck.sh <<'END'
#!/bin/sh
[ ! -e "$MARK_FILE" ] || exit 0
touch "$MARK_FILE"
echo "$SAYS"
exit 1
END
chmod +x luck.sh
export MARK_FILE="$PWD/mark"
SAYS="too slow" ./bad bad_passes luck --scripts luck.sh >report 2>&1 || { echo "bad luck must not fail"; wrong=1; }
expect "  FAILED luck.sh (" " s)"
expect "  again  luck.sh, alone:" ""
expect "1 passed only when run again, alone" ""
[ "$(tail -n 1 report)" = "2 passed, 0 failed" ] || { echo "luck: $(tail -n 1 report)"; wrong=1; }
rm "$MARK_FILE"
if SAYS="WARNING: ThreadSanitizer: data race" ./bad luck --scripts luck.sh >report 2>&1; then
    echo "a sanitizer's report must fail"
    wrong=1
fi
[ "$wrong" = 0 ] || { echo "--- the report was:"; cat report; }
exit "$wrong"
