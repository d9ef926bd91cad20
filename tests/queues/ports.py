"""Private brokers: ports, and a server that is one process with a temporary folder."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path

GUARD = 120  # seconds


def free_ports(count=1):
    """The first of `count` free ports in a row, on loopback; not from the range that outgoing connections use. Random, so
    that tests side by side choose others."""
    for _ in range(1000):
        first = random.randrange(20000, 30000 - count)
        if all(is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError("no port is free")


def is_free(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Server:
    """Its class has command(), and as `greeting` what it is sent first and how its response begins."""

    as_user = {}  # of Popen's arguments

    def __init__(self, *options, ports=1):
        self.options = options
        self.process = None
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-server-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.port = free_ports(ports)

    def environment(self):
        return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}

    @property
    def pid(self):
        return self.process.pid

    def popen(self, *command):
        with open(self.folder / "output", "ab") as log:
            return subprocess.Popen([str(word) for word in command], env=self.environment(), cwd=self.folder, **self.as_user,
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def start(self):
        """Returns once it answers; after stop() or kill(), with the same port and data."""
        self.process = self.popen(*self.command())
        end = time.monotonic() + GUARD
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() >= end:
                self.close()
                raise RuntimeError(f"{self.command()[0]} does not start: " + (self.folder / "output").read_text()[-2000:])
            time.sleep(0.02)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as to:
                to.sendall(self.greeting[0])
                return to.recv(100).startswith(self.greeting[1])
        except OSError:
            return False

    def end(self, number):
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            os.kill(self.pid, number)
            self.process.wait(GUARD)

    def stop(self):
        self.end(signal.SIGTERM)

    def kill(self):
        self.end(signal.SIGKILL)

    def close(self):
        """Also if it has not started, with all processes of its own."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(GUARD)

    def freeze(self):
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self):
        os.kill(self.pid, signal.SIGCONT)

    def declare(self, queue):
        """Its first message makes it."""
