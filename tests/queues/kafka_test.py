"""examples/kafka_loop.cpp on librdkafka's mock cluster."""

import signal
import sys
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "adapters")]
from kafka import BUILD, KafkaMock  # noqa: E402
from programs import Program, eventually  # noqa: E402


class KafkaLoop(unittest.TestCase):
    partitions = 1

    def setUp(self):
        self.kafka = KafkaMock()
        self.kafka.partitions = self.partitions
        self.kafka.start()
        self.addCleanup(self.kafka.stop)

    def consumer(self, **variables):
        return Program(self, BUILD / "kafka_loop", self.kafka.brokers, "work", **variables)

    def left(self):
        return self.kafka.left("work", "workers")

    def ends(self, program, *signals, status=0):
        for number in signals:
            program.process.send_signal(number)
        self.assertEqual(program.process.wait(20), status, program.said())

    def done(self, program):
        return [line.split()[1] for line in program.said().splitlines() if line.startswith("done ")]

    def test_sigterm_finishes_and_commits_what_is_in_flight(self):
        bodies = ["first 1"] + [f"long{i} 1000" for i in range(4)] + [f"m{i} 200" for i in range(96)]
        self.kafka.publish("work", bodies)
        first = self.consumer()
        first.prints("done first")
        self.ends(first, signal.SIGTERM)
        count = len(self.done(first))
        self.assertEqual(self.left(), 101 - count)
        self.assertIn("long3", self.done(first))
        second = self.consumer()
        self.assertTrue(eventually(lambda: self.left() == 0))
        self.ends(second, signal.SIGTERM)
        self.assertEqual(len(set(self.done(first) + self.done(second))), 101)
        self.assertEqual(len(self.done(first) + self.done(second)), 101)

    def test_second_sigterm_commits_nothing_behind_an_interrupted_message(self):
        self.kafka.publish("work", ["a 1", "b 1", "long 60000"] + [f"m{i} 1" for i in range(20)])
        program = self.consumer(OJS_SIGNAL_DEBOUNCE="0")
        program.prints("done m19")
        began = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        program.prints('"phase":"draining"')
        self.ends(program, signal.SIGTERM)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(self.left(), 21)
        self.assertNotIn("long", self.done(program))

    def test_quiet_takes_no_message_until_sigcont(self):
        self.kafka.publish("work", ["a 1"])
        program = self.consumer()
        program.prints("done a")
        program.process.send_signal(signal.SIGTSTP)
        program.prints('"phase":"quiet"')
        self.kafka.publish("work", ["b 1"])
        self.ends(program, signal.SIGTERM)
        self.assertEqual((self.done(program), self.left()), (["a"], 1))
        program = self.consumer()
        program.prints('"message":"loop started"')
        program.process.send_signal(signal.SIGTSTP)
        program.prints('"phase":"quiet"')
        program.process.send_signal(signal.SIGCONT)
        program.prints("done b")
        self.ends(program, signal.SIGTERM)

    def test_a_message_that_fails_goes_to_the_dead_letter_topic(self):
        self.kafka.publish("work", ["bad fail", "good 1"])
        program = self.consumer()
        self.assertTrue(eventually(lambda: self.left() == 0))
        self.assertEqual(self.kafka.dead("work"), ["bad fail"])
        self.ends(program, signal.SIGTERM)
        self.assertEqual(self.done(program), ["good"])

    def test_a_broker_that_does_not_respond_delays_the_stop_by_seconds_only(self):
        self.kafka.publish("work", ["a 1"])
        program = self.consumer()
        program.prints("done a")
        self.kafka.freeze()
        began = time.monotonic()
        self.ends(program, signal.SIGTERM, status=75)
        self.assertLess(time.monotonic() - began, 10)

    def test_a_drain_does_not_hold_up_the_group(self):
        self.kafka.partitions = 2
        self.kafka.publish("work", ["long 60000"])  # the mock gives a partition to the second after 11 s
        first = self.consumer(OJS_SHUTDOWN_GRACE_PERIOD="2m", OJS_SIGNAL_DEBOUNCE="0")
        first.prints('"message":"loop started"')
        self.assertTrue(eventually(lambda: self.in_flight(first)))
        first.process.send_signal(signal.SIGTERM)
        first.prints('"phase":"draining"')
        self.kafka.publish("work", ["next 1", "next 1"])  # one in each partition
        second = self.consumer(OJS_SIGNAL_DEBOUNCE="0")
        self.assertTrue(eventually(lambda: "done next" in second.said(), 60), second.said())
        self.assertIsNone(first.process.poll())
        self.ends(first, signal.SIGTERM)
        second.process.send_signal(signal.SIGTERM)
        second.prints('"phase":"draining"')
        self.ends(second, signal.SIGTERM)
        self.assertEqual(self.done(first), [])
        self.assertGreaterEqual(self.left(), 2)  # long was interrupted

    def in_flight(self, program):
        program.process.send_signal(signal.SIGTTIN)
        return '"item":"0/' in program.said()


if __name__ == "__main__":
    unittest.main()
