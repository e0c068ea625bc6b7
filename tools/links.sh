#!/bin/sh
# links.sh [--paths] -- every relative link in *.md leads to a file that exists, and every #anchor to a heading of it.
# Every file that a comment of src/ names by folder and name (layout/mesh.h: below src/, the comment's room, or the root) exists.
# --paths: every source file that a page names (src/..., tests/..., bench/..., tools/..., examples/...) exists, too.
#
# Anchors are made as GitHub makes them: the heading in lower case without punctuation, blanks as hyphens, -1, -2 ... behind
# one that is there already. Links inside code blocks and to other sites are not looked at.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- '*.md'
else
    find . \( -name build -o -name .git -o -name runs \) -prune -o -name '*.md' -print
fi | sed 's|^\./||' | sort -u | while read -r file; do [ ! -f "$file" ] || echo "$file"; done >"$work/files"

# anchors: FILE#ANCHOR a line; links: FILE LINE TARGET
xargs awk -v anchors="$work/anchors" '
function anchor_of(text) {
    text = tolower(text)
    gsub(/\]\([^)]*\)/, "", text)
    gsub(/[^a-z0-9 _-]/, "", text)
    gsub(/ /, "-", text)
    return text
}
FNR == 1 { fenced = 0; split("", seen) }
/^ *```/ { fenced = !fenced; next }
fenced || /^    / { next }
/^#+ / {
    text = $0
    sub(/^#+ +/, "", text)
    sub(/ +$/, "", text)
    name = anchor_of(text)
    print FILENAME "#" name (name in seen ? "-" seen[name] : "") >anchors
    seen[name]++
}
{
    line = $0
    while (match(line, /\]\([^) ]+\)/)) {
        target = substr(line, RSTART + 2, RLENGTH - 3)
        line = substr(line, RSTART + RLENGTH)
        if (target !~ /^[a-z]+:/)
            print FILENAME, FNR, target
    }
}' <"$work/files" >"$work/links"

bad=0
count=0
while read -r file number target; do
    count=$((count + 1))
    path=${target%%#*}
    if [ -n "$path" ]; then
        path=$(realpath -m --relative-to=. "$(dirname "$file")/$path")
    else
        path=$file
    fi
    if [ ! -e "$path" ]; then
        echo "$file:$number: there is no \"$path\" ($target)"
        bad=$((bad + 1))
        continue
    fi
    case $target in
    *.md#* | \#*)
        if ! grep -qxF "$path#${target#*#}" "$work/anchors"; then
            echo "$file:$number: $path has no heading \"#${target#*#}\""
            bad=$((bad + 1))
        fi
        ;;
    esac
done <"$work/links"
if [ "${1:-}" = --paths ]; then
    xargs grep -noE '\b(src|tests|bench|tools|examples)/[A-Za-z0-9_./-]+\.(c|h|sh|py|cu|cuh|yaml|md)\b' <"$work/files" >"$work/paths" || true
    while IFS=: read -r file number path; do
        count=$((count + 1))
        [ -e "$path" ] && continue
        echo "$file:$number: there is no \"$path\""
        bad=$((bad + 1))
    done <"$work/paths"
fi
# A room is found from the folder of the comment upwards; what stands behind a % is a format, not a name.
grep -rnoE --include='*.[ch]' --include='*.cu' --include='*.cuh' \
    '^[ \t]*#.*|[%A-Za-z0-9_.-]*[a-z0-9_]+/[a-z0-9_/]+\.(c|h|cu|cuh)\b' src | grep -vE '^[^:]*:[0-9]*:[ \t]*#|%' >"$work/named" || true
while IFS=: read -r file number path; do
    count=$((count + 1))
    folder=${file%/*}
    while [ ! -e "$folder/$path" ] && [ "$folder" != . ]; do
        case $folder in
        */*) folder=${folder%/*} ;;
        *) folder=. ;;
        esac
    done
    [ -e "$folder/$path" ] && continue
    echo "$file:$number: there is no \"$path\""
    bad=$((bad + 1))
done <"$work/named"
if [ "$bad" -gt 0 ]; then
    echo "links: $bad of $count are dead"
    exit 1
fi
echo "links: ok ($count)"
