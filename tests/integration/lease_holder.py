# SPDX-License-Identifier: Apache-2.0
"""A process that holds leases, and ends them as it is told on its standard
input: lease_holder.py SOCKET TABLE...  With "lib:" before the socket it is a
client through libengram, of the first table."""
import ctypes
import mmap
import os
import signal
import socket
import sys
import time

import engramd


class Params(ctypes.Structure):
    _fields_ = [("table", ctypes.c_char_p), ("layers", ctypes.c_void_p),
                ("num_layers", ctypes.c_uint32), ("tp_rank", ctypes.c_uint32),
                ("tp_size", ctypes.c_uint32), ("writable", ctypes.c_int),
                ("choose_node", ctypes.c_int), ("node", ctypes.c_int32)]


def attach_by_library(path, table):
    os.environ["ENGRAMD_SOCKET"] = path
    lib = ctypes.CDLL(str(engramd.BUILD / "lib" / "libengram.so"))
    client, out = ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.engram_open(None, ctypes.byref(client)) == 0
    assert lib.engram_attach(client, ctypes.byref(Params(table.encode())),
                             ctypes.byref(out)) == 0


def attach(path, tables):
    client = engramd.Client(path).greet()
    maps = []
    for table in tables:
        client.call("attach", table=table)
        maps += [mmap.mmap(fd, 0, prot=mmap.PROT_READ) for fd in client.fds]
        client.close_fds()
    return client, maps


def idle():
    while True:
        time.sleep(60)


LINE = b'{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}\n'


def ask_and_not_read(client):
    """Until neither side can send any more."""
    client.sock.setblocking(False)
    try:
        while True:
            client.sock.send(LINE * 100)
    except BlockingIOError:
        print("full", flush=True)


def obey(word, client):
    if word == "exit":
        sys.exit()
    elif word == "crash":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "close":
        client.sock.close()
    elif word == "half":
        client.sock.shutdown(socket.SHUT_WR)
    elif word == "both":
        client.sock.shutdown(socket.SHUT_RDWR)
    elif word == "exec":
        os.execv("/bin/sleep", ["sleep", "600"])
    elif word == "fork":
        child = os.fork()
        if child:
            print(child, flush=True)
    elif word == "subscribe":
        client.call("events.subscribe")
        print("subscribed", flush=True)
    elif word == "some":  # more answers than a socket holds
        client.sock.sendall(LINE * 80)
    elif word == "ask":
        ask_and_not_read(client)
    else:
        raise SystemExit(f"what is {word}?")


def main(path, *tables):
    client, maps = None, []
    if path.startswith("lib:"):
        attach_by_library(path[4:], tables[0])
    else:
        client, maps = attach(path, tables)
    print("ready", flush=True)
    for line in sys.stdin:
        obey(line.strip(), client)
        if line.strip() == "fork":
            break
    idle()
    del maps


if __name__ == "__main__":
    main(*sys.argv[1:])
