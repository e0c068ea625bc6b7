#!/bin/sh
# headers.sh -- each header compiles alone, in C and in C++ (those with LS_C_BEGIN).
set -eu
cd "$(dirname "$0")/.."
bad=0
for h in $(find src tests -name '*.h' | sort); do
    case $h in */simd/*) extra="-DLS_ISA=generic" ;; *) extra= ;; esac
    # shellcheck disable=SC2086
    printf '#include "%s"\n' "$h" | ${CC:-gcc} -std=c17 -D_GNU_SOURCE -I. -Isrc -Itests $extra -Wall -Wextra \
        -fsyntax-only -x c - || { echo "$h does not compile alone in C"; bad=1; }
    grep -q LS_C_BEGIN "$h" || continue
    # shellcheck disable=SC2086
    printf '#include "%s"\n' "$h" | g++ -std=c++17 -D_GNU_SOURCE -I. -Isrc $extra -Wall -Wextra -fsyntax-only \
        -x c++ - || { echo "$h does not compile alone in C++"; bad=1; }
done
[ $bad = 0 ] && echo "headers: ok"
exit $bad
