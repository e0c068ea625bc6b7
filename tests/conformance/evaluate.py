"""evaluate.py -- `lineshaft eval` against the lm_eval package on small random models.

lm_eval's own tasks are made of local files: a perplexity task whose one document is a text, and a
multiple_choice task. Both sides read the same folder of transformers.
"""
import contextlib, io, json, os, subprocess, sys

os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("HF_HOME", os.path.abspath("hf-home"))
import numpy as np, torch, transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import LINESHAFT

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

TEXT = open(os.path.join(os.environ["LINESHAFT_ROOT"], "docs", "glossary.md"), encoding="utf-8").read()[:6000] + " naïve\u3000日本語 🚀 \n"


def tokenizer(bos):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|end|>"] + ["<s>"] * bos, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    names = {"eos_token": "<|end|>"}
    if bos:  # and it is put before every text
        tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tok.token_to_id("<s>"))])
        names["bos_token"] = "<s>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tok, model_max_length=4096, **names)


def questions(rng, n):
    """Words of the text as queries and choices; some end in blanks, some are not ASCII, one is empty."""
    words = TEXT.split()

    def some(least, most):
        at = int(rng.integers(0, len(words) - most))
        return " ".join(words[at:at + int(rng.integers(least, most + 1))])

    rows = []
    for i in range(n):
        choices = [some(1, 6) for _ in range(int(rng.integers(2, 6)))]
        query = some(2, 60) + ("  " if i % 7 == 3 else "") if i % 11 else ""
        if i % 5 == 0:
            choices[-1] += " ünï 🚀"
        rows.append({"query": query, "choices": choices, "gold": int(rng.integers(0, len(choices))), "id": i})
    return rows


def theirs(folder, tok, tasks):
    lm = HFLM(pretrained=oracle.load(folder), tokenizer=tok, device="cpu", batch_size=1)
    with contextlib.redirect_stderr(io.StringIO()):  # hundreds of progress bars
        return lm_eval.simple_evaluate(model=lm, tasks=tasks, bootstrap_iters=2, verbosity="ERROR",
                                       task_manager=TaskManager(include_path="tasks", include_defaults=False))["results"]


def ours(folder, *flags):
    done = subprocess.run([LINESHAFT, "eval", folder, "--json", *flags], capture_output=True, text=True)
    if done.returncode != 0:
        oracle.fail("eval %s: exit %d, %s" % (folder, done.returncode, done.stderr.strip()))
    return json.loads(done.stdout)


def write_tasks():
    os.makedirs("tasks", exist_ok=True)
    rng = np.random.default_rng(21)
    with open("questions.jsonl", "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in questions(rng, 120))
    json.dump({"text": TEXT}, open("text.json", "w"))
    open("text.txt", "w", encoding="utf-8").write(TEXT)
    source = "dataset_path: json\ntest_split: test\ndataset_kwargs:\n  data_files:\n    test: %s\n"
    open("tasks/questions.yaml", "w").write(
        "task: questions\noutput_type: multiple_choice\n" + source % os.path.abspath("questions.jsonl") +
        "doc_to_text: query\ndoc_to_choice: choices\ndoc_to_target: gold\n"
        "metric_list:\n  - metric: acc\n  - metric: acc_norm\n")
    open("tasks/text.yaml", "w").write(
        "task: text\noutput_type: loglikelihood_rolling\n" + source % os.path.abspath("text.json") +
        "doc_to_text: \"\"\ndoc_to_target: \"{{text}}\"\n"
        "metric_list:\n  - metric: word_perplexity\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n")


def strided(folder, tok, stride):
    """Perplexity with overlapping windows by the usual loop over transformers; lm_eval has none."""
    model = oracle.load(folder)
    T = model.config.max_position_embeddings
    ids = [tok.bos_token_id if tok.bos_token_id is not None else tok.eos_token_id] + tok.encode(TEXT)
    total, done = 0.0, 0
    while done < len(ids) - 1:
        step = min(T if done == 0 else stride, len(ids) - 1 - done)
        end = done + step
        window = torch.tensor([ids[max(0, end - T):end + 1]])
        with torch.no_grad():
            logp = model(window[:, :-1]).logits.log_softmax(-1)[0]
        total += float(logp[-step:].gather(1, window[0, -step:, None]).double().sum())
        done = end
    return total


def check(family, bos):
    what = "%s, %s" % (family, "with <s>" if bos else "without <s>")
    tok = tokenizer(bos)
    config, _ = oracle.configuration(family, 0)
    config.vocab_size, config.eos_token_id = len(tok), tok.eos_token_id
    config.bos_token_id, config.pad_token_id = tok.bos_token_id, None
    folder = what.replace(", ", "-").replace(" ", "-").replace("<s>", "bos")
    oracle.random_model(config, 900, 0.3).save_pretrained(folder)
    tok.save_pretrained(folder)
    want = theirs(folder, tok, ["questions", "text"])
    got = ours(folder, "--text", "text.txt", "--task", "questions.jsonl")
    task, text = got["tasks"][0], got["texts"][0]
    for key in ("acc", "acc_norm"):
        if task[key] != want["questions"][key + ",none"]:
            oracle.fail("%s: %s is %.4f, theirs %.4f" % (what, key, task[key], want["questions"][key + ",none"]))
        oracle.within(what + ": error of " + key, abs(task[key + "_stderr"] - want["questions"][key + "_stderr,none"]), 1e-9)
    far = max(abs(text[key] / want["text"][key + ",none"] - 1) for key in ("byte_perplexity", "bits_per_byte"))
    oracle.within(what + ": perplexity by byte", far, 1e-5)
    words = abs(np.log(text["word_perplexity"]) / np.log(want["text"]["word_perplexity,none"]) - 1)
    oracle.within(what + ": perplexity by word", words, 1e-5)
    overlap = ours(folder, "--text", "text.txt", "--stride", "9")["texts"][0]["log_p"]
    oracle.within(what + ": with a stride of 9", abs(overlap / strided(folder, tok, 9) - 1), 1e-5)
    print("%-26s acc %.4f, acc_norm %.4f equal; perplexity by byte %.1e, by word %.1e of theirs" %
          (what, task["acc"], task["acc_norm"], far, words))


if __name__ == "__main__":
    write_tasks()
    for family, bos in (("gpt2", False), ("llama", True), ("qwen2", False), ("mixtral", True)):
        try:
            check(family, bos)
        except oracle.Wrong:
            pass  # said and counted
    oracle.end("evaluate")
