"""What the tests in Python share: where the programs are, and processes whose output can be waited for."""

import contextlib
import os
import pwd
import random
import re
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path

BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()
GUARD = 30  # seconds; ends a test that would hang, and proves nothing else


def unprivileged(name):
    """Popen's arguments for a server that refuses to run as root: that user, or nobody."""
    if os.geteuid() != 0:
        return {}
    users = {each.pw_name: each for each in pwd.getpwall()}
    user = users.get(name) or users["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def eventually(holds, what=None, limit=GUARD):
    """The first true value of holds(). After the limit, in seconds: an AssertionError with `what`, or the false value without."""
    end = time.monotonic() + limit
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    assert found or what is None, f"not within {limit} s: {what() if callable(what) else what}"
    return found


class Ports:
    """Free ports in a row on loopback, from `first` on; not from the range that outgoing connections use. While this object
    lives, a server can listen on them, also after a restart, and nobody else is given one."""

    def __init__(self, count=1):
        for self.first in random.sample(range(20000, 30000 - count), 1000):
            with contextlib.suppress(OSError), contextlib.ExitStack() as held:
                for port in range(self.first, self.first + count):
                    one = held.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port))
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two could bind it
                weakref.finalize(self, held.pop_all().close)
                return
        raise RuntimeError("no port is free")


class Program:
    """A process with its output in a file; killed with the test."""

    def __init__(self, test, *command, stdin=subprocess.DEVNULL, **variables):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(part) for part in command], stdin=stdin, stdout=self.log,
                                        stderr=subprocess.STDOUT, env={**os.environ, **variables})
        test.addCleanup(self.end)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()

    def said(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def prints(self, pattern):
        found = eventually(lambda: re.search(pattern, self.said()) or self.process.poll() is not None)
        assert isinstance(found, re.Match), f"{pattern} is not in: {self.said()}"
        return found


class Peer:
    """Accepts connections on loopback, and does to each what it is made for, in a thread."""

    def __init__(self, test, play):
        self.play, self.listener = play, socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections = []
        threading.Thread(target=self.run, daemon=True).start()
        test.addCleanup(self.end)

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            self.play(connection)
        except OSError:
            pass
        connection.close()

    def end(self):
        self.listener.close()
        for each in self.connections:
            each.close()
