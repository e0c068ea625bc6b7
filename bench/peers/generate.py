"""generate.py DIR LINESHAFT ROUNDS LAYERS WIDTH -- see bench/generate.sh.

Makes a random llama with a tokenizer in DIR, then lets both programs continue the same prompt.
"""
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

VOCAB, PROMPT, ADDED = 32000, 256, 64


def make(folder, layers, width):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    vocab |= {f"unused{i}": i for i in range(len(alphabet), VOCAB)}  # no merge makes these
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers, num_attention_heads=width // 64, num_key_value_heads=width // 128,
        max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None, initializer_range=0.05)).eval()
    model.save_pretrained(folder)
    tokenizer.save(f"{folder}/tokenizer.json")
    os.remove(f"{folder}/generation_config.json")
    return model


def ours(program, folder, prompt, cores):
    out = subprocess.run(
        ["taskset", "-c", cores, program, "generate", folder, "--prompt", prompt, "--tokens", str(ADDED),
         "--temperature", "0", "--ignore-eos", "--json"], check=True, capture_output=True, text=True)
    told = json.loads(out.stdout)
    t = told["timings"]
    return told["prompt_ids"], told["ids"], t["prompt_per_second"], t["predicted_per_second"]


@torch.no_grad()
def theirs(model, ids, threads):
    torch.set_num_threads(threads)
    x = torch.tensor([ids])
    begin = time.perf_counter()
    model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=1, do_sample=False, pad_token_id=0)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    y = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=ADDED, do_sample=False, pad_token_id=0)
    rest = time.perf_counter() - begin - first
    return y[0, len(ids):].tolist(), len(ids) / first, (ADDED - 1) / rest


def main():
    folder, program, rounds, layers, width = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    logging.set_verbosity_error()
    model = make(folder, layers, width)
    count = sum(p.numel() for p in model.parameters())
    prompt = "".join(chr(97 + i * i % 26) for i in range(PROMPT))
    print(f"random llama, {count / 1e6:.0f} M parameters, fp32, prompt {PROMPT}, added {ADDED}, greedy")
    print(f"{'threads':>7} {'':12} {'lineshaft':>10} {'transformers':>13} {'ratio':>6}   tokens/s, medians of {rounds}")
    wrong = False
    for threads in range(1, min(2, os.cpu_count()) + 1):
        rows = []
        for i in range(rounds + 1):
            ids, said, read, speak = ours(program, folder, prompt, ",".join(map(str, range(threads))))
            also, peer_read, peer_speak = theirs(model, ids, threads)
            wrong = wrong or said != also
            if i:  # the first round warms caches up
                rows.append((read, peer_read, speak, peer_speak))
        med = [statistics.median(r[k] for r in rows) for k in range(4)]
        for name, a, b in (("prompt", med[0], med[1]), ("added", med[2], med[3])):
            print(f"{threads:7d} {name:12} {a:10.1f} {b:13.1f} {a / b:6.2f}")
    best = 4 * count * med[2] / 1e9
    print(f"added tokens read {best:.1f} GB/s of weights")
    print("both said the same" if not wrong else "the two said different things")
    return wrong


sys.exit(main())
