#!/bin/sh
# heal_stops.sh -- a rank, or the launcher, is stopped (SIGSTOP) for a while and goes on (SIGCONT): row 8 of the table of faults.
#
#   bench/heal_stops.sh [LONG]
#
# Stopped for 1 s and for 5 s: nothing is lost and nothing told. For LONG seconds (60), longer than heal.wait (a third of it): it is
# killed, started again in its place, and told once; the process that was stopped never says anything again. Every run ends with
# the weights and losses of the undisturbed one.
# shellcheck source=bench/fault_lib.sh
. "$(dirname "$0")/job.sh"
tiny_run stops 60 0
python3 - "${1:-60}" <<'PY'
import fcntl, json, os, signal, subprocess, sys, threading, time
long = float(sys.argv[1])


def train(out, who=None, seconds=0, *args):
    p = subprocess.Popen([os.environ["LINESHAFT"], "train", "run.yaml", "-n", "3", "--json", "--set", "out=" + out, *args],
                         stdout=subprocess.PIPE, stderr=open(out + ".err", "w"), bufsize=512)
    fcntl.fcntl(p.stdout, 1031, 4096)  # F_SETPIPE_SZ: it must not be far ahead of this
    pids, rows, stopped = {}, [], None

    def resume():
        try:
            os.kill(stopped, signal.SIGCONT)
        except ProcessLookupError:
            pass
    for line in p.stdout:
        rows.append(json.loads(line))
        row = rows[-1]
        if row["event"] == "rank":
            pids[row["rank"]] = row["pid"]
        if who is not None and stopped is None and row["event"] == "step" and row["step"] >= 20:
            stopped = p.pid if who == "launcher" else pids[who]
            os.kill(stopped, signal.SIGSTOP)
            threading.Timer(seconds, resume).start()
    return p.wait(), rows


def of(rows, event):
    return [r for r in rows if r["event"] == event]


def told(rows):
    """A first rank that dies may have printed its last step, which the next one prints again."""
    return list(dict.fromkeys((r["step"], r["loss"]) for r in of(rows, "step"))), [r["weights_hash"] for r in of(rows, "summary")]


code, plain = train("plain")
if code:
    sys.exit(open("plain.err").read())
for who in 0, 2, "launcher":
    for seconds in 1, 5, long:
        out = f"stop-{who}-{seconds:g}"
        patience = long / 3 if seconds == long else 60
        begun = time.monotonic()
        code, rows = train(out, who, seconds, "--set", f"heal.wait={patience:g}")
        lost = of(rows, "incident")
        dies = seconds == long and who != "launcher"
        if code or told(rows) != told(plain) or len(lost) != dies or any(r["source"] != "memory" or r["redone"] for r in lost):
            sys.exit(f"{out}: exit {code}, {lost}: {open(out + '.err').read()}")
        print(f"{who} stopped for {seconds:g} s (heal.wait {patience:g} s): {time.monotonic() - begun:.1f} s in all, "
              + (f"told once, {lost[0]['seconds']:.2f} s from the loss to training" if dies else "nothing told"), flush=True)
PY
