"""heal_look.py OUT: what a run on hosts of a lab told (OUT.jsonl, OUT/events.jsonl) against alone.jsonl: the same losses, the same weights,
every step by one generation only. Prints its incidents."""
import json, sys
out = sys.argv[1]
def rows(path): return [json.loads(line) for line in open(path)]
def told(path): return {r["step"]: r["loss"] for r in rows(path) if r["event"] == "step"}
def weights(path): return [r["weights_hash"] for r in rows(path) if r["event"] == "summary"]
if weights(out + ".jsonl") != weights("alone.jsonl") or told(out + "/events.jsonl") != told("alone.jsonl"):
    sys.exit(out + ": other weights or losses")
steps = [r["step"] for r in rows(out + "/events.jsonl") if r["event"] == "step"]
if len(steps) != len(set(steps)) and not any(r.get("redone") for r in rows(out + ".jsonl")):
    sys.exit(out + ": a step was told twice")
for r in rows(out + ".jsonl"):
    if r["event"] == "incident" and "detection_ms" in r:
        print("%-10s %-7s step %3d  %d ranks  detection %6.0f ms  recovery %5.2f s  redone %d  from %s" % (
            out, r["kind"], r["step"], r["ranks"], r["detection_ms"], r["seconds"], r["redone"], r["source"]))
