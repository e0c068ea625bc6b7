#!/bin/sh
# headers.sh -- each header compiles alone, in C and in C++ (those with LS_C_BEGIN).
set -eu
cd "$(dirname "$0")/.."
cc=${CC:-gcc}
alone() { # alone HEADER COMPILER STANDARD LANGUAGE
    case $1 in */simd/*) isa=-DLS_ISA=generic ;; *) isa=-DLS_NO_ISA ;; esac
    printf '#include "%s"\n' "$1" | "$2" "-std=$3" -D_GNU_SOURCE -I. -Isrc -Itests $isa -Wall \
        -Wextra -Werror -fsyntax-only -x "$4" - && return
    echo "$1 does not compile alone in $3"
    return 1
}
bad=0
list=$(mktemp)
find src tests -name '*.h' | sort >"$list"
while read -r h; do
    alone "$h" "$cc" c17 c || bad=1
    if grep -q LS_C_BEGIN "$h"; then
        alone "$h" g++ c++17 c++ || bad=1
    fi
done <"$list"
rm -f "$list"
[ $bad = 0 ] && echo "headers: ok"
exit $bad
