#!/bin/sh
# weights_hash.sh [--record] -- the bits of training: a table of small runs on the CPU, and for each the hash of its weights, its last
# loss and its validation loss, compared with those that tests/golden/weights_hash.tsv has.
#   every family of models, products of all axes, schedules, ZeRO stages, precisions, optimizers, adapters, sync: local and ps, hosts
#   of a lab, runs that stop and go on elsewhere, and runs whose ranks are killed
# A change that promises not to touch the mathematics must leave all rows as they are. Most rows are in ordered mode; none depends on
# the instruction set, on threads or on how busy the machine is, so any x86-64 machine and any variable that sets a key must give the
# same table: LINESHAFT_DEVICE_ISA=generic bench/weights_hash.sh. Rows in fast mode are here only where their order is fixed too.
#   --record     write the table instead, or the rows that FILTER chooses
#   FILTER="str ..."  only rows whose name has one of these in it   JOBS=2   LINESHAFT=PROGRAM   TABLE=FILE
# Ends with 1 when a row differs or fails. Rows that need hosts of a lab, or AVX-512, are left out, and counted, where there is none.
# About a minute on two cores; no figure of speed.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${LINESHAFT:-}" ]; then
    make --no-print-directory build/release/lineshaft >/dev/null
    LINESHAFT=$PWD/build/release/lineshaft
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # words are what is wanted
LINESHAFT=$LINESHAFT NO_COLOR=1 python3 bench/weights_hash.py --work "$work" --table "${TABLE:-tests/golden/weights_hash.tsv}" \
    --jobs "${JOBS:-2}" "$@" ${FILTER:-}
