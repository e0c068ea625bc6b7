#!/bin/sh
# tools.sh -- the checks themselves: each must fail on what it is there to find, and say it by name.
set -eu
: "${LINESHAFT_ROOT:?}"
wrong=0
refuses() { # refuses "TEXT IT MUST SAY" COMMAND ...
    text=$1
    shift
    if "$@" >said 2>&1; then
        echo "\"$*\" passed, expected: $text"
        wrong=1
    elif ! grep -qF -- "$text" said; then
        echo "\"$*\" did not say \"$text\" but:"
        cat said
        wrong=1
    fi
}
accepts() {
    if ! "$@" >said 2>&1; then
        echo "\"$*\" failed:"
        cat said
        wrong=1
    fi
}

# A small house: low may include nothing, high may include low.
mkdir -p tools src/low src/high tests
cp "$LINESHAFT_ROOT"/tools/layers.sh "$LINESHAFT_ROOT"/tools/headers.sh tools/
printf '# rooms\nlow:\nhigh: low\n' >src/LAYERS
printf '#pragma once\nint low(void);\n' >src/low/low.h
printf '#pragma once\n' >src/low/low_impl.h
printf '#include "low/low.h"\n#include "low/low_impl.h"\nint low(void) { return 1; }\n' >src/low/low.c
printf '#include "low/low.h"\n#include <stdio.h>\n' >src/high/high.c
printf '#pragma once\nint high(void);\n' >src/high/high.h
accepts sh tools/layers.sh
printf '  #  include "high/high.h"\n' >src/low/up.c
refuses 'low/up.c:1: low may not include high/high.h' sh tools/layers.sh
rm src/low/up.c
printf '\n#include "low/low_impl.h"\n' >src/high/private.c
refuses 'high/private.c:2: low/low_impl.h is private to its room' sh tools/layers.sh
printf '#include "high.h"\n' >src/high/private.c
refuses 'high/private.c:1: include "high.h" by its path from src/' sh tools/layers.sh
rm src/high/private.c
mkdir src/attic
printf 'int attic;\n' >src/attic/attic.c
refuses 'room "attic" is not in src/LAYERS' sh tools/layers.sh
rm -r src/attic

accepts sh tools/headers.sh
printf '#pragma once\nsize_t needs_stddef(void);\n' >src/low/lone.h
refuses 'src/low/lone.h does not compile alone in c17' sh tools/headers.sh
printf '#pragma once\n#define LS_C_BEGIN\nint class(void);\n' >src/low/lone.h
refuses 'src/low/lone.h does not compile alone in c++17' sh tools/headers.sh

found=$LINESHAFT_ROOT/tools/found.sh
accepts sh "$found" gcc "yaml-0.1 jansson libzstd zlib libxxhash libisal"
accepts sh "$found" --quiet gcc "zlib"
refuses 'the compiler "no-such-cc" is missing' sh "$found" no-such-cc "zlib"
refuses 'the library "libnone" is missing (Debian package libnone-dev)' sh "$found" gcc "zlib libnone"
refuses 'apt-get install libnone-dev libnothing-dev' sh "$found" --quiet gcc "libnone nothing zlib"
mkdir bin
for t in gcc sh; do ln -s "$(command -v $t)" bin/; done
refuses 'apt-get install pkg-config' env PATH="$PWD/bin" sh "$found" gcc "zlib"
# Missing packages without apt-get: a sentence with their names.
for t in grep mktemp id; do ln -s "$(command -v $t)" bin/; done
refuses 'are missing and apt-get is not here: no-such-package' env PATH="$PWD/bin" \
    sh "$LINESHAFT_ROOT/tools/deps.sh" no-such-package
exit "$wrong"
