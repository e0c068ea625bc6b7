#!/bin/sh
# examples.sh PROGRAM -- run every example in a short form, in a copy under build/examples.
#
# A folder of examples/ with a run.sh is run through it, with LINESHAFT naming the program and
# LINESHAFT_SHORT=1 asking for a few steps only; every other run file (*.yaml) is trained for 4 steps.
set -eu
program=$(realpath "$1")
cd "$(dirname "$0")/.."
if [ ! -d examples ]; then
    echo "examples: none"
    exit 0
fi
rm -rf build/examples
mkdir -p build
cp -R examples build/examples
cd build/examples
export LINESHAFT="$program" LINESHAFT_SHORT=1
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find . \( -name run.sh -o -name '*.yaml' \) | sort >"$list"
count=0
while read -r file; do
    folder=$(dirname "$file")
    name=$(basename "$file")
    case $name in
    run.sh) set -- sh run.sh ;;
    *)
        if [ -e "$folder/run.sh" ]; then continue; fi
        set -- "$program" train "$name" --set train.steps=4
        ;;
    esac
    start=$(date +%s)
    if ! (cd "$folder" && timeout 300 "$@") >log 2>&1 </dev/null; then
        tail -n 40 log
        echo "  FAILED examples/${file#./}"
        exit 1
    fi
    echo "  ok     examples/${file#./} ($(($(date +%s) - start)) s)"
    count=$((count + 1))
done <"$list"
echo "examples: $count ran"
