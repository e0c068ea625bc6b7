#!/bin/sh
# A trained model goes out as a Hugging Face folder, comes back, is tuned whole and by LoRA, and goes
# out again; each mistake is said.
. "$LINESHAFT_ROOT/tests/lib.sh"
cat >run.yaml <<'YAML'
name: base
model: {family: llama, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 32, tied: false}
data: {text: [builtin:stories], validation: 5%}
batch: {sequences: 4, leaf: 4}
train: {steps: 30, lr: 1e-2}
eval: {every: 0}
YAML
run 0 "$LINESHAFT" train run.yaml --json
hash=$(field summary weights_hash)

# Out and in: the same weights.
run 0 "$LINESHAFT" export runs/base hf
says "fingerprint  verified"
for file in config.json generation_config.json model.safetensors tokenizer.json \
    lineshaft_fingerprint.json; do
    [ -f "hf/$file" ] || fail "no $file"
done
run 0 "$LINESHAFT" import hf ours
says "plausible?"
says "llama, 47,264 parameters"
says "fingerprint  verified"
says "$hash"
cp -r hf blank
rm blank/lineshaft_fingerprint.json
python3 - <<'PY'
import json, random, struct
random.seed(1)
data = bytearray(open("blank/model.safetensors", "rb").read())
n = struct.unpack("<Q", data[:8])[0]
for name, row in json.loads(data[8:8 + n]).items():
    if name != "__metadata__" and len(row["shape"]) > 1:
        begin, end = (8 + n + at for at in row["data_offsets"])
        data[begin:end] = b"".join(struct.pack("<f", random.gauss(0, 0.02)) for _ in range((end - begin) // 4))
open("blank/model.safetensors", "wb").write(data)
PY
run 0 "$LINESHAFT" import blank blank.ours
says "plausible?   no: loss"
says "it is untrained, or these weights and this tokenizer do not belong together"
run 0 "$LINESHAFT" ckpt verify ours
run 0 "$LINESHAFT" generate hf -p "Once" -n 8 --seed 3
cp out told
run 0 "$LINESHAFT" generate ours -p "Once" -n 8 --seed 3
cmp out told || fail "the import tells another story than the folder"
run 0 "$LINESHAFT" export ours back
cmp hf/model.safetensors back/model.safetensors || fail "the weights changed on the way"
cmp hf/config.json back/config.json || fail "the configuration changed on the way"
run 0 "$LINESHAFT" export ours small --dtype bf16 --max-shard 30K
says "files"
[ -f small/model.safetensors.index.json ] || fail "no index"

# Fine-tuning, from the folder and from the import, starts from the same weights.
cat >tune.yaml <<'YAML'
name: tune
model: {import: hf, context: 16}
data: {text: [builtin:stories], validation: 5%, tokenizer: bytes}
batch: {sequences: 2, leaf: 2}
train: {steps: 3, lr: 1e-4}
eval: {every: 0}
YAML
run 0 "$LINESHAFT" train tune.yaml --json
losses >a
python3 - a <<'PY' || fail "tuning did not start from the trained model"
import sys
first = float(open(sys.argv[1]).readline().split()[1])
assert first < 4.5, first  # a model that knows nothing has ln 256 = 5.5
PY
run 0 "$LINESHAFT" train tune.yaml --json --set model.import=ours --set out=runs/tune2
losses >b
cmp a b || fail "the import trains differently from the folder"
run 0 "$LINESHAFT" train tune.yaml --json --set train.steps=4 # the checkpoint wins over the import
run 0 "$LINESHAFT" generate runs/tune --prompt "Once" --tokens 5
run 0 "$LINESHAFT" train tune.yaml --json --set lora.rank=4 --set out=runs/lora --set train.lr=1e-2
run 0 "$LINESHAFT" export runs/lora merged
grep -q '"max_position_embeddings": 32' merged/config.json || fail "the context of the tuning went out"
says "merged into the weights"
cmp -s hf/model.safetensors merged/model.safetensors && fail "LoRA changed nothing"
run 0 "$LINESHAFT" export runs/lora adapter --adapter
[ -f adapter/adapter_model.safetensors ] || fail "no adapter"
grep -qF "\"base_model_name_or_path\": \"$PWD/hf\"" adapter/adapter_config.json || fail "adapter without base"
run 0 "$LINESHAFT" export runs/lora named --adapter --base someone/base
grep -q '"base_model_name_or_path": "someone/base"' named/adapter_config.json || fail "--base is ignored"
run 0 "$LINESHAFT" import merged tuned

# A run on conversations is asked with the template that it was taught with, and takes it along.
for _ in 1 2 3 4 5 6; do
    echo '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'
done >chat.jsonl
run 4 "$LINESHAFT" train tune.yaml --json --set data.text=[chat.jsonl] --set out=runs/x
says "These are conversations: set data.template"
run 0 "$LINESHAFT" train tune.yaml --json --set data.text=[chat.jsonl] --set data.validation=0 \
    --set data.template=chatml --set model.context=128 --set out=runs/chat
run 0 "$LINESHAFT" generate runs/chat --chat --prompt "Hi" --tokens 3 --context 128
run 0 "$LINESHAFT" export runs/chat chat
grep -q im_start chat/chat_template.jinja || fail "the template stayed behind"
run 2 "$LINESHAFT" generate runs/tune --chat --prompt "Hi"
says "needs a chat template"

# The tokenizer "bytes" as others load it has no token that ends a text: config.json says which byte does, here and where texts are
# tuned on. Where nothing says it, nothing can begin.
run 0 "$LINESHAFT" generate hf --prompt "" -n 1
printf 'A line of text to be tuned on, and more of it.\n%.0s' 1 2 3 4 5 6 7 8 >lines.txt
printf 'model: {import: hf, context: 16}\ndata: {text: lines.txt, validation: 0}\nbatch: {sequences: 2}\ntrain: {steps: 1}\neval: {every: 0}\n' >bytes.yaml
run 0 "$LINESHAFT" train bytes.yaml
cp -r hf endless
sed -i 's/"eos_token_id": 0/"eos_token_id": null/' endless/config.json
run 2 "$LINESHAFT" generate endless --prompt ""
says "so nothing can be generated without a prompt"

# A tokenizer with more tokens than the model is told at once.
mkdir words
run 0 "$LINESHAFT" data tokenizer --train builtin:stories:64K --vocab 300 -o words/tokenizer
cp -r hf larger
cp words/tokenizer/tokenizer.json larger/
run 0 "$LINESHAFT" import larger larger-ours
says "it has 300 tokens and the model 256"
says 'warning: the tokenizer of "larger" cannot be used: generate refuses "larger-ours", and a run on it needs another one'
grep -q "lineshaft generate" out && fail "it offers what cannot work: $(cat out)"
grep -q "and data.tokenizer" out || fail "it does not say what a run needs: $(cat out)"
# So is one that cannot be read; files beside it that are cut are refused.
cp -r hf cut
head -c 900 words/tokenizer/tokenizer.json >cut/tokenizer.json
run 0 "$LINESHAFT" import cut cut-ours
says "cannot be used here: \"cut/tokenizer.json\""
says 'warning: the tokenizer of "cut" cannot be used'
rm cut/tokenizer.json
echo '{"eos_token_id": 0, "max_length": 1000000000000000019884624838656' >cut/generation_config.json
run 4 "$LINESHAFT" import cut cut-too
says '"cut/generation_config.json" is not a JSON object'
[ -e cut-too ] && fail "a refused import left a folder"
# Numbers of Python where nobody reads them are no mistake.
cp -r hf long
echo '{"eos_token_id": 0, "max_length": 1000000000000000019884624838656}' >long/generation_config.json
sed -i 's/"use_cache": true/"use_cache": true, "model_max_length": 1000000000000000019884624838656, "limit": Infinity/' long/config.json
grep -q Infinity long/config.json || fail "config.json has no use_cache"
run 0 "$LINESHAFT" import long long-ours
run 0 "$LINESHAFT" generate long-ours -p "Once" -n 4
run 0 "$LINESHAFT" export long-ours long-back
grep -q Infinity long-back/config.json && fail "the export has no JSON"
run 2 "$LINESHAFT" export runs/tune x --adapter
says "without LoRA"

# What a run took from other folders it keeps: they may go, and it is used, exported and resumed.
run 0 "$LINESHAFT" data tokenizer --train --vocab 300 -o tok builtin:stories
python3 - <<'PY'
import json
config = json.load(open("hf/config.json"))
config.update(pad_token_id=9, eos_token_id=3)
json.dump(config, open("hf/config.json", "w"))
json.dump({"eos_token_id": [3], "top_k": 1}, open("hf/generation_config.json", "w"))
PY
run 0 "$LINESHAFT" train run.yaml --set data.tokenizer=tok --set out=runs/own
run 0 "$LINESHAFT" train tune.yaml --set out=runs/kept --set checkpoint.every=2
for run in own kept; do
    run 0 "$LINESHAFT" generate runs/$run -p "Once" -n 8
    cp out told-$run
done
mv tok tok-moved
mv hf hf-moved
for run in own kept; do
    run 0 "$LINESHAFT" generate runs/$run -p "Once" -n 8
    cmp out told-$run || fail "$run: another story after the folder moved"
    run 0 "$LINESHAFT" export runs/$run out-$run
    says "tokenizer    copied"
done
cmp tok-moved/tokenizer.json out-own/tokenizer.json || fail "another tokenizer"
grep -q '"pad_token_id": 9' out-kept/config.json || fail "pad_token_id was lost"
# what the run taught (byte 0 between documents) stands before what the model had
grep -q '"eos_token_id": \[0, 3\], "top_k": 1' out-kept/generation_config.json || fail "generation_config"
run 0 "$LINESHAFT" train run.yaml --set data.tokenizer=tok --set out=runs/own --set train.steps=32
run 0 "$LINESHAFT" train tune.yaml --set out=runs/kept --set train.steps=5
run 2 "$LINESHAFT" train tune.yaml --set out=runs/new
says "there is no \"hf\""
mv hf-moved hf

# Mistakes.
run 2 "$LINESHAFT" import nowhere x
says "there is no \"nowhere\""
says "Give a Hugging Face folder"
run 2 "$LINESHAFT" generate nowhere
says "Give a Hugging Face folder"
mkdir empty
run 2 "$LINESHAFT" import Qwen/Qwen2.5-0.5B x
says 'hint: If it is a model of the Hugging Face Hub, download it first: `hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`, then name that folder.'
run 2 "$LINESHAFT" generate Qwen/Qwen2.5-0.5B -p x
says 'hf download Qwen/Qwen2.5-0.5B'
run 2 "$LINESHAFT" train --set model.import=Qwen/Qwen2.5-0.5B --set out=x
says 'hf download Qwen/Qwen2.5-0.5B'
run 2 "$LINESHAFT" train --set data.tokenizer=Qwen/Qwen2.5-0.5B --set out=x
says 'hf download Qwen/Qwen2.5-0.5B'
run 2 "$LINESHAFT" train --set data.text=roneneldan/TinyStories --set out=x
says 'hf download --repo-type dataset roneneldan/TinyStories'
run 2 "$LINESHAFT" generate runs/nobody -p x
grep -q 'hf download' err && fail "a mistyped path is taken for a name of the Hub: $(cat err)"
run 2 "$LINESHAFT" import empty x
says "there is no model in \"empty\""
run 2 "$LINESHAFT" import hf ours
says "exists and is not an empty folder"
run 2 "$LINESHAFT" import ours x
says "already"
run 2 "$LINESHAFT" export ours x --dtype f8
says "f32, bf16 or f16"
run 2 "$LINESHAFT" export ours x --max-shard "0.5 "
says "a size such as 5G"
run 2 "$LINESHAFT" train tune.yaml --set model.width=64 --set out=x
says "model.width is 64 but the imported model has 32 (hf/config.json)"
run 2 "$LINESHAFT" train tune.yaml --set model.import=runs/lora --set out=x
says "was trained with LoRA"
# Sizes that only config.json has are not believed before memory is planned for them.
mkdir wide
cp hf/* wide
sed -i 's/"intermediate_size": *[0-9]*/"intermediate_size": 1048576/' wide/config.json
run 4 "$LINESHAFT" train tune.yaml --set model.import=wide --set out=runs/wide
says "but the model needs [1048576, "
mkdir bin
cp hf/config.json bin
echo x >bin/pytorch_model.bin
run 2 "$LINESHAFT" import bin x
says "Convert it to safetensors first"
rm small/model-00002*
run 4 "$LINESHAFT" import small x
says "is missing: model.safetensors.index.json names it"
head -c 20000 hf/model.safetensors >back/model.safetensors
run 4 "$LINESHAFT" import back x
says "is cut off: it has"
[ ! -e x ] || fail "a failed command left something"

# A command that was killed leaves a folder under another name; the next one removes it.
mkdir x.tmp-1
echo half >x.tmp-1/model.safetensors
run 0 "$LINESHAFT" import hf x
ls -d ./*.tmp-* 2>/dev/null && fail "temporary folders were left"
exit 0
