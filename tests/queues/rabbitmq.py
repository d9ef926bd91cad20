"""A private RabbitMQ broker: Debian's, in a temporary folder, on loopback; for root, as user rabbitmq."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ports import free_ports

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from programs import BUILD, unprivileged  # noqa: E402

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_TIMEOUT = 120  # seconds
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CONFIGURATION = """loopback_users = none
disk_free_limit.absolute = 1MB
log.console = false
"""


class RabbitMQ:
    """Uses three ports from `port` on: AMQP, Erlang's distribution, and Erlang's port mapper."""

    programs = ("rabbitmq-server",)

    def __init__(self):
        self.port = port = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/"
        self.pid = None  # of the broker, while it runs
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-rabbitmq-", dir="/tmp"))
        self.as_user = unprivileged("rabbitmq")
        if self.as_user:
            os.chown(self.folder, self.as_user["user"], self.as_user["group"])
        (self.folder / "rabbitmq.conf").write_text(CONFIGURATION)
        (self.folder / "enabled_plugins").write_text("[].\n")
        os.chmod(self.folder, 0o755)
        self._server = self._mapper = None

    def environment(self):
        return {
            "PATH": "/usr/lib/rabbitmq/bin:/usr/bin:/bin:/usr/sbin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self.port + 2),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"ojs{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.port + 1),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
        }

    def _popen(self, *command):
        with open(self.folder / "output", "ab") as output:
            return subprocess.Popen(command, env=self.environment(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                                    stderr=output, start_new_session=True, **self.as_user)

    def start(self):
        """Returns once the broker accepts connections."""
        if self._mapper is None:
            self._mapper = self._popen("epmd", "-port", str(self.port + 2), "-address", "127.0.0.1")
        (self.folder / "pid").unlink(missing_ok=True)
        self._server = self._popen(str(SERVER))
        deadline = time.monotonic() + START_TIMEOUT
        while not self._accepts():
            if self._server.poll() is not None or time.monotonic() > deadline:
                output = (self.folder / "output").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError("RabbitMQ does not start: " + output)
            time.sleep(0.1)
        self.pid = int((self.folder / "pid").read_text())

    def _accepts(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as peer:
                peer.settimeout(5)
                peer.sendall(PROTOCOL_HEADER)
                return peer.recv(1) == b"\x01"  # connection.start
        except OSError:
            return False

    def _end(self, signal_number):
        if self._server is None:
            return
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal_number)
        else:
            os.killpg(self._server.pid, signal_number)
        try:
            self._server.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
        self._server = self.pid = None

    def stop(self):
        """As an operator does: by SIGTERM. The data is kept for start()."""
        self._end(signal.SIGTERM)

    def kill(self):
        self._end(signal.SIGKILL)

    def freeze(self):
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self):
        os.kill(self.pid, signal.SIGCONT)

    def tool(self, *arguments, lines=""):
        return subprocess.run([BUILD / "amqp_tool", self.url, *arguments], input=lines, text=True, check=True,
                              stdout=subprocess.PIPE, timeout=60).stdout

    def declare(self, queue):
        self.tool("declare", queue, "quorum")  # a classic one forgets the last ACKs when the broker is killed

    def publish(self, queue, bodies):
        self.tool("publish", queue, lines="".join(body + "\n" for body in bodies))

    def left(self, queue):
        return int(self.tool("count", queue))

    def arguments(self, queue):
        """Of a loop."""
        return [self.url, queue]

    def variables(self, queue):
        """Of a worker."""
        return {"OJS_URL": self.url, "OJS_QUEUES": queue}

    def ctl(self, *arguments):
        """Runs rabbitmqctl and returns its output."""
        command = ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", *arguments]
        done = subprocess.run(command, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=60,
                              **self.as_user)
        if done.returncode != 0:
            raise RuntimeError("rabbitmqctl: " + done.stderr)
        return done.stdout

    def close(self):
        """Ends the broker and removes its data."""
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None
        shutil.rmtree(self.folder, ignore_errors=True)
