"""as_people_do.py -- from save_pretrained to our fine-tuning and back, for every family, as people do it.

A tiny model of each family and its tokenizer are written by transformers' own save_pretrained. We import the
folder and tune it on documents, on conversations and by LoRA; transformers loads the exports with AutoTokenizer,
peft the adapters, and llama.cpp a GGUF file where llama-cpp-python is installed. Everybody's greedy text must be
the text of `lineshaft generate`, token by token, and must end where ours ends, by the exported settings alone.

The models learn a dozen sentences by heart: their texts are words, and end.
"""
import importlib.util, json, os, subprocess, sys
import gguf, torch, peft, tokenizers, transformers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import LINESHAFT

TOKENS = 40
TIE = 1e-3
CPP = importlib.util.find_spec("llama_cpp") is not None
ANIMALS = {"fox": "honey", "otter": "fish", "crow": "walnuts", "hare": "clover"}
DOCUMENTS = ["The %s lives by the river. Every morning it looks for %s.\nIn the evening it sleeps." % pair for pair in ANIMALS.items()]
PROMPTS = ["The fox", "The crow lives", "Every"]


def questions():
    return ["What does the %s eat?" % animal for animal in ANIMALS]


def conversations(thoughts, swapped=False):
    """Of one and of two turns, with and without a system message; the answers differ by what is asked."""
    def answer(text):
        return {"role": "assistant", "content": text, **({"reasoning_content": "Let me see."} if thoughts else {})}
    foods = list(ANIMALS.values())
    for animal, food in zip(ANIMALS, foods[::-1] if swapped else foods):
        asked = {"role": "user", "content": "What does the %s eat?" % animal}
        first = [asked, answer("It eats %s." % food)]
        yield first
        yield first + [{"role": "user", "content": "Where?"}, answer("By the river,\nwith a friend.")]
        if not thoughts:  # these families' templates here know no system message
            continue
        yield [{"role": "system", "content": "You know animals."}] + first


# --- tokenizers, each as its family has it ------------------------------------------------------------------
def texts():
    return DOCUMENTS + [m["content"] for c in conversations(True) for m in c]


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# As Qwen3's does: thoughts stand in front of the last answer only.
THINKING = ("{% for m in messages %}<|im_start|>{{ m.role }}\n"
            "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
            "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
HEADERS = ("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
           "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
INST = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}")
LINES = ("{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}")
PHI = ("{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")


def learned(pattern, specials, vocab=420):
    """A byte-level BPE of these texts, cut by a pattern."""
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials, show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def parts_of(tok):
    """Vocabulary and merges, as the tokenizer classes of transformers take them."""
    model = json.loads(tok.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(m) for m in model["merges"]]}


def sentence_piece():
    """What Llama 2 and Mistral have: spaces are part of words, bytes stand in for unknown letters."""
    tok = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=True)
    tok.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=[
        "<unk>", "<s>", "</s>", *("<0x%02X>" % b for b in range(256))]))
    vocab = parts_of(tok)["vocab"]
    # A SentencePiece model joins any two pieces that make one, the piece with the lower number first.
    merges = [(p[:i], p[i:]) for p in sorted(vocab, key=vocab.get) if not p.startswith("<") for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab]
    return {"vocab": vocab, "merges": merges}


def shared(name):
    """A tokenizer of the shared data, or None."""
    home = os.path.join(os.environ["LINESHAFT_DATA"], "tokenizers", name)
    return transformers.AutoTokenizer.from_pretrained(home) if os.path.isdir(home) else None


def gpt2_tokenizer():
    """GPT-2 has no template: people add the tokens of ChatML to it."""
    tok = shared("gpt2") or transformers.GPT2Tokenizer(**parts_of(learned(None, ["<|endoftext|>"])))
    tok.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "pad_token": "<|endoftext|>"})
    tok.chat_template = CHATML
    return tok


def llama_tokenizer():
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tok = learned(LLAMA3, specials)
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", tok.token_to_id("<|begin_of_text|>"))])])
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=specials[0], eos_token=specials[1],
                                               model_input_names=["input_ids", "attention_mask"])
    tok.chat_template = HEADERS
    return tok


def mistral_tokenizer():
    tok = transformers.LlamaTokenizer(**sentence_piece(), add_bos_token=True)
    tok.chat_template = INST
    return tok


def phi_tokenizer():
    """Its special tokens swallow the white space behind them."""
    tok = transformers.LlamaTokenizer(**sentence_piece(), eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    tok.add_tokens([tokenizers.AddedToken(t, rstrip=True, normalized=False, special=True)
                    for t in ("<|assistant|>", "<|system|>", "<|end|>", "<|user|>")], special_tokens=True)
    tok.chat_template = PHI
    return tok


def qwen_tokenizer(template):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    tok = transformers.Qwen2Tokenizer(**parts_of(learned(QWEN, specials)), eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                      additional_special_tokens=specials[1:3])
    tok.chat_template = template
    return tok


def olmo_tokenizer():
    tok = transformers.GPT2Tokenizer(**parts_of(learned(None, ["<|endoftext|>", "<|padding|>"])), pad_token="<|padding|>")
    tok.chat_template = LINES
    return tok


TOKENIZERS = {"gpt2": gpt2_tokenizer, "llama": llama_tokenizer, "mistral": mistral_tokenizer, "mixtral": mistral_tokenizer,
              "phi3": phi_tokenizer, "olmo2": olmo_tokenizer, "olmoe": olmo_tokenizer,
              "qwen2": lambda: shared("qwen2.5") or qwen_tokenizer(CHATML),
              "qwen3": lambda: qwen_tokenizer(THINKING), "qwen3_moe": lambda: qwen_tokenizer(THINKING)}


# --- models -------------------------------------------------------------------------------------------------
def new_model(family, tok):
    """As transformers initialises it; some people set the ids of the tokenizer, some leave the family's."""
    if family == "gpt2":
        keys = {"n_positions": 160, "n_embd": 48, "n_layer": 2, "n_head": 4}
    else:
        keys = {"max_position_embeddings": 256, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 4 if family == "olmoe" else 2, "head_dim": 12}
    if family in oracle.MIXTURES:
        keys |= {"num_local_experts" if family == "mixtral" else "num_experts": 4, "num_experts_per_tok": 2}
        keys |= {"moe_intermediate_size": 40, "norm_topk_prob": True} if family == "qwen3_moe" else {}
    if family in ("olmoe", "phi3", "qwen2"):
        keys.pop("head_dim")
    if family in ("gpt2", "qwen2"):
        keys["tie_word_embeddings"] = True
    if family != "llama":  # Llama's own 1 and 2 stay, which are other tokens here
        keys |= {"bos_token_id": tok.bos_token_id, "eos_token_id": tok.eos_token_id, "pad_token_id": tok.pad_token_id}
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, vocab_size=max(len(tok), 300), **keys))
    if family == "qwen2":  # what its instruct models carry along
        model.generation_config = transformers.GenerationConfig(do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.0, bos_token_id=tok.pad_token_id,
                                                                eos_token_id=[tok.eos_token_id, tok.pad_token_id], pad_token_id=tok.pad_token_id)
    return model


def lineshaft(*args, json_out=False):
    done = subprocess.run([LINESHAFT, *args], capture_output=True, text=True)
    if done.returncode != 0:
        oracle.fail("lineshaft %s: exit %d, %s" % (" ".join(args), done.returncode, done.stderr.strip()))
    return json.loads(done.stdout) if json_out else done.stdout


def ours(model, prompt, *flags):
    return lineshaft("generate", model, "--prompt", prompt, "--temperature", "0", "--tokens", str(TOKENS), "--json", *flags, json_out=True)


# --- what each of the others says ---------------------------------------------------------------------------
def compare(what, said, prompt_ids, model, tok):
    """Their greedy text, with what the model's generation_config says about ends."""
    if model.config.bos_token_id not in (None, tok.bos_token_id) and tok.bos_token_id is not None:
        oracle.fail("%s: config.json begins texts with %s, the tokenizer with %s" % (what, model.config.bos_token_id, tok.bos_token_id))
    if said["prompt_ids"] != prompt_ids:
        oracle.fail("%s: the prompt is %s for us, %s for transformers" % (what, said["prompt_ids"], prompt_ids))
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt_ids]), attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long), do_sample=False, temperature=None,
                             top_p=None, top_k=None, max_new_tokens=TOKENS)[0, len(prompt_ids):].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    ended = bool(out) and out[-1] in ends
    theirs = out[:-1] if ended else out
    mine = [t for t in said["ids"] if t not in ends]
    if mine != theirs or ended != (said["finish_reason"] == "eos"):
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
        with torch.no_grad():
            top = model(torch.tensor([prompt_ids + theirs[:at]])).logits[0, -1].topk(2).values
        if float(top[0] - top[1]) > TIE:
            oracle.fail("%s: transformers says %r (%s), we say %r (%s)" % (what, tok.decode(theirs), "end" if ended else "length", said["text"], said["finish_reason"]))
    text = tok.decode(theirs, skip_special_tokens=True)
    if text.strip() != said["text"].strip() and mine == theirs:
        oracle.fail("%s: the same tokens are %r for transformers, %r for us" % (what, text, said["text"]))
    return ended


def check_answers(what, run, folder, model, tok, chat):
    """All prompts, asked of the run and of the folder that was exported."""
    ended, told = 0, []
    for prompt in questions() if chat else PROMPTS:
        ids = tok.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)["input_ids"] if chat else tok(prompt)["input_ids"]
        flags = ["--chat"] if chat else []
        said = ours(run, prompt, *flags)
        if folder and ours(folder, prompt, *flags)["ids"] != said["ids"]:
            oracle.fail("%s, %r: the export says something else than the run" % (what, prompt))
        ended += compare("%s, %r" % (what, prompt), said, ids, model, tok)
        told.append(said["text"])
    print("%-34s %d different texts equal, %d ended: %r" % (what, len(set(told)), ended, max(told, key=len)[:60]))
    if ended == 0 or len(set(told)) < 2:
        oracle.fail(what + ": no text ends, or all are one, so little was tested")
    return told


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **({"experts_implementation": "eager"} if "experts" in open(folder + "/config.json").read() else {})).eval()


def check_llama_cpp(what, run, chat, tok):
    """llama.cpp finds template and ends in the GGUF file."""
    lineshaft("export", run, run + ".gguf", "--dtype", "f32")
    fields = gguf.GGUFReader(run + ".gguf").fields
    if fields["tokenizer.ggml.add_bos_token"].contents() and fields["tokenizer.ggml.bos_token_id"].contents() != tok.bos_token_id:
        oracle.fail(what + ": the GGUF file puts another token in front of texts than the tokenizer")
    if not CPP:
        return
    import llama_cpp
    cpp = llama_cpp.Llama(run + ".gguf", n_ctx=128, verbose=False, n_threads=1, type_k=0, type_v=0, flash_attn=False)
    options = {"max_tokens": TOKENS, "temperature": 0, "repeat_penalty": 1}
    for prompt in questions() if chat else PROMPTS:
        choice = (cpp.create_chat_completion([{"role": "user", "content": prompt}], **options) if chat else cpp(prompt, **options))["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
        said = ours(run, prompt, *(["--chat"] if chat else []))
        # Thoughts are marked by tokens that llama.cpp does not show.
        if text.strip() != said["text"].strip() or (choice["finish_reason"] == "stop") != (said["finish_reason"] == "eos"):
            oracle.fail("%s, %r: llama.cpp says %r (%s), we say %r (%s)" % (what, prompt, text, choice["finish_reason"], said["text"], said["finish_reason"]))
    print("%-34s the same texts in llama.cpp" % what)


# --- the ways of a family -----------------------------------------------------------------------------------
RUN = """model: {import: %s, context: 96}
data: {text: [%s], validation: 0%s}
batch: {sequences: 4}
train: {steps: %d, lr: 0.01, warmup: 5, schedule: constant}
eval: {every: 0, sample: ''}
%s"""


def write_chat(path, family, **how):
    with open(path, "w") as f:
        for messages in conversations("qwen" in family, **how):
            print(json.dumps({"messages": messages}), file=f)
    return path


def tune(name, model, text, more="", steps=60, lora=""):
    with open(name + ".yaml", "w") as f:
        f.write(RUN % (model, text, more, steps, lora))
    lineshaft("train", name + ".yaml", "--set", "out=" + name + "/run")
    return name + "/run"


def check_family(family):
    tok = TOKENIZERS[family]()
    model = new_model(family, tok)
    home = family + "/home"
    model.save_pretrained(home)
    tok.save_pretrained(home)
    lineshaft("import", home, family + "/model")
    plain = tune(family + "/plain", family + "/model", "text.jsonl")
    lineshaft("export", plain, family + "/hf-plain")
    check_answers(family + ", documents", plain, family + "/hf-plain", load(family + "/hf-plain"),
                  transformers.AutoTokenizer.from_pretrained(family + "/hf-plain"), False)
    talk = tune(family + "/talk", family + "/model", write_chat(family + "/chat.jsonl", family), ", template: auto", 100)
    lineshaft("export", talk, family + "/hf-talk")
    learned = check_answers(family + ", conversations", talk, family + "/hf-talk", load(family + "/hf-talk"),
                            transformers.AutoTokenizer.from_pretrained(family + "/hf-talk"), True)
    # The adapter goes with the folder that it was tuned from, which is transformers' own: no import in between.
    lora = tune(family + "/lora", family + "/hf-talk", write_chat(family + "/swapped.jsonl", family, swapped=True), ", template: auto", 60,
                "lora: {rank: 8, alpha: 32}\n")
    lineshaft("export", lora, family + "/adapter", "--adapter")
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(family + "/adapter").eval()
    other = check_answers(family + ", LoRA", lora, None, adapted, transformers.AutoTokenizer.from_pretrained(family + "/adapter"), True)
    if other == learned:
        oracle.fail(family + ", LoRA: it has changed no answer, so little was tested")
    check_llama_cpp(family + ", documents", plain, False, tok)
    check_llama_cpp(family + ", conversations", talk, True, tok)


if __name__ == "__main__":
    with open("text.jsonl", "w") as f:
        for text in DOCUMENTS * 12:
            print(json.dumps({"text": text}), file=f)
    for family in sys.argv[1:] or oracle.FAMILIES:
        os.makedirs(family)
        try:
            check_family(family)
        except oracle.Wrong:
            pass  # said and counted
    print("llama.cpp: %s" % ("asked" if CPP else "not asked, llama-cpp-python is not installed"))
    oracle.end("as_people_do")
