"""gpu.py WORK... -- see bench/gpu.sh.

Every side is a process of its own. Steps are timed by the side itself: ours by its clock from step to step, PyTorch by
device events, llm.c by its clock; the median of all timed steps counts. Memory is what the card says, at most, less what
was used before; "own" is what the side counts itself. All read random tokens over the whole vocabulary.
"""
import array
import ctypes
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

import rounds

ROUNDS, LIMIT = int(os.environ.get("ROUNDS", "2")), float(os.environ.get("LIMIT", "170"))
PEERS = os.environ.get("PEERS", os.path.join(rounds.ROOT, "../shared/peers/gpu"))
PYTHON, LLMC = os.environ.get("PYTHON", "python3"), os.environ.get("LLMC")
PROGRAM = os.path.abspath(os.environ.get("LINESHAFT", os.path.join(rounds.ROOT, "lineshaft")))
OTHER = os.environ.get("OTHER")
WARM = 5  # steps that no side counts
TORCH = ["--precision", "bf16m", "--sdpa", "cudnn"]
WORKS = {
    "gpt2": dict(title="GPT-2 124M, 64 x 1024, bf16", tokens=64 * 1024, ids=50257, steps=60, must=1.10,
                 sides=["PyTorch", "ours, fast", "ours, ordered"], torch=["--model", "gpt2", "--batch", "64"]),
    "llama": dict(title="Llama 1.24B, 16 x 2048, bf16", tokens=16 * 2048, ids=128256, steps=20, must=1.03,
                  sides=["PyTorch", "ours, fast", "ours, fp8"], torch=["--model", "llama1b", "--batch", "16", "--seq", "2048"]),
    "xl": dict(title="GPT-2 1.56B, 16 x 1024, bf16", tokens=16 * 1024, ids=50257, steps=20, must=1.03,
               sides=["llm.c" if LLMC else "PyTorch", "ours, fast"],
               torch=["--model", "gpt2xl", "--batch", "16", "--compile", "blocks"]),
    "mixture": dict(title="Mixtral 0.53B, 32 x 1024, bf16", tokens=32 * 1024, ids=32000, steps=20, must=1.05,
                    sides=["PyTorch", "ours, fast"], script="mixture_torch.py", torch=["--compile", "1"]),
}


class Card:
    """What NVML says of the first card; None where it says nothing."""

    def __init__(self):
        self.most, self.before, self.device = 0, 0, ctypes.c_void_p()
        try:
            self.lib = ctypes.CDLL("libnvidia-ml.so.1")
            if self.lib.nvmlInit_v2() or self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)):
                self.lib = None
        except OSError:
            self.lib = None
        if self.lib:
            threading.Thread(target=self.watch, daemon=True).start()

    def used(self):
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if not self.lib or self.lib.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)):
            return 0
        return memory[2]

    def joules(self):
        value = ctypes.c_ulonglong()
        if not self.lib or self.lib.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(value)):
            return None
        return value.value / 1e3

    def watch(self):
        while True:
            self.most = max(self.most, self.used())
            time.sleep(0.02)

    def begin(self):
        self.before = self.most = self.used()

    def gib(self):
        return (self.most - self.before) / 2**30 if self.lib else None


CARD = Card()


def lines_of(command, env, folder, log, seconds):
    """Lines that a process prints, as they come; it is ended when the caller has seen enough, or after `seconds`."""
    process = subprocess.Popen(command, env={**os.environ, **env}, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield from process.stdout
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def last_words(log):
    log.seek(0)
    lines = log.read().strip().splitlines() or [f"it said nothing (a process has {LIMIT:.0f} s)"]
    return next((line for line in lines if "error:" in line), lines[-1])[:200]


def run_ours(side, work, steps, folder, log):
    out, begin, ms, joules, told = os.path.join(folder, "run"), time.monotonic(), [], [], {}
    program = os.path.abspath(OTHER) if side.startswith("other") else PROGRAM
    command = [program, "train", os.path.join(rounds.HERE, "gpu", work + ".yaml"), "--json", "--fresh",
               "--set", f"out={out}", "--set", f"train.steps={WARM + steps}"]
    how = side.split(", ")[1]
    command += ["--set", "precision=fp8"] if how == "fp8" else ["--set", f"train.reduce={how}"]
    for line in lines_of(command, {}, folder, log, LIMIT):
        event = json.loads(line)
        if event["event"] == "start":
            told["opened"] = time.monotonic() - begin
            told["own"] = event["ledger_bytes"] / 2**30
        elif event["event"] == "step":
            told.setdefault("first", time.monotonic() - begin)
            ms.append(event["ms"])
            told["loss"] = event["loss"]
            if len(ms) in (WARM, WARM + steps):
                joules.append(CARD.joules())
            if len(ms) == WARM + steps and work != "gpt2":
                break  # the checkpoint of a large model would take longer than its steps
        elif event["event"] == "summary":
            told["own"] = event["peak_bytes"] / 2**30
    if len(ms) < WARM + steps:
        return None
    if len(joules) == 2 and joules[0] is not None:
        told["joules"] = (joules[1] - joules[0]) / steps / WORKS[work]["tokens"] * 1e6
    return {**told, "ms": ms[WARM:]}


def run_torch(work, steps, folder, log):
    own = WORKS[work].get("script")  # beside the run files
    script = os.path.join(rounds.HERE, "gpu", own) if own else os.path.abspath(os.path.join(PEERS, "train_torch.py"))
    command = [PYTHON, script, *WORKS[work]["torch"], *([] if own else TORCH), "--steps", str(steps), "--warm", str(WARM - 1)]
    env = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor")}
    for line in lines_of(command, env, folder, log, LIMIT):
        if line.startswith("RESULT "):
            told = json.loads(line[7:])
            if "ms" not in told:
                log.write(told.get("error", "no figure") + "\n")
                return None
            return {"ms": [told["ms"]], "first": told["age_first_step_s"], "own": told["peak_gib"], "loss": told["loss_last"],
                    "joules": told.get("j_per_mtok"), "wall_ms": told["wall_ms"]}
    return None


def run_llmc(work, steps, folder, log):
    begin, ms, told = time.monotonic(), [], {}
    command = [LLMC, "-e", "d48", "-b", "16", "-t", "1024", "-d", str(WORKS[work]["tokens"]), "-r", "0", "-ge", "2",
               "-x", str(WARM + steps), "-i", "tokens.bin", "-j", "tokens.bin", "-v", "100000", "-s", "0", "-m", "1", "-n", "0",
               "-l", "3e-4", "-c", "0.1", "-u", "0"]
    for line in lines_of(command, {}, folder, log, LIMIT):
        found = re.match(r"step +\d+/\d+ \| loss ([\d.]+).*\| ([\d.]+) ms \|", line)
        if found:
            told.setdefault("first", time.monotonic() - begin)
            told["loss"] = float(found[1])
            ms.append(float(found[2]))
    return {**told, "ms": ms[WARM:]} if len(ms) == WARM + steps else None


def make_tokens(ids, folder):
    """A shard of random tokens out of `ids`, and the same as llm.c reads them: each id is a character of its own."""
    letters = [chr(c) for c in (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))][:ids - 1]
    random_, end = random.Random(1), {"id": ids - 1, "content": "<end>", "special": True, "single_word": False,
                                      "lstrip": False, "rstrip": False, "normalized": False}
    model = {"type": "BPE", "unk_token": None, "vocab": {c: i for i, c in enumerate(letters)}, "merges": []}
    os.mkdir(os.path.join(folder, "tokenizer"))
    with open(os.path.join(folder, "tokenizer/tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": None,
                   "post_processor": None, "decoder": None, "model": model}, f, ensure_ascii=False)
    with open(os.path.join(folder, "tokenizer/tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"eos_token": "<end>"}, f)
    numbers = random_.choices(range(len(letters)), k=1 << 21)
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as f:
        f.write("".join(letters[i] for i in numbers))
    subprocess.run([PROGRAM, "data", "build", "-t", "tokenizer", "-o", "tokens.lst", "text.txt"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    if LLMC and ids < 65536:
        with open(os.path.join(folder, "tokens.bin"), "wb") as f:
            array.array("i", [20240520, 1, len(numbers)] + [0] * 253).tofile(f)
            array.array("H", numbers).tofile(f)


def run_side(side, work, steps, folder):
    with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
        CARD.begin()
        if side == "PyTorch":
            told = run_torch(work, steps, folder, log)
        elif side == "llm.c":
            told = run_llmc(work, steps, folder, log)
        else:
            told = run_ours(side, work, steps, folder, log)
        if told is None:
            return "not measured: " + last_words(log)
        told["card"] = CARD.gib()
        return told


def measure(work, folder):
    """What each side told in each round."""
    w = WORKS[work]
    chosen = os.environ.get("SIDES")
    sides = w["sides"] + (["other, fast"] if OTHER else [])
    sides = [s for s in sides if not chosen or s in chosen.split(";")]
    steps, begin = int(os.environ.get("STEPS") or w["steps"]), time.monotonic()
    told = {side: [] for side in sides}
    make_tokens(w["ids"], folder)
    for i in range(ROUNDS):
        if i and time.monotonic() - begin + longest > LIMIT:
            print(f"{work}: round {i + 1} left out, {LIMIT:.0f} s are not enough", file=sys.stderr)
            break
        round_begin = time.monotonic()
        for side in rounds.in_turn(sides, i):
            if told[side] and isinstance(told[side][-1], str):
                continue
            told[side].append(run_side(side, work, steps, folder))
            print(f"  {work}, round {i + 1}, {side}: " + brief(told[side][-1]), file=sys.stderr, flush=True)
        longest = 0.75 * (time.monotonic() - round_begin)  # what was compiled or read once is there now
    return told


def brief(t):
    if isinstance(t, str):
        return t
    opened = f" (opened after {t['opened']:.1f} s)" if "opened" in t else ""
    return f"{rounds.median(t['ms']):.1f} ms, first step after {t['first']:.1f} s{opened}, loss {t['loss']:.2f}"


def number(value, digits):
    return "-" if value is None else f"{value:,.{digits}f}"


def rows_of(work, told):
    """Rows of the table, and the ratio of ours (fast) to the peer."""
    w, rows, speed = WORKS[work], [], {}
    for side, all_rounds in told.items():
        good = [t for t in all_rounds if not isinstance(t, str)]
        if good:
            speed[side] = w["tokens"] / rounds.median([rounds.median(t["ms"]) for t in good]) * 1e3
    peer = next((s for s in speed if s in ("PyTorch", "llm.c")), None)
    for side, all_rounds in told.items():
        good = [t for t in all_rounds if not isinstance(t, str)]
        if not good:
            rows.append((w["title"], side, all_rounds[-1] if all_rounds else "not measured"))
            continue
        last, most = good[-1], max((t["card"] or 0) for t in good) or None
        rows.append((w["title"], side, f"{speed[side]:,.0f}", f"{w['tokens'] / speed[side] * 1e3:.1f}",
                     f"{speed[side] / speed[peer]:.3f} x" if peer else "-", number(most, 1), number(last.get("own"), 1),
                     " ".join(f"{t['first']:.1f}" for t in good), number(last.get("joules"), 0),
                     " ".join(f"{rounds.median(t['ms']):.1f}" for t in good), f"{last['loss']:.2f}"))
    ratio = speed["ours, fast"] / speed[peer] if peer and "ours, fast" in speed else None
    return rows, ratio


HEAD = ("work", "side", "tokens/s", "ms a step", "to the peer", "card GiB", "own GiB", "first step, s", "J/Mtoken", "rounds, ms",
        "loss")


def show(rows):
    widths = [max(len(r[i]) for r in [HEAD] + rows if i < len(r) and (i < 2 or len(r) > 3)) for i in range(len(HEAD))]
    for r in [HEAD] + rows:
        print("| " + " | ".join(c.ljust(n) if i < 2 else c.rjust(n) for i, (c, n) in enumerate(zip(r, widths))) + " |")
        if r is HEAD:
            print("|" + "|".join("-" * (n + 2) for n in widths) + "|")


def said(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "not known"


def machine():
    card = said(["nvidia-smi", "--query-gpu=name,driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"])
    torch = said([PYTHON, "-c", "import torch; print('PyTorch', torch.__version__, 'CUDA', torch.version.cuda, "
                  "'cuDNN', torch.backends.cudnn.version())"])
    return f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC; {card}; {platform.node()}; {torch}"


def main():
    words = sys.argv[1:] or ["gpt2"]
    unknown = [w for w in words if w not in WORKS]
    if unknown:
        sys.exit(f"gpu.sh: no work \"{unknown[0]}\"; there are {', '.join(WORKS)}")
    if not all("script" in WORKS[w] for w in words) and not os.access(os.path.join(PEERS, "train_torch.py"), os.R_OK):
        print(f"PyTorch: not measured, no train_torch.py in \"{PEERS}\" (PEERS=FOLDER names it)", file=sys.stderr)
    rows, result, ends = [], {}, []
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None  # checkpoints at the end of a run are no figure here
    for work in words:
        with tempfile.TemporaryDirectory(dir=shm) as folder:
            result[work] = measure(work, folder)
        some, ratio = rows_of(work, result[work])
        rows += some
        if ratio:
            ends.append(f"{work}: {ratio:.3f} x its peer (must {WORKS[work]['must']:.2f} x)")
    print(machine())
    show(rows)
    print("\n".join(ends) if ends else "no ratio: one side is missing")
    rounds.write_json(os.environ.get("JSON"), result)


if __name__ == "__main__":
    main()
