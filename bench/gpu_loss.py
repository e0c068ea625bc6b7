"""gpu_loss.py PRECISION... -- see bench/gpu_loss.sh."""
import json
import os
import subprocess
import sys
import tempfile

import rounds

DATA = os.path.join(rounds.ROOT, "../shared/data")
TEXT = os.path.abspath(os.environ.get("TEXT", os.path.join(DATA, "text/tinyshakespeare.txt")))
TOKENIZER = os.path.abspath(os.environ.get("TOKENIZER", os.path.join(DATA, "tokenizers/gpt2")))
STEPS, SEQUENCES = int(os.environ.get("STEPS", "200")), int(os.environ.get("SEQUENCES", "8"))
BOUND = float(os.environ.get("BOUND", "0.02"))
PROGRAM = os.path.abspath(os.environ.get("LINESHAFT", os.path.join(rounds.ROOT, "lineshaft")))


def losses(precision, folder):
    """The loss of every step."""
    out = os.path.join(folder, precision)
    command = [PROGRAM, "train", os.path.join(rounds.HERE, "gpu/gpt2.yaml"), "--json", "--fresh"]
    for key, value in (("out", out), ("precision", precision), ("train.steps", STEPS), ("batch.sequences", SEQUENCES),
                       ("train.warmup", 20), ("data.shards", json.dumps([])), ("data.text", json.dumps([TEXT])),
                       ("data.tokenizer", TOKENIZER), ("train.reduce", "fast")):
        command += ["--set", f"{key}={value}"]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    steps = [json.loads(line) for line in told.stdout.splitlines()]
    found = [event["loss"] for event in steps if event["event"] == "step"]
    if told.returncode or len(found) != STEPS:
        sys.exit(f"gpu_loss.sh: {precision}: " + (told.stderr.strip() or f"{len(found)} of {STEPS} steps"))
    return found


def main():
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in ["fp32"] + (sys.argv[1:] or ["bf16"]):
            curves[precision] = losses(precision, folder)
    shown = sorted({1, 10, *range(50, STEPS + 1, 50), STEPS})
    print(f"GPT-2 124M, {SEQUENCES} x 1024 tokens a step of {os.path.basename(TEXT)}; loss at step, and relative difference to fp32")
    print("| precision | " + " | ".join(map(str, shown)) + " | largest | mean of the last 50 |")
    print("|---|" + "---|" * (len(shown) + 2))
    worst = 0.0
    for precision, curve in curves.items():
        apart = [a / b - 1 for a, b in zip(curve, curves["fp32"])]
        last = sum(curve[-50:]) / sum(curves["fp32"][-50:]) - 1
        worst = max(worst, abs(last))
        print(f"| {precision} | " + " | ".join(f"{curve[s - 1]:.4f}" for s in shown) +
              f" | {max(map(abs, apart)):.2%} | {last:+.2%} |")
    rounds.write_json(os.environ.get("JSON"), curves)
    sys.exit(0 if worst <= BOUND else f"a curve is {worst:.2%} from fp32's (bound {BOUND:.0%})")


main()
