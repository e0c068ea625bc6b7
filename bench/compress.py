"""compress.py -- see bench/compress.sh."""
import os
import tempfile

import cpu_train
import parallel
import rounds


def settings(kind):
    share = {"exchange.topk": "0.01"} if kind == "topk" else {}
    return {"exchange.compress": kind, **share}


def main():
    hosts, zero = int(os.environ.get("HOSTS", "4")), int(os.environ.get("ZERO", "0"))
    sides = {kind: dict(hosts=hosts, zero=zero, reduce="fast", more=settings(kind))
             for kind in os.environ.get("KINDS", "none,bf16,int8,topk").split(",")}
    with tempfile.TemporaryDirectory() as folder:
        text = cpu_train.write_text(folder)
        title = f"10M, {hosts} hosts x 1 thread, {parallel.LINK}, zero {zero}"
        result = parallel.compare(title, sides, "none", folder, text)
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), [result])


if __name__ == "__main__":
    main()
