"""ckpt_faults.py full | kill N | term N -- parts of ckpt_faults.sh that need a run that trains."""
import collections, json, os, random, re, shutil, signal, subprocess, sys, time

program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "release", "lineshaft")
folder = os.environ["LINESHAFT_FAULTS_DIR"]
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
open("run.yaml", "w").write("""name: faults
model: {family: gpt2, layers: 2, width: 128, heads: 2, context: 16}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 2, group: 1}
train: {steps: 12, lr: 3e-3, schedule: constant, warmup: 2, seed: 3}
checkpoint: {every: 2, keep: 3}
eval: {every: 0}
""")


def command(out, *settings):
    return [program, "train", "run.yaml", "--json", "--set", f"out={out}"] + [w for s in settings for w in ("--set", s)]


def train(out, *settings):
    done = subprocess.run(command(out, *settings), capture_output=True, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, events, done.stderr


def last(events, name):
    return [e for e in events if e["event"] == name][-1]


def verify(out):
    done = subprocess.run([program, "ckpt", "verify", out], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{out}: {done.stdout}{done.stderr}")


def committed(out):
    """Steps that have a manifest."""
    names = os.listdir(f"{out}/checkpoints") if os.path.isdir(f"{out}/checkpoints") else []
    return sorted(int(m[1]) for m in (re.fullmatch(r"step-(\d{10})\.json", n) for n in names) if m)


def full():
    """Room for one save and a number of twentieths of the next: training goes on, what was there verifies, and with room all is well."""
    code, events, _ = train("plain")
    want, size = last(events, "summary")["weights_hash"], last(events, "checkpoint")["bytes_written"]
    os.makedirs("disk", exist_ok=True)
    failed = 0
    for part in range(0, 21):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "disk"], capture_output=True).returncode:
            print("left out: mounting is not allowed here")
            return
        try:
            code, events, err = train("disk/run", "train.steps=2")
            if code:
                sys.exit(f"{part}: {err}")
            room = os.statvfs("disk")
            left = room.f_bavail * room.f_frsize - size * part // 20 - (256 << 10)  # its events need some, too
            with open("disk/fill", "wb") as f:
                os.posix_fallocate(f.fileno(), 0, left)
            # what does not fit fails: in the middle with a word, at the end with an error
            code, events, err = train("disk/run", "train.steps=6")
            if code == 3:
                failed += 1
                if last(events, "step")["step"] != 6 or "MiB free" not in err:
                    sys.exit(f"{part}: training did not go on: {err}")
            elif code:
                sys.exit(f"{part}: exit {code}: {err}")
            verify("disk/run")
            os.remove("disk/fill")
            code, events, err = train("disk/run")
            if code or last(events, "summary")["weights_hash"] != want:
                sys.exit(f"{part}: with room again: exit {code}: {err}")
            verify("disk/run")
        finally:
            subprocess.run(["umount", "disk"], check=True)
    print(f"21 fillings, {failed} runs without room, all went on")


def kill(times):
    """Killed at any instant: what is gone on from is exactly the newest manifest, nothing is left lying, and the weights are the same."""
    rng = random.Random(int(os.environ.get("SEED", "1")))
    begun = time.monotonic()
    code, events, _ = train("plain")
    took, want = time.monotonic() - begun, last(events, "summary")["weights_hash"]
    cut = 0
    for i in range(times):
        shutil.rmtree("run", ignore_errors=True)
        with open("out", "w") as out:
            p = subprocess.Popen(command("run"), stdout=out, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.2, 1.1) * took)
            p.kill()
            p.wait()
        told = [json.loads(line)["step"] for line in open("out") if line.startswith('{"event":"checkpoint"') and line.endswith("}\n")]
        steps = committed("run")
        if told and (not steps or steps[-1] < told[-1]):
            sys.exit(f"{i}: step {told[-1]} was told as saved, found {steps}")
        if steps:
            verify("run")
        cut += bool(steps) and steps[-1] < 12
        code, events, err = train("run")
        if code or "damaged" in err:
            sys.exit(f"{i}: exit {code}: {err}")
        first = last(events, "start")["first_step"] if any(e["event"] == "start" for e in events) else 12
        if first != (steps[-1] if steps else 0):
            sys.exit(f"{i}: manifests {steps}, gone on from {first}")
        if last(events, "summary")["weights_hash"] != want:
            sys.exit(f"{i}: other weights")
        left = [n for root, _, names in os.walk("run/checkpoints") for n in names if n.startswith(".tmp-")]
        if left:
            sys.exit(f"{i}: left: {left}")
    print(f"{times} kills, {cut} of them between two saves: gone on from the newest manifest each time")


def term(times):
    """Asked to stop at any instant, with more or less time, once or twice, alone or as two ranks: exit code 130 says saved and is, 11 says that
    the checkpoint before is whole; gone on with, the weights are the same."""
    rng = random.Random(int(os.environ.get("SEED", "1")))
    begun = time.monotonic()
    code, events, _ = train("plain")
    took, want = time.monotonic() - begun, last(events, "summary")["weights_hash"]
    ends = collections.Counter()
    for i in range(times):
        shutil.rmtree("run", ignore_errors=True)
        grace, twice, ranks = rng.choice([1, 5, 30]), rng.random() < 0.4, rng.choice(["1", "2"])
        with open("out", "w") as out, open("err", "w") as err:
            p = subprocess.Popen(command("run", f"checkpoint.grace={grace}") + ["-n", ranks], stdout=out, stderr=err)
            time.sleep(rng.uniform(0.02, 1.1) * took)
            p.send_signal(signal.SIGTERM)
            if twice:
                time.sleep(rng.uniform(0, 1.2))
                p.send_signal(signal.SIGTERM)
            code = p.wait()
        code = code if code >= 0 else 128 - code
        said, steps = open("err").read(), committed("run")
        ends[code] += 1
        about = f"{i}: grace {grace}, {'twice' if twice else 'once'}, {ranks} ranks, exit {code}: {said}"
        told = [json.loads(line)["step"] for line in open("out") if line.startswith('{"event":"step"')]
        if code not in (0, 11, 130, 143) or (code == 143 and told):  # 143: before it could listen
            sys.exit(about)
        if code == 130 and told and (not steps or steps[-1] < told[-1]):
            sys.exit(f"{about}: told {told[-1:]}, saved {steps}")
        if steps:
            verify("run")
        code, events, err = train("run")
        first = last(events, "start")["first_step"] if any(e["event"] == "start" for e in events) else 12
        if code or first != (steps[-1] if steps else 0) or last(events, "summary")["weights_hash"] != want:
            sys.exit(f"{about}: gone on with: exit {code} from {first}, saved {steps}: {err}")
        left = [n for root, _, names in os.walk("run/checkpoints") for n in names if n.startswith(".tmp-")]
        if left:
            sys.exit(f"{about}: left: {left}")
    print(f"asked to stop {times} times: " + ", ".join(f"exit {c}: {n}" for c, n in sorted(ends.items())))


{"full": full, "kill": lambda: kill(int(sys.argv[2])), "term": lambda: term(int(sys.argv[2]))}[sys.argv[1]]()
