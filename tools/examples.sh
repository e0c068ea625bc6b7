#!/bin/sh
# examples.sh PROGRAM -- train every run file of examples/ for a few steps, as a reader would who stands
# in the project's root; run folders and models go to build/examples.
#
# A run file may name commands: "# before: lineshaft ..." runs before the training, "# after: ..." after
# it. The order matters: llama.yaml makes the model that those behind it start from.
set -eu
order="stories large-batch your-text mixture exact local-sgd param-server pipeline tensor-parallel long experts auto llama finetune lora chat preference"
program=$(realpath "$1")
cd "$(dirname "$0")/.."
root=$PWD
rm -rf build/examples
mkdir -p build/examples
cd build/examples
ln -s "$root/README.md" "$root/docs" "$root/src" "$root/examples" .

# commands WHEN FILE: run what the file's comments say.
commands() {
    sed -n "s/^# $1: *lineshaft //p" "$2" | while IFS= read -r line; do
        echo "\$ lineshaft $line"
        eval "timeout 300 \"\$program\" $line" </dev/null || exit 1
    done
}

one() {
    commands before "$1" && timeout 300 "$program" train "$1" --set train.steps=4 \
        --set train.warmup=1 --set eval.sequences=2 </dev/null && commands after "$1"
}

for file in examples/*.yaml; do
    case " $order " in
    *" $(basename "$file" .yaml) "*) ;;
    *)
        echo "  FAILED $file is not in the order of tools/examples.sh"
        exit 1
        ;;
    esac
done
count=0
for name in $order; do
    file=examples/$name.yaml
    start=$(date +%s)
    if ! one "$file" >"$name.log" 2>&1; then
        tail -n 40 "$name.log"
        echo "  FAILED $file"
        exit 1
    fi
    echo "  ok     $file ($(($(date +%s) - start)) s)"
    count=$((count + 1))
done
echo "examples: $count ran"
