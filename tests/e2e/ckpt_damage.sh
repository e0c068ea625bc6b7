#!/bin/sh
# A damaged checkpoint is passed over with a word about what that costs; a full disk loses nothing.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set checkpoint.keep=3
want_hash=$(field summary weights_hash)
newest=$(ls runs/small/checkpoints/step-*.json | tail -n 1)

# One flipped byte in an object of the newest checkpoint only.
object=$(ls -t runs/small/checkpoints/objects/*/* | head -n 1)
python3 - "$object" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-9, 2)
    b = f.read(1)
    f.seek(-9, 2)
    f.write(bytes([b[0] ^ 16]))
PY
run 4 "$LINESHAFT" ckpt verify runs/small
run 0 "$LINESHAFT" train run.yaml --json
says "damaged"
[ "$(field start first_step)" -lt 40 ] || fail "a damaged checkpoint was loaded"
[ "$(field incident kind)" = resume ] || fail "no incident tells of the older checkpoint"
[ "$(field summary weights_hash)" = "$want_hash" ] || fail "weights differ after falling back"

# Damaged weights: generate, too, takes the newest that verifies. (All of the newest's own objects.)
cp -r runs/small talk
python3 - talk/checkpoints <<'PY'
import glob, json, sys
new, old = [set(json.load(open(p))["objects"]) for p in sorted(glob.glob(sys.argv[1] + "/step-*.json"))[:-3:-1]]
for name in new - old:
    for path in glob.glob(sys.argv[1] + "/objects/**/*" + name[2:] + "*", recursive=True):
        data = bytearray(open(path, "rb").read())
        data[-9] ^= 16
        open(path, "wb").write(data)
PY
run 0 "$LINESHAFT" generate talk --prompt "Once" --tokens 4
says "damaged"

# A truncated manifest.
newest=$(ls runs/small/checkpoints/step-*.json | tail -n 1)
head -c 200 "$newest" >cut.json && cp cut.json "$newest"
run 0 "$LINESHAFT" train run.yaml --json
[ "$(grep -c damaged err)" = 1 ] || fail "a damaged checkpoint is not told once"
[ "$(field summary weights_hash)" = "$want_hash" ] || fail "weights differ after a cut manifest"

# A full disk while training: told, training goes on; at the end: an error, earlier ones intact.
mkdir small-disk
if mount -t tmpfs -o size=600k tmpfs small-disk 2>/dev/null; then
    trap 'umount small-disk' EXIT
    run 3 "$LINESHAFT" train run.yaml --json --set out=small-disk/run
    says "No space left"
    umount small-disk
    trap - EXIT
    mount -t tmpfs -o size=5m tmpfs small-disk && trap 'umount small-disk' EXIT
    run 0 "$LINESHAFT" train run.yaml --json --set out=small-disk/run --set train.steps=12 \
        --set train.schedule=constant
    dd if=/dev/zero of=small-disk/fill bs=64k >/dev/null 2>&1
    run 3 "$LINESHAFT" train run.yaml --json --set out=small-disk/run --set train.steps=14 \
        --set train.schedule=constant
    run 0 "$LINESHAFT" ckpt verify small-disk/run
    rm small-disk/fill
    run 0 "$LINESHAFT" train run.yaml --json --set out=small-disk/run --set train.steps=14 \
        --set train.schedule=constant
    [ "$(field start first_step)" = 12 ] || fail "the checkpoint before the full disk is gone"
fi
