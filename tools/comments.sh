#!/bin/sh
# The share of comments in each room: tools/comments.sh [FOLDER ...], folders of src unless given.
#
# A line counts as a comment when it holds nothing else; a line of code with a comment behind it counts in the last column
# only. Blank lines count as lines. The algorithm rooms (comm, parallel, layout, cluster, train, checkpoint) want 15 % or
# more in the last column, without a sentence that repeats the code.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- src/*/
printf '%-22s %8s %8s %7s %7s\n' room lines comment share with-trailing
for room do
    find "$room" -name '*.[ch]' -exec cat {} + | awk -v room="${room%/}" '
        {
            text = $0
            gsub(/"([^"\\]|\\.)*"/, "\"\"", text) # what looks like a comment inside a string is none
            code = ""
            seen = inside
            while (length(text)) {
                if (inside) {
                    end = index(text, "*/")
                    if (!end) break
                    text = substr(text, end + 2)
                    inside = 0
                } else {
                    begin = index(text, "/*")
                    if (!begin) { code = code text; break }
                    code = code substr(text, 1, begin - 1)
                    text = substr(text, begin + 2)
                    inside = seen = 1
                }
            }
            lines++
            gsub(/[ \t\\]/, "", code)
            if (seen) any++
            if (seen && code == "") whole++
        }
        END {
            if (lines)
                printf "%-22s %8d %8d %6.1f%% %6.1f%%\n", room, lines, whole, 100 * whole / lines, 100 * any / lines
        }'
done
