#!/bin/sh
# examples.sh PROGRAM -- train every run file of examples/ for a few steps, from the project's root,
# as a reader would; run folders go to build/examples.
set -eu
program=$(realpath "$1")
cd "$(dirname "$0")/.."
rm -rf build/examples
mkdir -p build/examples
count=0
for file in examples/*.yaml; do
    name=$(basename "$file" .yaml)
    log=build/examples/$name.log
    start=$(date +%s)
    if ! timeout 300 "$program" train "$file" --set out="build/examples/$name" --set train.steps=4 \
        --set train.warmup=1 --set eval.sequences=2 >"$log" 2>&1 </dev/null; then
        tail -n 40 "$log"
        echo "  FAILED $file"
        exit 1
    fi
    echo "  ok     $file ($(($(date +%s) - start)) s)"
    count=$((count + 1))
done
echo "examples: $count ran"
