#!/bin/sh
# start.sh PROGRAM -- run every command of docs/start.md, in its order, as a reader would who stands in the project's
# root: what is indented and begins with a command, and files from blocks that begin with "# NAME.yaml".
#
# What a reader has time for is shortened by variables of the environment: training takes a few steps. What needs a GPU
# is checked as a run file. What is fetched from elsewhere is replaced by what the page made before. Folders go to
# build/start.
set -eu
program=$(realpath "$1")
cd "$(dirname "$0")/.."
root=$PWD
rm -rf build/start
mkdir -p build/start/home/models
cd build/start
ln -s "$root/docs" "$root/examples" .
ln -s "$program" lineshaft
export HOME="$PWD/home" NO_COLOR=1 LINESHAFT_TRAIN_STEPS=6 LINESHAFT_TRAIN_WARMUP=1 LINESHAFT_EVAL_SEQUENCES=2

awk '
/^```yaml/ { block = 1; name = ""; next }
/^```/ { block = 0; next }
block && name == "" && /^# [a-z]+\.yaml$/ { name = $2 }
block && name != "" { print > name }
!block && /^    (\.\/lineshaft|make|pip|hf)( |$)/ { sub(/^ +/, ""); print }
' "$root/docs/start.md" >commands

run() { # run COMMAND
    case $1 in
    make | "pip "*) return 0 ;;
    "make demo") set -- "./lineshaft train" ;;
    "hf download "*) set -- "./lineshaft export runs/mine ~/models/gpt2" ;;
    "./lineshaft doctor") return 0 ;; # judges this machine
    *device.kind=cuda*)
        set -- "$(echo "$1" | sed 's/ -n [0-9]*//; s/lineshaft train --set/lineshaft train examples\/stories.yaml --set/; s/ train / config check /')"
        ;;
    esac
    echo "\$ $1"
    eval "timeout 300 $1" </dev/null
}

count=0
while IFS= read -r command; do
    if ! run "$command" >>log 2>&1; then
        tail -n 40 log
        echo "  FAILED docs/start.md: $command"
        exit 1
    fi
    count=$((count + 1))
done <commands
[ "$count" -ge 20 ] || { # the page was written anew?
    echo "  FAILED docs/start.md: only $count commands were found"
    exit 1
}
echo "start: $count commands of docs/start.md"
