"""What the drivers of benches share: processes in turn, each on a quiet machine, medians over rounds.

Only the standard library: drivers run without the peers' environment and say what they could not run.
"""
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
PEER = os.path.join(CACHE, "lineshaft/peers/bin/python")
BUSY = bool(os.environ.get("BUSY"))  # measure although the machine is not quiet
disturbed = []  # (what, share) of every process beside which others used more than 5 %


def peer_python():
    """The Python of the peers' environment, or None."""
    return PEER if os.access(PEER, os.X_OK) else None


def processors():
    """Names of the instruction sets that /proc/cpuinfo lists."""
    for line in open("/proc/cpuinfo"):
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def wait_until_quiet():
    if not BUSY and subprocess.run(["sh", os.path.join(HERE, "quiet.sh")], stdout=subprocess.DEVNULL).returncode:
        sys.exit("stopped; BUSY=1 measures all the same, to try the script")


def ticks():
    """Ticks of work, of all processors, since boot: user, nice, system, irq, softirq, steal."""
    value = list(map(int, open("/proc/stat").readline().split()[1:9]))
    return sum(value[:3]) + sum(value[5:8])


def own_ticks():
    t = os.times()
    return (t.user + t.system + t.children_user + t.children_system) * os.sysconf("SC_CLK_TCK")


def run(what, command, env=None, check=True):
    """Runs one process when the machine is quiet; notes when others worked beside it."""
    wait_until_quiet()
    others, begin = ticks() - own_ticks(), time.monotonic()
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    share = (ticks() - own_ticks() - others) / os.sysconf("SC_CLK_TCK") / max(seconds, 0.1) / os.cpu_count()
    if share > 0.05:
        disturbed.append((what, share))
    if check and done.returncode:
        sys.exit(f"{what}: failed\n{done.stderr[-2000:]}")
    return done


def say_disturbed():
    if disturbed:
        what, share = max(disturbed, key=lambda d: d[1])
        print(f"busy: others worked beside {len(disturbed)} processes, at worst {100 * share:.0f} % of the machine "
              f"beside {what}: these figures are worthless")
    else:
        print("quiet: others used at most 5 % of the machine beside every process")


def in_turn(names, round_number):
    """The order of a round: each round begins with another one, so that no place is always the same one's."""
    k = round_number % len(names)
    return names[k:] + names[:k]


def median(values):
    return statistics.median(values) if values else float("nan")


def write_json(path, value):
    if path:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)
            f.write("\n")
        print(f"written: {path}")
