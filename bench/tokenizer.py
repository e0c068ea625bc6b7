"""Encoding speed on one thread, lineshaft beside the `tokenizers` package; see tokenizer.sh.

    python bench/tokenizer.py PROGRAM TEXT FOLDER...

Rounds are interleaved: in each, both encode the text in one call and line by line. The package's
better way is compared with our slower one; times are medians.
"""

import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

ROUNDS = int(os.environ.get("ROUNDS", "5"))
WAYS = ("whole", "lines")


def ours(child, way):
    child.stdin.write(way + "\n")
    child.stdin.flush()
    seconds, count = child.stdout.readline().split()
    return float(seconds), int(count)


def package(tok, text, lines, way):
    begin = time.perf_counter()
    if way == "whole":
        count = len(tok.encode(text, add_special_tokens=False))
    else:
        count = sum(len(tok.encode(line, add_special_tokens=False)) for line in lines)
    return time.perf_counter() - begin, count


def measure(program, path, folder):
    text = open(path, encoding="utf-8", newline="").read()
    lines = text.splitlines(keepends=True)
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    child = subprocess.Popen([program, folder, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    times = {(who, way): [] for who in ("lineshaft", "package") for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            seconds, count = ours(child, way)
            times["lineshaft", way].append(seconds)
            peer_seconds, peer_count = package(tok, text, lines, way)
            times["package", way].append(peer_seconds)
            if way == "whole" and count != peer_count:
                sys.exit(f"{folder}: {count} ids here, {peer_count} in the package")
    child.stdin.close()
    child.wait()
    medians = {key: statistics.median(value) for key, value in times.items()}
    size = os.path.getsize(path) / 1e6
    print(f"{os.path.basename(folder.rstrip('/'))}: {size:.1f} MB, {count} ids, median of {ROUNDS}")
    for (who, way), seconds in medians.items():
        print(f"  {who:10} {way:6} {seconds:8.3f} s {size / seconds:8.1f} MB/s")
    slow = max(medians["lineshaft", way] for way in WAYS)
    fast = min(medians["package", way] for way in WAYS)
    print(f"  ratio      {fast / slow:.1f} (the package's better way to our slower one)")


for each in sys.argv[3:]:
    measure(sys.argv[1], sys.argv[2], each)
