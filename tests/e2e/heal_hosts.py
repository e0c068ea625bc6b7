"""heal_hosts.py OUT PLAN...: read what a run tells (OUT.fifo, kept in OUT.jsonl), and do what the plan says, one entry after the
other: WHEN:WHAT:WHO. WHEN is a step, or =N: as soon as the run has so many ranks; until then it is slowed down, because it must not
end before. WHAT: kill a rank, a host's coordinator, destroy a host, its link down or up, let it come, wait until it is gone, or none. WHO is a number, or
heir: the host that has taken over. How long it took from a loss to the next step is told on the standard error."""
import fcntl, glob, json, os, re, signal, subprocess, sys, time

out, *plan = sys.argv[1:]
plan = [entry.split(":") for entry in plan]
pids, seen, waited = {}, {}, 0
struck, told = None, False  # when something was lost, and whether the run has said so


def pid_of(host):
    if host == "heir":
        told = [re.findall(r"\(lab(\d+)\) took over, at", open(path).read()) for path in glob.glob(f"{out}.err*")]
        host = next(h for hosts in told for h in hosts if alive(pid_of(h)))
    return int(open(f"{out}.pid{host}").read())


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


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
            if what in ("kill", "host", "down"):
                struck, told = (what, who, time.monotonic()), False
            plan.pop(0)
            waited = 0
if plan:
    sys.exit(f"the run ended before {':'.join(plan[0])}, with {len(seen)} ranks")
