"""goodput.py SECONDS -- what one TCP connection carries between rank 0 and rank 1, in bytes per second.

RANK and MASTER_ADDR as torch.distributed has them; rank 0 prints {"one_way": ..., "both_ways": ...}, the second being
what each direction gets when both send. Ranks above 1 do nothing.
"""
import json
import os
import socket
import sys
import threading
import time

CHUNK = 1 << 20


def connect(rank, address):
    if rank == 0:
        with socket.create_server(address) as s:
            s.settimeout(20)
            return s.accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.05)
    sys.exit("goodput.py: rank 0 does not answer")


def send(link, seconds):
    data, end = bytearray(CHUNK), time.monotonic() + seconds
    while time.monotonic() < end:
        link.sendall(data)
    link.shutdown(socket.SHUT_WR)


def receive(link, skip):
    """Bytes per second, from `skip` seconds after the first byte on until the other has sent all."""
    data = bytearray(CHUNK)
    n = link.recv_into(data)
    begin, last, total = time.monotonic() + skip, 0.0, 0
    while n:
        n = link.recv_into(data)
        now = time.monotonic()
        if now >= begin and n:
            if not last:
                begin = now  # what came with this call came before
            else:
                total += n
            last = now
    return total / max(last - begin, 1e-9)


def main():
    rank, seconds = int(os.environ["RANK"]), float(sys.argv[1])
    if rank > 1:
        return
    address = (os.environ["MASTER_ADDR"], 29600)
    got = {}
    with connect(rank, address) as link:
        if rank == 0:
            got["one_way"] = receive(link, seconds / 4)
        else:
            send(link, seconds)
            link.recv(1)
    with connect(rank, (address[0], 29601)) as link:
        sender = threading.Thread(target=send, args=(link, seconds))
        sender.start()
        got["both_ways"] = receive(link, seconds / 4)
        sender.join()
    if rank == 0:
        print(json.dumps(got))


main()
