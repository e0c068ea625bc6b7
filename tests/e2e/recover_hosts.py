"""recover_hosts.py OUT PLAN...: read what a run reports (OUT.fifo, kept in OUT.jsonl), and do what the plan says, one entry after the
other: WHEN:WHAT:WHO. WHEN is a step, or =N: as soon as the run has N ranks; until then it is slowed down, because it must not
end before. WHAT: kill a rank, a host's coordinator, destroy a host, its link down or up, let it come, wait until it is gone, stop all of its processes or let them
go on (cont), or none; drop or pass what host A sends to B (A-B); lose this percentage of all packets (loss); reset a connection of ranks
at this interval, in seconds (storm). WHO is a number, or successor: the host that has taken over. How long it took from a loss to the next step goes to standard error."""
import fcntl, glob, json, os, random, re, signal, subprocess, sys, threading, time

out, *plan = sys.argv[1:]
plan = [entry.split(":") for entry in plan]
pids, seen, waited = {}, {}, 0
resets = 0
struck, told = None, False  # when something was lost, and whether the run has said so


def pid_of(host):
    if host == "successor":
        told = [re.findall(r"\(lab(\d+)\) took over, at", open(path).read()) for path in glob.glob(f"{out}.err*")]
        host = next(h for hosts in told for h in hosts if alive(pid_of(h)))
    return int(open(f"{out}.pid{host}").read())


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def inside(host, *command):
    """In the network of a host."""
    done = subprocess.run(["nsenter", "-t", str(pid_of(host)), "-n", *command], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def address_of(host):
    return re.search(r"inet ([0-9.]+)/", inside(host, "ip", "-4", "-o", "addr", "show", "eth0"))[1]


def hosts():
    return [h for h in range(16) if os.path.exists(f"{out}.pid{h}") and alive(pid_of(h))]


def family(pid):
    """A process and all below it."""
    parents = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(p)] = int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found


def lose(percent):
    """Classic BPF: a random number, and the verdict drop or pass; ten lines of netem are not in every kernel."""
    limit = min(2**32 - 1, int(2**32 * (1 - percent / 100)))
    code = f"4,32 0 0 4294963256,53 0 1 {limit},6 0 0 2,6 0 0 0"
    for host in hosts():
        inside(host, "tc", "qdisc", "add", "dev", "eth0", "clsact")
        inside(host, "tc", "filter", "add", "dev", "eth0", "egress", "bpf", "da", "bytecode", code)


def storm(seconds):
    """Until the run ends: one connection between ranks, at random."""
    global resets
    while True:
        time.sleep(seconds)
        host = random.choice(hosts())
        try:
            lines = [l.split() for l in inside(host, "ss", "-Htnp", "state", "established").splitlines()]
            ranks = {f"pid={p}," for p in seen.values()}
            lines = [l for l in lines if any(r in l[-1] for r in ranks)]
            if lines:
                _, _, local, remote = random.choice(lines)[:4]
                inside(host, "ss", "-K", "-t", "src", local, "dst", remote)
                resets += 1
        except (OSError, subprocess.CalledProcessError):
            return


def act(what, who):
    if what == "kill":
        os.kill(seen[int(who)], signal.SIGKILL)
    elif what == "host":
        os.kill(pid_of(who), signal.SIGKILL)
    elif what == "coordinator":
        agent = pid_of(who)
        for pid in open(f"/proc/{agent}/task/{agent}/children").read().split():
            if open(f"/proc/{pid}/comm").read().strip() == "ls-coordinator":
                return os.kill(int(pid), signal.SIGKILL)
        sys.exit(f"host {who} has no coordinator")
    elif what in ("down", "up"):
        net = ["nsenter", "-t", str(pid_of(who)), "-n", "ip"]
        subprocess.run([*net, "link", "set", "eth0", what], check=True)
    elif what in ("stop", "cont"):
        for pid in family(pid_of(who)):
            os.kill(pid, signal.SIGSTOP if what == "stop" else signal.SIGCONT)
    elif what == "drop":  # to an address that nobody has: the sender hears nothing of it
        sender, receiver = who.split("-")
        inside(sender, "ip", "neigh", "replace", address_of(receiver), "lladdr", "02:00:00:00:de:ad", "dev", "eth0", "nud", "permanent")
    elif what == "pass":
        sender, receiver = who.split("-")
        inside(sender, "ip", "neigh", "del", address_of(receiver), "dev", "eth0")
    elif what == "loss":
        lose(float(who))
    elif what == "storm":
        threading.Thread(target=storm, args=(float(who),), daemon=True).start()
    elif what == "come":
        open(f"{out}.come{who}", "w").close()
    elif what == "gone":
        for _ in range(3000):
            if os.path.exists(f"{out}.pid{who}") and not alive(pid_of(who)):
                return
            time.sleep(0.02)
        sys.exit(f"host {who} does not go")


with open(f"{out}.fifo", "rb", buffering=0) as fifo, open(f"{out}.jsonl", "wb") as log:
    fcntl.fcntl(fifo, 1031, 4096)  # F_SETPIPE_SZ: the run must not be far ahead of this
    lines = iter(os.fdopen(os.dup(fifo.fileno()), "rb", buffering=512).readline, b"")
    for line in lines:
        log.write(line)
        log.flush()
        row = json.loads(line)
        if row["event"] == "rank":
            if row["rank"] == 0:
                pids = {}
            pids[row["rank"]] = row["pid"]
        told |= row["event"] == "incident" and row.get("kind") == "lost"
        if row["event"] != "step":
            continue
        if struck and told:
            print(f"{struck[0]} {struck[1]}: next step after {time.monotonic() - struck[2]:.2f} s", file=sys.stderr)
            struck = None
        seen = dict(pids)
        while plan:
            when, what, who = plan[0]
            if when[0] == "=":
                if len(seen) != int(when[1:]):
                    waited += 1
                    time.sleep(min(1, 0.04 * waited))  # more and more: what was told already is read soon
                    break
            elif row["step"] < int(when):
                break
            act(what, who)
            if what in ("kill", "host", "down", "stop", "drop"):
                struck, told = (what, who, time.monotonic()), False
            plan.pop(0)
            waited = 0
if resets:
    print(f"{resets} connections were reset", file=sys.stderr)
if plan:
    sys.exit(f"the run ended before {':'.join(plan[0])}, with {len(seen)} ranks")
