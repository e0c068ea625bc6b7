"""preference.py -- DPO, ORPO and KTO against the trainers of trl.

A tiny model, the same lines in the same order, SGD: every step's loss, rewards and log-probabilities
must be those that trl logs, and the weights after the last step must be equal, which they are only
where every gradient was. Lines are texts and chat messages; prompts and answers of unequal length.
"""
import json, os, random, subprocess, sys
os.environ["TQDM_DISABLE"] = "1"  # before trl draws its bars
import torch, tokenizers, transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch.utils.data import SequentialSampler

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import LINESHAFT

try:
    import datasets, peft, trl
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
except ImportError as missing:
    print("skipped, there is no trl: %s" % missing)
    sys.exit(77)

STEPS, BATCH, HALF, LR, BETA = 4, 4, 48, 0.2, 0.3
NEAR = 1e-4
LINES = STEPS * BATCH
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
NAMES = ["loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "kl"]


def batch_of(kind):
    """trl's kto gives a prompt the answer of the line before in its batch, ours of the line before in
    the file: equal where a batch is the whole file."""
    return LINES if kind == "kto" else BATCH


def words(rng, most):
    return " ".join(rng.choice("the sky is blue and grass green why not ask again tomorrow morning".split()) for _ in range(rng.randint(1, most)))


def make_tokenizer():
    rng = random.Random(1)
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator((words(rng, 30) for _ in range(200)), trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    fast.chat_template = CHATML
    return fast


def make_lines(kind, chat):
    rng, lines = random.Random(7), []
    for i in range(LINES):
        ask, good, bad = words(rng, 12) + "?", " " + words(rng, 14), " " + words(rng, 5)
        if i == 3:
            good = words(rng, 12) * 12  # longer than it may be
        if chat:
            ask = [{"role": "user", "content": ask}]
            good, bad = ([{"role": "assistant", "content": x.strip()}] for x in (good, bad))
        if kind == "kto":
            lines.append({"prompt": ask, "completion": rng.choice([good, bad]), "label": rng.random() < 0.6})
        else:
            lines.append({"prompt": ask, "chosen": good, "rejected": bad})
    return lines


class InOrder:
    """As the lines stand in the file."""
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def theirs(kind, base, tokenizer, lines, lora, options):
    common = dict(output_dir="trl", per_device_train_batch_size=batch_of(kind), max_steps=STEPS, learning_rate=LR, optim="sgd",
                  lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=0.0, logging_steps=1,
                  report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, save_strategy="no",
                  max_length=HALF, disable_tqdm=True, beta=BETA)
    common.update(options)
    config, trainer = {"dpo": (trl.DPOConfig, trl.DPOTrainer), "orpo": (ORPOConfig, ORPOTrainer), "kto": (trl.KTOConfig, trl.KTOTrainer)}[kind]
    if kind == "orpo":  # a batch of one: our loss of a batch is the mean over its pairs
        common.update(per_device_train_batch_size=1, gradient_accumulation_steps=BATCH)
    model = oracle.load(base)
    if lora:
        # The adapter that we begin with, as we export it.
        model = peft.PeftModel.from_pretrained(model, lora, is_trainable=True)
    run = type("Trainer", (InOrder, trainer), {})(
        model=model, args=config(**common), train_dataset=datasets.Dataset.from_list(lines), processing_class=tokenizer)
    run.train()
    logs = [x for x in run.state.log_history if "loss" in x]
    if lora:
        return logs, run.model.merge_and_unload().state_dict()
    return logs, run.model.state_dict()


def export(name, to, *flags):
    done = subprocess.run([LINESHAFT, "export", "runs/" + name, to, *flags], capture_output=True, text=True)
    if done.returncode != 0:
        oracle.fail("export of %s: exit %d, %s" % (name, done.returncode, done.stderr.strip()))


def ours(name, kind, base, extra, sets=()):
    open(name + ".yaml", "w").write("""
model: {import: %s, context: %d, dropout: 0}
data: {text: %s.jsonl, tokenizer: tokenizer, validation: 0, shuffle: false}
batch: {sequences: %d, leaf: 1}
train: {objective: %s, steps: %d, lr: %g, optimizer: sgd, momentum: 0, nesterov: false, schedule: constant, warmup: 0, clip: 0, weight_decay: 0}
preference: {beta: %g%s}
eval: {every: 0, sample: ''}
""" % (base, 2 * HALF, name, batch_of(kind), kind, STEPS, LR, BETA, extra))
    done = subprocess.run([LINESHAFT, "train", name + ".yaml", *sets], capture_output=True, text=True)
    if done.returncode != 0:
        oracle.fail("%s: exit %d, %s" % (name, done.returncode, done.stderr.strip()))
    events = [json.loads(line) for line in open("runs/%s/events.jsonl" % name)]
    export(name, name + "-out", "--dtype", "f32")
    return [e for e in events if e["event"] == "step"], oracle.load(name + "-out").state_dict()


def first_adapter(name, kind, base, extra):
    """The adapter before its first step: that of a run that learns nothing."""
    ours(name, kind, base, extra, ["--set", "lora.rank=4", "--set", "train.steps=1", "--set", "train.lr=1e-30", "--set", "train.min_lr=0"])
    export(name, name + "-adapter", "--adapter")
    return name + "-adapter"


def compare(what, mine, yours, base):
    (steps, weights), (logs, expected) = mine, yours
    far = 0
    for number, (a, b) in enumerate(zip(steps, logs, strict=True)):
        for name in NAMES:
            if name in a and name in b:
                d = abs(a[name] - b[name]) / max(1, abs(b[name]))
                far = max(far, d)
                oracle.within("%s, step %d: %s is %g, trl has %g" % (what, number + 1, name, a[name], b[name]), d, NEAR)
    before = oracle.load(base).state_dict()
    moved = max(float((expected[n] - before[n]).abs().max()) for n in before)
    apart = max(float((expected[n] - weights[n]).abs().max()) for n in before)
    oracle.within("%s: weights" % what, apart / moved, NEAR)
    print("%-24s logs within %.0e, weights moved %.1e and differ by %.0e" % (what, far, moved, apart))


def check(what, kind, base, tokenizer, chat=False, lora=False, extra="", options={}, sets=()):
    name = what.replace(", ", "-").replace(" ", "-")
    lines = make_lines(kind, chat)
    open(name + ".jsonl", "w").write("".join(json.dumps(x) + "\n" for x in lines))
    adapter = None
    if lora:
        open(name + "-first.jsonl", "w").write("".join(json.dumps(x) + "\n" for x in lines))
        adapter = first_adapter(name + "-first", kind, base, extra)
        sets = [*sets, "--set", "lora.rank=4"]
    if kind == "orpo" and chat:  # its trainer takes texts: those that the template makes
        text = lambda m, ask: tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=ask)
        lines = [{"prompt": text(x["prompt"], True), **{k: text(x["prompt"] + x[k], False)[len(text(x["prompt"], True)):] for k in ("chosen", "rejected")}} for x in lines]
    compare(what, ours(name, kind, base, extra, sets), theirs(kind, base, tokenizer, lines, adapter, options), base)


if __name__ == "__main__":
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained("tokenizer")
    for number, family in enumerate(["llama", "qwen3", "gpt2"]):
        config, _ = oracle.configuration(family, 0)
        config.vocab_size, config.tie_word_embeddings = len(tokenizer), number == 1
        config.max_position_embeddings = 4 * HALF
        config.bos_token_id, config.eos_token_id, config.pad_token_id = None, 0, 0
        if family == "gpt2":  # both answers of a pair count its learned positions from their own beginning
            config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        oracle.random_model(config, 40 + number).save_pretrained(family)
    cases = [
        ("dpo", "dpo", "llama", {}),
        ("dpo chat", "dpo", "qwen3", {"chat": True}),
        ("dpo smoothed", "dpo", "qwen3", {"extra": ", label_smoothing: 0.2", "options": {"loss_type": ["robust"], "label_smoothing": 0.2}}),
        ("dpo lora", "dpo", "llama", {"lora": True}),
        ("dpo on 2 ranks", "dpo", "llama", {"sets": ["-n", "2"]}),
        ("dpo gpt2", "dpo", "gpt2", {}),
        ("orpo", "orpo", "llama", {}),
        ("kto", "kto", "llama", {}),
        ("kto on 2 ranks", "kto", "llama", {"sets": ["-n", "2", "--set", "mesh.zero=1"]}),
        ("kto chat", "kto", "qwen3", {"chat": True, "extra": ", desirable_weight: 0.7, undesirable_weight: 1.3",
                                      "options": {"desirable_weight": 0.7, "undesirable_weight": 1.3}}),
    ]
    for what, kind, base, rest in cases:
        try:
            check(what, kind, base, tokenizer, **rest)
        except oracle.Wrong:
            pass  # said and counted
    oracle.end("preference")
