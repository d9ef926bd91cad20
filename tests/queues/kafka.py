"""A Kafka cluster of its own for a test: librdkafka's mock, as build/kafka_mock."""

import os
import signal
import subprocess
from pathlib import Path

BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()


class KafkaMock:
    partitions = 4

    def start(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([BUILD / "kafka_mock"], stdin=pipe, stdout=pipe, text=True)
        self.brokers = self.process.stdout.readline().strip()
        return self

    def stop(self):
        """Idempotent."""
        self.process.kill()  # also if it is frozen
        self.process.communicate()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def publish(self, topic, bodies):
        """Spreads them over the topic's partitions; creates it first."""
        bodies = list(bodies)
        self.ask(f"produce {topic}.dead 1\n")
        sent = self.ask("\n".join([f"produce {topic} {self.partitions}", *bodies, ""]))
        assert sent == ["produced", str(len(bodies))], sent

    def offsets(self, command):
        return {part: int(offset) for part, offset in (each.split(":") for each in self.ask(command)[1:])}

    def left(self, topic, group):
        """How many messages are not committed."""
        ends, committed = self.offsets(f"ends {topic}"), self.offsets(f"committed {topic} {group}")
        return sum(ends[part] - committed[part] for part in ends)

    def dead(self, topic):
        """The bodies in the topic's dead-letter topic."""
        count = int(self.ask(f"read {topic}.dead")[1])
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]
