"""generate.py MODEL FOLDER ... -- the peer of bench/generate.sh: makes models, and lets transformers continue ids.

    generate.py make llama|gpt2|stories FOLDER [SOURCE]   a random llama of about 100 M parameters, a random GPT-2 of
                                                          124 M, or stories260k out of SOURCE; prints parameters
    generate.py serve FOLDER THREADS                      reads lines "WAY COUNT ID ID ..." and answers each with one
                                                          line of JSON; WAY is sdpa, eager or compile
"""
import json
import os
import sys
import time

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

transformers.utils.logging.set_verbosity_error()


def save_tokenizer(folder, size):
    """Bytes are the tokens; the other names are never made, because there are no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    vocab |= {f"unused{i}": i for i in range(len(alphabet), size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(f"{folder}/tokenizer.json")


def random_model(kind):
    common = dict(bos_token_id=None, eos_token_id=None, initializer_range=0.05)
    torch.manual_seed(1)
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
            num_key_value_heads=6, max_position_embeddings=1024, tie_word_embeddings=True, **common))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**common))  # its defaults are GPT-2 small


def make(kind, folder, source=None):
    if kind == "stories":
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path.insert(0, os.path.join(here, "../../tests/conformance/tools"))
        import llama2c
        llama2c.convert(f"{source}/checkpoint_v1.bin", f"{source}/tokenizer.bin", folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    else:
        model = random_model(kind)
        model.save_pretrained(folder)
        save_tokenizer(folder, model.config.vocab_size)
        if os.path.exists(f"{folder}/generation_config.json"):
            os.remove(f"{folder}/generation_config.json")
    print(sum(p.numel() for p in model.parameters()))


class Server:
    def __init__(self, folder):
        self.folder, self.models = folder, {}

    def model(self, way):
        if way not in self.models:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                self.folder, attn_implementation="eager" if way == "eager" else "sdpa", dtype=torch.float32).eval()
            if way == "compile":
                # A cache of fixed size, so that adding a token has one shape; the prompt has its own.
                model.generation_config.cache_implementation = "static"
                model.forward = torch.compile(model.forward)
            self.models[way] = model
        return self.models[way]

    @torch.no_grad()
    def answer(self, way, count, ids):
        x, model = torch.tensor([ids]), self.model(way)

        def generate(n):
            begin = time.perf_counter()
            y = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=n, min_new_tokens=n,
                               do_sample=False, use_cache=True, pad_token_id=0, eos_token_id=None)
            return time.perf_counter() - begin, y[0, len(ids):].tolist()

        first, _ = generate(1)
        whole, said = generate(count)
        return {"ids": said, "prompt": len(ids) / first, "added": (count - 1) / max(whole - first, 1e-9)}


def serve(folder, threads):
    torch.set_num_threads(threads)
    server = Server(folder)
    for line in sys.stdin:
        way, count, *ids = line.split()
        try:
            told = server.answer(way, int(count), list(map(int, ids)))
        except Exception as e:  # a way that this version cannot go is said, not fatal
            told = {"error": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"}
        print(json.dumps(told), flush=True)


if sys.argv[1] == "make":
    make(*sys.argv[2:])
else:
    serve(sys.argv[2], int(sys.argv[3]))
