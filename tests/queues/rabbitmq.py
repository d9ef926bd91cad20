"""A private RabbitMQ broker: Debian's, in a temporary folder, on loopback; for root, as user rabbitmq."""

import contextlib
import os
import subprocess
from pathlib import Path

from server import Server  # which makes programs importable
from programs import BUILD, eventually, unprivileged

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONFIGURATION = """loopback_users = none
disk_free_limit.absolute = 1MB
log.console = false
"""


class RabbitMQ(Server):
    """Uses three ports from `port` on: AMQP, Erlang's distribution, and Erlang's port mapper."""

    programs = ("rabbitmq-server",)
    greeting = b"AMQP\x00\x00\x09\x01", b"\x01"  # connection.start

    def __init__(self):
        super().__init__(ports=3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self.as_user = unprivileged("rabbitmq")
        if self.as_user:
            os.chown(self.folder, self.as_user["user"], self.as_user["group"])
        (self.folder / "rabbitmq.conf").write_text(CONFIGURATION)
        (self.folder / "enabled_plugins").write_text("[].\n")
        os.chmod(self.folder, 0o755)
        self.mapper = None

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

    def command(self):
        if self.mapper is None:
            self.mapper = self.popen("epmd", "-port", self.port + 2, "-address", "127.0.0.1")
        return [SERVER]

    @property
    def pid(self):
        """Not that of the script."""
        return int((self.folder / "pid").read_text())

    def tool(self, *arguments, lines=""):
        return subprocess.run([BUILD / "amqp_tool", self.url, *arguments], input=lines, text=True, check=True,
                              stdout=subprocess.PIPE, timeout=60).stdout

    def declare(self, queue):
        self.tool("declare", queue, "quorum")  # a classic one forgets the last ACKs when the broker is killed
        names, = (self.folder / "mnesia").glob("*/quorum/*/names.dets")
        # After a kill before that, the queue would have no leader.
        eventually(lambda: f"_{queue}".encode() in names.read_bytes(), "the queue's name is not on disk")

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
        with contextlib.suppress(OSError):  # it has no process id yet
            self.kill()
        super().close()
        if self.mapper is not None:
            self.mapper.kill()
            self.mapper.wait()
