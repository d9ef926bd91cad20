#!/usr/bin/env python3
"""The transports and loops for brokers, on private brokers: `queues_test.py CLASS`. The account of a chaos run: chaos.py."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import chaos
from chaos import BUILD, QUEUE
from rabbitmq import RabbitMQ
from redis_server import RedisServer


def started(test, kind, program):
    """A broker for the test."""
    absent = chaos.missing(kind, program)
    if absent:
        test.skipTest(f"{absent} is missing")
    broker = kind()
    test.addCleanup(broker.close)
    broker.start()
    return broker


class Contract(unittest.TestCase):
    """The requirements of every transport, and the cases of this one."""

    def test_rabbitmq_classic(self):
        self.run_contract("amqp_contract", RabbitMQ, OJS_TEST_QUEUE_TYPE="classic")

    def test_rabbitmq_quorum(self):
        self.run_contract("amqp_contract", RabbitMQ, OJS_TEST_QUEUE_TYPE="quorum")

    def test_redis(self):
        self.run_contract("redis_streams_contract", RedisServer)

    def run_contract(self, program, broker, **variables):
        server = started(self, broker, program)
        address = {"OJS_TEST_BROKER_PORT": str(server.port), "OJS_TEST_BROKER_PID": str(server.pid)}
        ran = subprocess.run([BUILD / program], env={**os.environ, **address, **variables}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=500)
        self.assertEqual(ran.returncode, 0, ran.stdout[-5000:])


class Refusals(unittest.TestCase):
    """A broker that refuses: the log says why, and the message is kept."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-queues-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, title, **variables):
        broker = started(self, chaos.CONSUMERS[title].broker, title)
        broker.declare(QUEUE)

        def worker():
            environment = {**broker.variables(QUEUE), "OJS_POLL_INTERVAL": "50ms", **variables}
            process = chaos.Process([BUILD / title], environment, self.folder, 1)
            self.addCleanup(process.process.wait)
            self.addCleanup(process.process.kill)
            return process

        return broker, worker

    def stop(self, process):
        process.signal(signal.SIGTERM)
        return process.process.wait(chaos.GUARD)

    def await_done(self, process, *ids):
        wanted = sorted(f"done {each}" for each in ids)
        self.assertTrue(chaos.eventually(lambda: sorted(process.account.read_text().splitlines()) == wanted),
                        (wanted, process.account.read_text(), process.log.read_text()[-3000:]))

    def await_log(self, process, pattern):
        self.assertTrue(chaos.eventually(lambda: process.says(pattern)), process.log.read_text()[-3000:])

    def test_rabbitmq_with_a_full_disk(self):
        broker, worker = self.start("amqp_worker", OJS_SHUTDOWN_GRACE_PERIOD="1s", OJS_STOP_TIMEOUT="1s",
                                    OJS_REQUEST_TIMEOUT="1s")
        broker.publish(QUEUE, ["good 0", "bad fail"])
        broker.ctl("set_disk_free_limit", "1000000000000000")
        process = worker()
        self.await_done(process, "good")
        self.await_log(process, "FAIL failed.*(memory|disk)")
        self.assertIn(self.stop(process), (0, 75))
        broker.ctl("set_disk_free_limit", "1000000")
        self.assertTrue(chaos.eventually(lambda: broker.left(QUEUE) == 1), broker.left(QUEUE))

    def test_rabbitmq_with_a_consumer_timeout(self):
        broker, worker = self.start("amqp_worker")
        broker.ctl("eval", "application:set_env(rabbit, consumer_timeout, 1000),"
                                  "application:set_env(rabbit, channel_tick_interval, 200).")
        process = worker()
        broker.publish(QUEUE, ["slow 4000", "next 0"])
        self.await_log(process, "timed out")
        self.await_done(process, "slow", "next")
        self.assertTrue(chaos.eventually(lambda: broker.left(QUEUE) == 0), broker.left(QUEUE))
        self.assertEqual(self.stop(process), 0)
        self.await_done(process, "slow", "next")

    def test_rabbitmq_with_a_connection_limit(self):
        broker, worker = self.start("amqp_worker")
        broker.publish(QUEUE, ["kept 0"])
        broker.ctl("set_vhost_limits", "-p", "/", '{"max-connections": 0}')
        process = worker()
        self.await_log(process, "limit")
        broker.ctl("clear_vhost_limits", "-p", "/")
        self.await_done(process, "kept")
        self.assertEqual(self.stop(process), 0)

    def test_redis_with_a_full_disk(self):
        broker, worker = self.start("redis_streams_worker")
        broker.publish(QUEUE, ["kept 0"])
        (broker.folder / "dump.rdb").mkdir()  # so no snapshot can be written
        broker.cli("BGSAVE")
        status = lambda: broker.cli("INFO", "persistence")  # noqa: E731
        self.assertTrue(chaos.eventually(lambda: "rdb_last_bgsave_status:err" in status()), status())
        broker.cli("CONFIG", "SET", "save", "3600 1")  # from now on writes are refused
        process = worker()
        self.await_log(process, "MISCONF")
        broker.cli("CONFIG", "SET", "save", "")
        self.await_done(process, "kept")
        self.assertEqual(self.stop(process), 0)


class Chaos(unittest.TestCase):
    """Every message is done, by consumers that are stopped in every way."""


def add_chaos(title):
    def test(self):
        absent = chaos.missing(chaos.CONSUMERS[title].broker, title)
        if absent:
            self.skipTest(f"{absent} is missing")
        outcome = chaos.run(title, messages=10000, stops=20, seed=int(os.environ.get("OJS_TEST_SEED", "1")))
        self.assertEqual(outcome.faults, [], outcome)

    setattr(Chaos, f"test_{title}", test)


for each in chaos.CONSUMERS:
    add_chaos(each)

if __name__ == "__main__":
    unittest.main()
