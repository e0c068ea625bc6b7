#!/bin/sh
# generate: same seed same text, stop strings, JSON, Hugging Face folders, bad input, Ctrl-C.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --set train.steps=20 --set out=m
g() { # g STATUS FLAGS...
    wanted=$1
    shift
    run "$wanted" "$LINESHAFT" generate m "$@"
}
get() { # get KEY: of the JSON object in out
    python3 -c 'import json, sys; print(json.load(open("out"))[sys.argv[1]])' "$1"
}

# The text does not depend on the cache, on pieces, or on how it is shown.
g 0 -p "Once" -n 12 --seed 5
cp out plain
grep -q "4 tokens of prompt (.*/s), 12 added (.*/s), ended by --tokens" err || fail "no summary: $(cat err)"
g 0 -p "Once" -n 12 --seed 5 --quiet
cmp out plain || fail "--quiet changed the text"
[ ! -s err ] || fail "--quiet is not quiet: $(cat err)"
printf Once >p.txt
g 0 --prompt-file p.txt -n 12 --seed 5
cmp out plain || fail "a prompt from a file differs"
"$LINESHAFT" generate m --prompt-file - -n 12 --seed 5 <p.txt >out 2>err || fail "standard input"
cmp out plain || fail "a prompt from standard input differs"
# A pipe is a prompt, with the flag or without it; the line feed that echo adds is none of the text.
echo Once | "$LINESHAFT" generate m -n 12 --seed 5 >out 2>err || fail "a pipe: $(cat err)"
cmp out plain || fail "a prompt from a pipe differs"
echo Once | "$LINESHAFT" generate m -p - -n 12 --seed 5 >out 2>err || fail "--prompt -: $(cat err)"
cmp out plain || fail "a prompt from --prompt - differs"
"$LINESHAFT" generate m -n 12 --seed 5 <p.txt >out 2>err || fail "a file at standard input: $(cat err)"
cmp out plain || fail "a prompt from a file at standard input differs"
says "ended by --tokens; temperature 0.8, top-p 0.95, seed 5"
g 0 -p "Once" -n 12 --temperature 0
says "ended by --tokens; temperature 0"

g 0 -p "Once" -n 12 --seed 5 --json
grep -q '"sampling":{"temperature":0.8,' out || fail "no temperature: $(cat out)"
[ "Once$(get text)" = "$(cat plain)" ] || fail "JSON tells another text: $(cat out)"
[ "$(get finish_reason)" = length ] && [ "$(get stop)" = None ] || fail "finish_reason: $(cat out)"
[ "$(get prompt_ids)" = "[79, 110, 99, 101]" ] || fail "prompt_ids: $(cat out)"

# A text that outgrows the context goes on.
g 0 -p "Once" -n 150 --json --ignore-eos
[ "$(python3 -c 'import json; print(len(json.load(open("out"))["ids"]))')" = 150 ] || fail "150 tokens"
g 0 -p "Once" -n 50 --context 8 --temperature 0 --repetition-penalty 1.3 --min-p 0.1 --top-k 5 -v
says "keys and values"

# A stop string ends the text before it, the first one counts, and the rest is never shown.
text=$(tail -c +5 plain)
stop=$(printf %s "$text" | cut -c4-6)
g 0 -p "Once" -n 12 --seed 5 --stop "never met" --stop "$stop" --json
[ "$(get finish_reason)" = stop ] && [ "$(get stop)" = "$stop" ] || fail "stop: $(cat out)"
case "$text" in "$(get text)$stop"*) ;; *) fail "the text is not a beginning: $(cat out)" ;; esac

# Nothing to continue is fine; what cannot be meant is told before anything is loaded.
g 0 -n 3 </dev/null
g 0 -p "" -n 3
g 0 -p - -n 3 </dev/null
: >empty
g 0 --prompt-file empty -n 3
g 2 -p x --top-p 0 && says "--top-p must be a number above 0 and at most 1"
g 2 -p x --top-p 1.5 && says "not \"1.5\""
g 2 -p x --temperature -1 && says "--temperature"
g 2 -p x --temperature nan && says "not \"nan\""
g 2 -p x --min-p inf && says "--min-p"
g 2 -p x --top-k 2.5 && says "whole number"
g 2 -p x --repetition-penalty 0 && says "above 0"
g 2 -p x --tokens 0 && says "--tokens"
g 2 -p x --seed zwei && says "not \"zwei\""
g 2 -p x --stop "" && says "--stop is empty"
g 2 -p x --stop "$(printf '\377')" && says "UTF-8"
g 2 -p x --prompt-file p.txt && says "only one"
g 2 -p x --context 33 && says "the model has 32 positions"
g 2 -p "a prompt that is much longer than 32" && says "the prompt has 36 tokens"
g 2 -p "Once upon" --context 4 && says "raise --context"
g 2 -p x --chat && says "chat template"
g 3 --prompt-file nowhere.txt && says "nowhere.txt"
run 2 "$LINESHAFT" generate nowhere -p x
says nowhere

# A Hugging Face folder: special tokens, ends, defaults of generation_config.json, a chat template,
# and a vocabulary that is larger than the tokenizer.
python3 - <<'PY'
import json, os, random, struct
random.seed(3)
C, F, V, T = 16, 24, 300, 64
os.mkdir("hf")
shapes = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,), "lm_head.weight": (V, C)}
for n, s in (("self_attn.q_proj", (C, C)), ("self_attn.k_proj", (8, C)), ("self_attn.v_proj", (8, C)),
             ("self_attn.o_proj", (C, C)), ("mlp.gate_proj", (F, C)), ("mlp.up_proj", (F, C)),
             ("mlp.down_proj", (C, F)), ("input_layernorm", (C,)), ("post_attention_layernorm", (C,))):
    shapes[f"model.layers.0.{n}.weight"] = s
head, at, data = {}, 0, b""
for n, s in shapes.items():
    count = s[0] * (s[1] if len(s) > 1 else 1)
    values = [random.gauss(0, 0.5) + (len(s) == 1) for _ in range(count)]
    head[n] = {"dtype": "F32", "shape": list(s), "data_offsets": [at, at + 4 * count]}
    data += struct.pack(f"<{count}f", *values)
    at += 4 * count
text = json.dumps(head).encode()
open("hf/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": C, "intermediate_size": F,
           "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": V,
           "max_position_embeddings": T, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
           "rope_theta": 10000.0, "bos_token_id": 256, "eos_token_id": 257}, open("hf/config.json", "w"))
# The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and so on.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
other = iter(range(256, 512))
vocab = {chr(b) if b in plain else chr(next(other)): b for b in range(256)}
special = [{"id": 256 + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True} for i, c in enumerate(("<s>", "</s>", "<user>", "<bot>"))]
json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
           "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
               {"Sequence": {"id": "B", "type_id": 1}}],
               "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}},
           "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                     "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                     "merges": []}}, open("hf/tokenizer.json", "w"))
json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template":
           "{{ bos_token }}{% for m in messages %}<user>{{ m.content }}{% endfor %}"
           "{% if add_generation_prompt %}<bot>{% endif %}"}, open("hf/tokenizer_config.json", "w"))
PY
run 0 "$LINESHAFT" generate hf -p "hi<user>" -n 12 --temperature 0 --ignore-eos --json
[ "$(get prompt_ids)" = "[256, 104, 105, 258]" ] || fail "first and special tokens: $(cat out)"
greedy=$(get ids)
python3 -c 'import json; assert max(json.load(open("out"))["ids"]) < 260' || fail "an unused row was chosen"
run 0 "$LINESHAFT" generate hf -p hi -n 60 --temperature 100 --top-p 1 --ignore-eos --json
python3 -c 'import json; assert max(json.load(open("out"))["ids"]) < 260' || fail "an unused row was chosen"
run 0 "$LINESHAFT" generate hf -p hi --chat -n 3 --json
[ "$(get prompt_ids)" = "[256, 258, 104, 105, 259]" ] || fail "chat: $(cat out)"
echo '{"do_sample": false, "temperature": 9, "eos_token_id": [257, 999]}' >hf/generation_config.json
run 0 "$LINESHAFT" generate hf -p "hi<user>" -n 12 --ignore-eos --json
[ "$(get ids)" = "$greedy" ] || fail "do_sample: false is not greedy: $(cat out)"
first=$(echo "$greedy" | tr -d '[]' | cut -d, -f1)
echo "{\"do_sample\": false, \"eos_token_id\": [257, $first]}" >hf/generation_config.json
run 0 "$LINESHAFT" generate hf -p "hi<user>" -n 12 --json
[ "$(get finish_reason)" = eos ] && [ "$(get ids)" = "[$first]" ] || fail "an end token: $(cat out)"
for bad in '{"top_p": 7}' '{"temperature": "hot"}' '[1]' '{"top_k": 1' '{"top_k": -3}'; do
    echo "$bad" >hf/generation_config.json
    run 4 "$LINESHAFT" generate hf -p x -n 1
    says "generation_config.json"
done
echo '{"top_p": 7}' >hf/generation_config.json
run 0 "$LINESHAFT" generate hf -p x -n 1 --top-p 0.5

# A conversation at a terminal. A model that only knows small letters, so that answers are read back.
cp -r hf talk
rm talk/generation_config.json
python3 - <<'PY'
import json, struct
data = bytearray(open("talk/model.safetensors", "rb").read())
n = struct.unpack("<Q", data[:8])[0]
row = json.loads(data[8:8 + n])["lm_head.weight"]
begin, width = 8 + n + row["data_offsets"][0], 4 * row["shape"][1]
for i in range(row["shape"][0]):
    if not 97 <= i <= 122:
        data[begin + i * width:begin + (i + 1) * width] = bytes(width)
open("talk/model.safetensors", "wb").write(data)
config = json.load(open("talk/tokenizer_config.json"))
config["chat_template"] = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}<bot>{% else %}<user>"
                           "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}")
json.dump(config, open("talk/tokenizer_config.json", "w"))
PY
cat >session.py <<'PY'
"""Type each line at the prompt of a command that runs at a terminal, ^C in its answer; print what it shows."""
import os, pty, sys
def show(text):
    os.write(1, text)
lines = sys.argv[1].split("|")
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
waiting, answered = b"", 0
while True:
    try:
        seen = os.read(fd, 4096)
    except OSError:
        break
    if not seen:
        break
    show(seen)
    waiting, answered = (waiting + seen)[-3:], answered + len(seen)
    if lines and lines[0] == "^C" and answered > 200:
        os.write(fd, b"\x03")
        lines.pop(0)
    elif waiting in (b"\n> ", b"\n. ") and lines:
        os.write(fd, lines.pop(0).replace("^D", "\x04").encode() + b"\n")
        waiting, answered = b"", 0
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
talk() { # talk LINES FLAGS...: what the terminal showed is in out
    lines=$1
    shift
    run 0 python3 session.py "$lines" "$LINESHAFT" generate talk --chat --temperature 0 --ignore-eos "$@"
    tr -d '\r' <out >shown
}
said() { # the answers of the session
    grep -E '^[a-z]+$' shown
}
talk 'hi|ho|/quit' -n 4
first=$(said | sed -n 1p) second=$(said | sed -n 2p)
run 0 "$LINESHAFT" generate talk -p "<user>hi<bot>$first<user>ho<bot>" -n 4 --temperature 0 --ignore-eos --json
[ "$(get text)" = "$second" ] || fail "the second answer does not know the first one: $(cat shown out)"
grep 'tokens of prompt' shown | sed -n 2p | grep -q '^[45] tokens' || fail "nothing was reused: $(cat shown)"
talk 'hi|/reset|hi|/system ho|hi|^D' -n 4
[ "$(said | sed -n 1p)" = "$(said | sed -n 2p)" ] || fail "/reset keeps something: $(cat shown)"
run 0 "$LINESHAFT" generate talk -p "<user>ho<user>hi<bot>" -n 4 --temperature 0 --ignore-eos --json
[ "$(get text)" = "$(said | sed -n 3p)" ] || fail "/system: $(cat shown out)"
long=$(printf '%070d' 0)
talk "hi\\|ho|$long|/frob|hi|hi|hi|hi|hi|hi|hi|hi|/quit" -n 4
says "oldest turn is left out"
says "the message has 73 tokens, but the context holds 64"
says "there is no such command"
talk 'hi|^C|hi|^C|/quit' -n 100000000
[ "$(grep -c 'added .*, interrupted; temperature 0' shown)" = 2 ] || fail "Ctrl-C in an answer: $(tail -c 300 shown)"
run 2 python3 session.py "x" "$LINESHAFT" generate talk --chat --json
says "a conversation has many answers"

# A full disk is told; a reader that goes away is none of our business.
"$LINESHAFT" generate m -p x -n 5 >/dev/full 2>err
[ $? = 3 ] || fail "a full disk: $(cat err)"

# Ctrl-C: what was said is said, and the code tells. A shell starts background jobs with SIGINT
# ignored, and the program sets its own action when it begins to talk, so wait for the first text.
: >out # the shell may open it late, and the text of another run is not this one's
"$LINESHAFT" generate m -p "Once" -n 100000000 --ignore-eos >out 2>err &
pid=$!
until [ "$(wc -c <out)" -gt 50 ]; do sleep 0.02; done
kill -INT $pid
wait $pid
code=$?
[ $code = 130 ] || fail "Ctrl-C gives $code, expected 130"
says "interrupted"
says "stopped: after"
[ "$(tail -c 1 out | od -An -c | tr -d ' ')" = '\n' ] || fail "the text does not end with its line"
