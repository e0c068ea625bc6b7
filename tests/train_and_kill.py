"""train_and_kill.py OUT RANKS PLAN [ARG ...]: train, and do to ranks what PLAN says: "STEP:SIGNAL:RANK[+RANK]", separated by
commas, or "none"; RANK "c" is the coordinator's process (of a job that other nodes may join); "@i" instead of STEP: when incident number i is reported; "saved": when a checkpoint is. What is printed goes to OUT.jsonl. A short
pipe: the run must not end before this reads what it reports."""
import fcntl, json, os, signal, subprocess, sys, time
out, ranks, plan, *args = sys.argv[1:]
todo = [] if plan == "none" else [entry.split(":") for entry in plan.split(",")]
p = subprocess.Popen([os.environ["LINESHAFT"], "train", "run.yaml", "-n", ranks, "--json", "--set", "out=" + out, *args],
                     stdout=subprocess.PIPE, stderr=open(out + ".err", "w"), bufsize=512)


def coordinator():
    for _ in range(1000):  # it may be just being started again
        for pid in open(f"/proc/{p.pid}/task/{p.pid}/children").read().split():
            if open(f"/proc/{pid}/comm").read().strip() == "ls-coordinator":
                return int(pid)
        time.sleep(0.01)
    sys.exit("there is no coordinator")


fcntl.fcntl(p.stdout, 1031, 4096)  # F_SETPIPE_SZ
pids, incidents = {}, 0
with open(out + ".jsonl", "wb") as log:
    for line in p.stdout:
        log.write(line)
        row = json.loads(line)
        if row["event"] == "rank":
            pids[row["rank"]] = row["pid"]
        incidents += row["event"] == "incident"
        while todo and (incidents >= int(todo[0][0][1:]) and len(pids) if todo[0][0][0] == "@"
                        else row["event"] == "checkpoint" if todo[0][0] == "saved"
                        else row["event"] == "step" and row["step"] >= int(todo[0][0])):
            _, name, victims = todo.pop(0)
            for victim in victims.split("+"):
                os.kill(coordinator() if victim == "c" else pids[int(victim)], getattr(signal, "SIG" + name))
sys.exit(p.wait())
