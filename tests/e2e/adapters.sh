#!/bin/sh
# adapters.sh -- adapters (lora.rank) and weights that stay as they are (train.freeze) where ranks hold one model between them (mesh.tp, mesh.ep, mesh.pp):
# losses of one process within 1e-4, with mesh.pp the same bits, checkpoints from mesh to mesh, adapters out of such a run, and what cannot be.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >base.yaml <<'YAML'
name: base
model: {family: llama, layers: 2, width: 48, heads: 4, kv_heads: 2, context: 24, mlp: 64}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 1, group: 1}
train: {steps: 10, lr: 3e-3, schedule: constant, warmup: 0, clip: 0.5, weight_decay: 0.1, seed: 3, reduce: fast}
checkpoint: {every: 0, keep: 2}
eval: {every: 5, sequences: 3, sample: "Once", sample_tokens: 4}
YAML
sed 's/^model:.*/model: {family: olmoe, layers: 2, width: 32, heads: 4, context: 24, mlp: 24, experts: 4, experts_used: 2}/' base.yaml >moe.yaml
for model in base moe; do
    run 0 "$LINESHAFT" train $model.yaml --json --set train.steps=2 --set out=$model
    run 0 "$LINESHAFT" export $model hf-$model
    sed "s/^model:.*/model: {import: hf-$model, context: 24}/;s/^train:/lora: {rank: 4}\n&/" $model.yaml >lora-$model.yaml
done

# meshes FILE MESH...: a run of one process, then the same on each mesh: ranks, and what is set.
meshes() {
    file=$1
    shift
    run 0 "$LINESHAFT" train "$file" --json --set "out=$file.1"
    curve >alone
    field start trained >alone.trained
    for mesh in "$@"; do
        # shellcheck disable=SC2046 # words are what is wanted
        run 0 "$LINESHAFT" train "$file" --json -n "${mesh%%,*}" $(echo "${mesh#*,}" | sed 's/^/--set /;s/,/ --set /g') --set "out=$file.$mesh"
        curve >got
        alike "$file on $mesh" 11 alone got
        [ ! -s err ] || fail "$mesh says: $(cat err)"
        [ "$(field start trained)" = "$(cat alone.trained)" ] || fail "$mesh trains other parameters"
        grep -q '"event":"sample"' out || fail "$mesh writes no sample"
    done
}
meshes lora-base.yaml 2,mesh.tp=2 4,mesh.tp=2,mesh.sp=false,precision=fp32 4,mesh.tp=2,mesh.cp=2
meshes lora-moe.yaml 2,mesh.ep=2 4,mesh.ep=2,mesh.tp=2 4,mesh.pp=2,mesh.ep=2
sed 's/^train: {/&freeze: ["*embed*", "model.layers.0.*", "*.o_proj.*"], /' base.yaml >frozen-base.yaml
sed 's/^train: {/&freeze: ["*.experts.3.*", "*.q_proj.*", "*norm*"], /' moe.yaml >frozen-moe.yaml
meshes frozen-base.yaml 4,mesh.tp=4
meshes frozen-moe.yaml 2,mesh.ep=2 4,mesh.ep=2,mesh.tp=2

# Stages change no bit, also those of which nothing is trained.
for file in lora-base frozen-base; do
    for mesh in 1,1 2,2 4,2; do
        run 0 "$LINESHAFT" train $file.yaml --json -n "${mesh%,*}" --set "mesh.pp=${mesh#*,}" --set train.reduce=ordered --set "out=$file.bits.$mesh"
        losses out >got
        field summary weights_hash >>got
        [ "$mesh" != 1,1 ] || cp got want
        cmp -s want got || fail "$file on $mesh has other bits: $(paste -d ' ' want got)"
    done
done

# A checkpoint of any mesh is gone on with by any other: steps, ranks, and three axes.
for file in lora-moe frozen-moe; do
    curve $file.yaml.1/events.jsonl >alone
    : >parts
    for part in 3,1,1,1,1 5,4,2,2,1 8,4,2,1,2 10,2,1,2,1; do
        # shellcheck disable=SC2046 # words are what is wanted
        set -- $(echo "$part" | tr , ' ')
        run 0 "$LINESHAFT" train $file.yaml --json -n "$2" --set "train.steps=$1" --set "mesh.tp=$3" --set "mesh.ep=$4" --set "mesh.pp=$5" \
            --set checkpoint.every=1 --set out=moved-$file
        losses out >>parts
    done
    curve | tail -n 1 >>parts
    alike "$file, moved from mesh to mesh: it" 11 alone parts
    run 0 "$LINESHAFT" ckpt verify moved-$file
done

# Out: whole, and the adapter alone, with the tensors of one process, nearly.
run 0 "$LINESHAFT" train lora-moe.yaml --json -n 4 --set mesh.ep=2 --set mesh.tp=2 --set out=tuned
run 0 "$LINESHAFT" export tuned hf-tuned
run 0 "$LINESHAFT" export tuned adapter --adapter
run 0 "$LINESHAFT" export lora-moe.yaml.1 adapter1 --adapter
python3 - <<'PY' || fail "the adapters of one process and of a mesh differ"
import array, json, struct
def tensors(folder):
    raw = open(f"{folder}/adapter_model.safetensors", "rb").read()
    (size,) = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8 : 8 + size])
    out = {}
    for name, row in head.items():
        if name != "__metadata__":
            begin, end = row["data_offsets"]
            out[name] = row["shape"], array.array("f", raw[8 + size + begin : 8 + size + end])
    return out
want, got = tensors("adapter1"), tensors("adapter")
assert want.keys() == got.keys() and len(want) == 2 * 4 * 2, (len(want), len(got))
for name, (shape, x) in want.items():
    assert got[name][0] == shape, name
    off = sum((a - b) ** 2 for a, b in zip(x, got[name][1])) ** 0.5
    assert off <= 2e-2 * sum(a * a for a in x) ** 0.5, (name, off)
PY

# What cannot be.
refused 'mesh.zero cannot be 1: lora.rank leaves' lora-base.yaml -n 4 --set mesh.tp=2 --set mesh.zero=1
refused 'mesh.zero cannot be 1: train.freeze leaves' frozen-moe.yaml -n 4 --set mesh.ep=2 --set mesh.zero=1
refused 'no parameter is called' frozen-moe.yaml -n 2 --set mesh.ep=2 --set 'train.freeze=["*.experts.9.*"]'
