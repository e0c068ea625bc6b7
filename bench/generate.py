"""generate.py [MODEL...] -- see bench/generate.sh."""
import glob
import json
import os
import subprocess
import sys
import tempfile

import rounds

ROUNDS, ADDED = int(os.environ.get("ROUNDS", "5")), int(os.environ.get("ADDED", "64"))
PROGRAM = os.path.join(rounds.ROOT, "lineshaft")
PEER = os.path.join(rounds.HERE, "peers/generate.py")
STORIES = os.path.join(rounds.ROOT, "../shared/data/models/stories260k")
LETTERS = "".join(chr(97 + i * i % 26) for i in range(256))
MODELS = {  # name: (what it is, prompt)
    "stories": ("stories260k", "Once upon a time, there was a little girl named Lily."),
    "gpt2": ("random GPT-2", LETTERS),
    "llama": ("random llama", LETTERS),
}
WAYS = os.environ.get("WAYS", "sdpa eager compile").split()


class Peer:
    """transformers in its own process, asked once per round."""

    def __init__(self, folder, threads):
        self.child = subprocess.Popen([rounds.PEER, PEER, "serve", folder, str(threads)], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      env={**os.environ, "OMP_NUM_THREADS": str(threads)})

    def ask(self, way, ids):
        self.child.stdin.write(f"{way} {ADDED} {' '.join(map(str, ids))}\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        return json.loads(line) if line else {"error": "transformers ended"}

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def ours(folder, prompt, threads):
    # Threads by affinity, which is what `generate` goes by.
    command = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])), PROGRAM, "generate",
               folder, "--prompt", prompt, "--tokens", str(ADDED), "--temperature", "0", "--ignore-eos", "--json"]
    told = json.loads(rounds.run("lineshaft generate", command).stdout)
    t = told["timings"]
    return {"prompt_ids": told["prompt_ids"], "ids": told["ids"], "prompt": t["prompt_per_second"],
            "added": t["predicted_per_second"]}


def measure(folder, prompt, threads):
    """Speeds of each side, round by round; the first round warms up and compiles."""
    peer, speeds, notes, same = Peer(folder, threads), {}, {}, True
    for i in range(ROUNDS + 1):
        mine = ours(folder, prompt, threads)
        sides = {"lineshaft": mine}
        for way in rounds.in_turn([w for w in WAYS if w not in notes], i) if len(notes) < len(WAYS) else []:
            rounds.wait_until_quiet()
            told = peer.ask(way, mine["prompt_ids"])
            if "error" in told:
                notes[way] = told["error"]
                continue
            sides[way] = told
            same = same and told["ids"] == mine["ids"]
        for side, told in sides.items():
            if i:
                speeds.setdefault(side, []).append((told["prompt"], told["added"]))
    peer.close()
    return speeds, notes, same


def show(threads, speeds, notes):
    for k, what in enumerate(("prompt", "added")):
        speed = {side: rounds.median([v[k] for v in values]) for side, values in speeds.items()}
        peers = {s: v for s, v in speed.items() if s != "lineshaft"}
        best = max(peers, key=peers.get) if peers else None
        cells = " ".join(f"{speed[w]:10.1f}" if w in speed else f"{'-':>10}" for w in WAYS)
        ratio = f"{speed['lineshaft'] / peers[best]:6.2f} x {best}" if best else "-"
        print(f"{threads:7d} {what:8} {speed['lineshaft']:10.1f} {cells}   {ratio}", flush=True)
    for way, why in notes.items():
        print(f"        {way}: not measured: {why}")


def llama_cpp(folder, prompt_tokens):
    """llama.cpp's own bench on the same model, where its program is given and its script can convert the model."""
    tool = os.environ.get("LLAMA_CPP")
    if not tool:
        return "llama.cpp: not measured (LLAMA_CPP=path/to/llama-bench measures it)"
    above = os.path.abspath(tool)
    scripts = []
    for _ in range(4):  # a build folder lies inside the checkout
        above = os.path.dirname(above)
        scripts += glob.glob(os.path.join(above, "convert_hf_to_gguf.py"))
    script = os.environ.get("LLAMA_CPP_CONVERT") or (scripts[0] if scripts else None)
    if not script:
        return "llama.cpp: not measured, no convert_hf_to_gguf.py beside it (LLAMA_CPP_CONVERT names it)"
    gguf = os.path.join(folder, "model.gguf")
    made = subprocess.run([rounds.PEER, script, folder, "--outtype", "f32", "--outfile", gguf], capture_output=True,
                          text=True)
    if made.returncode:
        return "llama.cpp: not measured, its script cannot convert this model: " + \
            (made.stderr.strip().splitlines() or ["no reason given"])[-1]
    lines = []
    for threads in threads_list():
        done = rounds.run("llama-bench", [tool, "-m", gguf, "-t", str(threads), "-p", str(prompt_tokens), "-n",
                                          str(ADDED), "-r", str(ROUNDS), "-o", "json"], check=False)
        if done.returncode:
            return "llama.cpp: not measured: " + (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        for row in json.loads(done.stdout):
            what = "prompt" if row["n_prompt"] else "added"
            lines.append(f"llama.cpp, fp32, {threads} threads, {what}: {row['avg_ts']:.1f} tokens/s")
    os.remove(gguf)
    return "\n".join(lines)


def threads_list():
    most = len(os.sched_getaffinity(0))
    asked = os.environ.get("THREADS")
    return [t for t in (map(int, asked.split()) if asked else (1, 2)) if t <= most]


def main():
    names, result, wrong = sys.argv[1:] or list(MODELS), [], False
    if not rounds.peer_python():
        print("generate.sh: no transformers here, and it makes the models: bench/peers/setup.sh installs it",
              file=sys.stderr)
        return 77
    for name in names:
        what, prompt = MODELS[name]
        if name == "stories" and not os.path.isdir(STORIES):
            print(f"{what}: not measured, ../shared/data is not here")
            continue
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run([rounds.PEER, PEER, "make", name, folder, STORIES], check=True, capture_output=True,
                                  text=True)
            count = int(made.stdout.split()[-1])
            print(f"\n{what}, {count / 1e6:.2f} M parameters, fp32, {ADDED} tokens added greedily; tokens/s, "
                  f"medians of {ROUNDS}")
            print(f"{'threads':>7} {'':8} {'lineshaft':>10} " + " ".join(f"{w:>10}" for w in WAYS) + "   to the best")
            for threads in threads_list():
                speeds, notes, same = measure(folder, prompt, threads)
                show(threads, speeds, notes)
                wrong = wrong or not same
                result.append({"model": name, "threads": threads, "speeds": speeds, "notes": notes, "same": same})
                added = rounds.median([v[1] for v in speeds["lineshaft"]])
            print(f"adding reads {4 * count * added / 1e9:.1f} GB/s of weights; "
                  + ("all said the same" if same else "the sides said different things"))
            print(llama_cpp(folder, len(prompt)))
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), result)
    return wrong


sys.exit(main())
