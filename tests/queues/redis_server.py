"""A private Redis with an append-only file in a temporary folder, for tests."""

import subprocess

from server import GUARD, Server


class RedisServer(Server):
    programs = ("redis-server", "redis-cli")
    greeting = b"PING\r\n", (b"+PONG", b"-NOAUTH")

    def command(self):
        return ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
                "--appendonly", "yes", "--appendfsync", "always", *self.options]

    def cli(self, *arguments, data=b""):
        """The output of redis-cli."""
        ran = subprocess.run(["redis-cli", "-p", str(self.port), *map(str, arguments)], input=data, check=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=GUARD)
        return ran.stdout.decode(errors="replace").rstrip("\n")

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
