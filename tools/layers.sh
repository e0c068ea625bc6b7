#!/bin/sh
# layers.sh -- every include between rooms must be allowed by src/LAYERS, and no room may include
# another room's *_impl.h. No header has a fault point: a build with them compiles again only the
# sources that have some (Makefile). Prints each offence and fails when there is one.
set -eu
cd "$(dirname "$0")/../src"
find . \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | sed 's|^\./||' | sort | xargs awk '
FILENAME == "LAYERS" { if ($0 ~ /^#/ || NF == 0) next
            split($0, part, ":"); room = part[1]; known[room] = 1
            n = split(part[2], low, " "); for (i = 1; i <= n; i++) may[room, low[i]] = 1
            next }
FNR == 1 { split(FILENAME, at, "/"); from = at[1]; seen[from] = 1
    if (!(from in known)) { print FILENAME ": room \"" from "\" is not in src/LAYERS"; bad = 1 } }
/^[ \t]*#[ \t]*include[ \t]*"/ {
    path = $0; sub(/^[^"]*"/, "", path); sub(/".*/, "", path)
    if (split(path, to, "/") < 2) { print FILENAME ":" FNR ": include \"" path "\" by its path from src/"; bad = 1; next }
    if (from != to[1] && !((from, to[1]) in may)) {
        print FILENAME ":" FNR ": " from " may not include " path; bad = 1 }
    if (from != to[1] && path ~ /_impl\.h$/) {
        print FILENAME ":" FNR ": " path " is private to its room"; bad = 1 }
}
/LS_FAULT\(|^[ \t]*#.*LS_FAULTS/ && FILENAME ~ /\.h$/ && FILENAME != "base/fault.h" {
    print FILENAME ":" FNR ": a fault point in a header"; bad = 1 }
END { exit bad }' LAYERS
echo "layers: ok"
