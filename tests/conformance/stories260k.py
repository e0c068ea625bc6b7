"""stories260k.py -- a real trained Llama tells its known story, token for token as transformers does."""
import json, os, subprocess, sys
import numpy as np

data = os.environ["LINESHAFT_DATA"]
source = os.path.join(data, "models/stories260k")
if not os.path.exists(source):
    print("%s is not here" % source)
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import llama2c, oracle, torch, transformers

KNOWN = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park.")
COUNT = 320


def their_story(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = model.generate(torch.tensor([[1]]), do_sample=False, max_new_tokens=COUNT,
                         min_new_tokens=COUNT, eos_token_id=None, pad_token_id=0)[0].tolist()
    return model, ids, tokenizer.decode(ids, skip_special_tokens=True)


def check_ids(folder, ids):
    ours = oracle.probe("greedy", folder, {"tokens": np.array([[1]], np.int32),
                                           "pieces": np.array([1], np.int32)},
                        "model.context=%d" % (COUNT + 1))
    if ours["tokens"].tolist() != ids[1:]:
        at = int(np.flatnonzero(ours["tokens"] != ids[1:])[0])
        oracle.fail("token %d is %d, theirs %d (ahead by %.2g)" %
                    (at, ours["tokens"][at], ids[1 + at], ours["margins"][at]))
    print("%d tokens after the start token equal transformers'; the closest choice was ahead by %.1e" %
          (COUNT, ours["margins"].min()))


def check_logits(model, folder, ids):
    tokens = np.array([ids[:-1]], np.int32)
    ours = oracle.probe("check", folder, {"tokens": tokens, "targets": np.array([ids[1:]], np.int32)})
    logits, _ = oracle.loss_of(model, tokens, np.array([ids[1:]]))
    far = np.abs(ours["logits"] - logits.detach().numpy()).max()
    oracle.within("logits", far, 1e-4)
    print("logits over the story: max abs difference %.1e" % far)


def check_command(folder, ids, text, prompt):
    """What a user types: our tokenizer, our cache, our text."""
    words = [oracle.LINESHAFT, "generate", folder, "--prompt", prompt, "--temperature", "0", "--ignore-eos"]
    done = subprocess.run(words + ["--tokens", str(COUNT), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        oracle.fail("lineshaft generate: " + done.stderr.strip())
    ours = json.loads(done.stdout)
    told = (ours["prompt_ids"] + ours["ids"])[:len(ids)]
    if told != ids[:len(told)] or len(told) < len(ids):
        oracle.fail("lineshaft generate, prompt \"%s\": other tokens than transformers: %s" % (prompt, told))
    if not (prompt + ours["text"]).startswith(text):
        oracle.fail("lineshaft generate: other text for the same tokens: " + repr(prompt + ours["text"]))
    print("lineshaft generate, prompt \"%s\": %d tokens and %d characters equal transformers'" %
          (prompt, len(told), len(text)))


if __name__ == "__main__":
    folder = "stories260k"
    llama2c.convert(os.path.join(source, "checkpoint_v1.bin"), os.path.join(source, "tokenizer.bin"), folder)
    model, ids, text = their_story(folder)
    print("transformers: %s ..." % text[:len(KNOWN)])
    if not text.startswith(KNOWN):
        oracle.fail("the converted folder does not tell the known story: " + repr(text[:120]))
    check_ids(folder, ids)
    check_logits(model, folder, ids)
    for prompt in ("", "Once upon a time"):
        check_command(folder, ids, text, prompt)
    oracle.end("stories260k")
