#!/bin/sh
# Ordered mode: equal bits for threads, instruction sets, leaves per call and what is recomputed.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
# Wide enough for several tiles of a product, one of them not whole.
sed -i 's/width: 32/width: 72/; s/steps: 40/steps: 50/' run.yaml
want=
for set in device.threads=1 device.threads=2 device.threads=3 device.isa=avx2 device.isa=avx512 device.isa=generic \
    batch.group=2 batch.group=3 device.pack=off device.pack=on train.recompute=full; do
    case $set in
    device.isa=avx2) grep -q avx2 /proc/cpuinfo || continue ;;
    device.isa=avx512) grep -q avx512bw /proc/cpuinfo || continue ;;
    esac
    run 0 "$LINESHAFT" train run.yaml --json --set "$set" --set "out=o-$set" --set checkpoint.every=0
    got="$(field summary weights_hash) $(field summary val_loss)"
    [ -z "$want" ] && want=$got
    [ "$got" = "$want" ] || fail "$set gives $got, expected $want"
done
# What is recomputed is told, with the memory that it saves; auto takes none where all fits.
run 0 "$LINESHAFT" train run.yaml --json --set train.steps=6 --set out=kept
kept=$(field start ledger | sed 's/.*"activations"://')
run 0 "$LINESHAFT" train run.yaml --json --set train.steps=6 --set train.recompute=full --set train.recompute_blocks=1 --set out=full
[ "$(field start recompute) $(field start recompute_blocks)" = "full 1" ] || fail "recompute is not told"
[ "$(field start ledger | sed 's/.*"activations"://')" != "$kept" ] || fail "full recompute needs as much memory"
run 0 "$LINESHAFT" train run.yaml --set train.steps=6 --set train.recompute=auto --set out=auto
grep -q 'recompute none, chosen by the free memory' out || fail "auto does not tell what it chose: $(cat out)"
# Fast mode agrees within a tolerance.
run 0 "$LINESHAFT" train run.yaml --json --set train.reduce=fast --set out=fast
python3 -c "a, b = $(field summary val_loss), ${want#* }; assert abs(a - b) < 2e-3 * b, (a, b)" ||
    fail "fast mode strays"
