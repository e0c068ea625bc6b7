#!/bin/sh
# fine_tuning.sh -- a fine-tuned gpt2 keeps all learned positions of the model it came from, however short its sequences were.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
rest='data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 2}
train: {steps: 2, lr: 1e-2, warmup: 0, weight_decay: 0}
eval: {every: 0}'
printf 'name: base\nmodel: {family: gpt2, layers: 2, width: 32, heads: 2, context: 48}\n%s\n' "$rest" >base.yaml
printf 'name: tuned\nmodel: {import: hf, context: 16}\n%s\n' "$rest" >tuned.yaml
run 0 "$LINESHAFT" train base.yaml
run 0 "$LINESHAFT" export runs/base hf

# table FOLDER: rows of the position table in config.json and in the weights, then the hash of rows 16 and above.
table() {
    python3 - "$1" <<'PY'
import hashlib, json, struct, sys
config = json.load(open(sys.argv[1] + "/config.json"))
raw = open(sys.argv[1] + "/model.safetensors", "rb").read()
size, = struct.unpack_from("<Q", raw)
row = json.loads(raw[8 : 8 + size])["transformer.wpe.weight"]
begin, end = row["data_offsets"]
bytes_ = raw[8 + size + begin : 8 + size + end]
print(config["n_positions"], *row["shape"], hashlib.sha256(bytes_[16 * 32 * 4 :]).hexdigest())
PY
}

# Short sequences cut nothing: checkpoint, export, and back again; with ZeRO, a pipeline, and by adapters.
table hf >want
for way in '' '-n 2 --set mesh.zero=3' '--set mesh.pp=2' '--set mesh.tp=2' '--set lora.rank=2'; do
    rm -rf runs/tuned out-hf
    # shellcheck disable=SC2086 # words are what is wanted
    run 0 "$LINESHAFT" train tuned.yaml $way
    run 0 "$LINESHAFT" ckpt show runs/tuned
    grep -q '48 x 32 .*transformer.wpe.weight' out || fail "the checkpoint ($way) has no 48 positions: $(grep wpe out)"
    run 0 "$LINESHAFT" export runs/tuned out-hf
    table out-hf >got
    cmp -s want got || fail "fine-tuning ($way) changed the table of positions from $(cat want) to $(cat got)"
done
run 0 "$LINESHAFT" generate runs/tuned --prompt "Once upon a time there was" --tokens 4 --context 48
run 2 "$LINESHAFT" generate runs/tuned --prompt "Once" --context 49
says 'the model has 48 positions'
run 0 "$LINESHAFT" import out-hf again
run 0 "$LINESHAFT" ckpt show again
grep -q '48 x 32 .*transformer.wpe.weight' out || fail "the import of the export has no 48 positions"

# A smaller table is made where it is asked for, and a larger one is refused.
run 0 "$LINESHAFT" train tuned.yaml --set model.positions=16 --set out=cut
run 0 "$LINESHAFT" export cut cut-hf
[ "$(table cut-hf | cut -d ' ' -f 1-2)" = "16 16" ] || fail "model.positions: 16 gives $(table cut-hf)"
run 2 "$LINESHAFT" train tuned.yaml --set model.positions=64 --set out=no
says 'model.positions is 64 but the imported model learned 48'
run 2 "$LINESHAFT" train tuned.yaml --set model.positions=8 --set out=no
says 'model.context is 16 but model.positions is 8'
run 2 "$LINESHAFT" train base.yaml --set model.family=llama --set model.positions=64 --set out=no
says 'the positions of llama are rotary'
exit 0
