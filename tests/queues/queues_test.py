#!/usr/bin/env python3
"""The transports and loops for brokers, on private brokers: `queues_test.py CLASS`. The account of a chaos run: chaos.py."""

import os
import subprocess
import unittest

import chaos
from chaos import BUILD


class Contract(unittest.TestCase):
    """The requirements of every transport, and the cases of this one."""

    def test_rabbitmq_classic(self):
        self.run_contract("amqp_contract", chaos.Rabbit, OJS_TEST_QUEUE_TYPE="classic")

    def test_rabbitmq_quorum(self):
        self.run_contract("amqp_contract", chaos.Rabbit, OJS_TEST_QUEUE_TYPE="quorum")

    def test_redis(self):
        self.run_contract("redis_streams_contract", chaos.Redis)

    def run_contract(self, program, broker, **variables):
        absent = chaos.missing(chaos.Consumer(program, broker))
        if absent:
            self.skipTest(f"{absent} is missing")
        server = broker("work").server
        self.addCleanup(chaos.end, server)
        address = {"OJS_TEST_AMQP_URL": getattr(server, "url", ""), "OJS_TEST_REDIS_PORT": str(getattr(server, "port", "")),
                   "OJS_TEST_BROKER_PID": str(server.pid)}
        ran = subprocess.run([BUILD / program], env={**os.environ, **address, **variables}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=500)
        self.assertEqual(ran.returncode, 0, ran.stdout[-5000:])


class Chaos(unittest.TestCase):
    """Every message is done, by consumers that are stopped in every way."""


def add_chaos(title):
    def test(self):
        consumer = chaos.CONSUMERS[title]
        absent = chaos.missing(consumer)
        if absent:
            self.skipTest(f"{absent} is missing")
        outcome = chaos.run(title, messages=10000, stops=20, seed=int(os.environ.get("OJS_TEST_SEED", "1")))
        print(chaos.HEAD + "\n" + outcome.row(title))
        self.assertEqual(outcome.faults, [], outcome)

    setattr(Chaos, f"test_{title}", test)


for each in [title for title, consumer in chaos.CONSUMERS.items() if not consumer.is_control]:
    add_chaos(each)

if __name__ == "__main__":
    unittest.main()
