"""elastic.py -- a PyTorch program under `lineshaft launch`: its ranks meet by gloo, and are started again when one fails."""
import os, subprocess, sys

PROGRAM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(x)
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert count == int(os.environ["LINESHAFT_RESTARTS"])
if sys.argv[1] == "once" and dist.get_rank() == 1 and count == 0:
    sys.exit("rank 1 gives up in its first attempt")
if sys.argv[1] == "always" and dist.get_rank() == 1:
    sys.exit("rank 1 always gives up")
dist.barrier()
print("sum", x.tolist(), "world", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], "attempt", count, flush=True)
dist.destroy_process_group()
"""


def launch(how, *flags):
    return subprocess.run([os.environ["LINESHAFT"], "launch", "-n", "3", *flags, "--", sys.executable, "program.py", how],
                          capture_output=True, text=True, timeout=300)


open("program.py", "w").write(PROGRAM)
done = launch("never")
assert done.returncode == 0, done
assert sorted(done.stdout.split("\n"))[1:] == [f"[{r}] sum [6.0, 6.0, 6.0, 6.0] world 3 local {r} attempt 0" for r in range(3)], done.stdout
print("three ranks meet by gloo with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
done = launch("once", "--restarts", "2")
assert done.returncode == 0, done
assert sorted(done.stdout.split("\n"))[1:] == [f"[{r}] sum [6.0, 6.0, 6.0, 6.0] world 3 local {r} attempt 1" for r in range(3)], done.stdout
print("a rank fails: all are started again, and meet again")
done = launch("always", "--restarts", "5")
assert done.returncode == 10 and "the same error came twice in a row" in done.stderr, done
print("it fails in the same way twice: exit code 10, do not requeue")
