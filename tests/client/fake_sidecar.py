# SPDX-License-Identifier: Apache-2.0
"""A sidecar for tests of engramctl: answers by a table of methods."""
import json
import os
import socket
import threading

EPOCH = "6f0c1122334455aa"


class Error(Exception):
    """An error answer: name, message and members of `data`."""

    def __init__(self, name, message, **data):
        super().__init__(message)
        self.answer = {"code": -32000, "message": message,
                       "data": {"name": name, **data}}


class FakeSidecar:
    """`methods` maps a name to a result, or to a function of the parameters
    that returns one or raises Error.  `calls` lists what was asked."""

    def __init__(self, path, methods):
        self.path = str(path)
        self.methods = methods
        self.calls = []
        self.events = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.listener.close()
        os.unlink(self.path)

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,),
                                      daemon=True)
            self.threads.append(thread)
            thread.start()

    def _answer(self, request):
        method = request["method"]
        params = request.get("params", {})
        self.calls.append((method, params))
        if method not in self.methods:
            raise Error("Unsupported", f'no method "{method}"')
        result = self.methods[method]
        return result(params) if callable(result) else result

    def _serve(self, sock):
        def say(message):
            sock.sendall(json.dumps(message).encode() + b"\n")

        with sock, sock.makefile("r", encoding="utf-8") as lines:
            try:
                say({"jsonrpc": "2.0", "method": "hello", "params": {
                    "product": "engramd", "version": "0.1.0",
                    "protocol": {"major": 1, "minor": 0},
                    "instance": "default", "boot_epoch": EPOCH, "pid": 1}})
                for line in lines:
                    request = json.loads(line)
                    if "id" not in request:
                        continue
                    reply = {"jsonrpc": "2.0", "id": request["id"]}
                    try:
                        reply["result"] = self._answer(request)
                    except Error as error:
                        reply["error"] = error.answer
                    say(reply)
                    for event in self.events:
                        say(event)
            except (BrokenPipeError, ConnectionResetError):
                pass
