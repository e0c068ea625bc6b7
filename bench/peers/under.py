"""under.py SECONDS COMMAND... -- run a command that starts processes of its own, and leave none of them behind.

Those that lose their parent become ours: they are ended and waited for, so that the time they used is counted as the
command's and not as somebody else's. Exits with the command's status, 124 when the time was up.
"""
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def children():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


def end_all():
    while left := children():  # those of the ended ones come to us in the next turn
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    status = 124
    try:
        status = subprocess.Popen(sys.argv[2:]).wait(timeout=float(sys.argv[1]))
    except subprocess.TimeoutExpired:
        pass
    finally:
        end_all()
    sys.exit(status if status >= 0 else 128 - status)


main()
