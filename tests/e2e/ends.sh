#!/bin/sh
# Where a model's text ends is one answer for a run, its export and every file in it: what training puts
# loss on behind a document, or behind a turn of a conversation.
. "$LINESHAFT_ROOT/tests/lib.sh"
get() { # get FILE KEY
    python3 -IS -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2], "missing"))' "$1" "$2"
}
is() { # is FILE KEY VALUE
    [ "$(get "$1" "$2")" = "$3" ] || fail "$1: $2 is $(get "$1" "$2"), not $3"
}

cat >run.yaml <<'YAML'
model: {family: llama, layers: 1, width: 32, heads: 2, context: 64}
data: {text: [builtin:stories], tokenizer: tok}
batch: {sequences: 2}
train: {steps: 1, lr: 1e-2, warmup: 0}
eval: {every: 0}
YAML
run 0 "$LINESHAFT" data tokenizer --train builtin:stories:64K --vocab 300 -o tok \
    --special "<|endoftext|>" --special "<|im_start|>" --special "<|im_end|>"

# Trained from nothing on documents: the separator, in all files.
run 0 "$LINESHAFT" train run.yaml --set out=plain
run 0 "$LINESHAFT" export plain hf-plain
is hf-plain/config.json eos_token_id 297
is hf-plain/config.json bos_token_id 297
is hf-plain/config.json pad_token_id None
is hf-plain/generation_config.json eos_token_id "[297]"
is hf-plain/generation_config.json bos_token_id 297
is hf-plain/tokenizer_config.json eos_token "<|endoftext|>"

# A run and its export choose tokens alike.
is hf-plain/generation_config.json temperature 0.8
run 0 "$LINESHAFT" generate plain -p "Once" -n 20 --ignore-eos
cp out told
run 0 "$LINESHAFT" generate hf-plain -p "Once" -n 20 --ignore-eos
cmp out told || fail "the export tells another story by default"

# A tokenizer that is one file gets its neighbour.
mkdir one && cp tok/tokenizer.json one/
run 0 "$LINESHAFT" train run.yaml --set out=single --set data.tokenizer=one
run 0 "$LINESHAFT" export single hf-single
is hf-single/tokenizer_config.json eos_token "<|endoftext|>"

# On conversations: what ends a turn, in front of the other.
python3 -IS - <<'PY'
import json
with open("chat.jsonl", "w") as f:
    for _ in range(40):
        print(json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}), file=f)
PY
chat="--set data.text=[chat.jsonl] --set data.template=chatml --set batch.sequences=4 --set train.steps=40"
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml $chat --set out=chat
run 0 "$LINESHAFT" generate chat --chat --prompt Hi --temperature 0 --json
is out finish_reason eos
is out text Ho
run 0 "$LINESHAFT" export chat hf-chat
is hf-chat/config.json eos_token_id "[299, 297]"
is hf-chat/generation_config.json eos_token_id "[299, 297]"
is hf-chat/tokenizer_config.json eos_token "<|im_end|>"
run 0 "$LINESHAFT" generate hf-chat --chat --prompt Hi --temperature 0 --json
is out finish_reason eos
is out text Ho

# From shards of conversations: as the run file names their template; without it, a warning.
run 0 "$LINESHAFT" data build --template chatml --tokenizer tok --context 64 --out chat.lst chat.jsonl
shards="--set data.text=[] --set data.shards=[chat.lst] --set batch.sequences=4"
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml $shards --set data.template=chatml --set train.steps=40 --set out=sharded
grep -q warning err && fail "a run with its template is warned: $(cat err)"
run 0 "$LINESHAFT" generate sharded --chat --prompt Hi --temperature 0 --json
is out finish_reason eos
is out text Ho
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml $shards --set out=untold
says "data.shards holds conversations, but data.template does not name their template"

# Tuned from a model that names its end: that stays, behind the new one; the files that came along say so
# too, and keep the rest.
echo '{"eos_token_id": 297, "top_k": 7, "temperature": 0.70}' >hf-plain/generation_config.json
python3 -IS - <<'PY'
text = open("hf-plain/tokenizer_config.json").read().rstrip().rstrip("}")
open("hf-plain/tokenizer_config.json", "w").write(text + ', "pad_token": "<|endoftext|>", "long": 1000000000000000019884624838656}')
open("hf-plain/special_tokens_map.json", "w").write('{"eos_token": {"content": "<|endoftext|>"}, "more": 1}')
PY
rm -r hf-plain/lineshaft_fingerprint.json
run 0 "$LINESHAFT" import hf-plain ours
grep -v '^model' run.yaml >tune.yaml
echo 'model: {import: ours, context: 64}' >>tune.yaml
sed -i 's/, tokenizer: tok//' tune.yaml
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train tune.yaml $chat --set out=tuned
run 0 "$LINESHAFT" export tuned hf-tuned
is hf-tuned/config.json eos_token_id "[299, 297]"
is hf-tuned/generation_config.json eos_token_id "[299, 297]"
is hf-tuned/generation_config.json top_k 7
grep -q '"temperature": 0.70' hf-tuned/generation_config.json || fail "a number was written anew"
is hf-tuned/tokenizer_config.json eos_token "<|im_end|>"
is hf-tuned/special_tokens_map.json eos_token "<|im_end|>"
is hf-tuned/special_tokens_map.json more 1
grep -q 1000000000000000019884624838656 hf-tuned/tokenizer_config.json || fail "a long number was cut"
run 0 "$LINESHAFT" generate tuned --chat --prompt Hi --temperature 0 --json
is out finish_reason eos

# Where the end of a turn is no token it is a text.
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml $chat --set data.tokenizer=bytes --set model.context=128 --set out=bytes --set train.steps=80
run 0 "$LINESHAFT" generate bytes --chat --prompt Hi --temperature 0 --json
is out finish_reason stop
is out text Ho

# An adapter takes the tokenizer along, which ends as it learned to.
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train tune.yaml $chat --set lora.rank=2 --set train.steps=1 --set out=lora
run 0 "$LINESHAFT" export lora adapter --adapter
is adapter/tokenizer_config.json eos_token "<|im_end|>"
grep -q im_end adapter/chat_template.jinja || fail "the adapter has no template"
run 0 "$LINESHAFT" merge adapter merged --base ours
is merged/tokenizer_config.json eos_token "<|im_end|>"
cmp adapter/tokenizer.json merged/tokenizer.json || fail "the merged model has another tokenizer than the adapter"
cmp adapter/chat_template.jinja merged/chat_template.jinja || fail "the merged model has another template than the adapter"
run 0 "$LINESHAFT" generate merged --chat --prompt Hi --tokens 4
im_end=$(python3 -c 'import json; print(next(t["id"] for t in json.load(open("adapter/tokenizer.json"))["added_tokens"] if t["content"] == "<|im_end|>"))')
python3 -c 'import json, sys; e = json.load(open("merged/config.json"))["eos_token_id"]; assert int(sys.argv[1]) in (e if isinstance(e, list) else [e]), e' "$im_end" ||
    fail "the merged model does not end a turn"

# A config.json that begins texts with another token than its tokenizer: training began them with the tokenizer's.
cp -r hf-plain begins
sed -i 's/"bos_token_id": 297/"bos_token_id": 3/' begins/config.json
is begins/config.json bos_token_id 3
run 0 "$LINESHAFT" train tune.yaml --set model.import=begins --set data.text=builtin:stories --set train.steps=1 --set out=began
run 0 "$LINESHAFT" export began hf-began
is hf-began/config.json bos_token_id 297
is hf-began/generation_config.json bos_token_id 297
