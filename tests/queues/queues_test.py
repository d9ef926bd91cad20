#!/usr/bin/env python3
"""The transports and loops for brokers, on private brokers, and servers that drain: `queues_test.py CLASS`. The account of a
chaos run: chaos.py."""

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

import chaos
from chaos import BUILD, QUEUE, eventually
from kafka import KafkaMock, KafkaServer
from nats_server import NatsServer
from programs import Program
from rabbitmq import RabbitMQ
from redis_server import RedisServer

# The status code, and a grpc.health.v1.HealthCheckResponse with status 1 or 2.
SERVING, NOT_SERVING = "0 0801", "0 0802"


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

    def test_contract_passes_on_rabbitmq_classic(self):
        self.run_contract("amqp_contract", RabbitMQ, OJS_TEST_QUEUE_TYPE="classic")

    def test_contract_passes_on_rabbitmq_quorum(self):
        self.run_contract("amqp_contract", RabbitMQ, OJS_TEST_QUEUE_TYPE="quorum")

    def test_contract_passes_on_redis(self):
        self.run_contract("redis_streams_contract", RedisServer)

    def run_contract(self, program, broker, **variables):
        server = started(self, broker, program)
        address = {"OJS_TEST_BROKER_PORT": str(server.port), "OJS_TEST_BROKER_PID": str(server.pid)}
        ran = subprocess.run([BUILD / program], env={**os.environ, **address, **variables}, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=500)
        self.assertEqual(ran.returncode, 0, ran.stdout[-5000:])


class Refusals(unittest.TestCase):
    """A RabbitMQ that refuses: the log says why, and the message is kept."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ojs-queues-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.broker = started(self, RabbitMQ, "amqp_worker")
        self.broker.declare(QUEUE)

    def worker(self, **variables):
        environment = {**self.broker.variables(QUEUE), "OJS_POLL_INTERVAL": "50ms", **variables}
        process = chaos.Process([BUILD / "amqp_worker"], environment, self.folder, 1)
        self.addCleanup(process.process.wait)
        self.addCleanup(process.process.kill)
        return process

    def stop(self, process):
        process.signal(signal.SIGTERM)
        return process.process.wait(chaos.GUARD)

    def await_done(self, process, *ids):
        wanted = sorted(f"done {each}" for each in ids)
        self.assertTrue(eventually(lambda: sorted(process.account.read_text().splitlines()) == wanted),
                        (wanted, process.account.read_text(), process.log.read_text()[-3000:]))

    def await_log(self, process, pattern):
        self.assertTrue(eventually(lambda: process.says(pattern)), process.log.read_text()[-3000:])

    def test_a_full_disk_of_the_broker_loses_no_message(self):
        self.broker.publish(QUEUE, ["good 0", "bad fail"])
        self.broker.ctl("set_disk_free_limit", "1000000000000000")
        process = self.worker(OJS_SHUTDOWN_GRACE_PERIOD="1s", OJS_STOP_TIMEOUT="1s", OJS_REQUEST_TIMEOUT="1s")
        self.await_done(process, "good")
        self.await_log(process, "cannot report a failed job.*(memory|disk)")
        self.assertIn(self.stop(process), (0, 75))
        self.broker.ctl("set_disk_free_limit", "1000000")
        self.assertTrue(eventually(lambda: self.broker.left(QUEUE) == 1), self.broker.left(QUEUE))

    def test_a_consumer_timeout_of_the_broker_loses_no_message(self):
        self.broker.ctl("eval", "application:set_env(rabbit, consumer_timeout, 1000),"
                        "application:set_env(rabbit, channel_tick_interval, 200).")
        process = self.worker()
        self.broker.publish(QUEUE, ["slow 4000", "next 0"])
        self.await_log(process, "timed out")
        self.await_done(process, "slow", "next")
        self.assertTrue(eventually(lambda: self.broker.left(QUEUE) == 0), self.broker.left(QUEUE))
        self.assertEqual(self.stop(process), 0)
        self.await_done(process, "slow", "next")


class Loops(unittest.TestCase):
    """What chaos does not show."""

    def test_nats_extends_the_ack_wait(self):
        broker = started(self, NatsServer, "nats_loop")
        broker.declare(QUEUE)
        for _ in range(2):
            Program(self, BUILD / "nats_loop", *broker.arguments(QUEUE))
        broker.publish(QUEUE, ["long 7000"])  # the ack wait is 5 s
        self.assertTrue(eventually(lambda: broker.left(QUEUE) == 0))
        self.assertEqual(broker.consumer(QUEUE)["delivered"]["consumer_seq"], 1)

    def test_kafka_commits_no_offset_past_an_interrupted_message(self):
        kafka = KafkaMock()
        kafka.start()
        kafka.publish(QUEUE, ["a 1", "bad fail", "long 60000"] + [f"m{i} 1" for i in range(20)])
        consumer = Program(self, BUILD / "kafka_loop", *kafka.arguments(QUEUE), OJS_SIGNAL_DEBOUNCE="0")
        consumer.prints("done m19")
        self.assertTrue(eventually(lambda: kafka.left(f"{QUEUE}.dead") == 1), consumer.said())
        consumer.process.send_signal(signal.SIGTERM)
        consumer.prints('"phase":"draining"')
        consumer.process.send_signal(signal.SIGTERM)
        self.assertEqual(consumer.process.wait(20), 0, consumer.said())
        self.assertNotIn("done long", consumer.said())
        self.assertEqual(kafka.left(QUEUE), 21)  # all but the two before it

    def test_kafka_cancels_messages_of_a_revoked_partition(self):
        kafka = started(self, KafkaServer, "kafka_loop")
        kafka.publish(QUEUE, ["begun 1"] * kafka.partitions + ["long 60000"] * kafka.partitions)
        first = Program(self, BUILD / "kafka_loop", *kafka.arguments(QUEUE), OJS_CONCURRENCY="8")
        first.prints("(done begun\n){6}")
        Program(self, BUILD / "kafka_loop", *kafka.arguments(QUEUE))
        first.prints("item lost")

    def test_kafka_member_without_partitions_leaves_its_group(self):
        kafka = started(self, type("", (KafkaServer,), {"partitions": 1}), "kafka_loop")
        kafka.publish(QUEUE, ["begun 1"])
        first = Program(self, BUILD / "kafka_loop", *kafka.arguments(QUEUE))
        first.prints("done begun")
        second = Program(self, BUILD / "kafka_loop", *kafka.arguments(QUEUE), OJS_SIGNAL_DEBOUNCE="0")
        self.assertTrue(eventually(lambda: kafka.producer.members("ojs") == 2), second.said())
        second.process.send_signal(signal.SIGTERM)
        self.assertEqual(second.process.wait(20), 0, second.said())
        self.assertEqual(kafka.producer.members("ojs"), 1)


class GrpcDrain(unittest.TestCase):
    """examples/grpc_drain.cpp: calls and the health service through a stop."""

    def call(self, method, text=""):
        command = [BUILD / "grpc_client", self.address, "call", method, text]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()

    def health(self):
        """An empty HealthCheckRequest is about the whole server."""
        return self.call("/grpc.health.v1.Health/Check")

    def test_sigterm_under_load_fails_no_call(self):
        server = Program(self, BUILD / "grpc_drain", "127.0.0.1:0", "1s", OJS_SIGNAL_DEBOUNCE="0")
        self.address = server.prints(r"listening on (127.0.0.1:\d+)")[1]
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        server.process.send_signal(signal.SIGTSTP)
        self.assertTrue(eventually(lambda: self.health() == NOT_SERVING))
        self.assertEqual(self.call("/demo/Work", "1"), "0 31")
        server.process.send_signal(signal.SIGCONT)
        self.assertTrue(eventually(lambda: self.health() == SERVING))
        load = Program(self, BUILD / "grpc_client", self.address, "load", 8, 300)
        load.prints("loaded")
        server.process.send_signal(signal.SIGTERM)
        server.prints('"phase":"draining"')
        self.assertEqual(self.health(), NOT_SERVING)
        ended = load.prints(r"ok (\d+) refused (\d+) failed (\d+)")
        self.assertGreater(int(ended[1]), 8)
        self.assertEqual((ended[2], ended[3]), ("8", "0"), load.said())
        self.assertEqual(server.process.wait(20), 0, server.said())


class AsioDrain(unittest.TestCase):
    """examples/asio_drain.cpp: requests and connections through a quiet and a stop."""

    def send(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        return connection

    def in_flight(self, count):
        """The loop counts the listener, too."""
        self.server.process.send_signal(signal.SIGTTIN)
        return f'"active_items":{count + 1}' in self.server.said()

    def refused(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) != 0

    def test_sigterm_completes_requests_in_flight_and_refuses_new_ones(self):
        self.server = Program(self, BUILD / "asio_drain", OJS_SIGNAL_DEBOUNCE="0")
        self.port = int(self.server.prints(r"listening on 127.0.0.1:(\d+)")[1])
        self.server.process.send_signal(signal.SIGTSTP)
        self.server.prints('"phase":"quiet"')
        idle = self.send("/0s")  # waits in the listener's queue
        self.server.process.send_signal(signal.SIGCONT)
        response = idle.getresponse()
        self.assertEqual((response.status, response.read()), (200, b"OK\n"))
        clients = [self.send("/3s") for _ in range(20)]
        self.assertTrue(eventually(lambda: self.in_flight(20)))
        self.server.process.send_signal(signal.SIGTERM)
        self.assertTrue(eventually(self.refused))
        self.assertEqual(idle.sock.recv(1), b"")  # closed, while the others still wait
        self.assertIsNone(self.server.process.poll())
        for client in clients:
            response = client.getresponse()
            self.assertEqual((response.status, response.getheader("Connection")), (200, "close"))
            self.assertEqual(response.read(), b"OK\n")
        self.assertEqual(self.server.process.wait(20), 0, self.server.said())


class Chaos(unittest.TestCase):
    """Every message is done, by consumers that are stopped in every way."""


for title in chaos.CONSUMERS:
    setattr(Chaos, f"test_{title}", lambda self, title=title: chaos.check(self, title))

if __name__ == "__main__":
    unittest.main()
