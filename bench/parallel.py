"""parallel.py [ranks] [ways] [hosts] -- see bench/parallel.sh."""
import json
import os
import subprocess
import sys
import tempfile

import cpu_train
import rounds

LINK = os.environ.get("LINK", "1gbit")
parameters = set()  # of the model, as its runs tell
SIDES = {
    "1 rank x 2 threads": dict(),
    "2 x 1, zero 0": dict(ranks=2),
    "2 x 1, zero 1": dict(ranks=2, zero=1),
    "1 x 2, fast": dict(reduce="fast"),
    "2 x 1, zero 0, fast": dict(ranks=2, reduce="fast"),
    "2 x 1, zero 1, fast": dict(ranks=2, zero=1, reduce="fast"),
    "2 x 1, tp 2, fast": dict(ranks=2, reduce="fast", more={"mesh.tp": 2}),
}
# Every way to be parallel over data, by four ranks that share the cores: what each costs beside zero 0.
WAYS = {
    "zero 0": {},
    "zero 1": {"mesh.zero": 1},
    "zero 2": {"mesh.zero": 2},
    "zero 3": {"mesh.zero": 3},
    "zero 3, shard 2": {"mesh.zero": 3, "mesh.shard": 2},
    "zero 0, offload disk": {"device.offload": "disk"},
    "ps, staleness 0": {"sync": "ps"},
    "ps, staleness 2": {"sync": "ps", "ps.staleness": 2},
    "local, 50 steps": {"sync": "local", "local.steps": 50},
}
DDP = "PyTorch DDP"
OFF = "exchange off"  # replicas that never meet: the same work without a word
PAYLOAD = 0.956  # of a link's rate, measured by bench/comm.sh


def our_words(how, folder, text):
    ranks = how.get("ranks", 1)
    settings = cpu_train.our_settings("10m", text, folder) | {
        "train.reduce": how.get("reduce", "ordered"), "mesh.zero": how.get("zero", 0),
        "device.threads": max(1, 2 // ranks) if "hosts" not in how else 1, "batch.leaf": 12 // max(2, how.get("hosts", ranks))}
    settings |= how.get("more", {})
    return cpu_train.our_command(settings, ["-n", str(ranks)] if ranks > 1 else [])


def read_events(lines):
    events = [json.loads(line[line.index("{"):]) for line in lines if "{" in line]
    steps = [e for e in events if e["event"] == "step"][cpu_train.WARM:]
    exposed = rounds.median([e["split"]["exchange"] / e["ms"] for e in steps])
    parameters.update(e["parameters"] for e in events if e["event"] == "start")
    end = next(e for e in events if e["event"] == "summary")
    return [e["ms"] for e in steps], (f"{100 * exposed:.0f} % of a step waits for the exchange, "
                                      f"{end['peak_bytes'] / 2**20:.0f} MiB a rank")


def run_ours(name, how, folder, text):
    command = our_words(how, folder, text)
    if "hosts" in how:
        command = [cpu_train.PROGRAM, "lab", "--nodes", str(how["hosts"]), "--link", LINK, "--", *command]
    return read_events(rounds.run(name, command).stdout.splitlines())


def run_ddp(hosts, text):
    """DistributedDataParallel between as many hosts, whose links are those of the lab."""
    shell, env = ["sh", os.path.join(rounds.HERE, "peers/hosts.sh")], {"HOSTS": f"ddp{os.getpid()}", "OMP_NUM_THREADS": "1"}
    if cpu_train.tcmalloc():
        env["LD_PRELOAD"] = cpu_train.tcmalloc()
    command = [rounds.PEER, os.path.join(rounds.HERE, "peers/train_gpt.py"), "10m", text, "--threads", "1", "--ddp",
               "--steps", cpu_train.STEPS or "12", "--warm", str(cpu_train.WARM)]
    try:
        subprocess.run([*shell, "up", str(hosts), LINK], env={**os.environ, "HOSTS": env["HOSTS"]}, check=True)
        done = rounds.run(DDP, [*shell, "each", str(hosts), *command], env, check=False)
    finally:
        subprocess.run([*shell, "down"], env={**os.environ, "HOSTS": env["HOSTS"]}, check=True)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return told["ms"], f"PyTorch {told['torch']}"


def link_ms(hosts):
    """What the gradients of a step take at least on the links between hosts."""
    rate = float(LINK.removesuffix("gbit")) * 1e9 if LINK.endswith("gbit") else float(LINK.removesuffix("mbit")) * 1e6
    return 2 * (hosts - 1) / hosts * 4 * max(parameters) * 8 / (rate * PAYLOAD) * 1e3


def say_hidden(ms, hosts):
    """Steps beside the longer one of work and wire."""
    best = {name: rounds.median([rounds.median(t) for t in times]) for name, times in ms.items() if times}
    if OFF not in best:
        return
    least = max(best[OFF], link_ms(hosts))
    print(f"work without exchange {best[OFF]:.0f} ms, gradients on the links {link_ms(hosts):.0f} ms; a step takes, of the longer:")
    for name in best:
        if name not in (OFF, DDP):
            print(f"{name:22} {best[name] / least:.2f}")


def compare(title, sides, first, folder, text):
    ms, notes = {name: [] for name in sides}, {}
    for i in range(cpu_train.ROUNDS):
        for name in rounds.in_turn(list(sides), i):
            how = sides[name]
            times, notes[name] = run_ddp(how["hosts"], text) if name == DDP else run_ours(name, how, folder, text)
            if times:
                ms[name].append(times)
    speed = {name: 3072e3 / rounds.median([rounds.median(t) for t in times]) for name, times in ms.items() if times}
    print(f"\n{title}: tokens/s, medians of {cpu_train.ROUNDS} rounds")
    for name in sides:
        if name not in speed:
            print(f"{name:22} not measured: {notes[name]}")
            continue
        ratio = speed[name] / speed[first] if first in speed else float("nan")
        print(f"{name:22} {speed[name]:9.0f} {100 * ratio:6.1f} % of {first}; {notes[name]}; ms "
              + " ".join(f"{rounds.median(t):.0f}" for t in ms[name]))
    return {"title": title, "tokens_per_s": speed, "ms": ms, "notes": notes}


def main():
    words, results = sys.argv[1:] or ["ranks"], []
    with tempfile.TemporaryDirectory() as folder:
        text = cpu_train.write_text(folder)
        if "ranks" in words:
            results.append(compare("10M, ranks on one machine", SIDES, "1 rank x 2 threads", folder, text))
        if "ways" in words:
            sides = {name: dict(ranks=4, reduce="fast", more=more) for name, more in WAYS.items()}
            results.append(compare("10M, four ranks on one machine", sides, "zero 0", folder, text))
        for hosts in map(int, os.environ.get("HOSTS", "2,4").split(",") if "hosts" in words else []):
            wanted = os.environ.get("OURS", "ordered 0,ordered 1,fast 0,fast 1")
            sides = {f"{mode}, zero {zero}": dict(hosts=hosts, zero=int(zero), reduce=mode)
                     for mode, zero in (side.split() for side in wanted.split(","))}
            if rounds.peer_python():
                sides[DDP] = dict(hosts=hosts)
            else:
                print("PyTorch: not measured, no environment (bench/peers/setup.sh makes one)")
            sides[OFF] = dict(hosts=hosts, reduce="fast", more={"sync": "local", "local.steps": 1000})
            results.append(compare(f"10M, {hosts} hosts x 1 thread, {LINK}", sides, DDP, folder, text))
            say_hidden(results[-1]["ms"], hosts)
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), results)


if __name__ == "__main__":
    main()
