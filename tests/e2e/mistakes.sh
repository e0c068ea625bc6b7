#!/bin/sh
# mistakes.sh -- what a person does wrong in the first hours, and every word of the answer (tests/golden/mistakes.txt).
# LINESHAFT_GOLDEN=write renews the answers; then read them aloud: what could not be done, to what, why, and what to do.
# Wrong values of single keys are in runfile-errors.txt, wrong words of commands in cli-errors.txt.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
golden=$LINESHAFT_ROOT/tests/golden/mistakes.txt
export LC_ALL=C

# lineshaft ARG...: with these words, and the answer, appended to got; of a command that works its first lines of output do not matter.
lineshaft() {
    printf '$ lineshaft' >>got
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./=:,{}+-]* | '') word="'$word'" ;;
        esac
        printf ' %s' "$word" >>got
    done
    echo >>got
    # shellcheck disable=SC2086
    $as "$LINESHAFT" "$@" </dev/null >said 2>err
    status=$?
    # What depends on this machine or moment is a letter.
    sed -e "s|$PWD|DIR|g" -e 's/[0-9.]* [KMGT]iB/N MiB/g' -e 's/objects\/[^"]*"/objects\/X"/' err >>got
    echo "[exit code $status]" >>got
    [ $status -lt 126 ] || fail "lineshaft $* ended by a signal: $(cat err)"
}
mistake() { printf '\n=== %s\n' "$*" >>got; } # mistake WHAT
file() { cat >"$1"; }                         # file NAME <<TEXT
as=                                           # a command that runs what follows without root's rights
[ "$(id -u)" != 0 ] || as_nobody="setpriv --bounding-set -all"

echo 'What lineshaft says to what people do wrong. `LINESHAFT_GOLDEN=write make test FILTER=mistakes.sh` renews it.' >got

# What the mistakes are made with: a text, a run that is finished, its export, and a tokenizer.
file run.yaml <<'YAML'
name: mine
model: {family: llama, layers: 1, width: 16, heads: 2, context: 16}
data: {text: [book.txt], tokenizer: bytes}
batch: {sequences: 2}
train: {steps: 2, warmup: 0}
eval: {every: 0}
YAML
i=0
while [ $i -lt 60 ]; do
    i=$((i + 1))
    echo "Line $i of a book that nobody has written."
done >book.txt
"$LINESHAFT" train run.yaml >log 2>&1 || fail "$(cat log)"
"$LINESHAFT" export runs/mine hf >log 2>&1 || fail "$(cat log)"
"$LINESHAFT" data tokenizer --train book.txt --vocab 280 --special '<|endoftext|>' -o tok >log 2>&1 || fail "$(cat log)"

# --- words on the command line -------------------------------------------------------------------------------
mistake 'the run file without a command'
lineshaft run.yaml
mistake 'a command of other programs'
lineshaft finetune run.yaml
lineshaft chat hf
lineshaft run run.yaml
lineshaft infer hf
lineshaft convert hf out
lineshaft tokenize book.txt
mistake 'a command with a dash'
lineshaft --train run.yaml
mistake 'a flag before the command'
lineshaft --set train.lr=1e-3 train run.yaml
mistake 'a name of the run file behind a flag'
lineshaft train --config run.yaml
mistake 'two run files'
lineshaft train run.yaml run.yaml
mistake 'flags of other programs'
lineshaft train run.yaml --lr 3e-4
lineshaft train run.yaml --epochs 3
lineshaft train run.yaml --batch-size 8
lineshaft train run.yaml --output-dir out
lineshaft train run.yaml --resume
lineshaft train run.yaml --gpus 2
lineshaft train run.yaml --device cuda
lineshaft train run.yaml --bf16
lineshaft generate hf --max-new-tokens 10
mistake 'a blank instead of the equals sign'
lineshaft train run.yaml --set train.lr 1e-3
mistake 'a colon instead of the equals sign'
lineshaft train run.yaml --set 'train.lr: 1e-3'
mistake 'blanks around the equals sign'
lineshaft train run.yaml --set train.lr = 1e-3
mistake 'a setting without --set'
lineshaft train run.yaml train.lr=1e-3
lineshaft train run.yaml --train.lr=1e-3
mistake 'one dash'
lineshaft train run.yaml -set train.lr=1e-3
mistake 'a dash of a word processor'
lineshaft train run.yaml –set train.lr=1e-3
mistake 'two settings in one'
lineshaft train run.yaml --set train.lr=1e-3,train.steps=5
mistake 'a comma as the decimal point'
lineshaft train run.yaml --set train.lr=0,001
mistake 'a pattern that the shell has opened'
lineshaft train run.yaml --set data.text=book.txt log
mistake 'quotes inside quotes'
lineshaft train run.yaml --set 'train.steps="5"'
mistake 'numbers of ranks'
lineshaft train run.yaml -n 0 --set out=o
lineshaft train run.yaml -n two --set out=o
lineshaft train run.yaml -n 100000 --set out=o

# --- the run file --------------------------------------------------------------------------------------------
mistake 'another ending'
lineshaft train run.yml
mistake 'a folder as run file'
lineshaft train runs/mine
lineshaft train hf
mistake 'a text as run file'
lineshaft train book.txt
mistake 'weights as run file'
lineshaft train hf/model.safetensors
mistake 'an empty run file'
: >empty.yaml
lineshaft train empty.yaml
mistake 'no right to read'
cp run.yaml locked.yaml
chmod 000 locked.yaml
as=${as_nobody:-}
lineshaft train locked.yaml
as=
chmod 600 locked.yaml
mistake 'a run file of another program'
file other.toml <<'YAML'
[model]
layers = 4
YAML
lineshaft train other.toml
file other.py <<'YAML'
batch_size = 12
max_iters = 5000
YAML
lineshaft train other.py
file other.json <<'YAML'
{"model_name_or_path": "gpt2", "learning_rate": 1e-4}
YAML
lineshaft train other.json
mistake 'keys of other programs in a run file of ours'
for key in 'learning_rate: 2e-5' 'num_train_epochs: 3' 'max_seq_length: 512' 'per_device_train_batch_size: 8' 'output_dir: out' 'bf16: true' \
    'fp16: false' 'use_cuda: true' 'lora_dropout: 0.05' 'lora_target_modules: [q_proj]' 'logging_steps: 10' 'report_to: wandb' \
    'sample_packing: true' 'flash_attention: true' 'eval_strategy: steps' 'deepspeed: zero3.json'; do
    { cat run.yaml && echo "$key"; } >keys.yaml
    lineshaft config check keys.yaml
done
printf 'name: mine\ntrain:\n  max_steps: 100\n' >keys.yaml
lineshaft config check keys.yaml
mistake 'a program that saves UTF-16'
printf '\377\376n\0a\0m\0e\0:\0 \0x\0\n\0' >utf16.yaml
lineshaft config check utf16.yaml
mistake 'a byte order mark and line ends of Windows, which are no mistakes'
printf '\357\273\277' >windows.yaml
sed 's/$/\r/' run.yaml >>windows.yaml
lineshaft config check windows.yaml
mistake 'a tab in front of a key'
printf 'name: mine\nmodel:\n\tlayers: 1\n' >tab.yaml
lineshaft train tab.yaml
mistake 'no blank behind the colon'
printf 'name:mine\nmodel: {layers: 1}\n' >blank.yaml
lineshaft train blank.yaml
printf 'name: mine\ntrain:\n  lr:1e-3\n' >blank.yaml
lineshaft train blank.yaml
mistake 'a path of Windows in double quotes'
printf 'name: mine\ndata: {text: "C:\\Users\\me\\book.txt"}\n' >path.yaml
lineshaft train path.yaml
mistake 'a comment with slashes'
printf 'name: mine // my model\n// the model\nmodel: {layers: 1}\n' >slashes.yaml
lineshaft train slashes.yaml
mistake 'the name of a model instead of its parts'
printf 'model: gpt2\ndata: {text: book.txt}\n' >model.yaml
lineshaft train model.yaml
mistake 'the name of a text instead of a mapping'
printf 'model: {layers: 1, width: 16, heads: 2, context: 16}\ndata: book.txt\n' >data.yaml
lineshaft train data.yaml
mistake 'the device as a word'
printf 'device: cuda\nmodel: {layers: 1, width: 16, heads: 2, context: 16}\ndata: {text: book.txt}\n' >device.yaml
lineshaft train device.yaml
mistake 'values of other programs'
for set in precision=bfloat16 precision=float16 precision=mixed model.family=GPT2 model.family=llama3 model.family=gemma device.kind=cuda:0 device.kind=gpu \
    device.kind=mps train.optimizer=adam train.optimizer=adamw_torch train.objective=sft train.objective=ppo train.schedule=cosine_with_warmup train.steps=1,000 train.steps=1e3 train.steps=10k \
    train.steps=-1 train.warmup=10% data.validation=10 data.validation=100% train.lr=2 train.seed=random batch.sequences=auto data.tokenizer=gpt2 \
    checkpoint.every=epoch data.template=alpaca lora.targets=all-linear; do
    lineshaft config check run.yaml --set "$set"
done
mistake 'sizes that do not go together'
lineshaft train run.yaml --set model.heads=3
lineshaft train run.yaml --set model.width=18 --set model.heads=2
lineshaft train run.yaml --set model.kv_heads=3
lineshaft train run.yaml --set model.width=2048 --set model.heads=1
lineshaft train run.yaml --set model.context=100000
lineshaft train run.yaml --set model.vocab=100
lineshaft train run.yaml --set model.layers=900 --set model.width=65536 --set model.heads=512
# Where there is no GPU, what is missing depends on the machine.
run 2 env CUDA_VISIBLE_DEVICES= "$LINESHAFT" train run.yaml --set device.kind=cuda
says 'cannot train on device "cuda": '
says 'hint: '

# --- texts ---------------------------------------------------------------------------------------------------
mistake 'a text that is not there'
lineshaft train run.yaml --set data.text=bok.txt --set out=o
mistake 'a folder as text'
mkdir -p texts
lineshaft train run.yaml --set data.text=texts --set out=o
lineshaft train run.yaml --set 'data.text=texts/*.txt' --set out=o
mistake 'the home of a shell'
lineshaft train run.yaml --set 'data.text=~/nobody/book.txt' --set out=o
lineshaft train run.yaml --set 'data.text=$NOWHERE/book.txt' --set out=o
mistake 'an address as text'
lineshaft train run.yaml --set data.text=https://example.org/book.txt --set out=o
lineshaft train run.yaml --set data.text=s3://bucket/book.txt --set out=o
mistake 'a data set of the Hub'
lineshaft train run.yaml --set data.text=roneneldan/TinyStories --set out=o
mistake 'an empty text'
: >empty.txt
lineshaft train run.yaml --set data.text=empty.txt --set out=o
mistake 'a text of another encoding'
printf 'caf\351 au lait, caf\351 cr\350me\n' >latin1.txt
lineshaft train run.yaml --set data.text=latin1.txt --set out=o
printf '\377\376H\0e\0l\0l\0o\0' >utf16.txt
lineshaft train run.yaml --set data.text=utf16.txt --set out=o
mistake 'a document that is no text'
printf '%%PDF-1.7\n%%\342\343\317\323\n' >paper.pdf
lineshaft train run.yaml --set data.text=paper.pdf --set out=o
printf 'PK\003\004\024\000' >paper.docx
lineshaft train run.yaml --set data.text=paper.docx --set out=o
printf 'PAR1\025\004' >set.parquet
lineshaft train run.yaml --set data.text=set.parquet --set out=o
printf 'text,label\nhello,1\n' >set.csv
lineshaft train run.yaml --set data.text=set.csv --set out=o
mistake 'a compressed file that is none, and one that is cut'
echo 'no zip' >fake.txt.gz
lineshaft train run.yaml --set data.text=fake.txt.gz --set out=o
gzip -c book.txt | head -c 100 >cut.txt.gz
lineshaft train run.yaml --set data.text=cut.txt.gz --set out=o
mistake 'too little text'
head -c 40 book.txt >short.txt
lineshaft train run.yaml --set data.text=short.txt --set out=o
mistake 'JSON that is not a line each'
printf '[{"text": "a"},\n {"text": "b"}]\n' >array.jsonl
lineshaft train run.yaml --set data.text=array.jsonl --set out=o
cp array.jsonl array.json
lineshaft train run.yaml --set data.text=array.json --set out=o
printf '{\n  "text": "a"\n}\n' >pretty.jsonl
lineshaft train run.yaml --set data.text=pretty.jsonl --set out=o
mistake 'a broken line'
printf '{"text": "fine"}\n{"text": "cut\n' >broken.jsonl
lineshaft train run.yaml --set data.text=broken.jsonl --set out=o
printf "{'text': 'quotes of Python'}\n" >python.jsonl
lineshaft train run.yaml --set data.text=python.jsonl --set out=o
mistake 'another field'
printf '{"content": "a", "id": 7}\n' >field.jsonl
lineshaft train run.yaml --set data.text=field.jsonl --set out=o
printf '{"text": 7}\n' >number.jsonl
lineshaft train run.yaml --set data.text=number.jsonl --set out=o
mistake 'conversations as texts, and texts as conversations'
printf '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}\n' >chat.jsonl
lineshaft train run.yaml --set data.text=chat.jsonl --set out=o
printf '{"text": "fine"}\n' >text.jsonl
lineshaft train run.yaml --set data.text=text.jsonl --set data.template=chatml --set out=o
lineshaft train run.yaml --set data.text=book.txt --set data.template=chatml --set out=o
mistake 'instructions in the form of Alpaca'
printf '{"instruction": "Say hi", "input": "", "output": "Hi"}\n' >alpaca.jsonl
lineshaft train run.yaml --set data.text=alpaca.jsonl --set data.template=chatml --set out=o
mistake 'conversations with mistakes'
printf '{"messages": [{"role": "user", "content": "Hi"}]}\n' >chat1.jsonl
lineshaft data chat chat1.jsonl --tokenizer tok --template chatml
printf '{"messages": [{"role": "bot", "content": "Hi"}]}\n' >chat2.jsonl
lineshaft data chat chat2.jsonl --tokenizer tok --template chatml
printf '{"messages": {"role": "user", "content": "Hi"}}\n' >chat3.jsonl
lineshaft data chat chat3.jsonl --tokenizer tok --template chatml
printf '{"messages": [{"role": "user"}, {"role": "assistant", "content": "Ho"}]}\n' >chat4.jsonl
lineshaft data chat chat4.jsonl --tokenizer tok --template chatml
printf '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x.png"}]}, {"role": "assistant", "content": "Ho"}]}\n' >chat5.jsonl
lineshaft data chat chat5.jsonl --tokenizer tok --template chatml
mistake 'a window of another length than any run has'
lineshaft data build chat.jsonl --tokenizer tok --template chatml --out long.lst
lineshaft data build chat.jsonl --tokenizer tok --template chatml --context 1000000000000 --out long.lst
mistake 'preferences with mistakes'
file prefer.yaml <<'YAML'
name: preferred
model: {import: hf}
data: {text: [pairs.jsonl]}
train: {objective: dpo, steps: 2, warmup: 0}
YAML
lineshaft train prefer.yaml --set data.text=book.txt
printf '{"prompt": "a", "chosen": "b"}\n' >pairs.jsonl
lineshaft train prefer.yaml
printf '{"prompt": "a", "chosen": "b", "rejected": "c"}\n' >pairs.jsonl
lineshaft train prefer.yaml --set train.objective=kto
lineshaft train prefer.yaml --set model.import=runs/mine/best
mistake 'a template that is not there'
lineshaft data chat chat.jsonl --tokenizer tok --template chat.jinja
mistake 'a shard that is none'
lineshaft train run.yaml --set data.text=[] --set data.shards=book.txt --set out=o

# --- tokenizers and models -----------------------------------------------------------------------------------
mistake 'a tokenizer that is not there'
lineshaft train run.yaml --set data.tokenizer=nowhere --set out=o
lineshaft train run.yaml --set data.tokenizer=texts --set out=o
mistake 'a tokenizer of the Hub'
lineshaft train run.yaml --set data.tokenizer=Qwen/Qwen2.5-0.5B --set out=o
mistake 'a tokenizer of SentencePiece, and one of an old kind'
mkdir -p sp old words
printf '\n\016\n\005<unk>' >sp/tokenizer.model
lineshaft train run.yaml --set data.tokenizer=sp --set out=o
lineshaft train run.yaml --set data.tokenizer=sp/tokenizer.model --set out=o
echo '{"a": 0}' >old/vocab.json
: >old/merges.txt
lineshaft train run.yaml --set data.tokenizer=old --set out=o
echo '{"version": "1.0", "model": {"type": "WordPiece", "vocab": {"a": 0}}}' >words/tokenizer.json
lineshaft train run.yaml --set data.tokenizer=words --set out=o
mistake 'a tokenizer that is cut'
mkdir -p cut
head -c 500 tok/tokenizer.json >cut/tokenizer.json
lineshaft train run.yaml --set data.tokenizer=cut --set out=o
mistake 'a model that is not there'
lineshaft import nowhere models/x
lineshaft import Qwen/Qwen2.5-0.5B models/x
lineshaft import book.txt models/x
lineshaft import texts models/x
lineshaft import hf
mistake 'a model whose weights are elsewhere'
mkdir -p noweights pickled pointer gguf
cp hf/config.json noweights
lineshaft import noweights models/x
cp hf/config.json pickled
: >pickled/pytorch_model.bin
lineshaft import pickled models/x
cp hf/config.json pointer
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n' >pointer/model.safetensors
lineshaft import pointer models/x
printf 'GGUF\003\0\0\0' >gguf/model.gguf
lineshaft import gguf models/x
lineshaft import gguf/model.gguf models/x
mistake 'a model that was not loaded to its end'
cp -r hf short
head -c 2000 hf/model.safetensors >short/model.safetensors
lineshaft import short models/x
cp -r hf index
rm index/model.safetensors
echo '{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}' >index/model.safetensors.index.json
lineshaft import index models/x
mistake 'a config.json that is none'
cp -r hf broken
echo '{"model_type": "llama",' >broken/config.json
lineshaft import broken models/x
echo '{"architectures": ["LlamaForCausalLM"]}' >broken/config.json
lineshaft import broken models/x
mistake 'a family that is not built'
sed 's/"model_type": *"llama"/"model_type": "gemma3"/' hf/config.json >broken/config.json
lineshaft import broken models/x
sed 's/"model_type": *"llama"/"model_type": "bert"/' hf/config.json >broken/config.json
lineshaft import broken models/x
mistake 'an adapter as a model'
mkdir -p adapter
echo '{"peft_type": "LORA", "base_model_name_or_path": "nowhere"}' >adapter/adapter_config.json
lineshaft import adapter models/x
lineshaft merge adapter merged
mistake 'a folder that is not empty'
lineshaft import hf runs
lineshaft export runs/mine hf
mistake 'a model that is tuned'
file tune.yaml <<'YAML'
name: tuned
model: {import: hf}
data: {text: [book.txt]}
batch: {sequences: 2}
train: {steps: 2, warmup: 0}
YAML
lineshaft train tune.yaml --set model.import=nowhere
lineshaft train tune.yaml --set model.import=meta-llama/Llama-3.2-1B
lineshaft train tune.yaml --set model.layers=2
lineshaft train tune.yaml --set model.context=64 --set out=o
lineshaft train tune.yaml --set data.tokenizer=tok
lineshaft train tune.yaml --set lora.rank=2 --set lora.targets=[query]
lineshaft train tune.yaml --set 'train.freeze=[layers.0.*]'
lineshaft train tune.yaml --set lora.targets=[q_proj]
lineshaft train tune.yaml --set data.text=chat.jsonl --set data.template=auto

# --- runs ----------------------------------------------------------------------------------------------------
mistake 'nothing to generate from'
mkdir -p empty
lineshaft generate
lineshaft generate nowhere
lineshaft generate empty
lineshaft generate runs
lineshaft generate run.yaml
lineshaft generate book.txt
lineshaft generate hf/model.safetensors
lineshaft generate adapter
lineshaft generate Qwen/Qwen2.5-0.5B
mkdir -p runs/new/data
: >runs/new/events.jsonl
lineshaft generate runs/new
mistake 'a prompt without its flag'
lineshaft generate hf Once upon a time
lineshaft generate hf 'Once upon a time'
mistake 'a prompt that is not there'
lineshaft generate hf --prompt-file nowhere.txt
lineshaft generate hf --prompt a --prompt-file book.txt
mistake 'numbers that do not fit'
lineshaft generate hf --prompt a --temperature -1
lineshaft generate hf --prompt a --temperature hot
lineshaft generate hf --prompt a --top-p 90
lineshaft generate hf --prompt a --tokens -5
lineshaft generate hf --prompt a --context 1000
mistake 'a chat with a model that knows none'
lineshaft generate hf --chat --prompt Hi
mistake 'other settings for a run that is to go on'
lineshaft train run.yaml --set train.steps=4 --set model.layers=2
lineshaft train run.yaml --set train.steps=4 --set batch.sequences=4
lineshaft train run.yaml --set train.steps=4 --set data.tokenizer=tok
lineshaft train run.yaml --set train.steps=4 --set train.lr=1e-4
lineshaft train run.yaml --set train.steps=4 --override lr=1e-4
lineshaft train run.yaml --set train.steps=4 --override model.layers=2
echo 'One more line.' >>book.txt
lineshaft train run.yaml --set train.steps=4
mistake 'a place where no run can be'
lineshaft train run.yaml --set out=book.txt
lineshaft train run.yaml --set out=book.txt/run
mkdir -p readonly
chmod 555 readonly
as=${as_nobody:-}
lineshaft train run.yaml --set out=readonly/run
as=
mistake 'an export that cannot be'
lineshaft export runs/mine
lineshaft export nowhere exported
lineshaft export empty exported
lineshaft export runs/mine book.txt
lineshaft export runs/mine exported --dtype fp8
lineshaft export runs/mine exported --dtype q4_0
lineshaft export runs/mine exported --adapter
lineshaft export run.yaml exported
mistake 'checkpoints that are not there'
lineshaft ckpt list empty
lineshaft ckpt list run.yaml
lineshaft ckpt show nowhere
lineshaft ckpt verify empty
mistake 'a checkpoint that is cut'
cp -r runs/mine damaged
find damaged/checkpoints/objects -type f -exec sh -c 'chmod u+w "$1" && echo >"$1"' - {} \;
lineshaft generate damaged --prompt a
lineshaft train run.yaml --set out=damaged --set train.steps=4
mistake 'an evaluation of nothing'
lineshaft eval hf
lineshaft eval hf --text nowhere.txt
lineshaft eval --text book.txt
mistake 'questions with mistakes'
for line in '{"query": "a", "choices": ["x", "y"], "gold": 2}' '{"query": "a", "choices": ["x"], "gold": 0}' '{"query": "a\\ud800", "choices": ["x", "y"], "gold": 0}' \
    '{"query": "a", "choices": ["x", "y"], "gold": NaN}' '{"question": "a", "options": ["x", "y"]}'; do
    printf '%b\n' "$line" >task.jsonl
    lineshaft eval hf --task task.jsonl
done

if [ "${LINESHAFT_GOLDEN:-}" = write ]; then
    cp got "$golden"
    exit 0
fi
diff -u "$golden" got >differ || fail "other answers than in tests/golden/mistakes.txt:
$(head -n 60 differ)"
