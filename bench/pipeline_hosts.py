"""pipeline_hosts.py PROGRAM -- see pipeline_hosts.sh."""
import json, os, statistics, subprocess, sys, tempfile

program = sys.argv[1]
setting = lambda name, preset: os.environ.get(name, preset)
hosts, steps, micros = int(setting("HOSTS", "4")), int(setting("STEPS", "10")), int(setting("MICROS", "16"))
leaf, context, width = int(setting("LEAF", "1")), int(setting("CONTEXT", "256")), int(setting("WIDTH", "384"))
gbits = float(setting("GBITS", "0.94"))
ALPHA, MESSAGE = 0.03, 0.002  # ms, as `lineshaft plan schedule` has them
cores = len(os.sched_getaffinity(0))

os.chdir(tempfile.mkdtemp())
open("run.yaml", "w").write(f"""name: hosts
model: {{family: gpt2, layers: {setting("LAYERS", "8")}, width: {width}, heads: 4, context: {context}}}
data: {{text: [builtin:stories], tokenizer: bytes, validation: 5%}}
batch: {{sequences: {micros * leaf}, leaf: {leaf}, group: 1}}
train: {{steps: {steps}, lr: 1e-3, reduce: fast}}
device: {{threads: 1}}
checkpoint: {{every: 0}}
eval: {{every: 0, sequences: 1, sample: ""}}
""")


def call(*words):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def plan(stages, *words):
    return json.loads(call("plan", "schedule", "run.yaml", "--stages", str(stages), "--json", *words))


def step_events(folder):
    rows = [json.loads(line) for line in open(f"{folder}/events.jsonl")]
    return [row for row in rows if row["event"] == "step"][2:]


def shared(table, bytes_):
    """Milliseconds of a step where hosts share cores: each that computes gets an equal part of them, one at most."""
    p, chunks = table["stages"], table["chunks"]
    last, port = p * chunks - 1, MESSAGE + bytes_ * 8e-6 / gbits
    todo = [list(rank["operations"]) for rank in table["ranks"]]
    work, left = [None] * p, [0.0] * p
    there, mail = set(), []  # (back, stage, micro-batch) that has come; (when, the same)
    out, into = [0.0] * p, [0.0] * p
    now = 0.0
    while any(todo) or any(work) or mail:
        for when, what in [m for m in mail if m[0] <= now + 1e-9]:
            there.add(what)
            mail.remove((when, what))
        for r in range(p):
            if work[r] or not todo[r]:
                continue
            op = todo[r][0]
            stage, back = op["chunk"] * p + r, op["what"] != "forward"
            end = op["what"] == "weight_gradient" or stage == (last if back else 0)
            if end or (back, stage, op["micro_batch"]) in there:
                work[r], left[r] = todo[r].pop(0), op["end"] - op["start"]
        busy = [r for r in range(p) if work[r]]
        rate = min(1.0, cores / len(busy)) if busy else 1.0
        until = min([now + left[r] / rate for r in busy] + [m[0] for m in mail])
        for r in busy:
            left[r] -= (until - now) * rate
        now = until
        for r in busy:
            if left[r] > 1e-9:
                continue
            op, work[r] = work[r], None
            stage, back = op["chunk"] * p + r, op["what"] != "forward"
            to = stage - 1 if back else stage + 1
            if op["what"] == "weight_gradient" or not 0 <= to <= last:
                continue
            start = max(now, out[r], into[to % p])
            out[r] = into[to % p] = start + port
            mail.append((start + port + ALPHA, (back, to, op["micro_batch"])))
    return now


# One rank with one thread: what it computes in a second, and what a step takes beside that; measured while as many compute as
# there are cores, because cores that share caches and power are slower together.
neighbours = [subprocess.Popen([program, "train", "run.yaml", "--json", "--set", f"out=one{i}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
              for i in range(1, min(hosts, cores))]
call("train", "run.yaml", "--json", "--set", "out=one")
if any(n.wait() for n in neighbours):
    sys.exit("a neighbour failed")
ones = step_events("one")
compute = statistics.median(row["split"]["forward"] + row["split"]["backward"] for row in ones)
rest = statistics.median(row["ms"] - row["split"]["forward"] - row["split"]["backward"] for row in ones)
whole = plan(1)["ranks"][0]["chunks"][0]
operations = (whole["forward_operations"] + whole["backward_operations"]) * micros
gflops = operations / compute / 1e6
print(f"one rank, one thread, {min(hosts, cores)} at once: {compute + rest:.1f} ms a step, {gflops:.1f} Gflop/s, {rest:.1f} ms beside forward and backward")
print(f"{hosts} hosts, {setting('LINK', '1gbit')}, {micros} micro-batches, {cores} cores; predicted and measured ms of a step:")
for kind in setting("SCHEDULES", "1f1b gpipe interleaved zero-bubble").split():
    table = plan(hosts, "--schedule", kind, "--gflops", f"{gflops:.4f}", "--gbits", f"{gbits}")
    call("lab", "--nodes", str(hosts), "--link", setting("LINK", "1gbit"), "--", program, "train", "run.yaml", "--json", "-n", "1",
         "--set", f"mesh.pp={hosts}", "--set", f"mesh.schedule={kind}", "--set", f"out={kind}")
    measured = statistics.median(row["ms"] for row in step_events(kind))
    own = table["step"] + rest / hosts
    here = shared(table, leaf * context * width * 4) + rest / min(hosts, cores)
    predicted = own if cores >= hosts else here
    off = measured / predicted - 1
    print(f"  {kind:12} schedule {own:8.1f} (a core for each host), {here:8.1f} (these cores), measured {measured:8.1f}: "
          f"{off:+.1%}, {'within' if abs(off) <= 0.15 else 'NOT within'} 15 %")
