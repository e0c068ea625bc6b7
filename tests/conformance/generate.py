"""generate.py -- text told greedily by random models of every family, against transformers.

Ours goes through the key/value cache: the prompt in pieces of several lengths, then a token at a
time. Theirs is generate() with its own cache. The first token that differs must be one where two
logits were closer than rounding; such a tie is said, and ends the comparison of that text.
"""
import os, sys
import numpy as np, torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle

TIE = 1e-4
PROMPT = 11


def theirs(model, prompt, count):
    out = model.generate(torch.tensor(prompt).long(), do_sample=False, max_new_tokens=count,
                         min_new_tokens=count, pad_token_id=0, eos_token_id=None)
    return out[0, prompt.shape[1]:].numpy()


def check(family, number, pieces):
    config, old = oracle.configuration(family, number)
    model = oracle.random_model(config, 500 + number, 0.4)  # wide, so that the text does not repeat itself
    folder = oracle.save(model, "%s-%d" % (family, number), old)
    prompt, _ = oracle.batches(config.vocab_size, 90 + number, 1, PROMPT)
    ours = oracle.probe("greedy", folder, {"tokens": prompt, "pieces": np.array(pieces, np.int32)})
    want = theirs(model, prompt, len(ours["tokens"]))
    differ = np.flatnonzero(want != ours["tokens"])
    what = "%s %d, prompt in pieces of %s" % (family, number, "+".join(map(str, pieces)) if len(pieces) < 11 else 1)
    if len(differ) == 0:
        print("%-44s %d tokens equal, %d different ones" % (what, len(want), len(set(want))))
        if len(set(want)) < 4:
            oracle.fail(what + ": the text only repeats itself, so little was tested")
        return
    at = int(differ[0])
    if ours["margins"][at] > TIE:
        oracle.fail("%s: token %d is %d, theirs %d, though it was ahead by %.2g" %
                    (what, at, ours["tokens"][at], want[at], ours["margins"][at]))
    print("%-44s %d tokens equal, then a tie within %.1e" % (what, at, ours["margins"][at]))


if __name__ == "__main__":
    for family in oracle.FAMILIES:
        for number, pieces in enumerate([[11], [1] * 11, [4, 7], [3, 1, 5, 2]]):
            try:
                check(family, number, pieces)
            except oracle.Wrong:
                pass  # said and counted
    oracle.end("generate")
