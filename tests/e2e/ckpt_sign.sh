#!/bin/sh
# ckpt_sign.sh -- signed checkpoints as a user meets them: a key is made, runs sign and resume with it, and refuse what others made.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: sign
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 16}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 2}
train: {steps: 4, lr: 3e-3, schedule: constant, warmup: 2, seed: 3}
checkpoint: {every: 2, keep: 4, mirror: mirror, key: run.key}
eval: {every: 0}
YAML
run 3 "$LINESHAFT" train run.yaml --json --set out=a
says 'lineshaft ckpt key run.key'
run 0 "$LINESHAFT" ckpt key run.key
[ "$(stat -c '%a %s' run.key)" = "600 32" ] || fail "key: $(stat run.key)"
run 6 "$LINESHAFT" ckpt key run.key
run 0 "$LINESHAFT" ckpt key other.key
run 0 "$LINESHAFT" train run.yaml --json --set out=a
run 0 "$LINESHAFT" train run.yaml --json --set out=plain --set checkpoint.key= --set checkpoint.mirror= --set train.steps=6
want=$(field summary weights_hash)

# Anybody with the key can check a manifest with tools of his own, and the objects with sha256sum.
python3 - run.key a/checkpoints/step-0000000004.json <<'PY' || fail "not what the reference says"
import hashlib, hmac, json, os, sys
key, path = open(sys.argv[1], "rb").read(), sys.argv[2]
text = open(path, "rb").read()
manifest = json.loads(text)
signed = text[:text.index(b'  "signature": ')]
want = hmac.new(key, b"lineshaft checkpoint 1\n" + signed, hashlib.sha256).hexdigest()
assert manifest["signature"] == want, manifest["signature"]
for name, row in manifest["objects"].items():
    file = os.path.join(os.path.dirname(path), "objects", name[:2], name + ".safetensors")
    assert hashlib.sha256(open(file, "rb").read()).hexdigest() == row["sha256"], name
PY

# Gone on with by one rank, and by two that have parts: the same bits as without a key.
cp -r a two
run 0 "$LINESHAFT" train run.yaml --json --set out=a --set train.steps=6
[ "$(field start first_step) $(field summary weights_hash)" = "4 $want" ] || fail "resumed otherwise"
run 0 "$LINESHAFT" train run.yaml --json --set out=two --set train.steps=6 --set checkpoint.mirror=mirror2 -n 2 --set mesh.zero=1
[ "$(field start first_step) $(field summary weights_hash)" = "4 $want" ] || fail "two ranks: resumed otherwise"
run 0 "$LINESHAFT" ckpt verify two --key run.key
grep -q '^step 6  ok, .* tensors, signed; follows step 4$' out || fail "verify: $(cat out)"
run 0 "$LINESHAFT" ckpt verify mirror --key run.key
run 0 "$LINESHAFT" ckpt list a --key run.key --json
grep -q '"signature":"good"' out || fail "list: $(cat out)"
run 0 "$LINESHAFT" ckpt list a
grep -q 'ok, signed (not checked)$' out || fail "list: $(cat out)"
run 0 "$LINESHAFT" ckpt diff a two --key run.key
run 0 "$LINESHAFT" ckpt copy a copy --key run.key
run 0 "$LINESHAFT" ckpt verify copy --key run.key
run 0 "$LINESHAFT" generate a --key run.key -p "Once" -n 4 --temperature 0 --json
grep -q 'not checked' err && fail "checked, but: $(cat err)"
run 0 "$LINESHAFT" export a hf --key run.key
run 2 "$LINESHAFT" generate hf --key run.key -p x -n 1
says 'no signature'

# No key: loads, and says what that means.
run 0 "$LINESHAFT" generate a -p "Once" -n 4 --json
says 'the signature was not checked'
cp -r a bare
run 0 "$LINESHAFT" train run.yaml --json --set out=bare --set train.steps=8 --set checkpoint.key= --set checkpoint.mirror=
says 'signature was not checked, and this run does not sign'

# The wrong key, or no signature: refused, by all of them.
run 4 "$LINESHAFT" train run.yaml --json --set out=a --set train.steps=8 --set checkpoint.key=other.key
says 'not made with the key "other.key"'
run 4 "$LINESHAFT" ckpt verify a --key other.key
run 4 "$LINESHAFT" generate a --key other.key -p x -n 1
run 4 "$LINESHAFT" export a hf2 --key other.key
[ ! -e hf2 ] || fail "exported all the same"
run 4 "$LINESHAFT" ckpt copy a copy2 --key other.key
[ ! -e copy2/step-0000000006.json ] || fail "copied all the same"
run 4 "$LINESHAFT" train run.yaml --json --set out=plain --set train.steps=8 --set checkpoint.mirror=
says 'it is not signed'
says 'checkpoint.take_unsigned'
run 0 "$LINESHAFT" train run.yaml --json --set out=plain --set train.steps=8 --set checkpoint.mirror= --set checkpoint.take_unsigned=true
says 'is not signed; it is used because of checkpoint.take_unsigned'
run 0 "$LINESHAFT" ckpt verify plain --key run.key --step 8
run 4 "$LINESHAFT" ckpt verify plain --key run.key
chmod 644 run.key
run 2 "$LINESHAFT" ckpt verify a --key run.key
says 'can be read by others'
exit 0
