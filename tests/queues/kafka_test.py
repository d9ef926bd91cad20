"""examples/kafka_loop.cpp on librdkafka's mock cluster: what it commits. The account of many stops is in queues_test.py."""

import signal
import sys
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "support")]
from kafka import BUILD, KafkaMock  # noqa: E402
from programs import Program, eventually  # noqa: E402


class KafkaLoop(unittest.TestCase):
    def test_a_forced_stop_commits_nothing_behind_an_interrupted_message(self):
        kafka = KafkaMock(partitions=1)
        self.addCleanup(kafka.close)
        kafka.start()
        kafka.publish("work", ["a 1", "bad fail", "long 60000"] + [f"m{i} 1" for i in range(20)])
        consumer = Program(self, BUILD / "kafka_loop", *kafka.arguments("work"), OJS_SIGNAL_DEBOUNCE="0")
        consumer.prints("done m19")
        self.assertTrue(eventually(lambda: kafka.left("work.dead") == 1), consumer.said())
        consumer.process.send_signal(signal.SIGTERM)
        consumer.prints('"phase":"draining"')
        consumer.process.send_signal(signal.SIGTERM)
        self.assertEqual(consumer.process.wait(20), 0, consumer.said())
        self.assertNotIn("done long", consumer.said())
        self.assertEqual(kafka.left("work"), 21)  # all but the two before it


if __name__ == "__main__":
    unittest.main()
