"""A Kafka cluster of its own for a test: librdkafka's mock, as build/kafka_mock."""

import signal
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from programs import BUILD  # noqa: E402


class KafkaMock:
    programs = ()

    def __init__(self, partitions=4):
        self.partitions = partitions

    def start(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([BUILD / "kafka_mock"], stdin=pipe, stdout=pipe, text=True)
        self.brokers = self.process.stdout.readline().strip()

    def close(self):
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

    def declare(self, topic):
        """publish() creates it."""

    def publish(self, topic, bodies):
        """Spreads them over the topic's partitions; creates it and its dead-letter topic first."""
        bodies = list(bodies)
        self.ask(f"produce {topic}.dead 1\n")
        sent = self.ask("\n".join([f"produce {topic} {self.partitions}", *bodies, ""]))
        assert sent == ["produced", str(len(bodies))], sent

    def left(self, topic):
        """How many messages are not committed."""
        return int(self.ask(f"left {topic} ojs")[1])

    def arguments(self, topic):
        return [self.brokers, topic, "ojs"]
