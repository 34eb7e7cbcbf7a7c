# SPDX-License-Identifier: Apache-2.0
"""What systemd is to a service with FileDescriptorStoreMax=: a socket that is
told things, a store of descriptors, and a start that hands them out."""
import array
import os
import select
import socket
import sys
import threading

import engramd

# Runs as the service: moves the descriptors to 3, 4, ... and becomes it.
LAUNCH = """
import fcntl, os, sys
end = sys.argv.index("--")
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 1000)
        for fd in sys.argv[1:end]]
for at, fd in enumerate(high, 3):
    os.dup2(fd, at)
os.closerange(3 + len(high), 1000)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[end + 1], sys.argv[end + 1:])
"""


class ServiceManager:
    """`limit`: of the store; `says` it in $FDSTORE, as systemd 254 does."""

    def __init__(self, directory, limit=64, says=True):
        self.limit, self.says = limit, says
        self.path = str(directory / "notify")
        self.store = []  # (name, descriptor)
        self.messages = []  # dictionaries
        self.refused = []  # names that did not fit
        self.barriers = 0
        self.mute = False  # barriers are not answered meanwhile
        self.unanswered = []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"X_TEST_END=1", self.path)
        self.thread.join(engramd.DEADLINE)
        self.sock.close()
        self.clean()

    def clean(self):
        """systemctl clean --what=fdstore"""
        for fd in [fd for _, fd in self.store] + self.unanswered:
            os.close(fd)
        self.store, self.unanswered = [], []

    def names(self):
        self.settle()
        return sorted(name for name, _ in self.store)

    def settle(self):
        """Everything that was sent has been handled."""
        done, told = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(self.path)
            socket.send_fds(sock, [b"X_TEST_SETTLE=1"], [told])
        os.close(told)
        answered = select.select([done], [], [], engramd.DEADLINE)[0]
        os.close(done)
        assert answered, "the service manager does not answer"

    def put(self, name, fd):
        self.store.append((name, os.dup(fd)))

    def environment(self):
        env = {"NOTIFY_SOCKET": self.path}
        if self.says:
            env["FDSTORE"] = str(self.limit)
        if self.store:
            env["LISTEN_FDS"] = str(len(self.store))
            env["LISTEN_FDNAMES"] = ":".join(name for name, _ in self.store)
        return env

    def wrap(self, command):
        """The command as it starts the service; what it needs of Popen."""
        fds = [fd for _, fd in self.store]
        return ([sys.executable, "-c", LAUNCH, *map(str, fds), "--", *command],
                {"pass_fds": fds})

    def _run(self):
        room = socket.CMSG_SPACE(16 * 4)
        while True:
            data, ancillary, flags, _ = self.sock.recvmsg(
                65536, room, socket.MSG_CMSG_CLOEXEC)
            fds = array.array("i")
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(payload[:len(payload) // 4 * 4])
            message = dict(line.split("=", 1)
                           for line in data.decode().splitlines())
            assert not flags & socket.MSG_CTRUNC
            if "X_TEST_END" in message:
                return
            self._handle(message, list(fds))

    def _handle(self, message, fds):
        self.messages.append(message)
        name = message.get("FDNAME", "stored")
        if "FDSTOREREMOVE" in message:
            gone = [fd for n, fd in self.store if n == name]
            self.store = [(n, fd) for n, fd in self.store if n != name]
            for fd in gone:
                os.close(fd)
        if "FDSTORE" in message:
            fds = [fd for fd in fds if not self._take(name, fd)]
        if "BARRIER" in message:
            self.barriers += 1
            if self.mute:
                self.unanswered += fds
                return
        for fd in fds:  # of a barrier, too: that is the answer
            os.close(fd)

    def _take(self, name, fd):
        """As systemd: the same file is stored once."""
        stat = os.fstat(fd)
        same = any((os.fstat(had).st_dev, os.fstat(had).st_ino) ==
                   (stat.st_dev, stat.st_ino) for _, had in self.store)
        if not same and len(self.store) >= self.limit:
            self.refused.append(name)
        elif not same:
            self.store.append((name, fd))
            return True
        return False


class Service(engramd.Sidecar):
    """An engramd with tables in memfds, as a service; manager=None: of
    nobody."""

    def __init__(self, directory, manager, tables=(), **config):
        self.manager = manager
        memory = {"backing": "memfd", **config.pop("memory", {})}
        super().__init__(directory, tables, memory=memory, **config)

    def start(self, wait=True, binary=engramd.ENGRAMD, **environment):
        if self.manager:
            self.manager.settle()
            environment = {**self.manager.environment(), **environment}
        return super().start(wait, binary, **environment)

    def command(self, binary):
        command, more = super().command(binary)
        return self.manager.wrap(command) if self.manager else (command, more)

    def names(self):
        """What the service manager has."""
        return self.manager.names() if self.manager else []

    def descriptor(self, name):
        self.manager.settle()
        return next(fd for n, fd in self.manager.store if n == name)

    def inodes(self):
        return {name: os.fstat(self.descriptor(name)).st_ino
                for name in self.names()}

    def connections(self):
        page = self.descriptor(f"engramd.{self.instance}.ctl")
        return int.from_bytes(os.pread(page, 8, 112), "little")
