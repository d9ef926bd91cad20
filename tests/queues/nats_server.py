"""A private NATS server with JetStream in a temporary folder, for tests."""

import json
import socket

from server import Server


class NatsServer(Server):
    programs = ("nats-server",)
    greeting = b"PING\r\n", b"INFO "

    def command(self):
        return ["nats-server", "-a", "127.0.0.1", "-p", self.port, "-js", "-sd", self.folder]

    def ask(self, subject, *bodies):
        """The response to each body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as to, to.makefile("rwb") as wire:
            wire.write(b'CONNECT {"verbose":false}\r\nSUB reply 1\r\n')
            wire.writelines(f"PUB {subject} reply {len(body)}\r\n{body}\r\n".encode() for body in bodies)
            wire.flush()
            responses = []
            while len(responses) < len(bodies) and (line := wire.readline()):
                if line.startswith(b"MSG "):
                    responses.append(json.loads(wire.read(int(line.split()[-1]) + 2)))
            return responses

    def declare(self, stream, **consumer):
        """A stream, and its consumer `ojs`."""
        self.ask(f"$JS.API.STREAM.CREATE.{stream}", json.dumps({"name": stream, "subjects": [stream], "storage": "file"}))
        settings = {"durable_name": "ojs", "ack_policy": "explicit", "ack_wait": 5 * 10**9, **consumer}
        self.ask(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.ojs", json.dumps({"stream_name": stream, "config": settings}))

    def publish(self, stream, bodies):
        assert all("seq" in each for each in self.ask(stream, *bodies))

    def consumer(self, stream):
        return self.ask(f"$JS.API.CONSUMER.INFO.{stream}.ojs", "")[0]

    def left(self, stream):
        """How many messages are not acknowledged."""
        info = self.consumer(stream)
        return info["num_pending"] + info["num_ack_pending"]

    def arguments(self, stream):
        return [f"nats://127.0.0.1:{self.port}", stream, "ojs"]
