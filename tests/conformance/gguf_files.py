"""gguf_files.py -- GGUF files against the `gguf` package, llama.cpp and transformers.

Models of every family, with tokenizers, are saved by transformers and exported by us. The package must read
the files; q8_0 and q4_0 must be the bytes that it makes of our f32 tensors. Where llama-cpp-python is
installed, llama.cpp must cut texts as the tokenizer does, compute the logits that transformers computes, and
answer a model that we trained with the text that we answer.
"""
import importlib.util, os, subprocess, sys
import numpy as np, torch, gguf, tokenizers, transformers
from gguf import quants

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import LINESHAFT

TEXTS = open(os.path.join(os.environ["LINESHAFT_ROOT"], "docs", "start.md"), encoding="utf-8").read()
LINES = ["Hello world", "  two blanks, a\ttab\n\nand lines \n", "It's I'VE we'll 12345 3.14 x=[1,2];", "naïve Ünïcödé 日本語 🚀🙂 е́",
         "", "a", " a", "   ", "\n", "end<|end|>begin <|end|> again", "1234567890 9 99 999"]
PATTERNS = {
    "gpt2": None,
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "digits": "digits"}
# What llama.cpp has no key for; the rest of oracle.SPECIAL must be exported.
REFUSED = {("qwen3", 2), ("qwen3_moe", 0), ("qwen3_moe", 2), ("qwen3_moe", 3), ("olmoe", 0), ("olmoe", 1), ("olmoe", 3), ("olmo2", 1), ("olmo2", 2), ("olmo2", 3),
           ("phi3", 2)}
CPP = importlib.util.find_spec("llama_cpp") is not None


def byte_level(pattern, whole=False):
    """A small byte-level BPE of our own guide, cut by one of the patterns."""
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    tok = tokenizers.Tokenizer(models.BPE(ignore_merges=whole))
    if pattern is None:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pattern == "digits":
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator([TEXTS], trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>", model_max_length=4096)


def sentence_piece():
    """A BPE with byte_fallback whose merges are those of a SentencePiece vocabulary: all ways to make each token."""
    from tokenizers import decoders, models, normalizers
    counts, vocab = {}, {"<unk>": 0, "<s>": 1, "</s>": 2, **{"<0x%02X>" % b: 3 + b for b in range(256)}}
    for word in TEXTS.split():
        counts["\u2581" + word] = counts.get("\u2581" + word, 0) + 1
    for c in sorted({c for w in counts for c in w}):
        vocab[c] = len(vocab)
    pieces = {}
    for word, n in counts.items():
        for size in range(2, 7):
            pieces[word[:size]] = pieces.get(word[:size], 0) + n
    merges = []
    for piece in sorted(pieces, key=lambda p: (-pieces[p], p))[:400]:
        if piece in vocab:
            continue
        ways = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        if ways and len(piece) > 1:
            merges += ways
            vocab[piece] = len(vocab)
    # A token made early can be made in another way by later ones: list every way, by token.
    merges = [(p[:i], p[i:]) for p in vocab if len(p) > 1 and not p.startswith("<") for i in range(1, len(p))
              if p[:i] in vocab and p[i:] in vocab]
    tok = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    from tokenizers.processors import TemplateProcessing
    tok.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=4096)


def export(folder, to, dtype):
    return subprocess.run([LINESHAFT, "export", folder, to, "--dtype", dtype], capture_output=True, text=True)


def must_export(folder, to, dtype):
    done = export(folder, to, dtype)
    if done.returncode != 0:
        oracle.fail("export %s --dtype %s: exit %d, %s" % (folder, dtype, done.returncode, done.stderr.strip()))
    return to


def tensors_of(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def check_blocks(what, folder):
    """Every tensor of each type is what the package makes of our f32 tensor."""
    whole = tensors_of(must_export(folder, folder + "-f32.gguf", "f32"))
    compared = {}
    for dtype in ("f16", "bf16", "q8_0", "q4_0"):
        for name, t in tensors_of(must_export(folder, "%s-%s.gguf" % (folder, dtype), dtype)).items():
            compared[t.tensor_type.name] = compared.get(t.tensor_type.name, 0) + 1
            if quants.quantize(whole[name].data, t.tensor_type).tobytes() != t.data.tobytes():
                oracle.fail("%s, %s: %s is not what the package makes" % (what, dtype, name))
    print("%-34s bytes equal: %s" % (what, ", ".join("%d %s" % (n, t) for t, n in sorted(compared.items()))))
    return folder + "-f32.gguf"


def llama(path, **options):
    import llama_cpp
    return llama_cpp.Llama(path, n_ctx=256, verbose=False, n_threads=1, type_k=0, type_v=0, flash_attn=False, **options)


def check_logits(what, model, path):
    """llama.cpp's logits of fixed tokens; keys and values are kept in fp32."""
    cpp = llama(path, logits_all=True)
    tokens, _ = oracle.batches(model.config.vocab_size, 7, 1, min(20, cpp._model.n_ctx_train()))
    cpp.eval(tokens[0].tolist())
    ours = np.array(cpp.scores[:tokens.shape[1]], np.float32)
    theirs = oracle.loss_of(model, tokens, tokens)[0][0].detach().numpy()
    far = np.abs(ours - theirs).max() / np.sqrt((theirs ** 2).mean())
    # GELU comes from a table of 16-bit numbers there.
    oracle.within(what + ": logits in llama.cpp", far, 5e-3 if model.config.model_type == "gpt2" else 1e-4)
    print("%-34s logits in llama.cpp %.1e" % (what, far))


def check_tokens(what, path, tok):
    cpp = llama(path, vocab_only=True)
    lines = LINES + [TEXTS[i:i + 97] for i in range(0, len(TEXTS) - 97, 211)]
    for line in lines:
        ours = cpp.tokenize(line.encode(), add_bos=True, special=True)
        theirs = tok.encode(line)
        if ours != theirs and line:  # of nothing at all llama.cpp makes nothing
            oracle.fail("%s: llama.cpp cuts %r into %s, tokenizers into %s" % (what, line, ours[:20], theirs[:20]))
    print("%-34s %d texts cut alike by llama.cpp" % (what, len(lines)))


def real_tokenizers():
    """GPT-2's and Qwen's, where the shared data is."""
    home = os.path.join(os.environ["LINESHAFT_DATA"], "tokenizers")
    names = [name for name in ("gpt2", "qwen2.5") if os.path.isdir(os.path.join(home, name))]
    return {name + ", the real one": transformers.AutoTokenizer.from_pretrained(os.path.join(home, name)) for name in names}


def save(family, number, tok):
    config, _ = oracle.configuration(family, number)
    config.vocab_size = len(tok) + 5
    config.bos_token_id, config.eos_token_id, config.pad_token_id = tok.bos_token_id, tok.eos_token_id, None
    model = oracle.random_model(config, 700 + number)
    folder = "%s-%d" % (family, number)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    return model, folder


def check_family(family, tok):
    for number in range(oracle.PER_FAMILY):
        what = "%s %d" % (family, number)
        model, folder = save(family, number, tok)
        done = export(folder, folder + ".gguf", "f32")
        if (done.returncode != 0) != ((family, number) in REFUSED):
            oracle.fail("%s: exit %d, %s" % (what, done.returncode, done.stderr.strip()))
        if done.returncode != 0:
            if done.returncode != 2 or "llama.cpp" not in done.stderr:
                oracle.fail("%s: refused without a reason: %s" % (what, done.stderr.strip()))
            print("%-34s refused: %s" % (what, done.stderr.split(": ", 3)[-1].splitlines()[0]))
        elif CPP:
            check_logits(what, model, folder + ".gguf")
        else:
            print("%-34s written and reread" % what)


def check_wide(family, tok):
    """Rows of whole blocks, so that every matrix is rounded."""
    config, _ = oracle.configuration(family, 0)
    config.hidden_size, config.num_attention_heads, config.vocab_size = 64, 4, len(tok) + 5
    if family != "gpt2":
        config.intermediate_size, config.num_key_value_heads, config.head_dim = 96, 4, 16
        config.moe_intermediate_size, config.norm_topk_prob = 32, family == "qwen3_moe"
    folder = family + "-wide"
    oracle.random_model(config, 800).save_pretrained(folder)
    tok.save_pretrained(folder)
    check_blocks(folder, folder)


def check_trained():
    """A model that we train answers the same text here and in llama.cpp."""
    open("text.txt", "w", encoding="utf-8").write(TEXTS * 8)
    byte_level(None).save_pretrained("tok")
    for family in ("llama", "gpt2", "qwen2"):
        kv = ", kv_heads: 2" if family != "gpt2" else ""
        open(family + ".yaml", "w").write(
            "model: {family: %s, layers: 2, width: 64, heads: 4, context: 96%s}\ndata: {text: text.txt, tokenizer: tok}\n"
            "batch: {sequences: 8}\ntrain: {steps: 150, lr: 0.005, warmup: 10}\neval: {every: 0, sample: ''}\n" % (family, kv))
        subprocess.run([LINESHAFT, "train", family + ".yaml"], check=True, capture_output=True)
        path = must_export("runs/" + family, family + "-run.gguf", "f16")
        for prompt in ("lineshaft ", "The run", "A model"):
            ours = subprocess.run([LINESHAFT, "generate", "runs/" + family, "--prompt", prompt, "--temperature", "0",
                                   "--tokens", "48"], check=True, capture_output=True, text=True).stdout
            text = llama(path)(prompt, max_tokens=48, temperature=0, repeat_penalty=1)["choices"][0]["text"] if CPP else ""
            if CPP and text.strip() not in ours:
                oracle.fail("%s, %r: llama.cpp says %r, we say %r" % (family, prompt, text, ours))
            print("%-34s %s" % ("%s trained, %r" % (family, prompt), "%r" % text[:50] if CPP else "not asked"))


if __name__ == "__main__":
    toks = {name: byte_level(pattern) for name, pattern in PATTERNS.items()}
    toks["llama3, whole"] = byte_level(PATTERNS["llama3"], whole=True)
    toks["sentence piece"] = sentence_piece()
    for family in oracle.FAMILIES:
        try:
            check_wide(family, toks["gpt2"])
            check_family(family, toks["sentence piece" if family in ("mistral", "phi3") else "gpt2"])
        except oracle.Wrong:
            pass  # said and counted
    for name, tok in {**toks, **real_tokenizers()}.items():
        try:
            _, folder = save("llama", 0, tok)
            path = must_export(folder, "tok-%s.gguf" % name, "f16")
            if CPP:
                check_tokens(name, path, tok)
        except oracle.Wrong:
            pass
    try:
        check_trained()
    except oracle.Wrong:
        pass
    print("llama.cpp: %s" % ("asked" if CPP else "not installed (pip install llama-cpp-python); only the gguf package was asked"))
    oracle.end("gguf_files")
