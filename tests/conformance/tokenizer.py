"""Ids and decoded text of lineshaft against the `tokenizers` package, to the last id.

    python tests/conformance/tokenizer.py [PROGRAM [NAME...]]

PROGRAM is the lineshaft binary (build/release/lineshaft). Tokenizers: gpt2 and qwen2.5 of
../shared/data/tokenizers where they are present, and some that the package trains here in the layouts
of Llama-3, Mistral (SentencePiece: normalizer, no pre-tokenizer, byte fallback) and newer Llama-2
files (Metaspace), with added tokens of every kind. Texts: those of ../shared/data, and seeded random
Unicode of all planes, with combining marks, odd white space and added tokens inside.

Strings with a line end in them are given as files of their own, all others as lines of one file.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers  # noqa: E402
from tokenizers import pre_tokenizers, processors, trainers  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.path.join(ROOT, "..", "shared", "data")
PROGRAM = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT + "/build/release/lineshaft")
LINES = int(os.environ.get("CONFORMANCE_LINES", "20000"))  # random strings a tokenizer
FILES = int(os.environ.get("CONFORMANCE_FILES", "60"))  # of those, with line ends
ONLY = sys.argv[2:]  # names of tokenizers; none: all
MARK = "\u2581"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER = r"\d{1,3}(?=(?:\d{3})*\b)|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{M}]+|\s+"


# --- texts --------------------------------------------------------------------------------------


def known(code):
    """Characters whose normal form every Unicode version since 13 agrees on."""
    return not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"


def random_char(rng):
    kind = rng.randrange(12)
    if kind < 4:
        return chr(rng.randrange(0x20, 0x7F))
    if kind == 4:
        return rng.choice(" \t\u00a0\u2003\u3000\u0085\u2028\u000b\u000c\u001c\u180e\u200b  ")
    if kind == 5:
        return rng.choice("'\u2019") + rng.choice(["s", "S", "t", "re", "VE", "ll", "\u017f", "d", "x"])
    if kind == 6:
        return chr(rng.choice([0x300, 0x301, 0x327, 0x323, 0x308, 0x345, 0x1161, 0x11A8, 0x200D]))
    if kind == 7:
        return rng.choice("eaoucn\u1100\u1112\uac00\u0ba8\u0928") + chr(0x300 + rng.randrange(0x30))
    if kind == 8:
        return rng.choice("0123456789\u0663\u0968\u2167\u00bd\u3007")
    if kind == 9:
        return rng.choice("\u4e2d\u6587\u65e5\u672c\u8a9e\u306e\u30ab\ud55c\uae00\u0416\u05d0\u0627")
    while True:
        code = rng.randrange(0x80, 0x3000) if kind == 10 else rng.randrange(0x80, 0x110000)
        if known(code):
            return chr(code)


def random_text(rng, words, extra):
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.randrange(8)
        if kind < 3:
            parts.append(rng.choice(words))
        elif kind == 3:
            parts.append(rng.choice(extra))
        elif kind == 4:
            parts.append(" " * rng.randrange(1, 5))
        else:
            parts.append("".join(random_char(rng) for _ in range(rng.randrange(1, 8))))
    return "".join(parts)


def random_texts(seed, words, extra):
    rng = random.Random(seed)
    lines, files = [], []
    while len(lines) < LINES:
        text = random_text(rng, words, extra)
        for bad in "\n\r\0":
            text = text.replace(bad, "")
        if text:
            lines.append(text)
    while len(files) < FILES:
        text = "".join(random_text(rng, words, extra) + rng.choice(["\n", "\r\n", "\n\n ", " \n"])
                       for _ in range(40))
        files.append(text)
    return lines, files


# --- tokenizers ---------------------------------------------------------------------------------


def save(folder, name, tok, config=None):
    path = os.path.join(folder, name)
    os.makedirs(path)
    tok.save(os.path.join(path, "tokenizer.json"))
    with open(os.path.join(path, "tokenizer_config.json"), "w") as out:
        json.dump(config or {}, out)
    return path


def add_odd_tokens(tok):
    tok.add_special_tokens([AddedToken("<|stop|>", special=True)])
    tok.add_tokens([
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("two words", normalized=False),
        AddedToken("<left>long", normalized=False),
        AddedToken("caf\u00e9", normalized=True),
        AddedToken("as is", normalized=True),
    ])


def byte_level(text, pattern, **model):
    tok = Tokenizer(models.BPE(**model))
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if pattern:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    tok.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def llama3(text):
    tok = byte_level(text, LLAMA3, ignore_merges=True)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])])
    return tok


def llama3_nfc(text):
    tok = llama3(text)
    tok.normalizer = normalizers.NFC()
    return tok


def digits(text):
    tok = byte_level(text, None)
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    return tok


def other_pattern(text):
    return byte_level(text, OTHER)


def pieces(text, normalizer, pre_tokenizer, alphabet):
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizer
    # Trained with words as pieces, as SentencePiece does; used without.
    tok.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=True)
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, special_tokens=special, limit_alphabet=alphabet))
    tok.pre_tokenizer = pre_tokenizer
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return plain_bytes(tok)


def plain_bytes(tok):
    """The byte tokens are part of the vocabulary, not added: they are never found in a text."""
    rules = json.loads(tok.to_str())
    rules["added_tokens"] = [t for t in rules["added_tokens"] if not t["content"].startswith("<0x")]
    if rules["pre_tokenizer"] and rules["pre_tokenizer"]["type"] == "None":
        rules["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(rules))


def mistral(text):
    tok = pieces(text, normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
                 pre_tokenizers.Sequence([]), 60)
    tok.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(),
                                     decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok


def metaspace(scheme, split):
    def make(text):
        tok = pieces(text, None, pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=split), 60)
        tok.decoder = decoders.Sequence([decoders.ByteFallback(),
                                         decoders.Metaspace(MARK, prepend_scheme=scheme, split=split)])
        return tok
    return make


def unknown(text):
    """No byte fallback: what is not in the vocabulary is unknown, each character on its own."""
    tok = pieces(text, normalizers.NFKC(), pre_tokenizers.Metaspace(MARK, "first", True), 40)
    rules = json.loads(tok.to_str())
    rules["model"].update(byte_fallback=False, fuse_unk=False)
    tok = Tokenizer.from_str(json.dumps(rules))
    tok.decoder = decoders.Metaspace(MARK, "first", True)
    return tok


MADE = {
    "llama3": llama3,
    "llama3-nfc": llama3_nfc,
    "digits": digits,
    "other-pattern": other_pattern,
    "mistral": mistral,
    "metaspace-always": metaspace("always", True),
    "metaspace-first": metaspace("first", True),
    "metaspace-whole": metaspace("first", False),
    "unknown": unknown,
}


# --- comparing ----------------------------------------------------------------------------------


def run(*args):
    done = subprocess.run([PROGRAM, *args], capture_output=True)
    if done.returncode:
        sys.exit("%s failed: %s" % (" ".join(args), done.stderr.decode(errors="replace")))
    return done.stdout


def fail(name, what, text, got, want):
    print(f"{name}: {what} differ for {text[:200]!r}\n  lineshaft {got[:60]}\n  package   {want[:60]}")
    sys.exit(1)


def check_ids(name, text, got, want):
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        fail(name, f"ids from number {at}", text, got[max(0, at - 3):], want[max(0, at - 3):])


def whole(name, folder, tok, scratch, text):
    path = os.path.join(scratch, "text")
    with open(path, "wb") as out:
        out.write(text.encode())
    got = [int(i) for i in run("data", "encode", "--tokenizer", folder, path).split()]
    want = tok.encode(text, add_special_tokens=False).ids
    check_ids(name, text, got, want)
    with open(path, "wb") as out:
        out.write("".join(f"{i}\n" for i in got).encode())
    back = run("data", "decode", "--tokenizer", folder, path).decode(errors="replace")
    want_text = tok.decode(want, skip_special_tokens=False)
    if back != want_text and "\ufffd" not in want_text:
        at = len(os.path.commonprefix([back, want_text]))
        fail(name, f"texts from character {at}", text, repr(back[max(0, at - 9):]),
             repr(want_text[max(0, at - 9):]))
    return len(got)


def lines_of(name, folder, tok, scratch, lines):
    path = os.path.join(scratch, "lines")
    with open(path, "wb") as out:
        out.write("".join(line + "\n" for line in lines).encode())
    got = run("data", "encode", "--lines", "--tokenizer", folder, path).decode().split("\n")
    count = 0
    for line, row, want in zip(lines, got, tok.encode_batch(lines, add_special_tokens=False)):
        check_ids(name, line, [int(i) for i in row.split()], want.ids)
        count += len(want.ids)
    return count


def check(name, folder, texts, words):
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    extra = [t.content for t in tok.get_added_tokens_decoder().values()] + [MARK, "<0x41>", "cafe\u0301"]
    lines, files = random_texts(3, words, extra)
    with tempfile.TemporaryDirectory() as scratch:
        n = lines_of(name, folder, tok, scratch, lines)
        for text in files + texts:
            n += whole(name, folder, tok, scratch, text)
    print(f"{name}: {len(lines)} lines, {len(files)} files and {len(texts)} texts, {n} ids equal")


def main():
    texts = []
    for name in ("tinyshakespeare.txt", "sotu.txt"):
        path = os.path.join(SHARED, "text", name)
        if os.path.exists(path):
            texts.append(open(path, encoding="utf-8", newline="").read())
    if not texts:
        print("no texts in ../shared/data: random ones only")
    sample = texts[0][:300000] if texts else open(ROOT + "/README.md", encoding="utf-8").read() * 4
    words = sorted(set(sample.split(" ")))[:4000]
    words = [w.replace("\n", "").replace("\r", "") or "a" for w in words] + [" the", " of", " and"]
    for name in ("gpt2", "qwen2.5"):
        if ONLY and name not in ONLY:
            continue
        folder = os.path.join(SHARED, "tokenizers", name)
        if os.path.exists(folder):
            check(name, folder, texts, words)
        else:
            print(f"{name}: skipped, not in ../shared/data")
    train = sample.split("\n")
    with tempfile.TemporaryDirectory() as made:
        for name, make in MADE.items():
            if ONLY and name not in ONLY:
                continue
            tok = make([line for line in train if line])
            add_odd_tokens(tok)
            check(name, save(made, name, tok), texts[:1], words)
    print("tokenizers: ok")


if __name__ == "__main__":
    main()
