#!/usr/bin/env python3
"""bpe_train.py -- `lineshaft data tokenizer --train` against the tokenizers package.

For each text and pattern: train with both, compare the merges one by one; load our folder in the
package and in transformers, encode and decode with all three, compare the ids. Prints the training
time of both. Needs the packages tokenizers and transformers.

    bpe_train.py [LINESHAFT [TEXT ...]]

LINESHAFT is the program (build/release/lineshaft unless given), TEXT are files to train on (those
of ../shared/data/text unless given; without them the built-in stories alone are used).
"""

import functools
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINESHAFT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build/release/lineshaft")
SPECIAL = "<|endoftext|>"
ODD = r"\p{Lu}?\p{Ll}+|\p{N}{1,2}|\s+|[^\s\p{L}\p{N}]+"  # a pattern that no scanner knows
failures = 0


def check(good, what):
    global failures
    if not good:
        failures += 1
        print(f"  FAILED {what}")
    return good


def run(*words, data=None):
    done = subprocess.run([LINESHAFT, "data", *words], input=data, capture_output=True)
    if done.returncode:
        sys.exit(f"lineshaft data {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout


def ours_train(folder, files, vocab, pattern, min_count):
    words = ["--vocab", str(vocab), "--pattern", pattern, "--min-count", str(min_count)]
    out = run("tokenizer", "--train", *files, "-o", folder, *words, "--json")
    return json.loads(out)


def theirs_train(like, files, vocab, min_count):
    """The package on the same words: our pre-tokenizer, each file one text."""
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = like.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=min_count,
        special_tokens=[SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [open(f, encoding="utf-8", newline="").read() for f in files]
    began = time.perf_counter()
    theirs.train_from_iterator(texts, trainer)
    return theirs, time.perf_counter() - began


def merges_of(text):
    merges = json.loads(text)["model"]["merges"]
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]


def random_texts(count):
    """Unicode of all kinds, with special tokens and parts of them."""
    draw = random.Random(7)
    ranges = [(32, 126), (32, 126), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF),
              (0x10000, 0x10FFFF), (9, 13), (0x300, 0x36F), (0x1F300, 0x1FAFF)]
    parts = [SPECIAL, "<|end", "  ", "\n\n", " 12345", "'ll", "don't", "\r\n", "\u00a0", "\u3000"]
    for _ in range(count):
        text = ""
        for _ in range(draw.randrange(1, 40)):
            low, high = draw.choice(ranges)
            text += draw.choice(parts) if draw.random() < 0.2 else chr(draw.randint(low, high))
        yield text


def encode_ours(folder, text):
    return [int(i) for i in run("encode", "-t", folder, "-", data=text.encode()).split()]


@functools.lru_cache
def load(folder):
    return (
        Tokenizer.from_file(folder + "/tokenizer.json"),
        AutoTokenizer.from_pretrained(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    )


def compare_ids(folder, text, name):
    package, auto, fast = load(folder)
    ours = encode_ours(folder, text)
    check(package.encode(text).ids == ours, f"{name}: ids of the package")
    check(auto(text)["input_ids"] == ours, f"{name}: ids of AutoTokenizer")
    check(fast(text)["input_ids"] == ours, f"{name}: ids of PreTrainedTokenizerFast")
    back = run("decode", "-t", folder, "-", data=" ".join(map(str, ours)).encode())
    check(back == text.encode(), f"{name}: our decoding is the text")
    check(package.decode(ours, skip_special_tokens=False) == text, f"{name}: the package's, too")
    check(auto.decode(ours) == text, f"{name}: transformers', too")
    return auto


def compare_config(auto, vocab, name):
    check(len(auto) == vocab, f"{name}: transformers sees {len(auto)} tokens, not {vocab}")
    check(auto.eos_token == SPECIAL and auto.bos_token == SPECIAL, f"{name}: bos and eos")
    check(auto.eos_token_id == vocab - 1, f"{name}: id of eos is {auto.eos_token_id}")
    check(auto("a", truncation=True)["input_ids"], f"{name}: no limit of length")


def compare(work, files, vocab, pattern, min_count=2):
    names = "+".join(os.path.basename(f) for f in files)
    name = f"{names}, {vocab}, {pattern if len(pattern) < 10 else 'a pattern of its own'}"
    folder = os.path.join(work, f"tok-{len(os.listdir(work))}")
    told = ours_train(folder, files, vocab, pattern, min_count)
    text = open(folder + "/tokenizer.json", encoding="utf-8").read()
    package = Tokenizer.from_str(text)
    theirs, seconds = theirs_train(package, files, vocab, min_count)
    mine, other = merges_of(text), merges_of(theirs.to_str())
    same = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), None)
    check(mine == other, f"{name}: of {len(mine)} and {len(other)} merges number {same} differs")
    whole = "".join(open(f, encoding="utf-8", newline="").read() for f in files[:1])
    auto = compare_ids(folder, whole, name)
    compare_config(auto, told["vocab"], name)
    if len(files) == 1:
        n = len(encode_ours(folder, whole))
        check(n == told["tokens"], f"{name}: {told['tokens']} tokens told, {n} encoded")
    print(f"  {name}: {len(mine)} merges, {told['bytes'] / told['tokens']:.2f} bytes a token;"
          f" ours {told['seconds']:.2f} s, the package {seconds:.2f} s")
    return folder


def main():
    texts = sys.argv[2:] or sorted(glob.glob(os.path.join(ROOT, "../shared/data/text/*.txt")))
    with tempfile.TemporaryDirectory() as work:
        stories = os.path.join(work, "stories.txt")
        with open(stories, "wb") as f:
            f.write(run("stories", "--bytes", "500K"))
        noise = os.path.join(work, "noise.txt")
        with open(noise, "w", encoding="utf-8", newline="") as f:
            f.write("".join(random_texts(20000)).replace(SPECIAL, "").replace("\ufeff", ""))
        compare(work, [stories], 300, "gpt2", min_count=1)
        compare(work, [stories], 100000, "llama3")  # until no pair is left
        compare(work, [noise], 5000, "gpt2", min_count=1)
        folder = compare(work, [noise], 2000, "llama3")
        compare(work, [noise], 2000, "qwen2")
        compare(work, [stories, noise], 1500, ODD)
        for text in random_texts(100):
            compare_ids(folder, text, f"random text {text[:20]!r}")
        if not texts:
            print("  skipped: there is no ../shared/data/text")
        for path in texts:
            compare(work, [path], 8192, "gpt2")
            compare(work, [path], 8192, "llama3")
            compare(work, [path], 1000, "qwen2")
    print("FAILED" if failures else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
