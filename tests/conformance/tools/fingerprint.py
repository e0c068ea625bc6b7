#!/usr/bin/env python3
"""fingerprint.py FOLDER -- write FOLDER/lineshaft_fingerprint.json with transformers.

Put beside a Hugging Face model, it lets `lineshaft import` prove that the imported model computes
what the original does. Everything is computed in fp32 on the CPU. With --compare, an existing
fingerprint is compared instead of written, and the largest difference (as a share of the root mean
square of the logits) must be at most 1e-3.

Needs: torch, transformers."""
import argparse
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

TOKENS, ROWS, FIXED, TOP = 24, 3, 8, 4


def spread(i, vocab):
    return (((i + 1) * 0x9E3779B97F4A7C15) % 2**64 >> 32) % vocab


def logits_of(folder, tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double()


def make(folder):
    config = json.loads((folder / "config.json").read_text())
    vocab = config["vocab_size"]
    context = config.get("n_positions") or config.get("max_position_embeddings") or TOKENS
    n = min(TOKENS, context)
    tokens = [spread(i, vocab) for i in range(n)]
    logits = logits_of(folder, tokens)
    rows = []
    for k in range(ROWS):
        position = (k + 1) * (n - 1) // ROWS
        x = logits[position]
        places = [spread(1000 + k * FIXED + i, vocab) for i in range(FIXED)]
        places += torch.argsort(x, descending=True, stable=True)[: min(TOP, vocab)].tolist()
        rows.append({"position": position, "mean": x.mean().item(),
                     "rms": x.square().mean().sqrt().item(), "places": places,
                     "logits": [x[p].item() for p in places]})
    return {"format": "lineshaft fingerprint 1", "vocab": vocab, "tokens": tokens, "rows": rows}


def compare(folder, want):
    logits = logits_of(folder, want["tokens"])
    worst = 0.0
    for row in want["rows"]:
        x = logits[row["position"]]
        for place, logit in zip(row["places"], row["logits"]):
            worst = max(worst, abs(x[place].item() - logit) / max(row["rms"], 1e-4))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    path = args.folder / "lineshaft_fingerprint.json"
    if args.compare:
        worst = compare(args.folder, json.loads(path.read_text()))
        print(f"largest difference {worst:.1e}")
        sys.exit(worst > 1e-3)
    path.write_text(json.dumps(make(args.folder)) + "\n")
    print(f"wrote {path}")


main()
