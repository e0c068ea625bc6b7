"""comm.py MPI-FOLDER [options] -- see bench/comm.sh.

`ours` is `lineshaft bench comm --json`, on hosts under `lineshaft lab`; every peer is a program of bench/peers. All print
one JSON object a line with op, ranks, bytes and us (median); all take the time from a barrier to the slowest rank.
"""
import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import rounds

PEERS = os.path.join(rounds.HERE, "peers")
HOSTS = os.path.join(PEERS, "hosts.sh")
CORES = os.cpu_count()
# glibc maps large blocks anew for each call and the kernel clears them: told to keep memory, both MPI libraries save
# a third of their time and more at 64 MiB.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_TOP_PAD_": str(256 << 20)}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def size(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1].upper())
    return int(text[:-1]) << unit if unit else int(text)


def options():
    p = argparse.ArgumentParser(prog="comm.sh", add_help=False)
    p.add_argument("mpi")
    p.add_argument("-n", dest="ranks", default="2,4")
    p.add_argument("--hosts")
    p.add_argument("--link", default="1gbit")
    p.add_argument("--ops", "--op", default="all_reduce")
    p.add_argument("--sizes")
    p.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "3")))
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--peers")
    p.add_argument("--peers-only", action="store_true")
    o = p.parse_args()
    o.sizes = o.sizes or ("1K,64K,1M,16M,64M" if o.hosts else "1K,64K,1M,16M,256M")
    o.bytes = [size(s) for s in o.sizes.split(",")]
    o.worlds = [int(n) for n in (o.hosts or o.ranks).split(",")]
    if min(o.worlds) < 2 or o.rounds < 1:
        sys.exit("comm.sh: at least two ranks and one round")
    return o


# --- who is measured ----------------------------------------------------------------------------------------------

class Peer:
    """A command for n ranks; `least` is the smallest size worth running it at, `args` what mpirun gets."""

    def __init__(self, name, kind, args=(), least=0):
        self.name, self.kind, self.args, self.least = name, kind, list(args), least

    def command(self, o, n, ops, sizes):
        tail = [self.name, ",".join(ops), ",".join(map(str, sizes)), str(o.seconds)]
        make = getattr(self, self.kind + ("_hosts" if o.hosts else ""))
        return make(o, n, tail)

    def openmpi(self, o, n, tail):
        # More ranks than cores: told so, OpenMPI yields while it waits.
        place = ["--bind-to", "core"] if n <= CORES else ["--oversubscribe", "--bind-to", "none"]
        keep = [w for name in KEEP for w in ("-x", name)]
        return (["mpirun.openmpi", "-n", str(n), *place, "--mca", "pml", "ob1", "--mca", "btl", "vader,self", *keep,
                 *self.args, f"{o.mpi}/allreduce-openmpi", *tail], {**ROOT, **KEEP})

    def mpich(self, o, n, tail):
        place = ["-bind-to", "core"] if n <= CORES else []
        return ["mpirun.mpich", "-n", str(n), *place, f"{o.mpi}/allreduce-mpich", *tail], KEEP

    def gloo(self, o, n, tail):
        return [rounds.PEER, f"{PEERS}/allreduce_gloo.py", *tail], {"RANKS": str(n)}

    def openmpi_hosts(self, o, n, tail):
        keep = [w for name in KEEP for w in ("-x", name)]
        return (["sh", HOSTS, "run", "1", "mpirun.openmpi", "-n", str(n), "--host", addresses(n), "--map-by", "node",
                 "--bind-to", "none", "--mca", "plm_rsh_agent", HOSTS, "--mca", "plm_rsh_no_tree_spawn", "1",
                 "--leave-session-attached", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                 "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
                 "--mca", "mpi_yield_when_idle", "1" if n > CORES else "0", *keep, *self.args,
                 f"{o.mpi}/allreduce-openmpi", *tail], {**ROOT, **KEEP})

    def mpich_hosts(self, o, n, tail):
        # Left alone, UCX joins the namespaces of one kernel by shared memory.
        return (["sh", HOSTS, "run", "1", "mpirun.mpich", "-launcher", "rsh", "-launcher-exec", HOSTS, "-iface", "eth0",
                 "-hosts", addresses(n), "-ppn", "1", "-n", str(n), f"{o.mpi}/allreduce-mpich", *tail],
                {**KEEP, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"})

    def gloo_hosts(self, o, n, tail):
        return ["sh", HOSTS, "each", str(n), rounds.PEER, f"{PEERS}/allreduce_gloo.py", *tail], {}


def addresses(n):
    return ",".join(f"10.214.0.{i}" for i in range(1, n + 1))


def ring(segment):
    return ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
            "--mca", "coll_tuned_allreduce_algorithm_segmentsize", str(segment)]


def peers(o):
    """Those that are installed; of OpenMPI also the rings, which are its best for large buffers."""
    found, missing = [], []
    if os.path.exists(f"{o.mpi}/allreduce-openmpi"):
        found += [Peer("openmpi", "openmpi"), Peer("ompi-ring1m", "openmpi", ring(1 << 20), 1 << 20),
                  Peer("ompi-ring128k", "openmpi", ring(128 << 10), 1 << 20)]
    else:
        missing.append("OpenMPI")
    if os.path.exists(f"{o.mpi}/allreduce-mpich"):
        found.append(Peer("mpich", "mpich"))
    else:
        missing.append("MPICH")
    if rounds.peer_python():
        found.append(Peer("gloo", "gloo"))
    else:
        missing.append("gloo (bench/peers/setup.sh makes its environment)")
    if missing:
        print("not here, left out: " + ", ".join(missing))
    wanted = o.peers.split(",") if o.peers else [p.name for p in found]
    return [p for p in found if p.name in wanted]


class Ours:
    least = 0

    def __init__(self, name, program):
        self.name, self.program = name, os.path.abspath(program)

    def command(self, o, n, ops, sizes):
        program = self.program
        bench = ["bench", "comm", "--op", ",".join(ops), "--sizes", ",".join(map(str, sizes)), "--json"]
        if o.hosts:
            return [program, "lab", "--nodes", str(n), "--link", o.link, "--", program, *bench], {}
        return [program, *bench[:2], "-n", str(n), *bench[2:]], {}


# --- measuring ----------------------------------------------------------------------------------------------------

def objects(text):
    """The JSON objects among the lines, whatever stands before them (a rank, a host)."""
    for line in text.splitlines():
        try:
            value = json.loads(line[line.index("{"):])
        except ValueError:
            continue
        if isinstance(value, dict) and "us" in value:
            yield value


def measure(o, who, n, ops, number):
    sizes = [b for b in o.bytes if b >= who.least]
    if not sizes:
        return []
    command, env = who.command(o, n, ops, sizes)
    # A peer that hangs or crawls ends here, and what it printed until then counts.
    slowest = 60 if o.hosts else 15
    limit = 30 + len(ops) * len(sizes) * (3 * o.seconds + slowest)
    done = rounds.run(f"{who.name} {n}", [sys.executable, "-B", f"{PEERS}/under.py", str(limit), *command], env,
                      check=False)
    got = [{**v, "who": who.name, "round": number, "ranks": n} for v in objects(done.stdout)]
    wanted = sum(1 if op == "barrier" else len(sizes) for op in ops)
    if not got or (done.returncode and len(got) < wanted):  # having said all, it may end as it likes
        why = "took too long" if done.returncode == 124 else (done.stderr.strip() or "says nothing")[-300:]
        print(f"{who.name}, {n} ranks: ended with {done.returncode}: {why}")
    return got


def copy_speed(count, bytes_):
    """Bytes per second that `count` processes copy together, each its own `bytes_`; the best of some tries. Half the
    size of a collective's buffer touches as much memory as a rank does in place: its part of everybody's buffer."""
    start, best = multiprocessing.Barrier(count), multiprocessing.Array("d", count)

    def copy(i):
        given, out = bytearray(b"\1") * bytes_, bytearray(bytes_)
        calls, fastest = max(1, min(200, (256 << 20) // bytes_)), float("inf")
        for _ in range(3):
            start.wait()
            begin = time.perf_counter()
            for _ in range(calls):
                out[:] = given
            fastest = min(fastest, (time.perf_counter() - begin) / calls)
        best[i] = fastest

    workers = [multiprocessing.Process(target=copy, args=(i,)) for i in range(count)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return count * bytes_ / max(best)


def goodput(n, seconds):
    done = rounds.run("goodput", ["sh", HOSTS, "each", str(n), sys.executable, "-B", f"{PEERS}/goodput.py", str(seconds)])
    return json.loads(done.stdout)


# Bytes that have to move, as multiples of the buffer, for each operation.
SHARE = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1, "all_gather": lambda n: (n - 1) / n,
         "reduce_scatter": lambda n: (n - 1) / n, "all_to_all": lambda n: (n - 1) / n}


def bounds(o, n, op, speeds):
    """Microseconds for each size below which nobody can stay; those of a few KiB are all latency and have none."""
    share = SHARE.get(op)
    return {b: share(n) * b / speeds[b] * 1e6 for b in o.bytes if b in speeds} if share else {}


def text_of(bytes_):
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if bytes_ and bytes_ % (1 << shift) == 0:
            return f"{bytes_ >> shift}{unit}"
    return str(bytes_)


def us_text(us):
    return "-" if us is None else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def table(o, n, op, names, cells, limit):
    place = "hosts" if o.hosts else "ranks"
    print(f"\n{op}, {n} {place}{' at ' + o.link if o.hosts else ''}: microseconds, medians over {o.rounds} rounds")
    print(f"{'bytes':>6} " + " ".join(f"{x:>13}" for x in names) + f" {'best peer':>13} {'peer/ours':>9} {'bound':>10} "
          f"{'ours/bound':>10}  algorithm")
    rows = []
    for b in [0] if op == "barrier" else o.bytes:
        us = {x: rounds.median(cells[x, n, op, b]["us"]) for x in names if (x, n, op, b) in cells}
        others = {x: v for x, v in us.items() if x != "ours"}
        best = min(others, key=others.get) if others else None
        ours, bound = us.get("ours"), limit.get(b)
        ratio = f"{others[best] / ours:.2f}" if ours and best else "-"
        near = f"{ours / bound:.2f}" if ours and bound else "-"
        algo = cells.get(("ours", n, op, b), {}).get("algo", "")
        print(f"{text_of(b):>6} " + " ".join(f"{us_text(us.get(x)):>13}" for x in names) +
              f" {best or '-':>13} {ratio:>9} {us_text(bound):>10} {near:>10}  {algo}")
        rows.append({"op": op, "ranks": n, "bytes": b, "us": us, "best_peer": best, "bound_us": bound})
    return rows


def collect(o, n, ops, everybody, cells, singles):
    for number in range(o.rounds):
        for who in rounds.in_turn(everybody, number):
            for v in measure(o, who, n, ops, number):
                cell = cells.setdefault((who.name, n, v["op"], v["bytes"]), {"us": []})
                cell["us"].append(v["us"])
                cell["algo"] = v.get("algo", "")
                singles.append(v)


def remove_stale_hosts():
    """Those of a run that was killed: their name holds its process id."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    for name in {w.rsplit("-", 1)[0] for w in listed if w.startswith("lsbench") and "-" in w}:
        if not os.path.exists("/proc/" + name[len("lsbench"):]):
            subprocess.run(["sh", HOSTS, "down"], env={**os.environ, "HOSTS": name})


def with_hosts(o, n, work):
    remove_stale_hosts()
    os.environ["HOSTS"] = f"lsbench{os.getpid()}"
    try:
        made = subprocess.run(["sh", HOSTS, "up", str(n), o.link], capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"comm.sh: cannot make {n} hosts with links of {o.link}: {made.stderr.strip()}")
        work()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # first remove, then end
        subprocess.run(["sh", HOSTS, "down"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def main():
    o = options()
    ops, everybody = o.ops.split(","), peers(o)
    if not o.peers_only:
        everybody.insert(0, Ours("ours", os.path.join(rounds.ROOT, "lineshaft")))
    if os.environ.get("OTHER"):
        everybody.append(Ours("other", os.environ["OTHER"]))
    cells, singles, rows = {}, [], []
    if not everybody:
        sys.exit("comm.sh: nobody to measure")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for n in o.worlds:
        speeds = {}

        def work():
            rounds.wait_until_quiet()
            if o.hosts:
                got = goodput(n, 2)
                print(f"TCP between two hosts at {o.link}: {got['one_way'] / 1e6:.1f} MB/s one way, "
                      f"{got['both_ways'] / 1e6:.1f} each when both send")
                speeds.update({b: got["one_way"] for b in o.bytes})
            else:
                speeds.update({b: copy_speed(min(n, CORES), b // 2) for b in o.bytes if b >= 64 << 10})
                print(f"memory that {min(n, CORES)} processes copy at once, GB/s: " +
                      ", ".join(f"{text_of(b)} {v / 1e9:.1f}" for b, v in speeds.items()))
            collect(o, n, ops, everybody, cells, singles)

        if o.hosts:
            with_hosts(o, n, work)
        else:
            work()
        for op in ops:
            names = [w.name for w in everybody if any(k[:3] == (w.name, n, op) for k in cells)]
            if names:
                rows += table(o, n, op, names, cells, bounds(o, n, op, speeds))
    print("bound: bytes that must move (2(n-1)/n of the buffer for all_reduce) at " +
          ("TCP's one-way speed of this run" if o.hosts else "the speed at which all cores together copy memory"))
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), {"rows": rows, "singles": singles, "disturbed": rounds.disturbed})


main()
