"""Private brokers: a server that is one process with a temporary folder."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from programs import Ports  # noqa: E402

GUARD = 120  # seconds


class Server:
    """Its class has command(), and as `greeting` what it is sent first and how its response begins."""

    as_user = {}  # of Popen's arguments

    def __init__(self, *options, ports=1):
        self.options = options
        self.process = None
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-server-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.ports = Ports(ports)
        self.port = self.ports.first

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
