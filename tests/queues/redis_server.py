"""A private Redis with an append-only file in a temporary folder, for tests."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path

from ports import free_ports

GUARD = 60  # seconds


class RedisServer:
    programs = ("redis-server", "redis-cli")

    def __init__(self, *options):
        self.options = options
        self.process = None
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-redis-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.port = free_ports()

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        """Returns once it answers; after stop() or kill(), with the same port and data."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
                   "--save", "", "--appendonly", "yes", "--appendfsync", "always", *self.options]
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "PATH": path})
        end = time.monotonic() + GUARD
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() >= end:
                log = (self.folder / "log").read_text()
                raise RuntimeError("redis-server does not start: " + log[-2000:])
            time.sleep(0.02)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as to:
                to.sendall(b"PING\r\n")
                return to.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def end(self, number):
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.process.send_signal(number)
            self.process.wait(GUARD)

    def stop(self):
        self.end(signal.SIGTERM)

    def kill(self):
        self.end(signal.SIGKILL)

    def close(self):
        self.kill()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def cli(self, *arguments, data=b""):
        """The output of redis-cli."""
        ran = subprocess.run(["redis-cli", "-p", str(self.port), *map(str, arguments)], input=data, check=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=GUARD)
        return ran.stdout.decode(errors="replace").rstrip("\n")

    def declare(self, stream):
        """Its first entry makes it."""

    def publish(self, stream, bodies):
        """An entry for each body; its id is the body's first word."""
        commands = [request("XADD", stream, "*", "id", body.split()[0], "body", body) for body in bodies]
        said = self.cli("--pipe", data=b"".join(commands))
        if f"errors: 0, replies: {len(commands)}" not in said:
            raise RuntimeError(said)

    def left(self, stream):
        """What is not settled: in the stream, pending, to be retried, dead. 0: nothing; an entry may count twice."""
        counts = [self.cli("XLEN", stream), self.cli("XPENDING", stream, "ojs").split("\n")[0],
                  self.cli("ZCARD", f"{stream}.ojs.retry"), self.cli("XLEN", f"{stream}.dead")]
        return sum(int(count) for count in counts if count.isdigit())  # no digits: there is no group

    def arguments(self, stream):
        """Of a loop."""
        return [f"127.0.0.1:{self.port}", stream]

    def variables(self, stream):
        """Of a worker."""
        return {"OJS_URL": f"redis://127.0.0.1:{self.port}", "OJS_QUEUES": stream}


def request(*words):
    """As Redis reads it."""
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
