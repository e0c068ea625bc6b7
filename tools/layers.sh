#!/bin/sh
# layers.sh -- every include between rooms must be allowed by src/LAYERS, and no room may include
# another room's *_impl.h or a header of another room's private folder. A folder that LAYERS names is a room of its own, also inside another one:
# a file belongs to the deepest of them. No header has a fault point: a build with them compiles
# again only the sources that have some (Makefile). No two sources have the same base name, but for a .c
# file and the header beside it. Prints each offence and fails when there is one.
set -eu
cd "$(dirname "$0")/../src"
find . \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | sed 's|^\./||' | sort | xargs awk '
# The deepest room of a path, "" when LAYERS names none.
function room_of(path,    at) {
    at = path
    while (sub("/[^/]*$", "", at))
        if (at in known) return at
    return ""
}
# Rooms inside of one share its private headers.
function top_of(room,    parts) {
    split(room, parts, "/")
    return parts[1]
}
# A permission is a room, or a folder of rooms.
function allowed(from, to,    at) {
    at = to
    do if ((from, at) in may) return 1
    while (sub("/[^/]*$", "", at))
    return 0
}
FILENAME == "LAYERS" { if ($0 ~ /^#/ || NF == 0) next
            split($0, part, ":"); room = part[1]
            if (sub("!$", "", room)) hidden[room] = 1
            known[room] = 1
            n = split(part[2], low, " "); for (i = 1; i <= n; i++) may[room, low[i]] = 1
            next }
FNR == 1 { from = room_of(FILENAME)
    if (from == "") { split(FILENAME, at, "/"); print FILENAME ": room \"" at[1] "\" is not in src/LAYERS"; bad = 1 } }
/^[ \t]*#[ \t]*include[ \t]*"/ {
    path = $0; sub(/^[^"]*"/, "", path); sub(/".*/, "", path)
    if (split(path, parts, "/") < 2) { print FILENAME ":" FNR ": include \"" path "\" by its path from src/"; bad = 1; next }
    to = room_of(path)
    if (from != to && !allowed(from, to)) {
        print FILENAME ":" FNR ": " from " may not include " path; bad = 1 }
    if (top_of(from) != top_of(to) && (path ~ /_impl\.h$/ || to in hidden)) {
        print FILENAME ":" FNR ": " path " is private to its room"; bad = 1 }
}
/LS_FAULT\(|^[ \t]*#.*LS_FAULTS/ && FILENAME ~ /\.h$/ && FILENAME != "base/fault.h" {
    print FILENAME ":" FNR ": a fault point in a header"; bad = 1 }
END { exit bad }' LAYERS
find . -name '*.[ch]' | sed 's|^\./||' | sort | awk '
{ name = $0; sub(/.*\//, "", name); base = name; sub(/\.[ch]$/, "", base); folder = substr($0, 1, length($0) - length(name))
  if (base in place && place[base] != folder) {
      print $0 ": the base name is that of " first[base]; bad = 1 }
  if (!(base in place)) { place[base] = folder; first[base] = $0 } }
END { exit bad }'
echo "layers: ok"
